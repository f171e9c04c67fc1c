//! Runs every test of the workspace and says at the end what came of them, in one line.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// What the runners' closing lines say, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Closing lines seen.
    pub runners: u64,
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were not run.
    pub ignored: u64,
}

impl Total {
    /// Takes in one line of a runner's output: `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    pub fn take(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        self.runners += 1;
        let counts = rest.split_once(". ").map_or(rest, |(_, counts)| counts);
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let count = words.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                Some("ignored") => self.ignored += count,
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Total { runners, passed, failed, ignored } = self;
        write!(f, "tests: {passed} passed, {failed} failed, {ignored} ignored, in {runners} runners")
    }
}

/// Runs `cargo nextest run` where it is installed, otherwise `cargo test`, with `args` after the usual ones.
///
/// # Errors
/// When cargo cannot be started or its output not be read.
pub fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let has_nextest = Command::new(&cargo)
        .args(["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if has_nextest {
        // It prints a summary of its own.
        let status = Command::new(&cargo)
            .args(["nextest", "run", "--workspace", "--no-fail-fast"])
            .args(args)
            .current_dir(root)
            .status()
            .context("running cargo nextest")?;
        return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let mut child = Command::new(&cargo)
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(args)
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .context("running cargo test")?;
    let output = child.stdout.take().context("cargo test has an output")?;
    let mut total = Total::default();
    let mut stdout = std::io::stdout().lock();
    for line in BufReader::new(output).lines() {
        let line = line.context("reading cargo test")?;
        total.take(&line);
        writeln!(stdout, "{line}")?;
    }
    let status = child.wait().context("waiting for cargo test")?;
    writeln!(stdout, "{total}")?;
    let good = status.success() && total.failed == 0 && total.passed > 0;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
