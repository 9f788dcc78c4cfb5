//! The embedded modules, as `cargo run -p xtask -- ptx` made them; the driver wants a zero at the end.

macro_rules! modules {
    ($($name:literal),* $(,)?) => {
        &[$(($name, concat!(include_str!(concat!("../ptx/", $name, ".ptx")), "\0"))),*]
    };
}

/// Name and text of each.
pub(crate) const MODULES: &[(&str, &str)] = modules![
    "accumulate",
    "attend",
    "attend_few",
    "attend_gradient",
    "attend_gradient_tiled",
    "attend_tiled",
    "chain",
    "decode",
    "embed",
    "gated",
    "heads",
    "heads_gradient",
    "heads_many",
    "linear_bf16",
    "linear_f32",
    "linear_int8",
    "linear_nvfp4",
    "loss",
    "measure",
    "product_gradients",
    "residual",
    "rms_norm",
    "rope",
    "row_gradients",
    "update",
    "update_any",
    "update_masters",
];
