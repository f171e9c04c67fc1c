//! `muster bench scale` and `muster bench overload` on real clusters, small: every phase is passed through and has its rows.

use serde_json::Value;
use std::process::Command;

fn bench(arguments: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let run = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["bench", "--json", "--under"])
        .arg(folder.path())
        .args(arguments)
        .output()
        .expect("muster bench");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).expect("a list of tables")
}

fn rows(table: &Value) -> Vec<&Value> {
    table["rows"].as_array().expect("rows").iter().collect()
}

#[test]
fn a_small_fleet_is_filled_measured_and_restarted() {
    let small = ["--nodes", "10", "--waiting", "20", "--finished", "30", "--teams", "3", "--users", "6"];
    let tables = bench(&[&["scale", "--seconds", "2", "--rounds", "1"], &small[..]].concat());
    assert_eq!(tables.len(), 3);
    let title = tables[0]["title"].as_str().expect("a title");
    assert!(title.contains("10 agents, 48 running and 20 waiting jobs, 30 finished, 3 teams, 6 users"), "{title}");
    let sessions: Vec<&str> = rows(&tables[1]).iter().filter_map(|row| row["what"].as_str()).collect();
    assert!(sessions.iter().any(|what| what.contains("control-1") && what.contains("10 sessions")), "{sessions:?}");
    assert!(sessions.iter().filter(|what| what.contains("0 sessions")).count() >= 2, "{sessions:?}");
    assert_eq!(rows(&tables[2]).len(), 5, "{}", tables[2]);
}

#[test]
fn overload_is_answered_and_counted() {
    let tables = bench(&["overload", "--clients", "2", "--seconds", "0.3", "--fault-seconds", "1"]);
    assert_eq!(tables.len(), 2);
    let sweep = rows(&tables[0]);
    assert!(sweep.len() >= 8, "three steps, three times the knee, three offered rates, the knee again: {sweep:?}");
    assert!(sweep.iter().all(|row| !row["anchor"].as_str().expect("refusals").is_empty()), "{sweep:?}");
    let faults = rows(&tables[1]);
    let beyond = faults.last().and_then(|row| row["anchor"].as_str()).expect("the last row");
    assert!(faults.len() == 6 && beyond.contains("accepted, refused:"), "{faults:?}");
}
