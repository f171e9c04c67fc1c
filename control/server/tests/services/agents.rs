//! Sessions of agents, from joining to being fenced.

use super::common::*;
use super::shards::bind;
use muster_control_server::{LeaseConfig, SessionConfig};
use muster_proto::v1;
use std::time::Duration;
use v1::JobPhase;
use v1::agent_message::Message;
use v1::task_state::Kind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_lives_from_desired_to_completed() {
    let control = Control::start().await;
    control.tenant("research").await;
    let spec = v1::NodeSpec { address: "10.0.0.7".to_owned(), ..node_spec("n1") };
    let mut agent = Agent::join(&control, spec, None).await;
    assert_eq!((agent.welcome.node, agent.welcome.node_epoch), (1, 1));
    let empty = agent.desired().await;
    assert_eq!(empty.tasks, []);
    agent.beat(1).await;
    agent.lease_ack(1).await;

    let id = control.submit("a", vec![gpu_job(2)]).await[0];
    let allocation = bind(&control, id, 1, &[0, 1]).await;
    let desired = agent.desired().await;
    let (stamp, before) = (desired.stamp.expect("a stamp"), empty.stamp.expect("a stamp"));
    assert_eq!((stamp.incarnation, stamp.node_epoch), (before.incarnation, 1));
    assert!(stamp.revision > before.revision, "stamps go up");
    let task = &desired.tasks[0];
    assert_eq!((task.job, task.allocation, task.rank, task.attempt), (id, allocation, 0, 1));
    assert_eq!((task.devices.len(), task.gpu_units, task.stop), (2, 14_000, false));
    assert_eq!(task.master_addr, "10.0.0.7", "where the ranks of a gang find the first");

    agent.report(1, allocation, 0, Kind::Running, 0).await;
    agent.reports_ack(1).await;
    assert_eq!(control.job(id).await.phase(), JobPhase::Running);
    agent.report(2, allocation, 0, Kind::Exited, 0).await;
    agent.reports_ack(2).await;
    let job = control.job(id).await;
    assert_eq!(job.phase(), JobPhase::Completed);
    assert_eq!(agent.desired().await.tasks, [], "what is over is not desired any more");
    // Delivery is at least once: the same report again changes nothing.
    agent.report(3, allocation, 0, Kind::Exited, 0).await;
    agent.reports_ack(3).await;
    assert_eq!(control.job(id).await, job);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_is_stopped_first() {
    let control = Control::start().await;
    control.tenant("research").await;
    let mut agent = Agent::join(&control, node_spec("n1"), None).await;
    agent.desired().await;
    let id = control.submit("a", vec![gpu_job(1)]).await[0];
    let allocation = bind(&control, id, 1, &[3]).await;
    assert_eq!(agent.desired().await.tasks.len(), 1);
    agent.report(1, allocation, 0, Kind::Running, 0).await;
    agent.reports_ack(1).await;
    control.jobs().cancel(v1::CancelRequest { job_id: id }).await.expect("cancelled");
    assert!(agent.desired().await.tasks[0].stop, "it is to stop, and still holds its card");
    agent.report(2, allocation, 0, Kind::Stopped, 0).await;
    agent.reports_ack(2).await;
    assert_eq!(control.job(id).await.phase(), JobPhase::Cancelled);
}

/// Law 9: intervals that are sent again, in other batches and in another session, count once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_counts_exactly_once() {
    let control = Control::start().await;
    control.tenant("research").await;
    let mut agent = Agent::join(&control, node_spec("n1"), None).await;
    let id = control.submit("a", vec![gpu_job(1)]).await[0];
    let allocation = bind(&control, id, 1, &[0]).await;
    let stream = agent.welcome.usage_incarnation;
    for (sent, mark) in [(1..=3, 3), (1..=3, 3), (2..=5, 5), (9..=9, 5), (6..=6, 6)] {
        agent.usage(stream, sent.clone(), allocation).await;
        let ack = agent.usage_ack().await;
        assert_eq!((ack.incarnation, ack.mark), (stream, mark), "after {sent:?}");
    }
    drop(agent);
    let mut agent = Agent::join(&control, node_spec("n1"), Some(stream)).await;
    assert_eq!((agent.welcome.usage_incarnation, agent.welcome.usage_mark), (stream, 6));
    agent.usage(stream, 4..=7, allocation).await;
    assert_eq!(agent.usage_ack().await.mark, 7);

    let mut usage = v1::usage_client::UsageClient::new(control.channel());
    let reply = usage.get(v1::GetUsageRequest::default()).await.expect("usage").into_inner();
    let research = reply.tenants.iter().find(|tenant| tenant.path == "research").expect("the tenant");
    assert_eq!((research.intervals, research.gpu_unit_ms.as_str()), (7, "49000000"));
    assert!((research.gpu_seconds - 7.0).abs() < 1e-9, "{}", research.gpu_seconds);

    // An agent that has lost its record begins a new stream; the old one is refused.
    let mut agent = Agent::join(&control, node_spec("n1"), None).await;
    assert!(agent.welcome.usage_incarnation > stream);
    agent.usage(stream, 8..=8, allocation).await;
    let reason = agent.until("a refusal", refused).await;
    assert!(reason.contains("usage"), "{reason}");
}

