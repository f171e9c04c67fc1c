//! The port itself: health, reflection, membership, and garbage that must not harm anybody.

use super::common::*;
use muster_proto::v1;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_reflection_answer() {
    let control = Control::start().await;
    assert!(control.node().is_healthy());
    let mut health = tonic_health::pb::health_client::HealthClient::new(control.channel());
    for service in ["", "muster.v1.Jobs", "muster.v1.Agents"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
        let reply = health.check(request).await.expect("an answer").into_inner();
        assert_eq!(reply.status, tonic_health::pb::health_check_response::ServingStatus::Serving as i32, "{service}");
    }
    use tonic_reflection::pb::v1 as reflection;
    let mut client = reflection::server_reflection_client::ServerReflectionClient::new(control.channel());
    let list = reflection::server_reflection_request::MessageRequest::ListServices(String::new());
    let request = reflection::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut replies = client.server_reflection_info(tokio_stream::once(request)).await.expect("a stream").into_inner();
    let reply = replies.message().await.expect("ok").expect("a reply").message_response.expect("not empty");
    let reflection::server_reflection_response::MessageResponse::ListServicesResponse(services) = reply else {
        panic!("{reply:?}")
    };
    let names: Vec<_> = services.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&"muster.v1.Jobs") && names.contains(&"muster.v1.Admin"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn membership_is_guarded() {
    let control = Control::start().await;
    let mut admin = v1::admin_client::AdminClient::new(control.channel());
    let status = admin.raft_status(v1::RaftStatusRequest {}).await.expect("a status").into_inner();
    assert_eq!((status.id, status.leader, status.state.as_str()), (1, Some(1), "leader"));
    assert_eq!(status.members.len(), 1);
    assert!(status.incarnation > 0);
    let member = |id, address: &str| v1::RaftMember { id, address: address.to_owned(), ..v1::RaftMember::default() };
    let members = vec![member(1, control.endpoint())];
    let refused = admin.bootstrap(v1::BootstrapRequest { members }).await.expect_err("it is in a cluster");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let cases = [
        ("members", vec![]),
        ("members[0].id", vec![member(0, "127.0.0.1:1")]),
        ("members[1].address", vec![member(1, "127.0.0.1:1"), member(2, "nowhere")]),
        ("members[1].id", vec![member(1, "127.0.0.1:1"), member(1, "127.0.0.1:2")]),
    ];
    for (field, members) in cases {
        let status = admin.bootstrap(v1::BootstrapRequest { members }).await.expect_err(field);
        assert_eq!(refused_fields(&status)[0].field, field);
    }
    let status = admin.add_learner(v1::AddLearnerRequest { id: 2, address: ":7".to_owned() }).await.expect_err("bad");
    assert_eq!(refused_fields(&status)[0].field, "address");
    let status = admin.remove(v1::RemoveRequest { id: 1, ..Default::default() }).await.expect_err("the last voter");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    let status = admin.promote(v1::PromoteRequest { id: 7 }).await.expect_err("no such learner");
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
}

/// Reproducible noise.
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 as u8
        };
        (0..count).map(|_| next()).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_port_harms_nobody() {
    let control = Control::start().await;
    control.tenant("research").await;
    let before = control.objects();
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut attacks: Vec<Vec<u8>> = (0..40).map(|size| noise.bytes(1 << (size % 14))).collect();
    attacks.extend([
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"POST /muster.v1.Jobs/Submit HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n".to_vec(),
        vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03],
        preface.clone(),
        [preface.clone(), noise.bytes(4_096)].concat(),
        // A frame that claims to be as long as a frame can be.
        [preface, vec![0xff, 0xff, 0xff, 0x00, 0x00, 0, 0, 0, 1]].concat(),
    ]);
    let mut held = Vec::new();
    for attack in attacks {
        let mut stream = TcpStream::connect(control.endpoint()).await.expect("it listens");
        let _ = stream.write_all(&attack).await;
        let mut answer = [0; 256];
        let _ = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut answer)).await;
        held.push(stream);
    }
    // With all those connections still open, and then gone.
    assert_eq!(control.objects(), before);
    assert_eq!(control.submit("a", vec![job()]).await, [1]);
    drop(held);
    assert_eq!(control.submit("b", vec![job()]).await, [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_between_control_nodes_is_refused() {
    let control = Control::start().await;
    let before = control.objects();
    let mut noise = Noise(42);
    for round in 0..50 {
        let data = noise.bytes(round * 7);
        let payload = || v1::Payload { data: data.clone() };
        let mut peer = v1::peer_client::PeerClient::new(control.channel());
        let calls = [
            ("AppendEntries", peer.append_entries(payload()).await.map(drop)),
            ("Vote", peer.vote(payload()).await.map(drop)),
            ("InstallSnapshot", peer.install_snapshot(tokio_stream::iter([payload(), payload()])).await.map(drop)),
            ("Forward", peer.forward(payload()).await.map(drop)),
            ("RenewLeases", peer.renew_leases(payload()).await.map(drop)),
            ("Logs", peer.logs(payload()).await.map(drop)),
        ];
        for (call, answer) in calls {
            // A refusal may also travel as an answer; what counts is that nothing breaks.
            if let Err(status) = answer {
                assert_ne!(status.code(), Code::Cancelled, "{call}: {status:?}");
            }
        }
    }
    assert_eq!(control.objects(), before);
    control.tenant("research").await;
    assert_eq!(control.submit("a", vec![job()]).await, [1]);
}

/// A task that the node needs has a bug: the node does not go on without it, and says why it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_task_ends_the_node_with_its_reason() {
    let control = Control::start().await;
    drop(control.host().spawn(async { panic!("a planted bug") }));
    let why = tokio::time::timeout(PATIENCE, control.node().ended()).await.expect("it ends");
    assert!(why.contains("a task panicked: a planted bug"), "{why}");
}

/// Long work that panics where it is handed over: inside a handler.
struct Broken;

impl muster_runtime::heavy::Heavy for Broken {
    fn take(&self, _: muster_runtime::heavy::Work) -> Result<(), muster_runtime::heavy::Full> {
        panic!("a planted bug")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_one_call_is_that_callers_alone() {
    let control = Control::with_heavy(std::sync::Arc::new(Broken)).await;
    control.tenant("research").await;
    let id = control.submit("one", vec![job()]).await[0];
    for _ in 0..3 {
        let explain = v1::ExplainRequest { job_id: id, consistency: 0 };
        assert!(control.jobs().explain(explain).await.is_err(), "it panics");
    }
    control.submit("two", vec![job()]).await;
    assert!(control.node().is_healthy());
}
