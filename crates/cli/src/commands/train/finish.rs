//! The end of a run: whether the model does what was asked of it, the report, what a person sees.

use halfbyte_train::{Check, Pair, Record, html, losses_of};
use serde_json::{Value, json};

use super::{Done, TrainArgs};
use crate::commands::check::report::{checks, shown, text};
use crate::commands::check::{self, Spec};
use crate::device::ComputeArgs;
use crate::failure::{Code, Failure, Result};
use crate::output;

pub(super) fn finish(args: &TrainArgs, mut done: Done, spec: Option<&Spec>) -> Result<()> {
    let verdicts = match spec {
        None => Vec::new(),
        Some(spec) => {
            let baseline = spec.needs_baseline().map(|_| args.model.as_path());
            let compute = ComputeArgs::usual(args.place.clone());
            check::examine_models(spec, &done.model, baseline, &compute)?
        }
    };
    let report = &mut done.report;
    report.checks = checks(&verdicts);
    let records = &report.records;
    let skipped = records.last().map_or(0, |record| record.non_finite);
    if skipped > 0 {
        report.notes.push(format!("{skipped} steps met a number that is none, and left it out"));
    }
    let page = done.folder.write_report(&html(report))?;
    let (first, last) = (report.records.first().map(|r| r.loss), report.records.last().map(|r| r.loss));
    if args.json {
        output::json(&json!({
            "steps": args.steps,
            "first_loss": first,
            "last_loss": last,
            "non_finite": skipped,
            "state_bytes": done.state_bytes,
            "parameters": done.parameters,
            "peak_bytes_planned": done.plan.peak_bytes(),
            "peak_bytes_measured": report.records.iter().map(|record| record.memory_measured).max(),
            "samples": report.samples.iter().map(pair_json).collect::<Vec<_>>(),
            "checks": report.checks.iter().map(check_json).collect::<Vec<_>>(),
            "model": done.model,
            "report": page,
        }));
        ended_well(&report.records)?;
        return check::judgement(&verdicts);
    }
    if let Some((first, last)) = losses_of(&report.records) {
        println!("loss    {first:.3} -> {last:.3} in {} steps", args.steps);
        if last > first {
            println!("        it rose: begin again in another --out folder with a smaller --lr");
        }
    }
    for pair in &report.samples {
        let line = |text: &str| shown(text).replace('\n', " ");
        println!("asked   {}\n before {}", line(&pair.prompt), line(&pair.before));
        println!(" after  {}", line(&pair.after));
    }
    let model = done.model.display();
    println!("model   {model}   talk to it: halfbyte chat {model}\nreport  {}", page.display());
    if !verdicts.is_empty() {
        print!("\n{}", text(&verdicts));
    }
    ended_well(&report.records)?;
    check::judgement(&verdicts)
}

/// A run that was told to go on has not learnt anything if it ends in no number.
fn ended_well(records: &[Record]) -> Result<()> {
    match records.last().is_none_or(|last| last.loss.is_finite()) {
        true => Ok(()),
        false => Err(Failure::new(
            Code::Failed,
            "the last loss is not a number: this model has not learnt\nbegin again in another --out folder with a smaller --lr",
        )),
    }
}

fn pair_json(pair: &Pair) -> Value {
    json!({ "prompt": pair.prompt, "before": pair.before, "after": pair.after })
}

fn check_json(check: &Check) -> Value {
    json!({ "name": check.name, "result": check.result, "needed": check.limit, "passed": check.passed })
}
