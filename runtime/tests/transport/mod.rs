//! What both networks must do with identities, as one suite: TCP with TLS, and the simulated one.
//!
//! A [`Fabric`] gives hosts. Each part of the suite makes a cluster's authorities with the scheme of those hosts, and lets one side dial
//! another.

mod authorities;
pub(crate) mod echo;

use authorities::{Cluster, DAY_MS, NOW_MS};
use echo::{Answer, Echo};
use muster_runtime::pki::{Admit, Credentials, NotAdmitted, PeerIdentity, Role, Roots, SpkiHash};
use muster_runtime::{Admission, Expect, Host};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Admits every machine whose certificate leads to the root.
pub(crate) struct AnyUnderRoot;

impl Admit for AnyUnderRoot {
    fn admit(&self, _: &PeerIdentity, _: &str) -> Result<(), NotAdmitted> {
        Ok(())
    }
}

/// Where hosts come from.
pub(crate) trait Fabric {
    /// A new one.
    fn host(&self, name: &str) -> Host;
    /// Where it is to serve.
    fn listen(&self) -> &'static str;
}

/// Runs the whole suite; each part has hosts of its own.
pub(crate) async fn check_all(fabric: &dyn Fabric) {
    the_expected_are_accepted(fabric).await;
    others_are_refused(fabric).await;
    dates_are_judged_by_the_certificate_clock(fabric).await;
    members_accept_each_other_by_pin_whatever_the_date(fabric).await;
    a_certificate_of_the_future_is_accepted(fabric).await;
    whoever_is_not_admitted_is_told_so_and_asked_about_once(fabric).await;
    new_credentials_count_from_the_next_connection_on(fabric).await;
    nothing_is_resumed_after_the_trust_has_changed(fabric).await;
    clear_text_and_tls_do_not_meet(fabric).await;
    tls_and_clear_text_meet_where_both_may_be_spoken(fabric).await;
    people_show_no_certificate(fabric).await;
}

/// Admits whom it is told to, and counts.
#[derive(Default)]
pub(crate) struct Pins {
    pinned: Mutex<BTreeMap<String, SpkiHash>>,
    asked: AtomicUsize,
}

impl Pins {
    fn pin(&self, of: &Credentials) {
        let shown = of.presented().expect("a machine");
        self.pinned.lock().insert(shown.name.to_string(), shown.spki_sha256);
    }
}

impl Admit for Pins {
    fn admit(&self, who: &PeerIdentity, _: &str) -> Result<(), NotAdmitted> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.pinned.lock().get(&who.name.to_string()) {
            Some(pinned) if *pinned == who.spki_sha256 => Ok(()),
            _ => Err(NotAdmitted { why: format!("the key of {} is not pinned", who.name) }),
        }
    }
}

fn node(name: &str) -> Role {
    Role::Node(name.to_owned())
}

fn show(host: &Host, credentials: Credentials) {
    host.net.set_credentials(Some(credentials)).expect("usable");
}

/// A side that serves.
pub(crate) struct Served {
    pub(crate) host: Host,
    pub(crate) endpoint: String,
    pub(crate) echo: Echo,
}

pub(crate) async fn serve(fabric: &dyn Fabric, host: Host, admission: Admission) -> Served {
    let echo = Echo::default();
    let endpoint = echo.serve(&host, fabric.listen(), admission).await;
    Served { host, endpoint, echo }
}

/// A control node that demands certificates, and a node.
async fn pair(fabric: &dyn Fabric, cluster: &Cluster, admit: Arc<dyn Admit>) -> (Served, Host) {
    let server = fabric.host("control");
    show(&server, cluster.machine(Role::Control(1)));
    let served = serve(fabric, server, Admission::mutual(admit)).await;
    let client = fabric.host("node");
    show(&client, cluster.machine(node("n1")));
    (served, client)
}

async fn the_expected_are_accepted(fabric: &dyn Fabric) {
    let cluster = Cluster::new(&fabric.host("ca"), "c1");
    let (served, client) = pair(fabric, &cluster, Arc::new(AnyUnderRoot)).await;
    for expect in [Expect::Control, Expect::Member(1)] {
        let answer = echo::call(&client, &served.endpoint, expect).await.expect("accepted");
        assert_eq!(answer.who.as_deref(), Some("spiffe://c1/node/n1"));
        assert_eq!(answer.expired_ms, 0);
        assert!(!answer.from.is_empty() && !answer.from.contains(':'), "{:?}", answer.from);
    }
    let member = fabric.host("member");
    show(&member, cluster.machine(Role::Control(2)));
    let answer = echo::call(&member, &served.endpoint, Expect::Member(1)).await.expect("accepted");
    assert_eq!(answer.who.as_deref(), Some("spiffe://c1/control/2"));
}

