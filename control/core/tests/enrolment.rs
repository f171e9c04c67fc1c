//! Enrolment of machines: the security laws of join tokens, pinned keys, suspension and copies, as far as the state machine holds them.

#[allow(dead_code, reason = "only the random numbers are used here")]
#[path = "common/chance.rs"]
mod chance;

use chance::Chance;
use muster_control_core::authz::{About, Ask, Denied, Shown, authorize};
use muster_control_core::{Command, Done, Entry, Reject, State, execute};
use muster_model::identity::{Author, CredentialKind, Enrolled, Enrolment, MachineRole, SessionCount, Subject};
use muster_model::node::{NodeSpec, Place};

use muster_model::{AccessMode, NodeHealth, Principal, Role, Rpc};
use std::collections::{BTreeMap, BTreeSet};

const HOUR_MS: u64 = 3_600_000;
const NOW_MS: u64 = 1_000_000;
const SECRET: [u8; 32] = [9; 32];

type Key = [u8; 32];

fn key(number: u8) -> Key {
    [number; 32]
}

/// With a certificate that is older than any pin.
fn admits(state: &State, machine: &Principal, key: &Key) -> Result<(), Denied> {
    muster_control_core::authz::admits(state, machine, &Shown { key_sha256: *key, issued_ms: 0 })
}

fn node(name: &str) -> Principal {
    Principal::Node(name.to_owned())
}

fn at(state: &mut State, now_ms: u64, command: Command) -> Result<Done, Reject> {
    let executed = execute(state, &Entry { now_ms, commands: vec![command] });
    executed.decided.into_iter().next().expect("one answer")
}

fn done(state: &mut State, command: Command) -> Result<Done, Reject> {
    at(state, NOW_MS, command)
}

fn cluster() -> State {
    let mut state = State::new(1);
    state.meta.feature_level = 5;
    state
}

fn token(state: &mut State, names: &[&str], rejoin: bool) -> u64 {
    let command = Command::PutJoinToken {
        secret_sha256: SECRET,
        role: MachineRole::Node,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        enrolled: Enrolled::default(),
        ttl_ms: HOUR_MS,
        rejoin,
    };
    match done(state, command) {
        Ok(Done::Numbered { id }) => id,
        other => panic!("a join token was answered {other:?}"),
    }
}

fn enroll(token: u64, machine: &Principal, key_sha256: Key) -> Command {
    Command::EnrollMachine { token, secret_sha256: SECRET, machine: machine.clone(), key_sha256 }
}

/// Changes nothing and is refused for who asks.
fn refused(state: &mut State, now_ms: u64, command: Command, why: &str) {
    state.check().expect("a whole state");
    let before = state.clone();
    match at(state, now_ms, command) {
        Err(Reject::Denied(Denied::Unauthenticated { why: got })) => assert!(got.contains(why), "{got:?}: {why:?}"),
        other => panic!("{why}: {other:?}"),
    }
    assert_eq!((&state.machines, &state.join_tokens), (&before.machines, &before.join_tokens), "{why}");
}

#[test]
fn sl7_a_join_token_enrols_its_names_once_and_nothing_else() {
    let mut state = cluster();
    let id = token(&mut state, &["n1", "n2"], false);
    let (n1, later) = (node("n1"), NOW_MS + HOUR_MS);
    let wrong = Command::EnrollMachine { token: id, secret_sha256: [8; 32], machine: n1.clone(), key_sha256: key(1) };
    refused(&mut state, NOW_MS, wrong, "its secret is wrong");
    refused(&mut state, NOW_MS, enroll(id + 1, &n1, key(1)), "does not exist");
    refused(&mut state, NOW_MS, enroll(id, &node("n3"), key(1)), "not for node:n3");
    refused(&mut state, NOW_MS, enroll(id, &Principal::Shard("n1".to_owned()), key(1)), "not for shard:n1");
    refused(&mut state, NOW_MS, enroll(id, &Principal::Member(1), key(1)), "not for member:1");
    done(&mut state, enroll(id, &n1, key(1))).expect("its name");
    assert!(admits(&state, &n1, &key(1)).is_ok() && admits(&state, &n1, &key(2)).is_err());
    let known = state.machines.clone();
    done(&mut state, enroll(id, &n1, key(1))).expect("the answer was lost");
    assert_eq!(state.machines, known, "asked again, it changes nothing");
    refused(&mut state, NOW_MS, enroll(id, &n1, key(2)), "with another key");
    // A restore from a backup makes it void, and so does its time.
    let mut restored = state.clone();
    restored.meta.incarnation += 1;
    refused(&mut restored, NOW_MS, enroll(id, &node("n2"), key(3)), "does not exist");
    refused(&mut state.clone(), later, enroll(id, &node("n2"), key(3)), "has expired");
    let mut revoked = state.clone();
    done(&mut revoked, Command::RevokeJoinToken { id }).expect("it is there");
    refused(&mut revoked, NOW_MS, enroll(id, &node("n2"), key(3)), "does not exist");
    assert!(admits(&revoked, &n1, &key(1)).is_ok(), "what was enrolled stays enrolled");
    at(&mut state, later, Command::Sweep).expect("a sweep");
    assert!(state.join_tokens.is_empty(), "what has expired is forgotten");
}

