//! One control node and one shard as real processes, and the agents that a test starts beside them. All of it dies with its value,
//! the tasks' shims among it.

use crate::pages;
use crate::shared::open_to_all;
use crate::waiting::{PATIENCE, wait_for};
use muster_bench::cluster::free_port;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A control plane with its folder.
pub(crate) struct Site {
    dir: tempfile::TempDir,
    endpoint: String,
    /// Where the control node's pages are.
    http: String,
    roles: Vec<Agent>,
}

/// One process of a role, with what it writes to its log. It is killed with its value; its tasks are not.
pub(crate) struct Agent {
    process: Child,
    log: PathBuf,
}

impl Site {
    /// A control plane that takes submissions of the tenant `research`.
    pub(crate) fn start() -> Site {
        Site::start_with("research: {}\n")
    }

    /// A control plane with this tree of tenants.
    pub(crate) fn start_with(tenants: &str) -> Site {
        let dir = tempfile::tempdir().expect("a temporary folder");
        open_to_all(dir.path());
        let address = || format!("127.0.0.1:{}", free_port().expect("a free port"));
        let mut site = Site { dir, endpoint: address(), http: address(), roles: Vec::new() };
        std::fs::write(site.path("tenants.yaml"), tenants).expect("a file");
        site.start_roles();
        site
    }

    fn start_roles(&mut self) {
        self.start_control();
        let shard = self.spawn("shard", &["shard"]);
        self.roles.push(shard);
        self.until("a leader", || {
            let applied = self.muster(&["tenants", "apply", "-f", "tenants.yaml"]);
            applied.status.success().then_some(())
        });
    }

    fn start_control(&mut self) {
        let (data, member) = (self.path("control").display().to_string(), format!("1={}", self.endpoint));
        let words = ["control", "--id", "1", "--data", &data, "--bootstrap", &member];
        let listen = ["--listen", &self.endpoint, "--http", &self.http];
        let control = self.spawn("control", &[&words[..], &listen].concat());
        self.roles.push(control);
    }

    /// The control plane goes for good, and another cluster is made at the same address.
    pub(crate) fn replace_cluster(&mut self) {
        self.roles.clear();
        std::fs::remove_dir_all(self.path("control")).expect("the control plane's data");
        self.start_roles();
    }

    /// The control plane and its data are lost, and it is made again from this backup.
    pub(crate) fn restore_cluster(&mut self, backup: &str) {
        self.roles.clear();
        std::fs::remove_dir_all(self.path("control")).expect("the control plane's data");
        let words = ["backup", "restore", backup, "--data", "control", "--id", "1", "--advertise", &self.endpoint];
        let said = self.said(&words);
        assert!(said.contains("the only one of cluster"), "{said}");
        self.start_control();
        let shard = self.spawn("shard", &["shard"]);
        self.roles.push(shard);
        self.until("a leader", || self.muster(&["nodes"]).status.success().then_some(()));
    }

    /// Another control node joins, and votes.
    pub(crate) fn add_control(&mut self, id: &str) {
        let (data, listen) = (format!("control-{id}"), format!("127.0.0.1:{}", free_port().expect("a free port")));
        let words = ["control", "--id", id, "--data", &data, "--listen", &listen];
        let control = self.spawn(&data, &words);
        self.roles.push(control);
        self.until("the control node to be added", || {
            self.muster(&["raft", "add", id, &listen]).status.success().then_some(())
        });
        self.said(&["raft", "promote", id]);
    }

    /// Where the control node serves.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Waits until the control node's page of metrics has this line.
    pub(crate) fn until_metric(&self, line: &str) {
        let there = |page: String| page.lines().any(|there| there == line);
        wait_for(line, || pages::get(&self.http, "/metrics").is_some_and(there));
    }

    /// Deletes what is at a path below the folder of this site.
    pub(crate) fn delete(&self, name: &str) {
        std::fs::remove_dir_all(self.path(name)).expect("it is there");
    }

    /// A path below the folder of this site.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `muster` where a task can run it: the build's folder may be closed to other users, as a home folder is.
    pub(crate) fn program_for_tasks(&self) -> PathBuf {
        let (built, here) = (env!("CARGO_BIN_EXE_muster"), self.path("muster"));
        if std::fs::hard_link(built, &here).is_err() {
            std::fs::copy(built, &here).expect("the folder is the test's own");
        }
        here
    }

