//! `muster login` with an identity provider: with a browser, with a code, and while the provider is away.

use crate::common::{Said, alone};
use crate::identities::Roles;
use crate::provider::{Forged, Provider, browse};
use crate::waiting::wait_for;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A control node that knows an identity provider.
pub(crate) struct Cluster {
    home: tempfile::TempDir,
    at: String,
    _roles: Roles,
}

impl Cluster {
    pub(crate) fn start(oidc: &str) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = free.local_addr().expect("an address").to_string();
        drop(free);
        std::fs::write(home.path().join("oidc.yaml"), oidc).expect("written");
        let mut roles = Roles(Vec::new());
        let bootstrap = format!("1={at}");
        let control = ["control", "--id", "1", "--data", "control", "--listen", &at, "--bootstrap", &bootstrap];
        let with: &[&str] = if oidc.is_empty() { &[] } else { &["--oidc", "oidc.yaml"] };
        roles.start(home.path(), &[&control[..], with].concat());
        let cluster = Cluster { home, at, _roles: roles };
        std::fs::write(cluster.path("tree.yaml"), "team: {}\nother: {}\n").expect("written");
        wait_for("a leader", || cluster.run(&["tenants", "apply", "-f", "tree.yaml"], None).code == 0);
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn run(&self, args: &[&str], token: Option<&str>) -> Said {
        let mut command = alone(&[args, &["--timeout", "10s"]].concat(), self.home.path());
        command.env("MUSTER_ENDPOINTS", &self.at).current_dir(self.home.path());
        command.envs(token.map(|token| ("MUSTER_TOKEN_FILE", self.path(token))));
        command.output().expect("muster").into()
    }

    /// Begins a login, and gives each line that it tells somebody to `meanwhile`, until that has what it needs.
    pub(crate) fn login(&self, args: &[&str], meanwhile: impl Fn(&str) -> bool) -> Said {
        let mut command = alone(&[&["login"], args].concat(), self.home.path());
        command.env("MUSTER_ENDPOINTS", &self.at).current_dir(self.home.path());
        let mut login = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("muster");
        let mut said = BufReader::new(login.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while said.read_line(&mut line).is_ok_and(|bytes| bytes > 0) && !meanwhile(line.trim()) {
            line.clear();
        }
        // What it says later must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        login.wait_with_output().expect("muster").into()
    }
}

fn oidc(provider: &Provider) -> String {
    format!("issuer: {}\nclient-id: muster\nsession: 1h\n", provider.issuer)
}

fn is_private(path: &Path) -> bool {
    std::fs::metadata(path).expect("a file").permissions().mode() & 0o777 == 0o600
}

#[test]
fn people_log_in_with_a_browser_and_their_groups_give_them_rights() {
    let claims = [("email", json!("alice@corp.example")), ("groups", json!(["ml"]))];
    let provider = Provider::start(&claims);
    let cluster = Cluster::start(&oidc(&provider));
    let said = cluster.login(&["--no-browser", "--out", "alice"], |line| {
        if !line.starts_with("http://") {
            return false;
        }
        // Somebody else's answer, to the same port, is not taken for this login's.
        let back =
            line.split('&').find_map(|part| part.strip_prefix("redirect_uri=")).expect("where to").replace("%3A", ":");
        let back = back.replace("%2F", "/");
        assert!(browse(&format!("{back}?code=mine&state=other")).contains("404"));
        assert!(browse(line).contains("You may close this window."));
        true
    });
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("logged in as user:alice@corp.example"), "{}", said.out);
    assert!(said.out.contains("groups: ml"), "{}", said.out);
    assert!(is_private(&cluster.path("alice")) && !said.out.contains("ms1_"), "{}", said.out);

    let admin = cluster.run(&["recover", "--data", "control", "--user", "root"], None);
    std::fs::write(cluster.path("admin"), admin.out).expect("written");
    std::fs::set_permissions(cluster.path("admin"), PermissionsExt::from_mode(0o600)).expect("private");
    for args in [
        &["grant", "add", "user:root", "admin"][..],
        &["grant", "add", "group:ml", "submitter", "team"],
        &["access", "close"],
    ] {
        let said = cluster.run(args, Some("admin"));
        assert_eq!(said.code, 0, "{args:?}: {}", said.err);
    }
    let submit = |tenant: &str| cluster.run(&["submit", "--tenant", tenant, "--", "true"], Some("alice"));
    assert_eq!(submit("team").code, 0, "{}", submit("team").err);
    let other = submit("other");
    assert!(other.code != 0 && other.err.contains("does not exist"), "{}", other.err);
    let who = cluster.run(&["whoami", "-o", "json"], Some("alice")).json();
    assert_eq!((&who["principal"], &who["groups"]), (&json!("user:alice@corp.example"), &json!(["ml"])));
    // Nobody logs in as somebody by asking.
    let audit = cluster.run(&["audit", "list"], Some("admin")).out;
    assert!(audit.contains("session") && audit.contains("user:alice@corp.example"), "{audit}");

