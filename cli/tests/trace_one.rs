//! `muster bench trace-one` on a real cluster: every step of a job is stamped by some process, and the steps can be joined.

use serde_json::Value;
use std::process::Command;

#[test]
fn every_step_of_a_job_and_of_a_submission_is_seen() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["bench", "--json", "--under"])
        .arg(folder.path())
        .args(["trace-one", "--rate", "20", "--seconds", "1"])
        .output()
        .expect("muster bench");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let tables: Vec<Value> = serde_json::from_slice(&run.stdout).expect("a list of tables");
    assert_eq!(tables.len(), 2, "one of jobs, one of submissions");
    for (table, steps) in tables.iter().zip([24, 8]) {
        let title = table["title"].as_str().expect("a title");
        assert!(!title.contains("(0 of"), "of no job all steps are known: {title}");
        assert_eq!(table["columns"], serde_json::json!(["step", "p50", "p90", "p99"]));
        assert_eq!(table["rows"].as_array().expect("rows").len(), steps);
    }
}
