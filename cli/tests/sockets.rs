//! Control nodes with more sockets than they have use for: peers, clients and the health page get in all the same.

#[path = "support/pages.rs"]
mod pages;
#[path = "support/waiting.rs"]
mod waiting;

use muster_bench::cluster::free_port;
use muster_proto::v1;
use pages::get;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tonic::transport::{Channel, Endpoint};
use waiting::{PATIENCE, wait_for};

const MUSTER: &str = env!("CARGO_BIN_EXE_muster");

/// A control node as a process, started by a shell that sets its limits.
struct Node {
    id: u64,
    port: u16,
    http: u16,
    process: Child,
}

/// Three voters with these limits of open files.
struct Three {
    nodes: Vec<Node>,
    limits: &'static str,
    folder: tempfile::TempDir,
}

impl Three {
    async fn start(limits: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ports: Vec<(u16, u16)> =
            (0..3).map(|_| (free_port().expect("a port"), free_port().expect("a port"))).collect();
        let members: Vec<String> =
            ports.iter().enumerate().map(|(index, (port, _))| format!("{}=127.0.0.1:{port}", index + 1)).collect();
        let start = |(index, (port, http)): (usize, &(u16, u16))| {
            let process = spawn(limits, folder.path(), index as u64 + 1, (*port, *http), &members);
            Node { id: index as u64 + 1, port: *port, http: *http, process }
        };
        let nodes = ports.iter().enumerate().map(start).collect();
        let three = Three { nodes, limits, folder };
        three.all_healthy();
        three
    }

    fn all_healthy(&self) {
        for node in &self.nodes {
            wait_for("a healthy node", || get(&node.page(), "/healthz").is_some_and(|page| page.contains("200 OK")));
        }
    }

    async fn leader(&self) -> &Node {
        let reply = self.status(&self.nodes[0]).await;
        let leader = reply.leader.expect("a leader is known");
        self.nodes.iter().find(|node| node.id == leader).expect("one of three")
    }

    async fn status(&self, node: &Node) -> v1::RaftStatusReply {
        let mut admin = v1::admin_client::AdminClient::new(node.channel());
        let asked = tokio::time::timeout(PATIENCE, admin.raft_status(v1::RaftStatusRequest {}));
        asked.await.expect("an answer").expect("a status").into_inner()
    }

    /// Kills a node with its connections and starts it again: its peers must let it in.
    async fn restart(&mut self, id: u64) {
        let members: Vec<String> =
            self.nodes.iter().map(|node| format!("{}=127.0.0.1:{}", node.id, node.port)).collect();
        let (limits, folder) = (self.limits, self.folder.path().to_owned());
        let node = self.nodes.iter_mut().find(|node| node.id == id).expect("one of three");
        node.process.kill().expect("it runs");
        node.process.wait().expect("it ends");
        node.process = spawn(limits, &folder, id, (node.port, node.http), &members);
    }
}

impl Drop for Three {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.process.kill();
            let _ = node.process.wait();
        }
    }
}

impl Node {
    /// Where its pages are.
    fn page(&self) -> String {
        format!("127.0.0.1:{}", self.http)
    }

    fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://127.0.0.1:{}", self.port)).expect("an endpoint").connect_lazy()
    }
}

fn spawn(limits: &str, folder: &Path, id: u64, (port, http): (u16, u16), members: &[String]) -> Child {
    let data = folder.join(id.to_string());
    let bootstrap: String = members.iter().map(|member| format!(" --bootstrap {member}")).collect();
    let script = format!(
        "{limits} && exec {MUSTER} control --id {id} --data {} --listen 127.0.0.1:{port} --http 127.0.0.1:{http}{bootstrap}",
        data.display()
    );
    let log = std::fs::File::options().create(true).append(true).open(folder.join(format!("{id}.log")));
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).stdin(Stdio::null()).stderr(log.expect("a log"));
    command.spawn().expect("a shell")
}

