//! Attempts 1, 4, 11, 13 and 16: files of the agent and of neighbours, links, what a task leaves, and what runs with privilege.

use super::{Cage, SECRET, is_as_before, perl};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Attempt 1.
#[test]
fn attempt_01_a_task_reads_no_records_logs_or_environment_of_another_tenant() {
    let Some(cage) = Cage::start() else { return };
    let victim = cage.victim();
    let own = victim.folder.join("work/own");
    is_as_before(&own, &format!("{SECRET}\n"));
    let (data, folder) = (cage.site.path("data").display().to_string(), victim.folder.display().to_string());
    let key = victim.folder.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    cage.all_fail(&[
        ("the record", format!("cat {folder}/task.json")),
        ("the output", format!("cat {folder}/stdout {folder}/stderr")),
        ("the files", format!("cat {folder}/work/own")),
        ("its folder by its name inside", format!("cat /run/muster/{key}/work/own || ls /run/muster/{key}")),
        ("any folder", format!("ls {data} || ls {data}/*/tasks || find {data} -name task.json | grep .")),
        ("all that can be read", format!("grep -r {SECRET} /run /tmp /dev/shm /var/tmp 2>/dev/null")),
        ("what the host keeps from users", "cat /etc/shadow".to_owned()),
        ("the folder after a change of its mode", format!("chmod 755 {data} || chmod -R 777 {folder}")),
        ("the agent's program in memory", "cat /proc/1/environ /proc/1/maps /proc/1/mem | grep .".to_owned()),
    ]);
    let unseen = cage.says("beta", &[], "env; cat /proc/*/environ | tr '\\0' '\\n'");
    assert!(!unseen.contains(SECRET) && !unseen.contains("MUSTER_ENDPOINTS"), "{unseen}");
    victim.is_well(&cage);
    // Over, its output is kept for its tenant, and is as closed as before.
    cage.site.said(&["cancel", &victim.id]);
    cage.over(&victim.id);
    cage.all_fail(&[(
        "what is kept of it",
        format!("find {data} -name stdout | grep . || cat {data}/*/kept/*/stdout"),
    )]);
    assert_eq!(cage.site.said(&["logs", &victim.id]), format!("{SECRET}\n"));
}

/// Attempt 4.
#[test]
fn attempt_04_a_task_writes_neither_its_fence_nor_its_lock_its_record_or_its_control_groups() {
    let Some(cage) = Cage::start() else { return };
    let victim = cage.victim();
    let record = std::fs::read_to_string(victim.folder.join("task.json")).expect("it is there");
    let deadline = std::fs::read(victim.folder.join("deadline")).expect("it is there");
    let data = cage.site.path("data").display().to_string();
    let write =
        |name: &str| format!("echo x > {data}/*/tasks/*/{name} || echo x > /run/muster/*/{name} || echo x > ../{name}");
    cage.all_fail(&[
        ("its deadline", write("deadline")),
        ("its lock", write("lock")),
        ("its exit record", write("exit")),
        ("what the agent tells it", write("to-task/world")),
        ("its record", write("task.json")),
        ("a folder beside its own", "mkdir ../new || mkdir /run/muster/new || mv . ../elsewhere".to_owned()),
        (
            "its control group",
            "for at in /sys/fs/cgroup /sys/fs/cgroup/*; do echo $$ > $at/cgroup.procs && exit 0; echo max > $at/memory.max && exit 0; \
             echo 1 > $at/cgroup.kill && exit 0; mkdir $at/new && exit 0; done 2>/dev/null; exit 1"
                .to_owned(),
        ),
        ("its control group by another path", "find /sys/fs/cgroup -writable 2>/dev/null | grep .".to_owned()),
        ("a file system of its own", perl("", "syscall(165, \"none\", \"/tmp\", \"cgroup2\", 0, 0) == 0")),
        ("how the host's kernel is set", "echo 1 > /proc/sys/kernel/panic || echo b > /proc/sysrq-trigger".to_owned()),
    ]);
    is_as_before(&victim.folder.join("task.json"), &record);
    let now = std::fs::read(victim.folder.join("deadline")).expect("it is there");
    assert_eq!(now[8..], deadline[8..], "the time limit is as it was");
    victim.is_well(&cage);
}

