//! The command line of the workspace's own checks.

use anyhow::{Context, Result, bail};
use muster_xtask::{Finding, circles, layers, modules, tests_total, tidy};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo run -p muster-xtask -- check | layers | tidy | test [ARGS OF CARGO TEST]";

fn main() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    // Asked when it runs: checkouts may share a build folder, and this binary may have been built in another one.
    let xtask = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").context("run it as: cargo run -p muster-xtask")?);
    let root = xtask.parent().context("xtask has a parent folder")?.to_path_buf();
    match args.next().as_deref() {
        Some("check") => {
            let mut findings = check_layers(&root)?;
            findings.extend(tidy::check(&root)?);
            Ok(report("layers, modules, words and tidy", &findings))
        }
        Some("layers") => Ok(report("layers", &check_layers(&root)?)),
        Some("tidy") => Ok(report("tidy", &tidy::check(&root)?)),
        Some("test") => tests_total::run(&root, &args.collect::<Vec<_>>()),
        _ => bail!(USAGE),
    }
}

fn check_layers(root: &PathBuf) -> Result<Vec<Finding>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: layers::Metadata = serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    let mut findings = layers::check(&metadata);
    findings.extend(modules::check(root)?);
    findings.extend(circles::check(root)?);
    Ok(findings)
}

fn report(what: &str, findings: &[Finding]) -> ExitCode {
    for finding in findings {
        eprintln!("error: {finding}");
    }
    if findings.is_empty() {
        println!("{what}: ok");
        ExitCode::SUCCESS
    } else {
        eprintln!("{what}: {} findings", findings.len());
        ExitCode::FAILURE
    }
}
