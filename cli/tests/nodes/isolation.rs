//! What a node proves of isolation, and what follows: who gets work, and as whom tasks run.

use crate::escapes::Cage;
use crate::site::Site;
use std::process::Command;

/// Attempts to get past protections are made again while the agent runs. One that does not hold any more closes the node to the pools that need it, with the reason; what runs, runs on. The agent has
/// mounts of its own here, so that a control group can be taken from it alone.
#[test]
fn a_node_that_loses_a_protection_gets_no_more_work_of_pools_that_need_it() {
    let Some(cage) = Cage::of("name: default\nisolation: limits\n", &["--probe-every", "1s"]) else { return };
    let Cage { site, agent } = cage;
    agent.kill();
    let state =
        |wanted: &str| site.until(wanted, || site.nodes().into_iter().next().filter(|node| node["state"] == *wanted));
    state("silent");
    let data = site.path("data").display().to_string();
    let words = ["node", "--data", &data, "--isolation", "available", "--probe-every", "1s"];
    let agent = site.agent_with_own_mounts("agent-2", &words);
    state("ready");
    let runs = site.submit_as("alpha", &["--gpus", "1", "--", "sleep", "600"]);
    site.until_job(&runs, "running");
    let pids = "/sys/fs/cgroup/pids";
    let taken = Command::new("nsenter").args(["-m", "-t", &agent.pid().to_string(), "umount", "-l", pids]).status();
    if !taken.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this machine has no control group for processes at {pids} that could be taken away");
        return;
    }
    let node = state("unproven");
    let reason = node["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("pool default needs isolation limits") && reason.contains("pids (no control group for pids"),
        "{reason}"
    );
    assert!(reason.contains("muster node doctor"), "{reason}");
    assert_eq!(node["proofs"]["memory"], "holds");
    let waits = site.submit_as("beta", &["--gpus", "1", "--", "true"]);
    let told = site.until("the explanation", || {
        let told = site.said(&["explain", &waits]);
        told.contains("has not proved the isolation that its pool needs").then_some(told)
    });
    assert!(told.contains("the isolation that its pool needs (`muster nodes` says what is missing)"), "{told}");
    assert_eq!(site.job(&runs)["state"], "running");
    assert!(agent.log().contains("tasks are not isolated any more as they were"), "{}", agent.log());
    // A pool that needs less takes the node as it is.
    std::fs::write(site.path("pool.yaml"), "name: default\n").expect("a file");
    site.said(&["pools", "apply", "-f", "pool.yaml"]);
    state("ready");
}

/// An agent that isolates nothing serves only pools that need nothing.
#[test]
fn a_node_without_isolation_serves_no_pool_that_needs_some() {
    let site = Site::start();
    std::fs::write(site.path("pool.yaml"), "name: default\nisolation: limits\n").expect("a file");
    site.said(&["pools", "apply", "-f", "pool.yaml"]);
    let _agent = site.agent("agent", &["--data", "data", "--isolation", "none", "--allow-system-users"]);
    let node = site.until("unproven", || site.nodes().into_iter().next().filter(|node| node["state"] == "unproven"));
    assert!(node["reason"].as_str().is_some_and(|reason| reason.contains("--isolation none")), "{node}");
    let table = site.said(&["nodes"]);
    assert!(table.contains("unproven") && table.contains("pool default needs isolation limits"), "{table}");
}

