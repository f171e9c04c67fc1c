//! Closing a cluster: calls are judged by who makes them, jobs go on, and every change has a name.

use crate::common::{Dev, Said, alone};

/// Without any credential.
fn as_nobody(dev: &Dev, args: &[&str]) -> Said {
    let home = dev.path("nobody");
    std::fs::create_dir_all(&home).expect("a folder");
    alone(args, &home).env("MUSTER_ENDPOINTS", dev.endpoints().join(",")).output().expect("muster").into()
}

#[test]
fn a_closed_cluster_judges_every_call_and_goes_on_with_its_jobs() {
    // Whoever starts it is admin of everything for some hours, by a session that its configuration names.
    let dev = Dev::start(&["--nodes", "1", "--plaintext"]);
    let before = dev.ok(&["submit", "--gpus", "1", "--", "sleep", "60"]);
    dev.until(&before, &["running"]);
    let refused = dev.refused(&["access", "close"], 2, &["nobody would be admin", "muster grant add user:NAME admin"]);
    assert!(refused.starts_with("error: mode"), "{refused}");
    dev.ok(&["grant", "add", "user:alice", "admin"]);
    dev.ok(&["access", "close"]);

    // Nobody without a credential gets in, and the refusal says what to do.
    for args in [&["jobs"][..], &["submit", "--gpus", "1", "--tenant", "dev", "--", "true"], &["cancel", &before]] {
        let said = as_nobody(&dev, args);
        assert_ne!(said.code, 0, "{args:?}: {}", said.out);
        assert!(
            said.err.contains("no credentials were sent") && said.err.contains("MUSTER_TOKEN_FILE"),
            "{}",
            said.err
        );
    }
    let data = dev.path("dev/control-1").display().to_string();
    let recover = ["recover", "--data", &data, "--user", "alice"];
    let forged = dev.private_file("forged.token", &format!("{}x", dev.ok(&recover)));
    assert_ne!(dev.run_with(&forged, &["jobs"]).code, 0);

    // Agents and shards go on: what ran is running, and what is submitted now runs to its end.
    let after = dev.ok(&["submit", "--gpus", "1", "--", "true"]);
    dev.until(&after, &["completed"]);
    assert_eq!(dev.state(&before), "running");

    // A service has what its token gives, until it is revoked.
    let made = dev.ok(&["token", "create", "dev/ci", "--role", "viewer", "--ttl", "1h"]);
    let viewer = dev.private_file("viewer.token", &made);
    let said = dev.run_with(&viewer, &["jobs"]);
    assert!(said.code == 0 && said.out.contains("running"), "{}{}", said.out, said.err);
    let said = dev.run_with(&viewer, &["cancel", &before]);
    assert_ne!(said.code, 0, "{}", said.out);
    assert!(said.err.contains("role admin"), "{}", said.err);
    let tokens = dev.run(&["token", "list", "-o", "json"]).json();
    let id = tokens[0]["id"].to_string();
    dev.ok(&["token", "revoke", id.trim_matches('"')]);
    assert_ne!(dev.run_with(&viewer, &["jobs"]).code, 0, "the token was revoked");

    // Who did what, and what was refused.
    let audit = dev.ok(&["audit", "list"]);
    assert!(audit.contains("Jobs.Submit") && audit.contains("user:"), "{audit}");
    dev.ok(&["audit", "verify"]);
    let denials = dev.ok(&["audit", "denials"]);
    assert!(denials.contains("no credentials were sent"), "{denials}");
    dev.ok(&["access", "open"]);
    assert_eq!(as_nobody(&dev, &["jobs"]).code, 0);
}
