//! The sampler against its formulas and, by counting, against the softmax.

use super::*;

fn sampler(change: impl Fn(&mut SamplerSettings)) -> Sampler {
    let mut settings = SamplerSettings { temperature: 1.0, ..SamplerSettings::default() };
    change(&mut settings);
    Sampler::new(settings).unwrap()
}

/// How often each token comes in many draws, as a share.
fn shares(sampler: &mut Sampler, logits: &[f32], draws: usize) -> Vec<f64> {
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(&mut logits.to_vec(), &[]).unwrap() as usize] += 1.0 / draws as f64;
    }
    counts
}

/// Ids that can come at all.
fn support(sampler: &Sampler, logits: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = sampler.filter(logits).iter().map(|c| c.column).collect();
    ids.sort_unstable();
    ids
}

fn logits_of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[test]
fn greedy_takes_the_lowest_id_of_the_best() {
    let mut greedy = Sampler::new(SamplerSettings::default()).unwrap();
    assert_eq!(greedy.sample(&mut [1.0, 3.0, 3.0, -1.0], &[]), Ok(1));
    assert_eq!(greedy.draws(), 0);
}

#[test]
fn shares_follow_the_softmax_at_each_temperature() {
    let logits = [1.0, 0.0, -1.0, 2.0];
    for temperature in [0.5f64, 1.0, 2.0] {
        let mut sampler = sampler(|s| s.temperature = temperature as f32);
        let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let draws = 40_000;
        for (share, weight) in shares(&mut sampler, &logits, draws).iter().zip(&weights) {
            let p = weight / total;
            // Four standard errors; the draws are fixed by the seed, so this never flickers.
            let allowed = 4.0 * (p * (1.0 - p) / draws as f64).sqrt();
            assert!((share - p).abs() < allowed, "{share} against {p} at {temperature}");
        }
    }
}

#[test]
fn top_k_keeps_k_and_breaks_ties_by_id() {
    assert_eq!(support(&sampler(|s| s.top_k = 2), &[1.0, 2.0, 2.0, 2.0]), [1, 2]);
    assert_eq!(support(&sampler(|s| s.top_k = 9), &[1.0, 2.0]), [0, 1]);
}

#[test]
fn the_token_that_crosses_top_p_stays() {
    let logits = logits_of(&[0.5, 0.3, 0.15, 0.05]);
    assert_eq!(support(&sampler(|s| s.top_p = 0.6), &logits), [0, 1]);
    assert_eq!(support(&sampler(|s| s.top_p = 0.45), &logits), [0]);
    assert_eq!(support(&sampler(|s| s.top_p = 0.0), &logits), [0]);
    assert_eq!(support(&sampler(|s| s.top_p = 0.96), &logits), [0, 1, 2, 3]);
}

#[test]
fn top_p_is_measured_on_what_top_k_left() {
    let logits = logits_of(&[0.4, 0.2, 0.2, 0.2]);
    assert_eq!(support(&sampler(|s| (s.top_k, s.top_p) = (2, 0.66)), &logits), [0]);
    assert_eq!(support(&sampler(|s| s.top_p = 0.66), &logits), [0, 1, 2]);
}

#[test]
fn top_p_over_a_flat_large_vocabulary_keeps_its_share() {
    let logits = vec![0.0; 10_000];
    let kept = support(&sampler(|s| s.top_p = 0.5), &logits);
    assert_eq!(kept, (0..5000).collect::<Vec<_>>());
}

#[test]
fn min_p_is_relative_to_the_best() {
    let logits = logits_of(&[0.5, 0.26, 0.24]);
    assert_eq!(support(&sampler(|s| s.min_p = 0.5), &logits), [0, 1]);
    assert_eq!(support(&sampler(|s| s.min_p = 1.0), &logits), [0]);
    assert_eq!(support(&sampler(|s| (s.min_p, s.top_p) = (0.1, 0.7)), &logits), [0, 1]);
}

#[test]
fn filters_do_not_depend_on_the_temperature() {
    let logits = logits_of(&[0.5, 0.3, 0.15, 0.05]);
    for temperature in [0.1, 1.0, 10.0] {
        let sampler = sampler(|s| (s.temperature, s.top_p) = (temperature, 0.6));
        assert_eq!(support(&sampler, &logits), [0, 1]);
    }
}

#[test]
fn penalties_follow_their_formulas_within_the_window() {
    let sampler = sampler(|s| {
        (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) = (2.0, 0.5, 0.25);
        s.repeat_window = 3;
    });
    let mut logits = [4.0, -1.0, 1.0, 1.0];
    // Token 3 is outside the window of three, token 9 outside the vocabulary.
    sampler.penalize(&mut logits, &[3, 0, 0, 9]);
    assert_eq!(logits, [2.0 - 0.5 - 0.5, -1.0, 1.0, 1.0]);
    sampler.penalize(&mut logits, &[1]);
    assert_eq!(logits[1], -2.0 - 0.25 - 0.5);
}

#[test]
fn no_ngram_appears_twice() {
    let mut greedy =
        Sampler::new(SamplerSettings { no_repeat_ngram: 3, ..SamplerSettings::default() }).unwrap();
    assert_eq!(greedy.sample(&mut [0.0, 1.0, 5.0], &[0, 1, 2, 0, 1]), Ok(1));
    assert_eq!(greedy.sample(&mut [0.0, 1.0, 5.0], &[1, 2]), Ok(2));
    let mut single =
        Sampler::new(SamplerSettings { no_repeat_ngram: 1, ..SamplerSettings::default() }).unwrap();
    assert_eq!(single.sample(&mut [0.0, 1.0], &[1]), Ok(0));
    assert_eq!(single.sample(&mut [0.0, 1.0], &[1, 0]), Err(Error::NothingLeft));
    let mut warm = sampler(|s| s.no_repeat_ngram = 1);
    assert_eq!(warm.sample(&mut [0.0, 1.0], &[1, 0]), Err(Error::NothingLeft));
}

