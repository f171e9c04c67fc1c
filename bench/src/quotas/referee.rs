//! Hands event logs to the independent judge of fairness and reads its verdict.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Findings that are kept with their text.
const FINDINGS_KEPT_MAX: usize = 3;

/// What the referee says of one log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Broken rules.
    pub violations: u64,
    /// Doubtful decisions.
    pub warnings: u64,
    /// Rules with findings and how many.
    pub checks: Vec<(String, u64)>,
    /// The first findings.
    pub findings: Vec<String>,
    /// The longest time that demand which a floor account covers waited, by its own definition.
    pub floor_longest_s: f64,
    /// The same without the time in which a claim waited for its victims.
    pub undecided_longest_s: f64,
    /// Jain's index of what was charged as burst, weighted by it, over all groups of siblings.
    pub jain: Option<f64>,
    /// GPU time of attempts that finished, over capacity, from the log's beginning to its end.
    pub goodput: f64,
    /// Most preemptions of one job.
    pub most_often: u64,
}

/// Why no log can be judged, if so.
pub(super) fn unusable(program: Option<&Path>) -> Option<String> {
    let Some(program) = program else { return Some("no referee was given (--referee)".to_owned()) };
    if !program.is_file() {
        return Some(format!("{} is not there", program.display()));
    }
    match Command::new("python3").arg("--version").output() {
        Ok(output) if output.status.success() => None,
        _ => Some("python3 cannot be run".to_owned()),
    }
}

/// Judges one log.
pub(super) fn judge(program: &Path, log: &Path) -> Result<Verdict> {
    let output = Command::new("python3").arg(program).arg(log).arg("--json").output().context("running the referee")?;
    // 1: it found violations, which its answer names.
    if !matches!(output.status.code(), Some(0 | 1)) {
        bail!("the referee could not read {}: {}", log.display(), String::from_utf8_lossy(&output.stderr));
    }
    let answer: Value = serde_json::from_slice(&output.stdout).context("the referee's answer")?;
    Ok(verdict(&answer))
}

fn verdict(answer: &Value) -> Verdict {
    let report = &answer["report"];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let checks = answer["checks"].as_object().into_iter().flatten();
    let findings = answer["findings"].as_array().into_iter().flatten();
    let floors = || report["floor_deficits"].as_array().into_iter().flatten();
    let longest = |field: &str| floors().map(|row| number(&row[field])).max().unwrap_or(0) as f64 / 1000.0;
    let jain: Vec<(f64, f64)> = report["jain"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|row| Some((row["mean"].as_f64()?, row["windows"].as_f64()?)))
        .collect();
    let windows: f64 = jain.iter().map(|(_, windows)| windows).sum();
    Verdict {
        violations: number(&answer["violations"]),
        warnings: number(&answer["warnings"]),
        checks: checks.map(|(name, row)| (name.clone(), number(&row["found"]))).filter(|(_, n)| *n > 0).collect(),
        findings: findings.take(FINDINGS_KEPT_MAX).map(|one| format!("{}: {}", one["check"], one["text"])).collect(),
        floor_longest_s: longest("longest_ms"),
        undecided_longest_s: longest("undecided_longest_ms"),
        jain: (windows > 0.0).then(|| jain.iter().map(|(mean, n)| mean * n).sum::<f64>() / windows),
        goodput: report["goodput"].as_f64().unwrap_or(0.0),
        most_often: number(&report["most_often_one_job"]),
    }
}