/// Attempt 11: output is read by the agent, which is root.
#[test]
fn attempt_11_no_link_or_working_directory_leads_out() {
    let Some(cage) = Cage::start() else { return };
    let victim = cage.victim();
    let secret = cage.site.path("of-the-node");
    std::fs::write(&secret, SECRET).expect("a file");
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("its own");
    let (secret, folder) = (secret.display().to_string(), victim.folder.display().to_string());
    cage.all_fail(&[
        ("a hard link to the node's file", format!("ln {secret} mine && cat mine")),
        ("a hard link to alpha's file", format!("ln {folder}/work/own mine && cat mine")),
        ("a link to it", format!("ln -s {secret} mine && cat mine")),
        ("a link in the place of its output", format!("ln -sf {secret} ../stdout")),
        (
            "a link in the place of its checkpoint",
            format!("ln -sf {secret} $MUSTER_CHECKPOINT_FILE; cat $MUSTER_CHECKPOINT_FILE"),
        ),
        ("its own descriptors", format!("cat /proc/self/fd/*/../of-the-node || cat /proc/self/root{secret}")),
    ]);
    // The agent reads checkpoints of a task, and follows no link to them.
    let script = format!("ln -sf {secret} $MUSTER_CHECKPOINT_FILE; sleep 3");
    let id = cage.submit("beta", &[], &script);
    let job = cage.over(&id);
    assert!(!job.to_string().contains(SECRET), "{job}");
    for workdir in ["/root", "/proc/1/root", "/proc/1/cwd", "/proc/self/fd/3", "/run/muster/../../root", &folder] {
        let id = cage.site.submit_as("beta", &["--gpus", "1", "--retries", "0", "--workdir", workdir, "--", "ls"]);
        let job = cage.over(&id);
        assert_eq!(job["state"], "failed", "{workdir}: {job}");
        assert!(job.to_string().contains("working directory"), "{workdir}: {job}");
    }
    victim.is_well(&cage);
}

/// Attempt 13: the next task of the node, of another tenant, finds nothing of the one before.
#[test]
fn attempt_13_nothing_of_a_task_is_left_for_the_next() {
    let Some(cage) = Cage::start() else { return };
    // Where the kernel has them.
    let shm = "my $id = shmget(4711, 4096, 01666); shmwrite($id, \"alphas-secret-4711\", 0, 18);";
    let queue = "my $n = \"alpha\"; my $q = syscall(240, $n, 0102, 0666, 0);";
    let leave = format!(
        "echo {SECRET} > /tmp/left; echo {SECRET} > /dev/shm/left; mkfifo /tmp/pipe; touch $HOME/left; (sleep 98715 &) ; \
         perl -e '{shm} {queue} '; ls /tmp /dev/shm"
    );
    let left = cage.says("alpha", &[], &leave);
    assert_eq!(left.lines().filter(|line| *line == "left").count(), 2, "{left}");
    let seen =
        cage.says("beta", &[], "ls -A /tmp /dev/shm $HOME /run/muster/*; cat /proc/sysvipc/* | grep -v key; true");
    assert!(!seen.contains("left") && !seen.contains("pipe") && !seen.contains("4711"), "{seen}");
    cage.all_fail(&[
        ("its shared memory", perl("my $id = shmget(4711, 4096, 0)", "defined $id")),
        ("its message queue", perl("my $n = \"alpha\"; my $q = syscall(240, $n, 0, 0, 0)", "$q >= 0")),
        ("its process", "for at in /proc/[0-9]*; do [ \"$(tr '\\0' ' ' < $at/cmdline)\" = 'sleep 98715 ' ] && exit 0; done 2>/dev/null; exit 1".to_owned()),
    ]);
    assert!(super::processes_with("sleep 98715").is_empty(), "what it left in the background has ended");
}

