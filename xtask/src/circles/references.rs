//! Reads from one file what it refers to by a path, and what it imports.
//!
//! What must stay true: every path is told with its line. A visibility (`pub(in crate::a)`) is no reference. A name of one part is none either:
//! it was imported, and the import is told.

use super::tokens::{Token, tokens, without_tests};

/// A path as it is written, its parts in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    /// The modules inside of the file in which it stands.
    pub(super) inside: Vec<String>,
    /// The parts: `crate`, `a`, `B`.
    pub(super) path: Vec<String>,
    /// Of the file, from one.
    pub(super) line: usize,
    /// For an import, the name under which it is known from there on; `*` for all names of a module.
    pub(super) imported_as: Option<String>,
}

/// What one file says of others.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Paths in code and imports, in the order of the file.
    pub(super) references: Vec<Reference>,
    /// Modules written into this file.
    pub(super) inline: Vec<Vec<String>>,
    /// Modules that are compiled for tests alone.
    pub(super) tests: Vec<String>,
    /// Items that it defines, at whatever depth.
    pub(super) defined: Vec<String>,
}

/// Reads one file.
pub(super) fn read(text: &str) -> Source {
    let all = tokens(text);
    let (code, tests) = without_tests(&all);
    let mut source = Source { tests: tests.into_iter().map(str::to_owned).collect(), ..Source::default() };
    // The modules around what is read, each with the number of braces that were open before it.
    let mut around: Vec<(String, usize)> = Vec::new();
    let (mut braces, mut at) = (0_usize, 0);
    while at < code.len() {
        let inside: Vec<String> = around.iter().map(|(name, _)| name.clone()).collect();
        let next = code.get(at + 1).map_or("", |token| token.text);
        match code[at].text {
            "{" => braces += 1,
            "}" => {
                braces = braces.saturating_sub(1);
                around.pop_if(|(_, before)| *before == braces);
            }
            "pub" if next == "(" && is_visibility(&code, at + 2) => at = closed(&code, at + 1),
            "mod" if code.get(at + 2).is_some_and(|token| token.text == "{") => {
                around.push((next.to_owned(), braces));
                source.inline.push(around.iter().map(|(name, _)| name.clone()).collect());
                at += 1;
            }
            "use" if next != "<" => {
                let end = code[at..].iter().position(|token| token.text == ";").map_or(code.len(), |found| at + found);
                let mut tree = Tree { code: &code[..end], at: at + 1, inside, found: &mut source.references };
                tree.read(&[]);
                at = end;
            }
            "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" => {
                source.defined.push(next.to_owned());
            }
            text if next == "::" && is_name(text) => {
                let (path, end) = path(&code, at);
                if path.len() > 1 {
                    source.references.push(Reference { inside, path, line: code[at].line, imported_as: None });
                }
                at = end - 1;
            }
            _ => {}
        }
        at += 1;
    }
    source
}

/// The names from `at` that `::` joins, and the place after them.
fn path(code: &[Token<'_>], mut at: usize) -> (Vec<String>, usize) {
    let mut parts = vec![code[at].text.to_owned()];
    while let [joint, name, ..] = &code[at + 1..]
        && joint.text == "::"
        && is_name(name.text)
    {
        parts.push(name.text.to_owned());
        at += 2;
    }
    (parts, at + 1)
}

/// The place of the bracket that closes the one at `at`.
fn closed(code: &[Token<'_>], at: usize) -> usize {
    code[at..].iter().position(|token| token.text == ")").map_or(code.len(), |found| at + found)
}

/// Whether the bracket before `at` belongs to a `pub`, and is no type of a field in brackets.
fn is_visibility(code: &[Token<'_>], at: usize) -> bool {
    let text = |at: usize| code.get(at).map(|token| token.text);
    text(at) == Some("in") || (matches!(text(at), Some("crate" | "super" | "self")) && text(at + 1) == Some(")"))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// An import while it is read: `a::{b, c::{self, d as e}, f::*}`.
struct Tree<'a> {
    code: &'a [Token<'a>],
    at: usize,
    inside: Vec<String>,
    found: &'a mut Vec<Reference>,
}

impl Tree<'_> {
    fn text(&self) -> &str {
        self.code.get(self.at).map_or("", |token| token.text)
    }

    /// Reads one branch below `prefix`, up to the comma or the brace after it.
    fn read(&mut self, prefix: &[String]) {
        let mut parts = prefix.to_vec();
        let line = self.code.get(self.at).map_or(0, |token| token.line);
        loop {
            match self.text() {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(), "}" | "") {
                        self.read(&parts);
                        if self.text() == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    return self.found(parts, line, "*".to_owned());
                }
                "as" => {
                    self.at += 1;
                    let name = self.text().to_owned();
                    self.at += 1;
                    return self.found(parts, line, name);
                }
                "self" if !parts.is_empty() => self.at += 1,
                text if is_name(text) => {
                    parts.push(text.to_owned());
                    self.at += 1;
                }
                _ => {
                    let name = parts.last().cloned().unwrap_or_default();
                    return self.found(parts, line, name);
                }
            }
        }
    }

    fn found(&mut self, path: Vec<String>, line: usize, name: String) {
        self.found.push(Reference { inside: self.inside.clone(), path, line, imported_as: Some(name) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_and_paths_are_read_with_their_lines() {
        let text = "pub(in crate::z) use crate::a::{self, B as C,\n d::*};\nmod m { fn f() { super::g::<u8>(); } }\nfn h(i: self::J) {}\nstruct K(pub (crate::L, u8));";
        let found: Vec<(String, usize, Option<String>)> = read(text)
            .references
            .into_iter()
            .map(|found| ([found.inside, found.path].concat().join("/"), found.line, found.imported_as))
            .collect();
        let import = |path: &str, line, name: &str| (path.to_owned(), line, Some(name.to_owned()));
        let expected = [
            import("crate/a", 1, "a"),
            import("crate/a/B", 1, "C"),
            import("crate/a/d", 2, "*"),
            ("m/super/g".to_owned(), 3, None),
            ("self/J".to_owned(), 4, None),
            ("crate/L".to_owned(), 5, None),
        ];
        assert_eq!(found, expected);
    }
}
