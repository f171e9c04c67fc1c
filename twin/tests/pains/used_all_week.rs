//! A team has used the whole fleet all week; another one comes back from a deadline and gets no more than half. Where past use counts, it goes first until
//! both have had the same.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::H100;

const HOUR_S: u64 = 3_600;

/// GPUs that the one who was away uses after each hour, of eight, when both always ask for more.
fn shared(half_life_s: u64) -> (Vec<u64>, Scenario) {
    let mut scenario = Scenario::new("8x1:h100", vec![tenant("busy", &[], &[]), tenant("away", &[], &[])], 0);
    scenario.quiet = true;
    scenario.half_life(half_life_s);
    let mut number = 0;
    let mut ask = |scenario: &mut Scenario, path: &str, count: u64| {
        for _ in 0..count {
            number += 1;
            // They end one after the other.
            scenario.submit("work", gang(path, 1, 1, H100), Some(1_000 + 100 * (number % 8)));
        }
    };
    for _ in 0..24 {
        ask(&mut scenario, "busy", 24);
        scenario.pass(HOUR_S);
    }
    let mut used = Vec::new();
    for hour in 0..48 {
        ask(&mut scenario, "busy", 24);
        ask(&mut scenario, "away", if hour == 0 { 48 } else { 24 });
        scenario.pass(HOUR_S);
        used.push(scenario.used("away"));
        if hour == 1 {
            scenario.say("two hours after it came back:");
            scenario.explain_tenant("away");
        }
    }
    (used, scenario)
}

#[test]
fn who_was_away_goes_first_until_both_have_had_the_same() {
    let (used, _) = shared(0);
    assert!(used.iter().all(|used| (3..=5).contains(used)), "without a half-life only the present counts: {used:?}");
    let (used, mut scenario) = shared(12 * HOUR_S);
    assert!(used[..3].iter().all(|used| *used >= 6), "it goes first: {used:?}");
    assert!(used[36..].iter().all(|used| (3..=5).contains(used)), "then they share: {used:?}");
    scenario.say("two days after it came back:");
    scenario.explain_tenant("away");
    insta::assert_snapshot!(scenario.text());
}
