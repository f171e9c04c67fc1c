//! An elastic gang with real processes: it starts with its least, grows into what is idle, gives devices back when another job needs them, and ends
//! with the right result. Its workers are told each size.

use crate::common::Dev;
use crate::shared::open_to_all;
use crate::waiting::wait_for;
use serde_json::Value;
use std::path::Path;

/// Each worker writes down what it started with, and each size that it is told; it ends when it finds `finish`, and says so. One that is told to
/// go says that.
const WORKER: &str = r#"
me="$SHARED/$MUSTER_TASK"
note() { cp "$MUSTER_WORLD_FILE" "$me.world.new"; mv "$me.world.new" "$me.world"; }
trap note WINCH
trap 'touch "$me.left"; exit 0' USR1
echo "$RANK of $WORLD_SIZE, $MUSTER_WORKERS_MIN to $MUSTER_WORKERS_MAX" > "$me.start"
note
while [ ! -f "$SHARED/finish" ]; do sleep 0.1; done
touch "$me.done"
"#;

fn job(dev: &Dev, id: &str) -> Value {
    dev.run(&["job", id, "-o", "json"]).json()
}

fn workers(dev: &Dev, id: &str) -> u64 {
    job(dev, id)["elastic"]["tasks_now"].as_u64().unwrap_or(0)
}

/// What is in the files of that ending, by task.
fn files(shared: &Path, ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(shared).expect("a folder").filter_map(Result::ok);
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(ending));
    let mut texts: Vec<String> = ours.map(|entry| std::fs::read_to_string(entry.path()).unwrap_or_default()).collect();
    texts.sort();
    texts
}

/// Whether so many workers know that they are so many, each its own place.
fn all_know(shared: &Path, workers: u64) -> bool {
    let worlds = files(shared, ".world");
    let worlds: Vec<Value> = worlds.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
    let newest = worlds.iter().filter_map(|world| world["generation"].as_u64()).max();
    let told = worlds.iter().filter(|world| world["generation"].as_u64() == newest);
    let mut ranks: Vec<u64> =
        told.filter(|world| world["workers"] == workers).filter_map(|world| world["rank"].as_u64()).collect();
    ranks.sort_unstable();
    ranks == (0..workers).collect::<Vec<_>>()
}

#[test]
fn an_elastic_gang_grows_into_idle_gpus_and_gives_them_back() {
    let dev = Dev::start(&["--nodes", "1"]);
    let shared = dev.path("shared");
    std::fs::create_dir(&shared).expect("a folder");
    open_to_all(&shared);
    let env = format!("SHARED={}", shared.display());
    let said = dev.run(&["submit", "--gpus", "1", "--tasks", "4-2", "--", "true"]);
    assert!(said.code != 0 && said.err.contains("elastic.tasks_max"), "{} {}", said.code, said.err);
    dev.refused(&["submit", "--gpus", "1", "--tasks", "many", "--", "true"], 2, &["4-16"]);
    // A new cluster reaches the feature level of its voters within a second.
    let submit = [
        "submit",
        "--gpus",
        "1",
        "--tasks",
        "2-6",
        "--resize-signal",
        "WINCH",
        "--preempt-signal",
        "USR1",
        "--preempt-grace",
        "5s",
        "--env",
        &env,
        "--",
        "sh",
        "-c",
        WORKER,
    ];
    wait_for("the feature level", || {
        dev.run(&["submit", "--gpus", "1", "--tasks", "2-6", "--hold", "--", "true"]).code == 0
    });
    let elastic = dev.ok(&submit);
    dev.until(&elastic, &["running"]);
    assert_eq!(workers(&dev, &elastic), 2, "it starts with its least");
    wait_for("the first growth", || workers(&dev, &elastic) > 2);
    wait_for("six workers", || workers(&dev, &elastic) == 6 && all_know(&shared, 6));
    let starts = files(&shared, ".start");
    assert_eq!(starts.iter().filter(|text| text.as_str() == "0 of 2, 2 to 6\n").count(), 1, "{starts:?}");
    assert_eq!(starts.len(), 6, "{starts:?}");
    let shown = dev.ok(&["job", &elastic]);
    assert!(shown.contains("6 now, 2 to 6, WINCH at each new size"), "{shown}");
    assert!(shown.contains("growth"), "{shown}");

    // Two GPUs are free, and another job needs five: three workers leave, and the gang runs on.
    let other = dev.ok(&["submit", "--gpus", "1", "--tasks", "5", "--", "sleep", "infinity"]);
    dev.until(&other, &["running"]);
    wait_for("three workers", || workers(&dev, &elastic) == 3 && all_know(&shared, 3));
    assert_eq!(files(&shared, ".left").len(), 3, "they were told to go");
    assert_eq!(dev.state(&elastic), "running");
    assert_eq!(job(&dev, &elastic)["attempt"], 1, "it was never stopped");

    // The two workers of the least end, and with them the job; the third may be told to go before it ends by itself.
    std::fs::write(shared.join("finish"), "").expect("a file");
    dev.until(&elastic, &["completed"]);
    let (done, left) = (files(&shared, ".done").len(), files(&shared, ".left").len());
    assert!((2..=3).contains(&done) && done + left >= 6, "{done} ended by themselves, {left} were told to go");
    dev.ok(&["cancel", &other]);
}
