//! Enrolment by the commands that operators use: join tokens, suspension, copies of a machine, control nodes that are removed.

use crate::common::{Dev, Said, alone};
use crate::identities::Roles;
use crate::waiting::wait_for;
use std::path::Path;
use std::process::Command;

/// Where machines are served.
fn for_machines(dev: &Dev) -> String {
    let endpoint = dev.endpoints().remove(0);
    let (host, port) = endpoint.rsplit_once(':').expect("a port");
    format!("{host}:{}", port.parse::<u16>().expect("a port") + 5)
}

fn standing(dev: &Dev, name: &str) -> serde_json::Value {
    let all = dev.run(&["machine", "list", "-o", "json"]).json();
    let machines = all["machines"].as_array().expect("a list").clone();
    machines.into_iter().find(|machine| machine["name"] == name).unwrap_or_default()
}

fn health(dev: &Dev, node: &str) -> String {
    let all = dev.run(&["nodes", "-o", "json"]).json();
    let nodes = all.as_array().expect("a list").clone();
    let found = nodes.iter().find(|there| there["name"] == node);
    found.map_or_else(|| "none".to_owned(), |there| there["state"].as_str().unwrap_or("?").to_owned())
}

/// An agent of a node with this name, with its own folders below `home`.
fn agent<'a>(spec: &'a str, data: &'a str, identity: &'a str, join: &'a str, machines: &'a str) -> Vec<&'a str> {
    let mut args = vec!["node", "--data", data, "--spec", spec, "--identity", identity, "--endpoints", machines];
    args.extend(["--isolation", "none", "--allow-system-users"]);
    if !join.is_empty() {
        args.extend(["--join", join]);
    }
    args
}

#[test]
fn a_node_joins_with_a_token_and_is_suspended_resumed_and_removed() {
    let dev = Dev::start(&["--nodes", "1"]);
    let machines = for_machines(&dev);
    assert_eq!(dev.run(&["machine", "list", "-o", "json"]).json()["enrolment"], "required");
    assert_eq!(standing(&dev, "node:node-0000")["standing"], "active");
    let join = dev.path("join").display().to_string();
    let create = ["machine", "token", "create", "node", "--names", "gpu-[01-02]", "--pool", "default", "--out", &join];
    let said = dev.ok(&create);
    assert!(said.contains("for 2 machines"), "{said}");
    dev.refused(&create, 1, &["File exists"]);
    let home = dev.path("hosts");
    std::fs::create_dir_all(&home).expect("a folder");
    for name in ["gpu-01", "gpu-03"] {
        std::fs::write(home.join(format!("{name}.yaml")), format!("name: {name}\n")).expect("written");
    }
    // A name that the token does not have.
    let wrong: Said = alone(&agent("gpu-03.yaml", "data-3", "id-3", &join, &machines), &home)
        .current_dir(&home)
        .output()
        .expect("muster")
        .into();
    assert!(wrong.code != 0 && wrong.err.contains("the join token is not for node:gpu-03"), "{}", wrong.err);
    let mut hosts = Roles(Vec::new());
    hosts.start(&home, &agent("gpu-01.yaml", "data-1", "id-1", &join, &machines));
    wait_for("the node", || health(&dev, "gpu-01") == "ready");
    let shown = standing(&dev, "node:gpu-01");
    assert_eq!(
        (&shown["enrolled"]["pool"], shown["sessions"].as_u64() > Some(0)),
        (&"default".into(), true),
        "{shown}"
    );
    let tokens = dev.ok(&["machine", "token", "list"]);
    assert!(tokens.contains("1 of 2"), "{tokens}");
    // Nobody else gets that name, with that token or with another one that does not say so.
    let again = |file: &str, out: &str| -> Said {
        let args = ["machine", "join", "node:gpu-01", file, "--out", out];
        alone(&args, &home).current_dir(&home).output().expect("muster").into()
    };
    let said = again(&join, "id-x");
    assert!(said.code == 5 && said.err.contains("enrolled with this token already, with another key"), "{}", said.err);
    let second = dev.path("second").display().to_string();
    dev.ok(&["machine", "token", "create", "node", "--names", "gpu-01", "--out", &second]);
    let said = again(&second, "id-x");
    assert!(said.code == 5 && said.err.contains("--rejoin"), "{}", said.err);

    let job = dev.ok(&["submit", "--gpus", "1", "--selector", "node.name == \"gpu-01\"", "--", "sleep", "600"]);
    dev.until(&job, &["running"]);
    dev.ok(&["machine", "suspend", "node:gpu-01", "--reason", "it may be stolen"]);
    wait_for("silence", || health(&dev, "gpu-01") != "ready");
    let shown = standing(&dev, "node:gpu-01");
    assert_eq!((&shown["standing"], &shown["reason"]), (&"suspended".into(), &"it may be stolen".into()), "{shown}");
    let told = std::fs::read_to_string(home.join("roles.log")).expect("a log");
    assert!(told.contains("identity is suspended (it may be stolen)"), "{told}");
    // Security ends no task: it counts as silence.
    assert_eq!(dev.state(&job), "running");
    dev.ok(&["machine", "resume", "node:gpu-01"]);
    wait_for("the node again", || health(&dev, "gpu-01") == "ready");
    assert_eq!(dev.run(&["job", &job, "-o", "json"]).json()["attempt"], 1, "it ran on");

    dev.ok(&["machine", "remove", "node:gpu-01"]);
    wait_for("silence", || health(&dev, "gpu-01") != "ready");
    assert!(standing(&dev, "node:gpu-01").is_null());
    let audit = dev.ok(&["audit", "list"]);
    for call in
        ["Machines.CreateJoinToken", "Machines.Enroll", "Machines.Suspend", "Machines.Resume", "Machines.Remove"]
    {
        assert!(audit.contains(call), "{call}: {audit}");
    }
    hosts.stop();
}