/// The user of a tenant is inherited, and never that of another organisation.
#[test]
fn tasks_run_as_the_user_of_their_tenant() {
    let Some(cage) = Cage::start() else { return };
    let tenants = "alpha: {run-as: 5001, teams: {one: {}, two: {run-as: 5002}}}\n";
    std::fs::write(cage.site.path("users.yaml"), tenants).expect("a file");
    cage.site.said(&["tenants", "apply", "-f", "users.yaml"]);
    let user = |tenant: &str| cage.says(tenant, &[], "echo $(id -u) $(id -g) $(stat -c %u $HOME)");
    assert_eq!(user("alpha"), "5001 5001 5001\n");
    assert_eq!(user("alpha/one"), "5001 5001 5001\n");
    assert_eq!(user("alpha/two"), "5002 5002 5002\n");
    assert!(user("beta").starts_with("2000000"), "made up from its number");
    for (text, said) in [
        ("beta: {run-as: 5001}\n", "for beta, and for alpha of another organisation"),
        ("beta: {run-as: 0}\n", "a task is never root or a user of the system"),
        ("beta: {run-as: 999}\n", "a task is never root or a user of the system"),
        ("beta: {run-as: nobody}\n", "is not the number of a user"),
    ] {
        std::fs::write(cage.site.path("users.yaml"), text).expect("a file");
        let refused = cage.site.muster(&["tenants", "apply", "-f", "users.yaml"]);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && error.contains(said), "{text}: {error}");
    }
    let shown = cage.site.said(&["tenants", "list"]);
    assert!(shown.contains("RUN AS") && shown.contains("5002"), "{shown}");
}

/// What takes the fence of a task away while it runs, as a manager of services may, is found and put back.
#[test]
fn a_fence_that_is_taken_from_a_running_task_is_put_back() {
    let Some(cage) = Cage::start() else { return };
    let device = cage.site.path("device");
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
    nix::sys::stat::mknod(&device, nix::sys::stat::SFlag::S_IFCHR, mode, nix::sys::stat::makedev(1, 1)).expect("made");
    std::fs::set_permissions(&device, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("its own");
    let script =
        format!("while :; do head -c 0 {} 2>/dev/null && echo open || echo closed; sleep 0.1; done", device.display());
    let id = cage.submit("beta", &[], &script);
    // Not before it has begun is there any output.
    let logs = || String::from_utf8_lossy(&cage.site.muster(&["logs", &id]).stdout).into_owned();
    let last = || logs().lines().last().map(str::to_owned);
    cage.site.until("the first line", || (last().as_deref() == Some("closed")).then_some(()));
    let record = std::fs::read_to_string(cage.task_folder(&id).join("task.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_str(&record).expect("a record");
    let key = format!("{}.{}", record["spec"]["key"]["allocation"], record["spec"]["key"]["rank"]);
    let groups = record["isolation"]["cgroups"].as_array().expect("a list").clone();
    let v1 =
        groups.iter().find(|group| group["is_v2"] == false && group["controllers"].to_string().contains("devices"));
    let Some(group) = v1 else {
        eprintln!(
            "skipped: this machine has no control groups for devices of version 1; those of version 2 are tried in the agent's own tests"
        );
        return;
    };
    let at = std::path::Path::new(group["base"].as_str().expect("a path")).join(&key);
    // Version 2 refuses what version 1 lets through, so both have to be gone for the device to open; one is enough to be found.
    std::fs::write(at.join("devices.allow"), "a").expect("root may");
    cage.site.until("the list to be written anew", || {
        let list = std::fs::read_to_string(at.join("devices.list")).expect("it is there");
        (!list.contains("a *:*")).then_some(())
    });
    cage.site.until("the agent to say so", || cage.agent.log().contains("a fence of a task was gone").then_some(()));
    assert_eq!(last().as_deref(), Some("closed"));
}

/// The driver would have tasks make device nodes; inside it says no.
#[test]
fn a_task_reads_that_the_driver_lets_nobody_make_device_nodes() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: full isolation takes an agent of root");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let said = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["node", "doctor", "--driver-root"])
        .arg(folder.path())
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(!text.contains("driver of the GPUs"), "a machine without the driver: {text}");
    std::fs::create_dir_all(folder.path().join("proc/driver/nvidia")).expect("made");
    std::fs::write(folder.path().join("proc/driver/nvidia/params"), "RmProfilingAdminOnly: 0\n").expect("written");
    let said = Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["node", "doctor", "--nvml-library", "no-such-library.so", "--driver-root"])
        .arg(folder.path())
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        text.contains("every user reads counters of the GPUs")
            && text.contains("NVreg_RestrictProfilingToAdminUsers=1"),
        "{text}"
    );
    for protection in ["a network of their own", "ports of other jobs", "a second rule for files"] {
        assert!(text.contains(protection), "{protection}: {text}");
    }
}
