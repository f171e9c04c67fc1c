//! Shares of a card that several tasks hold, through the real binary on the double of NVIDIA's driver: what a task takes beyond its own ends it, names it, and
//! leaves its neighbour alone.

use crate::site::{Agent, Site};
use muster_gpu_double::{Faults, Process};
use serde_json::Value;
use std::path::PathBuf;

const GIB: u64 = 1 << 30;

/// A node with one card of the double.
fn site() -> (Site, Agent, Faults) {
    let site = Site::start();
    std::fs::write(site.path("node.yaml"), "{name: gpu-1, model: h100, gpus: 1}\n").expect("a file");
    let agent = site.agent("agent", &["--data", "data", "--spec", "node.yaml", "--gpus", "double"]);
    site.until("the node", || (!site.nodes().is_empty()).then_some(()));
    let faults = Faults::open(&site.path("data/gpu-1/gpu-double")).expect("the agent has made it");
    (site, agent, faults)
}

/// A program that cannot allocate GPU memory ends by itself: all that the node can tell is how full its slice was.
#[test]
fn a_task_that_fails_on_a_full_slice_is_told_of_the_next_larger_profile() {
    let (site, _agent, faults) = site();
    let said_after = |seconds: &str, memory_mib: u64, code: u8| {
        let script = format!("sleep {seconds}; exit {code}");
        let id = site.submit(&["--mig", "1g.10gb", "--retries", "0", "--", "sh", "-c", &script]);
        site.until_job(&id, "running");
        let pid = process_of(&site, &format!("sleep {seconds}"));
        let instances = faults.fleet().expect("readable").cards.remove(0).mig.instances;
        let [slice] = &instances[..] else { panic!("{instances:?}") };
        let process =
            Process { pid, memory_bytes: memory_mib << 20, gpu_instance: Some(slice.id), ..Process::default() };
        faults.add_real_process(0, process).expect("it lives");
        let job = site.until_job(&id, if code == 0 { "completed" } else { "failed" });
        let ended = job["attempts"][0]["failures"][0]["code"].as_u64().unwrap_or_default();
        assert_eq!(ended, u64::from(code), "how it ended stays as it was: {job}");
        site.said(&["logs", &id, "--stderr"])
    };
    let said = said_after("5.98841", 9_940, 7);
    let hint = "muster: hint: shortly before this task failed, 9.7 GiB of the 9.75 GiB of its 1g.10gb slice of GPU 0 were in use, so it may have run \
                out of GPU memory; the next larger profile is 1g.20gb (about 19.5 GiB)";
    assert!(said.contains(hint), "{said}");
    assert_eq!(said_after("5.98842", 6_000, 7), "", "there was memory left");
    assert_eq!(said_after("5.98843", 9_940, 0), "", "it did not fail");
}

/// The only process of the host with this command line.
fn process_of(site: &Site, words: &str) -> u32 {
    let is_it = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let is_it = String::from_utf8_lossy(&line).replace('\0', " ").trim() == words;
        is_it.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    site.until(words, || std::fs::read_dir("/proc").expect("processes").find_map(is_it))
}

/// How the first attempt of a job ended, and what is said of it.
fn end_of(job: &Value) -> (String, String) {
    let failure = &job["attempts"][0]["failures"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&failure["end"]), text(&failure["reason"]))
}

fn pipe(faults: &Faults) -> PathBuf {
    PathBuf::from(&faults.fleet().expect("readable").mps[0].pipe)
}

/// HAMi #2125, #1112: a limit in an environment variable is the task's to remove. What its server grants is the largest share of those on the card; what
/// the task takes beyond its own is seen, and ends it.
#[test]
fn a_task_that_unsets_its_mps_limits_gains_nothing() {
    let (site, _agent, faults) = site();
    let share = |gib: &str, script: &str| site.submit(&["--mps", "25", "--gpu-memory", gib, "--", "sh", "-c", script]);
    let large = share("16Gi", "exec sleep 98801");
    let small =
        share("4Gi", "exec env -u CUDA_MPS_PINNED_DEVICE_MEM_LIMIT -u CUDA_MPS_ACTIVE_THREAD_PERCENTAGE sleep 98802");
    let honest = share("4Gi", "exec sleep 98803");
    for id in [&large, &small, &honest] {
        site.until_job(id, "running");
    }
    let [large_pid, small_pid, honest_pid] =
        [98801, 98802, 98803].map(|seconds| process_of(&site, &format!("sleep {seconds}")));
    let pipe = pipe(&faults);
    for pid in [large_pid, small_pid, honest_pid] {
        faults.mps_connect(&pipe, pid).expect("the server takes it");
    }
    let granted = |pid: u32| {
        let server = faults.fleet().expect("readable").mps.remove(0);
        (server.granted[&pid].memory_bytes.map(|bytes| bytes >> 20), server.granted[&pid].thread_percentage)
    };
    // An H100's context takes up to 480 MiB under MPS, of which 32 are for the driver's way of counting.
    assert_eq!(granted(large_pid), (Some((16 << 10) + 448), 25.0));
    assert_eq!(granted(honest_pid), (Some((4 << 10) + 448), 25.0));
    assert_eq!(granted(small_pid), (Some((16 << 10) + 448), 25.0), "what the largest share has");
    faults.mps_allocate(&pipe, honest_pid, 4 * GIB).expect("its whole share");
    faults.mps_allocate(&pipe, honest_pid, GIB).expect_err("more than its share");
    faults.mps_allocate(&pipe, small_pid, 17 * GIB).expect_err("more than any share");
    faults.mps_allocate(&pipe, small_pid, 12 * GIB).expect("its server grants it");
    let job = site.until_job(&small, "failed");
    let said = "used 12.2 GiB of GPU 0, its share is 4 GiB".to_owned();
    assert_eq!(end_of(&job), ("over-gpu-share".to_owned(), said.clone()), "{job}");
    let shown = site.said(&["job", &small]);
    assert!(shown.contains("over its GPU share") && shown.contains(&said), "{shown}");
    for id in [&large, &honest] {
        assert_eq!(site.job(id)["state"], "running", "a neighbour is left alone");
    }
}