#[test]
fn a_name_that_has_a_key_gets_another_one_only_by_a_token_that_says_so() {
    let mut state = cluster();
    let (first, second, again) =
        (token(&mut state, &["n1"], false), token(&mut state, &["n1"], false), token(&mut state, &["n1"], true));
    let n1 = node("n1");
    done(&mut state, enroll(first, &n1, key(1))).expect("new");
    refused(&mut state, NOW_MS, enroll(second, &n1, key(2)), "--rejoin");
    done(&mut state, Command::SuspendMachine { machine: n1.clone(), reason: "stolen".to_owned() }).expect("known");
    refused(&mut state, NOW_MS, enroll(first, &n1, key(1)), "already");
    assert!(admits(&state, &n1, &key(1)).is_err());
    done(&mut state, enroll(again, &n1, key(2))).expect("it says so");
    assert!(admits(&state, &n1, &key(1)).is_err() && admits(&state, &n1, &key(2)).is_ok());
}

/// A key changes in two steps, and at each of them what the machine has on its disk is taken.
#[test]
fn no_step_of_a_rotation_strands_a_machine() {
    let mut state = cluster();
    let n1 = node("n1");
    let renew = |shown: u8, next: u8| Command::RenewMachine {
        machine: node("n1"),
        shown_sha256: key(shown),
        key_sha256: key(next),
    };
    done(&mut state, renew(1, 1)).expect("the first key that was shown is pinned");
    let admitted =
        |state: &State| (1..=4).filter(|number| admits(state, &n1, &key(*number)).is_ok()).collect::<Vec<_>>();
    assert_eq!(admitted(&state), [1]);
    done(&mut state, renew(1, 2)).expect("a next key");
    assert_eq!(admitted(&state), [1, 2], "whichever the machine has on its disk");
    done(&mut state, renew(1, 3)).expect("it was lost in a crash, another one was made");
    assert_eq!(admitted(&state), [1, 3]);
    done(&mut state, renew(3, 3)).expect("the new one was shown");
    assert_eq!(admitted(&state), [3], "the old one proves nothing any more");
    assert!(done(&mut state, renew(1, 4)).is_err(), "not with a key that is no more");
    assert_eq!(admitted(&state), [3]);
}

/// The leader has heard of a silent node, and the node is suspended before that is decided.
#[test]
fn sl5_a_node_that_was_heard_of_before_its_suspension_stays_silent() {
    let mut state = cluster();
    state.meta.feature_level = 7;
    let spec = NodeSpec::usual("n1", Vec::new());
    let joined = done(&mut state, Command::JoinNode { spec, usage_incarnation: None, agent: 1 }).expect("it joins");
    let Done::Joined { node: id, epoch, .. } = joined else { panic!("{joined:?}") };
    let mark_ready = Command::MarkReady { node: id, epoch };
    done(&mut state, Command::MarkSilent { node: id, epoch }).expect("its newest epoch");
    done(&mut state, Command::SuspendMachine { machine: node("n1"), reason: "lost".to_owned() }).expect("any machine");
    done(&mut state, mark_ready.clone()).expect("it changes nothing");
    assert_eq!(state.nodes[&id].health, NodeHealth::Silent);
    done(&mut state, Command::ResumeMachine { machine: node("n1") }).expect("it is known");
    done(&mut state, mark_ready).expect("its newest epoch");
    assert_eq!(state.nodes[&id].health, NodeHealth::Ready);
}

