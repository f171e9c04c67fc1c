//! Upgrades: folders of every form that was ever written, and the previous version beside this one.

mod encrypted;

use muster_bench::cluster::free_port;
use muster_proto::v1;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const MUSTER: &str = env!("CARGO_BIN_EXE_muster");
/// How long anything may take before a test gives up; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A control node as a process; killed when it goes.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(binary: &Path, data: &Path, id: u64, port: u16, more: &[&str]) -> Node {
    let log = std::fs::File::options().create(true).append(true).open(data.with_extension("log")).expect("a log");
    let mut command = Command::new(binary);
    command.args(["control", "--id", &id.to_string(), "--listen", &format!("127.0.0.1:{port}"), "--data"]).arg(data);
    command.args(more);
    Node(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("a control node"))
}

fn muster(endpoints: &str, args: &[&str]) -> Output {
    let mut command = Command::new(MUSTER);
    command.env_remove("MUSTER_CONFIG").env("MUSTER_ENDPOINTS", endpoints).args(args);
    command.stdin(Stdio::null()).output().expect("the command runs")
}

/// What a command prints, once it succeeds.
fn says(endpoints: &str, args: &[&str]) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = muster(endpoints, args);
        if output.status.success() {
            return String::from_utf8(output.stdout).expect("text");
        }
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_ne!(output.status.code(), Some(2), "muster {args:?}: {error}");
        assert!(Instant::now() < deadline, "muster {args:?} never succeeds: {error}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn unpack(form: u32, into: &Path) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/upgrade/folders/form-{form}.tar.gz"));
    let done = Command::new("tar").arg("-xzf").arg(&kept).arg("-C").arg(into).status().expect("tar");
    assert!(done.success(), "{} can be unpacked", kept.display());
    into.join("control-1")
}

/// Each folder was written by a control node of its form: tenants research (guarantee 8, max 12 h100) and vision (weight 3), three
/// completed jobs, a gang of 8 and a job of 4 that run, a slice that runs, one job that waits, one of two nodes drained.
#[test]
fn a_folder_of_each_form_is_read() {
    for form in FORMS {
        let folder = tempfile::tempdir().expect("a folder");
        let data = unpack(form, folder.path());
        let port = free_port().expect("a port");
        let at = format!("127.0.0.1:{port}");
        // The jobs of a kept folder ended long ago.
        let node = start(Path::new(MUSTER), &data, 1, port, &["--keep-jobs", "3650d"]);
        let jobs = says(&at, &["jobs", "--all", "-o", "json"]);
        let jobs: serde_json::Value = serde_json::from_str(&jobs).expect("JSON");
        let jobs = list(&jobs);
        let states: BTreeMap<u64, &str> = jobs
            .iter()
            .map(|job| (job["id"].as_u64().expect("an id"), job["state"].as_str().expect("a state")))
            .collect();
        let expected = ["completed", "completed", "completed", "running", "running", "running", "pending"];
        let expected: BTreeMap<u64, &str> = (1..).zip(expected).collect();
        assert_eq!(states, expected, "form {form}");
        let tenants = says(&at, &["tenants", "list", "-o", "json"]);
        assert!(tenants.contains("research") && tenants.contains("vision"), "form {form}: {tenants}");
        // What is written now is read again, beside what was written then.
        says(&at, &["tenants", "apply", "--file", &file(folder.path(), "speech: {weight: 2}")]);
        says(&at, &["submit", "--tenant", "speech", "--gpus", "1", "--user", "ada", "--", "true"]);
        drop(node);
        let _node = start(Path::new(MUSTER), &data, 1, port, &["--keep-jobs", "1h"]);
        let job = says(&at, &["job", "8", "-o", "json"]);
        assert!(job.contains("\"ada\"") && job.contains("speech"), "form {form}: {job}");
        assert!(says(&at, &["job", "4"]).contains("gang"), "form {form}");
        // Finished jobs of before are known by when they ended, and forgotten when their time is over.
        let deadline = Instant::now() + PATIENCE;
        let forgotten = loop {
            let asked = muster(&at, &["job", "1"]);
            if !asked.status.success() {
                break String::from_utf8_lossy(&asked.stderr).into_owned();
            }
            assert!(Instant::now() < deadline, "form {form}: job 1 is never forgotten");
            std::thread::sleep(Duration::from_millis(200));
        };
        assert!(forgotten.contains("finished jobs are kept for 1 hour,"), "form {form}: {forgotten}");
    }
}

