//! `muster logs`: the end of a long output, earlier attempts, all ranks.

use crate::site::Site;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_end_of_a_long_output_is_kept_and_what_was_dropped_is_said_once() {
    let site = Site::start();
    let _agent = site.agent("agent", &["--data", "data"]);
    // Some 40 MB, numbered line by line, with the traceback at the end.
    let script = "echo first; seq 1 5000000; echo Traceback; exit 1";
    let id = site.submit(&["--gpus", "1", "--", "sh", "-c", script]);
    site.until_job(&id, "failed");
    let read = site.muster(&["logs", &id]);
    assert!(read.status.success(), "{}", text(&read.stderr));
    let (out, said) = (text(&read.stdout), text(&read.stderr));
    assert!(
        out.starts_with("first\n1\n2\n") && out.ends_with("\n4999999\n5000000\nTraceback\n"),
        "{} bytes",
        out.len()
    );
    assert!(out.len() <= 16 << 20, "{} bytes", out.len());
    assert_eq!(said.matches("were dropped here").count(), 1, "{said}");
}

#[test]
fn earlier_attempts_and_all_ranks_can_be_read() {
    let site = Site::start();
    let _agent = site.agent("agent", &["--data", "data"]);
    // A rank that fails ends the others: each waits until both have said everything.
    let said = site.path("said").display().to_string();
    let both = format!("[ -e {said}.$MUSTER_ATTEMPT.0 ] && [ -e {said}.$MUSTER_ATTEMPT.1 ]");
    let script = format!(
        "echo attempt $MUSTER_ATTEMPT rank $RANK; echo done; touch {said}.$MUSTER_ATTEMPT.$RANK; \
         until {both}; do sleep 0.05; done; [ $MUSTER_ATTEMPT != 1 ]"
    );
    let job = ["--gpus", "1", "--tasks", "2", "--retries", "1", "--", "sh", "-c", &script];
    let id = site.submit(&job);
    let job = site.until_job(&id, "completed");
    assert_eq!(job["attempt"], 2);
    assert_eq!(site.said(&["logs", &id, "--attempt", "1", "--rank", "1"]), "attempt 1 rank 1\ndone\n");
    assert_eq!(site.said(&["logs", &id]), "attempt 2 rank 0\ndone\n");
    assert_eq!(
        site.said(&["logs", &id, "--all-ranks", "--attempt", "2"]),
        "0: attempt 2 rank 0\n0: done\n1: attempt 2 rank 1\n1: done\n"
    );
    let refused = site.muster(&["logs", &id, "--attempt", "3"]);
    assert!(
        text(&refused.stderr).contains("attempt: is 3, but only attempts 1 to 2 are kept"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn all_ranks_are_followed_line_by_line() {
    let site = Site::start();
    let _agent = site.agent("agent", &["--data", "data"]);
    let script = "for i in 1 2 3 4 5; do printf 'rank '; sleep 0.1; echo $RANK line $i; done";
    let id = site.submit(&["--gpus", "1", "--tasks", "3", "--", "sh", "-c", script]);
    site.until(&format!("job {id} to start"), || {
        site.job(&id)["state"].as_str().filter(|state| *state != "pending").map(drop)
    });
    let said = site.said(&["logs", &id, "--all-ranks", "--follow"]);
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    let expected: Vec<String> =
        (0..3).flat_map(|rank| (1..=5).map(move |line| format!("{rank}: rank {rank} line {line}"))).collect();
    assert_eq!(lines, expected, "no line is torn or lost");
}
