//! One HTML file about a run: first whether it worked, then the evidence, then how to repeat it.
//!
//! `html` is pure. The page needs no network and no script, and is well-formed XML besides, which
//! is what the tests hold it to.

use std::fmt::Write;

use crate::plot::{Mark, Plot, Series, escape, svg};
use crate::record::Record;
use crate::spike::median;
use crate::style::STYLE;
use crate::words::{clock, duration, grouped, loss, memory_size, percent, rate, unit};

/// Everything the page shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What was trained: "SmolLM2-135M-Instruct".
    pub title: String,
    /// How the run ended: "finished", "stopped at step 57: the loss is not a number".
    pub ending: String,
    /// The check table; empty when nothing was checked.
    pub checks: Vec<Check>,
    /// The fixed prompts before and after.
    pub samples: Vec<Pair>,
    /// What was trained on what: ("model", "…"), ("data", "…"), ("recipe", "…").
    pub facts: Vec<(String, String)>,
    /// Things to know: loss spikes, resumes, skipped steps.
    pub notes: Vec<String>,
    /// The exact command that repeats the run.
    pub command: String,
    /// The steps.
    pub records: Vec<Record>,
}

/// One row of the check table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was asked: "identity".
    pub name: String,
    /// What came out: "18/18 phrasings".
    pub result: String,
    /// What was needed: "at least 16".
    pub limit: String,
    /// Whether it holds.
    pub passed: bool,
}

/// One prompt before and after training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// What was asked.
    pub prompt: String,
    /// The reply before training.
    pub before: String,
    /// The reply after.
    pub after: String,
}

/// The page.
pub fn html(report: &Report) -> String {
    let title = escape(&report.title);
    let mut out = String::new();
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\
         <title>{title} · halfbyte</title><style>{STYLE}</style></head><body><main>"
    );
    let ending = escape(&report.ending);
    let _ = write!(out, "<header><p>halfbyte training report · {ending}</p><h1>{title}</h1>");
    verdict(&mut out, report);
    out.push_str("</header>");
    tiles(&mut out, &report.records);
    checks(&mut out, &report.checks);
    samples(&mut out, &report.samples);
    notes(&mut out, &report.notes);
    plots(&mut out, &report.records);
    facts(&mut out, &report.facts);
    let command = escape(&report.command);
    let _ = write!(out, "<h2>Do it again</h2><div class=\"card\"><pre>{command}</pre></div>");
    out.push_str(
        "<footer>Made by halfbyte. This file is complete: it loads nothing.</footer></main></body></html>\n",
    );
    out
}

/// The answer to "did it work": the checks, or else the held-out loss, or else nothing is claimed.
fn verdict(out: &mut String, report: &Report) {
    let failed = report.checks.iter().filter(|check| !check.passed).count();
    let (class, text) = match (report.checks.len(), failed) {
        (0, _) => ("plain", held_out_verdict(&report.records)),
        (1, 0) => ("good", "It worked: the check passes".into()),
        (all, 0) => ("good", format!("It worked: all {all} checks pass")),
        (all, failed) => ("bad", format!("It did not work: {failed} of {all} checks fail")),
    };
    let _ = write!(out, "<p><span class=\"verdict {class}\">{text}</span></p>");
}

fn held_out_verdict(records: &[Record]) -> String {
    match ends(&held_out(records)) {
        Some((first, last)) if last < first => {
            format!("Held-out loss fell from {} to {}; nothing else was checked", loss(first), loss(last))
        }
        Some((first, last)) => {
            format!("Held-out loss did not fall: {} before, {} after", loss(first), loss(last))
        }
        None => "Nothing was checked".into(),
    }
}

/// First and last number of a series.
fn ends(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mut finite = points.iter().map(|point| point.1).filter(|value| value.is_finite());
    let first = finite.next()?;
    Some((first, finite.next_back()?))
}

