//! Three voters: whatever a client, shard or agent may ask of any control node, it gets from a follower too, and goes on getting when
//! the leader ends.

use super::common::*;
use super::shards::bind;
use muster_control_server::LeaseConfig;
use muster_proto::v1;
use std::time::Duration;
use v1::JobPhase;
use v1::task_state::Kind;

/// The index of the leader among the nodes that run.
async fn leader(controls: &[Control]) -> usize {
    until("a leader", || async { controls.iter().position(|control| control.node().consensus().is_leader()) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_through_a_follower_and_across_a_failover() {
    let leases = LeaseConfig { cell_lease_ms: 600_000, node_silent_ms: 3_000, batch_ms: 5, ..LeaseConfig::default() };
    let mut controls = Control::three(leases).await;
    let old = controls.remove(leader(&controls).await);
    let (a, b) = (&controls[0], &controls[1]);

    a.tenant("research").await;
    let mut agent = Agent::join(a, node_spec("n1"), None).await;
    agent.desired().await;
    agent.beat(1).await;
    agent.lease_ack(1).await;
    let ids = b.submit("a", vec![gpu_job(1), gpu_job(1)]).await;
    let allocation = bind(b, ids[0], 1, &[0]).await;
    assert_eq!(agent.desired().await.tasks.len(), 1);
    agent.report(1, allocation, 0, Kind::Running, 0).await;
    agent.reports_ack(1).await;
    assert_eq!(
        b.job(ids[0]).await.phase(),
        JobPhase::Running,
        "a linearizable read elsewhere sees what was acknowledged"
    );

    // The session is at one follower; its output is read through the other.
    let request = v1::LogsRequest { job_id: ids[0], ..v1::LogsRequest::default() };
    let mut logs = b.jobs().logs(request).await.expect("a stream").into_inner();
    let asked = agent
        .until("a log request", |said| match said {
            Said::Log(request) => Some(request),
            _ => None,
        })
        .await;
    let data = v1::LogData { request: asked.request, data: b"hello".to_vec(), end: true, ..v1::LogData::default() };
    agent.say(v1::agent_message::Message::Log(data)).await;
    let chunk = tokio::time::timeout(PATIENCE, logs.message()).await.expect("in time").expect("ok").expect("a chunk");
    assert_eq!(chunk.data, b"hello");
    assert!(logs.message().await.expect("ok").is_none());

    // Membership changes go to the leader from anywhere.
    let mut admin = v1::admin_client::AdminClient::new(a.channel());
    let status = admin.promote(v1::PromoteRequest { id: 9 }).await.expect_err("no such learner");
    assert_eq!(status.code(), tonic::Code::NotFound, "{status:?}");

    let mut old = old;
    old.stop().await;
    // The new leader counts leases afresh; the session goes on, and nothing that runs is touched.
    for seq in 2..=40 {
        agent.beat(seq).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    agent.beat(41).await;
    agent.lease_ack(41).await;
    let job = a.job(ids[0]).await;
    assert_eq!((job.phase(), job.attempt), (JobPhase::Running, 1));
    assert_eq!(a.submit("a", vec![gpu_job(1), gpu_job(1)]).await, ids, "a retry is recognised by the new leader");
    agent.report(2, allocation, 0, Kind::Exited, 0).await;
    agent.reports_ack(2).await;
    assert_eq!(b.job(ids[0]).await.phase(), JobPhase::Completed);
    let node = b.fleet().list_nodes(v1::ListNodesRequest::default()).await.expect("nodes").into_inner().nodes.remove(0);
    assert_eq!(node.node.expect("a node").health(), v1::NodeHealth::Ready);
}

/// A session that a follower has not heard of may be newer than what it has applied; the leader knows that there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_refuses_no_session_that_it_has_not_heard_of() {
    let controls = Control::three(LeaseConfig::default()).await;
    let leader = leader(&controls).await;
    let body = format!("ms1_1000_{}", "0".repeat(64));
    let text = format!("Bearer {body}_{:08x}", crc32fast::hash(body.as_bytes()));
    for (index, control) in controls.iter().enumerate() {
        let mut request = tonic::Request::new(v1::WhoAmIRequest {});
        request.metadata_mut().insert("authorization", text.parse().expect("ASCII"));
        let mut auth = v1::auth_client::AuthClient::new(control.channel());
        let status = auth.who_am_i(request).await.expect_err("there is no such session");
        let expected = if index == leader { tonic::Code::Unauthenticated } else { tonic::Code::Unavailable };
        assert_eq!(status.code(), expected, "{status:?}");
    }
}
