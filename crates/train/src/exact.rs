//! An f64 in JSON that comes back with the same bits: its shortest decimal, as a string.
//!
//! A resumed run must go on bit for bit, and the usual reader of JSON numbers may miss by one unit
//! in the last place.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:e}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| D::Error::custom(format!("\"{text}\" is no number")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct One {
        #[serde(with = "super")]
        value: f64,
    }

    proptest! {
        #[test]
        fn every_number_comes_back_with_its_bits(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(!value.is_nan());
            let text = serde_json::to_string(&One { value }).unwrap();
            let back: One = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(back.value.to_bits(), bits, "{}", text);
        }
    }
}
