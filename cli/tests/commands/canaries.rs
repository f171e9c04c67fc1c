//! Secrets that are planted everywhere and must be found nowhere: in logs, pages of metrics, the audit and the record of denials, lists, errors, stores on disk
//! and snapshots, and command lines of processes.

use crate::common::Dev;
use crate::pages::get;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The part of a session, token or join token that proves it: 64 hexadecimal digits.
fn secret(text: &str) -> String {
    let mut parts = text.split(|c: char| !c.is_ascii_alphanumeric());
    parts.find(|part| part.len() == 64).expect("a secret").to_owned()
}

/// All files below a folder, but those that are there to keep a secret.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&path, found),
            Ok(kind) if kind.is_file() => found.push(path),
            _ => {}
        }
    }
}

/// Which of the canaries occur in this, by their names.
fn seen<'a>(canaries: &'a BTreeMap<&str, String>, content: &[u8]) -> Vec<&'a str> {
    let occurs = |canary: &String| content.windows(canary.len()).any(|part| part == canary.as_bytes());
    canaries.iter().filter(|(_, canary)| occurs(canary)).map(|(name, _)| *name).collect()
}

#[test]
fn secrets_that_are_planted_everywhere_are_found_nowhere() {
    let dev = Dev::start(&["--nodes", "1", "--voters", "3"]);
    let join = dev.path("join").display().to_string();
    dev.ok(&["machine", "token", "create", "node", "--names", "gpu-1", "--out", &join]);
    let service = dev.ok(&["token", "create", "dev/ci", "--role", "submitter", "--ttl", "1h"]);
    let text = |path: PathBuf| std::fs::read_to_string(path).expect("a file");
    let key = |name: &str| {
        let pem = text(dev.path("dev/identities").join(name));
        // Two lines of the base64 of a private key.
        pem.lines().nth(1).expect("a key").to_owned()
    };
    let canaries = BTreeMap::from([
        ("the session", secret(&text(dev.path("dev/session.token")))),
        ("the service's token", secret(&service)),
        ("the join token", secret(&text(PathBuf::from(&join)))),
        ("the root's key", key("ca/root.pem")),
        ("an issuer's key", key("control-1/issuer.pem")),
        ("a control node's key", key("control-1/machine.pem")),
        ("a node's key", key("nodes/node-0000/machine.pem")),
        ("the key of secrets", text(dev.path("dev/identities/control-1/secrets.key")).trim().to_owned()),
        ("a tenant's secret", "canary-8d1f03c7-of-the-registry".to_owned()),
    ]);
    assert_eq!(
        seen(&canaries, canaries["the join token"].as_bytes()),
        ["the join token"],
        "the search finds what is there"
    );

    // Everything is used: rightly, and in ways that are refused.
    let token = dev.private_file("service.token", &service);
    let with = |args: &[&str], token: &str| dev.run_with(token, args);
    let value = dev.file("value", &canaries["a tenant's secret"]);
    dev.ok(&["secret", "put", "registry", "--tenant", "dev", "--from-file", &value]);
    let task = "test \"$TOKEN\" && echo hello";
    let submit = ["submit", "--gpus", "1", "--tenant", "dev", "--secret-env", "TOKEN=registry", "--", "sh", "-c", task];
    let job = with(&submit, &token);
    assert_eq!(job.code, 0, "{}", job.err);
    dev.until(job.out.trim(), &["completed"]);
    let wrong = dev.private_file("wrong.token", &service.replacen("mt1", "ms1", 1));
    let cut = dev.private_file("cut.token", &service[..service.len() - 2]);
    let out = dev.path("gpu-1").display().to_string();
    let id = dev.path("gpu-2").display().to_string();
    let mut said = vec![
        with(&["whoami"], &token),
        with(&["nodes"], &token),
        with(&["drain", "node-0000", "--reason", "x"], &token),
        with(&["whoami"], &wrong),
        with(&["whoami"], &cut),
        dev.run(&["machine", "join", "node:gpu-1", &join, "--out", &out]),
        dev.run(&["machine", "join", "node:gpu-2", &join, "--out", &id]),
        dev.run(&["machine", "join", "node:gpu-1", &token, "--out", &id]),
    ];
    assert!(said.iter().filter(|said| said.code != 0).count() >= 4, "some are refused");
    for args in [
        &["audit", "list"][..],
        &["audit", "denials"],
        &["token", "list", "-o", "json"],
        &["sessions", "--all", "-o", "json"],
        &["machine", "list", "-o", "json"],
        &["machine", "token", "list", "-o", "json"],
        &["secret", "list", "--tenant", "dev", "-o", "json"],
        &["job", job.out.trim(), "-o", "json"],
        &["jobs", "--all", "-o", "json"],
        &["nodes", "-o", "json"],
        &["raft", "status", "-o", "json"],
    ] {
        said.push(dev.run(args));
    }
    let mut found = Vec::new();
    let mut look = |place: String, content: &[u8]| {
        found.extend(seen(&canaries, content).into_iter().map(|name| format!("{name} in {place}")));
    };
    for said in &said {
        look("an answer".to_owned(), format!("{}{}", said.out, said.err).as_bytes());
    }
    for role in dev.roles() {
        if let Some(http) = &role.http {
            look(format!("/metrics of {}", role.name), get(http, "/metrics").unwrap_or_default().as_bytes());
        }
    }
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        look(format!("the command line of {}", entry.path().display()), &command);
    }
    // Stores, logs, snapshots and what agents keep; not where secrets are kept for whoever they are of.
    let mut all = Vec::new();
    files(&dev.path("dev"), &mut all);
    let kept = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name == "session.token"
            || name == "secrets.key"
            || (name.ends_with(".pem") && path.starts_with(dev.path("dev/identities")))
    };
    let searched: Vec<&PathBuf> = all.iter().filter(|path| !kept(path)).collect();
    assert!(searched.iter().any(|path| path.extension().is_some_and(|kind| kind == "log")), "there are logs");
    for path in searched {
        look(path.display().to_string(), &std::fs::read(path).unwrap_or_default());
    }
    assert_eq!(found, [] as [&str; 0]);
}
