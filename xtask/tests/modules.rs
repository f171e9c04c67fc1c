//! The rules of the scheduler core's modules find what they are for, and the core keeps them.

use muster_xtask::modules::{check, check_file};
use std::path::Path;

#[test]
fn the_core_keeps_its_rooms() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    assert_eq!(check(root).expect("readable"), []);
}

#[test]
fn what_is_not_allowed_is_found() {
    let wrong = [
        ("fleet/mod.rs", "use crate::search::Ask;", "fleet refers to search"),
        ("search/whole.rs", "fn f(q: &crate::queue::CellQueue) {}", "search refers to queue"),
        ("queue/order.rs", "use crate::view::View;", "queue refers to view"),
        ("policy/start.rs", "use crate::policy::reserve::earliest;", "this one uses reserve"),
        ("policy/start.rs", "use crate::explain::in_turn;", "policy refers to explain"),
        ("new.rs", "", "is not in the list"),
    ];
    for (file, text, told) in wrong {
        let found = check_file(file, text);
        assert!(found.iter().any(|finding| finding.text.contains(told)), "{file}: {text}: {found:?}");
    }
    let right = [
        ("fleet/balance.rs", "use crate::fractions::MICRO; // crate::search is not used"),
        ("policy/start.rs", "use crate::policy::gate::Pass; use crate::view::View;"),
    ];
    for (file, text) in right {
        assert_eq!(check_file(file, text), [], "{file}: {text}");
    }
}
