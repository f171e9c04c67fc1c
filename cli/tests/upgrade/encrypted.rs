//! A cluster in clear text gets certificates, one machine after another, while jobs come and go. Where a binary of an earlier commit is at hand, the
//! cluster begins with it, and is upgraded first.

use super::{MUSTER, Node, PATIENCE, list, previous};
use muster_bench::cluster::free_port;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A cluster of processes: three control nodes, a shard, two nodes.
struct Cluster {
    home: PathBuf,
    /// Where machines reach the control nodes, in clear text and then over TLS; and where people do over TLS.
    machines: Vec<String>,
    people: Vec<String>,
    running: BTreeMap<String, Node>,
}

impl Cluster {
    fn new(home: &Path) -> Self {
        let ports = || (0..3).map(|_| format!("127.0.0.1:{}", free_port().expect("a port"))).collect();
        for host in ["host-1", "host-2"] {
            std::fs::write(home.join(format!("{host}.yaml")), format!("name: {host}\n")).expect("written");
        }
        std::fs::write(home.join("tree.yaml"), "team: {}\n").expect("written");
        Cluster { home: home.to_owned(), machines: ports(), people: ports(), running: BTreeMap::new() }
    }

    /// Stops what runs under this name, in order, and starts it with these arguments.
    fn restart(&mut self, binary: &Path, name: &str, args: &[&str]) {
        if let Some(mut old) = self.running.remove(name) {
            kill(Pid::from_raw(old.0.id() as i32), Signal::SIGTERM).expect("it runs");
            old.0.wait().expect("it ends");
        }
        let log = File::options().create(true).append(true).open(self.home.join(format!("{name}.log"))).expect("a log");
        let mut command = command(binary, &self.home, args);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        self.running.insert(name.to_owned(), Node(command.spawn().expect("it starts")));
    }

    fn start_control(&mut self, binary: &Path, id: usize, more: &[&str]) {
        let members: Vec<String> = (1..).zip(&self.machines).map(|(id, at)| format!("--bootstrap={id}={at}")).collect();
        let (number, data) = (id.to_string(), format!("control-{id}-data"));
        let mut args = vec!["control", "--id", &number, "--data", &data];
        args.extend(members.iter().map(String::as_str));
        args.extend(more);
        self.restart(binary, &format!("control-{id}"), &args);
    }

    /// The same, and waits until it serves.
    fn control(&mut self, binary: &Path, id: usize, more: &[&str]) {
        self.start_control(binary, id, more);
        let over_tls = more.contains(&"--identity");
        let at = if over_tls { &self.people[id - 1] } else { &self.machines[id - 1] };
        self.until("the control node serves", || self.ask(at, over_tls, &["jobs"]).status.success());
    }

    fn shard(&mut self, binary: &Path, more: &[&str]) {
        let endpoints = self.machines.join(",");
        self.restart(binary, "shard", &[&["shard", "--name", "shard", "--endpoints", &endpoints], more].concat());
    }

    fn node(&mut self, binary: &Path, name: &str, more: &[&str]) {
        let (endpoints, spec) = (self.machines.join(","), format!("{name}.yaml"));
        let args = ["node", "--data", name, "--spec", &spec, "--endpoints", &endpoints];
        let isolation = ["--isolation", "none", "--allow-system-users"];
        self.restart(binary, name, &[&args[..], &isolation, more].concat());
    }

    fn ask(&self, endpoints: &str, over_tls: bool, args: &[&str]) -> Output {
        let mut command = command(Path::new(MUSTER), &self.home, &[args, &["--timeout", "15s"]].concat());
        command.env("MUSTER_ENDPOINTS", endpoints).stdin(Stdio::null());
        if over_tls {
            command.env("MUSTER_ROOTS_FILE", "ca/roots.pem");
        }
        command.output().expect("the command runs")
    }

