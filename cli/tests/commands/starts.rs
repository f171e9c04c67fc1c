//! When jobs may start: held, later, after others, by a deadline.

use crate::common::{Dev, Said};
use crate::waiting::wait_for;

/// Submits a job that needs no GPU; its id.
fn submit(dev: &Dev, args: &[&str], script: &str) -> String {
    dev.ok(&[&["submit", "--cpus", "0.1"], args, &["--", "sh", "-c", script]].concat())
}

fn refused(dev: &Dev, args: &[&str]) -> Said {
    dev.run(&[&["submit", "--cpus", "0.1"], args, &["--", "true"]].concat())
}

/// Why a job is pending, as the list says it.
fn listed(dev: &Dev, id: &str) -> (String, String) {
    let jobs = dev.run(&["jobs", "-o", "json"]).json();
    let jobs = jobs.as_array().expect("a list").clone();
    let number: Option<u64> = id.parse().ok();
    let job = jobs.iter().find(|job| job["id"].as_u64() == number).unwrap_or_else(|| panic!("{id}: {jobs:?}"));
    let text = |key: &str| job[key].as_str().unwrap_or_default().to_owned();
    (text("reason_code"), text("reason"))
}

#[test]
fn jobs_start_when_they_are_eligible_and_say_why_they_are_not() {
    let dev = Dev::start(&["--nodes", "1"]);
    // A new cluster reaches the feature level of its voters within a second.
    wait_for("the feature level", || refused(&dev, &["--begin", "now"]).code == 0);

    // Held, by whom.
    let held = submit(&dev, &["--hold"], "true");
    assert_eq!(listed(&dev, &held), ("held_by_user".to_owned(), "held by user".to_owned()));
    assert!(dev.ok(&["explain", &held]).contains("release it with `muster release`"));
    assert_eq!(dev.ok(&["hold", &held, "--admin"]), format!("job {held} is held"));
    dev.refused(&["release", &held], 5, &["an administrator holds it"]);

    // A chain, and what can never start.
    let first = submit(&dev, &[], "sleep 3");
    let after = format!("afterok:{first}");
    let ok = submit(&dev, &["--dependency", &after], "true");
    assert_eq!(listed(&dev, &ok), ("dependency".to_owned(), format!("waits for job {first} (afterok)")));
    let started = submit(&dev, &["--dependency", &format!("after:{first}")], "true");
    let never = submit(&dev, &["--dependency", &format!("afternotok:{first}")], "true");
    let killed = submit(&dev, &["--dependency", &format!("afternotok:{first}"), "--kill-on-invalid-dep"], "true");
    let last = submit(&dev, &["--dependency", &format!("afterok:{ok},afterany:{killed}")], "true");
    dev.until(&started, &["completed"]);
    for id in [&first, &ok, &last] {
        dev.until(id, &["completed"]);
    }
    assert_eq!(listed(&dev, &never).0, "dependency_never_satisfied");
    dev.until(&killed, &["cancelled"]);
    assert!(dev.ok(&["explain", &killed]).contains("dependency can never be satisfied"));
    // Of finished jobs the disk alone knows.
    let late = submit(&dev, &["--dependency", &after], "true");
    dev.until(&late, &["completed"]);
    let too_late = submit(&dev, &["--dependency", &format!("afternotok:{first}")], "true");
    assert_eq!(listed(&dev, &too_late).0, "dependency_never_satisfied");
    let unknown = refused(&dev, &["--dependency", "afterok:99999"]);
    assert!(unknown.code == 2 && unknown.err.contains("which does not exist"), "{} {}", unknown.code, unknown.err);

    // One of several is enough.
    let one = submit(&dev, &["--dependency", &format!("afternotok:{first}?afterok:{ok}")], "true");
    dev.until(&one, &["completed"]);
    let waits = submit(&dev, &["--dependency", &format!("afterok:{held}?afternotok:{held}")], "true");
    let (code, text) = listed(&dev, &waits);
    assert!(code == "dependency" && text.contains("or another of its dependencies"), "{text}");
    let shown = dev.run(&["job", &waits, "-o", "json"]).json();
    assert_eq!(shown["dependencies"], serde_json::json!([format!("afterok:{held}?afternotok:{held}")]), "{shown}");
    dev.ok(&["cancel", &waits]);
    let mixed = refused(&dev, &["--dependency", &format!("afterok:{first}?afterok:{ok},afterok:{held}")]);
    assert!(mixed.code == 2 && mixed.err.contains("by ? and by commas"), "{}", mixed.err);
    let arrays = refused(&dev, &["--dependency", &format!("aftercorr:{first}?afterok:{ok}")]);
    assert!(arrays.code == 2 && arrays.err.contains("is aftercorr"), "{}", arrays.err);

    // Time.
    let later = submit(&dev, &["--begin", "now+3"], "true");
    let (code, text) = listed(&dev, &later);
    assert!(code == "begin_time" && text.starts_with("begins at 20"), "{text}");
    let stopped = submit(&dev, &["--deadline", "now+4"], "sleep 600");
    let never_begins = submit(&dev, &["--deadline", "now+2", "--hold"], "true");
    dev.until(&later, &["completed"]);
    dev.until(&stopped, &["deadline"]);
    dev.until(&never_begins, &["deadline"]);
    assert!(dev.ok(&["explain", &never_begins]).contains("could not end by its deadline"));
    let hopeless = refused(&dev, &["--deadline", "now+60", "--time", "1h"]);
    assert!(hopeless.code == 2 && hopeless.err.contains("deadline"), "{}", hopeless.err);

    // One after the other.
    let alone: Vec<String> =
        (0..2).map(|_| submit(&dev, &["--dependency", "singleton", "--name", "alone"], "sleep 1")).collect();
    assert_eq!(listed(&dev, &alone[1]).0, "singleton");
    alone.iter().for_each(|id| dev.until(id, &["completed"]));

    assert_eq!(listed(&dev, &held).0, "held_by_admin");
    dev.ok(&["release", &held, "--admin"]);
    dev.until(&held, &["completed"]);
}

