//! The command itself: arguments, exit statuses, and what goes to which stream.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn muster(args: &[&str]) -> Output {
    muster_with(args, &[], "")
}

fn muster_with(args: &[&str], env: &[(&str, &str)], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(args)
        .env_remove("MUSTER_ENDPOINTS")
        .env_remove("MUSTER_CONFIG")
        .env("HOME", "/nonexistent")
        .env_remove("XDG_CONFIG_HOME")
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting muster");
    child.stdin.take().expect("stdin").write_all(input.as_bytes()).expect("writing to it");
    child.wait_with_output().expect("its output")
}

fn check(output: &Output, code: i32, stderr: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(stderr), "{text:?} has no {stderr:?}");
}

#[test]
fn help_goes_to_standard_output_and_tells_the_exit_statuses() {
    let output = muster(&["--help"]);
    check(&output, 0, "");
    let text = String::from_utf8_lossy(&output.stdout);
    for word in ["Examples:", "Exit status:", "MUSTER_ENDPOINTS", "submit", "explain"] {
        assert!(text.contains(word), "{word}");
    }
    let output = muster(&["submit", "--help"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("torchrun train.py"));
}

#[test]
fn every_command_has_help() {
    for words in [
        &["jobs"][..],
        &["job"],
        &["logs"],
        &["cancel"],
        &["explain"],
        &["tenants", "apply"],
        &["usage"],
        &["nodes"],
        &["gpus"],
        &["cells"],
        &["plan"],
        &["moves"],
        &["pools", "apply"],
        &["drain"],
        &["raft", "add"],
        &["control"],
        &["shard"],
        &["node"],
        &["dev"],
        &["demo"],
    ] {
        let output = muster(&[words, &["--help"]].concat());
        check(&output, 0, "");
        assert!(!output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn wrong_usage_is_2() {
    check(&muster(&["frobnicate"]), 2, "unrecognized subcommand");
    check(&muster(&["jobs", "--state", "asleep"]), 2, "state: \"asleep\" is not a state; use one of: pending");
    check(
        &muster(&["submit", "--tenant", "a", "--gpus", "1", "--mig", "1g.10gb", "--", "x"]),
        2,
        "cannot be used with",
    );
    check(&muster(&["submit", "--tenant", "a", "--time", "4x", "--", "x"]), 2, "time: \"4x\" is not a duration; write");
    check(&muster(&["submit", "--gpus", "1", "--", "x"]), 2, "tenant: is missing");
    check(&muster(&["submit", "--tenant", "a"]), 2, "command: is missing");
    check(&muster(&["job", "seven"]), 2, "invalid value");
    check(&muster(&["raft", "bootstrap", "10.0.0.1:7400"]), 2, "ID=HOST:PORT");
    check(&muster(&["--endpoints", "unreachable", "jobs"]), 2, "endpoints: \"unreachable\" is not HOST:PORT");
}

#[test]
fn a_file_that_is_not_there_is_3() {
    check(&muster(&["submit", "-f", "/nonexistent/job.yaml"]), 3, "does not exist");
    check(&muster(&["tenants", "apply", "-f", "/nonexistent/tree.yaml"]), 3, "does not exist");
}

#[test]
fn bad_files_are_2_and_named() {
    check(&muster_with(&["submit", "-f", "-"], &[], "tenant: a\ngpu: 1\n"), 2, "standard input: gpu: is not a key");
    check(&muster_with(&["tenants", "apply", "-f", "-"], &[], "a: {maxx: 1}\n"), 2, "a.maxx: is not a key");
    check(&muster_with(&["jobs"], &[("MUSTER_CONFIG", "/nonexistent/c.yaml")], ""), 1, "/nonexistent/c.yaml");
}

#[test]
fn nobody_there_is_4_and_says_who_was_asked() {
    // Port 9 of this machine: nothing listens there.
    let output = muster(&["--timeout", "1s", "jobs", "--endpoints", "127.0.0.1:9"]);
    check(&output, 4, "tried: 127.0.0.1:9");
    assert!(output.stdout.is_empty());
    let output = muster_with(&["--timeout", "1s", "jobs"], &[("MUSTER_ENDPOINTS", "127.0.0.1:9,[::1]:9")], "");
    check(&output, 4, "127.0.0.1:9,[::1]:9");
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = muster(&["completions", shell]);
        check(&output, 0, "");
        assert!(String::from_utf8_lossy(&output.stdout).contains("muster"), "{shell}");
    }
}

/// As login nodes are set up: the allocator of control nodes wants more addresses than that.
#[test]
fn it_runs_where_addresses_are_limited() {
    let limited = format!("ulimit -v 2000000 && exec {} --version", env!("CARGO_BIN_EXE_muster"));
    let output = Command::new("sh").args(["-c", &limited]).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("muster "));
}