/// What the limits of open files of a process are: soft and hard.
fn limits_of(process: &Child) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{}/limits", process.id())).expect("it runs");
    let line = text.lines().find(|line| line.starts_with("Max open files")).expect("the limit");
    let mut words = line.split_whitespace().skip(3).map(|word| word.parse().unwrap_or(u64::MAX));
    (words.next().expect("soft"), words.next().expect("hard"))
}

/// Sockets that stay open and say nothing, or only that they speak HTTP/2.
fn idle(port: u16, count: usize) -> Vec<TcpStream> {
    let open = |number: usize| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port takes connections");
        if number.is_multiple_of(2) {
            // The preface, and settings without any.
            let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        }
        stream
    };
    (0..count).map(open).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sockets_lock_nobody_out() {
    // The usual limit of a process, which it may raise by itself.
    let mut three = Three::start("ulimit -Sn 1024").await;
    for node in &three.nodes {
        let (soft, hard) = limits_of(&node.process);
        assert_eq!(soft, hard, "the soft limit was raised");
    }
    let (leader, leader_port, leader_http) = {
        let leader = three.leader().await;
        (leader.id, leader.port, leader.http)
    };
    // Several times what a node keeps of them, as far as this process may open them itself.
    let mine = muster_runtime::real::raise_descriptors().expect("a limit");
    let many = (mine.saturating_sub(500) as usize).min(6_000);
    assert!(many > 3_000, "this test needs a limit of at least 4,000 open files, it has {mine}");
    let page = format!("127.0.0.1:{leader_http}");
    let held = (idle(leader_port, many * 9 / 10), idle(leader_http, many / 10));

    assert!(get(&page, "/healthz").is_some_and(|page| page.contains("200 OK")), "the health page answers");
    assert!(get(&page, "/metrics").is_some_and(|page| page.contains("muster_connections_dropped_total")));
    let follower = three.nodes.iter().map(|node| node.id).find(|id| *id != leader).expect("another");
    three.restart(follower).await;
    three.all_healthy();
    let node = three.nodes.iter().find(|node| node.id == leader).expect("the leader");
    let mut tenants = v1::tenants_client::TenantsClient::new(node.channel());
    let tenant = v1::TenantSpec { path: "research".to_owned(), ..v1::TenantSpec::default() };
    let request = v1::ApplyTenantsRequest { tenants: vec![tenant], ..Default::default() };
    let applied = tokio::time::timeout(PATIENCE, tenants.apply(request)).await.expect("an answer");
    applied.expect("clients are served");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_take_no_places_of_peers() {
    // So few that a test can fill them: half are the node's own, an eighth of the rest is kept for peers.
    let mut three = Three::start("ulimit -n 1024").await;
    let leader = three.leader().await.id;
    let node = three.nodes.iter().find(|node| node.id == leader).expect("the leader");
    let mut held = Vec::new();
    let refusal = loop {
        let mut admin = v1::admin_client::AdminClient::new(node.channel());
        let asked = tokio::time::timeout(PATIENCE, admin.raft_status(v1::RaftStatusRequest {})).await;
        match asked.expect("an answer, not silence") {
            Ok(_) => held.push(admin),
            Err(refusal) => break refusal,
        }
        assert!(held.len() < 1_000, "clients are taken without end");
    };
    assert!(held.len() > 100, "only {} clients: {refusal}", held.len());
    assert!(refusal.message().contains("connections of clients"), "{refusal}");
    assert_eq!(refusal.code(), tonic::Code::Unavailable, "{refusal}");

    let follower = three.nodes.iter().map(|node| node.id).find(|id| *id != leader).expect("another");
    three.restart(follower).await;
    // It is healthy when it knows a leader, which has to reach it; what it then has is what the leader has.
    three.all_healthy();
    let log = std::fs::read_to_string(three.folder.path().join(format!("{leader}.log"))).expect("a log");
    assert!(log.contains("the limit of open files is low"), "{log}");
}