#[test]
fn an_array_is_one_line_for_what_has_not_started() {
    let dev = Dev::start(&["--nodes", "1"]);
    wait_for("the feature level", || refused(&dev, &["--begin", "now"]).code == 0);
    let script = "test \"$MUSTER_ARRAY_JOB_ID\" -gt 0 && test \"$MUSTER_ARRAY_TASK_ID\" != 7 && sleep 0.2";
    let array = submit(&dev, &["--array", "0-9%3"], script);
    let after = submit(&dev, &["--dependency", &format!("afternotok:{array}")], "true");
    let held = submit(&dev, &["--array", "0-99", "--hold", "--name", "held"], "sleep 600");
    let jobs = dev.run(&["jobs", "--name", "held", "-o", "json"]).json();
    assert_eq!(jobs.as_array().map(Vec::len), Some(1), "one line: {jobs}");
    assert_eq!(jobs[0]["array"]["left"], "0-99");
    assert_eq!(listed(&dev, &held).0, "held_by_user");
    dev.ok(&["array-limit", &held, "2"]);
    dev.ok(&["cancel", &held, "--tasks", "0-89"]);
    dev.ok(&["release", &held]);
    let live = || dev.run(&["jobs", "--name", "held", "--state", "running", "-o", "json"]).json();
    wait_for("two tasks", || live().as_array().map(Vec::len) == Some(2));
    let indices: Vec<u64> =
        live().as_array().expect("a list").iter().filter_map(|job| job["array_index"].as_u64()).collect();
    assert_eq!(indices, [90, 91]);
    dev.ok(&["cancel", &held]);
    dev.until(&held, &["cancelled"]);

    // Task 7 fails, and so does the array; what waits for that starts.
    dev.until(&array, &["failed"]);
    let ended = dev.run(&["job", &array, "-o", "json"]).json();
    assert_eq!((&ended["array"]["completed"], &ended["array"]["failed"]), (&"0-6,8-9".into(), &"7".into()));
    assert!(ended["reason"].as_str().is_some_and(|why| why.contains("1 of 10 tasks")), "{ended}");
    dev.until(&after, &["completed"]);
}

#[test]
fn a_comment_is_kept_and_changed() {
    let dev = Dev::start(&["--nodes", "1"]);
    wait_for("the feature level", || refused(&dev, &["--comment", "OPS-1", "--hold"]).code == 0);
    let job = submit(&dev, &["--hold", "--comment", "for OPS-12"], "true");
    let comment = || dev.run(&["job", &job, "-o", "json"]).json()["comment"].clone();
    assert_eq!(comment(), "for OPS-12");
    assert!(dev.ok(&["job", &job]).contains("for OPS-12"));
    dev.ok(&["update", &job, "--comment", "for OPS-13"]);
    assert_eq!(comment(), "for OPS-13");
    dev.ok(&["update", &job, "--comment", ""]);
    assert_eq!(comment(), serde_json::Value::Null);
    let lines = refused(&dev, &["--comment", "a\nb"]);
    assert!(lines.code == 2 && lines.err.contains("write one line"), "{}", lines.err);
    dev.ok(&["release", &job]);
    dev.until(&job, &["completed"]);
}
