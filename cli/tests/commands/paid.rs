//! Who paid for a job, and what a tenant was: what is kept for bills, as users see it.

use crate::common::Dev;
use crate::shared::open_to_all;
use crate::waiting::wait_for;
use serde_json::{Value, json};

const CLASSES: &str = "\
name: batch
priority: 10
---
name: production
priority: 1000
preempts: [batch]
";

fn job(dev: &Dev, id: &str) -> Value {
    dev.run(&["job", id, "-o", "json"]).json()
}

/// Accounts and tiers of a list of segments or sums.
fn classes(list: &Value) -> Vec<String> {
    let word = |one: &Value| one["account"].as_str().or(one["tier"].as_str()).unwrap_or("?").to_owned();
    list.as_array().map(|list| list.iter().map(word).collect()).unwrap_or_default()
}

/// GPU units × ms of an allocation: in which tasks ran, idle, in clean-up.
fn reported(dev: &Dev, allocation: &str) -> (u64, u64, u64) {
    let held = dev.run(&["usage", "--allocation", allocation, "-o", "json"]).json();
    let of = |field: &str| held[field].as_str().and_then(|sum| sum.parse().ok()).expect("an exact sum");
    let idle = of("reported_idle_gpu_unit_ms");
    (of("reported_gpu_unit_ms"), idle, of("reported_clean_gpu_unit_ms"))
}

/// One of two tasks ends at once. Its GPU is cleaned, and then held on for the other one, which is the most that an exporter of GPU metrics never sees.
#[test]
fn what_a_gang_holds_on_is_metered_as_idle_and_clean_ups_apart() {
    const UNITS: u64 = 7_000;
    let words = ["--nodes", "1", "--gpus-per-node", "2", "--gpus", "double", "--usage-period", "1s"];
    let dev = Dev::start(&words);
    let tree = dev.file("tree.yaml", "research: {guarantee: {h100: 2}}\n");
    dev.ok(&["tenants", "apply", "-f", &tree]);
    std::fs::create_dir(dev.path("shared")).expect("a folder");
    open_to_all(&dev.path("shared"));
    let end = format!("END={}", dev.path("shared/end").display());
    let script = "test \"$RANK\" = 0 || while [ ! -f \"$END\" ]; do sleep 0.1; done";
    let size = ["--tasks", "2", "--gpus", "1", "--env", &end];
    let id = dev.ok(&[&["submit", "--tenant", "research"][..], &size, &["--", "sh", "-c", script]].concat());
    let began = std::time::Instant::now();
    dev.until(&id, &["running"]);
    let allocation = job(&dev, &id)["allocation"].to_string();
    wait_for("three seconds of idle time", || reported(&dev, &allocation).1 > 3_000 * UNITS);
    std::fs::write(dev.path("shared/end"), "").expect("a file");
    dev.until(&id, &["completed"]);
    let over_ms = began.elapsed().as_millis() as u64;
    // The last interval of each kind is counted a moment later.
    wait_for("the rest", || reported(&dev, &allocation).0 > reported(&dev, &allocation).1);
    let (run, idle, clean) = reported(&dev, &allocation);
    assert!(idle < over_ms * UNITS && run < 2 * over_ms * UNITS, "{run} {idle} within {over_ms} ms");
    assert!(clean > 0 && clean < 2 * over_ms * UNITS, "{clean}");
    let usage = dev.run(&["usage", "research", "-o", "json"]).json();
    let sums = (&usage[0]["gpu_unit_ms"], &usage[0]["idle_gpu_unit_ms"], &usage[0]["clean_gpu_unit_ms"]);
    let text = |sum: u64| json!(sum.to_string());
    assert_eq!(sums, (&text(run), &text(idle), &text(clean)), "one allocation is all that the tenant had: {usage:#}");
    let table = dev.ok(&["usage", "research"]);
    assert!(table.contains("IDLE") && table.contains("CLEAN-UP"), "{table}");
}

