//! Which tensors train, and how fast: patterns over their names.
//!
//! `*` stands for any text, `?` for one character. Of several factors that match a tensor the last
//! one given counts; a frozen tensor stays frozen whatever its factor.

use crate::error::{Error, Result};

/// What a person asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSettings {
    /// Patterns of tensors that do not train (`--freeze`).
    pub freeze: Vec<String>,
    /// Factors on the learning rate (`--lr-scale PATTERN=FACTOR`), in the order given.
    pub scales: Vec<RateScale>,
    /// Train the last so many layers and what follows them (`--train-last-layers`).
    pub last_layers: Option<usize>,
}

/// One factor.
#[derive(Clone, Debug, PartialEq)]
pub struct RateScale {
    /// Tensors it holds for.
    pub pattern: String,
    /// Times the learning rate of the step.
    pub factor: f64,
}

/// How one tensor trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Training {
    /// Not at all: no gradient, no state.
    Frozen,
    /// At the learning rate of the step times this.
    Rate(f64),
}

/// As it is read back.
impl std::fmt::Display for RateScale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.pattern, self.factor)
    }
}

/// Reads "model.embed_tokens.weight=0.1".
impl std::str::FromStr for RateScale {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let parsed = text.rsplit_once('=').and_then(|(pattern, factor)| {
            let factor: f64 = factor.trim().parse().ok()?;
            Some(RateScale { pattern: pattern.trim().to_owned(), factor })
        });
        match parsed {
            Some(scale) if scale.factor.is_finite() && scale.factor >= 0.0 && !scale.pattern.is_empty() => {
                Ok(scale)
            }
            _ => Err("PATTERN=FACTOR with a factor of 0 or more, such as 'model.layers.*.mlp.*=0.1'".into()),
        }
    }
}

/// How each of these tensors trains, in their order. A pattern that matches none of them is an
/// error that names the nearest.
pub fn groups<N: AsRef<str>>(names: &[N], settings: &GroupSettings) -> Result<Vec<Training>> {
    let mut training = vec![Training::Rate(1.0); names.len()];
    for scale in &settings.scales {
        let rate = match scale.factor {
            0.0 => Training::Frozen,
            factor => Training::Rate(factor),
        };
        for index in matching(names, "--lr-scale", &scale.pattern)? {
            training[index] = rate;
        }
    }
    for pattern in &settings.freeze {
        for index in matching(names, "--freeze", pattern)? {
            training[index] = Training::Frozen;
        }
    }
    if let Some(count) = settings.last_layers {
        freeze_below(names, count, &mut training)?;
    }
    if training.iter().all(|training| *training == Training::Frozen) {
        let problem = format!("all {} tensors are frozen, so nothing would train", names.len());
        return Err(Error::setting(
            "--freeze, --lr-scale",
            problem,
            "freeze less, and leave some factor above 0",
        ));
    }
    Ok(training)
}

/// Freezes the layers before the last `count`, and the embedding before them; the final norm and
/// a head of its own train.
fn freeze_below<N: AsRef<str>>(names: &[N], count: usize, training: &mut [Training]) -> Result<()> {
    let layers = names.iter().filter_map(|name| layer_of(name.as_ref())).max().map_or(0, |last| last + 1);
    if count == 0 || count > layers {
        let problem = format!("{count} of a model that has {layers} layers");
        let remedy = format!("give 1 to {layers}, or leave it out to train all");
        return Err(Error::setting("--train-last-layers", problem, remedy));
    }
    for (name, training) in names.iter().zip(training) {
        let name = name.as_ref();
        let below = layer_of(name).is_some_and(|layer| layer < layers - count);
        if below || name.contains("embed") {
            *training = Training::Frozen;
        }
    }
    Ok(())
}

/// "model.layers.17.mlp.up_proj.weight" -> 17. A layer number past any model's is none.
fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("layers.")?;
    rest.split('.').next()?.parse().ok().filter(|layer| *layer < 1 << 20)
}

fn matching<N: AsRef<str>>(names: &[N], flag: &str, pattern: &str) -> Result<Vec<usize>> {
    let found: Vec<usize> =
        (0..names.len()).filter(|&index| matches(pattern, names[index].as_ref())).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let nearest = names.iter().map(AsRef::as_ref).min_by_key(|name| distance(pattern, name));
    let remedy = match nearest {
        Some(name) => format!("the nearest is {name}; * stands for any text"),
        None => "this model has no tensors".to_owned(),
    };
    Err(Error::setting(format!("{flag} '{pattern}'"), "no tensor has such a name", remedy))
}

