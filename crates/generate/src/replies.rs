//! Many prompts, each in a conversation of its own: as many at once as the decoder has lanes. Where a reply ends, the
//! next prompt takes its place.

use std::sync::atomic::{AtomicBool, Ordering};

use halfbyte_model::Decoder;
use halfbyte_ops::Backend;
use halfbyte_text::Tokenizer;

use crate::error::Result;
use crate::reply::{Finish, Limits, Reply, Scores, Turn, check_prompt};
use crate::sampler::Sampler;

/// Who speaks in a lane.
struct Speaker<'a> {
    /// Of the prompt.
    index: usize,
    turn: Turn<'a>,
    sampler: Sampler,
    scores: Scores,
    /// What was said last.
    id: u32,
    finish: Option<Finish>,
}

/// Answers every prompt; gives the replies in the prompts' order, and each to `on` as it ends. Reply i draws from the
/// sampler's stream i, so where a token's bits do not depend on its company, no reply depends on the others or on the
/// number of lanes. An interrupt ends all of them.
pub fn replies<B: Backend>(
    decoder: &mut Decoder<B>,
    tokenizer: &Tokenizer,
    prompts: &[Vec<u32>],
    sampler: &Sampler,
    limits: &Limits,
    interrupt: &AtomicBool,
    on: &mut dyn FnMut(usize, &Reply),
) -> Result<Vec<Reply>> {
    // Before hours of work, not after them.
    for prompt in prompts {
        check_prompt(decoder, prompt)?;
    }
    let mut replies: Vec<Option<Reply>> = vec![None; prompts.len()];
    let mut waiting = prompts.iter().enumerate();
    let mut lanes: Vec<Option<Speaker<'_>>> = (0..decoder.lanes()).map(|_| None).collect();
    loop {
        for (lane, place) in lanes.iter_mut().enumerate().filter(|(_, place)| place.is_none()) {
            let Some((index, prompt)) = waiting.next() else { break };
            decoder.enter(lane);
            let (sampler, scores) = (sampler.stream(index as u64), Scores::new(decoder, sampler, limits));
            let turn = Turn::new(tokenizer, prompt, limits)?;
            let mut speaker = Speaker { index, turn, sampler, scores, id: 0, finish: None };
            speaker.finish = speaker.turn.prefill(decoder, &mut speaker.scores, interrupt, &mut |_| ())?;
            *place = Some(speaker);
        }
        if lanes.iter().all(Option::is_none) {
            decoder.enter(0);
            return Ok(replies.into_iter().flatten().collect());
        }
        speak(decoder, &mut lanes, limits, interrupt.load(Ordering::Relaxed))?;
        for place in &mut lanes {
            if let Some(Speaker { index, turn, finish: Some(finish), .. }) =
                place.take_if(|speaker| speaker.finish.is_some())
            {
                let reply = turn.end(finish, &mut |_| ());
                on(index, &reply);
                replies[index] = Some(reply);
            }
        }
        feed(decoder, &mut lanes)?;
    }
}

/// Everyone whose reply is not at its end says the next id.
fn speak<B: Backend>(
    decoder: &mut Decoder<B>,
    lanes: &mut [Option<Speaker<'_>>],
    limits: &Limits,
    interrupted: bool,
) -> Result<()> {
    let speakers = lanes.iter_mut().enumerate().filter_map(|(lane, speaker)| Some((lane, speaker.as_mut()?)));
    let mut speakers: Vec<_> = speakers.filter(|(_, speaker)| speaker.finish.is_none()).collect();
    if interrupted {
        speakers.iter_mut().for_each(|(_, speaker)| speaker.finish = Some(Finish::Interrupted));
        return Ok(());
    }
    let choices = speakers.iter_mut().map(|(lane, speaker)| Choice {
        scores: &mut speaker.scores,
        sampler: &mut speaker.sampler,
        history: decoder.tokens_of(*lane),
        id: Ok(None),
    });
    let ids = choose(choices.collect(), limits, decoder.threads());
    for ((lane, speaker), id) in speakers.into_iter().zip(ids) {
        let Some(id) = id? else {
            decoder.enter(lane);
            return Err(decoder.first_bad()?.into());
        };
        speaker.id = id;
        let room = decoder.context() - decoder.tokens_of(lane).len();
        speaker.finish = speaker.turn.take(id, room, &mut |_| ())?;
    }
    Ok(())
}

/// An id to be chosen.
struct Choice<'a> {
    scores: &'a mut Scores,
    sampler: &'a mut Sampler,
    history: &'a [u32],
    id: Result<Option<u32>>,
}

/// All of them, shared among threads: a choice from a whole vocabulary takes about as long as a token's products.
fn choose(mut choices: Vec<Choice<'_>>, limits: &Limits, threads: usize) -> Vec<Result<Option<u32>>> {
    let of = |choices: &mut [Choice<'_>]| {
        for Choice { scores, sampler, history, id } in choices {
            *id = scores.choose(sampler, history, limits);
        }
    };
    let threads = if choices.iter().any(|choice| choice.scores.are_all()) { threads } else { 1 };
    let share = choices.len().div_ceil(threads).max(1);
    let mut shares = choices.chunks_mut(share);
    let own = shares.next();
    std::thread::scope(|scope| {
        for share in shares {
            scope.spawn(move || of(share));
        }
        own.map(of);
    });
    choices.into_iter().map(|choice| choice.id).collect()
}

/// Computes what was said last, of all lanes at once.
fn feed<B: Backend>(decoder: &mut Decoder<B>, lanes: &mut [Option<Speaker<'_>>]) -> Result<()> {
    let (tokens, mut scores): (Vec<(usize, u32)>, Vec<&mut Scores>) = lanes
        .iter_mut()
        .enumerate()
        .filter_map(|(lane, speaker)| speaker.as_mut().map(|s| ((lane, s.id), &mut s.scores)))
        .unzip();
    Scores::feed_lanes(&mut scores, decoder, &tokens)
}
