//! What a task may try against its node, its neighbours and its own limits, through the real binary and as another tenant than the one it is tried against: each attempt
//! fails, and what the task was to be kept from is as it was. The numbers are those of docs/SECURITY.md.

mod devices;
pub(crate) mod files;
mod kernel;
mod limits;
mod network;
mod output;
mod processes;

use crate::site::{Agent, Site};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Two tenants that know nothing of each other.
const TENANTS: &str = "alpha: {}\nbeta: {}\nresearch: {}\n";
/// What alpha keeps for itself, in its environment, its output and its memory.
const SECRET: &str = "alphas-secret-4711";

/// A node that isolates fully, and the control plane that it belongs to.
pub(crate) struct Cage {
    pub(crate) site: Site,
    pub(crate) agent: Agent,
}

impl Cage {
    /// With the usual pool.
    pub(crate) fn start() -> Option<Self> {
        Cage::of("name: default\nisolation: full\nnetwork: host\n", &[])
    }

    /// With this pool, and more options of the agent. Only where tasks can be isolated fully, which takes root; elsewhere it says what it skips, and fails where nothing may be skipped.
    pub(crate) fn of(pool: &str, options: &[&str]) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("MUSTER_CI").is_none(), "full isolation takes an agent of root");
            eprintln!("skipped: full isolation takes an agent of root");
            return None;
        }
        let site = Site::start_with(TENANTS);
        std::fs::write(site.path("pool.yaml"), pool).expect("a file");
        site.said(&["pools", "apply", "-f", "pool.yaml"]);
        let words = [&["--data", "data", "--isolation", "full"], options].concat();
        let agent = site.agent("agent", &words);
        let cage = Cage { site, agent };
        cage.site.until("the node", || cage.site.nodes().iter().any(|node| node["state"] == "ready").then_some(()));
        Some(cage)
    }

    /// One job of a tenant that runs a script; gives its id.
    pub(crate) fn submit(&self, tenant: &str, words: &[&str], script: &str) -> String {
        let words = [&["--gpus", "1"], words, &["--", "sh", "-c", script]].concat();
        self.site.submit_as(tenant, &words)
    }

    /// A job of alpha that keeps its secret in every place that a process has, and runs until the test is over.
    pub(crate) fn victim(&self) -> Victim {
        let env = format!("ALPHA_SECRET={SECRET}");
        // Tests of this file run beside each other, each with a victim of its own.
        let sleeps = format!("sleep 98714.{}", std::process::id());
        let script = format!("echo {SECRET} > own; echo {SECRET}; exec {sleeps}");
        let id = self.submit("alpha", &["--env", &env], &script);
        self.site.until_job(&id, "running");
        let pid = self.site.until("alpha's process", || processes_with(&sleeps).first().copied());
        let folder = self.task_folder(&id);
        let shim = std::fs::read_to_string(folder.join("shim")).expect("its shim");
        let shim: Value = serde_json::from_str(&shim).expect("a record");
        let shim = shim["pid"].as_i64().expect("a number") as i32;
        Victim { id, pid, shim, folder }
    }

    /// Where the agent keeps the only task of a job.
    pub(crate) fn task_folder(&self, id: &str) -> PathBuf {
        let nodes = std::fs::read_dir(self.site.path("data")).expect("the agent's folder");
        let tasks = nodes.flatten().filter_map(|node| std::fs::read_dir(node.path().join("tasks")).ok()).flatten();
        let mut of_job = tasks.flatten().map(|task| task.path()).filter(|task| {
            let record = std::fs::read_to_string(task.join("task.json")).unwrap_or_default();
            let record: Value = serde_json::from_str(&record).unwrap_or_default();
            record["spec"]["job"].as_u64().is_some_and(|job| job.to_string() == *id)
        });
        of_job.next().expect("the task of that job")
    }

    /// Runs every script as beta. Each exits with 0 where it got what it wanted, which none may.
    pub(crate) fn all_fail(&self, attempts: &[(&str, String)]) {
        let ids: Vec<String> = attempts.iter().map(|(_, script)| self.submit("beta", &[], script)).collect();
        for ((what, script), id) in attempts.iter().zip(&ids) {
            let job = self.over(id);
            let said = [self.site.said(&["logs", id]), self.site.said(&["logs", id, "--stderr"])].concat();
            assert_eq!(job["state"], "failed", "{what}: {script}: {said}: {job}");
            assert!(!said.contains(SECRET), "{what}: {script}: {said}");
        }
    }

    /// What a script of a tenant printed, which has to succeed.
    pub(crate) fn says(&self, tenant: &str, words: &[&str], script: &str) -> String {
        let id = self.submit(tenant, words, script);
        let job = self.over(&id);
        let error = self.site.said(&["logs", &id, "--stderr"]);
        assert_eq!(job["state"], "completed", "{script}: {error}: {job}");
        self.site.said(&["logs", &id])
    }

    /// Waits until a job is over.
    pub(crate) fn over(&self, id: &str) -> Value {
        self.site.until(&format!("job {id} to be over"), || {
            let job = self.site.job(id);
            ["failed", "completed", "timeout", "cancelled"].iter().any(|state| job["state"] == *state).then_some(job)
        })
    }
}

/// A task of alpha.
pub(crate) struct Victim {
    pub(crate) id: String,
    /// Its process and its shim, as the host numbers them.
    pub(crate) pid: i32,
    pub(crate) shim: i32,
    pub(crate) folder: PathBuf,
}

impl Victim {
    /// Nothing has happened to it.
    pub(crate) fn is_well(&self, cage: &Cage) {
        for pid in [self.pid, self.shim] {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
            let state = stat.rsplit(") ").next().and_then(|fields| fields.chars().next());
            assert_eq!(state, Some('S'), "process {pid} is not stopped, traced or dead: {stat}");
        }
        assert_eq!(cage.site.job(&self.id)["state"], "running");
        assert_eq!(cage.site.nodes()[0]["state"], "ready");
    }
}

/// Processes of the host whose command line has these words.
pub(crate) fn processes_with(words: &str) -> Vec<i32> {
    let has = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).replace('\0', " ").trim_end().ends_with(words).then_some(pid)
    };
    std::fs::read_dir("/proc").expect("processes").filter_map(has).collect()
}

/// A script of perl, which makes any system call, that exits with 0 where `wanted` is true.
pub(crate) fn perl(before: &str, wanted: &str) -> String {
    let program = format!("use Socket; use IO::Socket::UNIX; {before}; exit(({wanted}) ? 0 : 1);");
    assert!(!program.contains('\''), "it stands in quotes");
    format!("exec perl -e '{program}'")
}

/// The file is there and has this in it.
pub(crate) fn is_as_before(path: &Path, content: &str) {
    assert_eq!(std::fs::read_to_string(path).expect("it is there"), content, "{}", path.display());
}