#[test]
fn two_machines_with_one_key_are_found() {
    let dev = Dev::start(&["--nodes", "1"]);
    let machines = for_machines(&dev);
    let home = dev.path("hosts");
    std::fs::create_dir_all(&home).expect("a folder");
    let join = dev.path("join").display().to_string();
    dev.ok(&["machine", "token", "create", "node", "--names", "gpu-1", "--out", &join]);
    std::fs::write(home.join("gpu-1.yaml"), "name: gpu-1\n").expect("written");
    let mut hosts = Roles(Vec::new());
    hosts.start(&home, &agent("gpu-1.yaml", "data-1", "id-1", &join, &machines));
    wait_for("the node", || health(&dev, "gpu-1") == "ready");
    // The first one's folder, on a second machine, while the first is off.
    hosts.stop();
    let copied = Command::new("cp").args(["-r", "id-1", "id-2"]).current_dir(&home).status().expect("cp");
    assert!(copied.success());
    hosts.start(&home, &agent("gpu-1.yaml", "data-2", "id-2", "", &machines));
    wait_for("a session of the copy", || standing(&dev, "node:gpu-1")["sessions"].as_u64() > Some(1));
    // One agent of a name on a host: the two take turns on this one.
    hosts.stop();
    hosts.start(&home, &agent("gpu-1.yaml", "data-1", "id-1", "", &machines));
    wait_for("the alarm", || standing(&dev, "node:gpu-1")["standing"] == "suspended");
    let shown = standing(&dev, "node:gpu-1");
    assert!(shown["reason"].as_str().is_some_and(|why| why.starts_with("two machines have its key")), "{shown}");
    wait_for("silence", || health(&dev, "gpu-1") != "ready");
    hosts.stop();
}

fn identity_of(folder: &Path) -> String {
    let said: Said =
        alone(&["ca", "show", &folder.display().to_string(), "-o", "json"], folder).output().expect("muster").into();
    said.json()["machine"]["key_sha256"].as_str().expect("a key").to_owned()
}

#[test]
fn enrolment_cannot_be_required_while_a_machine_is_not_enrolled() {
    let dev = Dev::start(&["--nodes", "1", "--voters", "3"]);
    dev.ok(&["machine", "enrolment", "optional"]);
    dev.refused(&["machine", "remove", "node:node-0000"], 5, &["suspend it instead"]);
    dev.ok(&["machine", "enrolment", "required"]);
    dev.refused(&["machine", "suspend", "member:1", "--reason", "x"], 5, &["muster raft remove 1"]);
    dev.refused(&["machine", "suspend", "user:a", "--reason", "x"], 2, &["name node:NAME, shard:NAME or member:ID"]);
    dev.refused(&["machine", "token", "create", "control", "--names", "4"], 2, &["muster ca control"]);
    dev.refused(&["machine", "token", "create", "node", "--names", "a[2-1]"], 2, &["ends before it begins"]);
    dev.refused(&["machine", "pin", "--key", "node:x=12"], 2, &["has no SHA-256"]);
    let other = "ab".repeat(32);
    let pin = format!("node:node-0000={other}");
    dev.refused(&["machine", "pin", "--key", &pin], 2, &["--replace"]);
    // The key of another machine shuts the node out, and its own lets it in again.
    dev.ok(&["machine", "pin", "--replace", "--key", &pin]);
    wait_for("silence", || health(&dev, "node-0000") != "ready");
    let folder = dev.path("dev/identities/nodes/node-0000");
    let key = identity_of(&folder);
    dev.ok(&["machine", "pin", "--replace", &folder.display().to_string()]);
    assert_eq!(standing(&dev, "node:node-0000")["key"], key);
    wait_for("the node again", || health(&dev, "node-0000") == "ready");
    // A control node that is removed is nobody any more.
    dev.ok(&["raft", "remove", "3", "--yes"]);
    wait_for("its suspension", || standing(&dev, "member:3")["standing"] == "suspended");
    assert_eq!(standing(&dev, "member:3")["reason"], "it was removed from the cluster");
}
