//! The learning rate of a step, from its number alone.
//!
//! ```text
//! steps are counted from 1;  W = warm-up steps,  T = all steps,  p = (step - 1 - W) / (T - W)
//! step <= W   peak * step / (W + 1)
//! constant    peak
//! linear      minimum + (peak - minimum) * (1 - p)
//! cosine      minimum + (peak - minimum) * (1 + cos(pi p)) / 2
//! ```
//! Both ends lie outside: no step has rate 0 (a step wasted), step W + 1 has the peak, and the
//! minimum would be the rate of step T + 1. From W + 1 on these are the rates of transformers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::exact;

/// What a person asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleSettings {
    /// Highest rate (`--lr`).
    pub peak: f64,
    /// Where linear and cosine end (`--min-lr`).
    pub minimum: f64,
    /// How long the rate rises (`--warmup`).
    pub warm_up: WarmUp,
    /// How it falls (`--schedule`).
    pub decay: Decay,
    /// Steps of the whole run.
    pub steps: u64,
}

/// Length of the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WarmUp {
    /// So many steps: "20".
    Steps(u64),
    /// A share of all steps, to the nearest whole number: "5%" or "0.05".
    Share(f64),
}

/// How the rate falls after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// Not at all.
    Constant,
    /// In a straight line.
    Linear,
    /// In half a wave: slowly, quickly, slowly.
    Cosine,
}

/// A checked schedule. Pure: the same step has the same rate, on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    #[serde(with = "exact")]
    peak: f64,
    #[serde(with = "exact")]
    minimum: f64,
    warm_up: u64,
    steps: u64,
    decay: Decay,
}

impl Schedule {
    /// Checks what was asked for.
    pub fn new(settings: &ScheduleSettings) -> Result<Schedule> {
        let ScheduleSettings { peak, minimum, warm_up, decay, steps } = *settings;
        let refuse =
            |setting: &str, problem: String, remedy: &str| Err(Error::setting(setting, problem, remedy));
        if !(peak.is_finite() && peak > 0.0) {
            return refuse(
                "--lr",
                format!("{peak} is no learning rate"),
                "give a number above 0, such as 5e-5",
            );
        }
        if !(minimum >= 0.0 && minimum <= peak) {
            let problem = format!("{minimum} does not lie between 0 and the highest rate, {peak}");
            return refuse("--min-lr", problem, "give a smaller one, or leave it out");
        }
        if steps == 0 {
            return refuse("--steps", "0 steps train nothing".into(), "give at least 1");
        }
        let warm_up = match warm_up {
            WarmUp::Steps(count) => count,
            WarmUp::Share(share) if (0.0..=1.0).contains(&share) => (share * steps as f64).round() as u64,
            WarmUp::Share(share) => {
                return refuse(
                    "--warm-up",
                    format!("{share} is no share"),
                    "give steps, or a share such as 5%",
                );
            }
        };
        if warm_up >= steps && warm_up > 0 {
            let problem = format!("{warm_up} steps of warm-up fill all {steps} steps of the run");
            return refuse("--warm-up", problem, "give fewer, or more --steps");
        }
        Ok(Schedule { peak, minimum, warm_up, steps, decay })
    }

    /// The rate of a step, counted from 1. Past the end it stays at the minimum (constant: the peak).
    pub fn rate(&self, step: u64) -> f64 {
        if step <= self.warm_up {
            return self.peak * step as f64 / (self.warm_up + 1) as f64;
        }
        let past = (step - 1 - self.warm_up).min(self.steps - self.warm_up);
        let share = past as f64 / (self.steps - self.warm_up) as f64;
        let height = match self.decay {
            Decay::Constant => return self.peak,
            Decay::Linear => 1.0 - share,
            Decay::Cosine => (1.0 + cosine_of_half_turns(share)) / 2.0,
        };
        self.minimum + (self.peak - self.minimum) * height
    }

