//! Modules that refer to each other in a circle, in any crate of the workspace.
//!
//! What must stay true: modules of one folder, each taken with everything below it, form no circle of references. Then there is an order in
//! which a reader can take them, and each can be moved or tested with those below it alone. A module and its own children may refer to each
//! other (a child has an `impl` of its parent's type, a parent names its children); tests are not looked at.

mod modules;
mod references;
mod tokens;

use crate::Finding;
use anyhow::{Context, Result};
use modules::Modules;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A reference that may close a circle: from, to, why. Modules are named by their path from the workspace's root.
pub type Exception<'a> = (&'a str, &'a str, &'a str);

/// None so far; an exception that is not needed any more is a finding.
const EXCEPTIONS: &[Exception<'_>] = &[];

/// Who refers to whom among the modules of one folder, with the places.
type Edges = BTreeMap<(String, String), Vec<String>>;

/// Every circle of the workspace.
///
/// # Errors
/// When a source cannot be read.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut crates = Vec::new();
    roots(root, root, &mut crates)?;
    crates.sort();
    crates.dedup();
    let mut findings = Vec::new();
    for src in &crates {
        let mut files = Vec::new();
        sources(&root.join(src), "", &mut files)?;
        findings.extend(check_crate(src, &files, EXCEPTIONS));
    }
    Ok(findings)
}

/// The circles of one crate, and the exceptions that it does not need: `src` is its folder, `files` are named by their path below it.
#[must_use]
pub fn check_crate(src: &str, files: &[(String, String)], exceptions: &[Exception<'_>]) -> Vec<Finding> {
    let mut folders = folders(src, files);
    let mut findings = Vec::new();
    for (from, to, _) in exceptions.iter().filter(|(from, ..)| from.starts_with(&format!("{src}/"))) {
        let excepted = folders.iter_mut().find_map(|(folder, edges)| {
            let name = |module: &str| Some(module.strip_prefix(folder.as_str())?.strip_prefix('/')?.to_owned());
            edges.remove(&(name(from)?, name(to)?))
        });
        if excepted.is_none() {
            let text = format!("does not refer to {to}: take the exception out of xtask/src/circles.rs");
            findings.push(Finding::new(*from, text));
        }
    }
    findings.extend(folders.iter().flat_map(|(folder, edges)| circles(folder, edges)));
    findings
}

/// The edges among the modules of each folder of one crate.
fn folders(src: &str, files: &[(String, String)]) -> BTreeMap<String, Edges> {
    let modules = Modules::new(files.iter().map(|(file, text)| (file.as_str(), text.as_str())));
    let mut folders: BTreeMap<String, Edges> = BTreeMap::new();
    for (file, from, reference, to) in modules.references() {
        let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
        // One of them is an ancestor of the other, or they are the same.
        let (Some(one), Some(other)) = (from.get(common), to.get(common)) else { continue };
        let mut folder = vec![src.to_owned()];
        folder.extend_from_slice(&from[..common]);
        let place = format!("{file}:{} {}", reference.line, reference.path.join("::"));
        folders.entry(folder.join("/")).or_default().entry((one.clone(), other.clone())).or_default().push(place);
    }
    folders
}

/// One finding for each group of modules that all lead to each other.
fn circles(folder: &str, edges: &Edges) -> Vec<Finding> {
    let names: BTreeSet<&String> = edges.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached: BTreeMap<&String, BTreeSet<&String>> = names.iter().map(|name| (*name, reach(name, edges))).collect();
    let mut findings = Vec::new();
    let mut told = BTreeSet::new();
    for name in names {
        let circle: BTreeSet<&String> =
            reached[name].iter().copied().filter(|other| reached[other].contains(name)).collect();
        if circle.len() < 2 || !told.insert(circle.clone()) {
            continue;
        }
        let mut text = format!(
            "{} refer to each other in a circle: move what closes it to where it belongs, or pass a value",
            circle.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
        );
        for ((from, to), places) in edges {
            if circle.contains(from) && circle.contains(to) {
                text.push_str(&format!("\n  {from} -> {to}: {}", places.join(", ")));
            }
        }
        findings.push(Finding::new(folder, text));
    }
    findings
}

/// Everything that `start` leads to.
fn reach<'a>(start: &String, edges: &'a Edges) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![start];
    while let Some(from) = next.pop() {
        for (_, to) in edges.keys().filter(|(one, _)| one == from) {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}

/// The folders that hold a crate's root, by their paths from the workspace's root.
fn roots(root: &Path, dir: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if name == "lib.rs" || name == "main.rs" {
            found.push(dir.strip_prefix(root)?.to_string_lossy().into_owned());
        } else if entry.file_type()?.is_dir()
            && !name.starts_with('.')
            && !["target", "shared", "tests"].contains(&name.as_str())
        {
            roots(root, &path, found)?;
        }
    }
    Ok(())
}

/// All sources below `dir`, named by their paths below the folder at which the search began.
fn sources(dir: &Path, below: &str, found: &mut Vec<(String, String)>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let entry = entry?;
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            sources(&entry.path(), &format!("{name}/"), found)?;
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(entry.path()).with_context(|| format!("reading {name}"))?;
            found.push((name, text));
        }
    }
    Ok(())
}