fn refused(said: Said) -> Option<String> {
    match said {
        Said::Refused(refused) => Some(refused.reason),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_is_fenced_and_its_job_waits_again() {
    let control =
        Control::with(LeaseConfig { cell_lease_ms: 600_000, ..LeaseConfig::short() }, SessionConfig::default()).await;
    control.tenant("research").await;
    let mut agent = Agent::join(&control, node_spec("n1"), None).await;
    let id = control.submit("a", vec![gpu_job(1)]).await[0];
    let allocation = bind(&control, id, 1, &[0]).await;
    agent.report(1, allocation, 0, Kind::Running, 0).await;
    agent.reports_ack(1).await;
    // As long as it is heard of, it is ready, however long that is.
    for seq in 1..=20 {
        agent.beat(seq).await;
        agent.lease_ack(seq).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(health(&control).await, v1::NodeHealth::Ready);
    until("the node to be silent", || async { (health(&control).await == v1::NodeHealth::Silent).then_some(()) }).await;
    assert_eq!(control.job(id).await.phase(), JobPhase::Running, "what runs is left alone");
    agent.beat(100).await;
    agent.lease_ack(100).await;
    until("the node to be ready", || async { (health(&control).await == v1::NodeHealth::Ready).then_some(()) }).await;

    until("the fence", || async { (health(&control).await == v1::NodeHealth::Down).then_some(()) }).await;
    let job = control.job(id).await;
    assert_eq!((job.phase(), job.failures), (JobPhase::Pending, 0), "a lost node is not the job's failure");
    let reason = agent.until("a refusal", refused).await;
    assert!(reason.contains("fenced"), "{reason}");

    let mut agent = Agent::join(&control, node_spec("n1"), None).await;
    assert_eq!(agent.welcome.node_epoch, 2);
    assert_eq!(agent.desired().await.tasks, [], "the old attempt is not desired");
    agent.beat(1).await;
    agent.lease_ack(1).await;
    let again = bind(&control, id, 2, &[0]).await;
    assert!(again > allocation);
    assert_eq!(agent.desired().await.tasks[0].attempt, 2);
}

async fn health(control: &Control) -> v1::NodeHealth {
    let request = v1::ListNodesRequest { consistency: 1, ..v1::ListNodesRequest::default() };
    let reply = control.fleet().list_nodes(request).await.expect("nodes").into_inner();
    reply.nodes[0].node.as_ref().expect("a node").health()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_session_replaces_the_older_one() {
    let control = Control::start().await;
    let mut old = Agent::join(&control, node_spec("n1"), None).await;
    let mut new = Agent::join(&control, node_spec("n1"), None).await;
    let reason = old.until("a refusal", refused).await;
    assert!(reason.contains("another session"), "{reason}");
    new.beat(1).await;
    new.lease_ack(1).await;
    assert_eq!(control.node().agent_sessions(), 1);
}

/// A reboot is seen by its boot id: what ran before is gone, under a new epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebooted_node_comes_back_under_a_new_epoch() {
    let control =
        Control::with(LeaseConfig { cell_lease_ms: 600_000, ..LeaseConfig::short() }, SessionConfig::default()).await;
    control.tenant("research").await;
    let agent = Agent::join(&control, node_spec("n1"), None).await;
    let id = control.submit("a", vec![gpu_job(1)]).await[0];
    bind(&control, id, 1, &[0]).await;
    drop(agent);
    // Until then it might be another host of that name.
    until("the node to be silent", || async { (health(&control).await == v1::NodeHealth::Silent).then_some(()) }).await;
    let rebooted = v1::NodeSpec { boot_id: "boot-2".to_owned(), ..node_spec("n1") };
    let mut agent = Agent::join(&control, rebooted, None).await;
    assert_eq!(agent.welcome.node_epoch, 2);
    assert_eq!(agent.desired().await.tasks, []);
    assert_eq!(control.job(id).await.phase(), JobPhase::Pending);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_agent_costs_only_itself() {
    let sessions = SessionConfig { idle_ms: 600, ..SessionConfig::default() };
    let control = Control::with(patient(), sessions).await;
    // It says hello and then neither reads nor writes.
    let stopped = Agent::dial(&control, Agent::hello(Some(node_spec("stopped")), None)).await.expect("a session");
    let mut agent = Agent::join(&control, node_spec("n1"), None).await;
    until("both sessions", || async { (control.node().agent_sessions() == 2).then_some(()) }).await;
    let mut seq = 0;
    while control.node().agent_sessions() == 2 {
        seq += 1;
        assert!(seq < 400, "the stopped agent's session never ended");
        agent.beat(seq).await;
        agent.lease_ack(seq).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    agent.beat(seq + 1).await;
    agent.lease_ack(seq + 1).await;
    drop(stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_streamed_from_the_agent_that_has_it() {
    let control = Control::start().await;
    control.tenant("research").await;
    let mut agent = Agent::join(&control, node_spec("n1"), None).await;
    let id = control.submit("a", vec![gpu_job(1)]).await[0];
    let allocation = bind(&control, id, 1, &[0]).await;
    agent.report(1, allocation, 0, Kind::Exited, 0).await;
    agent.reports_ack(1).await;
    assert_eq!(control.job(id).await.phase(), JobPhase::Completed, "the agent still has the file");

    let request = v1::LogsRequest { job_id: id, offset: 2, ..v1::LogsRequest::default() };
    let mut logs = control.jobs().logs(request).await.expect("a stream").into_inner();
    let asked = agent.until("a log request", log_request).await;
    assert_eq!((asked.allocation, asked.rank, asked.offset, asked.cancel), (allocation, 0, 2, false));
    let data = |data: &str, offset: u64, end: bool| {
        let data = data.as_bytes().to_vec();
        v1::agent_message::Message::Log(v1::LogData {
            request: asked.request,
            data,
            offset,
            end,
            ..v1::LogData::default()
        })
    };
    agent.say(data("llo", 2, false)).await;
    agent.say(data(" world", 5, true)).await;
    let mut text = Vec::new();
    while let Some(chunk) = tokio::time::timeout(PATIENCE, logs.message()).await.expect("in time").expect("ok") {
        assert_eq!(chunk.offset, 2 + text.len() as u64);
        text.extend(chunk.data);
    }
    assert_eq!(text, b"llo world");

    let mut logs = control.jobs().logs(request_of(id)).await.expect("a stream").into_inner();
    let asked = agent.until("a log request", log_request).await;
    let failed =
        v1::LogData { request: asked.request, error: "no such file".to_owned(), end: true, ..v1::LogData::default() };
    agent.say(v1::agent_message::Message::Log(failed)).await;
    let status = tokio::time::timeout(PATIENCE, logs.message()).await.expect("in time").expect_err("the agent cannot");
    assert!(status.message().contains("no such file"), "{status:?}");
    let bad = v1::LogsRequest { rank: 5, ..request_of(id) };
    assert_eq!(refused_fields(&control.jobs().logs(bad).await.expect_err("no such rank"))[0].field, "rank");
}

fn request_of(job_id: u64) -> v1::LogsRequest {
    v1::LogsRequest { job_id, ..v1::LogsRequest::default() }
}

fn log_request(said: Said) -> Option<v1::LogRequest> {
    match said {
        Said::Log(request) => Some(request),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_another_cluster_is_refused_before_it_is_anything() {
    let control = Control::with(LeaseConfig::short(), SessionConfig::default()).await;
    let mut client = v1::agents_client::AgentsClient::new(control.channel());
    let known = client.identify(v1::IdentifyRequest {}).await.expect("there is a cluster").into_inner();
    assert_ne!(known.cluster, 0);
    assert_eq!(known.incarnation, 1, "the first history of the cluster");
    let hello = |cluster| {
        let Message::Hello(hello) = Agent::hello(Some(node_spec("n1")), None) else { panic!("a hello") };
        Message::Hello(v1::Hello { cluster: Some(cluster), ..hello })
    };
    let (_out, mut inbound) = Agent::dial(&control, hello(known.cluster + 1)).await.expect("a session");
    let Said::Refused(refused) = next(&mut inbound).await else { panic!("it has to be refused") };
    assert!(
        refused.reason.contains("belongs to cluster") && refused.reason.contains("delete its data folder"),
        "{refused:?}"
    );
    let mut fleet = v1::fleet_client::FleetClient::new(control.channel());
    let nodes = fleet.list_nodes(v1::ListNodesRequest::default()).await.expect("nodes").into_inner().nodes;
    assert_eq!(nodes, [], "nothing of it was taken over");
    let (_out, mut inbound) = Agent::dial(&control, hello(known.cluster)).await.expect("a session");
    let Said::Welcome(welcome) = next(&mut inbound).await else { panic!("its own cluster takes it") };
    assert_eq!((welcome.cluster, welcome.cluster_incarnation), (known.cluster, 1));
}