    /// Steps of the whole run.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Steps until the peak.
    pub fn warm_up(&self) -> u64 {
        self.warm_up
    }

    /// Highest rate.
    pub fn peak(&self) -> f64 {
        self.peak
    }

    /// Whether numbers read from a file can be a schedule.
    pub(crate) fn is_sound(&self) -> bool {
        let rates = self.peak.is_finite() && self.peak > 0.0 && (0.0..=self.peak).contains(&self.minimum);
        rates && self.steps > 0 && self.warm_up < self.steps
    }
}

/// cos(pi x) for x in [0, 1]. Series instead of the system's cosine, whose last bit is its own.
fn cosine_of_half_turns(x: f64) -> f64 {
    use std::f64::consts::PI;
    let series = |angle: f64, first: f64, odd: u32| {
        let square = angle * angle;
        (1..=11).fold((first, first), |(sum, term), n| {
            let n = f64::from(2 * n + odd);
            let term = -term * square / (n * (n - 1.0));
            (sum + term, term)
        })
    };
    let folded = x.min(1.0 - x);
    let value = match folded <= 0.25 {
        true => series(PI * folded, 1.0, 0).0,
        false => series(PI * (0.5 - folded), PI * (0.5 - folded), 1).0,
    };
    if x <= 0.5 { value } else { -value }
}

impl FromStr for Decay {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "constant" => Ok(Decay::Constant),
            "linear" => Ok(Decay::Linear),
            "cosine" => Ok(Decay::Cosine),
            _ => Err("one of constant, linear, cosine".into()),
        }
    }
}

/// As it is read back.
impl fmt::Display for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WarmUp::Steps(steps) => write!(f, "{steps}"),
            // With its point: "1" would be a step.
            WarmUp::Share(share) => write!(f, "{share:?}"),
        }
    }
}

