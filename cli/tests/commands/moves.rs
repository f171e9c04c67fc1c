//! Moves: who waits because what is free is scattered starts after a movable job was started elsewhere.

use crate::common::Dev;
use crate::waiting::wait_for;

const MOVES: &str = "\
name: default
moves-per-hour: 2
moves-lost-gpu-hours-per-day: 100
";

fn submit(dev: &Dev, gpus: &str, more: &[&str]) -> String {
    dev.ok(&[&["submit", "--tenant", "dev", "--gpus", gpus], more, &["--", "sleep", "600"]].concat())
}

fn nodes_of(dev: &Dev, id: &str) -> String {
    dev.run(&["job", id, "-o", "json"]).json()["placement"][0]["node"].to_string()
}

#[test]
fn a_scattered_job_is_moved_and_the_gang_starts_as_promised() {
    let dev = Dev::start(&["--nodes", "2", "--gpus-per-node", "4"]);
    let movable = ["--movable", "--checkpoint-every", "1m", "--restart-time", "30s", "--preempt-grace", "5s"];
    // Two jobs fill a node, the third stands on the other; without the second, each node has two free GPUs.
    let first = submit(&dev, "2", &movable);
    dev.until(&first, &["running"]);
    let between = submit(&dev, "2", &[]);
    dev.until(&between, &["running"]);
    let third = submit(&dev, "2", &movable);
    dev.until(&third, &["running"]);
    dev.ok(&["cancel", &between]);
    wait_for("its end", || dev.run(&["job", &between, "-o", "json"]).json()["state"] == "cancelled");
    assert_ne!(nodes_of(&dev, &first), nodes_of(&dev, &third));
    let gang = submit(&dev, "4", &[]);
    dev.until(&gang, &["pending"]);

    // Off by default.
    assert!(dev.ok(&["moves"]).contains("no job was moved"));
    let half = dev.file("half.yaml", "name: default\nmoves-per-hour: 2\n");
    dev.refused(&["pools", "apply", "-f", &half], 2, &["moves_lost_gpu_hours_per_day", "set both, or neither"]);
    assert_eq!(dev.run(&["job", &gang, "-o", "json"]).json()["state"], "pending");

    let moves = dev.file("moves.yaml", MOVES);
    wait_for("the pool", || dev.run(&["pools", "apply", "-f", &moves]).code == 0);
    dev.until(&gang, &["running"]);
    let told = || dev.run(&["moves", "-o", "json"]).json();
    wait_for("the result", || told()["moves"][0]["moved"][0]["state"] == "resumed");
    let told = told();
    let made = &told["moves"][0];
    assert_eq!(told["moves"].as_array().map(Vec::len), Some(1), "{told}");
    assert_eq!(made["job"].to_string(), gang, "{told}");
    assert_eq!(made["moved"].as_array().map(Vec::len), Some(1), "{told}");
    let moved = made["moved"][0]["job"].to_string();
    assert!(moved == first || moved == third, "{told}");
    // What was promised stands beside what came of it, and holds.
    let (promised_s, wait_s) = (made["promised_wait_s"].as_f64(), made["wait_s"].as_f64());
    assert!(wait_s.is_some() && wait_s <= promised_s, "{told}");
    let (said, lost) = (made["promised_loss_gpu_s"].as_u64(), made["lost_gpu_s"].as_u64());
    assert!(lost.is_some() && lost <= said, "{told}");
    assert_eq!(told["budgets"][0]["moves_left"], 1, "{told}");

    // The moved job runs beside the other movable one, and has its place in the queue no more than before.
    dev.until(&moved, &["running"]);
    assert_eq!(nodes_of(&dev, &first), nodes_of(&dev, &third));
    assert_ne!(nodes_of(&dev, &first), nodes_of(&dev, &gang));
    let table = dev.ok(&["moves"]);
    for words in ["PROMISED START", "PROMISED LOSS", "resumed", "pool default may move 1 more jobs in this hour (of 2)"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
    let job = dev.run(&["job", &moved, "-o", "json"]).json();
    assert_eq!(job["preemptions"], 1, "{job}");
}

/// The card that a job stands on.
fn card_of(dev: &Dev, id: &str) -> String {
    dev.run(&["job", id, "-o", "json"]).json()["placement"][0]["gpus"][0]["gpu"].to_string()
}

#[test]
fn a_slice_is_moved_and_a_whole_card_is_free() {
    let dev = Dev::start(&["--nodes", "1", "--gpus-per-node", "2"]);
    let slice = || {
        let size = ["submit", "--tenant", "dev", "--mig", "3g.40gb", "--movable", "--checkpoint-every", "1m"];
        let id = dev.ok(&[&size[..], &["--preempt-grace", "2s", "--", "sleep", "600"]].concat());
        dev.until(&id, &["running"]);
        id
    };
    // Two slices fill a card; then one of each card ends.
    let slices = [slice(), slice(), slice(), slice()];
    let cards: Vec<String> = slices.iter().map(|id| card_of(&dev, id)).collect();
    let stays = |at: usize| cards[..at].contains(&cards[at]);
    for (at, id) in slices.iter().enumerate().filter(|(at, _)| !stays(*at)) {
        dev.ok(&["cancel", id]);
        wait_for("its end", || dev.run(&["job", id, "-o", "json"]).json()["state"] == "cancelled");
        assert!(cards.iter().filter(|card| **card == cards[at]).count() == 2, "{cards:?}");
    }
    let whole = submit(&dev, "1", &[]);
    dev.until(&whole, &["pending"]);
    let moves = dev.file("moves.yaml", MOVES);
    wait_for("the pool", || dev.run(&["pools", "apply", "-f", &moves]).code == 0);
    dev.until(&whole, &["running"]);
    let told = || dev.run(&["moves", "-o", "json"]).json();
    wait_for("the result", || told()["moves"][0]["moved"][0]["state"] == "resumed");
    assert_eq!(told()["moves"][0]["job"].to_string(), whole);
    let left: Vec<&String> = (0..4).filter(|at| stays(*at)).map(|at| &slices[at]).collect();
    assert_eq!(card_of(&dev, left[0]), card_of(&dev, left[1]), "both stand on one card");
    assert_ne!(card_of(&dev, left[0]), card_of(&dev, &whole));
}