/// Every way in which a side is another than it should be: the call fails, and no service hears of it.
async fn others_are_refused(fabric: &dyn Fabric) {
    let ca = fabric.host("ca");
    let (cluster, other, twin) = (Cluster::new(&ca, "c1"), Cluster::new(&ca, "c2"), Cluster::new(&ca, "c1"));
    let both = [cluster.root(), twin.root()].map(|root| root.certificate().clone());
    let both = Roots::new(&*ca.pki, both.to_vec()).expect("one name");
    let own = |role| cluster.machine(role);
    let cases: Vec<(&str, Option<Credentials>, Option<Credentials>, Expect)> = vec![
        ("a node in the place of a control node", Some(own(node("n2"))), Some(own(node("n1"))), Expect::Control),
        ("a node in the place of a member", Some(own(node("n2"))), Some(own(Role::Control(2))), Expect::Member(1)),
        ("another member", Some(own(Role::Control(2))), Some(own(Role::Control(3))), Expect::Member(1)),
        ("a server of another cluster", Some(other.machine(Role::Control(1))), Some(own(node("n"))), Expect::Control),
        ("a client of another cluster", Some(own(Role::Control(1))), Some(other.machine(node("n"))), Expect::Control),
        ("a server under another root", Some(twin.machine(Role::Control(1))), Some(own(node("n"))), Expect::Control),
        (
            "a client under another root that trusts this one",
            Some(own(Role::Control(1))),
            Some(twin.machine_with(node("n"), both.clone())),
            Expect::Control,
        ),
        ("a client without a certificate", Some(own(Role::Control(1))), Some(cluster.anonymous()), Expect::Control),
        ("a server without a certificate", Some(cluster.anonymous()), Some(own(node("n"))), Expect::Control),
        ("a client without credentials", Some(own(Role::Control(1))), None, Expect::Control),
        ("a server without credentials", None, Some(own(node("n"))), Expect::Control),
    ];
    for (what, servers, clients, expect) in cases {
        let (server, client) = (fabric.host("server"), fabric.host("client"));
        server.net.set_credentials(servers).expect("usable");
        client.net.set_credentials(clients).expect("usable");
        let served = serve(fabric, server, Admission::mutual(Arc::new(AnyUnderRoot))).await;
        let answer = echo::call(&client, &served.endpoint, expect).await;
        assert!(answer.is_err(), "{what} is accepted: {answer:?}");
        assert_eq!(served.echo.calls(), 0, "{what} reached a service");
    }
}

async fn dates_are_judged_by_the_certificate_clock(fabric: &dyn Fabric) {
    let cluster = Cluster::new(&fabric.host("ca"), "c1");
    // Certificates of machines live 30 days; days after they were signed, and whether they are accepted.
    for (days, is_accepted) in [(0, true), (29, true), (31, true), (119, true), (121, false), (3_000, false)] {
        // The clock of the side that serves, then that of the side that dials.
        for server_is_late in [true, false] {
            let (served, client) = pair(fabric, &cluster, Arc::new(AnyUnderRoot)).await;
            let late = if server_is_late { &served.host } else { &client };
            late.certificate_clock.hear(NOW_MS + days * DAY_MS);
            let answer = echo::call(&client, &served.endpoint, Expect::Control).await;
            assert_eq!(answer.is_ok(), is_accepted, "{days} days, server {server_is_late}: {answer:?}");
            if let Ok(Answer { expired_ms, .. }) = answer {
                let expired = server_is_late && days > 30;
                assert_eq!(expired_ms / DAY_MS, if expired { days - 30 } else { 0 }, "{days} days");
            }
        }
    }
}

/// A machine that has lost its folder, and with it the time that it had heard, comes to control nodes that have renewed since: it is its clock that is behind.
/// If it refused, it would never hear the time.
async fn a_certificate_of_the_future_is_accepted(fabric: &dyn Fabric) {
    let cluster = Cluster::new(&fabric.host("ca"), "c1");
    let later = cluster.at(NOW_MS + 100 * DAY_MS);
    let (server, client) = (fabric.host("control"), fabric.host("node"));
    show(&server, later.machine(Role::Control(1)));
    show(&client, cluster.machine(node("n1")));
    let served = serve(fabric, server, Admission::mutual(Arc::new(AnyUnderRoot))).await;
    let answer = echo::call(&client, &served.endpoint, Expect::Control).await.expect("accepted");
    assert_eq!(answer.expired_ms / DAY_MS, 69, "by the clock of the other side");
}