    /// What a command prints that must succeed.
    fn says(&self, over_tls: bool, args: &[&str]) -> String {
        let endpoints = if over_tls { &self.people } else { &self.machines };
        let output = self.ask(&endpoints.join(","), over_tls, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "muster {args:?}: {error}{}", self.logs());
        String::from_utf8(output.stdout).expect("text")
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "waited in vain: {what}{}", self.logs());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The ends of the logs of its processes.
    fn logs(&self) -> String {
        let end = |name: &String| {
            let text = std::fs::read_to_string(self.home.join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("\n--- {name}\n{}", lines[lines.len().saturating_sub(15)..].join("\n"))
        };
        self.running.keys().map(end).collect()
    }
}

fn command(binary: &Path, home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(args).current_dir(home).env("HOME", home);
    for name in ["MUSTER_ENDPOINTS", "MUSTER_CONFIG", "MUSTER_ROOTS_FILE", "MUSTER_TOKEN_FILE", "MUSTER_USER"] {
        command.env_remove(name);
    }
    command
}

/// Submits jobs one after another until it is told to stop.
struct Load {
    over_tls: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// The ids that were acknowledged.
    submitting: std::thread::JoinHandle<BTreeSet<u64>>,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let (over_tls, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (tls, end, home) = (Arc::clone(&over_tls), Arc::clone(&stop), cluster.home.clone());
        let endpoints = [cluster.machines.join(","), cluster.people.join(",")];
        let submitting = std::thread::spawn(move || {
            let mut acknowledged = BTreeSet::new();
            while !end.load(Ordering::SeqCst) {
                let is_tls = tls.load(Ordering::SeqCst);
                let mut submit =
                    command(Path::new(MUSTER), &home, &["submit", "--tenant", "team", "--gpus", "1", "--", "true"]);
                submit.env("MUSTER_ENDPOINTS", &endpoints[usize::from(is_tls)]);
                if is_tls {
                    submit.env("MUSTER_ROOTS_FILE", "ca/roots.pem");
                }
                let output = submit.stdin(Stdio::null()).output().expect("muster");
                // Whatever happens below, a client that tries again gets its job in.
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success(), "a submission failed: {error}");
                let id = String::from_utf8_lossy(&output.stdout).trim().parse().expect("an id");
                assert!(acknowledged.insert(id), "job {id} was given twice");
                std::thread::sleep(Duration::from_millis(100));
            }
            acknowledged
        });
        Load { over_tls, stop, submitting }
    }

    fn end(self) -> BTreeSet<u64> {
        self.stop.store(true, Ordering::SeqCst);
        self.submitting.join().expect("every submission was acknowledged")
    }
}

