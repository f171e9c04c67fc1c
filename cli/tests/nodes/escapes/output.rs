//! Attempt 17: what a task writes, and what its job is called, makes a terminal do nothing.

use super::Cage;
use nix::pty::openpty;
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

/// Sets the title, clears the screen, and types a command for whoever reads.
const ESCAPES: &str = "\\033]0;owned\\007\\033[2J\\033[1;1Hok\\033[5n\\n";

/// What a command writes to a terminal.
fn on_a_terminal(cage: &Cage, words: &[&str]) -> String {
    let pty = openpty(None, None).expect("a terminal");
    let mut child = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(words)
        .env("MUSTER_ENDPOINTS", cage.site.endpoint())
        .env("NO_COLOR", "1")
        .current_dir(cage.site.path(""))
        .stdin(Stdio::null())
        .stdout(pty.slave.try_clone().expect("a second handle"))
        .stderr(pty.slave)
        .spawn()
        .expect("the binary runs");
    let (mut master, mut said) = (File::from(pty.master), Vec::new());
    // It ends with an error when nobody has the other side any more.
    let _ = master.read_to_end(&mut said);
    child.wait().expect("a child");
    String::from_utf8_lossy(&said).replace("\r\n", "\n")
}

fn is_harmless(said: &str) {
    let obeyed = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    assert!(!said.chars().any(obeyed), "{said:?}");
}

#[test]
fn attempt_17_what_others_have_written_makes_a_terminal_do_nothing() {
    let Some(cage) = Cage::start() else { return };
    for (option, name) in [("--name", "two\nlines"), ("--name", "esc\u{1b}[2J"), ("--user", "a\nb")] {
        let refused = cage.site.muster(&["submit", "--tenant", "beta", "--gpus", "1", option, name, "--", "true"]);
        assert!(!refused.status.success(), "{option} {name:?}");
        assert!(!String::from_utf8_lossy(&refused.stderr).contains('\u{1b}'), "the refusal repeats it");
    }
    let id = cage.submit(
        "beta",
        &[],
        &format!("printf '{ESCAPES}'; printf '{ESCAPES}' >&2; printf '10 %%\\r20 %%\\n'; exit 3"),
    );
    cage.over(&id);
    let raw = cage.site.said(&["logs", &id]);
    assert!(raw.contains("\u{1b}[2J"), "a pipe gets the bytes: {raw:?}");
    let shown = "\\u001b]0;owned\\u0007\\u001b[2J\\u001b[1;1Hok\\u001b[5n\n";
    let said = on_a_terminal(&cage, &["logs", &id]);
    assert_eq!(said, format!("{shown}10 %\n20 %\n"));
    assert_eq!(on_a_terminal(&cage, &["logs", &id, "--stderr"]), shown);
    assert_eq!(on_a_terminal(&cage, &["logs", &id, "--all-ranks"]), format!("0: {shown}0: 10 %\n0: 20 %\n"));
    assert!(on_a_terminal(&cage, &["logs", &id, "--raw"]).contains("\u{1b}[2J"), "who wants it gets it");
    // The program's name is part of why it does not start, and the note of a checkpoint is what the task wrote.
    let evil = "/no/such/\u{1b}[2J\u{202e}program\nSTATE running";
    let missing = cage.site.submit_as("beta", &["--gpus", "1", "--name", "evil", "--retries", "0", "--", evil]);
    cage.over(&missing);
    let noted = cage.submit("beta", &[], &format!("printf '{ESCAPES}' > $MUSTER_CHECKPOINT_FILE; sleep 3"));
    cage.over(&noted);
    for words in [
        &["job", &missing][..],
        &["job", &noted],
        &["jobs", "--all"],
        &["explain", &missing],
        &["job", &missing, "-o", "json"],
        &["job", &missing, "-o", "yaml"],
        &["nodes"],
    ] {
        is_harmless(&on_a_terminal(&cage, words));
    }
    let table = cage.site.said(&["jobs"]);
    assert!(!table.lines().any(|line| line.starts_with("STATE running")), "a row is a line: {table}");
}
