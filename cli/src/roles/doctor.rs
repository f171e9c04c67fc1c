//! `muster node doctor`: what this machine gives to isolate tasks.
//!
//! What must stay true: each line was tried just now, by the code that a node uses; a line that does not hold says what to do.

use crate::failure::Failure;
use crate::output::{Block, Out};
use crate::roles::isolation::shim;
use muster_agent::sandbox::probe::{Findings, find_out, forget};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

/// Prints a table. Something that does not hold is no failure of this command.
///
/// # Errors
/// When nothing could be tried.
pub fn run(out: &Out) -> Result<(), Failure> {
    let failed = |error| Failure::io("trying what this machine gives", error);
    // Whoever else can write there must not have made it before.
    let folder = std::env::temp_dir().join(format!("muster-doctor-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
    let shim = shim().map_err(|error| failed(std::io::Error::other(error)))?;
    let found = find_out(&shim, &folder, &format!("doctor-{}", std::process::id())).map_err(failed)?;
    forget(&found);
    let _ = std::fs::remove_dir_all(&folder);
    out.show(&found, |_| vec![Block::Text(table(&found))])
}

fn table(found: &Findings) -> String {
    let wide = found.proofs.iter().map(|proof| proof.what.len()).max().unwrap_or_default();
    let mut lines = vec![match (found.is_full, found.proofs.iter().all(|proof| proof.holds)) {
        (true, true) => "isolation of tasks: full".to_owned(),
        _ if !found.has_sandboxes() => "isolation of tasks: none".to_owned(),
        _ => "isolation of tasks: in part".to_owned(),
    }];
    for proof in &found.proofs {
        let mark = if proof.holds { "yes" } else { "no " };
        lines.push(format!("  {mark} {:wide$}  {}", proof.what, proof.seen));
        if !proof.remedy.is_empty() {
            lines.push(format!("      {:wide$}  remedy: {}", "", proof.remedy));
        }
    }
    lines.join("\n")
}