#[test]
fn a_cluster_is_encrypted_one_machine_after_another() {
    let home = tempfile::tempdir().expect("a folder");
    let mut cluster = Cluster::new(home.path());
    let muster = Path::new(MUSTER);
    let first = previous().unwrap_or_else(|| muster.to_owned());
    let plain = |cluster: &Cluster, id: usize| ["--listen".to_owned(), cluster.machines[id - 1].clone()];
    for id in 1..=3 {
        let listen = plain(&cluster, id);
        let args: Vec<&str> = listen.iter().map(String::as_str).collect();
        cluster.start_control(&first, id, &args);
    }
    cluster.shard(&first, &[]);
    for host in ["host-1", "host-2"] {
        cluster.node(&first, host, &[]);
    }
    let all = cluster.machines.join(",");
    cluster.until("the tree", || cluster.ask(&all, false, &["tenants", "apply", "-f", "tree.yaml"]).status.success());
    let workdir = home.path().display().to_string();
    let script = "echo begun; while [ ! -e go ]; do sleep 0.1; done; echo done";
    let submit = ["submit", "--tenant", "team", "--gpus", "1", "--workdir", &workdir, "--", "sh", "-c", script];
    let job = cluster.says(false, &submit).trim().to_owned();
    let text = |output: Output| String::from_utf8_lossy(&output.stdout).into_owned();
    cluster.until("the task", || text(cluster.ask(&all, false, &["logs", &job])).contains("begun"));
    let load = Load::start(&cluster);
    if first != muster {
        for id in 1..=3 {
            let listen = plain(&cluster, id);
            cluster.control(muster, id, &listen.iter().map(String::as_str).collect::<Vec<_>>());
        }
        cluster.shard(muster, &[]);
        for host in ["host-1", "host-2"] {
            cluster.node(muster, host, &[]);
        }
    }

    // Identities for all, and first the control nodes, one after another: what speaks clear text goes on.
    let ca = |args: &[&str]| {
        let output = command(muster, home.path(), &[&["ca"], args].concat()).output().expect("muster");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    ca(&["init", "fleet", "--out", "ca"]);
    for id in ["1", "2", "3"] {
        ca(&["control", id, "--ca", "ca", "--out", &format!("c{id}")]);
    }
    ca(&["shard", "shard", "--issuer", "c1", "--out", "s"]);
    for (host, out) in [("host-1", "n1"), ("host-2", "n2")] {
        ca(&["node", host, "--issuer", "c1", "--out", out]);
    }
    let encrypted = |cluster: &Cluster, id: usize| {
        let (machines, people) = (cluster.machines[id - 1].clone(), cluster.people[id - 1].clone());
        [
            "--identity".to_owned(),
            format!("c{id}"),
            "--listen-machines".to_owned(),
            machines,
            "--listen".to_owned(),
            people,
        ]
    };
    for id in 1..=3 {
        let mut args = encrypted(&cluster, id).to_vec();
        args.push("--accept-plaintext".to_owned());
        cluster.control(muster, id, &args.iter().map(String::as_str).collect::<Vec<_>>());
        cluster.says(false, &["submit", "--tenant", "team", "--gpus", "1", "--wait", "--", "true"]);
    }
    // Then the others. Until the last of them has an identity, none can be required.
    for folder in ["c1", "c2", "c3", "s", "n1"] {
        cluster.says(false, &["machine", "pin", folder]);
    }
    cluster.shard(muster, &["--identity", "s"]);
    cluster.node(muster, "host-1", &["--identity", "n1"]);
    let early = cluster.ask(&all, false, &["machine", "enrolment", "required"]);
    let why = String::from_utf8_lossy(&early.stderr).into_owned();
    assert!(!early.status.success() && why.contains("host-2") && !why.contains("host-1"), "{why}");
    cluster.node(muster, "host-2", &["--identity", "n2"]);
    cluster.says(false, &["machine", "pin", "n2"]);
    cluster.says(true, &["machine", "enrolment", "required"]);
    // People have moved, too. The control nodes close clear text, one after another.
    load.over_tls.store(true, Ordering::SeqCst);
    for id in 1..=3 {
        let args = encrypted(&cluster, id);
        cluster.control(muster, id, &args.iter().map(String::as_str).collect::<Vec<_>>());
        cluster.says(true, &["submit", "--tenant", "team", "--gpus", "1", "--wait", "--", "true"]);
    }
    let refused = cluster.ask(&all, false, &["jobs"]);
    assert_eq!(refused.status.code(), Some(4), "clear text is over");

    let acknowledged = load.end();
    assert!(acknowledged.len() > 10, "there was load: {acknowledged:?}");
    std::fs::write(home.path().join("go"), "").expect("written");
    let ended = || text(cluster.ask(&cluster.people.join(","), true, &["job", &job, "-o", "json"]));
    cluster.until("the job to end", || ended().contains("\"completed\""));
    let ended: serde_json::Value = serde_json::from_str(&ended()).expect("JSON");
    assert_eq!(ended["attempt"], 1, "it went on: {ended}");
    assert!(cluster.says(true, &["logs", &job]).contains("begun\ndone"), "its output is whole");
    let done = || {
        let jobs = serde_json::from_str(&cluster.says(true, &["jobs", "--all", "-o", "json"])).expect("JSON");
        let completed = |job: &serde_json::Value| (job["state"] == "completed").then(|| job["id"].as_u64()).flatten();
        list(&jobs).iter().filter_map(completed).collect::<BTreeSet<u64>>()
    };
    cluster.until("every job that was acknowledged", || acknowledged.is_subset(&done()));
}