async fn members_accept_each_other_by_pin_whatever_the_date(fabric: &dyn Fabric) {
    let cluster = Cluster::new(&fabric.host("ca"), "c1");
    let (one, two) = (cluster.machine(Role::Control(1)), cluster.machine(Role::Control(2)));
    for (is_pinned, is_accepted) in [(true, true), (false, false)] {
        let pins = Arc::new(Pins::default());
        pins.pin(&two);
        if is_pinned {
            pins.pin(&one);
        }
        let (server, client) = (fabric.host("one"), fabric.host("two"));
        show(&server, one.clone());
        show(&client, two.clone().with_pins(pins.clone()));
        for host in [&server, &client] {
            host.certificate_clock.hear(NOW_MS + 2_000 * DAY_MS);
        }
        let served = serve(fabric, server, Admission::mutual(pins)).await;
        let answer = echo::call(&client, &served.endpoint, Expect::Member(1)).await;
        assert_eq!(answer.is_ok(), is_accepted, "pinned {is_pinned}: {answer:?}");
    }
    // A side without a list trusts the root, and that has an end.
    let (server, client) = (fabric.host("one"), fabric.host("two"));
    show(&server, one);
    show(&client, two);
    client.certificate_clock.hear(NOW_MS + 2_000 * DAY_MS);
    let served = serve(fabric, server, Admission::mutual(Arc::new(AnyUnderRoot))).await;
    assert!(echo::call(&client, &served.endpoint, Expect::Member(1)).await.is_err());
}

async fn whoever_is_not_admitted_is_told_so_and_asked_about_once(fabric: &dyn Fabric) {
    let cluster = Cluster::new(&fabric.host("ca"), "c1");
    let pins = Arc::new(Pins::default());
    let (served, client) = pair(fabric, &cluster, pins.clone()).await;
    let why = echo::call(&client, &served.endpoint, Expect::Control).await.expect_err("it is not pinned");
    assert!(why.contains("the key of spiffe://c1/node/n1 is not pinned"), "{why}");
    assert_eq!(served.echo.calls(), 0);

    pins.pin(&client.net.credentials().expect("its own"));
    let asked = pins.asked.load(Ordering::Relaxed);
    let channel = client.net.dial(&served.endpoint, Expect::Control).expect("an endpoint");
    for _ in 0..5 {
        echo::call_over(channel.clone()).await.expect("admitted");
    }
    assert_eq!(pins.asked.load(Ordering::Relaxed), asked + 1, "once for each connection");
    // A key that is not pinned any more, over a connection that would resume.
    pins.pinned.lock().clear();
    assert!(echo::call(&client, &served.endpoint, Expect::Control).await.is_err());
}

async fn new_credentials_count_from_the_next_connection_on(fabric: &dyn Fabric) {
    let cluster = Cluster::new(&fabric.host("ca"), "c1");
    let (served, client) = pair(fabric, &cluster, Arc::new(AnyUnderRoot)).await;
    let open = client.net.dial(&served.endpoint, Expect::Control).expect("an endpoint");
    let before = echo::call_over(open.clone()).await.expect("accepted");
    show(&client, cluster.machine(node("n1")));
    let shown = client.net.credentials().expect("its own").presented().expect("a machine").spki_sha256.to_string();
    assert_ne!(before.spki, Some(shown.clone()));
    let over = echo::call_over(open).await.expect("accepted").spki;
    assert_eq!(over, Some(shown.clone()), "a channel that was open shows it with its next call");
    let after = echo::call(&client, &served.endpoint, Expect::Control).await.expect("accepted");
    assert_eq!(after.spki, Some(shown), "a new one shows the new key");
}

async fn nothing_is_resumed_after_the_trust_has_changed(fabric: &dyn Fabric) {
    let ca = fabric.host("ca");
    let (old, new) = (Cluster::new(&ca, "c1"), Cluster::new(&ca, "c1"));
    let both = Roots::new(&*ca.pki, [old.root(), new.root()].map(|root| root.certificate().clone()).to_vec());
    let both = both.expect("one cluster");
    let (served, client) = pair(fabric, &old, Arc::new(AnyUnderRoot)).await;
    for _ in 0..3 {
        let answer = echo::call(&client, &served.endpoint, Expect::Control).await.expect("accepted");
        assert_eq!(answer.who.as_deref(), Some("spiffe://c1/node/n1"), "a resumed session shows the certificate");
    }
    // The side that serves takes a certificate of the new root; the client learns that root.
    show(&served.host, new.machine_with(Role::Control(1), both.clone()));
    assert!(echo::call(&client, &served.endpoint, Expect::Control).await.is_err(), "a session of the old root");
    show(&client, old.machine_with(node("n1"), both));
    echo::call(&client, &served.endpoint, Expect::Control).await.expect("both roots are trusted");
    // The old root goes: the client's certificate counts no more, whatever was left of earlier connections.
    show(&served.host, new.machine(Role::Control(1)));
    assert!(echo::call(&client, &served.endpoint, Expect::Control).await.is_err(), "a client of the old root");
    show(&client, new.machine(node("n1")));
    echo::call(&client, &served.endpoint, Expect::Control).await.expect("both are under the new root");
}