#[test]
fn an_attempt_that_is_over_says_who_paid_for_it_and_since_when() {
    let dev = Dev::start(&["--nodes", "1"]);
    let classes_file = dev.file("classes.yaml", CLASSES);
    // A new cluster reaches the feature level of its voters within a second.
    wait_for("the feature level", || dev.run(&["priority-classes", "apply", "-f", &classes_file]).code == 0);
    let tree = dev.file("tree.yaml", "research: {guarantee: {h100: 4}, teams: {nlp: {}}}\n");
    dev.ok(&["tenants", "apply", "-f", &tree]);
    std::fs::create_dir(dev.path("shared")).expect("a folder");
    open_to_all(&dev.path("shared"));
    let end = format!("END={}", dev.path("shared/end").display());
    let waits = "while [ ! -f \"$END\" ]; do sleep 0.1; done";
    let submit = |size: &[&str], script: &str| {
        let (head, tail) = (["submit", "--tenant", "research/nlp", "--env", &end], ["--", "sh", "-c", script]);
        dev.ok(&[&head[..], size, &tail].concat())
    };

    // The floor of `research` pays for the first, nobody's for the second, until the first is gone.
    let covered = submit(&["--gpus", "4"], "exec sleep 600");
    dev.until(&covered, &["running"]);
    let promoted = submit(&["--tasks", "2", "--gpus", "1", "--topology", "leaf", "--segment", "1"], waits);
    dev.until(&promoted, &["running"]);
    let first = job(&dev, &promoted);
    assert_eq!(classes(&first["quota_history"]), ["spot"], "no cool-down protects it: {first:#}");
    assert_eq!(
        (&first["required_topology"], &first["required_segment_tasks"]),
        (&json!("leaf"), &json!(1)),
        "{first:#}"
    );
    dev.ok(&["cancel", &covered]);
    dev.until(&covered, &["cancelled"]);
    let over = job(&dev, &covered);
    assert_eq!(classes(&over["attempts"][0]["quota_history"]), ["research"], "{over:#}");
    wait_for("the promotion", || job(&dev, &promoted)["quota"] == "guaranteed by research");

    // Tiers of burst: protected by a cool-down, and of a class that may preempt others. Two GPUs of the floor are left, too few for either.
    let pool = dev.file("pool.yaml", "name: default\ncool-down: 60\n");
    dev.ok(&["pools", "apply", "-f", &pool]);
    let standard = submit(&["--gpus", "3"], waits);
    dev.until(&standard, &["running"]);
    let marked = submit(&["--gpus", "3", "--priority-class", "production"], waits);
    dev.until(&marked, &["running"]);
    std::fs::write(dev.path("shared/end"), "").expect("a file");
    for id in [&promoted, &standard, &marked] {
        dev.until(id, &["completed"]);
    }
    for (id, expected) in [(&promoted, &["spot", "research"][..]), (&standard, &["standard"]), (&marked, &["marked"])] {
        let over = job(&dev, id);
        let attempt = &over["attempts"][0];
        let history = classes(&attempt["quota_history"]);
        // The floor may pay for the last one, when the others are gone before it is.
        assert_eq!(history[..expected.len()], *expected, "{over:#}");
        assert_eq!(classes(&attempt["quota_times"]).len(), history.len());
        assert_eq!(over["quota_history"], attempt["quota_history"], "what it holds no more is of its last attempt");
    }
    let attempt = &job(&dev, &promoted)["attempts"][0];
    assert_eq!((&attempt["required_topology"], &attempt["required_segment_tasks"]), (&json!("leaf"), &json!(1)));
    // The same of the allocation, for those who make bills.
    let id = first["allocation"].to_string();
    let held = dev.run(&["usage", "--allocation", &id, "-o", "json"]).json();
    assert_eq!(classes(&held["quota_history"])[..2], ["spot", "research"], "{held:#}");
    assert_eq!(
        (
            &held["job"].to_string(),
            &held["mode"],
            &held["gpu_units"],
            &held["required_topology"],
            held["released"].is_string()
        ),
        (&promoted, &json!("whole"), &json!(14_000), &json!("leaf"), true),
        "{held:#}"
    );
    let told = dev.ok(&["usage", "--allocation", &id]);
    assert!(
        told.contains("topology   leaf in segments of 1 on one island") && told.contains("holds      2 h100 (whole)"),
        "{told}"
    );
    dev.refused(&["usage", "--allocation", "999999"], 3, &["999999"]);
    let printed = dev.ok(&["job", &promoted]);
    let line = printed.lines().find(|line| line.starts_with("quota ")).expect("the line");
    assert!(line.starts_with("quota      until 20") && line.contains(": guaranteed by research since "), "{printed}");
    assert!(line.contains("; before: burst (spot) since "), "{printed}");
    assert!(printed.contains("  QUOTA  ") && printed.contains("  burst (spot) 0:"), "{printed}");
}

