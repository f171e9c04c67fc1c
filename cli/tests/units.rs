//! Amounts as people write and read them, as data.

use muster_cli::units::{
    gpu_units, mebibytes, milli_cpus, seconds, show_cards, show_mebibytes, show_moment, show_seconds,
};
use std::fmt::Debug;

fn check<T: PartialEq + Debug, E: Debug>(parse: impl Fn(&str) -> Result<T, E>, good: &[(&str, T)], bad: &[&str]) {
    for (text, expected) in good {
        assert_eq!(parse(text).as_ref().ok(), Some(expected), "{text:?}");
    }
    for text in bad {
        assert!(parse(text).is_err(), "{text:?} was taken as {:?}", parse(text));
    }
}

#[test]
fn durations() {
    let good = [
        ("4h", 14_400),
        ("90m", 5_400),
        ("1h30m", 5_400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("90s", 90),
        ("1:30:00", 5_400),
        ("2-12:00:00", 216_000),
        ("5:07", 307),
    ];
    let bad = [
        "",
        "h",
        "4",
        "90",
        "4x",
        "1h30",
        "-4h",
        "4 h",
        "1:99",
        "1:99:00",
        "a:b",
        "99999999999999999999h",
        "400000000000000000w",
        "18446744073709551615:00",
        "+1:30:00",
        "1:+30",
        "+2-12:00:00",
    ];
    check(seconds, &good, &bad);
}

#[test]
fn sizes_are_powers_of_1024_and_whole_mebibytes() {
    let good =
        [("512Mi", 512), ("80Gi", 81_920), ("80G", 81_920), ("80GB", 81_920), ("1.5Ti", 1_572_864), ("2048K", 2)];
    check(mebibytes, &good, &["", "80", "80X", "Gi", "1.5K", "-1Gi", "1..5Gi", "1K", "99999999999999999999Gi"]);
}

#[test]
fn cpus() {
    check(
        milli_cpus,
        &[("4", 4_000), ("0.5", 500), ("500m", 500), ("1.25", 1_250)],
        &["", "x", "0.0001", "-1", "1.", "m", "1.+5", "+4", "+500m"],
    );
}

#[test]
fn parts_of_a_card_are_whole_units() {
    let units = |text: &str| gpu_units(text).map(|units| units.0);
    let good = [("8", 56_000), ("0.5", 3_500), ("3/7", 3_000), ("1/8", 875), ("2333 units", 2_333), ("0.001", 7)];
    check(units, &good, &["", "x", "0.3333", "1/0", "1/11", "-1", "1/", "units"]);
}

#[test]
fn what_is_shown() {
    assert_eq!([show_cards(56_000), show_cards(3_500), show_cards(1_000)], ["8", "0.5", "0.14"]);
    assert_eq!([show_mebibytes(512), show_mebibytes(81_920), show_mebibytes(1_572_864)], ["512Mi", "80Gi", "1.5Ti"]);
    assert_eq!(
        [show_seconds(0), show_seconds(187), show_seconds(3_723), show_seconds(183_600)],
        ["0:00", "3:07", "1:02:03", "2-03:00:00"]
    );
    assert_eq!(show_moment(1_763_680_000_123), "2025-11-20T23:06:40Z");
}
