//! A development cluster as a newcomer uses it: its settings are kept, Ctrl-C leaves nothing behind, and it goes on where it was.

#[path = "support/waiting.rs"]
mod waiting;

use muster_cli::args::roles::Dev;
use muster_cli::dev::file::DevFile;
use muster_cli::dev::settings::Settings;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use waiting::wait_for;

fn settings(change: impl FnOnce(&mut Dev), before: Option<&Settings>) -> Result<Settings, String> {
    let mut args = Dev::default();
    change(&mut args);
    Settings::of(&args, before).map_err(|failure| failure.to_string())
}

#[test]
fn settings_are_kept_and_what_the_data_cannot_follow_is_refused() {
    let first = settings(|args| (args.voters, args.nodes, args.shards) = (Some(3), Some(64), Some(2)), None);
    let first = first.expect("settings");
    assert_eq!((first.voters, first.shards, first.nodes, first.agents, first.gpus_per_node), (3, 2, 64, 4, 8));
    assert_eq!(settings(|_| (), Some(&first)).expect("the same again"), first);
    let more = settings(|args| args.nodes = Some(128), Some(&first)).expect("more nodes");
    assert_eq!((more.nodes, more.voters), (128, 3));
    let refused = |before: Option<&Settings>, expected: &str, change: &dyn Fn(&mut Dev)| {
        let refusal = settings(change, before).expect_err(expected);
        assert!(refusal.contains(expected), "{refusal}");
    };
    let of_three = "voters: is 1, but the cluster in the data folder has 3";
    refused(Some(&first), of_three, &|args| args.voters = Some(1));
    refused(Some(&first), "shards: is 4, but", &|args| args.shards = Some(4));
    refused(None, "voters: is 2; use 1, 3 or 5", &|args| args.voters = Some(2));
    refused(None, "model: unknown GPU model", &|args| args.model = Some("h9000".into()));
    refused(None, "shards: is 2, more than the 1 leaves of 4 nodes", &|args| args.shards = Some(2));
}

const MUSTER: &str = env!("CARGO_BIN_EXE_muster");

struct Cluster {
    supervisor: Child,
}

impl Cluster {
    fn start(folder: &Path) -> Self {
        let log = std::fs::File::create(folder.with_extension("log")).expect("a log");
        let supervisor = Command::new(MUSTER)
            .args(["dev", "--nodes", "2", "--data"])
            .arg(folder)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log"))
            .stdout(log)
            .spawn()
            .expect("muster dev");
        Cluster { supervisor }
    }

    fn signal(&mut self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.supervisor.id()).expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("the supervisor lives");
        self.supervisor.wait().expect("its end");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Only after a failed test does it still live.
        let _ = self.supervisor.kill();
    }
}

fn muster(folder: &Path, args: &[&str]) -> String {
    let config = folder.join("config.yaml");
    let output = Command::new(MUSTER).args(args).env("MUSTER_CONFIG", config).output().expect("muster");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn ready(folder: &Path) {
    wait_for("ready", || {
        std::fs::read_to_string(folder.with_extension("log")).is_ok_and(|log| log.contains("ready in"))
    });
}

/// Processes that have `folder` on their command line.
fn processes_of(folder: &Path) -> Vec<String> {
    let name = folder.display().to_string();
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|line| line.contains(&name)).collect()
}

#[test]
fn stopping_leaves_nothing_behind_and_the_next_start_goes_on() {
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = temporary.path().join("dev");
    let mut cluster = Cluster::start(&folder);
    ready(&folder);
    let state = |id: &str| {
        let job: serde_json::Value = serde_json::from_str(&muster(&folder, &["job", id, "-o", "json"])).expect("json");
        (job["state"].as_str().unwrap_or_default().to_owned(), job["attempt"].as_u64().unwrap_or(0))
    };
    let id = muster(&folder, &["submit", "--gpus", "1", "--", "sleep", "600"]);
    wait_for("running", || state(&id) == ("running".to_owned(), 1));

    // The same folder twice at a time is refused.
    let second = Command::new(MUSTER).args(["dev", "--data"]).arg(&folder).output().expect("muster dev");
    assert_eq!(second.status.code(), Some(5));

    cluster.signal(nix::sys::signal::Signal::SIGINT);
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert!(DevFile::read(&folder.join("dev.json")).is_err());

    // The hosts have booted anew: the job starts again, as after a power cut.
    let mut cluster = Cluster::start(&folder);
    ready(&folder);
    wait_for("running again", || state(&id) == ("running".to_owned(), 2));

    // A killed supervisor takes the roles with it; the task does not notice.
    cluster.signal(nix::sys::signal::Signal::SIGKILL);
    wait_for("only the shim is left", || processes_of(&folder).iter().all(|line| line.contains(" shim ")));
    let mut cluster = Cluster::start(&folder);
    ready(&folder);
    wait_for("running still", || state(&id) == ("running".to_owned(), 2));
    muster(&folder, &["cancel", &id]);
    wait_for("cancelled", || state(&id).0 == "cancelled");
    cluster.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(processes_of(&folder), Vec::<String>::new());
}