/// Whether the whole name fits the pattern. Goes back only to the last `*`, so long patterns of
/// stars cost no more than pattern times name.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// Letters to change, add or leave out until the name fits the pattern; `*` takes any text for
/// nothing.
fn distance(pattern: &str, name: &str) -> usize {
    let name: Vec<char> = name.chars().collect();
    // Row of the table: cost of fitting the pattern so far to the first n letters.
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for c in pattern.chars() {
        let mut next = vec![row[0] + usize::from(c != '*'); name.len() + 1];
        for n in 1..=name.len() {
            next[n] = match c {
                '*' => row[n].min(next[n - 1]),
                _ => {
                    let same = usize::from(c != '?' && c != name[n - 1]);
                    (row[n - 1] + same).min(row[n] + 1).min(next[n - 1] + 1)
                }
            };
        }
        row = next;
    }
    row[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names() -> Vec<String> {
        let mut names = vec!["model.embed_tokens.weight".to_owned()];
        for layer in 0..12 {
            for part in ["self_attn.q_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm"] {
                names.push(format!("model.layers.{layer}.{part}.weight"));
            }
        }
        names.extend(["model.norm.weight".to_owned(), "lm_head.weight".to_owned()]);
        names
    }

    fn trained(settings: &GroupSettings) -> Vec<String> {
        let training = groups(&names(), settings).unwrap();
        let pairs = names().into_iter().zip(training);
        pairs.filter(|(_, training)| *training != Training::Frozen).map(|(name, _)| name).collect()
    }

    #[test]
    fn everything_trains_unless_told_otherwise() {
        let training = groups(&names(), &GroupSettings::default()).unwrap();
        assert!(training.iter().all(|training| *training == Training::Rate(1.0)));
    }

    #[test]
    fn frozen_patterns_hold_for_every_layer() {
        let settings = GroupSettings { freeze: vec!["model.layers.*.mlp.*".into()], ..Default::default() };
        let trained = trained(&settings);
        assert_eq!(trained.len(), names().len() - 24);
        assert!(trained.iter().all(|name| !name.contains("mlp")));
    }

    #[test]
    fn the_last_factor_counts_and_frozen_stays_frozen() {
        let scales =
            ["*=0.5", "*.mlp.*=0.1", "model.norm.weight=0"].map(|text| text.parse().unwrap()).to_vec();
        let settings = GroupSettings { freeze: vec!["lm_head*".into()], scales, last_layers: None };
        let training = groups(&names(), &settings).unwrap();
        let of = |name: &str| training[names().iter().position(|n| n == name).unwrap()];
        assert_eq!(of("model.layers.3.mlp.up_proj.weight"), Training::Rate(0.1));
        assert_eq!(of("model.layers.3.self_attn.q_proj.weight"), Training::Rate(0.5));
        assert_eq!((of("lm_head.weight"), of("model.norm.weight")), (Training::Frozen, Training::Frozen));
    }

    #[test]
    fn the_last_layers_and_what_follows_them_train() {
        let trained = trained(&GroupSettings { last_layers: Some(2), ..Default::default() });
        assert_eq!(trained.len(), 2 * 4 + 2);
        assert!(trained[0].starts_with("model.layers.10."));
        let settings = |count| GroupSettings { last_layers: Some(count), ..Default::default() };
        assert!(groups(&names(), &settings(12)).is_ok());
        let error = groups(&names(), &settings(13)).unwrap_err().to_string();
        assert_eq!(
            error,
            "--train-last-layers\n13 of a model that has 12 layers\n\
             give 1 to 12, or leave it out to train all"
        );
        assert!(groups(&names(), &settings(0)).is_err());
    }

    #[test]
    fn a_pattern_that_matches_nothing_names_the_nearest() {
        let freeze = |pattern: &str| GroupSettings { freeze: vec![pattern.into()], ..Default::default() };
        let error = groups(&names(), &freeze("model.layers.*.mpl.*")).unwrap_err().to_string();
        assert_eq!(
            error,
            "--freeze 'model.layers.*.mpl.*'\nno tensor has such a name\n\
             the nearest is model.layers.0.mlp.up_proj.weight; * stands for any text"
        );
        let error = groups(&names(), &freeze("lm_haed.*")).unwrap_err().to_string();
        assert!(error.contains("nearest is lm_head.weight"), "{error}");
        assert!(groups(&names(), &freeze("*")).unwrap_err().to_string().contains("nothing would train"));
        assert!(groups::<String>(&[], &freeze("x")).is_err());
    }

    #[test]
    fn a_factor_that_is_none_is_refused() {
        for text in ["mlp", "=0.1", "mlp=", "mlp=-1", "mlp=NaN", "mlp=fast"] {
            assert!(text.parse::<RateScale>().is_err(), "{text}");
        }
    }

    #[test]
    fn many_stars_end_soon() {
        let pattern = "*a".repeat(2000) + "b";
        assert!(!matches(&pattern, &"a".repeat(4000)));
    }

    proptest! {
        #[test]
        fn a_pattern_matches_just_where_its_distance_is_zero(
            pattern in "[ab*?]{0,8}", name in "[ab]{0,8}",
        ) {
            prop_assert_eq!(matches(&pattern, &name), distance(&pattern, &name) == 0);
        }
    }
}
