//! The page is well-formed whatever the samples hold, and says first whether it worked.

use super::*;
use proptest::prelude::*;

/// Checks that tags nest and close, attributes are quoted, and only known entities are used.
fn well_formed(page: &str) -> Result<(), String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").ok_or("no doctype")?;
    let mut open: Vec<&str> = Vec::new();
    while let Some(at) = rest.find('<') {
        text_is_plain(&rest[..at])?;
        let end = rest[at..].find('>').ok_or("a tag does not end")? + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let expected = open.pop().ok_or(format!("</{name}> closes nothing"))?;
            if expected != name {
                return Err(format!("</{name}> closes <{expected}>"));
            }
            continue;
        }
        let name_end = tag.find([' ', '/']).unwrap_or(tag.len());
        let name = &tag[..name_end];
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(format!("<{tag}> is no tag"));
        }
        attributes(tag[name_end..].trim_end_matches('/').trim())?;
        if name == "style" {
            rest = &rest[rest.find("</style>").ok_or("the style does not end")?..];
        }
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    text_is_plain(rest)?;
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} stay open")) }
}

fn attributes(mut text: &str) -> Result<(), String> {
    while !text.is_empty() {
        let (name, after) = text.split_once("=\"").ok_or(format!("attribute {text:?}"))?;
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(format!("attribute {name:?}"));
        }
        let (value, after) = after.split_once('"').ok_or("a quote stays open")?;
        text_is_plain(value)?;
        text = after.trim_start();
    }
    Ok(())
}

fn text_is_plain(text: &str) -> Result<(), String> {
    if let Some(c) = text.chars().find(|c| *c == '>' || c.is_control() && !matches!(c, '\n' | '\t')) {
        return Err(format!("{c:?} in {text:?}"));
    }
    let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
    let unknown = text.match_indices('&').find(|(at, _)| !known.iter().any(|k| text[*at..].starts_with(k)));
    unknown.map_or(Ok(()), |(at, _)| Err(format!("entity at {:?}", &text[at..])))
}

fn record(step: u64, loss: f64) -> Record {
    let held_out_loss = step.is_multiple_of(2).then_some(loss + 0.1);
    Record {
        step,
        loss,
        held_out_loss,
        learning_rate: 1e-5,
        update_size: 2e-4,
        optimizer_seconds: 0.1,
        gradient_norm: Some(1.5),
        codes_moved: 0.05,
        tokens: 1000,
        trained_tokens: 600,
        seconds: 0.5,
        tokens_per_second: 2000.0,
        ceiling_share: Some(0.7),
        memory_planned: 3 << 30,
        memory_measured: 2 << 30,
        non_finite: 0,
    }
}

fn check(passed: bool) -> Check {
    Check { name: "identity".into(), result: "18/18".into(), limit: "16".into(), passed }
}

#[test]
fn a_small_page_reads_like_this() {
    let pair = Pair { prompt: "你是誰".into(), before: "A & B".into(), after: "<F#>".into() };
    let report = Report {
        title: "tiny".into(),
        ending: "finished".into(),
        checks: vec![check(true)],
        samples: vec![pair],
        facts: vec![("data".into(), "identity.tsv".into())],
        notes: vec!["resumed at step 3".into()],
        command: "halfbyte train --out 'a b'".into(),
        records: vec![],
    };
    let page = html(&report);
    well_formed(&page).unwrap();
    let body = page.split("<main>").nth(1).unwrap().split("</main>").next().unwrap();
    let expected = "<header><p>halfbyte training report · finished</p><h1>tiny</h1>\
        <p><span class=\"verdict good\">It worked: the check passes</span></p></header>\
        <h2>Checks</h2><div class=\"card\"><table><thead><tr><th>check</th><th>result</th><th>needed</th><th></th></tr></thead>\
        <tbody><tr><th>identity</th><td>18/18</td><td>16</td><td><span class=\"pass\">pass</span></td></tr></tbody></table></div>\
        <h2>Before and after</h2><div class=\"card\"><table class=\"samples\"><thead><tr><th>prompt</th><th>before</th>\
        <th>after</th></tr></thead><tbody><tr><th dir=\"auto\">你是誰</th><td dir=\"auto\">A &amp; B</td>\
        <td dir=\"auto\">&lt;F#&gt;</td></tr></tbody></table></div>\
        <h2>Notes</h2><div class=\"card\"><ul><li>resumed at step 3</li></ul></div>\
        <h2>What was trained on what</h2><div class=\"card\"><table class=\"facts\"><tbody><tr><th>data</th>\
        <td>identity.tsv</td></tr></tbody></table></div>\
        <h2>Do it again</h2><div class=\"card\"><pre>halfbyte train --out &#39;a b&#39;</pre></div>\
        <footer>Made by halfbyte. This file is complete: it loads nothing.</footer>";
    assert_eq!(body, expected);
}