/// First and last loss, smoothed: single steps jump.
pub fn losses_of(records: &[Record]) -> Option<(f64, f64)> {
    ends(&smooth(&series(records, |record| record.loss)))
}

fn tiles(out: &mut String, records: &[Record]) {
    let Some(last) = records.last() else { return };
    out.push_str("<dl class=\"tiles\">");
    let mut tile = |name: &str, value: &str, beside: &str| {
        let _ =
            write!(out, "<div class=\"tile\"><dt>{name}</dt><dd>{value}<small>{beside}</small></dd></div>");
    };
    if let Some((first, last)) = losses_of(records) {
        tile("Loss", &loss(last), &format!("from {}", loss(first)));
    }
    if let Some((first, last)) = ends(&held_out(records)) {
        tile("Held-out loss", &loss(last), &format!("from {}", loss(first)));
    }
    let sum = |of: fn(&Record) -> u64| records.iter().map(of).fold(0, u64::saturating_add);
    let trained = format!("{} of them trained", grouped(sum(|record| record.trained_tokens)));
    tile("Tokens", &grouped(sum(|record| record.tokens)), &trained);
    let seconds = records.iter().map(|record| record.seconds).filter(|seconds| seconds.is_finite()).sum();
    tile("Time", &clock(duration(seconds)), &format!("{} steps", grouped(last.step)));
    let pace = median(finite(records.iter().map(|record| record.tokens_per_second)));
    let share = median(finite(records.iter().filter_map(|record| record.ceiling_share)));
    let beside = share.map_or("tokens a second".into(), |share| {
        format!("tokens a second, {} of ceiling", percent(share, 0))
    });
    tile("Speed", &rate(pace.unwrap_or(f64::NAN)), &beside);
    let peak = records.iter().map(|record| record.memory_measured).max().unwrap_or(0);
    tile("Memory", &memory_size(peak), &format!("planned {}", memory_size(last.memory_planned)));
    out.push_str("</dl>");
}

fn finite(values: impl Iterator<Item = f64>) -> Vec<f64> {
    values.filter(|value| value.is_finite()).collect()
}

fn checks(out: &mut String, checks: &[Check]) {
    if checks.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Checks</h2><div class=\"card\"><table><thead><tr><th>check</th><th>result</th><th>needed</th>\
         <th></th></tr></thead><tbody>",
    );
    for check in checks {
        let (class, word) = if check.passed { ("pass", "pass") } else { ("fail", "fail") };
        let [name, result, limit] = [&check.name, &check.result, &check.limit].map(|text| escape(text));
        let _ = write!(
            out,
            "<tr><th>{name}</th><td>{result}</td><td>{limit}</td><td><span class=\"{class}\">{word}</span></td></tr>"
        );
    }
    out.push_str("</tbody></table></div>");
}

fn samples(out: &mut String, samples: &[Pair]) {
    if samples.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Before and after</h2><div class=\"card\"><table class=\"samples\"><thead><tr><th>prompt</th>\
         <th>before</th><th>after</th></tr></thead><tbody>",
    );
    for pair in samples {
        let [prompt, before, after] = [&pair.prompt, &pair.before, &pair.after].map(|text| escape(text));
        let class = if pair.before == pair.after { " class=\"same\"" } else { "" };
        let _ = write!(
            out,
            "<tr><th dir=\"auto\">{prompt}</th><td dir=\"auto\"{class}>{before}</td>\
             <td dir=\"auto\"{class}>{after}</td></tr>"
        );
    }
    out.push_str("</tbody></table></div>");
}

fn notes(out: &mut String, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    out.push_str("<h2>Notes</h2><div class=\"card\"><ul>");
    for note in notes {
        let _ = write!(out, "<li>{}</li>", escape(note));
    }
    out.push_str("</ul></div>");
}