#[test]
fn the_seed_decides_and_draws_go_on_across_turns() {
    let logits = vec![0.0; 50];
    let run = |mut sampler: Sampler, count: usize| -> Vec<u32> {
        (0..count).map(|_| sampler.sample(&mut logits.clone(), &[]).unwrap()).collect()
    };
    let whole = run(sampler(|s| s.seed = 7), 20);
    assert_eq!(whole, run(sampler(|s| s.seed = 7), 20));
    assert_ne!(whole, run(sampler(|s| s.seed = 8), 20));
    assert_eq!(whole[12..], run(sampler(|s| s.seed = 7).continue_from(12), 8));
    let mut counted = sampler(|s| s.seed = 7);
    counted.sample(&mut logits.clone(), &[]).unwrap();
    assert_eq!(counted.draws(), 1);
}

#[test]
fn logits_that_are_not_finite_are_refused_by_index() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for temperature in [0.0, 1.0] {
            let mut sampler = sampler(|s| s.temperature = temperature);
            let result = sampler.sample(&mut [0.0, 1.0, bad, bad], &[]);
            assert_eq!(result, Err(Error::NonFinite { index: 2 }));
        }
    }
    assert_eq!(sampler(|_| {}).sample(&mut [], &[]), Err(Error::NothingLeft));
}

#[test]
fn extreme_logits_and_temperatures_stay_defined() {
    let mut cold = sampler(|s| s.temperature = f32::MIN_POSITIVE);
    assert_eq!(cold.sample(&mut [f32::MIN, f32::MAX, 0.0], &[]), Ok(1));
    let mut hot = sampler(|s| s.temperature = f32::MAX);
    assert!(hot.sample(&mut [f32::MIN, f32::MAX], &[]).is_ok());
    let mut harsh = sampler(|s| (s.temperature, s.repetition_penalty) = (0.0, f32::MIN_POSITIVE));
    assert_eq!(harsh.sample(&mut [1.0, 2.0], &[1]), Ok(1));
}

#[test]
fn bad_settings_are_refused_by_name() {
    type Change = fn(&mut SamplerSettings);
    let cases: [(&str, Change); 9] = [
        ("temperature", |s| s.temperature = f32::NAN),
        ("temperature", |s| s.temperature = -0.5),
        ("temperature", |s| s.temperature = f32::INFINITY),
        ("top_p", |s| s.top_p = -0.1),
        ("top_p", |s| s.top_p = 1.5),
        ("min_p", |s| s.min_p = f32::NAN),
        ("repetition_penalty", |s| s.repetition_penalty = 0.0),
        ("presence_penalty", |s| s.presence_penalty = f32::NAN),
        ("frequency_penalty", |s| s.frequency_penalty = f32::NEG_INFINITY),
    ];
    for (name, change) in cases {
        let mut settings = SamplerSettings::default();
        change(&mut settings);
        let error = Sampler::new(settings).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
}

#[test]
fn the_best_few_decide_as_all_logits_do() {
    let changes: [fn(&mut SamplerSettings); 5] = [
        |s| s.temperature = 0.0,
        |s| s.top_k = 1,
        |s| (s.top_k, s.temperature) = (20, 0.7),
        |s| (s.top_k, s.top_p, s.temperature) = (20, 0.8, 0.7),
        |s| (s.top_k, s.top_p, s.min_p) = (40, 0.95, 0.05),
    ];
    for change in changes {
        let (mut of_all, mut of_few) = (sampler(change), sampler(change));
        let few = of_few.deciding(500).unwrap();
        for draw in 0..300u32 {
            let mut logits: Vec<f32> = halfbyte_ops::testing::numbers(draw, 500);
            logits.iter_mut().for_each(|logit| *logit = (*logit * 40.0).round() / 8.0);
            let mut best = vec![Best::default(); few];
            assert!(halfbyte_ops::best::forward(&logits, &mut best));
            assert_eq!(of_few.sample_best(&best), of_all.sample(&mut logits, &[]).unwrap());
            assert_eq!(of_few.draws(), of_all.draws());
        }
    }
}

#[test]
fn all_logits_decide_where_the_few_cannot() {
    let changes: [fn(&mut SamplerSettings); 5] = [
        |s| s.top_k = 0,
        |s| s.top_k = 500,
        |s| (s.temperature, s.repetition_penalty) = (0.0, 1.1),
        |s| (s.temperature, s.presence_penalty) = (0.0, 0.5),
        |s| (s.temperature, s.no_repeat_ngram) = (0.0, 3),
    ];
    for change in changes {
        assert_eq!(sampler(change).deciding(500), None);
    }
}

#[test]
fn weights_are_exponentials() {
    for i in 0..700_000 {
        let x = f64::from(i) * -1e-3;
        let (got, want) = (exp_below_zero(x), x.exp());
        assert!((got - want).abs() <= 1e-11 * want, "e^{x}: {got:e} for {want:e}");
    }
    assert!(exp_below_zero(f64::NEG_INFINITY) < 1e-300);
}