#[test]
fn sl5_a_suspended_machine_is_nobody_until_it_is_resumed() {
    for enrolment in [Enrolment::Optional, Enrolment::Required] {
        let mut state = cluster();
        state.meta.enrolment = enrolment;
        let (n1, n2) = (node("n1"), node("n2"));
        let id = token(&mut state, &["n1"], false);
        done(&mut state, enroll(id, &n1, key(1))).expect("its name");
        // The second was never enrolled: with a certificate alone it may come in, where that is enough.
        for (machine, comes_in) in [(&n1, true), (&n2, enrolment == Enrolment::Optional)] {
            let acts = |state: &State| {
                let author = Author { principal: machine.clone(), ..Author::default() };
                let name = if *machine == n1 { "n1" } else { "n2" };
                let ask = Ask { rpc: Rpc::AgentsSession, about: About::NodeNamed(name) };
                authorize(state, NOW_MS, &author, &ask).is_ok() && admits(state, machine, &key(1)).is_ok()
            };
            assert_eq!(acts(&state), comes_in, "{enrolment} {machine}");
            let suspend = Command::SuspendMachine { machine: machine.clone(), reason: "lost".to_owned() };
            done(&mut state, suspend).expect("any machine");
            assert!(!acts(&state), "{enrolment} {machine} is suspended");
            let pin = |replace| Command::PinMachines { machines: vec![(machine.clone(), key(1))], replace };
            if *machine == n1 {
                done(&mut state, pin(true)).expect("its own key");
                assert!(!acts(&state), "{enrolment} {machine}: the same key is the one that was suspended");
            }
            done(&mut state, Command::ResumeMachine { machine: machine.clone() }).expect("known");
            assert_eq!(acts(&state), comes_in, "{enrolment} {machine} again");
        }
    }
}

/// One machine that counts its sessions, with a disk that may lose what it was about to write.
#[derive(Clone, Copy, Default)]
struct Counting {
    generation: u64,
    nonce: u64,
}

#[test]
fn sl2_two_machines_with_one_key_are_found_and_one_alone_never_is() {
    for seed in 1..=300_u64 {
        let mut chance = Chance::new(seed);
        let mut state = cluster();
        let n1 = node("n1");
        let id = token(&mut state, &["n1"], false);
        done(&mut state, enroll(id, &n1, key(1))).expect("its name");
        let mut machines = vec![Counting::default()];
        let copied_after = chance.below(8);
        let (mut begun, mut nonces) = (BTreeSet::new(), 0_u64);
        let mut found = false;
        for step in 0..24 {
            if step == copied_after && seed % 2 == 0 {
                // The whole folder, at any moment.
                machines.push(machines[0]);
            }
            let which = chance.below(machines.len() as u64) as usize;
            let machine = &mut machines[which];
            if machine.nonce == 0 {
                nonces += 1;
                machine.nonce = nonces;
            }
            let session = SessionCount { generation: machine.generation, nonce: machine.nonce };
            match done(&mut state, Command::BeginSession { machine: n1.clone(), session }) {
                // The answer may be lost: then the same is said again.
                Ok(Done::Numbered { id }) if chance.below(3) > 0 => {
                    *machine = Counting { generation: id, nonce: 0 };
                    begun.insert(which);
                }
                Ok(Done::Numbered { .. }) => {}
                Ok(Done::TurnedAway { .. }) => {
                    found = true;
                    break;
                }
                other => panic!("MUSTER_SEED={seed}: {other:?}"),
            }
        }
        assert_eq!(found, admits(&state, &n1, &key(1)).is_err(), "MUSTER_SEED={seed}");
        if machines.len() == 1 {
            assert!(!found, "MUSTER_SEED={seed}: it is one machine");
        } else if begun.len() == 2 {
            assert!(found, "MUSTER_SEED={seed}: both have had sessions");
        }
    }
}

