//! Decisions as data: scripts of commands with the answers they get, in `tests/transcripts/*.txt`.
//!
//! A line that begins with `> ` is a command in the small language of [`script`]; the lines below it are what came of it. `UPDATE=1
//! cargo test -p muster-control-core --test transcripts` writes the answers anew; read the difference before keeping it.

mod script;

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

#[test]
fn a_wrong_answer_is_noticed() {
    let text = "> tenant a\nok\n> submit b gpus=1\njob 1\n";
    assert_ne!(retell(text), text);
}
