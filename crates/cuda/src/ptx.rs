//! The embedded modules, as `cargo run -p xtask -- ptx` made them; the driver wants a zero at the end.

macro_rules! modules {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, concat!(include_str!(concat!("../ptx/", $folder, $name, ".ptx")), "\0"))),*]
    };
}

/// Those of chips of capability 9.0 and no others: they alone have products of warpgroups.
pub(crate) const OF_SM_90: &[(&str, &str)] = modules!["sm_90a/": "attend_gradient_warpgroup", "attend_warpgroup", "gated_warpgroup", "product_warpgroup"];

/// Name and text of each.
pub(crate) const MODULES: &[(&str, &str)] = modules![
    "":
    "accumulate",
    "attend",
    "attend_few",
    "attend_gradient",
    "attend_gradient_tiled",
    "attend_tiled",
    "best",
    "chain",
    "decode",
    "embed",
    "few_bits",
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