/// Attempt 16: nothing of what a task brings runs with privilege, or with the environment of one who has it.
#[test]
fn attempt_16_what_a_task_brings_runs_as_its_user_alone() {
    let images = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(images.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its own");
    let pool = format!("name: default\nisolation: full\nimages: [\"dir:{}/\"]\n", images.path().display());
    let Some(cage) = Cage::of(&pool, &[]) else { return };
    let bin = cage.site.path("bin");
    std::fs::create_dir(&bin).expect("made");
    let traces = cage.site.path("traces");
    std::fs::create_dir(&traces).expect("made");
    std::fs::set_permissions(&traces, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("its own");
    // Whoever takes one of them for the usual program leaves a file of its user.
    let trace = format!("#!/bin/sh\n: > {}/$(basename $0).$$\nexit 0\n", traces.display());
    for name in ["muster", "sh", "mount", "skopeo", "nvidia-smi", "nft", "ldconfig"] {
        std::fs::write(bin.join(name), &trace).expect("written");
        std::fs::set_permissions(bin.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its own");
    }
    let (path, preload) = (format!("PATH={}", bin.display()), format!("LD_PRELOAD={}/evil.so", bin.display()));
    let root = images.path().join("image");
    image_at(&root);
    std::fs::create_dir_all(root.join("etc-hooks/oci/hooks.d")).expect("made");
    let image = format!("dir:{}", root.display());
    let env = [
        "--retries",
        "0",
        "--env",
        &path,
        "--env",
        &preload,
        "--env",
        "LD_LIBRARY_PATH=/tmp",
        "--env",
        "LD_AUDIT=/tmp/a.so",
    ];
    for words in [&env[..], &[&env[..], &["--image", &image]].concat()] {
        let id =
            cage.site.submit_as("beta", &[&["--gpus", "1"], words, &["--", "/bin/sh", "-c", "id -u; true"]].concat());
        let job = cage.over(&id);
        let shim_log = cage.site.path("data");
        let said: String =
            walk(&shim_log, "shim.log").iter().map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
        assert!(
            !said.contains("evil.so") && !said.contains("LD_PRELOAD"),
            "the shim had its environment: {said}: {job}"
        );
        assert!(!cage.agent.log().contains("evil.so"), "the agent had its environment");
    }
    let by_root: Vec<_> = std::fs::read_dir(&traces)
        .expect("it is there")
        .flatten()
        .filter(|entry| entry.metadata().is_ok_and(|what| what.uid() == 0))
        .map(|entry| entry.file_name())
        .collect();
    assert!(by_root.is_empty(), "run by root: {by_root:?}");
    assert!(!Path::new("/etc/hosts.muster").exists());
}

/// Files of this name below a folder.
fn walk(at: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(at).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(walk(&path, name));
        } else if entry.file_name() == *name {
            found.push(path);
        }
    }
    found
}

/// A root file system of the host's shell and a few programs.
pub(crate) fn image_at(root: &Path) {
    std::fs::create_dir_all(root.join("bin")).expect("made");
    for name in ["sh", "cat", "id", "ls", "touch"] {
        let found =
            ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name)).into_iter().find(|path| path.exists());
        let program = std::fs::canonicalize(found.expect("a usual program")).expect("there");
        std::fs::copy(&program, root.join("bin").join(name)).expect("copied");
        let said = std::process::Command::new("ldd").arg(&program).output().expect("ldd");
        for word in String::from_utf8_lossy(&said.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
            let into = root.join(word.trim_start_matches('/'));
            std::fs::create_dir_all(into.parent().expect("a folder")).expect("made");
            if !into.exists() {
                std::fs::copy(word, into).expect("copied");
            }
        }
    }
}