#[test]
fn enrolment_is_required_only_when_every_machine_that_is_known_is_enrolled() {
    let mut state = cluster();
    let spec = node_spec("n1");
    done(&mut state, Command::JoinNode { spec, usage_incarnation: None, agent: 1 }).expect("a node");
    let cell = *state.cells.keys().next().expect("a cell");
    done(&mut state, Command::AcquireCell { cell, shard: "s1-abc".to_owned() }).expect("a shard");
    let require = || Command::SetEnrolment { enrolment: Enrolment::Required, members: BTreeSet::from([1, 2]) };
    for (missing, machine) in [
        ("4 machines are not enrolled: member:1", Principal::Member(1)),
        ("3 machines are not enrolled: member:2", Principal::Member(2)),
        ("2 machines are not enrolled: node:n1", node("n1")),
        ("1 machines are not enrolled: shard:s1-abc", Principal::Shard("s1".to_owned())),
    ] {
        let refused = done(&mut state, require()).expect_err(missing).to_string();
        assert!(refused.contains(missing), "{refused:?}: {missing:?}");
        assert_eq!(state.meta.enrolment, Enrolment::Optional);
        done(&mut state, Command::PinMachines { machines: vec![(machine, key(1))], replace: false }).expect("a pin");
    }
    done(&mut state, require()).expect("nobody is missing");
    assert!(admits(&state, &node("n2"), &key(1)).is_err(), "nobody has enrolled it");
    done(&mut state, Command::RemoveMachine { machine: node("n1") }).expect("it was enrolled");
    assert!(admits(&state, &node("n1"), &key(1)).is_err());
}

fn node_spec(name: &str) -> NodeSpec {
    NodeSpec {
        name: name.to_owned(),
        address: "10.0.0.1".to_owned(),
        place: Place {
            region: "r".to_owned(),
            zone: "z".to_owned(),
            block: "b".to_owned(),
            leaf: "l".to_owned(),
            nvlink_domain: String::new(),
        },
        cell: "c1".to_owned(),
        pool: muster_model::Pool::standard().name,
        gpus: Vec::new(),
        cpu_milli: 1_000,
        memory_mib: 1_024,
        driver: String::new(),
        labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
        boot_id: "b".to_owned(),
        proofs: Vec::new(),
    }
}

