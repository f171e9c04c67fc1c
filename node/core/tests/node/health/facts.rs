//! The table of Xids against the collected facts, where they are at hand: `MUSTER_FACTS` names their folder, `../shared/facts` is looked at
//! otherwise. Without them this test says so and passes; where `MUSTER_CI` is set it fails.

use muster_node_core::health::recovery::RecoveryAction;
use muster_node_core::health::xid::{Action, Class, Immediate, TABLE};
use muster_node_core::health::{VerdictKind, Xid};
use serde_json::Value;
use std::path::PathBuf;

fn facts() -> Option<Value> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/facts");
    let folder = std::env::var_os("MUSTER_FACTS").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let path = folder.join("xid_actions.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        let missing = format!("{} is not there; set MUSTER_FACTS to the folder of the facts", path.display());
        assert!(std::env::var_os("MUSTER_CI").is_none(), "{missing}");
        println!("not tested: {missing}");
        return None;
    };
    Some(serde_json::from_str(&text).expect("JSON"))
}

/// The facts' words for our classes.
const fn word(class: Class) -> &'static str {
    match class {
        Class::App => "app",
        Class::Record => "record",
        Class::Reset => "reset",
        Class::AppThenResetWhenIdle => "app_then_reset_when_idle",
        Class::NodeReboot => "node_reboot",
        Class::Operator => "operator",
        Class::QueryRecoveryAction => "query_recovery_action",
        Class::Decode => "decode",
        Class::DetailOf48 => "detail_of_48",
        Class::Unknown => "unknown",
    }
}

#[test]
fn the_table_is_that_of_the_facts() {
    let Some(facts) = facts() else { return };
    let rows = facts["xids"].as_array().expect("Xids").iter().map(|row| {
        let text = |key: &str| row[key].as_str().expect(key).to_owned();
        let code = u16::try_from(row["code"].as_u64().expect("a code")).expect("a code");
        (code, text("mnemonic"), text("catalog_immediate_action"), text("class"))
    });
    let rows: Vec<_> = rows.collect();
    let ours: Vec<_> = TABLE
        .iter()
        .map(|row| {
            let immediate: Immediate = row.immediate;
            (row.code, row.mnemonic.to_owned(), immediate.word().to_owned(), word(row.class).to_owned())
        })
        .collect();
    assert_eq!(ours, rows);
}

#[test]
fn the_recovery_actions_are_those_of_the_facts() {
    let Some(facts) = facts() else { return };
    let words = facts["recovery_action_enum"].as_object().expect("actions");
    for code in 0..=words.len() as u32 {
        let ours = RecoveryAction::from_code(code);
        assert_eq!(ours.code(), code);
        let theirs = words.get(&code.to_string()).and_then(Value::as_str);
        let ours = match ours {
            RecoveryAction::None => Some("NONE"),
            RecoveryAction::GpuReset => Some("GPU_RESET"),
            RecoveryAction::NodeReboot => Some("NODE_REBOOT"),
            RecoveryAction::DrainP2p => Some("DRAIN_P2P"),
            RecoveryAction::DrainAndReset => Some("DRAIN_AND_RESET"),
            RecoveryAction::RecoverImexDomain => Some("RECOVER_IMEX_DOMAIN"),
            RecoveryAction::Unknown(_) => None,
        };
        assert_eq!(ours, theirs, "{code}");
    }
}

#[test]
fn every_code_is_found_and_an_unknown_one_is_inspected() {
    assert!(TABLE.is_sorted_by_key(|row| row.code), "the table is searched by halves");
    for row in TABLE {
        assert_eq!(Xid(row.code).row(), Some(row));
        assert!(!row.meaning.is_empty() && row.meaning.len() < 90, "{}", row.code);
    }
    for code in (0..=u16::MAX).filter(|code| TABLE.iter().all(|row| row.code != *code)) {
        assert_eq!(Xid(code).action(), Action::Inspect);
    }
    assert!(VerdictKind::Use < VerdictKind::Withhold && VerdictKind::Withhold < VerdictKind::ResetWhenIdle);
    assert!(VerdictKind::ResetWhenIdle < VerdictKind::Reboot && VerdictKind::Reboot < VerdictKind::Inspect);
}
