//! Every target on all kept inputs, and on a fixed number of new ones made from them.
//!
//! What must stay true: the inputs are the same in every run, and the whole takes some seconds in a debug build.

use muster_fuzz::attempt::{again, attempt, keep, on_small_stack};
use muster_fuzz::corpus;
use muster_fuzz::list::{GROUPS, all};
use muster_fuzz::mutate::Mutator;
use muster_fuzz::target::{Target, take_reached};
use muster_fuzz::targets::wire::MESSAGES;
use std::collections::BTreeSet;

/// New inputs for each target.
const NEW: usize = 400;
const SEED: u64 = 1;
/// What writes those kept inputs that are not text.
const SEED_COMMAND: &str = "cargo run --locked -p muster-fuzz -- seed";
/// Bytes of a kept input: some borders are at 64 KiB.
const KEPT_BYTES_MAX: usize = 72 << 10;

fn group(name: &str) {
    let (_, targets) = GROUPS.iter().find(|(group, _)| *group == name).expect("a group");
    for target in *targets {
        on_small_stack(move || check(target)).unwrap_or_else(|why| panic!("{why}"));
    }
}

fn check(target: &Target) {
    let kept = corpus::of(target.name).expect("kept inputs");
    let _ = take_reached();
    for input in &kept {
        if let Err(why) = attempt(target, &input.bytes) {
            panic!("{} fails on the kept input {}: {why}\n  {}", target.name, input.name, again(target, &input.path));
        }
    }
    let reached = take_reached();
    let missing: Vec<_> = target.reaches.iter().filter(|place| !reached.contains(*place)).collect();
    assert!(
        missing.is_empty(),
        "no kept input of {} reaches {missing:?}; it reaches {reached:?}. When a message or a stored form has changed, write them anew: {SEED_COMMAND}",
        target.name
    );
    let kept: Vec<Vec<u8>> = kept.into_iter().map(|kept| kept.bytes).collect();
    let mut mutator = Mutator::new(SEED);
    for _ in 0..NEW {
        let input = mutator.input(&kept, target.words);
        if let Err(why) = attempt(target, &input) {
            let path = keep(&std::env::temp_dir().join("muster-fuzz"), target, &input).expect("kept");
            panic!("{} fails on a new input: {why}\n  {}", target.name, again(target, &path));
        }
    }
}

#[test]
fn texts() {
    group("text");
}

#[test]
fn replays() {
    group("replay");
}

#[test]
fn files() {
    group("files");
}

#[test]
fn messages() {
    group("wire");
}

#[test]
fn stored_forms() {
    group("stored");
}

#[test]
fn tokens() {
    group("tokens");
}

#[test]
fn logins() {
    group("login");
}

#[test]
fn certificates() {
    group("pki");
}

#[test]
fn hosts() {
    group("host");
}

#[test]
fn images() {
    group("images");
}

#[test]
fn every_folder_has_a_target_and_every_target_has_inputs() {
    let names: Vec<&str> = all().map(|target| target.name).collect();
    let unique: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(unique.len(), names.len(), "two targets have one name");
    let folders = corpus::folders().expect("the folder of kept inputs");
    let without: Vec<_> = folders.iter().filter(|folder| !unique.contains(folder.as_str())).collect();
    assert!(without.is_empty(), "folders without a target: {without:?}");
    for name in names {
        let kept = corpus::of(name).unwrap_or_default();
        assert!(kept.len() >= 3, "target {name} has {} kept inputs; keep good ones and hostile ones", kept.len());
        assert!(kept.iter().all(|input| input.bytes.len() <= KEPT_BYTES_MAX), "a kept input of {name} is not small");
    }
}

#[test]
fn every_message_that_is_sent_is_in_the_list() {
    let known: BTreeSet<&str> = MESSAGES.iter().map(|(name, _)| *name).collect();
    let missing: Vec<&str> =
        muster_proto::bounded::schema().roots().map(|(name, ..)| name).filter(|name| !known.contains(name)).collect();
    assert!(missing.is_empty(), "add to the list in fuzz/src/targets/wire.rs: {missing:?}");
}
