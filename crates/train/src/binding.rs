//! What a run is bound to: it goes on only with the model, data, recipe and template it began with.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Names and values that must stay: "fingerprint" -> "9f3a…", "batch" -> "4".
pub type Facts = BTreeMap<String, String>;

/// Everything that may not change under a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The model it began with: name, parameters, fingerprint.
    pub model: Facts,
    /// The data and what decides its order: files, fingerprint, seed.
    pub data: Facts,
    /// State, optimizer, schedule, batch: whatever moves a weight.
    pub recipe: Facts,
    /// Hash of the chat template.
    pub template: String,
}

/// One thing that is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// "model", "data", "recipe" or "template".
    pub of: &'static str,
    /// Which fact.
    pub name: String,
    /// At the beginning of the run; `None` if there was no such fact.
    pub was: Option<String>,
    /// Now.
    pub is: Option<String>,
}

impl Binding {
    /// What differs between the beginning of the run (`self`) and now.
    pub fn differences(&self, now: &Binding) -> Vec<Difference> {
        let mut found = Vec::new();
        let pairs = [
            ("model", &self.model, &now.model),
            ("data", &self.data, &now.data),
            ("recipe", &self.recipe, &now.recipe),
        ];
        for (of, was, is) in pairs {
            let names = was.keys().chain(is.keys().filter(|name| !was.contains_key(*name)));
            for name in names.filter(|name| was.get(*name) != is.get(*name)) {
                let (was, is) = (was.get(name).cloned(), is.get(name).cloned());
                found.push(Difference { of, name: name.clone(), was, is });
            }
        }
        if self.template != now.template {
            let (was, is) = (Some(self.template.clone()), Some(now.template.clone()));
            found.push(Difference { of: "template", name: "hash".into(), was, is });
        }
        found
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let absent = "absent".to_owned();
        let (was, is) = (self.was.as_ref().unwrap_or(&absent), self.is.as_ref().unwrap_or(&absent));
        write!(f, "{}: {} was {was}, is {is}", self.of, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> Facts {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn every_change_is_told_with_what_was_and_what_is() {
        let was = Binding {
            model: facts(&[("fingerprint", "aa"), ("name", "smol")]),
            data: facts(&[("rows", "12")]),
            recipe: facts(&[("batch", "4"), ("state", "n8")]),
            template: "t1".into(),
        };
        assert_eq!(was.differences(&was), []);
        let is = Binding {
            model: facts(&[("fingerprint", "bb"), ("name", "smol")]),
            recipe: facts(&[("state", "n4"), ("seed", "1"), ("batch", "4")]),
            template: "t2".into(),
            ..was.clone()
        };
        let told: Vec<String> = was.differences(&is).iter().map(Difference::to_string).collect();
        assert_eq!(
            told,
            [
                "model: fingerprint was aa, is bb",
                "recipe: state was n8, is n4",
                "recipe: seed was absent, is 1",
                "template: hash was t1, is t2",
            ]
        );
    }
}
