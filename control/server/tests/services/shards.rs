//! Leases of cells, the watch, and proposals.

use super::common::*;
use muster_control_server::{LeaseConfig, SessionConfig};
use muster_proto::v1;
use tonic::Code;
use v1::proposal_result::Result as Answer;
use v1::rejection::Kind;
use v1::watch_change::Change;

/// Takes the cell's lease anew and binds a job's only task to cards of a node.
pub(crate) async fn bind(control: &Control, job: u64, attempt: u32, cards: &[u32]) -> u64 {
    let request = v1::AcquireRequest { cell: 1, shard: "test".to_owned() };
    let epoch = control.shards().acquire(request).await.expect("the lease").into_inner().epoch;
    bound(control, epoch, binding(job, attempt, cards)).await
}

/// Takes the cell's lease anew and binds a gang, each task to this card of one of these nodes.
pub(crate) async fn bind_on(control: &Control, job: u64, nodes: &[u32], gpu: u32) -> u64 {
    let request = v1::AcquireRequest { cell: 1, shard: "test".to_owned() };
    let epoch = control.shards().acquire(request).await.expect("the lease").into_inner().epoch;
    let mode = Some(v1::device_hold::Mode::Whole(v1::WholeGpus { count: 1 }));
    let task =
        |node: &u32| v1::TaskPlacement { node: *node, devices: vec![v1::DeviceHold { gpu, mode: mode.clone() }] };
    let bind = v1::Bind { job, attempt: 1, model: "h100".to_owned(), tasks: nodes.iter().map(task).collect() };
    bound(control, epoch, v1::Proposal { kind: Some(v1::proposal::Kind::Bind(bind)) }).await
}

async fn bound(control: &Control, epoch: u64, proposal: v1::Proposal) -> u64 {
    match propose(control, epoch, vec![proposal]).await.remove(0) {
        Answer::Allocation(id) => id,
        other => panic!("not bound: {other:?}"),
    }
}

fn binding(job: u64, attempt: u32, cards: &[u32]) -> v1::Proposal {
    let devices = cards
        .iter()
        .map(|gpu| v1::DeviceHold { gpu: *gpu, mode: Some(v1::device_hold::Mode::Whole(v1::WholeGpus { count: 1 })) })
        .collect();
    let model = if cards.is_empty() { String::new() } else { "h100".to_owned() };
    let tasks = vec![v1::TaskPlacement { node: 1, devices }];
    v1::Proposal { kind: Some(v1::proposal::Kind::Bind(v1::Bind { job, attempt, model, tasks })) }
}

async fn propose(control: &Control, epoch: u64, proposals: Vec<v1::Proposal>) -> Vec<Answer> {
    let request = v1::ProposeRequest { cell: 1, epoch, proposals };
    let reply = control.shards().propose(request).await.expect("answers").into_inner();
    reply.results.into_iter().map(|result| result.result.expect("each is answered")).collect()
}

