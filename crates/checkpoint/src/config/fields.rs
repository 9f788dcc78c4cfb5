//! Fields of a JSON object, each read with the file and the key in its error.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::Error;
use crate::json;

/// The fields of a config object, read with the file and key in every error.
pub(super) struct Fields<'a> {
    pub(super) file: &'a Path,
    pub(super) fields: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The value of `key`; a null is as good as none.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn wrong(&self, key: &str, value: &Value, expected: &str) -> Error {
        Error::input(
            self.file,
            key,
            format!("{} is not {expected}", json::short(value)),
            "take the config.json the model was published with",
        )
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(key, value, "a whole number of 0 or more")),
        }
    }

    pub(super) fn needed_size(&self, key: &str) -> Result<usize, Error> {
        match self.size(key)? {
            Some(size) => Ok(size),
            None => Err(Error::input(
                self.file,
                key,
                "the key is missing",
                "take the config.json the model was published with",
            )),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(key, value, "a number")),
            },
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(value) => Err(self.wrong(key, value, "true or false")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(self.wrong(key, value, "a string")),
        }
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<Fields<'a>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Fields { file: self.file, fields })),
            Some(value) => Err(self.wrong(key, value, "an object")),
        }
    }
}