impl FromStr for WarmUp {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || "steps, or a share of all steps: 20, 5%, 0.05".to_string();
        if let Some(percent) = text.strip_suffix('%') {
            return percent.trim().parse().map(|p: f64| WarmUp::Share(p / 100.0)).map_err(|_| wrong());
        }
        match text.parse() {
            Ok(steps) => Ok(WarmUp::Steps(steps)),
            Err(_) => text.parse().map(WarmUp::Share).map_err(|_| wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule(decay: Decay, warm_up: u64, steps: u64) -> Schedule {
        let settings =
            ScheduleSettings { peak: 1.0, minimum: 0.1, warm_up: WarmUp::Steps(warm_up), decay, steps };
        Schedule::new(&settings).unwrap()
    }

    #[test]
    fn a_warm_up_is_written_as_it_is_read() {
        for warm_up in [WarmUp::Steps(20), WarmUp::Share(0.05), WarmUp::Share(1.0), WarmUp::Share(0.07)] {
            assert_eq!(warm_up.to_string().parse(), Ok(warm_up));
        }
    }

    #[test]
    fn the_first_step_is_small_but_not_zero_and_the_peak_follows_the_warm_up() {
        for decay in [Decay::Constant, Decay::Linear, Decay::Cosine] {
            let schedule = schedule(decay, 4, 100);
            assert_eq!([1, 2, 4, 5].map(|step| schedule.rate(step)), [0.2, 0.4, 0.8, 1.0]);
        }
        assert_eq!(schedule(Decay::Linear, 0, 10).rate(1), 1.0);
    }

    #[test]
    fn the_last_step_is_one_step_above_the_minimum() {
        let linear = schedule(Decay::Linear, 0, 9);
        assert!((linear.rate(9) - 0.2).abs() < 1e-15, "{}", linear.rate(9));
        assert_eq!(linear.rate(10), 0.1);
        assert_eq!(linear.rate(u64::MAX), 0.1);
        let cosine = schedule(Decay::Cosine, 20, 1000);
        assert!(cosine.rate(1000) > 0.1 && cosine.rate(1000) < 0.10001);
        assert_eq!(cosine.rate(1001), 0.1);
        assert!((cosine.rate(511) - 0.55).abs() < 1e-15);
        assert_eq!(schedule(Decay::Constant, 0, 7).rate(8), 1.0);
    }

    #[test]
    fn one_step_has_the_peak() {
        for decay in [Decay::Constant, Decay::Linear, Decay::Cosine] {
            assert_eq!(schedule(decay, 0, 1).rate(1), 1.0);
        }
    }

    #[test]
    fn our_cosine_is_the_cosine() {
        for i in 0..=10_000 {
            let x = f64::from(i) / 10_000.0;
            let error = (cosine_of_half_turns(x) - (std::f64::consts::PI * x).cos()).abs();
            assert!(error < 5e-16, "{x} {error}");
        }
        assert_eq!([0.0, 0.5, 1.0].map(cosine_of_half_turns), [1.0, 0.0, -1.0]);
    }

    #[test]
    fn warm_up_is_read_as_steps_or_share() {
        assert_eq!("20".parse(), Ok(WarmUp::Steps(20)));
        assert_eq!("5%".parse(), Ok(WarmUp::Share(0.05)));
        assert_eq!("0.05".parse(), Ok(WarmUp::Share(0.05)));
        assert!("soon".parse::<WarmUp>().is_err());
        let settings = ScheduleSettings {
            peak: 1.0,
            minimum: 0.0,
            warm_up: WarmUp::Share(0.05),
            decay: Decay::Cosine,
            steps: 1000,
        };
        assert_eq!(Schedule::new(&settings).unwrap().warm_up(), 50);
    }

    #[test]
    fn what_cannot_be_is_refused_by_flag() {
        let good = ScheduleSettings {
            peak: 1e-4,
            minimum: 0.0,
            warm_up: WarmUp::Steps(0),
            decay: Decay::Linear,
            steps: 10,
        };
        let refused = |change: fn(&mut ScheduleSettings)| {
            let mut settings = good;
            change(&mut settings);
            Schedule::new(&settings).unwrap_err().to_string()
        };
        assert!(refused(|s| s.peak = f64::NAN).starts_with("--lr"));
        assert!(refused(|s| s.minimum = 1.0).starts_with("--min-lr"));
        assert!(refused(|s| s.minimum = f64::NAN).starts_with("--min-lr"));
        assert!(refused(|s| s.steps = 0).starts_with("--steps"));
        assert!(refused(|s| s.warm_up = WarmUp::Share(1.5)).starts_with("--warm-up"));
        let full = refused(|s| s.warm_up = WarmUp::Steps(10));
        assert_eq!(
            full,
            "--warm-up\n10 steps of warm-up fill all 10 steps of the run\ngive fewer, or more --steps"
        );
    }

    proptest! {
        #[test]
        fn rates_stay_inside_rise_then_fall_and_survive_the_file(
            peak in 1e-7f64..1.0, low in 0.0f64..1.0, steps in 1u64..300, warm in 0.0f64..0.9,
            kind in 0usize..3,
        ) {
            let decay = [Decay::Constant, Decay::Linear, Decay::Cosine][kind];
            let warm_up = WarmUp::Steps((warm * steps as f64) as u64);
            let minimum = peak * low;
            let schedule =
                Schedule::new(&ScheduleSettings { peak, minimum, warm_up, decay, steps }).unwrap();
            let rates: Vec<f64> = (1..=steps).map(|step| schedule.rate(step)).collect();
            prop_assert!(rates.iter().all(|&rate| rate > 0.0 && rate <= peak * (1.0 + 1e-15)));
            let top = schedule.warm_up() as usize;
            prop_assert!(rates[..=top].is_sorted());
            prop_assert!(rates[top..].is_sorted_by(|a, b| a * (1.0 + 1e-15) >= *b));
            let text = serde_json::to_string(&schedule).unwrap();
            let back: Schedule = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(back, schedule);
        }
    }
}
