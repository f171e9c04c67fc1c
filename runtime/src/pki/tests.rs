//! The rule by which machines accept each other, the certificate clock, and statements that are signed.

use super::*;
use crate::sim;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const DAY_MS: u64 = 24 * 3_600_000;
const FROM_MS: u64 = 1_000 * DAY_MS;
const UNTIL_MS: u64 = FROM_MS + 30 * DAY_MS;

fn machine(role: Role) -> MachineName {
    MachineName::new("c", role).expect("a name")
}

fn shows(role: Role) -> Presented {
    let validity = Validity { from_ms: FROM_MS, until_ms: UNTIL_MS };
    Presented { name: machine(role), spki_sha256: SpkiHash([7; 32]), validity, issuer: 1 }
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        (1..4_u64).prop_map(Role::Control),
        "[a-z]{1,3}".prop_map(Role::Shard),
        "[a-z]{1,3}".prop_map(Role::Node),
    ]
}

fn wanted() -> impl Strategy<Value = Wanted> {
    prop_oneof![Just(Wanted::Machine), Just(Wanted::Control), (1..4_u64).prop_map(Wanted::Member)]
}

fn pin() -> impl Strategy<Value = Pin> {
    prop_oneof![Just(Pin::Confirmed), Just(Pin::NoList), Just(Pin::Refused(NotAdmitted { why: "suspended".into() })),]
}

proptest! {
    /// The rule against what it is to do, said once more and otherwise.
    #[test]
    fn who_is_accepted(
        own in proptest::option::of(role()),
        them in role(),
        wanted in wanted(),
        now_ms in proptest::option::of(FROM_MS - 200 * DAY_MS..UNTIL_MS + 200 * DAY_MS),
        pin in pin(),
        other_cluster in proptest::bool::weighted(0.1),
    ) {
        let (own, them) = (own.map(machine), shows(them));
        let cluster = if other_cluster { "d" } else { "c" };
        let side = Judging { cluster, own: own.as_ref(), wanted, now_ms };
        let mut asked = 0;
        let judged = judge(side, &them, |_| { asked += 1; pin.clone() });

        let is_wanted = match (wanted, them.name.role()) {
            (Wanted::Machine, _) | (Wanted::Control, Role::Control(_)) => true,
            (Wanted::Member(id), Role::Control(got)) => id == *got,
            _ => false,
        };
        let off_ms = now_ms.map_or(0, |now| now.saturating_sub(UNTIL_MS).max(FROM_MS.saturating_sub(now)));
        let late_ms = now_ms.map_or(0, |now| now.saturating_sub(UNTIL_MS));
        let members = them.name.control_id().is_some() && own.as_ref().is_some_and(|own| own.control_id().is_some());
        let is_accepted = !other_cluster
            && is_wanted
            && matches!(pin, Pin::Confirmed | Pin::NoList)
            && (late_ms <= GRACE_MS || (members && pin == Pin::Confirmed));
        prop_assert_eq!(judged.is_ok(), is_accepted, "{:?}", judged);
        prop_assert!(asked <= 1);
        prop_assert_eq!(asked == 1, !other_cluster && is_wanted, "pins are asked about whom is wanted, and nobody else");
        if let Ok(accepted) = judged {
            prop_assert_eq!(accepted.alarm.is_some(), off_ms > 0);
            prop_assert_eq!(accepted.identity.expired_ms, now_ms.map_or(0, |now| now.saturating_sub(UNTIL_MS)));
            prop_assert_eq!(accepted.identity.name, them.name);
        }
    }
}

#[test]
fn the_certificate_clock_never_goes_back_and_stands_still_while_all_is_off() {
    sim::run(1, |world| async move {
        let host = world.boot("host");
        let clock = host.certificate_clock.clone();
        assert_eq!(clock.now_ms(), None, "it has heard nothing");
        clock.hear(FROM_MS);
        world.skew_wall("host", 2 * 365 * DAY_MS as i64);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(clock.now_ms(), Some(FROM_MS + 60_000), "the wall clock is not asked");
        clock.hear(FROM_MS + 10_000);
        assert_eq!(clock.now_ms(), Some(FROM_MS + 60_000), "it does not go back");
        clock.save().await.expect("a working disk");
        drop((host, clock));
        world.crash("host").await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let host = world.boot("host");
        host.certificate_clock.load().expect("what was saved");
        assert_eq!(host.certificate_clock.now_ms(), Some(FROM_MS + 60_000));
        host.certificate_clock.hear(FROM_MS + 70_000);
        host.certificate_clock.load().expect("what was saved");
        assert_eq!(host.certificate_clock.now_ms(), Some(FROM_MS + 70_000), "what is on disk does not set it back");
        host.files.write(CLOCK_FILE, b"soon".to_vec()).await.expect("a working disk");
        assert!(host.certificate_clock.load().is_err(), "what is no time is said");
    });
}

