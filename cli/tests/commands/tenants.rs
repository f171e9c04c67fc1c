//! The quota tree: a file changes what it names and nothing else, and the answer says what it changed.

use crate::common::Dev;

const TREE: &str = "\
research:
  guarantee: {h100: 8}
  max: {h100: 16, cpus: 512}
  teams:
    nlp: {guarantee: {h100: 4}, weight: 2}
    vision: {max: {h100: 8, memory: 1Ti}, trust: untrusted, anti-affinity: {research/nlp: node}}
";

fn tenant(dev: &Dev, path: &str) -> serde_json::Value {
    let listed = dev.run(&["tenants", "list", path, "-o", "json"]).json();
    listed.as_array().and_then(|list| list.first().cloned()).expect("the tenant")
}

#[test]
fn a_file_changes_what_it_names_and_nothing_else() {
    let dev = Dev::start(&["--nodes", "1"]);
    let apply = |text: &str, more: &[&str]| {
        let file = dev.file("tree.yaml", text);
        dev.ok(&[&["tenants", "apply", "-f", &file], more].concat())
    };
    let said = apply(TREE, &[]);
    assert!(said.starts_with("research: new\n  guarantee.h100: 8\n  max.h100: 16\n  max.cpus: 512\n"), "{said}");
    assert!(said.ends_with("\n3 tenants added"), "{said}");

    // One value of one tenant: everything else stays.
    let before = tenant(&dev, "research/vision");
    let weight = "research: {teams: {vision: {weight: 3}}}\n";
    let planned = apply(weight, &["--dry-run"]);
    assert_eq!(planned, "research/vision:\n  weight: 1 -> 3\nwould change 1 tenant (1 unchanged); nothing was changed");
    assert_eq!(tenant(&dev, "research/vision"), before);
    assert_eq!(apply(weight, &[]), "research/vision:\n  weight: 1 -> 3\n1 tenant changed (1 unchanged)");
    let after = tenant(&dev, "research/vision");
    assert_eq!(after["weight"], 3);
    for key in ["max", "guarantee", "trust", "anti_affinity"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    assert_eq!(apply(weight, &[]), "no tenant changed (2 unchanged)");

    // One amount of several; then one removed, and all.
    let said = apply("research: {teams: {vision: {max: {h100: 12}}}}\n", &[]);
    assert_eq!(said, "research/vision:\n  max.h100: 8 -> 12\n1 tenant changed (1 unchanged)");
    let said = apply("research: {teams: {vision: {max: {memory: null}, anti-affinity: {research/nlp: null}}}}\n", &[]);
    let expected = "research/vision:\n  max.memory: 1Ti -> none\n  anti-affinity.research/nlp: node -> none\n";
    assert_eq!(said, format!("{expected}1 tenant changed (1 unchanged)"));
    let said = apply("research: {max: null, teams: {nlp: {weight: null}}}\n", &[]);
    assert!(said.contains("research:\n  max.h100: 16 -> none\n  max.cpus: 512 -> none\n"), "{said}");
    assert!(said.contains("research/nlp:\n  weight: 2 -> 1\n"), "{said}");
    assert_eq!(tenant(&dev, "research/vision")["max"]["gpus"]["h100"], 12.0);

    // A tree that names all there is to be: the rest goes, and is shown as it was.
    let pruned = "research: {teams: {nlp: {}}}\n";
    let removed = "research/vision: removed\n  max.h100: 12 -> none\n  weight: 3 -> none\n  trust: untrusted -> none\n";
    let said = apply(pruned, &["--prune", "--dry-run"]);
    assert_eq!(said, format!("{removed}would remove 1 tenant (2 unchanged); nothing was changed"));
    assert_eq!(tenant(&dev, "research/vision")["max"]["gpus"]["h100"], 12.0);
    assert_eq!(apply(pruned, &["--prune"]), format!("{removed}1 tenant removed (2 unchanged)"));
    dev.refused(&["tenants", "list", "research/vision"], 3, &["research/vision does not exist"]);

    // For scripts.
    let file = dev.file("tree.yaml", "research: {max: {h100: 24}}\n");
    let json = dev.run(&["tenants", "apply", "-f", &file, "-o", "json"]).json();
    let change = &json["changes"][0];
    assert_eq!((change["path"].as_str(), change["new"].as_bool()), (Some("research"), Some(false)));
    let field = &change["fields"][0];
    assert_eq!(
        (field["field"].as_str(), field["before"].as_str(), field["after"].as_str()),
        (Some("max.h100"), None, Some("24"))
    );
}

#[test]
fn wrong_trees_are_refused_with_the_tenant_and_change_nothing() {
    let dev = Dev::start(&["--nodes", "1"]);
    let file = dev.file("tree.yaml", TREE);
    dev.ok(&["tenants", "apply", "-f", &file]);
    let before = dev.ok(&["tenants", "list", "-o", "json"]);
    for (text, words) in [
        (
            "research: {teams: {nlp: {guarantee: {h100: 9}}}}",
            "research/nlp.guarantee: the children of research have guarantees of 9",
        ),
        (
            "research: {teams: {vision: {guarantee: {h100: 9}}}}",
            "research/vision.guarantee: guarantees 9 h100 but its max is 8 h100",
        ),
        ("research: {anti-affinity: {nobody: node}}", "research.anti-affinity: names nobody, which does not exist"),
        ("research: {teams: {vision: {trust: maybe}}}", "research/vision.trust: unknown trust level"),
        ("research: {max: {h1000: 1}}", "research.max.h1000: unknown GPU model"),
    ] {
        for more in [&[][..], &["--dry-run"]] {
            let file = dev.file("wrong.yaml", text);
            dev.refused(&[&["tenants", "apply", "-f", &file], more].concat(), 2, &[words]);
        }
    }
    assert_eq!(dev.ok(&["tenants", "list", "-o", "json"]), before);
}

#[test]
fn edits_that_would_break_a_law_say_what_would_have_to_give_and_a_tenant_moves_with_its_running_job() {
    let dev = Dev::start(&["--nodes", "1"]);
    let apply = |text: &str| dev.file("tree.yaml", text);
    dev.ok(&[
        "tenants",
        "apply",
        "-f",
        &apply("research: {guarantee: {h100: 4}, teams: {nlp: {}}}\napplied: {}\nads: {max: {h100: 2}}\n"),
    ]);
    let submit = |tenant, gpus| dev.ok(&["submit", "--tenant", tenant, "--gpus", gpus, "--", "sleep", "600"]);
    let running = submit("research/nlp", "6");
    dev.until(&running, &["running"]);
    let waiting = submit("research/nlp", "3");

    // Beyond the fleet's eight cards; and below what is in use, named with the job that uses it.
    let file = apply("research: {guarantee: {h100: 9}}");
    let words = "research.guarantee: all organisations together would be guaranteed 9 h100 (research 9 h100), but healthy nodes have 8 h100";
    dev.refused(
        &["tenants", "apply", "-f", &file],
        2,
        &[words, "lower guarantees of organisations by 1 h100, or add nodes first"],
    );
    let file = apply("research: {max: {h100: 5}}");
    let words =
        format!("research.max: would be 5 h100, but research uses 6 h100 now: job {running} of research/nlp 6 h100");
    dev.refused(&["tenants", "apply", "-f", &file], 2, &[&words, "allow at least 6 h100"]);

    let tree = dev.ok(&["tree", "research"]);
    let rows: Vec<Vec<&str>> = tree.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[0],
        ["TENANT", "RESOURCE", "GUARANTEE", "MAX", "USED", "GUARANTEED", "BORROWED", "LENT", "WAITING"]
    );
    assert_eq!(rows[1], ["research", "h100", "4", "-", "6", "4", "2", "-", "3"]);
    assert_eq!(rows[2], ["nlp", "h100", "-", "-", "6", "-", "6", "-", "3"]);

    // The move: first what it would do, then where it may not go, then it is done.
    let moved = "research/nlp -> applied/language";
    let said = dev.ok(&["tenants", "move", "research/nlp", "applied/language", "--dry-run"]);
    assert_eq!(said, format!("{moved}\nwould move 1 tenant; nothing was changed"));
    let words =
        format!("tenant ads would use 6 h100, 6 h100 of it by research/nlp, and its max is 2 h100: job {running}");
    dev.refused(&["tenants", "move", "research/nlp", "ads/nlp"], 2, &[&words, "raise the max of ads to 6 h100"]);
    let said = dev.ok(&["tenants", "move", "research/nlp", "applied/language"]);
    assert_eq!(said, format!("{moved}\n1 tenant moved"));
    assert_eq!((dev.state(&running).as_str(), dev.state(&waiting).as_str()), ("running", "pending"));
    assert_eq!(dev.run(&["job", &running, "-o", "json"]).json()["tenant"], "applied/language");
    let used = |path: &str| dev.run(&["tenants", "list", path, "-o", "json"]).json()[0]["used"]["gpus"]["h100"].clone();
    assert_eq!((used("research"), used("applied")), (serde_json::Value::Null, serde_json::json!(6.0)));
    dev.refused(&["submit", "--tenant", "research/nlp", "--gpus", "1", "--", "true"], 3, &["research/nlp"]);

    // The waiting job starts under the new name when the running one goes.
    dev.ok(&["cancel", &running]);
    dev.until(&waiting, &["running"]);
}
