//! Attempts 21, 23 and 24: machines that were captured, as other machines than they are.

use super::{Fleet, MachineChannel, SECRET};
use muster_bench::cluster::small_job;
use muster_proto::v1;
use muster_proto::v1::agents_client::AgentsClient;
use muster_proto::v1::jobs_client::JobsClient;
use muster_proto::v1::peer_client::PeerClient;
use muster_proto::v1::shards_client::ShardsClient;
use muster_runtime::pki::Role;
use prost::Message;
use std::time::Duration;
use tonic::{Code, Status};

fn denied(what: &str, answer: Result<(), Status>) {
    let refused = answer.expect_err(what);
    assert!(matches!(refused.code(), Code::PermissionDenied | Code::Unauthenticated), "{what}: {refused:?}");
}

/// Everything that control nodes alone may ask of each other.
async fn as_a_member(who: &str, channel: &MachineChannel) {
    let mut peer = PeerClient::new(channel.clone());
    let nothing = v1::Payload::default;
    denied(&format!("{who} forwards a command"), peer.forward(nothing()).await.map(drop));
    denied(&format!("{who} votes"), peer.vote(nothing()).await.map(drop));
    denied(&format!("{who} asks for a vote"), peer.pre_vote(nothing()).await.map(drop));
    denied(&format!("{who} appends"), peer.append_entries(nothing()).await.map(drop));
    denied(&format!("{who} reads"), peer.read_index(nothing()).await.map(drop));
    denied(&format!("{who} renews leases"), peer.renew_leases(nothing()).await.map(drop));
}

/// Everything that people may.
async fn as_a_person(who: &str, fleet: &Fleet, channel: &MachineChannel) {
    let mut jobs = JobsClient::new(channel.clone());
    let job_id = fleet.victim.parse().expect("a number");
    denied(&format!("{who} cancels"), jobs.cancel(v1::CancelRequest { job_id }).await.map(drop).map_err(hidden));
    let get = v1::GetJobRequest { job_id, ..v1::GetJobRequest::default() };
    denied(&format!("{who} reads a job"), jobs.get(get).await.map(drop).map_err(hidden));
    let spec = small_job("alpha", "mine".to_owned(), &["true"]);
    let call = v1::SubmitRequest {
        request_id: "x".to_owned(),
        issued_ms: Some(muster_cli::commands::now_ms()),
        jobs: vec![spec],
    };
    denied(&format!("{who} submits"), jobs.submit(call).await.map(drop).map_err(hidden));
}

/// What one may not see does not exist, which is a refusal too.
fn hidden(status: Status) -> Status {
    if status.code() == Code::NotFound { Status::permission_denied(status.message()) } else { status }
}

async fn hello(channel: &MachineChannel, name: &str) -> Result<(), Status> {
    hello_with(channel, name, None, |_| {}).await
}

/// The count of a machine that has had no session.
const FIRST: Option<v1::SessionCount> = Some(v1::SessionCount { generation: 0, nonce: 7 });

/// The same, with what the node claims.
async fn hello_with(
    channel: &MachineChannel,
    name: &str,
    session: Option<v1::SessionCount>,
    claim: impl FnOnce(&mut v1::NodeSpec),
) -> Result<(), Status> {
    let [region, zone, block, leaf] = ["r", "z", "b", "l"].map(str::to_owned);
    let mut spec = v1::NodeSpec {
        name: name.to_owned(),
        address: "127.0.0.1".to_owned(),
        boot_id: "another boot".to_owned(),
        place: Some(v1::Place { region, zone, block, leaf, ..v1::Place::default() }),
        cell: "cell-0".to_owned(),
        pool: "default".to_owned(),
        cpu_milli: 1_000,
        memory_mib: 1_024,
        ..v1::NodeSpec::default()
    };
    claim(&mut spec);
    let hello = v1::Hello { spec: Some(spec), agent: 99, session, ..v1::Hello::default() };
    let first = v1::AgentMessage { message: Some(v1::agent_message::Message::Hello(hello)) };
    let session = AgentsClient::new(channel.clone()).session(futures::stream::iter([first])).await?;
    session.into_inner().message().await.map(drop)
}

