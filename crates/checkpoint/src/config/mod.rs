//! config.json -> `Architecture`. What a switch means is in the family's own code in transformers.

mod fields;
mod rope;

use std::path::Path;

use serde_json::Value;

use crate::architecture::{Architecture, Family, MAX_LAYERS};
use crate::error::Error;
use crate::json;
use fields::Fields;
use rope::rope;

impl Architecture {
    /// Reads a config.json, and generation_config.json beside it if there is one.
    pub fn from_config_file(path: &Path) -> Result<Architecture, Error> {
        let config = json::read(path)?;
        let beside = path.with_file_name("generation_config.json");
        let generation = match beside.exists() {
            true => Some(json::read(&beside)?),
            false => None,
        };
        Architecture::from_config(path, &config, generation.as_ref())
    }

    /// Reads the content of a config.json; `file` is named in errors.
    pub fn from_config(
        file: &Path,
        config: &Value,
        generation: Option<&Value>,
    ) -> Result<Architecture, Error> {
        let Value::Object(fields) = config else {
            let remedy = "take the config.json the model was published with";
            return Err(Error::input(file, "", "this is not a JSON object", remedy));
        };
        let fields = Fields { file, fields };
        let family = family(&fields)?;
        let mut architecture = shape(&fields, family)?;
        refuse_unknown_switches(&fields)?;
        set_end_tokens(&mut architecture, &fields, generation)?;
        architecture.check(file)?;
        Ok(architecture)
    }
}

fn family(fields: &Fields) -> Result<Family, Error> {
    let name = fields.text("model_type")?.unwrap_or("");
    Family::from_name(name).ok_or_else(|| {
        let problem = match name {
            "" => "the key is missing".to_string(),
            name => format!("{name:?} is a family halfbyte does not run"),
        };
        let known = Family::ALL.map(Family::name).join(", ");
        let remedy = format!("use a model of type {known} (Qwen2.5 is qwen2, SmolLM2 is llama)");
        Error::input(fields.file, "model_type", problem, remedy)
    })
}

fn shape(fields: &Fields, family: Family) -> Result<Architecture, Error> {
    let hidden_size = fields.needed_size("hidden_size")?;
    let heads = fields.needed_size("num_attention_heads")?;
    let layers = fields.needed_size("num_hidden_layers")?;
    let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let max_context = match (fields.size("max_position_embeddings")?, family) {
        (Some(positions), _) => positions,
        (None, Family::Llama) => 2048,
        (None, _) => 32768,
    };
    if layers > MAX_LAYERS {
        let problem = format!("{layers} is more than {MAX_LAYERS}");
        let remedy = "take the config.json the model was published with";
        return Err(Error::input(fields.file, "num_hidden_layers", problem, remedy));
    }
    Ok(Architecture {
        family,
        vocab_size: fields.needed_size("vocab_size")?,
        hidden_size,
        intermediate_size: fields.needed_size("intermediate_size")?,
        layers,
        heads,
        kv_heads: fields.size("num_key_value_heads")?.unwrap_or(heads),
        head_dim: head_dim(fields, family, hidden_size, heads)?,
        norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope: rope(fields, max_context)?,
        qk_norm: family == Family::Qwen3,
        qkv_bias: family == Family::Qwen2 || attention_bias,
        output_bias: family != Family::Qwen2 && attention_bias,
        mlp_bias: family == Family::Llama && fields.flag("mlp_bias")?.unwrap_or(false),
        tied: fields.flag("tie_word_embeddings")?.unwrap_or(false),
        max_context,
        sliding_window: windows(fields, family, layers)?,
        bos: None,
        eos: Vec::new(),
    })
}

fn head_dim(fields: &Fields, family: Family, hidden_size: usize, heads: usize) -> Result<usize, Error> {
    if let Some(head_dim) = fields.size("head_dim")? {
        return Ok(head_dim);
    }
    if family == Family::Qwen3 {
        return Ok(128); // the family's own default, whatever hidden / heads is
    }
    if heads == 0 || !hidden_size.is_multiple_of(heads) {
        return Err(Error::input(
            fields.file,
            "num_attention_heads",
            format!("{heads} heads do not divide a hidden_size of {hidden_size}"),
            "give head_dim, or take the config.json the model was published with",
        ));
    }
    Ok(hidden_size / heads)
}

/// What would change the arithmetic and is not built: better refused than ignored.
fn refuse_unknown_switches(fields: &Fields) -> Result<(), Error> {
    let refuse = |key: &str, value: String, supported: &str| {
        let remedy = format!("halfbyte runs models with {supported}");
        Err(Error::input(fields.file, key, format!("{value} is not supported"), remedy))
    };
    if let Some(act) = fields.text("hidden_act")?
        && !matches!(act, "silu" | "swish")
    {
        return refuse("hidden_act", format!("{act:?}"), "hidden_act \"silu\"");
    }
    if let Some(part) = fields.number("partial_rotary_factor")?
        && part != 1.0
    {
        return refuse("partial_rotary_factor", part.to_string(), "a factor of 1");
    }
    if let Some(quantization) = fields.object("quantization_config")? {
        let method = quantization.text("quant_method")?.unwrap_or("modelopt");
        if !matches!(method, "modelopt" | "compressed-tensors") {
            let supported = "NVFP4 by modelopt or compressed-tensors, or unquantised weights";
            return refuse("quantization_config", format!("{method:?}"), supported);
        }
    }
    Ok(())
}

fn windows(fields: &Fields, family: Family, layers: usize) -> Result<Vec<Option<usize>>, Error> {
    let used = fields.flag("use_sliding_window")?.unwrap_or(false);
    let window = fields.size("sliding_window")?;
    let (true, Some(window)) = (used && family != Family::Llama, window) else {
        return Ok(vec![None; layers]);
    };
    let Some(types) = fields.get("layer_types") else {
        let first = fields.size("max_window_layers")?.unwrap_or(28);
        let sliding = |layer: usize| (layer >= first).then_some(window);
        return Ok((0..layers).map(sliding).collect());
    };
    let wrong = || {
        let expected = "a list of \"full_attention\" and \"sliding_attention\", one per layer";
        fields.wrong("layer_types", types, expected)
    };
    let list = types.as_array().filter(|list| list.len() == layers).ok_or_else(wrong)?;
    let window_of = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Ok(Some(window)),
        _ => Err(wrong()),
    };
    list.iter().map(window_of).collect()
}

/// Reads bos and eos. Ids outside the vocabulary cannot occur and are left out; generation_config
/// adds its eos to the list.
fn set_end_tokens(
    architecture: &mut Architecture,
    fields: &Fields,
    generation: Option<&Value>,
) -> Result<(), Error> {
    let inside = |id: u64| u32::try_from(id).ok().filter(|&id| (id as usize) < architecture.vocab_size);
    let bos = fields.get("bos_token_id").and_then(Value::as_u64).and_then(inside);
    let mut eos = Vec::new();
    let generated = generation.and_then(|generation| generation.get("eos_token_id"));
    for value in fields.get("eos_token_id").into_iter().chain(generated) {
        let list = match value {
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        for id in list {
            if !id.is_number() && !id.is_null() {
                return Err(fields.wrong("eos_token_id", value, "a token id or a list of them"));
            }
            match id.as_u64().and_then(inside) {
                Some(id) if !eos.contains(&id) => eos.push(id),
                _ => {}
            }
        }
    }
    architecture.bos = bos;
    architecture.eos = eos;
    Ok(())
}
