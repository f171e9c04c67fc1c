//! Certificates: how they are made and renewed, and that a cluster with them carries nothing for those who have none.

use crate::common::{Dev, Said, alone, signal};
use crate::waiting::wait_for;
use nix::sys::signal::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Child;

fn ca(home: &Path, args: &[&str]) -> Said {
    let mut command = alone(&[&["ca"], args].concat(), home);
    command.current_dir(home).output().expect("muster").into()
}

fn done(home: &Path, args: &[&str]) -> String {
    let said = ca(home, args);
    assert_eq!(said.code, 0, "{args:?}: {}", said.err);
    said.out
}

fn key(home: &Path, folder: &str) -> String {
    let said = ca(home, &["show", folder, "-o", "json"]);
    said.json()["machine"]["key_sha256"].as_str().expect("a key").to_owned()
}

#[test]
fn a_certificate_is_renewed_with_its_key_and_never_for_another_name() {
    let home = tempfile::tempdir().expect("a folder");
    let home = home.path();
    done(home, &["init", "fleet", "--out", "ca"]);
    done(home, &["control", "1", "--ca", "ca", "--out", "control-1"]);
    done(home, &["node", "gpu-1", "--issuer", "control-1", "--out", "gpu-1"]);
    for file in ["ca/root.pem", "control-1/issuer.pem", "control-1/machine.pem", "gpu-1/machine.pem"] {
        let mode = std::fs::metadata(home.join(file)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let before = key(home, "gpu-1");
    let said = done(home, &["node", "gpu-1", "--issuer", "control-1", "--out", "gpu-1"]);
    assert!(said.contains("spiffe://fleet/node/gpu-1 renewed, with its key"), "{said}");
    assert_eq!(key(home, "gpu-1"), before);

    let refused = |args: &[&str], code: i32, words: &str| {
        let said = ca(home, args);
        assert_eq!(said.code, code, "{args:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(words), "{args:?}: {}", said.err);
    };
    let other = ["node", "gpu-2", "--issuer", "control-1", "--out", "gpu-1"];
    refused(&other, 5, "gpu-1 has the identity of spiffe://fleet/node/gpu-1; give another --out");
    refused(&["init", "fleet", "--out", "ca"], 5, "ca has a root already");
    refused(&["init", "A fleet", "--out", "b"], 2, "error: cluster: ");
    refused(&["shard", "s", "--issuer", "ca", "--out", "s"], 2, "issuer: ca has no issuer.pem");
    refused(&["control", "0", "--ca", "ca", "--out", "c"], 2, "ids of control nodes begin at 1");
    refused(&["show", "nothing"], 3, "nothing has no keys or certificates");
    // A copy of another machine's certificate beside one's own key.
    done(home, &["node", "gpu-2", "--issuer", "control-1", "--out", "gpu-2"]);
    let [one, two] =
        ["gpu-1", "gpu-2"].map(|name| std::fs::read_to_string(home.join(name).join("machine.pem")).expect("pem"));
    let end = "-----END PRIVATE KEY-----";
    let (own, _) = one.split_once(end).expect("a key");
    let (_, theirs) = two.split_once(end).expect("a chain");
    std::fs::write(home.join("gpu-1/machine.pem"), format!("{own}{end}{theirs}")).expect("written");
    refused(&["show", "gpu-1"], 5, "the certificate is of another key");
}

#[test]
fn a_root_is_replaced_while_everything_goes_on() {
    let home = tempfile::tempdir().expect("a folder");
    let home = home.path();
    for root in ["old", "new"] {
        done(home, &["init", "fleet", "--out", root]);
    }
    done(home, &["control", "1", "--ca", "old", "--out", "c1"]);
    done(home, &["node", "n", "--issuer", "c1", "--out", "n"]);
    let only = ["trust", "new/roots.pem", "--identity", "n", "--only"];
    let said = ca(home, &only);
    assert!(said.code == 5 && said.err.contains("renew its certificate"), "{}", said.err);
    for folder in ["c1", "n"] {
        done(home, &["trust", "new/roots.pem", "--identity", folder]);
    }
    done(home, &["control", "1", "--ca", "new", "--out", "c1"]);
    done(home, &["node", "n", "--issuer", "c1", "--out", "n"]);
    for folder in ["c1", "n"] {
        done(home, &["trust", "new/roots.pem", "--identity", folder, "--only"]);
    }
    let trusts = |folder: &str| ca(home, &["show", folder, "-o", "json"]).json()["trusts"].clone();
    assert_eq!(trusts("n"), trusts("new"));
    done(home, &["init", "other", "--out", "other"]);
    let said = ca(home, &["trust", "other/roots.pem", "--identity", "n"]);
    assert!(said.code == 5 && said.err.contains("two clusters"), "{}", said.err);
}

#[test]
fn nothing_is_carried_for_whoever_does_not_prove_who_they_are() {
    let dev = Dev::start(&["--nodes", "2"]);
    let endpoint = dev.endpoints().remove(0);
    let (host, port) = endpoint.rsplit_once(':').expect("a port");
    let machines = format!("{host}:{}", port.parse::<u16>().expect("a port") + 5);
    let home = dev.path("nobody");
    std::fs::create_dir_all(&home).expect("a folder");
    let ask = |endpoint: &str, roots: Option<&Path>| -> Said {
        let mut command = alone(&["jobs", "--timeout", "2s"], &home);
        command.env("MUSTER_ENDPOINTS", endpoint);
        command.envs(roots.map(|roots| ("MUSTER_ROOTS_FILE", roots)));
        command.output().expect("muster").into()
    };
    let roots = dev.path("dev/identities/ca/roots.pem");
    // Clear text gets no answer, and is told what may be missing.
    let said = ask(&endpoint, None);
    assert!(said.code == 4 && said.err.contains("MUSTER_ROOTS_FILE"), "{}", said.err);
    // Encrypted, and without a session: the cluster is closed.
    let said = ask(&endpoint, Some(&roots));
    assert!(said.code != 0 && said.err.contains("no credentials were sent"), "{}", said.err);
    // Nobody without a certificate comes to where machines are served.
    let said = ask(&machines, Some(&roots));
    assert_eq!(said.code, 4, "{}{}", said.out, said.err);
    // A control node under another root is none.
    done(&home, &["init", "dev", "--out", "other"]);
    let said = ask(&endpoint, Some(&home.join("other/roots.pem")));
    assert!(said.code == 4 && said.err.contains("UnknownIssuer"), "{}", said.err);

    // A node does not start as another.
    let data = home.join("data").display().to_string();
    let theirs = dev.path("dev/identities/nodes/node-0001").display().to_string();
    let spec = dev.file("mine.yaml", "name: mine\n");
    let args = [
        "node",
        "--data",
        &data,
        "--spec",
        &spec,
        "--identity",
        &theirs,
        "--endpoints",
        &machines,
        "--isolation",
        "none",
    ];
    let said: Said = alone(&[&args[..], &["--allow-system-users"]].concat(), &home).output().expect("muster").into();
    assert_ne!(said.code, 0, "{}", said.out);
    let expected = "expected spiffe://dev/node/mine, got spiffe://dev/node/node-0001";
    assert!(said.err.contains(expected), "{}", said.err);

    // A renewed certificate is used without a restart.
    let [issuer, node] =
        ["control-1", "nodes/node-0001"].map(|name| dev.path("dev/identities").join(name).display().to_string());
    done(&home, &["node", "node-0001", "--issuer", &issuer, "--out", &node]);
    let log = dev.path("dev/logs/agent-1.log");
    wait_for("the renewed certificate", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("uses its renewed credentials"))
    });
    let job = dev.ok(&["submit", "--gpus", "8", "--tasks", "2", "--", "true"]);
    dev.until(&job, &["completed"]);

    // Once encrypted, always.
    let folder = home.join("copy");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::copy(dev.path("dev/settings.json"), folder.join("settings.json")).expect("copied");
    let folder = folder.display().to_string();
    let said: Said = alone(&["dev", "--data", &folder, "--plaintext"], &home).output().expect("muster").into();
    assert!(
        said.code == 2 && said.err.contains("plaintext: the cluster in the data folder is encrypted"),
        "{}",
        said.err
    );
}

/// Roles as processes of their own, each stopped at the end of the test.
pub(crate) struct Roles(pub(crate) Vec<Child>);

impl Roles {
    pub(crate) fn start(&mut self, home: &Path, args: &[&str]) {
        let mut command = alone(args, home);
        let log = std::fs::File::options().create(true).append(true).open(home.join("roles.log")).expect("a log");
        self.0.push(
            command.current_dir(home).stdout(log.try_clone().expect("a log")).stderr(log).spawn().expect("muster"),
        );
    }

    pub(crate) fn stop(&mut self) {
        self.0.iter().for_each(|role| signal(role, Signal::SIGTERM));
        self.0.drain(..).for_each(|mut role| _ = role.wait());
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|role| _ = role.kill());
        self.0.drain(..).for_each(|mut role| _ = role.wait());
    }
}
