//! `muster login` with an OpenID provider that others have made: the package oidc-provider of npm, which is OpenID Certified. The provider of
//! `support/provider.rs` was written together with the code that it tests, and may share its mistakes.
//!
//! `MUSTER_OIDC_PROVIDER` names the folder where the package is installed; `.ci/setup-oidc-provider` installs it and prints the folder. Without it
//! these tests say so and pass. Where `MUSTER_CI` is set they fail if the variable is not set at all, although Node.js and npm are there.

use crate::common::Said;
use crate::login::Cluster;
use crate::waiting::wait_for;
use serde_json::json;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/oidc-provider");

/// Where the package is installed; nothing where it is not.
fn installed() -> Option<PathBuf> {
    let named = std::env::var_os("MUSTER_OIDC_PROVIDER");
    let asked = named.is_some();
    let folder = named.filter(|folder| !folder.is_empty()).map(PathBuf::from);
    if folder.is_none() {
        let missing = "no OpenID provider is installed; do it with MUSTER_OIDC_PROVIDER=$(.ci/setup-oidc-provider), which needs Node.js and npm";
        let runs =
            |program: &str| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
        let must = std::env::var_os("MUSTER_CI").is_some() && !asked && runs("node") && runs("npm");
        assert!(!must, "{missing}");
        eprintln!("NOT TESTED: {missing}");
    }
    folder
}

/// The provider, a process of its own; it ends with the value.
struct Certified {
    issuer: String,
    node: Child,
    _folder: tempfile::TempDir,
}

impl Certified {
    fn start(installed: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("provider.log");
        let file = File::create(&log).expect("a log");
        let node = node("provider.mjs")
            .arg(installed)
            .stdout(file.try_clone().expect("a log"))
            .stderr(file)
            .spawn()
            .expect("node");
        let mut provider = Certified { issuer: String::new(), node, _folder: folder };
        wait_for("the provider", || {
            let ended = provider.node.try_wait().expect("a child");
            let said = std::fs::read_to_string(&log).expect("a log");
            assert!(ended.is_none(), "the provider has ended: {said}");
            let issuer = said.lines().find_map(|line| line.strip_prefix("listens at "));
            provider.issuer = issuer.unwrap_or_default().to_owned();
            !provider.issuer.is_empty()
        });
        provider
    }

    /// A control node that knows this provider, as that client of it.
    fn cluster(&self, client: &str) -> Cluster {
        Cluster::start(&format!("issuer: {}\nclient-id: {client}\nscopes: [email, groups]\nsession: 1h\n", self.issuer))
    }

    fn end(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

impl Drop for Certified {
    fn drop(&mut self) {
        self.end();
    }
}

/// A script of `.ci/oidc-provider`.
fn node(script: &str) -> Command {
    let mut node = Command::new("node");
    node.arg(Path::new(SCRIPTS).join(script)).stdin(Stdio::null());
    node
}

/// Opens a page in a browser, and enters the code of a device if there is one. Gives the last page.
fn browse(page: &str, code: Option<&str>) -> String {
    let said: Said = node("browser.mjs").arg(page).args(code).output().expect("node").into();
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    said.out
}

fn with_browser(cluster: &Cluster, session: &str) -> Said {
    cluster.login(&["--no-browser", "--out", session], |line| {
        let shown = line.starts_with("http://");
        if shown {
            let last = browse(line, None);
            assert!(last.contains("You may close this window."), "{last}");
        }
        shown
    })
}

fn with_code(cluster: &Cluster, session: &str) -> Said {
    cluster.login(&["--device", "--out", session], |line| {
        let shown = line.strip_prefix("Open ").and_then(|rest| rest.split_once(" and enter the code "));
        let Some((page, rest)) = shown else { return false };
        let (code, _) = rest.split_once('.').expect("the end of the sentence");
        browse(page, Some(code));
        true
    })
}

/// The account of the provider is logged in, and its groups are known.
fn is_alice(cluster: &Cluster, login: &Said, session: &str) {
    assert_eq!(login.code, 0, "{}", login.out);
    assert!(login.out.contains("logged in as user:alice@corp.example"), "{}", login.out);
    let who = cluster.run(&["whoami", "-o", "json"], Some(session)).json();
    assert_eq!((&who["principal"], &who["groups"]), (&json!("user:alice@corp.example"), &json!(["ml", "ops"])));
}

#[test]
fn people_log_in_at_a_certified_provider_with_a_browser_and_with_a_code() {
    let Some(installed) = installed() else { return };
    let mut provider = Certified::start(&installed);
    let cluster = provider.cluster("muster");
    is_alice(&cluster, &with_browser(&cluster, "browser"), "browser");
    // The provider answers that the login is pending before the code is entered.
    let code = with_code(&cluster, "code");
    is_alice(&cluster, &code, "code");

    // The provider is gone: sessions go on, and a login says so.
    provider.end();
    is_alice(&cluster, &code, "code");
    for how in ["--no-browser", "--device"] {
        let said = cluster.run(&["login", how, "--out", "nobody"], None);
        let why = format!("the identity provider {} cannot be asked", provider.issuer);
        assert!(said.code != 0 && said.err.contains(&why), "{how}: {}{}", said.out, said.err);
    }
}

/// The tests above have RSA, the algorithm that every provider knows.
#[test]
fn id_tokens_of_a_certified_provider_hold_with_elliptic_curves() {
    let Some(installed) = installed() else { return };
    let provider = Certified::start(&installed);
    for client in ["muster-es256", "muster-eddsa"] {
        let cluster = provider.cluster(client);
        is_alice(&cluster, &with_browser(&cluster, "session"), "session");
    }
}
