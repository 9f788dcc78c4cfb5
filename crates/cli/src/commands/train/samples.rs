//! The fixed prompts, answered by the model as it is at that moment: greedily, with the weights in
//! training, which are the ones that will be exported. Every token computes the whole text again:
//! there is no cache of all layers, and the texts are short. Nothing that is learnt is touched.

use halfbyte_generate::{Sampler, SamplerSettings};
use halfbyte_train::{Pair, Sample};

use super::course::Course;
use super::setup::AnyTraining;
use super::setup::Setup;
use crate::corpus::Speech;
use crate::failure::{Failure, Result};

/// Most tokens of an answer.
const MOST: usize = 48;

/// A prompt as the model reads it.
pub(super) struct Prompt {
    text: String,
    ids: Vec<u32>,
}

impl Prompt {
    /// These prompts, for sequences of so many tokens.
    pub(super) fn all(texts: &[String], speech: &Speech, length: usize) -> Result<Vec<Prompt>> {
        let read = |text: &String| {
            let ids = speech.prompt(text)?;
            match (1..length).contains(&ids.len()) {
                true => Ok(Prompt { text: text.clone(), ids }),
                false => Err(Failure::misuse(format!(
                    "--sample {text:?}\nthis is {} tokens, and a sequence of this run has {length}\n\
                     give a shorter prompt, or a larger --seq",
                    ids.len()
                ))),
            }
        };
        texts.iter().map(read).collect()
    }
}

/// Answers the prompts that have no answer at this step yet.
pub(super) fn ask(setup: &mut Setup, course: &mut Course) -> Result<()> {
    let (step, known) = (course.step, course.samples.len());
    for prompt in &setup.prompts {
        let answered = |sample: &Sample| sample.step == step && sample.prompt == prompt.text;
        if course.samples[..known].iter().any(answered) {
            continue;
        }
        let reply = reply(&mut setup.model, &setup.speech, &prompt.ids, setup.length)?;
        let sample = Sample { step, prompt: prompt.text.clone(), reply };
        course.folder.samples.append(&sample)?;
        course.samples.push(sample);
    }
    Ok(())
}

fn reply(model: &mut AnyTraining, speech: &Speech, prompt: &[u32], length: usize) -> Result<String> {
    let greedy = SamplerSettings { temperature: 0.0, ..SamplerSettings::default() };
    let mut sampler = Sampler::new(greedy).map_err(|error| Failure::misuse(error.to_string()))?;
    let mut tokens = prompt.to_vec();
    while tokens.len() < length && tokens.len() - prompt.len() < MOST {
        let mut logits = model.last_logits(&tokens)?;
        let Ok(id) = sampler.sample(&mut logits, &tokens) else {
            // The run itself says so at its next step.
            model.wipe()?;
            return Ok("(not a number)".into());
        };
        if speech.ends(id) {
            break;
        }
        tokens.push(id);
    }
    Ok(speech.tokenizer.decode(&tokens[prompt.len()..], true)?)
}

/// Each prompt with its first and its last answer.
pub(super) fn pairs(setup: &Setup, samples: &[Sample]) -> Vec<Pair> {
    let pair = |prompt: &Prompt| {
        let mut of = samples.iter().filter(|sample| sample.prompt == prompt.text);
        let first = of.next()?;
        let before = match first.step {
            0 => first.reply.clone(),
            step => format!("(first asked after step {step}) {}", first.reply),
        };
        let after = of.next_back().unwrap_or(first).reply.clone();
        Some(Pair { prompt: prompt.text.clone(), before, after })
    };
    setup.prompts.iter().filter_map(pair).collect()
}
