//! Priority classes: who may use them, and whom they preempt in other tenants.

use crate::common::Dev;
use crate::waiting::wait_for;

const TREE: &str = "\
research: {}
product: {}
";

const CLASSES: &str = "\
name: batch
priority: 10
---
name: production
priority: 1000
preempts: [batch, default]
tenants: [product]
";

fn submit(dev: &Dev, tenant: &str, more: &[&str]) -> String {
    dev.ok(&[&["submit", "--tenant", tenant, "--gpus", "1"], more, &["--", "sleep", "600"]].concat())
}

#[test]
fn a_marked_class_preempts_burst_of_another_tenant_and_nobody_else_does() {
    let dev = Dev::start(&["--nodes", "1", "--gpus-per-node", "2"]);
    let (tree, classes) = (dev.file("tree.yaml", TREE), dev.file("classes.yaml", CLASSES));
    dev.ok(&["tenants", "apply", "-f", &tree]);
    // A new cluster reaches the feature level of its voters within a second.
    wait_for("the classes", || dev.run(&["priority-classes", "apply", "-f", &classes]).code == 0);
    let listed = dev.ok(&["priority-classes", "list"]);
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["batch", "10", "-", "all"], "{listed}");
    assert_eq!(rows[2], ["production", "1000", "batch,default", "product"], "{listed}");

    // Who may use it, and what it sets.
    let ask = ["submit", "--tenant", "research", "--gpus", "1", "--priority-class"];
    dev.refused(
        &[&ask[..], &["production", "--", "true"]].concat(),
        2,
        &["is not for this tenant", "use one of batch"],
    );
    dev.refused(&[&ask[..], &["prodution", "--", "true"]].concat(), 2, &["does not exist"]);

    let older = submit(&dev, "research", &["--restart-cost", "1h"]);
    let younger = submit(&dev, "research", &["--priority-class", "batch"]);
    for id in [&older, &younger] {
        dev.until(id, &["running"]);
    }
    // A high priority alone takes nothing from another tenant.
    let plain = submit(&dev, "product", &["--priority", "500"]);
    assert!(dev.ok(&["explain", &plain]).contains("pending"));
    // The class does, from the lowest priority first.
    let urgent = submit(&dev, "product", &["--priority-class", "production"]);
    dev.until(&urgent, &["running"]);
    let victim = dev.run(&["job", &older, "-o", "json"]).json();
    assert_eq!((victim["state"].as_str(), victim["preemptions"].as_u64()), (Some("pending"), Some(1)), "{victim}");
    assert_eq!(victim["reason"], format!("preempted by job {urgent} (class)"), "{victim}");
    for (id, state) in [(&younger, "running"), (&plain, "pending")] {
        assert_eq!(dev.run(&["job", id, "-o", "json"]).json()["state"], state);
    }
    assert!(dev.ok(&["job", &urgent]).contains("1000 (class production)"));

    // What is used stays, and what it sets is not changed behind its back.
    dev.refused(&["priority-classes", "delete", "production"], 5, &["has it; wait until it has ended"]);
    dev.refused(&["update", &urgent, "--priority", "5"], 2, &["priority class production sets it"]);
    dev.ok(&["cancel", &urgent]);
    wait_for("the deletion", || dev.run(&["priority-classes", "delete", "production"]).code == 0);
}
