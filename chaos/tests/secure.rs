//! A whole cluster over TLS with both certificates, on real sockets: three voters, a shard, an agent, and a person.

use muster_agent::exec::Executor;
use muster_agent::exec::virtual_::VirtualMachine;
use muster_agent::gpu::sim::SimGpus;
use muster_agent::{Agent, AgentConfig};
use muster_chaos::specs;
use muster_control_server::{ControlConfig, ControlNode};
use muster_proto::v1::jobs_client::JobsClient;
use muster_proto::v1::machines_client::MachinesClient;
use muster_proto::v1::shards_client::ShardsClient;
use muster_proto::v1::tenants_client::TenantsClient;
use muster_proto::v1::{self, JobPhase};
use muster_runtime::pki::{LocalAuthorities, Role};
use muster_runtime::{Chance, Channel, Expect, Host, Transport, real};
use muster_scheduler_server::{Shard, ShardConfig};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Nothing that is waited for takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("there is not {what}"))
}

/// Ports that nobody has now, one for people and one for machines of each voter.
fn ports() -> Vec<[String; 2]> {
    let held: Vec<[TcpListener; 2]> =
        (0..3).map(|_| [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"))).collect();
    let at = |listener: &TcpListener| listener.local_addr().expect("an address").to_string();
    held.iter().map(|[users, machines]| [at(users), at(machines)]).collect()
}

/// A host with credentials on its disk.
async fn host(folder: &Path, authorities: &LocalAuthorities, name: &str, role: Role) -> Host {
    let host = real::host(name, folder.join(name));
    let credentials = authorities.machine(role).expect("a machine");
    credentials.save(&*host.files).await.expect("a working disk");
    host
}

struct Control {
    nodes: Vec<(Host, ControlNode)>,
    users: Vec<String>,
    machines: Vec<String>,
}

impl Control {
    async fn start(folder: &Path, authorities: &LocalAuthorities) -> Self {
        let mut nodes = Vec::new();
        let ports = ports();
        for (id, [users, machines]) in (1..).zip(&ports) {
            let host = host(folder, authorities, &format!("control-{id}"), Role::Control(id)).await;
            let config = ControlConfig {
                listen: users.clone(),
                machines: Some(machines.clone()),
                ..ControlConfig::new(id, machines.clone())
            };
            let node = ControlNode::start(host.clone(), config).await.expect("it starts");
            assert_eq!(node.machines_endpoint(), Some(machines.as_str()));
            nodes.push((host, node));
        }
        let members: BTreeMap<u64, String> = (1..).zip(ports.iter().map(|[_, machines]| machines.clone())).collect();
        nodes[0].1.consensus().bootstrap(members).await.expect("a new cluster");
        let (users, machines) = ports.into_iter().map(|[users, machines]| (users, machines)).unzip();
        let control = Control { nodes, users, machines };
        for (_, node) in &control.nodes {
            until("a leader", || async { node.consensus().read_index().await.ok() }).await;
        }
        control
    }
}

fn dial(host: &Host, endpoint: &str, expect: Expect) -> Channel {
    host.net.dial(endpoint, expect).expect("an endpoint")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_works_over_tls_and_lets_in_whom_it_knows() {
    let folder = tempfile::tempdir().expect("a folder");
    let scheme = real::host("ca", folder.path()).pki;
    let now_ms = real::host("clock", folder.path()).clock.wall_ms();
    let authorities = LocalAuthorities::new(scheme.clone(), "c1", 1..=3, now_ms).expect("authorities");
    let control = Control::start(folder.path(), &authorities).await;

    let shard_host = host(folder.path(), &authorities, "shard", Role::Shard("s1".into())).await;
    let config =
        ShardConfig { transport: Transport::Mutual, ..ShardConfig::new("s1".to_owned(), control.machines.clone()) };
    let shard = Shard::start(&shard_host, config).expect("it starts");
    let agent_host = host(folder.path(), &authorities, "node", Role::Node("node-0".into())).await;
    let spec = specs::node(0, "boot");
    let gpus = Arc::new(SimGpus::open(spec.gpus.clone(), "boot", None).expect("cards"));
    let executor: Arc<dyn Executor> = Arc::new(VirtualMachine::new(agent_host.clock.clone(), true));
    let config = AgentConfig {
        transport: Transport::Mutual,
        ..AgentConfig::new(spec, control.machines.clone(), executor, gpus)
    };
    let agent = Agent::start(agent_host.clone(), config).await.expect("it starts");
    until("a session", || async { agent.status().session }).await;

    // A person, who trusts the root and shows no certificate, at any voter.
    let person = real::host("person", folder.path().join("person"));
    person.net.set_credentials(Some(authorities.anonymous().expect("a root"))).expect("usable");
    let tenants: Vec<v1::TenantSpec> = specs::tenants().iter().map(Into::into).collect();
    let call = v1::ApplyTenantsRequest { tenants, ..v1::ApplyTenantsRequest::default() };
    TenantsClient::new(dial(&person, &control.users[0], Expect::Control)).apply(call).await.expect("applied");
    let job = v1::JobSpec { tasks: 1, ..v1::JobSpec::from(&specs::job(&Chance::seeded(1), 1)) };
    let call = v1::SubmitRequest { request_id: "a".into(), issued_ms: Some(now_ms), jobs: vec![job] };
    let mut jobs = JobsClient::new(dial(&person, &control.users[1], Expect::Control));
    let id = jobs.submit(call).await.expect("submitted").into_inner().job_ids[0];
    until("a job that has run", || {
        let mut jobs = jobs.clone();
        async move {
            let call = v1::GetJobRequest { job_id: id, ..v1::GetJobRequest::default() };
            let job = jobs.get(call).await.ok()?.into_inner().job?;
            (!matches!(job.phase(), JobPhase::Pending | JobPhase::Starting)).then_some(())
        }
    })
    .await;
    // Every host has heard the time of the state, however wrong its own clock may be.
    let wall = Duration::from_millis(now_ms);
    for host in [&shard_host, &agent_host, &control.nodes[0].0] {
        let host = host.clone();
        until("the time of the cluster", || async {
            let now = Duration::from_millis(host.certificate_clock.now_ms()?);
            (now >= wall && now < wall + Duration::from_secs(3_600)).then_some(())
        })
        .await;
    }

    nothing_of_machines_is_reached_by_people(&control, &person, &authorities).await;
    a_machine_acts_as_no_other(&control, &shard_host, &agent_host).await;
    whoever_is_suspended_comes_in_no_more(&control, &person, &agent, &agent_host).await;
    shard.stop().await;
    agent.stop().await.expect("it has not failed");
    for (_, node) in &control.nodes {
        node.shutdown().await;
    }
}

async fn nothing_of_machines_is_reached_by_people(control: &Control, person: &Host, authorities: &LocalAuthorities) {
    let acquire = v1::AcquireRequest { cell: 1, shard: "mine".into() };
    let at_users = dial(person, &control.users[0], Expect::Control);
    let refused = ShardsClient::new(at_users).acquire(acquire.clone()).await.expect_err("no path leads there");
    assert_eq!(refused.code(), tonic::Code::Unimplemented, "{refused:?}");
    for expect in [Expect::Control, Expect::Plain] {
        let at_machines = dial(person, &control.machines[0], expect);
        let refused = ShardsClient::new(at_machines).acquire(acquire.clone()).await.expect_err("no certificate");
        assert_ne!(refused.code(), tonic::Code::Ok, "{refused:?}");
    }
    let plain = dial(person, &control.users[0], Expect::Plain);
    assert!(JobsClient::new(plain).get(v1::GetJobRequest::default()).await.is_err(), "clear text");
    // A node in the place of a control node.
    person.net.set_credentials(Some(authorities.machine(Role::Node("n".into())).expect("a machine"))).expect("usable");
    let other = dial(person, &control.machines[1], Expect::Member(1));
    assert!(ShardsClient::new(other).acquire(acquire).await.is_err(), "control node 2 is not control node 1");
}

/// Each with its own certificate, at the endpoint for machines, in a cluster that is open.
async fn a_machine_acts_as_no_other(control: &Control, shard: &Host, agent: &Host) {
    let denied = |what: &str, answer: Result<(), tonic::Status>| {
        let refused = answer.expect_err(what);
        assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{what}: {refused:?}");
    };
    for endpoint in &control.machines {
        let [of_shard, of_agent] = [shard, agent].map(|host| dial(host, endpoint, Expect::Control));
        let other = v1::AcquireRequest { cell: 1, shard: "s2".into() };
        let answer = ShardsClient::new(of_shard.clone()).acquire(other.clone()).await;
        denied("a shard takes a cell as another", answer.map(drop));
        denied("an agent takes a cell", ShardsClient::new(of_agent.clone()).acquire(other).await.map(drop));
        let spec = v1::NodeSpec::from(&specs::node(1, "boot"));
        for (who, channel) in [("an agent", &of_agent), ("a shard", &of_shard)] {
            let hello = v1::Hello { spec: Some(spec.clone()), agent: 99, ..v1::Hello::default() };
            let first = v1::AgentMessage { message: Some(v1::agent_message::Message::Hello(hello)) };
            let opened =
                v1::agents_client::AgentsClient::new(channel.clone()).session(futures::stream::iter([first])).await;
            let answer = match opened {
                Ok(session) => session.into_inner().message().await.map(drop),
                Err(refused) => Err(refused),
            };
            denied(&format!("{who} joins as node-1"), answer);
            let peer = v1::peer_client::PeerClient::new(channel.clone()).read_index(v1::Payload::default()).await;
            denied(&format!("{who} speaks as a control node"), peer.map(drop));
        }
        let member = dial(&control.nodes[0].0, endpoint, Expect::Control);
        let answer = ShardsClient::new(member).acquire(v1::AcquireRequest { cell: 1, shard: "s1".into() }).await;
        denied("a control node takes a cell", answer.map(drop));
    }
}

async fn whoever_is_suspended_comes_in_no_more(control: &Control, person: &Host, agent: &Agent, host: &Host) {
    person
        .net
        .set_credentials(Some(muster_runtime::pki::Credentials::anonymous(
            host.net.credentials().expect("its own").roots().clone(),
        )))
        .expect("usable");
    let mut machines = MachinesClient::new(dial(person, &control.users[0], Expect::Control));
    let name = "node:node-0".to_owned();
    let call = v1::SuspendRequest { name: name.clone(), reason: "lost".into() };
    until("the feature level", || async { machines.clone().suspend(call.clone()).await.ok() }).await;
    let asked = v1::IdentifyRequest {};
    for endpoint in &control.machines {
        // A follower hears of it a moment later.
        let refused = until("a refusal", || async {
            let mut agents = v1::agents_client::AgentsClient::new(dial(host, endpoint, Expect::Control));
            agents.identify(asked).await.err()
        })
        .await;
        assert!(refused.message().contains("is suspended (lost)"), "{refused:?}");
    }
    // Its session ends too: what it says is not taken any more.
    until("silence", || async { agent.status().session.is_none().then_some(()) }).await;
    machines.resume(v1::ResumeRequest { name }).await.expect("resumed");
    until("a session", || async { agent.status().session }).await;
}
