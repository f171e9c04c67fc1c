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

#[test]
fn a_wrong_answer_is_noticed() {
    let text = "> tenant a\nok\n> submit b gpus=1\njob 1\n";
    assert_ne!(retell(text), text);
}