    /// Starts an agent; its log has the name `name`.
    pub(crate) fn agent(&self, name: &str, words: &[&str]) -> Agent {
        self.spawn(name, &[&["node"], words].concat())
    }

    /// The same with mounts of its own, that can be taken from it without anybody else's noticing.
    pub(crate) fn agent_with_own_mounts(&self, name: &str, words: &[&str]) -> Agent {
        let words = [&["--mount", "--", env!("CARGO_BIN_EXE_muster")], words].concat();
        self.spawn_program("unshare", name, &words)
    }

    fn spawn(&self, name: &str, words: &[&str]) -> Agent {
        self.spawn_program(env!("CARGO_BIN_EXE_muster"), name, words)
    }

    fn spawn_program(&self, program: &str, name: &str, words: &[&str]) -> Agent {
        let log = self.path(&format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log).expect("a log file");
        let process = Command::new(program)
            .args(words)
            .env("MUSTER_ENDPOINTS", &self.endpoint)
            .env("MUSTER_TASK_WRITES", self.dir.path())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a second handle"))
            .stderr(out)
            .spawn()
            .expect("the binary runs");
        Agent { process, log }
    }

    /// Runs one command of a user.
    pub(crate) fn muster(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_muster"))
            .args(words)
            .env("MUSTER_ENDPOINTS", &self.endpoint)
            .current_dir(self.dir.path())
            .output()
            .expect("the binary runs")
    }

    /// What one command printed, which has to succeed.
    pub(crate) fn said(&self, words: &[&str]) -> String {
        let output = self.muster(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "muster {words:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The JSON that one command printed.
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let text = self.said(&[words, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("muster {words:?}: {error}: {text}"))
    }

    /// Submits one job of `research`; gives its id.
    pub(crate) fn submit(&self, words: &[&str]) -> String {
        self.submit_as("research", words)
    }

    /// Submits one job of a tenant; gives its id.
    pub(crate) fn submit_as(&self, tenant: &str, words: &[&str]) -> String {
        let words = [&["submit", "--tenant", tenant], words].concat();
        let text = self.said(&words);
        text.trim().parse::<u64>().unwrap_or_else(|_| panic!("not an id: {text:?}")).to_string()
    }

    /// A job as the API shows it.
    pub(crate) fn job(&self, id: &str) -> Value {
        self.json(&["job", id])
    }

    /// Waits until the job is in `state`; gives it.
    pub(crate) fn until_job(&self, id: &str, state: &str) -> Value {
        self.until(&format!("job {id} to be {state}"), || {
            let job = self.job(id);
            (job["state"] == state).then_some(job)
        })
    }

    /// The nodes, by what `muster nodes` says.
    pub(crate) fn nodes(&self) -> Vec<Value> {
        self.json(&["nodes"]).as_array().expect("a list").clone()
    }

    /// Waits until `look` finds something.
    pub(crate) fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < until, "waited in vain for {what}; nodes: {:#?}", self.nodes());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until a node of that name is in that state.
    pub(crate) fn until_node(&self, name: &str, state: &str) -> Value {
        self.until(&format!("node {name} to be {state}"), || {
            self.nodes().into_iter().find(|node| node["name"] == name && node["state"] == state)
        })
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.roles.clear();
        kill_all_below(self.dir.path());
    }
}

/// Kills whatever runs from this folder: agents that a failed test left, shims and tasks.
fn kill_all_below(dir: &Path) {
    let needle = dir.as_os_str().as_encoded_bytes();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let holds = |file: &str| {
            let text = std::fs::read(entry.path().join(file)).unwrap_or_default();
            text.windows(needle.len()).any(|window| window == needle)
        };
        if pid != std::process::id() as i32 && (holds("cmdline") || holds("environ")) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
}

impl Agent {
    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    /// SIGKILL: its tasks live on under their shims.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// What it wrote so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for its end; whether it succeeded, and what it wrote.
    pub(crate) fn ended(mut self) -> (bool, String) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return (status.success(), self.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the agent does not end: {}", self.log());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