fn facts(out: &mut String, facts: &[(String, String)]) {
    if facts.is_empty() {
        return;
    }
    out.push_str("<h2>What was trained on what</h2><div class=\"card\"><table class=\"facts\"><tbody>");
    for (name, value) in facts {
        let _ = write!(out, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    out.push_str("</tbody></table></div>");
}

fn plots(out: &mut String, records: &[Record]) {
    if records.is_empty() {
        return;
    }
    out.push_str("<h2>Step by step</h2><div class=\"plots\">");
    out.push_str(&svg(&losses(records)));
    let one = |title: &str, unit: &str, points| Plot {
        title: title.into(),
        x_label: "step".into(),
        unit: unit.into(),
        from_zero: true,
        wide: false,
        series: vec![line("", 1, Mark::Line, points)],
    };
    let rates = series(records, |record| record.learning_rate);
    out.push_str(&svg(&one("Learning rate", "", rates)));
    let sizes = series(records, |record| record.update_size);
    out.push_str(&svg(&one("Update size, in learning rates", "", sizes)));
    let norms: Vec<(f64, f64)> =
        records.iter().filter_map(|record| Some((record.step as f64, record.gradient_norm?))).collect();
    if !norms.is_empty() {
        out.push_str(&svg(&one("Length of the gradient", "", norms)));
    }
    let moved = series(records, |record| record.codes_moved * 100.0);
    out.push_str(&svg(&one("Codes moved per step", "%", moved)));
    out.push_str(&svg(&memory(records)));
    out.push_str("</div>");
}

fn losses(records: &[Record]) -> Plot {
    let raw = series(records, |record| record.loss);
    let smoothed = smooth(&raw);
    let mut lines = vec![line("each step", 1, Mark::Faint, raw), line("loss", 1, Mark::Line, smoothed)];
    let held = held_out(records);
    if !held.is_empty() {
        lines.push(line("held-out loss", 2, Mark::Dots, held));
    }
    Plot {
        title: "Loss".into(),
        x_label: "step".into(),
        unit: String::new(),
        from_zero: false,
        wide: true,
        series: lines,
    }
}

fn memory(records: &[Record]) -> Plot {
    let peak = records.iter().map(|record| record.memory_planned.max(record.memory_measured)).max();
    let (size, unit) = unit(peak.unwrap_or(0));
    let planned = series(records, |record| record.memory_planned as f64 / size);
    let measured = series(records, |record| record.memory_measured as f64 / size);
    Plot {
        title: "Memory".into(),
        x_label: "step".into(),
        unit: format!(" {unit}"),
        from_zero: true,
        wide: false,
        series: vec![line("planned", 3, Mark::Dashed, planned), line("measured", 1, Mark::Line, measured)],
    }
}

fn line(name: &str, colour: usize, mark: Mark, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.into(), colour, mark, points }
}

fn series(records: &[Record], value: impl Fn(&Record) -> f64) -> Vec<(f64, f64)> {
    records.iter().map(|record| (record.step as f64, value(record))).collect()
}

fn held_out(records: &[Record]) -> Vec<(f64, f64)> {
    records.iter().filter_map(|record| Some((record.step as f64, record.held_out_loss?))).collect()
}

/// The mean of the middle half of about a thirtieth of the run around every step: neither late nor
/// moved by a jump.
/// Gaps stay gaps.
fn smooth(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let reach = (points.len() / 60).min(50);
    let around = |index: usize| {
        let window = &points[index.saturating_sub(reach)..points.len().min(index + reach + 1)];
        let mut values = finite(window.iter().map(|point| point.1));
        values.sort_unstable_by(f64::total_cmp);
        let middle = &values[values.len() / 4..values.len() - values.len() / 4];
        let mean = middle.iter().map(|value| value / middle.len() as f64).sum::<f64>();
        (points[index].0, if points[index].1.is_finite() { mean } else { f64::NAN })
    };
    (0..points.len()).map(around).collect()
}

#[cfg(test)]
mod tests;
