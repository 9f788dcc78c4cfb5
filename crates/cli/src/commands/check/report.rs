//! What a check found: the answer, the table, then every phrasing that failed; or all of it as JSON.

use halfbyte_train::Check;
use serde_json::{Value, json};

use super::{Answer, Verdict};
use crate::output::width;

/// Characters of a reply in the text; JSON has all of it.
const SHOWN: usize = 400;

/// For people.
pub(crate) fn text(verdicts: &[Verdict<'_>]) -> String {
    let held = verdicts.iter().filter(|verdict| verdict.passed()).count();
    let asked: usize = verdicts.iter().map(|verdict| verdict.answers.len()).sum();
    let kept: usize = verdicts.iter().map(Verdict::kept).sum();
    let mut out = match held == verdicts.len() {
        true => format!("passed · all {held} groups hold"),
        false => format!("failed · {held} of {} groups hold", verdicts.len()),
    };
    out.push_str(&format!(" · {kept} of {asked} phrasings keep every rule\n\n"));
    out.push_str(&table(verdicts));
    for verdict in verdicts {
        for answer in verdict.answers.iter().filter(|answer| !answer.broken.is_empty()) {
            out.push_str(&failed(verdict, answer));
        }
    }
    out
}

/// One line for each group.
pub(crate) fn table(verdicts: &[Verdict<'_>]) -> String {
    let divergence = verdicts.iter().any(|verdict| verdict.worst().is_some());
    let heads = ["group", "phrasings", "", if divergence { "worst KL" } else { "" }];
    let mut rows = vec![heads.map(str::to_owned)];
    for verdict in verdicts {
        let group = verdict.group;
        let mut count = format!("{}/{}", verdict.kept(), verdict.answers.len());
        if group.pass < verdict.answers.len() {
            count.push_str(&format!(" of {} needed", group.pass));
        }
        let result = if verdict.passed() { "passed" } else { "failed" };
        let worst = verdict.worst().zip(group.rules.max_kl);
        let worst = worst.map_or(String::new(), |(worst, limit)| format!("{worst:.4} (limit {limit})"));
        rows.push([group.name.clone(), count, result.to_owned(), worst]);
    }
    let widths = [0, 1, 2, 3].map(|column| rows.iter().map(|row| width(&row[column])).max().unwrap_or(0));
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, wanted) in row.iter().zip(widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(wanted - width(cell) + 3));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A phrasing, its reply and the rules it breaks.
fn failed(verdict: &Verdict<'_>, answer: &Answer) -> String {
    let mut out = String::new();
    let last = answer.turns.len().saturating_sub(1);
    for (index, turn) in answer.turns.iter().enumerate() {
        match index {
            0 => out.push_str(&format!("\n{} · {}\n", verdict.group.name, shown(&turn.prompt))),
            _ => out.push_str(&line("then", &turn.prompt)),
        }
        out.push_str(&line(if index == last { "reply" } else { "…" }, &turn.reply));
    }
    for broken in &answer.broken {
        out.push_str(&line(broken.rule, &broken.found));
        if let (Some(distance), "max_kl") = (&answer.distance, broken.rule) {
            out.push_str(&line("baseline", distance.replies.last().map_or("", String::as_str)));
        }
    }
    out
}

/// "  contains      what was found", further lines under it.
fn line(label: &str, text: &str) -> String {
    let text = shown(text);
    let mut lines = text.lines();
    let mut out = format!("  {label:13} {}\n", lines.next().unwrap_or_default());
    for line in lines {
        out.push_str(format!("{:16}{line}", "").trim_end());
        out.push('\n');
    }
    out
}

/// A text as it can be shown: not too long, nothing that moves a cursor.
pub(crate) fn shown(text: &str) -> String {
    let tame = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    let mut out: String = text.trim().chars().take(SHOWN).map(tame).collect();
    if text.trim().chars().count() > SHOWN {
        out.push('…');
    }
    if out.is_empty() {
        out.push_str("(empty)");
    }
    out
}

/// One row for each group, for a run's report.
pub(crate) fn checks(verdicts: &[Verdict<'_>]) -> Vec<Check> {
    let check = |verdict: &Verdict<'_>| {
        let worst = verdict.worst().map(|worst| format!(", worst KL {worst:.4}")).unwrap_or_default();
        let limit = verdict.group.rules.max_kl.map(|limit| format!(", KL {limit}")).unwrap_or_default();
        Check {
            name: verdict.group.name.clone(),
            result: format!("{}/{} phrasings{worst}", verdict.kept(), verdict.answers.len()),
            limit: format!("{} phrasings{limit}", verdict.group.pass),
            passed: verdict.passed(),
        }
    };
    verdicts.iter().map(check).collect()
}

/// For programs: everything.
pub(crate) fn json(verdicts: &[Verdict<'_>]) -> Value {
    let groups: Vec<Value> = verdicts.iter().map(group_json).collect();
    json!({ "passed": verdicts.iter().all(Verdict::passed), "groups": groups })
}

fn group_json(verdict: &Verdict<'_>) -> Value {
    json!({
        "name": verdict.group.name,
        "passed": verdict.passed(),
        "kept": verdict.kept(),
        "needed": verdict.group.pass,
        "worst_kl": verdict.worst(),
        "max_kl": verdict.group.rules.max_kl,
        "phrasings": verdict.answers.iter().map(answer_json).collect::<Vec<_>>(),
    })
}

fn answer_json(answer: &Answer) -> Value {
    let turn = |turn: &super::Said| {
        json!({
            "prompt": turn.prompt,
            "reply": turn.reply,
            "tokens": turn.tokens,
            "finish": turn.finish.name(),
        })
    };
    let broken = |broken: &super::Broken| json!({ "rule": broken.rule, "found": broken.found });
    let distance = answer.distance.as_ref().map(|distance| {
        json!({
            "kl": distance.mean,
            "most_kl": distance.most,
            "tokens": distance.tokens,
            "replies": distance.replies,
        })
    });
    json!({
        "passed": answer.broken.is_empty(),
        "turns": answer.turns.iter().map(turn).collect::<Vec<_>>(),
        "broken": answer.broken.iter().map(broken).collect::<Vec<_>>(),
        "baseline": distance,
    })
}