/// Attempt 21.
#[test]
fn attempt_21_a_captured_node_is_no_other_node() {
    let fleet = Fleet::start();
    let channel = fleet.captured("nodes/node-0001", Role::Node("node-0001".to_owned()));
    fleet.runtime.block_on(async {
        denied("it says that it is its neighbour", hello(&channel, "node-0000").await);
        denied("it joins as a new node", hello(&channel, "node-9").await);
        let acquire = v1::AcquireRequest { cell: 1, shard: "shard-1".to_owned() };
        denied("it takes a cell", ShardsClient::new(channel.clone()).acquire(acquire).await.map(drop));
        let watch = ShardsClient::new(channel.clone()).watch(v1::WatchRequest { from_revision: 0 }).await;
        denied("it watches the state", watch.map(drop));
        as_a_member("a node", &channel).await;
        as_a_person("a node", &fleet, &channel).await;
    });
    // A folder of one machine is no other's.
    let host = muster_runtime::real::identified_host(
        "x",
        fleet.dev.path("x"),
        Duration::ZERO,
        Some(&fleet.dev.path("dev/identities/nodes/node-0001")),
    );
    let taken = host.prepare(muster_runtime::Transport::Mutual, &Role::Node("node-0000".to_owned()), None);
    assert!(taken.expect_err("another's").to_string().contains("of another machine"));
    fleet.is_well();
    fleet.is_recorded(&["Agents.Session", "node:node-0001"]);
}

/// Attempt 22.
#[test]
fn attempt_22_a_node_claims_no_pool_label_or_card_that_it_was_not_enrolled_with() {
    let fleet = Fleet::start();
    let join = fleet.dev.path("join").display().to_string();
    let create = ["machine", "token", "create", "node", "--names", "gpu-9", "--cell", "cell-0", "--pool", "default"];
    fleet.dev.ok(&[&create[..], &["--gpus-max", "0", "--labels", "rack=r1", "--out", &join]].concat());
    let identity = fleet.dev.path("dev/identities/gpu-9").display().to_string();
    let joined =
        crate::common::alone(&["machine", "join", "node:gpu-9", &join, "--out", &identity], &fleet.dev.path("dev"));
    let joined: crate::common::Said = { joined }.output().expect("muster").into();
    assert_eq!(joined.code, 0, "{}", joined.err);
    let channel = fleet.captured("gpu-9", Role::Node("gpu-9".to_owned()));
    let gpu = v1::Gpu { model: "h100".to_owned(), memory_mib: 81_559, uuid: "GPU-1".to_owned(), ..v1::Gpu::default() };
    fleet.runtime.block_on(async {
        let refused = |what: &str, answer: Result<(), Status>, field: &str| {
            let refused = answer.expect_err(what);
            assert!(
                refused.code() == Code::InvalidArgument && refused.message().contains(field),
                "{what}: {refused:?}"
            );
        };
        let claimed = hello_with(&channel, "gpu-9", FIRST, |spec| spec.pool = "secret".to_owned()).await;
        refused("another pool", claimed, "pool");
        let claimed = hello_with(&channel, "gpu-9", FIRST, |spec| spec.cell = "cell-1".to_owned()).await;
        refused("another cell", claimed, "cell");
        let label = |spec: &mut v1::NodeSpec| drop(spec.labels.insert("trusted".to_owned(), "yes".to_owned()));
        refused("a label", hello_with(&channel, "gpu-9", FIRST, label).await, "labels");
        refused("a card", hello_with(&channel, "gpu-9", FIRST, |spec| spec.gpus.push(gpu.clone())).await, "gpus");
        denied("another name", hello(&channel, "gpu-8").await);
        hello_with(&channel, "gpu-9", FIRST, |_| {}).await.expect("what it was enrolled for");
        // A session that is not counted is a way around the search for copies.
        let silent = hello_with(&channel, "gpu-9", None, |_| {}).await.expect_err("it does not count");
        assert!(silent.message().contains("has counted its sessions before"), "{silent:?}");
    });
    fleet.is_well();
}

