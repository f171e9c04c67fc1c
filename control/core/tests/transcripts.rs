//! Decisions as data: scripts of commands with the answers they get, in `tests/transcripts/*.txt`.
//!
//! A line that begins with `> ` is a command in the small language of [`script`]; the lines below it are what came of it. `UPDATE=1
//! cargo test -p muster-control-core --test transcripts` writes the answers anew; read the difference before keeping it.

mod script;

use muster_control_core::State;
use muster_model::Object;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The transcript with every answer made anew.
fn retell(text: &str) -> String {
    let mut world = script::World::new();
    let mut out = String::new();
    let lines: Vec<&str> = text.lines().collect();
    let mut after_command = false;
    for line in lines {
        if let Some(command) = line.strip_prefix("> ") {
            writeln!(out, "{line}").expect("writing to a string");
            for answer in world.run(command) {
                writeln!(out, "{answer}").expect("writing to a string");
            }
            after_command = true;
        } else if line.starts_with('#') || line.is_empty() {
            writeln!(out, "{line}").expect("writing to a string");
            after_command = false;
        } else {
            assert!(after_command, "{line:?} answers no command");
        }
    }
    out
}

fn check(path: &Path) {
    let text = std::fs::read_to_string(path).expect("a transcript");
    let told = retell(&text);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, told).expect("writing a transcript");
        return;
    }
    for (number, (expected, got)) in text.lines().zip(told.lines()).enumerate() {
        assert_eq!(expected, got, "{}:{}", path.display(), number + 1);
    }
    assert_eq!(text.lines().count(), told.lines().count(), "{} has another length", path.display());
}

#[test]
fn decisions_are_as_they_were_written_down() {
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is"))
        .join("tests/transcripts");
    let entries = std::fs::read_dir(folder).expect("the transcripts");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() >= 5, "{paths:?}");
    paths.iter().for_each(|path| check(path));
}

/// Nodes that cannot start a job's task do not count against the job, but a job must not go round for ever.
#[test]
fn a_job_that_no_node_can_start_fails_in_the_end() {
    let mut world = script::World::new();
    for line in ["tenant red", "join n1", "acquire a s1", "submit red gpus=1"] {
        world.run(line);
    }
    for attempt in 1..=17 {
        world.run("bind 1 n1:0");
        let told = world.run(&format!("report n1 {attempt} node-fault"));
        let word = if attempt <= 16 { "pending" } else { "failed" };
        assert!(told[1].starts_with(&format!("  job 1 {word}")), "attempt {attempt}: {told:?}");
        world.run("undrain n1");
    }
    // The records of its first attempts are gone.
    assert_eq!(world.run("show attempts 1").len(), 2 * muster_model::attempt::ATTEMPTS_MAX);
}

/// Every time in the state that is ahead of `now_ms`, with the object that has it. Fields that hold a time are named so.
fn times_ahead(state: &State, now_ms: u64) -> Vec<String> {
    let ahead = |object: &Object| {
        let text = format!("{object:?}");
        let later = text.split("_ms: ").skip(1).any(|rest| {
            let digits = rest.trim_start_matches("Some(");
            let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
            digits[..end].parse::<u64>().is_ok_and(|at| at > now_ms)
        });
        later.then_some(text)
    };
    state.objects().filter_map(|object| ahead(&object)).collect()
}

/// Attempts, failures of ranks, quarantines, agents turned away and removed nodes have times as well.
#[test]
fn a_reset_clock_leaves_no_time_ahead() {
    let mut world = script::World::new();
    for line in ["tenant red", "join n1", "join n2", "join n3", "acquire a s1", "submit red gpus=1", "later 2592000"] {
        world.run(line);
    }
    for attempt in 1..=5 {
        world.run("bind 1 n1:0");
        world.run(&format!("report n1 {attempt} node-fault"));
    }
    for line in ["join n2 agent=8 boot=b", "drain n3", "remove n3", "submit red tasks=2 gpus=1", "bind 2 n2:0 n2:1"] {
        world.run(line);
    }
    world.run("report n2 6 0=exit1");
    let now_ms = world.state.meta.now_ms;
    world.run("sooner 2592000");
    let kinds = ["quarantine: Some", "rival: Some", "RemovedNode {", "AttemptRecord {", "failures: [RankFailure"];
    let before = times_ahead(&world.state, now_ms - 1_000);
    for kind in kinds {
        assert!(before.iter().any(|text| text.contains(kind)), "no {kind} with a time that is ahead: {before:#?}");
    }
    let told = world.run("reset-clock");
    assert!(told[0].starts_with("clock set back by"), "{told:?}");
    assert_eq!(times_ahead(&world.state, world.state.meta.now_ms), Vec::<String>::new());
}

#[test]
fn a_wrong_answer_is_noticed() {
    let text = "> tenant a\nok\n> submit b gpus=1\njob 1\n";
    assert_ne!(retell(text), text);
}
