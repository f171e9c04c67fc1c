//! The modules of the scheduler's core, and which of them may use which, checked from the paths in their code.
//!
//! What must stay true: whoever reads a module needs to know only those to which it may refer; no two of them refer to each other. The crate's
//! layers ([`crate::layers`]) say the same of crates.

use crate::Finding;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The sources.
const CORE: &str = "scheduler-shard/core/src";

/// Each module below [`CORE`], from the bottom, with those that it may refer to.
const MODULES: &[(&str, &[&str])] = &[
    ("by_id", &[]),
    ("fractions", &[]),
    ("job_class", &["fractions"]),
    ("fleet", &["by_id", "fractions", "job_class"]),
    ("search", &["fleet", "fractions", "job_class"]),
    ("queue", &["job_class"]),
    ("proposal", &["search"]),
    ("view", &["by_id", "fleet", "job_class", "proposal", "queue", "search"]),
    ("planner", &["fleet", "job_class", "queue", "search", "view"]),
    ("policy", &["fleet", "job_class", "planner", "proposal", "queue", "search", "view"]),
    ("pass", &["policy", "proposal", "search", "view"]),
    ("explain", &["fleet", "job_class", "policy", "proposal", "queue", "search", "view"]),
];

/// Of the policies, those that others may use.
const SHARED_POLICIES: &[&str] = &["gate", "guard", "if_ended"];

/// Every broken rule.
///
/// # Errors
/// When a source cannot be read.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let core = root.join(CORE);
    for (file, text) in sources(&core, &core)? {
        if file == "lib.rs" || file.split('/').any(|part| part.trim_end_matches(".rs") == "tests") {
            continue;
        }
        findings.extend(check_file(&file, &text));
    }
    findings.sort();
    Ok(findings)
}

/// The rules that one file breaks; `file` is its path below [`CORE`].
#[must_use]
pub fn check_file(file: &str, text: &str) -> Vec<Finding> {
    let place = format!("{CORE}/{file}");
    let mut parts = file.split('/').map(|part| part.trim_end_matches(".rs"));
    let module = parts.next().unwrap_or_default();
    let Some((_, allowed)) = MODULES.iter().find(|(name, _)| *name == module) else {
        return vec![Finding::new(
            place,
            format!("module {module} is not in the list: name it in xtask/src/modules.rs"),
        )];
    };
    let mut findings = Vec::new();
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    for other in referred(&code, "crate::") {
        if other != module && !allowed.contains(&other.as_str()) {
            let text = format!(
                "{module} refers to {other}, which it may not: move the code, or the rule in xtask/src/modules.rs"
            );
            findings.push(Finding::new(place.clone(), text));
        }
    }
    let policy = parts.next().filter(|_| module == "policy");
    for other in policy.into_iter().flat_map(|_| referred(&code, "crate::policy::")) {
        if Some(other.as_str()) != policy && !SHARED_POLICIES.contains(&other.as_str()) {
            findings
                .push(Finding::new(place.clone(), format!("policies do not use each other: this one uses {other}")));
        }
    }
    findings
}

/// The names that follow `prefix`.
fn referred(code: &str, prefix: &str) -> BTreeSet<String> {
    let after = code.match_indices(prefix).map(|(at, _)| &code[at + prefix.len()..]);
    let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    after.map(name).filter(|name| !name.is_empty()).collect()
}

/// All sources below `dir`, with their paths below `core`.
fn sources(dir: &Path, core: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let path = entry.context("listing sources")?.path();
        if path.is_dir() {
            found.extend(sources(&path, core)?);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let below = path.strip_prefix(core).unwrap_or(&path).display().to_string();
            found.push((below, text));
        }
    }
    Ok(found)
}
