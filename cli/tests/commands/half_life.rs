//! Past use with a half-life: who used much lately goes behind who did not, and operators and tenants see why.

use crate::common::Dev;
use crate::waiting::wait_for;

const TREE: &str = "\
half-life: 10s
busy: {}
away: {}
";

/// Submits a job that takes all eight GPUs for so long; its id.
fn submit(dev: &Dev, tenant: &str, seconds: &str) -> String {
    dev.ok(&["submit", "--tenant", tenant, "--gpus", "8", "--", "sleep", seconds])
}

#[test]
fn who_used_much_lately_goes_behind_who_did_not_and_the_tree_shows_it() {
    let dev = Dev::start(&["--nodes", "1"]);
    let file = dev.file("tree.yaml", TREE);
    // A new cluster reaches the feature level of its voters within seconds.
    wait_for("the tree", || dev.run(&["tenants", "apply", "-f", &file, "--dry-run"]).code == 0);
    assert!(!dev.ok(&["tree"]).contains("HISTORIC"), "past use does not count yet");
    let said = dev.ok(&["tenants", "apply", "-f", &file]);
    assert_eq!(said, "half-life: off -> 10s\naway: new\nbusy: new\n2 tenants added");
    assert_eq!(dev.ok(&["tenants", "apply", "-f", &file]), "no tenant changed (2 unchanged)");
    let year = dev.file("year.yaml", "half-life: 400d\n");
    dev.refused(&["tenants", "apply", "-f", &year], 2, &["half-life: is 34560000 seconds; use 1 to "]);

    // Busy holds the fleet for more than a half-life, and asks for more before away asks for anything.
    let first = submit(&dev, "busy", "12");
    dev.until(&first, &["running"]);
    let older = submit(&dev, "busy", "5");
    let younger = submit(&dev, "away", "60");
    dev.until(&younger, &["running"]);
    assert_eq!(dev.state(&older), "pending", "age decides only between equals");
    let told = dev.ok(&["tenants", "explain", "busy"]);
    assert!(told.contains("past_use: past use counts with a half-life of 10s: its burst use was "), "{told}");
    assert!(told.contains("HISTORIC"), "{told}");
    let tree = dev.ok(&["tree"]);
    assert!(tree.lines().next().is_some_and(|heads| heads.ends_with("HISTORIC")), "{tree}");
    dev.ok(&["cancel", &younger]);
    dev.until(&older, &["running", "completed"]);

    // Turned off, nothing of it is kept.
    let off = dev.file("off.yaml", "half-life: 0\n");
    assert_eq!(dev.ok(&["tenants", "apply", "-f", &off]), "half-life: 10s -> off\nno tenant changed");
    assert!(!dev.ok(&["tree"]).contains("HISTORIC"));
}
