//! Tidiness that no compiler checks: what files open with, how long they are, and words that do not belong where they stand.
//!
//! What must stay true: the rules are about text and need no build; tests may do what tests must (clocks, files, threads), but no
//! file escapes the rules about unfinished work.

use crate::{Finding, ratchet, words};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Lines of a file that is not a test: beyond this a reader has lost the thread.
const LINES_MAX: usize = 500;

/// Unfinished or silenced work, nowhere allowed. Split so that this file does not find itself.
const UNFINISHED: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("FIX", "ME"),
    concat!("#[ign", "ore"),
    concat!("allow(dead", "_code)"),
    concat!("dbg", "!("),
];

/// What pure code takes as an argument instead.
const IMPURE: &[&str] = &[
    "SystemTime",
    "Instant::now",
    "std::fs",
    "std::env",
    "std::thread",
    "std::net",
    "std::process",
    "HashMap",
    "HashSet",
    "rand::",
    "thread_local!",
    "println!",
    "eprintln!",
];

/// What servers and agents reach through the host's seams instead.
const PAST_THE_SEAMS: &[&str] =
    &["tokio::spawn", "thread::spawn", "SystemTime::now", "rand::thread_rng", "std::time::Instant"];

/// Folders of pure crates.
const PURE: &[&str] = &["model/", "control/core/", "scheduler-shard/core/", "node/core/", "twin/"];

/// Folders of crates that run in simulation as they are.
const GLUE: &[&str] = &["control/server/", "scheduler-shard/server/", "node/agent/"];

/// The shim is a process of its own, without the seams: it must live when everything else is dead. So is all that talks to the
/// operating system about real processes: the attempts of the probe, and what `muster node doctor` and `muster node record` ask a driver that may hang.
const GLUE_EXCEPT: &[&str] = &[
    "node/agent/src/shim",
    "node/agent/src/sandbox/probe/",
    "node/agent/src/gpu/nvml/doctor.rs",
    "node/agent/src/gpu/nvml/recorder.rs",
];

/// Checks every Rust file of the workspace.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let ratchet_path = root.join("xtask/ratchet.txt");
    let text = if ratchet_path.exists() { fs::read_to_string(&ratchet_path)? } else { String::new() };
    let long = ratchet::parse(&text)?;
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    files.sort();
    let mut findings = Vec::new();
    for file in &files {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"))?;
        findings.extend(check_file(file, &text, &long));
        findings.extend(words::check_file(file, &text));
    }
    for path in long.keys().filter(|path| !files.contains(path)) {
        findings.push(Finding::new(path, "is in xtask/ratchet.txt but not in the tree: remove the row"));
    }
    Ok(findings)
}

fn collect(root: &Path, dir: &Path, files: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" || name == "shared" {
            continue;
        }
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            collect(root, &path, files)?;
        } else if name.ends_with(".rs") {
            files.push(path.strip_prefix(root)?.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Everything wrong with one file, named by its path from the root.
#[must_use]
pub fn check_file(path: &str, text: &str, long: &BTreeMap<String, usize>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |text: String| findings.push(Finding::new(path, text));
    if !text.starts_with("//!") {
        find("does not open with `//!`: say what it is for and what must stay true".to_owned());
    }
    let lines = text.lines().count();
    if !is_test(path) {
        match long.get(path).copied() {
            None if lines > LINES_MAX => find(format!("has {lines} lines, more than {LINES_MAX}: split it")),
            Some(most) if lines > most => find(format!("has grown to {lines} lines from {most}: split it")),
            Some(_) if lines <= LINES_MAX => {
                find("is short enough now: take its row out of xtask/ratchet.txt".to_owned())
            }
            Some(most) if lines < most => find(format!("has {lines} lines: lower its row in xtask/ratchet.txt")),
            _ => {}
        }
    }
    for (number, line) in text.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
            find(format!(
                "line {}: {word} is unfinished or silenced work: finish it or say it in an issue",
                number + 1
            ));
        }
    }
    for (number, line) in code_lines(path, text) {
        if under(path, PURE) {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                find(format!("line {number}: {word} in a pure crate: take it as an argument, use ordered collections"));
            }
        }
        if under(path, GLUE) && !GLUE_EXCEPT.iter().any(|except| path.starts_with(except)) {
            for word in PAST_THE_SEAMS.iter().filter(|word| line.contains(**word)) {
                find(format!(
                    "line {number}: {word} goes past the seams: use runtime::Host, or it cannot be simulated"
                ));
            }
        }
    }
    findings
}

fn under(path: &str, folders: &[&str]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("/benches/")
}

/// Lines of code with their numbers: no comments, no tests at the file's end.
fn code_lines<'a>(path: &str, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> + use<'a> {
    let production = if is_test(path) { "" } else { text };
    let lines = production.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.take_while(|(_, line)| line.trim() != "#[cfg(test)]").filter(|(_, line)| !line.trim_start().starts_with("//"))
}
