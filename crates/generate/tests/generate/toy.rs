//! A model of two small layers with random weights, a tokenizer of bytes and a template of the usual kind.

use std::sync::atomic::AtomicBool;

use halfbyte_checkpoint::{Architecture, Family, Rope, RopeScaling, TensorName};
use halfbyte_cpu::{Cpu, Isa, ScratchNeed};
use halfbyte_formats::philox::random_bits;
use halfbyte_generate::{Binding, Conversation, Event, Limits, Reply, Sampler, SamplerSettings, Style};
use halfbyte_model::Decoder;
use halfbyte_ops::{Backend, CacheFormat, Weight, WeightRows};
use halfbyte_plan::{Name, Plan, Settings, WeightChoice, plan};
use halfbyte_text::{ChatTemplate, Tokenizer};

/// Ids of `<|im_start|>` and `<|im_end|>`.
pub(crate) const START: u32 = 256;
pub(crate) const END: u32 = 257;
const VOCABULARY: usize = 260;
const CHUNK: usize = 16;

pub(crate) fn architecture() -> Architecture {
    Architecture {
        family: Family::Qwen3,
        vocab_size: VOCABULARY,
        hidden_size: 48,
        intermediate_size: 80,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 24,
        norm_eps: 1e-6,
        rope: Rope { theta: 10_000.0, scaling: RopeScaling::None },
        qk_norm: true,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        tied: true,
        max_context: 1024,
        sliding_window: vec![None, Some(40)],
        bos: None,
        eos: vec![END],
    }
}

fn settings(context: usize, lanes: usize, cache: CacheFormat, weights: WeightChoice) -> Settings {
    Settings { context, lanes, chunk: CHUNK, logit_rows: 1, weights, cache, threads: 2 }
}

/// A decoder; the same seed gives the same model.
pub(crate) fn decoder(context: usize, cache: CacheFormat, seed: u64) -> Decoder<Cpu> {
    decoder_in_lanes(context, 1, cache, seed)
}

/// The same, for several conversations at once.
pub(crate) fn decoder_in_lanes(context: usize, lanes: usize, cache: CacheFormat, seed: u64) -> Decoder<Cpu> {
    let architecture = architecture();
    let settings = settings(context, lanes, cache, WeightChoice::Bf16);
    let scratch = ScratchNeed { tokens: CHUNK, columns: 96, context, head_dim: 24, threads: 2 };
    let plan = plan(&architecture, &settings, &|_| None, scratch.bytes());
    let scratch = plan.buffer(Name::Scratch).unwrap();
    let cpu = Cpu::new(Isa::detect(), 2, plan.arena_bytes, scratch).unwrap();
    let mut decoder = Decoder::new(cpu, &architecture, &plan, &|_| None).unwrap();
    for (index, name) in architecture.tensor_names().into_iter().enumerate() {
        write(&mut decoder.backend, &plan, &architecture.shape(name), name, |element| {
            let bits = random_bits(seed, 0, index as u64, element);
            f64::from(bits) as f32 / u32::MAX as f32 - 0.5
        });
    }
    decoder
}

/// Puts values into a tensor; norms are moved to around 1.
pub(crate) fn write(
    cpu: &mut Cpu,
    plan: &Plan,
    shape: &[usize],
    name: TensorName,
    value: impl Fn(u64) -> f32,
) {
    let buffer = plan.buffer(Name::Tensor(name)).unwrap();
    let count = shape.iter().product::<usize>() as u64;
    match *shape {
        [rows, columns] => {
            let values: Vec<f32> = (0..count).map(|i| value(i) * 0.7).collect();
            let format = plan.settings.weights.format(name, None);
            let weight = Weight { buffer, rows, columns, format };
            cpu.write_weight(&weight, 0, WeightRows::Values(&values)).unwrap();
        }
        _ => cpu.write(buffer, &(0..count).map(|i| 1.0 + value(i)).collect::<Vec<f32>>()).unwrap(),
    }
}

/// A decoder whose final norm is not a number.
pub(crate) fn broken_decoder() -> Decoder<Cpu> {
    let mut decoder = decoder(128, CacheFormat::Bf16, 1);
    let architecture = architecture();
    let scratch = ScratchNeed { tokens: CHUNK, columns: 96, context: 128, head_dim: 24, threads: 2 };
    let plan = plan(
        &architecture,
        &settings(128, 1, CacheFormat::Bf16, WeightChoice::Bf16),
        &|_| None,
        scratch.bytes(),
    );
    let gain = TensorName::Layer(1, halfbyte_checkpoint::LayerTensor::PostNorm);
    write(&mut decoder.backend, &plan, &[48], gain, |_| f32::NAN);
    decoder
}

/// One token for each byte, and the two special ones.
pub(crate) fn tokenizer() -> Tokenizer {
    let byte = |b: u32| match b {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(b),
        0x00..=0x20 => char::from_u32(0x100 + b),
        0x7f..=0xa0 => char::from_u32(0x121 + b - 0x7f),
        _ => char::from_u32(0x143),
    };
    let vocabulary: serde_json::Map<_, _> =
        (0..256).map(|b| (byte(b).unwrap().to_string(), b.into())).collect();
    let special = |id: u32, text: &str| {
        serde_json::json!({
            "id": id, "content": text, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [special(START, "<|im_start|>"), special(END, "<|im_end|>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    Tokenizer::from_json(json.to_string().as_bytes(), "toy").unwrap()
}

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

pub(crate) fn style() -> Style {
    let template = ChatTemplate::new(TEMPLATE, "", "<|im_end|>").unwrap();
    Style::Template(Box::new(template), serde_json::Map::new())
}

pub(crate) fn limits(max_tokens: usize) -> Limits {
    Limits { max_tokens: Some(max_tokens), end_ids: vec![END], ..Limits::default() }
}

pub(crate) fn sampler(temperature: f32) -> Sampler {
    Sampler::new(SamplerSettings { temperature, seed: 7, ..SamplerSettings::default() }).unwrap()
}

/// A conversation with replies of at most `max_tokens`.
pub(crate) fn conversation(context: usize, max_tokens: usize) -> Conversation<Cpu> {
    let decoder = decoder(context, CacheFormat::Bf16, 1);
    Conversation::new(decoder, tokenizer(), style(), sampler(0.0), limits(max_tokens))
}

pub(crate) fn say(conversation: &mut Conversation<Cpu>, text: &str) -> Reply {
    conversation.say(text, &AtomicBool::new(false), &mut |_| ()).unwrap()
}

/// The pieces a turn showed, and the turn.
pub(crate) fn pieces(conversation: &mut Conversation<Cpu>, text: &str) -> (Vec<String>, Reply) {
    let mut pieces = Vec::new();
    let reply = conversation.say(text, &AtomicBool::new(false), &mut |event| {
        if let Event::Text(piece) = event {
            pieces.push(piece.to_owned());
        }
    });
    (pieces, reply.unwrap())
}

pub(crate) fn binding(context: usize) -> Binding {
    Binding {
        fingerprint: 0xfeed,
        weights: "bf16".into(),
        scales: "nearest".into(),
        cache: "bf16".into(),
        context,
    }
}

pub(crate) fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}