/// Attempt 25, of join tokens; those of tokens and sessions are in `calls.rs`.
#[test]
fn attempt_25_a_join_token_lets_in_nobody_twice_and_nobody_else() {
    let fleet = Fleet::start();
    let make = |names: &str| {
        let join = fleet.dev.path(names).display().to_string();
        fleet.dev.ok(&["machine", "token", "create", "node", "--names", names, "--out", &join]);
        join
    };
    let home = fleet.dev.path("thief");
    std::fs::create_dir_all(&home).expect("a folder");
    let join = |name: &str, file: &str| -> crate::common::Said {
        let out = home.join(name.replace(':', "-")).display().to_string();
        crate::common::alone(&["machine", "join", name, file, "--out", &out], &home).output().expect("muster").into()
    };
    let refused = |name: &str, file: &str, why: &str| {
        let said = join(name, file);
        assert!(said.code != 0 && said.err.contains(why), "{name}: {}{}", said.out, said.err);
        std::fs::remove_dir_all(home.join(name.replace(':', "-"))).ok();
    };
    let file = make("gpu-7");
    refused("node:node-0000", &file, "not for node:node-0000");
    refused("shard:gpu-7", &file, "not for shard:gpu-7");
    let text = std::fs::read_to_string(&file).expect("a file");
    let altered = |from: &str, to: &str| {
        let path = home.join("altered");
        std::fs::write(&path, text.replacen(from, to, 1)).expect("written");
        path.display().to_string()
    };
    refused("node:gpu-7", &altered("mj1_", "mt1_"), "no join token");
    let token = text.lines().find(|line| line.starts_with("mj1_")).expect("a token").to_owned();
    let last = if token.ends_with('0') { "1" } else { "0" };
    let cut = format!("{}{last}", &token[..token.len() - 1]);
    refused("node:gpu-7", &altered(&token, &cut), "it was cut");
    // A root of somebody else in the place of the cluster's: nothing is sent there.
    let said: crate::common::Said =
        crate::common::alone(&["ca", "init", "dev", "--out", &home.join("ca").display().to_string()], &home)
            .output()
            .expect("muster")
            .into();
    assert_eq!(said.code, 0, "{}", said.err);
    let (head, _) = text.split_once("-----BEGIN").expect("a root");
    let roots = std::fs::read_to_string(home.join("ca/roots.pem")).expect("a root");
    std::fs::write(home.join("other"), format!("{head}{roots}")).expect("written");
    let mut waits = crate::common::alone(
        &[
            "machine",
            "join",
            "node:gpu-7",
            &home.join("other").display().to_string(),
            "--out",
            &home.join("o").display().to_string(),
        ],
        &home,
    );
    let mut waits = waits.stderr(std::process::Stdio::null()).spawn().expect("muster");
    std::thread::sleep(Duration::from_secs(3));
    assert!(waits.try_wait().expect("a process").is_none(), "it goes on looking for the cluster");
    waits.kill().expect("a process");
    drop(waits.wait());
    assert!(!home.join("o/machine.pem").exists());
    assert_eq!(join("node:gpu-7", &file).code, 0, "whoever it is for");
    std::fs::rename(home.join("node-gpu-7"), home.join("kept")).expect("moved");
    refused("node:gpu-7", &file, "with another key");
    let ended = make("gpu-6");
    let id = fleet.dev.run(&["machine", "token", "list", "-o", "json"]).json();
    let id = id.as_array().expect("a list").iter().filter_map(|token| token["id"].as_u64()).max().expect("a token");
    fleet.dev.ok(&["machine", "token", "revoke", &id.to_string()]);
    refused("node:gpu-6", &ended, "does not exist");
    fleet.is_well();
    fleet.is_recorded(&["Machines.Enroll", "not for node:node-0000"]);
}

