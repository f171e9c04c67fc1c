//! What is refused is said in words that a person can act on.

use crate::common::Dev;

#[test]
fn refusals_name_the_field_and_what_to_do() {
    let dev = Dev::start(&["--nodes", "1"]);
    // A thousand equal jobs have one fault, and its refusal reaches the user.
    let said = dev.refused(
        &["submit", "--count", "1000", "--name", "bad name", "--gpus", "1", "--", "true"],
        2,
        &["error: name: \"bad name\" has characters outside"],
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let documents: String = (0..200).map(|_| "name: bad name\ngpus: 1\ncommand: [\"true\"]\n---\n").collect();
    let file = dev.file("jobs.yaml", &documents);
    let said = dev.refused(&["submit", "-f", &file], 2, &["jobs.yaml, job 1: name: ", "error: and "]);
    assert!(said.lines().count() > 20, "{said}");

    // A number without a unit is minutes to some and seconds to others.
    for args in [
        &["submit", "--gpus", "1", "--time", "4", "--", "true"][..],
        &["submit", "--gpus", "1", "--grace", "30", "--", "true"],
        &["--timeout", "5", "jobs"],
    ] {
        dev.refused(args, 2, &["has no unit", "30s, 45m, 4h"]);
    }

    let latin = dev.path("latin.yaml");
    std::fs::write(&latin, b"gpus: 1\ncommand: [echo, \xe4]\n").expect("a file");
    let name = latin.display().to_string();
    dev.refused(&["submit", "-f", &name], 2, &["latin.yaml: is not UTF-8 text at line 2", "save the file as UTF-8"]);
}

#[test]
fn cancelling_what_has_ended_says_how_it_ended() {
    let dev = Dev::start(&["--nodes", "1"]);
    let completed = dev.ok(&["submit", "--gpus", "1", "--", "true"]);
    let failed = dev.ok(&["submit", "--gpus", "1", "--", "false"]);
    let running = dev.ok(&["submit", "--gpus", "1", "--", "sleep", "600"]);
    dev.until(&completed, &["completed"]);
    dev.until(&failed, &["failed"]);
    dev.until(&running, &["running"]);
    dev.refused(&["cancel", &completed], 5, &[&format!("job {completed} has ended: completed")]);
    dev.refused(&["cancel", &failed], 5, &[&format!("job {failed} has ended: failed (rank 0 exited with 1")]);
    dev.refused(&["cancel", "999"], 3, &["job 999 does not exist"]);
    assert_eq!(dev.ok(&["cancel", &running]), format!("job {running} is being cancelled"));
    dev.until(&running, &["cancelled"]);
    assert_eq!(dev.ok(&["cancel", &running]), format!("job {running} is already cancelled"));
}
