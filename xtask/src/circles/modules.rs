//! The modules of one crate, and which of them a path leads to.
//!
//! What must stay true: a path is followed through imports and re-exports to the module that defines the item, so that a name which a parent
//! passes on counts for the child it comes from. What leads out of the crate leads nowhere.

use super::references::{Reference, Source, read};
use std::collections::{BTreeMap, BTreeSet};

/// A module by the names from the crate's root; the root itself is empty.
pub(super) type Module = Vec<String>;

/// How many re-exports one path may go through; more than any has.
const HOPS_MAX: usize = 8;

/// All modules of one crate that are not tests.
#[derive(Debug, Default)]
pub(super) struct Modules {
    files: BTreeMap<Module, (String, Source)>,
    all: BTreeSet<Module>,
    /// By module, the paths of its imports under the names that they have there.
    imports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
    /// By module, the modules of which it imports all names.
    globs: BTreeMap<Module, Vec<Vec<String>>>,
}

impl Modules {
    /// Reads files that are named by their path below `src/`.
    pub(super) fn new<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut modules = Modules::default();
        for (file, text) in files {
            if let Some(module) = module_of(file) {
                modules.files.insert(module, (file.to_owned(), read(text)));
            }
        }
        let tests: Vec<Module> = modules
            .files
            .iter()
            .flat_map(|(module, (_, source))| source.tests.iter().map(|name| joined(module, name)))
            .collect();
        modules.files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        for (module, (_, source)) in &modules.files {
            modules.all.insert(module.clone());
            modules.all.extend(source.inline.iter().map(|inside| [module.as_slice(), inside].concat()));
            for reference in &source.references {
                let place = [module.as_slice(), &reference.inside].concat();
                match reference.imported_as.as_deref() {
                    Some("*") => modules.globs.entry(place).or_default().push(reference.path.clone()),
                    Some(name) => {
                        modules.imports.entry(place).or_default().insert(name.to_owned(), reference.path.clone());
                    }
                    None => {}
                }
            }
        }
        modules
    }

    /// Every reference with the file and the module in which it stands and the module to which it leads; what an imported name leads to is
    /// told by its import.
    pub(super) fn references(&self) -> impl Iterator<Item = (&str, Module, &Reference, Module)> {
        self.files.iter().flat_map(move |(module, (file, source))| {
            source.references.iter().filter_map(move |reference| {
                let from = [module.as_slice(), &reference.inside].concat();
                let to = self.lead(&reference.path, &from, 0)?;
                if reference.imported_as.is_none() && self.is_told_by_import(&reference.path, &from, &to) {
                    return None;
                }
                Some((file.as_str(), from, reference, to))
            })
        })
    }

    /// Whether the import of the first name of `path` leads to the same module.
    fn is_told_by_import(&self, path: &[String], from: &[String], to: &Module) -> bool {
        let import = path.first().and_then(|first| self.imports.get(from)?.get(first));
        import.is_some_and(|import| self.lead(import, from, 0).as_ref() == Some(to))
    }

    /// Where `path`, written in module `from`, leads to.
    fn lead(&self, path: &[String], from: &[String], hops: usize) -> Option<Module> {
        let mut at = from.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (at, rest) = (Module::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while let Some(("super", below)) = rest.split_first().map(|(first, below)| (first.as_str(), below)) {
                    at.pop()?;
                    rest = below;
                }
            }
            first => {
                let here = self.all.contains(&joined(from, first));
                let imported = self.imports.get(from).is_some_and(|names| {
                    // `use first::first;` of another crate would lead to itself.
                    names.get(first).is_some_and(|target| target.first().is_some_and(|name| name != first))
                });
                if !here && !imported {
                    return None;
                }
            }
        }
        while let Some((name, below)) = rest.split_first() {
            let child = joined(&at, name);
            if !self.all.contains(&child) {
                return self.named(name, &at, hops);
            }
            (at, rest) = (child, below);
        }
        Some(at)
    }

    /// The module that defines what `at` knows as `name`, where that is no module below it.
    fn named(&self, name: &str, at: &[String], hops: usize) -> Option<Module> {
        if hops == HOPS_MAX {
            return None;
        }
        if let Some(path) = self.imports.get(at).and_then(|names| names.get(name)) {
            return self.lead(path, at, hops + 1);
        }
        let globs = self.globs.get(at).into_iter().flatten();
        let mut targets = globs.filter_map(|path| self.lead(path, at, hops + 1));
        let defines = |module: &Module| {
            self.files.get(module).is_some_and(|(_, source)| source.defined.iter().any(|item| item == name))
        };
        Some(targets.find(defines).unwrap_or_else(|| at.to_vec()))
    }
}

fn joined(module: &[String], name: &str) -> Module {
    let mut child = module.to_vec();
    child.push(name.to_owned());
    child
}

/// The module of a file; `None` for tests, which may use whatever they like, and for other crates of the same package.
fn module_of(file: &str) -> Option<Module> {
    let mut names: Module = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if names.iter().any(|name| name == "tests") || names[0] == "bin" {
        return None;
    }
    if names.last().is_some_and(|name| name == "mod") || matches!(file, "lib.rs" | "main.rs") {
        names.pop();
    }
    Some(names)
}
