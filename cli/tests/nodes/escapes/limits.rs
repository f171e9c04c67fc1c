//! Attempt 6: what a task exceeds ends it, and nobody else.

use super::{Cage, processes_with};

#[test]
fn attempt_06_limits_end_the_task_and_not_its_neighbours_or_the_agent() {
    let Some(cage) = Cage::of("name: default\nisolation: full\nnetwork: host\n", &["--task-scratch", "64Mi"]) else {
        return;
    };
    let victim = cage.victim();
    let hog =
        cage.submit("beta", &["--cpus", "1", "--memory", "64Mi"], "head -c 500M /dev/zero | tail -c 500M | wc -c");
    let bomb = "bomb() { bomb | bomb & }; bomb; sleep 60";
    let bomb = cage.submit("beta", &["--cpus", "1", "--memory", "256Mi", "--time", "5s"], bomb);
    // By its time limit, or because its shell could not start another process.
    cage.over(&bomb);
    let said = cage.site.until("the note", || {
        let said = cage.site.said(&["logs", &hog, "--stderr"]);
        said.contains("out of memory").then_some(said)
    });
    assert!(said.contains("muster: out of memory: the task has a limit of 64 MiB"), "{said}");
    // The kernel's kill is told as what it is, by rank and for the job.
    let job = cage.submit("beta", &["--cpus", "1", "--memory", "64Mi"], "exec perl -e '$_ = q(x) x 500_000_000'");
    let job = cage.over(&job);
    let failure = &job["attempts"][0]["failures"][0];
    assert_eq!((&failure["rank"], &failure["end"]), (&0.into(), &"out-of-memory".into()), "{job}");
    assert_eq!(failure["reason"], "the task has a limit of 64 MiB; the kernel killed 1 of its processes", "{job}");
    let reason = job["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("rank 0 ran out of memory on "), "{job}");
    // Descriptors: some ten thousand for each process, and then no more.
    let open = "my @all; while (open(my $f, \"<\", \"/dev/null\")) { push @all, $f } print scalar(@all)";
    let said = cage.says("beta", &[], &format!("perl -e '{open}'"));
    assert!(said.parse::<u32>().is_ok_and(|opened| opened < 70_000), "{said} files");
    // Disk: each place that it may write to is full before the node is, and its neighbours have what they had.
    let fill = "for at in $HOME /tmp /dev/shm $(dirname $MUSTER_CHECKPOINT_FILE); do head -c 300M /dev/zero > $at/fill 2>/dev/null; \
                stat -c %s $at/fill; rm $at/fill; done";
    let said = cage.says("beta", &["--memory", "256Mi"], fill);
    let filled: Vec<u64> = said.lines().map(|bytes| bytes.parse().expect("a number")).collect();
    let mib = |mib: u64| mib << 20;
    let [home, tmp, shm, told] = filled[..] else { panic!("{said}") };
    assert!(home <= mib(64) && tmp <= mib(128) && shm <= mib(128) && told <= mib(1), "{said}");
    assert!(home > mib(48) && tmp > mib(96), "it has what it was given: {said}");
    let many = "i=0; cd $(dirname $MUSTER_CHECKPOINT_FILE); while [ $i -lt 5000 ] && true > f$i; do i=$((i+1)); done 2>/dev/null; echo $i";
    let said = cage.says("beta", &[], many);
    assert!(said.trim().parse::<u32>().is_ok_and(|files| files < 100), "{said} files for the agent to read");
    // A task that asked for no memory has a limit all the same: its share of the node.
    let record = std::fs::read_to_string(victim.folder.join("task.json")).expect("it is there");
    let record: serde_json::Value = serde_json::from_str(&record).expect("a record");
    let limit = record["isolation"]["limits"]["memory_mib"].as_u64();
    assert_eq!(limit, Some(2 * 1_024 * 1_024 / 8), "one of eight GPUs, and an eighth of the memory");
    victim.is_well(&cage);
}

/// A task leaves what takes long to remove, deeper than any path: it is removed beside everything else, and the agent serves others meanwhile.
#[test]
fn attempt_06_what_takes_long_to_remove_holds_up_nobody() {
    let Some(cage) = Cage::start() else { return };
    let nest = "my $n = 0; while ($n < 3000 && mkdir(\"d\") && chdir(\"d\")) { $n++ } print $n";
    let said = cage.says("beta", &[], &format!("perl -e '{nest}'"));
    assert_eq!(said, "3000", "the path of the innermost is longer than any may be");
    let quick = cage.says("alpha", &[], "echo served");
    assert_eq!(quick, "served\n");
    cage.site.until("its folder to be removed", || {
        let nodes = std::fs::read_dir(cage.site.path("data")).expect("the agent's folder").flatten();
        let trash = nodes.filter_map(|node| std::fs::read_dir(node.path().join("trash")).ok()).flatten().count();
        (trash == 0).then_some(())
    });
    assert!(!cage.agent.log().contains("cannot remove"), "{}", cage.agent.log());
    assert!(processes_with("muster-nothing").is_empty());
}