fn kind(answer: &Answer) -> Kind {
    match answer {
        Answer::Rejection(rejection) => rejection.kind(),
        other => panic!("accepted: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_proposal_is_answered_on_its_own() {
    let control = Control::start().await;
    control.tenant("research").await;
    let _agent = Agent::join(&control, node_spec("n1"), None).await;
    let ids = control.submit("a", vec![gpu_job(2), gpu_job(2), job()]).await;
    let request = v1::AcquireRequest { cell: 1, shard: "one".to_owned() };
    let epoch = control.shards().acquire(request).await.expect("the lease").into_inner().epoch;
    let answers = propose(
        &control,
        epoch,
        vec![
            binding(ids[0], 1, &[0, 1]),
            binding(ids[1], 1, &[1, 2]),
            v1::Proposal { kind: None },
            binding(ids[1], 1, &[2]),
            binding(ids[1], 7, &[2, 3]),
            binding(99, 1, &[2, 3]),
            v1::Proposal { kind: Some(v1::proposal::Kind::HandOver(v1::HandOver { job: ids[2] })) },
            binding(ids[1], 1, &[2, 3]),
        ],
    )
    .await;
    assert!(matches!(answers[0], Answer::Allocation(1)), "{answers:?}");
    assert_eq!(kind(&answers[1]), Kind::DoesNotFit, "card 1 is taken");
    assert_eq!(kind(&answers[2]), Kind::WrongShape, "neither binding nor hand-over");
    assert_eq!(kind(&answers[3]), Kind::WrongShape, "two cards were asked for");
    assert_eq!(kind(&answers[4]), Kind::NotWaiting, "attempt 1 is next");
    assert_eq!(kind(&answers[5]), Kind::NotWaiting, "no such job");
    assert_eq!(kind(&answers[6]), Kind::NowhereElse, "there is one cell");
    assert!(matches!(answers[7], Answer::Allocation(2)), "{answers:?}");
    let answers = propose(&control, epoch - 1, vec![binding(ids[2], 1, &[])]).await;
    assert_eq!(kind(&answers[0]), Kind::StaleEpoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_not_renewed_changes_hands() {
    let control =
        Control::with(LeaseConfig { node_silent_ms: 600_000, ..LeaseConfig::short() }, SessionConfig::default()).await;
    control.tenant("research").await;
    let _agent = Agent::join(&control, node_spec("n1"), None).await;
    let ids = control.submit("a", vec![job()]).await;
    let mut shards = control.shards();
    let acquire = |shard: &str| v1::AcquireRequest { cell: 1, shard: shard.to_owned() };
    let first = shards.acquire(acquire("one")).await.expect("the lease").into_inner().epoch;
    let held = |epoch| vec![v1::HeldLease { cell: 1, epoch }];
    // For twice the lease it is kept by renewals, and nobody else gets it.
    for _ in 0..20 {
        let renew = v1::RenewRequest { shard: "one".to_owned(), leases: held(first) };
        let reply = shards.renew(renew).await.expect("renewed").into_inner();
        assert_eq!(reply.lost_cells, Vec::<u32>::new());
        let status = shards.acquire(acquire("two")).await.expect_err("it is held");
        assert_eq!(status.code(), Code::FailedPrecondition);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let second = until("the lease to end", || {
        let mut shards = control.shards();
        let request = acquire("two");
        async move { shards.acquire(request).await.ok() }
    })
    .await
    .into_inner()
    .epoch;
    assert!(second > first, "the epoch grows: {first} then {second}");
    let renew = v1::RenewRequest { shard: "one".to_owned(), leases: held(first) };
    assert_eq!(shards.renew(renew).await.expect("an answer").into_inner().lost_cells, [1]);
    let answers = propose(&control, first, vec![binding(ids[0], 1, &[])]).await;
    assert_eq!(kind(&answers[0]), Kind::StaleEpoch, "only the newest epoch may bind (law 7)");

    let lease = Some(v1::HeldLease { cell: 1, epoch: second });
    shards.release(v1::ReleaseRequest { shard: "two".to_owned(), lease }).await.expect("given back");
    shards.acquire(acquire("three")).await.expect("free at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watch_gives_a_snapshot_in_parts_and_then_every_revision() {
    let control = Control::start().await;
    control.tenant("research").await;
    let _agent = Agent::join(&control, node_spec("n1"), None).await;
    for part in 0..3 {
        control.submit(&format!("many-{part}"), vec![job(); 900]).await;
    }
    let mut watch = control.shards().watch(v1::WatchRequest { from_revision: 0 }).await.expect("a watch").into_inner();
    let (mut jobs, mut others, mut parts) = (0, 0, 0);
    let snapshot = loop {
        let event = tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time").expect("ok").expect("more");
        assert!(event.snapshot);
        assert!(event.changes.len() <= 1_000, "{} changes in one event", event.changes.len());
        parts += 1;
        for change in &event.changes {
            match change.change.as_ref().expect("not empty") {
                Change::Job(_) => jobs += 1,
                Change::Node(_) | Change::Tenant(_) | Change::Cell(_) | Change::Pool(_) => others += 1,
                other => panic!("not in a snapshot of waiting jobs: {other:?}"),
            }
        }
        if !event.more {
            break event.revision;
        }
    };
    assert_eq!((jobs, parts), (2_700, 3));
    assert!(others >= 3, "a tenant, a cell and a node");

    let id = control.submit("later", vec![job()]).await[0];
    control.jobs().cancel(v1::CancelRequest { job_id: id }).await.expect("cancelled");
    for (case, mut watch) in [
        ("going on", watch),
        (
            "from the snapshot's revision",
            control.shards().watch(v1::WatchRequest { from_revision: snapshot }).await.expect("a watch").into_inner(),
        ),
    ] {
        let mut last = snapshot;
        let mut changes = Vec::new();
        while changes.len() < 2 {
            let event =
                tokio::time::timeout(PATIENCE, watch.message()).await.expect("in time").expect("ok").expect("more");
            assert!(!event.snapshot, "{case}");
            // Without changes it says only that the watch is alive.
            let is_beat = event.changes.is_empty() && event.revision == last;
            assert!(event.revision > last || is_beat, "{case}: revision {} after {last}", event.revision);
            last = event.revision;
            changes.extend(event.changes.into_iter().filter_map(|change| change.change));
        }
        assert!(matches!(&changes[0], Change::Job(job) if job.id == id), "{case}: {changes:?}");
        assert!(matches!(changes[1], Change::JobGone(gone) if gone == id), "{case}: {changes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_calls_name_their_field() {
    let control = Control::start().await;
    let mut shards = control.shards();
    let status = shards.acquire(v1::AcquireRequest { cell: 1, shard: String::new() }).await.expect_err("no name");
    assert_eq!(refused_fields(&status)[0].field, "shard");
    let status = shards.acquire(v1::AcquireRequest { cell: 9, shard: "s".to_owned() }).await.expect_err("no cell");
    assert_eq!(status.code(), Code::NotFound);
    let request = v1::ReleaseRequest { shard: "s".to_owned(), lease: None };
    assert_eq!(refused_fields(&shards.release(request).await.expect_err("no lease"))[0].field, "lease");
    let proposals = vec![v1::Proposal { kind: None }; 1_025];
    let status = shards.propose(v1::ProposeRequest { cell: 1, epoch: 1, proposals }).await.expect_err("too many");
    assert_eq!(refused_fields(&status)[0].field, "proposals");
}
