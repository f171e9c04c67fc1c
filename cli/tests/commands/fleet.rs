//! Nodes, cards, cells and voters as an operator sees and changes them.

use crate::common::Dev;
use crate::waiting::wait_for;

#[test]
fn a_node_is_undrained_by_who_drained_it() {
    let dev = Dev::start(&["--nodes", "1"]);
    let data = dev.path("dev/control-1").display().to_string();
    let session = |user: &str| {
        let text = dev.ok(&["recover", "--data", &data, "--user", user]);
        dev.private_file(&format!("{user}.token"), &text)
    };
    let (alice, bob) = (session("alice"), session("bob"));
    for (who, why) in [(&alice, "new cables"), (&bob, "new cards")] {
        let said = dev.run_with(who, &["drain", "node-0000", "--reason", why]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    let shown = dev.ok(&["nodes"]);
    assert!(shown.contains("user:alice (new cables), user:bob (new cards)"), "{shown}");
    // Whoever runs this cluster has drained nothing.
    dev.refused(&["undrain", "node-0000"], 5, &["user:alice (new cables)", "--force"]);
    let said = dev.run_with(&alice, &["undrain", "node-0000"]);
    assert!(said.out.contains("still drained by user:bob (new cards)"), "{said:?}");
    dev.ok(&["undrain", "--force", "node-0000"]);
    assert_eq!(dev.run(&["nodes", "-o", "json"]).json()[0]["state"], "ready");
}

#[test]
fn a_drained_node_has_nothing_free_and_is_counted_as_drained() {
    let dev = Dev::start(&["--nodes", "2"]);
    dev.ok(&["drain", "node-0000"]);
    let nodes = dev.run(&["nodes", "-o", "json"]).json();
    assert_eq!((nodes[0]["name"].as_str(), nodes[0]["state"].as_str()), (Some("node-0000"), Some("drained")));
    assert_eq!((nodes[0]["gpus_free"].as_u64(), nodes[1]["gpus_free"].as_u64()), (Some(0), Some(8)));
    let gpus = dev.ok(&["gpus", "node-0000"]);
    assert_eq!(gpus.matches("unavailable").count(), 8, "{gpus}");
    assert_eq!(gpus.matches("the node is drained").count(), 8, "{gpus}");
    let cell = &dev.run(&["cells", "-o", "json"]).json()[0];
    let figure = |name: &str| cell[name].as_u64();
    assert_eq!((figure("nodes_ready"), figure("nodes_drained"), figure("gpus_free")), (Some(1), Some(1), Some(8)));
    dev.ok(&["undrain", "node-0000"]);
    assert_eq!(dev.run(&["nodes", "-o", "json"]).json()[0]["gpus_free"], 8);
}

#[test]
fn the_standard_pool_is_listed_with_its_rules_before_and_after_a_change() {
    let dev = Dev::start(&["--nodes", "1"]);
    let pools = dev.run(&["pools", "list", "-o", "json"]).json();
    assert_eq!(pools.as_array().map(Vec::len), Some(1), "{pools}");
    assert_eq!((&pools[0]["name"], &pools[0]["time_slice_replicas"]), (&"default".into(), &4.into()), "{pools}");
    std::fs::write(dev.path("pool.yaml"), "name: default\ntime-slice-replicas: 2\n").expect("a file");
    dev.ok(&["pools", "apply", "-f", &dev.path("pool.yaml").display().to_string()]);
    let pools = dev.run(&["pools", "list", "-o", "json"]).json();
    assert_eq!(pools.as_array().map(Vec::len), Some(1), "{pools}");
    assert_eq!(pools[0]["time_slice_replicas"], 2, "{pools}");
}

#[test]
fn a_voter_that_others_depend_on_is_removed_only_when_told_twice() {
    let dev = Dev::start(&["--nodes", "1", "--voters", "3"]);
    let voters = || {
        let peers = dev.run(&["raft", "status", "-o", "json"]).json();
        peers.as_array().expect("peers").iter().filter(|peer| peer["role"] == "voter").count()
    };
    let peers = dev.run(&["raft", "status", "-o", "json"]).json();
    let peers = peers.as_array().expect("three").iter();
    let follower = peers.clone().find(|peer| peer["state"] == "follower").expect("a follower");
    let id = follower["id"].to_string();
    let said = dev.refused(
        &["raft", "remove", &id],
        5,
        &[
            &format!(
                "without node {id} the cluster has 2 voters and survives the loss of 0; now it has 3 voters and survives the loss of 1"
            ),
            "--replace-with ID, or --yes",
        ],
    );
    assert_eq!(voters(), 3, "{said}");
    let said = dev.ok(&["raft", "remove", &id, "--yes"]);
    assert_eq!(said.matches("voter").count(), 2, "{said}");
    wait_for("two voters", || voters() == 2);
    // From two to one nothing is lost that was there.
    let other =
        peers.clone().find(|peer| peer["state"] == "follower" && peer["id"] != follower["id"]).expect("another");
    dev.ok(&["raft", "remove", &other["id"].to_string()]);
}
