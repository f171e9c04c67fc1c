//! The pages of a control node with a token and over TLS, as Prometheus and load balancers ask for them.

use crate::pages::{get, get_with};
use crate::waiting::{PATIENCE, wait_for};
use muster_bench::cluster::free_port;
use std::fs::{File, Permissions};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

const TOKEN: &str = "a-token-of-this-test-0123456789";
/// More than a role keeps of connections that say nothing.
const SILENT: usize = 300;

/// A control node alone, killed when it goes.
struct Control {
    process: Child,
    http: u16,
    folder: tempfile::TempDir,
}

impl Control {
    /// One with its pages at this address and with these options, which name files in `folder`.
    fn start(folder: tempfile::TempDir, host: &str, options: &[&str]) -> Self {
        let (listen, http) = (free_port().expect("a port"), free_port().expect("a port"));
        let page = format!("{host}:{http}");
        let process = spawn(folder.path(), listen, &[&["--http", page.as_str()][..], options].concat());
        Control { process, http, folder }
    }

    /// Waits until the page says that the node is well.
    fn healthy(self) -> Self {
        wait_for("a healthy node", || get(&self.page(), "/healthz").is_some_and(|page| page.contains("200 OK")));
        self
    }

    fn page(&self) -> String {
        format!("127.0.0.1:{}", self.http)
    }

    fn log(&self) -> String {
        log(self.folder.path())
    }

    /// The metrics in clear text.
    fn metrics(&self, headers: &str) -> String {
        get_with(&self.page(), "/metrics", headers).expect("an answer")
    }

    /// The status and the text of a page over TLS; nothing when there is no answer.
    fn over_tls(&self, path: &str, roots: &str, token: Option<&str>) -> Option<(u16, String)> {
        let root = Certificate::from_pem(roots.as_bytes()).ok()?;
        let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[root])).build();
        let config = Agent::config_builder().proxy(None).timeout_global(Some(PATIENCE)).http_status_as_error(false);
        let agent: Agent = config.tls_config(tls).build().into();
        let mut request = agent.get(format!("https://{}{path}", self.page()));
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call().ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        Some((answer.status().as_u16(), text))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(folder: &Path, listen: u16, options: &[&str]) -> Child {
    let listen = format!("127.0.0.1:{listen}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command.args(["control", "--id", "1", "--listen", &listen, "--bootstrap", &format!("1={listen}"), "--data"]);
    command.arg(folder.join("data")).args(options).current_dir(folder);
    let log = File::create(folder.join("log")).expect("a log");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("a control node")
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).expect("a log")
}

fn write(folder: &Path, name: &str, text: &str, mode: u32) {
    std::fs::write(folder.join(name), text).expect("a file");
    std::fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).expect("its mode");
}

/// A folder with the file `token`.
fn with_token() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "token", &format!("{TOKEN}\n"), 0o600);
    folder
}

/// Sockets that stay open and say nothing, or only how a TLS handshake begins.
fn silent(port: u16) -> Vec<TcpStream> {
    let open = |number: usize| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port takes connections");
        if number.is_multiple_of(2) {
            let _ = stream.write_all(&[22, 3, 1, 2, 0]);
        }
        stream
    };
    (0..SILENT).map(open).collect()
}

#[test]
fn metrics_need_the_token_and_health_does_not() {
    let control = Control::start(with_token(), "127.0.0.1", &["--http-token-file", "token"]).healthy();
    let without = get(&control.page(), "/metrics").expect("an answer");
    assert!(without.starts_with("HTTP/1.1 401 "), "{without}");
    assert!(without.to_lowercase().contains("\r\nwww-authenticate: bearer\r\n"), "{without}");
    assert!(without.contains("the header is missing") && !without.contains("muster_"), "{without}");
    let wrong = control.metrics("Authorization: Bearer another-token-0123456789\r\n");
    assert!(wrong.starts_with("HTTP/1.1 401 ") && wrong.contains("the token is wrong"), "{wrong}");
    let right = control.metrics(&format!("Authorization: Bearer {TOKEN}\r\n"));
    assert!(right.starts_with("HTTP/1.1 200 ") && right.contains("muster_"), "{right}");
    let log = control.log();
    assert!(!log.contains("--http-token-file") && !log.contains(TOKEN), "there is nothing to warn of: {log}");
}

#[test]
fn pages_over_tls_are_served_beside_silent_sockets() {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let (key, certificate) = (made.signing_key.serialize_pem(), made.cert.pem());
    let folder = with_token();
    write(folder.path(), "site.pem", &format!("{key}{certificate}"), 0o600);
    let options = ["--http-token-file", "token", "--http-certificate", "site.pem"];
    let control = Control::start(folder, "127.0.0.1", &options);
    let ask = |path: &str, token: Option<&str>| control.over_tls(path, &certificate, token);
    wait_for("a healthy node", || ask("/healthz", None).is_some_and(|(status, _)| status == 200));

    let held = silent(control.http);
    let (status, text) = ask("/healthz", None).expect("an answer");
    assert_eq!((status, text.as_str()), (200, "ok\n"));
    let (status, text) = ask("/metrics", Some(TOKEN)).expect("an answer");
    assert!(status == 200 && text.contains("muster_"), "{status} {text}");
    let (status, text) = ask("/metrics", None).expect("an answer");
    assert!(status == 401 && !text.contains("muster_"), "{status} {text}");
    drop(held);

    // The certificate is what proves who answers, and clear text gets no answer.
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate").cert.pem();
    assert_eq!(control.over_tls("/healthz", &other, None), None);
    assert!(get(&control.page(), "/healthz").is_none_or(|answer| !answer.contains("HTTP/1.1 200")));
}

#[test]
fn addresses_that_others_reach_are_warned_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = Control::start(folder, "0.0.0.0", &[]).healthy();
    assert!(open.metrics("").starts_with("HTTP/1.1 200 "), "it is served all the same");
    let log = open.log();
    assert!(
        log.contains("whoever reaches the address of --http can read the metrics; give --http-token-file"),
        "{log}"
    );

    let clear = Control::start(with_token(), "0.0.0.0", &["--http-token-file", "token"]).healthy();
    let log = clear.log();
    assert!(log.contains("go over the network in clear text; give --http-certificate"), "{log}");
}

#[test]
fn files_that_cannot_be_used_are_said_at_once() {
    let folder = with_token();
    write(folder.path(), "short", "0123\n", 0o600);
    write(folder.path(), "shared", TOKEN, 0o644);
    let refused = |options: &[&str], why: &str| {
        let mut process = spawn(folder.path(), free_port().expect("a port"), options);
        wait_for("the end of the role", || process.try_wait().expect("a child").is_some());
        let said = log(folder.path());
        assert_eq!(process.wait().expect("it has ended").code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!folder.path().join("data").exists(), "nothing has begun");
    };
    let http = ["--http", "127.0.0.1:0"];
    let with = |options: &[&'static str]| [&http[..], options].concat();
    refused(
        &with(&["--http-token-file", "short"]),
        "http-token-file: short has a token of 4 characters, fewer than 16",
    );
    refused(&with(&["--http-token-file", "shared"]), "http-token-file: shared can be read by others; chmod 600 it");
    refused(&with(&["--http-certificate", "token"]), "http-certificate: token has no certificate");
    refused(&["--http-token-file", "token"], "--http <HOST:PORT>");
}