const FORMS: [u32; 1] = [4];

fn list(value: &serde_json::Value) -> Vec<serde_json::Value> {
    let inner = value.get("jobs").unwrap_or(value);
    inner.as_array().cloned().unwrap_or_else(|| panic!("a list of jobs: {value}"))
}

fn file(folder: &Path, text: &str) -> String {
    let path = folder.join("tenants.yaml");
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

/// The binary of the previous commit, where one was built: `.ci/previous` does, and sets this variable.
fn previous() -> Option<PathBuf> {
    let path = std::env::var_os("MUSTER_PREVIOUS").filter(|path| !path.is_empty()).map(PathBuf::from);
    if path.is_none() {
        eprintln!(
            "NOT TESTED: no binary of the previous commit; build one and name it: MUSTER_PREVIOUS=$(.ci/previous)"
        );
    }
    path
}

async fn status(port: u16) -> Option<v1::RaftStatusReply> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("an endpoint");
    let mut admin = v1::admin_client::AdminClient::new(endpoint.connect_lazy());
    let asked = tokio::time::timeout(Duration::from_secs(5), admin.raft_status(v1::RaftStatusRequest {})).await;
    Some(asked.ok()?.ok()?.into_inner())
}

/// A rolling upgrade, one voter after another: whatever is acknowledged is found by every version, and the feature level rises to what
/// this version knows when the last voter runs it, not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_upgraded_one_voter_after_another() {
    let Some(previous) = previous() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let ports: Vec<u16> = (0..3).map(|_| free_port().expect("a port")).collect();
    let members: Vec<String> =
        (1..).zip(&ports).map(|(id, port)| format!("--bootstrap={id}=127.0.0.1:{port}")).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    let at: String = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
    let data = |id: u64| folder.path().join(id.to_string());
    let mut nodes: Vec<Node> =
        (1..).zip(&ports).map(|(id, port)| start(&previous, &data(id), id, *port, &members)).collect();
    says(&at, &["tenants", "apply", "--file", &file(folder.path(), "research: {weight: 2}")]);
    let before = wait_for_status(ports[0], |_| true).await;
    let mut submitted = 0;
    for upgraded in 0..=nodes.len() {
        if let Some(index) = upgraded.checked_sub(1) {
            let id = index as u64 + 1;
            // The old process has to be gone before its folder and its port are taken.
            let _ = nodes[index].0.kill();
            let _ = nodes[index].0.wait();
            nodes[index] = start(Path::new(MUSTER), &data(id), id, ports[index], &members);
        }
        for _ in 0..5 {
            says(&at, &["submit", "--tenant", "research", "--gpus", "1", "--", "true"]);
            submitted += 1;
        }
        for port in &ports {
            let one = format!("127.0.0.1:{port}");
            let jobs = says(&one, &["jobs", "-o", "json"]);
            let jobs: serde_json::Value = serde_json::from_str(&jobs).expect("JSON");
            assert_eq!(list(&jobs).len(), submitted, "after {upgraded} upgrades, asked at {one}");
        }
        let now = wait_for_status(ports[0], |_| true).await;
        if upgraded < nodes.len() {
            assert_eq!(now.feature_level, before.feature_level, "after {upgraded} upgrades");
        }
    }
    for port in &ports {
        wait_for_status(*port, |status| status.feature_level == status.knows_level).await;
    }
}

async fn wait_for_status(port: u16, holds: impl Fn(&v1::RaftStatusReply) -> bool) -> v1::RaftStatusReply {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = status(port).await;
        match now {
            Some(status) if holds(&status) => return status,
            other => assert!(Instant::now() < deadline, "waited in vain at port {port}: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