    // The provider is away: sessions go on, and a login says so.
    provider.go_away();
    assert_eq!(submit("team").code, 0);
    let said = cluster.run(&["login", "--no-browser", "--out", "x"], None);
    assert!(
        said.code != 0 && said.err.contains("the identity provider") && said.err.contains("cannot be asked"),
        "{}",
        said.err
    );
    assert_eq!(cluster.run(&["logout"], Some("alice")).code, 0);
    assert!(submit("team").err.contains("does not exist (any more)"), "{}", submit("team").err);
}

#[test]
fn people_without_a_browser_log_in_with_a_code() {
    let provider = Provider::start(&[("email", json!("bob@corp.example"))]);
    let cluster = Cluster::start(&oidc(&provider));
    let said = cluster.login(&["--device", "--out", "bob"], |line| {
        let told = line.contains("enter the code ABCD-EFGH");
        if told {
            provider.approve();
        }
        told
    });
    assert!(said.code == 0 && said.out.contains("logged in as user:bob@corp.example"), "{}{}", said.out, said.err);
    let who = cluster.run(&["whoami"], Some("bob"));
    assert!(who.out.contains("user:bob@corp.example"), "{}", who.out);
}

#[test]
fn what_is_wrong_with_a_login_is_said() {
    let cluster = Cluster::start("");
    let said = cluster.run(&["login"], None);
    assert!(said.code == 5 && said.err.contains("muster recover"), "{}: {}", said.code, said.err);
    let provider = Provider::start(&[("email", json!("eve@corp.example")), ("aud", json!("another"))]);
    let cluster = Cluster::start(&format!("{}device-flow: false\n", oidc(&provider)));
    let said = cluster.login(&["--no-browser", "--out", "eve"], |line| {
        line.starts_with("http://") && browse(line).contains("close this window")
    });
    assert!(said.code != 0 && !cluster.path("eve").exists(), "{}", said.out);
    let denials = cluster.run(&["audit", "denials"], None).out;
    assert!(denials.contains("Auth.Login") && denials.contains("InvalidAudience"), "{denials}");
    let said = cluster.run(&["login", "--device"], None);
    assert!(said.code != 0 && said.err.contains("allows no --device"), "{}", said.err);
    // A control node does not start with a file that cannot be one.
    for (text, why) in [
        ("issuer: http://idp.example\nclient-id: muster\n", "issuer: is \"http://idp.example\""),
        ("issuer: https://idp.example\n", "client-id"),
        ("issuer: https://idp.example\nclient-id: m\nsession: 9h\n", "session"),
        ("issuer: https://idp.example\nclient-id: m\nsecret: x\n", "secret"),
    ] {
        std::fs::write(cluster.path("bad.yaml"), text).expect("written");
        let args = ["control", "--id", "9", "--data", "nine", "--listen", "127.0.0.1:0", "--oidc", "bad.yaml"];
        let said: Said =
            alone(&args, cluster.home.path()).current_dir(cluster.home.path()).output().expect("muster").into();
        assert!(said.code == 2 && said.err.contains(why), "{why}: {}", said.err);
    }
}

/// Attempt 25, of tokens that an identity provider is said to have made.
#[test]
fn attempt_25_id_tokens_that_do_not_hold_open_nothing() {
    let provider = Provider::start(&[("email", json!("mallory@corp.example"))]);
    let cluster = Cluster::start(&oidc(&provider));
    let login = || {
        cluster.login(&["--no-browser", "--out", "session"], |line| {
            line.starts_with("http://") && browse(line).contains("close this window")
        })
    };
    let far = 4_000_000_000_u64;
    for (forged, claims, why) in [
        (Forged::NoSignature, vec![], "unknown variant `none`"),
        (Forged::PublicKeyAsSecret, vec![], "only signatures with public keys count"),
        (Forged::OtherKey, vec![], "InvalidSignature"),
        (Forged::Nothing, vec![("exp", json!(far.to_string()))], "invalid type: string"),
        (Forged::Nothing, vec![("exp", json!(1))], "it has expired"),
        (Forged::Nothing, vec![("exp", json!(far)), ("iat", json!(1))], "ten minutes ago"),
        (Forged::Nothing, vec![("iat", json!(far))], "not valid yet"),
        (Forged::Nothing, vec![("aud", json!("another"))], "InvalidAudience"),
        (Forged::Nothing, vec![("aud", json!("muster")), ("iss", json!("https://another"))], "InvalidIssuer"),
    ] {
        provider.forge(forged, &claims);
        let said = login();
        assert!(said.code != 0 && !cluster.path("session").exists(), "{forged:?} {claims:?}: {}", said.out);
        let denials = cluster.run(&["audit", "denials"], None).out;
        let newest = denials.lines().find(|line| line.contains("Auth.Login")).unwrap_or_default();
        assert!(newest.contains(why), "{forged:?} {claims:?}: {newest} lacks {why}");
    }
    let sessions = cluster.run(&["sessions", "--all"], None).out;
    assert!(!sessions.contains("mallory"), "{sessions}");
}
