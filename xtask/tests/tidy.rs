//! The tidy check against small files, as data: each rule is shown to fail what it is for and to leave the rest alone.

use muster_xtask::tests_total::Total;
use muster_xtask::tidy::check_file;
use std::collections::BTreeMap;

fn check(path: &str, text: &str, expected: &[&str]) {
    check_with(path, text, &[], expected);
}

fn check_with(path: &str, text: &str, long: &[(&str, usize)], expected: &[&str]) {
    let long: BTreeMap<String, usize> = long.iter().map(|(path, lines)| ((*path).to_owned(), *lines)).collect();
    let found: Vec<String> = check_file(path, text, &long).iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), expected.len(), "{path} gave {found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{path} gave {found:?}, expected {expected:?}");
    }
}

fn lines(count: usize) -> String {
    format!("//! Long.\n{}", "// x\n".repeat(count - 1))
}

#[test]
fn files_open_with_what_they_are_for() {
    check("model/src/a.rs", "//! Good.\n", &[]);
    check("model/src/a.rs", "use std::fmt;\n", &["does not open with"]);
    check("model/tests/a.rs", "use std::fmt;\n", &["does not open with"]);
}

#[test]
fn unfinished_work_is_found_everywhere() {
    for word in [concat!("todo", "!()"), concat!("unimplemented", "!(\"x\")"), concat!("// FIX", "ME: x")] {
        check("cli/src/a.rs", &format!("//! A.\n{word}\n"), &["line 2"]);
        check("cli/tests/a.rs", &format!("//! A.\n{word}\n"), &["line 2"]);
    }
    check("cli/tests/a.rs", concat!("//! A.\n#[ign", "ore]\n#[allow(dead", "_code)]\n"), &["line 2", "line 3"]);
}

#[test]
fn files_stay_short_except_tests() {
    check("cli/src/a.rs", &lines(500), &[]);
    check("cli/src/a.rs", &lines(501), &["501 lines"]);
    check("cli/tests/a.rs", &lines(900), &[]);
    check("cli/src/a/tests.rs", &lines(900), &[]);
}

#[test]
fn the_ratchet_turns_one_way() {
    let row = [("cli/src/a.rs", 600)];
    check_with("cli/src/a.rs", &lines(600), &row, &[]);
    check_with("cli/src/a.rs", &lines(601), &row, &["has grown to 601"]);
    check_with("cli/src/a.rs", &lines(590), &row, &["lower its row"]);
    check_with("cli/src/a.rs", &lines(400), &row, &["take its row out"]);
}

#[test]
fn pure_crates_take_the_world_as_arguments() {
    check("model/src/a.rs", "//! A.\nuse std::collections::HashMap;\n", &["HashMap in a pure crate"]);
    check("node/core/src/a.rs", "//! A.\nlet now = SystemTime::now();\n", &["SystemTime in a pure crate"]);
    check("twin/src/a.rs", "//! A.\nlet file = std::fs::read(path);\n", &["std::fs in a pure crate"]);
    check("model/src/a.rs", "//! A.\n// A HashMap would not do.\n", &[]);
    check("model/tests/a.rs", "//! A.\nuse std::collections::HashMap;\n", &[]);
    check("model/src/a.rs", "//! A.\n#[cfg(test)]\nmod tests { use std::fs; }\n", &[]);
    check("runtime/src/a.rs", "//! A.\nuse std::collections::HashMap;\n", &[]);
}

#[test]
fn glue_goes_through_the_seams() {
    check("control/server/src/a.rs", "//! A.\ntokio::spawn(run());\n", &["goes past the seams"]);
    check("node/agent/src/a.rs", "//! A.\nstd::thread::spawn(run);\n", &["goes past the seams"]);
    check("node/agent/src/shim/mod.rs", "//! A.\nstd::thread::spawn(run);\n", &[]);
    check("runtime/src/host.rs", "//! A.\ntokio::spawn(run());\n", &[]);
    check("cli/src/a.rs", "//! A.\ntokio::spawn(run());\n", &[]);
}

#[test]
fn closing_lines_are_added_up() {
    let mut total = Total::default();
    for line in [
        "running 3 tests",
        "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        "test result: FAILED. 4 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s",
    ] {
        total.take(line);
    }
    assert_eq!(total.to_string(), "tests: 7 passed, 2 failed, 1 ignored, in 2 runners");
}