#[test]
fn sl7_a_node_claims_nothing_that_it_was_not_enrolled_for() {
    let labels = BTreeMap::from([("team".to_owned(), "a".to_owned()), ("disk".to_owned(), "b".to_owned())]);
    let enrolled =
        Enrolled { cell: "c1".to_owned(), pool: "p1".to_owned(), gpus_max: Some(0), labels: Some(labels.clone()) };
    let joins = |spec: NodeSpec| {
        let mut state = cluster();
        let command = Command::PutJoinToken {
            secret_sha256: SECRET,
            role: MachineRole::Node,
            names: BTreeSet::from(["n1".to_owned()]),
            enrolled: enrolled.clone(),
            ttl_ms: HOUR_MS,
            rejoin: false,
        };
        let Ok(Done::Numbered { id }) = done(&mut state, command) else { panic!("no token") };
        done(&mut state, enroll(id, &node("n1"), key(1))).expect("its name");
        let pool = muster_model::Pool { name: "p1".to_owned(), ..muster_model::Pool::standard() };
        done(&mut state, Command::PutPool(pool)).expect("a pool");
        done(&mut state, Command::JoinNode { spec, usage_incarnation: None, agent: 1 })
    };
    let spec = || NodeSpec { pool: "p1".to_owned(), ..node_spec("n1") };
    joins(spec()).expect("less than it may claim");
    for (field, claimed) in [
        ("cell", NodeSpec { cell: "c2".to_owned(), ..spec() }),
        ("pool", NodeSpec { pool: muster_model::Pool::standard().name, ..spec() }),
        ("labels", NodeSpec { labels: BTreeMap::from([("team".to_owned(), "b".to_owned())]), ..spec() }),
        ("labels", NodeSpec { labels: BTreeMap::from([("zone".to_owned(), "a".to_owned())]), ..spec() }),
    ] {
        match joins(claimed) {
            Err(Reject::Invalid(errors)) => assert_eq!(errors[0].field, field, "{errors:?}"),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn sl3_operators_run_nodes_and_shards_and_only_root_control_nodes() {
    let mut state = cluster();
    let mut people = BTreeMap::new();
    for (name, role) in [("root", Role::Admin), ("op", Role::Operator), ("aud", Role::Auditor)] {
        let subject = Subject::User(name.to_owned());
        let grant = Command::PutGrant { subject, role, at: None, until_ms: None, reason: String::new() };
        done(&mut state, grant).expect("a grant");
        let principal = Principal::User(name.to_owned());
        let session = Command::PutCredential {
            kind: CredentialKind::Session,
            principal: principal.clone(),
            groups: Vec::new(),
            secret_sha256: SECRET,
            ttl_ms: HOUR_MS,
            scope: None,
            from: Vec::new(),
            note: String::new(),
        };
        let member = Author { principal: Principal::Member(1), ..Author::default() };
        let Ok(Done::Numbered { id }) = done(&mut state, session.by(member)) else { panic!("no session") };
        people.insert(name, Author { principal, credential: Some(id), ..Author::default() });
    }
    done(&mut state, Command::SetAccess { mode: AccessMode::Closed }).expect("a root is there");
    let pin = |machine| Command::PinMachines { machines: vec![(machine, key(1))], replace: false };
    let suspend = |machine| Command::SuspendMachine { machine, reason: "why".to_owned() };
    let required = Command::SetEnrolment { enrolment: Enrolment::Optional, members: BTreeSet::new() };
    for (command, who) in [
        (pin(node("n1")), &["root", "op"][..]),
        (pin(Principal::Shard("s1".to_owned())), &["root", "op"]),
        (pin(Principal::Member(2)), &["root"]),
        (suspend(node("n1")), &["root", "op"]),
        (suspend(Principal::Member(2)), &["root"]),
        (Command::ResumeMachine { machine: Principal::Member(2) }, &["root"]),
        (Command::RemoveMachine { machine: Principal::Member(2) }, &["root"]),
        (required, &["root"]),
    ] {
        for (name, author) in &people {
            let answer = done(&mut state.clone(), command.clone().by(author.clone()));
            let denied = matches!(answer, Err(Reject::Denied(_)));
            assert_eq!(!denied, who.contains(name), "{name}: {command:?}: {answer:?}");
        }
        let nobody = done(&mut state.clone(), command.clone().by(Author::default()));
        assert!(matches!(nobody, Err(Reject::Denied(_))), "{command:?}: {nobody:?}");
    }
}

/// A voter that is behind must hear the newest control node, with whatever key it has now; an older certificate proves nothing.
#[test]
fn a_control_node_that_is_behind_takes_a_newer_certificate_for_consensus_alone() {
    let mut state = cluster();
    let pin = |state: &mut State, at_ms, id| {
        let command = Command::PinMachines { machines: vec![(Principal::Member(id), key(1))], replace: true };
        at(state, at_ms, command).expect("a pin");
    };
    pin(&mut state, NOW_MS, 1);
    state.meta.enrolment = Enrolment::Required;
    let comes_in = |state: &State, id, number, issued_ms| {
        let shown = Shown { key_sha256: key(number), issued_ms };
        muster_control_core::authz::admits(state, &Principal::Member(id), &shown).is_ok()
    };
    let calls = |state: &State, id, number, issued_ms, rpc| {
        let (machine, shown) = (Principal::Member(id), Shown { key_sha256: key(number), issued_ms });
        let author = Author { principal: machine.clone(), ..Author::default() };
        muster_control_core::authz::is_pinned(state, &machine, &shown, rpc).is_ok()
            && authorize(state, NOW_MS, &author, &Ask { rpc, about: About::Nothing }).is_ok()
    };
    for (id, number, issued_ms, connects, forwards) in [
        (1, 1, NOW_MS - 1, true, true),
        (1, 2, NOW_MS + 1, true, false),
        (1, 2, NOW_MS - 1, false, false),
        (2, 2, NOW_MS - 1, true, false),
    ] {
        assert_eq!(comes_in(&state, id, number, issued_ms), connects, "{id} {number} {issued_ms}");
        assert_eq!(calls(&state, id, number, issued_ms, Rpc::PeerVote), connects, "{id} {number} {issued_ms}");
        assert_eq!(calls(&state, id, number, issued_ms, Rpc::PeerForward), forwards, "{id} {number} {issued_ms}");
    }
    for id in [1, 2] {
        let machine = Principal::Member(id);
        done(&mut state, Command::SuspendMachine { machine, reason: "removed".to_owned() }).expect("any machine");
        assert!(!calls(&state, id, 1, NOW_MS + 1, Rpc::PeerVote), "it was suspended");
        assert!(calls(&state, id, 1, NOW_MS + 1, Rpc::PeerPreVote), "it may learn that it was removed");
    }
}
