//! What a task may try against its node, its neighbours and its own limits, through the real binary: each attempt fails, and what the task
//! was to be kept from is as it was. The numbers are those of docs/SECURITY.md.

use crate::site::Site;
use std::path::Path;

/// Runs where tasks can be isolated fully, which takes root; elsewhere it says what it skips.
fn site() -> Option<(Site, crate::site::Agent)> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: full isolation takes an agent of root");
        return None;
    }
    let site = Site::start();
    let agent = site.agent("agent", &["--data", "data", "--isolation", "full"]);
    site.until("the node", || (!site.nodes().is_empty()).then_some(()));
    Some((site, agent))
}

/// Processes of the host whose command line has these words.
fn processes_with(words: &str) -> usize {
    let has = |entry: std::io::Result<std::fs::DirEntry>| {
        let line = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).replace('\0', " ").contains(words).then_some(())
    };
    std::fs::read_dir("/proc").expect("processes").filter_map(has).count()
}

/// Each attempt is a script that exits with 0 where it got what it wanted.
#[test]
fn what_a_task_tries_against_its_node_fails() {
    let Some((site, _agent)) = site() else { return };
    let secret = site.path("data/secret");
    std::fs::create_dir_all(site.path("data")).expect("a folder");
    std::fs::write(&secret, "of the node").expect("a file");
    let data = site.path("data").display().to_string();
    let device = site.path("device");
    let number = nix::sys::stat::makedev(1, 1);
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
    nix::sys::stat::mknod(&device, nix::sys::stat::SFlag::S_IFCHR, mode, number).expect("root makes devices");
    std::fs::set_permissions(&device, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("its own");
    let attempts = [
        ("1 reads the agent's data", format!("cat {data}/secret || ls {data}")),
        ("1 reads what the host keeps from users", "cat /etc/shadow".to_owned()),
        ("2 sees processes of the host", "[ $(ls /proc | grep -c '^[0-9]') -gt 6 ]".to_owned()),
        ("2 reads a neighbour's environment", "grep -lz MUSTER_ESCAPE_SECRET /proc/*/environ".to_owned()),
        ("2 reads the init", "cat /proc/1/environ || ls /proc/1/fd/ || ls /proc/1/root/".to_owned()),
        ("3 stops its shim", "[ $PPID != 0 ] && kill -STOP $PPID".to_owned()),
        ("3 ends its init", "kill -9 1; kill -STOP 1; sleep 0.2; ! [ -d /proc/1 ]".to_owned()),
        ("4 writes its fence", format!("echo x > {data}/tasks/*/deadline || echo x > /run/muster/*/deadline")),
        ("4 tells the agent lies", "echo x > $(dirname $MUSTER_CHECKPOINT_FILE)/../to-task/world".to_owned()),
        (
            "4 leaves its control group",
            "echo $$ > /sys/fs/cgroup/memory/cgroup.procs || echo $$ > /sys/fs/cgroup/cgroup.procs".to_owned(),
        ),
        ("7 opens a device of the host", format!("head -c 1 {}", device.display())),
        ("7 makes a device", "mknod $HOME/card c 195 0".to_owned()),
        (
            "8 opens what is no device of its own",
            "head -c 1 /dev/mem || head -c 1 /dev/kmsg || head -c 1 /dev/vda".to_owned(),
        ),
        ("12 becomes root", "su -c true || setpriv --reuid 0 true".to_owned()),
        ("12 makes a user namespace", "unshare -U true".to_owned()),
        ("12 mounts", "mount -t tmpfs none $HOME".to_owned()),
        (
            "13 leaves something in the system",
            "touch /var/tmp/muster-escape || touch /usr/muster-escape || touch /run/muster-escape".to_owned(),
        ),
        ("16 is given the agent's home", "[ \"$HOME\" = /root ] || [ \"$USER\" = root ]".to_owned()),
        ("20 is root", "[ $(id -u) = 0 ] || [ $(id -g) = 0 ]".to_owned()),
    ];
    let submit = |(_, script): &(&str, String)| {
        site.submit(&["--gpus", "1", "--cpus", "1", "--memory", "64Mi", "--", "sh", "-c", script])
    };
    let neighbour = site.submit(&["--gpus", "1", "--env", "MUSTER_ESCAPE_SECRET=1", "--", "sleep", "600"]);
    site.until_job(&neighbour, "running");
    let ids: Vec<String> = attempts.iter().map(submit).collect();
    for ((what, script), id) in attempts.iter().zip(&ids) {
        let job = site.until_job(id, "failed");
        let said = site.said(&["logs", id, "--stderr"]);
        assert_ne!(job["attempts"][0]["ends"][0]["code"], 0, "{what}: {script}: {said}");
    }
    site.until_job(&neighbour, "running");
    assert_eq!(std::fs::read_to_string(&secret).expect("it is there"), "of the node");
    for path in ["/var/tmp/muster-escape", "/usr/muster-escape", "/run/muster-escape"] {
        assert!(!Path::new(path).exists(), "{path}");
    }
}

/// Attempts 3 and 5: it leaves its parent, its session, its group and its environment, and tries to end its shim.
#[test]
fn nothing_outlives_a_task_that_leaves_everything() {
    let Some((site, _agent)) = site() else { return };
    let script = "env -i setsid sh -c 'sleep 98713 & exec sleep 98713' & sleep 0.5; kill -9 $PPID; exit 3";
    let id = site.submit(&["--gpus", "1", "--", "sh", "-c", script]);
    let job = site.until_job(&id, "failed");
    assert_eq!(processes_with("sleep 98713"), 0, "{job}");
}

/// Attempt 6: what it exceeds ends it, and nobody else.
#[test]
fn limits_end_the_task_and_not_the_agent() {
    let Some((site, _agent)) = site() else { return };
    let neighbour = site.submit(&["--gpus", "1", "--", "sleep", "600"]);
    site.until_job(&neighbour, "running");
    let hog = site.submit(&[
        "--gpus",
        "1",
        "--cpus",
        "1",
        "--memory",
        "64Mi",
        "--",
        "sh",
        "-c",
        "head -c 500M /dev/zero | tail -c 500M | wc -c",
    ]);
    let bomb = site.submit(&[
        "--gpus",
        "1",
        "--cpus",
        "1",
        "--memory",
        "256Mi",
        "--time",
        "5s",
        "--",
        "sh",
        "-c",
        "bomb() { bomb | bomb & }; bomb; sleep 60",
    ]);
    // By its time limit, or because its shell could not start another process.
    site.until("the fork bomb to end", || {
        let state = site.job(&bomb)["state"].clone();
        (state == "timeout" || state == "failed").then_some(())
    });
    let said = site.until("the note", || {
        let said = site.said(&["logs", &hog, "--stderr"]);
        said.contains("out of memory").then_some(said)
    });
    assert!(said.contains("muster: out of memory: the task has a limit of 64 MiB"), "{said}");
    site.until_job(&neighbour, "running");
    assert_eq!(site.nodes()[0]["state"], "ready");
}
