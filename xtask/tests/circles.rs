//! Planted circles are found with their places, what is no circle is let be, and the workspace has none.

use muster_xtask::circles::{Exception, check, check_crate};
use std::path::Path;

fn found(files: &[(&str, &str)]) -> Vec<String> {
    found_except(files, &[])
}

fn found_except(files: &[(&str, &str)], exceptions: &[Exception<'_>]) -> Vec<String> {
    let files: Vec<(String, String)> =
        files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
    check_crate("a/src", &files, exceptions).iter().map(ToString::to_string).collect()
}

#[test]
fn the_workspace_has_no_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let found: Vec<String> = check(root).expect("readable").iter().map(ToString::to_string).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_circle_is_found_with_every_edge_and_line() {
    let found = found(&[
        ("lib.rs", "mod one; mod two; mod three; mod alone;"),
        ("one.rs", "use crate::alone::A;\nuse crate::two::{self, B};\nfn f() { two::g(); crate::two::h() }"),
        ("two/mod.rs", "mod deep;"),
        ("two/deep.rs", "//! Nothing.\n\nfn f() -> super::super::three::C {}"),
        ("three.rs", "use super::one::D;"),
        ("alone.rs", "// use crate::one::D;"),
    ]);
    let expected = "a/src: one, three, two refer to each other in a circle: move what closes it to where it belongs, or pass a value
  one -> two: one.rs:2 crate::two, one.rs:2 crate::two::B, one.rs:3 crate::two::h
  three -> one: three.rs:1 super::one::D
  two -> three: two/deep.rs:3 super::super::three::C";
    assert_eq!(found, [expected]);
}

#[test]
fn a_name_that_a_parent_passes_on_counts_for_the_child_it_comes_from() {
    let passed_on =
        ["pub use one::A; mod one; mod two;", "use one::A; mod one; mod two;", "pub use one::*; mod one; mod two;"];
    for parent in passed_on {
        let found = found(&[
            ("lib.rs", "mod p;"),
            ("p/mod.rs", parent),
            ("p/one.rs", "pub struct A; fn f() { super::two::g() }"),
            ("p/two.rs", "use super::A;"),
        ]);
        assert_eq!(found.len(), 1, "{parent}: {found:?}");
        assert!(found[0].starts_with("a/src/p: one, two refer"), "{found:?}");
    }
}

#[test]
fn what_is_no_circle_is_let_be() {
    let right: &[&[(&str, &str)]] = &[
        // A child and its parent.
        &[("p.rs", "mod c; use c::A; pub struct P;"), ("p/c.rs", "use super::P; impl crate::p::P {}")],
        // Tests.
        &[("one.rs", "use crate::two::A;"), ("two.rs", "#[cfg(test)]\nmod tests { use crate::one::B; }")],
        &[
            ("one.rs", "use crate::two::A;"),
            ("two.rs", "#[cfg(test)]\nmod check;"),
            ("two/check.rs", "use crate::one::B;"),
        ],
        &[("one.rs", "use crate::two::A;"), ("two/tests.rs", "use crate::one::B;")],
        // Text, visibility, names of other crates.
        &[
            ("one.rs", "use crate::two::A;"),
            ("two.rs", "const X: &str = \"crate::one::B\"; pub(in crate::one) struct A;"),
        ],
        &[("one.rs", "use crate::two::A;"), ("two.rs", "use one::one; fn f() { one::g() }")],
        // Another crate of the same package.
        &[("one.rs", "use crate::two::A;"), ("bin/two.rs", "use crate::one::B;"), ("two.rs", "")],
    ];
    for files in right {
        assert_eq!(found(files), Vec::<String>::new(), "{files:?}");
    }
}

#[test]
fn an_exception_opens_its_circle_and_one_that_is_not_needed_is_found() {
    let files =
        [("p/one.rs", "use super::two::A;"), ("p/two.rs", "use super::one::B;"), ("p/mod.rs", "mod one; mod two;")];
    let needed = ("a/src/p/two", "a/src/p/one", "a reason");
    assert_eq!(found_except(&files, &[needed]), Vec::<String>::new());
    let found = found_except(&files, &[needed, ("a/src/p/one", "a/src/p/three", "a reason")]);
    assert_eq!(found, ["a/src/p/one: does not refer to a/src/p/three: take the exception out of xtask/src/circles.rs"]);
}