#[test]
fn statements_are_believed_of_control_nodes_of_the_cluster_alone() {
    check_statements(Arc::new(X509));
    sim::run(1, |world| async move { check_statements(world.boot("host").pki.clone()) });
}

fn check_statements(scheme: Arc<dyn Scheme>) {
    const STATEMENT: &[u8] = b"a test v1\0and what it says";
    let cluster = |name| LocalAuthorities::new(Arc::clone(&scheme), name, 1..=2, FROM_MS).expect("authorities");
    let ours = cluster("c");
    let roots = ours.roots().expect("a root");
    let control = ours.machine(Role::Control(2)).expect("a control node");
    let until_ms = control.presented().expect("a machine").validity.until_ms;
    let sign = |own: &Credentials, at_ms| sign_statement(&*scheme, own, STATEMENT, at_ms);
    let verify = |roots: &Roots, signed: &Signed, statement: &[u8], at_ms| {
        verify_statement(&*scheme, roots, signed, statement, at_ms)
    };
    let signed = sign(&control, FROM_MS).expect("signed");
    assert_eq!(&verify(&roots, &signed, STATEMENT, FROM_MS).expect("believed"), control.name().expect("a name"));

    // Other words, another signature, another certificate.
    let why = verify(&roots, &signed, b"a test v1\0and what it does not", FROM_MS).expect_err("another statement");
    assert!(matches!(why, NotBelieved::Pki(PkiError::Signature)), "{why}");
    for signature in [Vec::new(), vec![0x30; SIGNATURE_BYTES_MAX], vec![0; SIGNATURE_BYTES_MAX + 1]] {
        let forged = Signed { signature, ..signed.clone() };
        verify(&roots, &forged, STATEMENT, FROM_MS).expect_err("another signature");
    }
    for at in 0..signed.signature.len() {
        let mut forged = signed.clone();
        forged.signature[at] ^= 1;
        verify(&roots, &forged, STATEMENT, FROM_MS).expect_err("an altered signature");
    }
    let other = sign(&ours.machine(Role::Control(2)).expect("the same name"), FROM_MS).expect("signed");
    let forged = Signed { signature: other.signature, ..signed.clone() };
    verify(&roots, &forged, STATEMENT, FROM_MS).expect_err("by another key of the same name");
    let forged = Signed { chain: signed.chain[..1].to_vec(), ..signed.clone() };
    verify(&roots, &forged, STATEMENT, FROM_MS).expect_err("without the issuer");

    // Roots of others: of a cluster with the same name, and with another.
    for name in ["c", "d"] {
        let theirs = cluster(name).roots().expect("a root");
        let why = verify(&theirs, &signed, STATEMENT, FROM_MS).expect_err("other roots");
        assert!(matches!(why, NotBelieved::Pki(PkiError::Chain { .. })), "{why}");
    }

    // Other machines sign nothing that is believed, and are not asked to.
    let node = ours.machine(Role::Node("n".into())).expect("a node");
    sign(&node, FROM_MS).expect_err("a node");
    sign(&ours.anonymous().expect("a root"), FROM_MS).expect_err("nobody");
    let mine = node.own().expect("its own");
    let signature = scheme.sign_message(&mine.key, STATEMENT).expect("signed");
    let by_node = Signed { signature, chain: mine.chain.clone() };
    let why = verify(&roots, &by_node, STATEMENT, FROM_MS).expect_err("a node");
    assert!(matches!(why, NotBelieved::Signer(Refusal::OtherMachine { .. })), "{why}");

    // The moment of the statement is judged as a connection would have been.
    let late = sign(&control, until_ms + GRACE_MS).expect("in the time that is allowed");
    verify(&roots, &late, STATEMENT, until_ms + GRACE_MS).expect("in the time that is allowed");
    sign(&control, FROM_MS - 30 * DAY_MS).expect_err("before the certificate was made");
    sign(&control, until_ms + GRACE_MS + 1).expect_err("too late");
    let why = verify(&roots, &late, STATEMENT, until_ms + GRACE_MS + 1).expect_err("too late");
    assert!(matches!(why, NotBelieved::Signer(Refusal::Expired { .. })), "{why}");
}
