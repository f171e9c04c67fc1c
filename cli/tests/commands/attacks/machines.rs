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
    let [region, zone, block, leaf] = ["r", "z", "b", "l"].map(str::to_owned);
    let spec = v1::NodeSpec {
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
    let hello = v1::Hello { spec: Some(spec), agent: 99, ..v1::Hello::default() };
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