/// An MPS server limits each process, and not a task that has two; time-slicing limits nothing.
#[test]
fn of_two_sharers_the_one_that_takes_more_memory_than_its_share_ends_alone() {
    let (site, _agent, faults) = site();
    for (way, gib, scripts) in [
        (&["--mps", "40"][..], "16Gi", ["sleep 98811 & exec sleep 98812", "exec sleep 98813"]),
        (&["--time-slice"][..], "16Gi", ["sleep 98821 & exec sleep 98822", "exec sleep 98823"]),
    ] {
        let submit = |script: &str| site.submit(&[way, &["--gpu-memory", gib, "--", "sh", "-c", script]].concat());
        let [over, within] = scripts.map(submit);
        for id in [&over, &within] {
            site.until_job(id, "running");
        }
        let first = if way[0] == "--mps" { 98811 } else { 98821 };
        let pids = [0, 1, 2].map(|more| process_of(&site, &format!("sleep {}", first + more)));
        for pid in pids {
            match way[0] {
                "--mps" => {
                    faults.mps_connect(&pipe(&faults), pid).expect("the server takes it");
                    faults.mps_allocate(&pipe(&faults), pid, 11 * GIB).expect("each is within its limit");
                }
                _ => {
                    let memory_bytes = 11 * GIB + (300 << 20);
                    faults.add_real_process(0, Process { pid, memory_bytes, ..Process::default() }).expect("it lives");
                }
            }
        }
        let job = site.until_job(&over, "failed");
        let said = "used 22.5 GiB of GPU 0, its share is 16 GiB".to_owned();
        assert_eq!(end_of(&job), ("over-gpu-share".to_owned(), said), "{way:?}: {job}");
        assert_eq!(site.job(&within)["state"], "running", "{way:?}");
        site.said(&["cancel", &within]);
        site.until_job(&within, "cancelled");
    }
}

/// A card takes so many contexts; those of one task must leave the others theirs.
#[test]
fn a_task_with_more_processes_on_a_card_than_its_part_ends_alone() {
    let (site, _agent, faults) = site();
    let submit = |script: &str| site.submit(&["--time-slice", "--gpu-memory", "16Gi", "--", "sh", "-c", script]);
    let many = submit("for i in 1 2 3 4 5 6 7 8; do sleep 9883$i & done; exec sleep 98839");
    let one = submit("exec sleep 98840");
    for id in [&many, &one] {
        site.until_job(id, "running");
    }
    let add = |seconds: u32| {
        let pid = process_of(&site, &format!("sleep {seconds}"));
        faults.add_real_process(0, Process { pid, memory_bytes: 400 << 20, ..Process::default() }).expect("it lives");
    };
    (98831..98840).chain([98840]).for_each(add);
    let job = site.until_job(&many, "failed");
    let said = "had 9 processes on GPU 0, a time-sliced task there may have 8".to_owned();
    assert_eq!(end_of(&job), ("over-gpu-share".to_owned(), said), "{job}");
    assert_eq!(site.job(&one)["state"], "running");
}

/// The pool says how long a turn is; a card has the length that held when it began to be time-sliced.
#[test]
fn a_pool_sets_the_length_of_turns() {
    let (site, _agent, faults) = site();
    let apply = |length: &str| {
        std::fs::write(site.path("pool.yaml"), format!("name: default\ntime-slice: {length}\n")).expect("a file");
        site.said(&["pools", "apply", "-f", "pool.yaml"]);
    };
    let submit = || site.submit(&["--time-slice", "--gpu-memory", "16Gi", "--", "sleep", "600"]);
    let set = || faults.fleet().expect("readable").cards[0].time_slice;
    apply("short");
    assert_eq!(site.json(&["pools", "list"])[0]["time_slice"], "short");
    let first = submit();
    site.until_job(&first, "running");
    assert_eq!(set(), 1);
    apply("long");
    let second = submit();
    site.until_job(&second, "running");
    assert_eq!(set(), 1, "somebody has it");
    for id in [&first, &second] {
        site.said(&["cancel", id]);
    }
    site.until("nobody to have it", || (set() == 0).then_some(()));
    let third = submit();
    site.until_job(&third, "running");
    assert_eq!(set(), 3);
    std::fs::write(site.path("pool.yaml"), "name: default\ntime-slice: eternal\n").expect("a file");
    let refused = site.muster(&["pools", "apply", "-f", "pool.yaml"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("short, medium, long"), "{said}");
}

/// What driver and contexts take of a card is no share's.
#[test]
fn a_share_that_leaves_no_memory_for_driver_and_context_is_refused() {
    let (site, _agent, _faults) = site();
    let refused =
        site.muster(&["submit", "--tenant", "research", "--time-slice", "--gpu-memory", "80Gi", "--", "true"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("driver and context take"), "{said}");
    let ids = [0; 4].map(|_| site.submit(&["--time-slice", "--gpu-memory", "20Gi", "--", "sleep", "600"]));
    for id in &ids[..3] {
        site.until_job(id, "running");
    }
    // Four times 20 GiB are all of the card's memory.
    assert_eq!(site.job(&ids[3])["state"], "pending");
}