#[test]
fn the_verdict_claims_what_was_checked_and_no_more() {
    let verdict = |checks: Vec<Check>, records: Vec<Record>| {
        let page = html(&Report { checks, records, ..Report::default() });
        let (_, after) = page.split_once("<span class=\"verdict ").unwrap();
        after.split("</span>").next().unwrap().to_owned()
    };
    assert_eq!(verdict(vec![check(true); 3], vec![]), "good\">It worked: all 3 checks pass");
    assert_eq!(verdict(vec![check(true), check(false)], vec![]), "bad\">It did not work: 1 of 2 checks fail");
    assert_eq!(verdict(vec![], vec![]), "plain\">Nothing was checked");
    let records = |losses: [f64; 2]| vec![record(2, losses[0]), record(4, losses[1])];
    assert_eq!(
        verdict(vec![], records([3.0, 2.0])),
        "plain\">Held-out loss fell from 3.100 to 2.100; nothing else was checked"
    );
    assert!(verdict(vec![], records([2.0, 3.0])).contains("did not fall"));
    assert!(verdict(vec![], records([2.0, f64::NAN])).contains("Nothing was checked"));
}

#[test]
fn the_page_loads_nothing_and_runs_nothing() {
    let records = (1..=50).map(|step| record(step, 3.0 / step as f64)).collect();
    let page = html(&Report { records, checks: vec![check(true)], ..Report::default() });
    well_formed(&page).unwrap();
    for word in ["<script", "<link", "<img", "src=", "href=", "@import", "url(", "javascript:"] {
        assert!(!page.contains(word), "{word}");
    }
    // The one address is the name of SVG's language, which nobody fetches.
    assert_eq!(page.replace("http://www.w3.org/2000/svg", "").matches("http").count(), 0);
    assert_eq!(page.matches("<figure").count(), 6);
    assert!(page.contains("prefers-color-scheme:dark"));
}

#[test]
fn a_long_run_stays_small() {
    let records = (1..=100_000).map(|step| record(step, 3.0 + (step % 7) as f64)).collect();
    let page = html(&Report { records, ..Report::default() });
    assert!(page.len() < 400_000, "{}", page.len());
}

/// Texts that have broken pages before.
fn nasty() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        Just("</td></tr><script>alert('x')</script>".to_owned()),
        Just("\"onmouseover=\"x\" ' & &amp; &#x3c; ]]> <!-- ".to_owned()),
        Just("👩‍👩‍👧‍👦 \u{0}\u{b}\u{1b}[31m\u{202e}\u{fffe}\r\n\t字".to_owned()),
        "[<>&\"'a/ ]{0,40}",
    ]
}

proptest! {
    #[test]
    fn any_samples_and_any_numbers_give_a_well_formed_page(
        texts in prop::collection::vec(nasty(), 8),
        losses in prop::collection::vec(prop_oneof![any::<f64>(), Just(f64::NAN), 0.0..9.0f64], 0..12),
        passed: bool,
    ) {
        let [title, prompt, before, after, name, result, note, command] = texts.try_into().unwrap();
        let odd = |(index, &loss): (usize, &f64)| Record {
            learning_rate: loss, update_size: -loss, codes_moved: loss, seconds: loss,
            tokens_per_second: loss, ceiling_share: Some(loss), memory_measured: loss.to_bits(),
            tokens: loss.to_bits(), ..record(index as u64, loss)
        };
        let report = Report {
            title: title.clone(), ending: note.clone(), command,
            checks: vec![Check { name: name.clone(), result, limit: title, passed }],
            samples: vec![Pair { prompt, before, after }],
            facts: vec![(name, note.clone())],
            notes: vec![note],
            records: losses.iter().enumerate().map(odd).collect(),
        };
        let page = html(&report);
        let form = well_formed(&page);
        prop_assert!(form.is_ok(), "{:?}", form);
        prop_assert!(!page.contains("<script") && !page.contains("onmouseover=\"x"));
    }
}
