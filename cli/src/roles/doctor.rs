//! `muster node doctor`: what this machine gives to isolate tasks.
//!
//! What must stay true: each line was tried just now, by the code that a node uses; a line that does not hold says what to do.

use crate::args::node::Doctor;
use crate::failure::Failure;
use crate::output::{Block, Out};
use crate::roles::isolation::shim;
use muster_agent::gpu::nvml::doctor::{Setting, settings};
use muster_agent::sandbox::probe::{Findings, Proof, find_out, forget};
use serde::Serialize;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

/// What is printed for scripts.
#[derive(Debug, Serialize)]
struct Seen {
    #[serde(flatten)]
    isolation: Findings,
    /// How the driver of the GPUs was set up.
    driver: Vec<SettingView>,
}

#[derive(Debug, Serialize)]
struct SettingView {
    what: &'static str,
    holds: bool,
    seen: String,
    remedy: &'static str,
}

impl From<Setting> for SettingView {
    fn from(Setting { what, holds, seen, remedy }: Setting) -> Self {
        SettingView { what, holds, seen, remedy: if holds { "" } else { remedy } }
    }
}

/// Prints a table. Something that does not hold is no failure of this command.
///
/// # Errors
/// When nothing could be tried.
pub fn run(args: &Doctor, out: &Out) -> Result<(), Failure> {
    let failed = |error| Failure::io("trying what this machine gives", error);
    // Whoever else can write there must not have made it before.
    let folder = std::env::temp_dir().join(format!("muster-doctor-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
    let shim = shim().map_err(|error| failed(std::io::Error::other(error)))?;
    let found = find_out(&shim, &folder, &format!("doctor-{}", std::process::id())).map_err(failed)?;
    forget(&found);
    let _ = std::fs::remove_dir_all(&folder);
    let driver = settings(&args.driver_root, &args.nvml_library).into_iter().map(SettingView::from).collect();
    let seen = Seen { isolation: found, driver };
    out.show(&seen, |_| vec![Block::Text(text(&seen))])
}

fn text(Seen { isolation, driver }: &Seen) -> String {
    let all = isolation.proofs.iter().all(|proof| proof.holds);
    let mut lines = vec![match (isolation.is_full, all) {
        (true, true) => "isolation of tasks: full".to_owned(),
        _ if !isolation.has_sandboxes() => "isolation of tasks: none".to_owned(),
        _ => "isolation of tasks: in part".to_owned(),
    }];
    let of_proof = |proof: &Proof| [&proof.what, &proof.seen, &proof.remedy].map(Clone::clone);
    lines.extend(listed(isolation.proofs.iter().map(|proof| (proof.holds, of_proof(proof))).collect()));
    if !driver.is_empty() {
        lines.push("driver of the GPUs:".to_owned());
        let of_setting = |one: &SettingView| [one.what.to_owned(), one.seen.clone(), one.remedy.to_owned()];
        lines.extend(listed(driver.iter().map(|one| (one.holds, of_setting(one))).collect()));
    }
    lines.join("\n")
}

/// A line for each, and one for its remedy.
fn listed(rows: Vec<(bool, [String; 3])>) -> Vec<String> {
    let wide = rows.iter().map(|(_, [what, ..])| what.len()).max().unwrap_or_default();
    let mut lines = Vec::new();
    for (holds, [what, seen, remedy]) in rows {
        lines.push(format!("  {} {what:wide$}  {seen}", if holds { "yes" } else { "no " }));
        if !remedy.is_empty() {
            lines.push(format!("      {:wide$}  remedy: {remedy}", ""));
        }
    }
    lines
}