/// Attempt 23.
#[test]
fn attempt_23_a_captured_shard_binds_nothing_without_a_lease_and_is_told_no_secret() {
    let fleet = Fleet::start();
    let channel = fleet.captured("shard-1", Role::Shard("shard-1".to_owned()));
    fleet.runtime.block_on(async {
        let mut shards = ShardsClient::new(channel.clone());
        let acquire = v1::AcquireRequest { cell: 1, shard: "shard-2".to_owned() };
        denied("it takes a cell as another", shards.acquire(acquire).await.map(drop));
        let release =
            v1::ReleaseRequest { shard: "shard-2".to_owned(), lease: Some(v1::HeldLease { cell: 1, epoch: 1 }) };
        denied("it gives another's cell back", shards.release(release).await.map(drop));
        for epoch in [0, 1_000_000] {
            let hand_over = v1::proposal::Kind::HandOver(v1::HandOver::default());
            let proposals = vec![v1::Proposal { kind: Some(hand_over) }];
            let proposed = shards.propose(v1::ProposeRequest { cell: 1, epoch, proposals }).await;
            let accepted = proposed
                .map(|reply| reply.into_inner())
                .ok()
                .is_some_and(|reply| format!("{reply:?}").contains("accepted"));
            assert!(!accepted, "epoch {epoch} is not the newest");
        }
        // All that it is told, from the beginning.
        let mut events = shards.watch(v1::WatchRequest { from_revision: 0 }).await.expect("a stream").into_inner();
        let (mut jobs, mut told) = (0, Vec::new());
        let until = tokio::time::Instant::now() + Duration::from_secs(3);
        while let Ok(Ok(Some(event))) = tokio::time::timeout_at(until, events.message()).await {
            jobs += format!("{event:?}").matches("JobSpec").count();
            told.extend(event.encode_to_vec());
        }
        assert!(jobs > 0, "it receives jobs");
        assert!(
            !told.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()),
            "a secret is in what shards are told"
        );
        denied("it joins as a node", hello(&channel, "node-0000").await);
        as_a_member("a shard", &channel).await;
        as_a_person("a shard", &fleet, &channel).await;
    });
    fleet.is_well();
    fleet.is_recorded(&["Shards.Acquire", "shard:shard-1"]);
}

/// Attempt 24.
#[test]
fn attempt_24_nobody_is_a_control_node_who_is_none() {
    let fleet = Fleet::start();
    // An issuer that signs for another id than its own is refused, whoever has its key.
    let forged = fleet.dev.path("forged");
    let issuer = fleet.dev.path("dev/identities/control-1").display().to_string();
    let [data, ca] =
        [forged.join("control-2"), fleet.dev.path("dev/identities/ca")].map(|path| path.display().to_string());
    let said: crate::common::Said =
        crate::common::alone(&["ca", "node", "control/2", "--issuer", &issuer, "--out", &data], &forged)
            .output()
            .expect("muster")
            .into();
    assert_ne!(said.code, 0, "{}", said.out);
    // One that was never made a member: its certificate is good, its id is nobody's.
    fleet.dev.ok(&["ca", "control", "7", "--ca", &ca, "--out", &data]);
    let channel = {
        let _on = fleet.runtime.enter();
        let host = muster_runtime::real::identified_host(
            "seven",
            fleet.dev.path("seven"),
            Duration::ZERO,
            Some(&forged.join("control-2")),
        );
        host.prepare(muster_runtime::Transport::Mutual, &Role::Control(7), None).expect("its own");
        host.net.dial(&fleet.for_machines(), muster_runtime::Expect::Control).expect("an endpoint")
    };
    fleet.runtime.block_on(async {
        let mut peer = PeerClient::new(channel.clone());
        for (what, answer) in [
            ("forwards a command", peer.forward(v1::Payload::default()).await),
            ("votes", peer.vote(v1::Payload::default()).await),
            ("reads", peer.read_index(v1::Payload::default()).await),
        ] {
            match answer {
                Err(refused) => denied(what, Err(refused)),
                // Votes are refused in the words of consensus.
                Ok(reply) => assert!(what == "votes" && reply.into_inner().data.len() < 64, "control node 7 {what}"),
            }
        }
        denied("it joins as a node", hello(&channel, "node-0000").await);
        as_a_person("a control node that is no member", &fleet, &channel).await;
    });
    fleet.is_well();
}