/// With each moment written as `T`.
fn without_times(text: &str) -> String {
    let is_time = |word: &str| word.len() >= 20 && word.starts_with("20") && word.contains('T');
    let word = |word: &str| {
        if is_time(word.trim_end_matches(':')) {
            word.replace(word.trim_end_matches(':'), "T")
        } else {
            word.to_owned()
        }
    };
    text.lines().map(|line| line.split(' ').map(word).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_tenants_history_tells_each_change_and_outlives_the_tenant() {
    let dev = Dev::start(&["--nodes", "1"]);
    let classes_file = dev.file("classes.yaml", CLASSES);
    wait_for("the feature level", || dev.run(&["priority-classes", "apply", "-f", &classes_file]).code == 0);
    let apply = |tree: &str| dev.ok(&["tenants", "apply", "-f", &dev.file("tree.yaml", tree)]);
    apply("research: {guarantee: {h100: 4}, teams: {nlp: {guarantee: {h100: 2}, lend: {h100: no}}}}\napplied: {}\n");
    apply("research: {teams: {nlp: {weight: {h100: 3}, max: {h100: 6, cpus: 8}}}}\n");
    // Whom it is kept apart from is no matter of bills.
    apply("research: {teams: {nlp: {anti-affinity: {applied: node}}}}\n");
    apply("research: {teams: {nlp: {guarantee: null, anti-affinity: null, lend: no}}}\n");
    dev.ok(&["tenants", "move", "research/nlp", "applied/language"]);
    apply("applied: {teams: {language: {trust: untrusted}}}\n");
    let told = dev.ok(&["tenants", "history", "applied/language"]);
    let id = dev.run(&["tenants", "history", "applied/language", "-o", "json"]).json()[0]["tenant_id"].to_string();
    let versions = "  T: created
    guarantee.h100: 2
    lend.h100: no
  T
    max.h100: none -> 6
    max.cpus: none -> 8
    weight.h100: none -> 3
  T
    guarantee.h100: 2 -> none
    lend: yes -> no
    lend.h100: no -> none
  T
    path: research/nlp -> applied/language
  T
    trust: trusted -> untrusted";
    assert_eq!(without_times(&told), format!("tenant applied/language (#{id})\n{versions}"), "{told}");

    // It is found when it is gone, and apart from one that has the path later.
    dev.ok(&["tenants", "delete", "applied/language"]);
    let removed = format!("tenant applied/language (#{id}, removed)\n{versions}\n  T: removed");
    assert_eq!(without_times(&dev.ok(&["tenants", "history", &format!("#{id}")])), removed);
    apply("applied: {teams: {language: {}}}\n");
    let both = without_times(&dev.ok(&["tenants", "history", "applied/language"]));
    assert!(both.ends_with(&removed) && both.starts_with("tenant applied/language (#") && both != removed, "{both}");
    // A tree that is pruned removes it too.
    dev.ok(&["tenants", "apply", "-f", &dev.file("tree.yaml", "applied: {}\n"), "--prune"]);
    let histories = dev.run(&["tenants", "history", "applied/language", "-o", "json"]).json();
    let ends: Vec<bool> = histories.as_array().expect("a list").iter().map(|one| one["removed"].is_string()).collect();
    assert_eq!(ends, [true, true], "{histories:#}");
    dev.refused(&["tenants", "history", "research/nobody"], 3, &["research/nobody"]);
}
