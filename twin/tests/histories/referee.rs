//! The fairness referee, an independent program in Python, judges many logs in one process.
//!
//! `MUSTER_TOOLS` names its folder, `../shared/tools` is looked at otherwise. Without it or Python the tests say so and pass; where `MUSTER_CI` is set
//! they fail. Tests of other crates use this file too.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const DRIVER: &str = r#"
import json, sys
sys.path.insert(0, sys.argv[1])
from fairness_referee import Referee
def logs(lines):
    log = []
    for line in lines:
        if line == "\n":
            yield log
            log = []
        else:
            log.append(line)
for number, log in enumerate(logs(sys.stdin)):
    referee = Referee()
    referee.judge(log)
    found = [f"{f['check']}, line {f['line']} (rev {f['rev']}): {f['text']}" for f in referee.found if not f["warning"]]
    print(json.dumps([number, found, referee.counts]))
"#;

fn folder() -> Option<PathBuf> {
    let beside = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is") + "/../../shared/tools";
    let folder = std::env::var_os("MUSTER_TOOLS").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let python = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    let there = folder.join("fairness_referee.py").is_file();
    if !there || !python {
        let missing = format!("{}/fairness_referee.py or python3 is not there; set MUSTER_TOOLS", folder.display());
        assert!(std::env::var_os("MUSTER_CI").is_none(), "{missing}");
        println!("not tested: {missing}");
        return None;
    }
    Some(folder)
}

/// What the referee finds in each log; nothing where it is not there.
pub(crate) fn judge(logs: &[String]) -> Option<Vec<Vec<String>>> {
    let folder = folder()?;
    let mut python = Command::new("python3")
        .args(["-c", DRIVER])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut stdin = python.stdin.take().expect("it is piped");
    let all = logs.join("\n") + "\n";
    let writer = std::thread::spawn(move || stdin.write_all(all.as_bytes()));
    let output = python.wait_with_output().expect("it ends");
    writer.join().expect("the writer ends").expect("it reads all");
    assert!(output.status.success(), "the referee failed");
    let text = String::from_utf8(output.stdout).expect("text");
    let found: Vec<(usize, Vec<String>, serde_json::Value)> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(found.len(), logs.len(), "each log is judged");
    Some(found.into_iter().map(|(_, found, _)| found).collect())
}
