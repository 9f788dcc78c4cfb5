//! Where config.json hides the rotary settings: `rope_parameters`, or `rope_scaling` and
//! `rope_theta` of older files.

use serde_json::Value;

use super::fields::Fields;
use crate::error::Error;
use crate::rope::{Rope, RopeScaling};

/// Base and scaling.
pub(super) fn rope(fields: &Fields, max_context: usize) -> Result<Rope, Error> {
    let modern = fields.object("rope_parameters")?;
    let modern = modern.map(|parameters| one_for_all_layers(fields, parameters)).transpose()?;
    let legacy = fields.object("rope_scaling")?;
    let theta = match modern.as_ref().map(|modern| modern.number("rope_theta")).transpose()? {
        Some(Some(theta)) => theta,
        _ => fields.number("rope_theta")?.unwrap_or(10000.0),
    };
    let scaling = match modern.or(legacy) {
        Some(parameters) => scaling(fields, &parameters, max_context)?,
        None => RopeScaling::None,
    };
    Ok(Rope { theta, scaling })
}

/// `rope_parameters` may hold one object per layer type; they must then say the same.
fn one_for_all_layers<'a>(fields: &Fields<'a>, given: Fields<'a>) -> Result<Fields<'a>, Error> {
    let nested = ["full_attention", "sliding_attention"];
    let mut parts = nested.iter().filter_map(|key| given.get(key));
    let Some(first) = parts.next() else {
        return Ok(given);
    };
    if parts.any(|part| part != first) {
        return Err(Error::input(
            fields.file,
            "rope_parameters",
            "full and sliding layers have different rope settings",
            "halfbyte runs models with one rope setting for all layers",
        ));
    }
    match first {
        Value::Object(part) => Ok(Fields { file: fields.file, fields: part }),
        other => Err(fields.wrong("rope_parameters", other, "an object")),
    }
}

fn scaling(fields: &Fields, given: &Fields, max_context: usize) -> Result<RopeScaling, Error> {
    let kind = match given.text("rope_type")? {
        Some(kind) => kind,
        None => given.text("type")?.unwrap_or("default"),
    };
    let number = |key: &str, default: Option<f64>| match given.number(key)?.or(default) {
        Some(number) => Ok(number),
        None => Err(Error::input(
            given.file,
            format!("rope scaling {kind}: {key}"),
            "the key is missing",
            "take the config.json the model was published with",
        )),
    };
    let original = match given.size("original_max_position_embeddings")? {
        Some(original) => original,
        None => fields.size("original_max_position_embeddings")?.unwrap_or(max_context),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor", None)? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: number("factor", None)?,
            low: number("low_freq_factor", None)?,
            high: number("high_freq_factor", None)?,
            original,
        }),
        "yarn" => {
            let stretch = max_context as f64 / original.max(1) as f64;
            let factor = number("factor", Some(stretch))?;
            Ok(RopeScaling::Yarn {
                factor,
                original,
                beta_fast: number("beta_fast", Some(32.0))?,
                beta_slow: number("beta_slow", Some(1.0))?,
                attention_factor: attention_factor(given, factor)?,
                truncate: given.flag("truncate")?.unwrap_or(true),
            })
        }
        other => Err(Error::input(
            given.file,
            "rope_type",
            format!("{other:?} is not supported"),
            "halfbyte runs default, linear, llama3 and yarn",
        )),
    }
}

fn attention_factor(given: &Fields, factor: f64) -> Result<f64, Error> {
    let magnitude = |scale: f64| match factor <= 1.0 {
        true => 1.0,
        false => 0.1 * scale * factor.ln() + 1.0,
    };
    if let Some(explicit) = given.number("attention_factor")? {
        return Ok(explicit);
    }
    // A zero counts as absent, as in transformers.
    let scale = given.number("mscale")?.filter(|scale| *scale != 0.0);
    let all = given.number("mscale_all_dim")?.filter(|scale| *scale != 0.0);
    match (scale, all) {
        (Some(scale), Some(all)) => Ok(magnitude(scale) / magnitude(all)),
        _ => Ok(magnitude(1.0)),
    }
}