async fn clear_text_and_tls_do_not_meet(fabric: &dyn Fabric) {
    let cluster = Cluster::new(&fabric.host("ca"), "c1");
    let (secure, client) = pair(fabric, &cluster, Arc::new(AnyUnderRoot)).await;
    assert!(echo::call(&client, &secure.endpoint, Expect::Plain).await.is_err(), "clear text where TLS is spoken");
    let plain = serve(fabric, fabric.host("plain"), Admission::plain()).await;
    assert!(echo::call(&client, &plain.endpoint, Expect::Control).await.is_err(), "TLS where clear text is spoken");
    let answer = echo::call(&client, &plain.endpoint, Expect::Plain).await.expect("clear text");
    assert_eq!(answer.who, None);
    assert_eq!((secure.echo.calls(), plain.echo.calls()), (0, 1));
}

/// A cluster is encrypted one machine after another: both sides speak TLS where both can, and clear text where one cannot yet.
async fn tls_and_clear_text_meet_where_both_may_be_spoken(fabric: &dyn Fabric) {
    let cluster = Cluster::new(&fabric.host("ca"), "c1");
    let server = fabric.host("control");
    show(&server, cluster.machine(Role::Control(1)));
    let both = serve(fabric, server, Admission::mutual_or_plain(Arc::new(AnyUnderRoot))).await;
    let plain = serve(fabric, fabric.host("plain"), Admission::plain()).await;
    let (secure, member) = pair(fabric, &cluster, Arc::new(AnyUnderRoot)).await;
    show(&member, cluster.machine(Role::Control(2)));
    let named = Some("spiffe://c1/control/2");
    for (endpoint, expect, who) in [
        (&both.endpoint, Expect::Plain, None),
        (&both.endpoint, Expect::Member(1), named),
        (&both.endpoint, Expect::MemberOrPlain(1), named),
        (&both.endpoint, Expect::ControlOrPlain, named),
        (&plain.endpoint, Expect::MemberOrPlain(1), None),
        (&plain.endpoint, Expect::ControlOrPlain, None),
        (&secure.endpoint, Expect::MemberOrPlain(1), named),
    ] {
        let answer = echo::call(&member, endpoint, expect).await.unwrap_or_else(|error| panic!("{expect:?}: {error}"));
        assert_eq!(answer.who.as_deref(), who, "{expect:?} at {endpoint}");
    }
    // Whoever shows a wrong certificate is not talked to in clear text instead, on either side.
    let calls = both.echo.calls();
    assert!(echo::call(&member, &both.endpoint, Expect::MemberOrPlain(3)).await.is_err(), "another control node");
    let stranger = fabric.host("stranger");
    show(&stranger, Cluster::new(&stranger, "c2").machine(Role::Control(2)));
    assert!(echo::call(&stranger, &both.endpoint, Expect::MemberOrPlain(1)).await.is_err(), "another cluster");
    assert_eq!(both.echo.calls(), calls);
}

async fn people_show_no_certificate(fabric: &dyn Fabric) {
    let cluster = Cluster::new(&fabric.host("ca"), "c1");
    let server = fabric.host("control");
    show(&server, cluster.machine(Role::Control(1)));
    let users = serve(fabric, server, Admission::server_certificate()).await;
    let machines = Echo::default();
    let mutual = Admission::mutual(Arc::new(AnyUnderRoot));
    let machines_at = match fabric.listen().ends_with(":0") {
        true => machines.serve(&users.host, fabric.listen(), mutual).await,
        false => machines.serve(&users.host, "0.0.0.0:2", mutual).await,
    };
    let person = fabric.host("person");
    show(&person, cluster.anonymous());
    for _ in 0..2 {
        let answer = echo::call(&person, &users.endpoint, Expect::Control).await.expect("served");
        assert_eq!(answer.who, None);
        assert!(echo::call(&person, &machines_at, Expect::Control).await.is_err(), "no certificate, no machine");
    }
    // A machine is nobody in particular there.
    let machine = fabric.host("machine");
    show(&machine, cluster.machine(node("n1")));
    let answer = echo::call(&machine, &users.endpoint, Expect::Control).await.expect("served");
    assert_eq!(answer.who, None);
    // Whoever trusts another root does not talk to it.
    show(&person, Cluster::new(&person, "c1").anonymous());
    assert!(echo::call(&person, &users.endpoint, Expect::Control).await.is_err());
    assert_eq!(machines.calls(), 0);
}
