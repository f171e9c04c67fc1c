//! TCP with TLS does what both networks must do with identities; and what only sockets can be made to do does no harm.

mod transport;

use muster_runtime::pki::{LocalAuthorities, Role};
use muster_runtime::{Admission, Expect, Host, Transport, real};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use transport::{Fabric, Served, echo};

struct Real {
    folder: PathBuf,
    made: AtomicUsize,
}

impl Fabric for Real {
    fn host(&self, name: &str) -> Host {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        real::host(name, self.folder.join(format!("{name}-{number}")))
    }

    fn listen(&self) -> &'static str {
        "127.0.0.1:0"
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_keeps_the_rules_of_identities() {
    let page = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder().expect("the only one");
    let folder = tempfile::tempdir().expect("a folder");
    transport::check_all(&Real { folder: folder.path().to_owned(), made: AtomicUsize::new(0) }).await;
    // The suite has seen what it speaks of.
    let page = page.render();
    for outcome in ["full", "resumed", "refused", "failed"] {
        for side in ["in", "out"] {
            let counted = page.lines().any(|line| {
                line.starts_with("muster_handshakes_total{") && line.contains(outcome) && line.contains(side)
            });
            assert!(counted, "no handshake was {outcome} on side {side}:\n{page}");
        }
    }
    assert!(page.contains("muster_certificates_out_of_date_total{state=\"expired\"}"), "{page}");
}

/// A control node that demands certificates, and another control node.
async fn members(real: &Real) -> (Served, Host) {
    let ca = LocalAuthorities::new(real.host("ca").pki, "c1", 1..=2, 1_790_000_000_000).expect("authorities");
    let (one, two) = (real.host("one"), real.host("two"));
    for (host, id) in [(&one, 1), (&two, 2)] {
        let credentials = ca.machine(Role::Control(id)).expect("a machine");
        host.net.set_credentials(Some(credentials)).expect("usable");
    }
    (transport::serve(real, one, Admission::mutual(Arc::new(transport::AnyUnderRoot))).await, two)
}

/// Bytes that are no TLS, and what begins as TLS and goes on otherwise, end their connection and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_its_connection_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let real = Real { folder: folder.path().to_owned(), made: AtomicUsize::new(0) };
    let (served, client) = members(&real).await;
    let hello = [&[22, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3][..], &[7; 300]].concat();
    let large = [&[23, 3, 3, 255, 255][..], &[0; 70_000]].concat();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0; 100], &hello, &large] {
        let mut socket = TcpStream::connect(&served.endpoint).await.expect("it listens");
        // It may be closed before all is written.
        let _ = socket.write_all(garbage).await;
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(std::time::Duration::from_secs(30), socket.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the connection is closed");
        assert!(answer.len() < 64, "an alert at most, not {} bytes", answer.len());
    }
    echo::call(&client, &served.endpoint, Expect::Member(1)).await.expect("others are served");
}

/// Sockets that take their time with the handshake hold up neither those who have proved to be control nodes, nor the endpoint for ever.
#[tokio::test(flavor = "multi_thread")]
async fn slow_handshakes_hold_up_no_member_and_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let real = Real { folder: folder.path().to_owned(), made: AtomicUsize::new(0) };
    let (served, client) = members(&real).await;
    let mut slow = Vec::new();
    for _ in 0..200 {
        slow.push(TcpStream::connect(&served.endpoint).await.expect("it listens"));
    }
    // This address is no control node's yet: it waits until the slow ones are given up.
    echo::call(&client, &served.endpoint, Expect::Member(1)).await.expect_err("given up before a place was free");
    for socket in &mut slow {
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(std::time::Duration::from_secs(60), socket.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the connection is closed");
    }
    echo::call(&client, &served.endpoint, Expect::Member(1)).await.expect("all are gone");

    // The side that serves dials that address, and finds a control node there.
    let (back, _) =
        (transport::serve(&real, client.clone(), Admission::mutual(Arc::new(transport::AnyUnderRoot))).await, ());
    echo::call(&served.host, &back.endpoint, Expect::Member(2)).await.expect("a member");
    for _ in 0..40 {
        slow.push(TcpStream::connect(&served.endpoint).await.expect("it listens"));
    }
    echo::call(&client, &served.endpoint, Expect::Member(1)).await.expect("members do not wait for strangers");
}

/// What a role does at its start: it finds its credentials where they were saved, readable by their owner alone.
#[tokio::test]
async fn credentials_are_saved_and_found_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let host = real::host("host", folder.path());
    let me = Role::Control(1);
    host.prepare(Transport::Plain, &me, None).expect("nothing is needed");
    let missing = host.prepare(Transport::Mutual, &me, None).expect_err("there are none").to_string();
    assert!(missing.contains("roots.pem is missing") && missing.contains("enrol it first"), "{missing}");

    let ca = LocalAuthorities::new(host.pki.clone(), "c1", [1], 1_790_000_000_000).expect("authorities");
    let made = ca.machine(Role::Control(1)).expect("a machine");
    made.save(&*host.files).await.expect("a working disk");
    host.prepare(Transport::Mutual, &me, None).expect("what was saved");
    let found = host.net.credentials().expect("set");
    assert_eq!((found.presented(), found.roots()), (made.presented(), made.roots()));
    assert!(host.certificate_clock.now_ms().is_some(), "the machine has heard when its certificate was signed");
    let wrong = host.prepare(Transport::Mutual, &Role::Control(2), None).expect_err("another's").to_string();
    assert!(wrong.contains("expected spiffe://c1/control/2, got spiffe://c1/control/1"), "{wrong}");
    for entry in std::fs::read_dir(folder.path().join("files")).expect("a folder") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{:?}", entry.file_name());
    }

    // A key that is not the certificate's.
    let text = String::from_utf8(host.files.read("machine.pem").expect("read").expect("there")).expect("text");
    let other = ca.machine(Role::Control(1)).expect("a machine");
    other.save(&*host.files).await.expect("a working disk");
    let others = String::from_utf8(host.files.read("machine.pem").expect("read").expect("there")).expect("text");
    let end = "-----END PRIVATE KEY-----";
    let (key, _) = others.split_once(end).expect("a key");
    let (_, chain) = text.split_once(end).expect("a chain");
    host.files.write("machine.pem", format!("{key}{end}{chain}").into_bytes()).await.expect("a working disk");
    let wrong = host.prepare(Transport::Mutual, &me, None).expect_err("they do not belong together").to_string();
    assert!(wrong.contains("of another key"), "{wrong}");
    assert!(!wrong.contains("BEGIN"), "no key is said");
}
