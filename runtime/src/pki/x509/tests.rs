//! What is made is read and verified; what is not as it is made is refused. Bytes from outside never panic.

use super::*;
use crate::pki::{
    Credentials, MACHINE_LIFE_MS, MachineName, ROOTS_MAX, Role, Roots, new_root, presented, sign_issuer, sign_machine,
};
use proptest::prelude::*;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType};

const NOW_MS: u64 = 1_790_000_000_000;

fn issuer(root: &Authority, id: u64) -> Authority {
    let key = X509.new_key().expect("a key");
    let subject = Subject::Issuer { cluster: root.stated().subject.cluster().to_owned(), id };
    let request = X509.request(&key, &subject).expect("a request");
    let certificate = sign_issuer(&X509, root, &request, id, NOW_MS).expect("signed");
    Authority::new(&X509, key, certificate).expect("its own")
}

fn name(role: Role) -> MachineName {
    MachineName::new("c1", role).expect("a name")
}

fn leaf(issuer: &Authority, name: &MachineName) -> (SecretKey, Vec<Certificate>) {
    let key = X509.new_key().expect("a key");
    let request = X509.request(&key, &Subject::Machine(name.clone())).expect("a request");
    let certificate = sign_machine(&X509, issuer, &request, name, NOW_MS).expect("signed");
    (key, vec![certificate, issuer.certificate().clone()])
}

fn roots(root: &Authority) -> Roots {
    Roots::new(&X509, vec![root.certificate().clone()]).expect("a root")
}

#[test]
fn what_is_made_is_verified_and_says_what_was_asked_for() {
    let root = new_root(&X509, "c1", NOW_MS).expect("a root");
    for (id, role) in [(1, Role::Control(1)), (2, Role::Shard("s".into())), (2, Role::Node("N_1.a".into()))] {
        let issuer = issuer(&root, id);
        let name = name(role);
        let (key, chain) = leaf(&issuer, &name);
        let shown = X509.verify(&chain, roots(&root).certificates()).expect("a chain");
        assert_eq!((&shown.name, shown.issuer), (&name, id));
        assert_eq!(shown.spki_sha256, X509.public(&key).expect("a key"));
        assert_eq!(shown.validity.until_ms, NOW_MS + MACHINE_LIFE_MS);
        assert!(chain[0].bytes().len() < 700, "a certificate has {} bytes", chain[0].bytes().len());
        Credentials::machine(&X509, key, chain.clone(), roots(&root)).expect("they belong together");
        let other = X509.new_key().expect("a key");
        assert!(Credentials::machine(&X509, other, chain, roots(&root)).is_err(), "another key");
    }
}

#[test]
fn a_chain_that_leads_elsewhere_or_is_put_together_is_refused() {
    let root = new_root(&X509, "c1", NOW_MS).expect("a root");
    let other = new_root(&X509, "c1", NOW_MS).expect("a root");
    let (one, two, foreign) = (issuer(&root, 1), issuer(&root, 2), issuer(&other, 1));
    let (key, chain) = leaf(&one, &name(Role::Node("n".into())));
    let refused = |what: &str, chain: &[Certificate]| {
        assert!(X509.verify(chain, roots(&root).certificates()).is_err(), "{what} is accepted");
    };
    refused("another root's", &leaf(&foreign, &name(Role::Node("n".into()))).1);
    refused("no chain", &[]);
    refused("a leaf alone", &chain[..1]);
    refused("an issuer as a machine", &[chain[1].clone(), chain[1].clone()]);
    refused("the wrong issuer beside it", &[chain[0].clone(), two.certificate().clone()]);
    refused("a root in the place of the issuer", &[chain[0].clone(), root.certificate().clone()]);
    refused("three", &[chain[0].clone(), chain[1].clone(), root.certificate().clone()]);
    assert!(X509.verify(&chain, roots(&root).certificates()).is_ok());

    // Signed by the root itself, and shown beside an issuer that has nothing to do with it.
    let request = X509.request(&key, &Subject::Machine(name(Role::Node("n".into())))).expect("a request");
    let validity = Validity { from_ms: NOW_MS, until_ms: NOW_MS + 1_000 };
    let direct = X509.sign(&root, &request, validity).expect("signed");
    refused("a machine that the root has signed", &[direct, one.certificate().clone()]);
    // A control node under another's issuer.
    let request = X509.request(&key, &Subject::Machine(name(Role::Control(2)))).expect("a request");
    let forged = X509.sign(&one, &request, validity).expect("signed");
    refused("control node 2 by the issuer of 1", &[forged, one.certificate().clone()]);
    // An issuer that a machine's key has signed.
    let machine = Authority { key, certificate: chain[0].clone(), stated: one.stated().clone() };
    let request = X509.request(&X509.new_key().expect("a key"), &Subject::Machine(name(Role::Node("m".into()))));
    let below = X509.sign(&machine, &request.expect("a request"), validity).expect("signed");
    refused("a machine signed by a machine", &[below.clone(), chain[0].clone()]);
    refused("a machine signed by a machine, with the issuer beside it", &[below, one.certificate().clone()]);
}

#[test]
fn who_may_sign_what() {
    let root = new_root(&X509, "c1", NOW_MS).expect("a root");
    let one = issuer(&root, 1);
    let key = X509.new_key().expect("a key");
    let asks = |subject: &Subject| X509.request(&key, subject).expect("a request");
    let node = name(Role::Node("n".into()));
    let for_node = asks(&Subject::Machine(node.clone()));
    assert!(sign_machine(&X509, &one, &for_node, &node, NOW_MS).is_ok());
    assert!(sign_machine(&X509, &root, &for_node, &node, NOW_MS).is_err(), "the root signs no machine");
    let other = name(Role::Node("m".into()));
    assert!(sign_machine(&X509, &one, &for_node, &other, NOW_MS).is_err(), "it asked for another name");
    let two = name(Role::Control(2));
    assert!(sign_machine(&X509, &one, &asks(&Subject::Machine(two.clone())), &two, NOW_MS).is_err());
    let far = MachineName::new("c2", Role::Node("n".into())).expect("a name");
    assert!(sign_machine(&X509, &one, &asks(&Subject::Machine(far.clone())), &far, NOW_MS).is_err());
    let issuer_2 = asks(&Subject::Issuer { cluster: "c1".into(), id: 2 });
    assert!(sign_issuer(&X509, &root, &issuer_2, 2, NOW_MS).is_ok());
    assert!(sign_issuer(&X509, &root, &issuer_2, 3, NOW_MS).is_err(), "it asked for another id");
    assert!(sign_issuer(&X509, &one, &issuer_2, 2, NOW_MS).is_err(), "an issuer signs no issuer");
    let own_key = X509.request(one.key(), &Subject::Machine(node.clone())).expect("a request");
    assert!(sign_machine(&X509, &one, &own_key, &node, NOW_MS).is_err(), "the issuer's own key");
    // No certificate outlives the one above it.
    let late = NOW_MS + crate::pki::ISSUER_LIFE_MS - 1_000;
    let signed = sign_machine(&X509, &one, &for_node, &node, late).expect("signed");
    assert!(X509.read(&signed).expect("read").validity.until_ms <= one.stated().validity.until_ms);
    assert!(new_root(&X509, "C1", NOW_MS).is_err());
}

#[test]
fn only_who_has_the_key_can_ask() {
    let key = X509.new_key().expect("a key");
    let mut request = X509.request(&key, &Subject::Machine(name(Role::Node("n".into())))).expect("a request");
    assert_eq!(X509.check_request(&request).expect("its own").spki_sha256, X509.public(&key).expect("a key"));
    // The last byte is the signature's.
    let last = request.len() - 1;
    request[last] ^= 1;
    assert!(X509.check_request(&request).is_err());
    request[last] ^= 1;
    request.push(0);
    assert!(X509.check_request(&request).is_err(), "bytes follow it");
    assert!(X509.check_request(&vec![0x30; crate::pki::REQUEST_BYTES_MAX + 1]).is_err());
}

/// A certificate that is like those that are made, changed in one way.
fn strange(change: impl FnOnce(&mut CertificateParams), key: &KeyPair) -> Certificate {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI("spiffe://c1/node/n".try_into().expect("ascii"))];
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params.not_after = rcgen::date_time_ymd(2027, 1, 1);
    change(&mut params);
    Certificate::from_bytes(params.self_signed(key).expect("made").der().to_vec()).expect("small")
}

#[test]
fn certificates_that_are_made_otherwise_are_refused() {
    let key = KeyPair::generate().expect("a key");
    assert!(X509.read(&strange(|_| {}, &key)).is_ok());
    let uri = |text: &str| SanType::URI(text.try_into().expect("ascii"));
    let refused = |what: &str, change: &dyn Fn(&mut CertificateParams)| {
        assert!(X509.read(&strange(change, &key)).is_err(), "{what} is accepted");
    };
    refused("no name", &|params| params.subject_alt_names.clear());
    refused("two names", &|params| params.subject_alt_names.push(uri("spiffe://c1/node/m")));
    refused("a DNS name beside it", &|params| {
        params.subject_alt_names.push(SanType::DnsName("n".try_into().expect("ascii")));
    });
    refused("a DNS name", &|params| {
        params.subject_alt_names = vec![SanType::DnsName("n".try_into().expect("ascii"))];
    });
    refused("a name that is none", &|params| params.subject_alt_names = vec![uri("https://c1/node/n")]);
    refused("a machine that is an authority", &|params| {
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained)
    });
    refused("a machine that signs", &|params| params.key_usages.push(KeyUsagePurpose::KeyCertSign));
    refused("no uses", &|params| params.key_usages.clear());
    refused("a server alone", &|params| {
        params.extended_key_usages.retain(|uses| *uses == ExtendedKeyUsagePurpose::ServerAuth);
    });
    refused("an issuer that is no authority", &|params| params.subject_alt_names = vec![uri("spiffe://c1/issuer/1")]);
    refused("an issuer that signs issuers", &|params| {
        params.subject_alt_names = vec![uri("spiffe://c1/issuer/1")];
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    });
}

#[test]
fn bundles_are_bounded_and_of_one_cluster() {
    let (one, two) = (new_root(&X509, "c1", NOW_MS).expect("a root"), new_root(&X509, "c2", NOW_MS).expect("a root"));
    let both = vec![one.certificate().clone(), two.certificate().clone()];
    assert!(Roots::new(&X509, both).is_err(), "two clusters");
    assert!(Roots::new(&X509, Vec::new()).is_err(), "none");
    assert!(Roots::new(&X509, vec![one.certificate().clone(); ROOTS_MAX + 1]).is_err(), "too many");
    let roots = roots(&one);
    assert_eq!(Roots::from_pem(&X509, roots.to_pem().as_bytes()).expect("read"), roots);
    assert!(roots.has_fingerprint(&roots.fingerprints()[0]) && !roots.has_fingerprint("sha256:00"));
    let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    assert!(Roots::from_pem(&X509, key.as_bytes()).is_err(), "no certificate");
    assert!(Roots::from_pem(&X509, &vec![b'x'; 1 << 20]).is_err(), "too large");
}

fn made() -> Vec<Vec<u8>> {
    let root = new_root(&X509, "c1", NOW_MS).expect("a root");
    let (key, chain) = leaf(&issuer(&root, 1), &name(Role::Node("n".into())));
    let request = X509.request(&key, &Subject::Machine(name(Role::Node("n".into())))).expect("a request");
    vec![root.certificate().bytes().to_vec(), chain[0].bytes().to_vec(), chain[1].bytes().to_vec(), request]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Anything, and what was made with some bytes changed, cut or added, is read or refused, and nothing else happens.
    #[test]
    fn bytes_from_outside_do_no_harm(
        random in proptest::collection::vec(any::<u8>(), 0..600),
        which in 0..4_usize,
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4),
        keep in any::<u16>(),
    ) {
        thread_local!(static MADE: Vec<Vec<u8>> = made());
        let mut changed = MADE.with(|made| made[which].clone());
        for (at, byte) in changes {
            let at = usize::from(at) % changed.len();
            changed[at] = byte;
        }
        if keep % 3 == 0 {
            changed.truncate(usize::from(keep) % changed.len());
        }
        for bytes in [random, changed] {
            let _ = X509.check_request(&bytes);
            let certificate = Certificate::from_bytes(bytes.clone()).expect("small");
            let _ = X509.read(&certificate);
            let _ = presented(&X509, &[certificate.clone(), certificate]);
            let _ = Roots::from_pem(&X509, &bytes);
            let _ = SecretKey::from_bytes(bytes).map(|key| X509.public(&key));
        }
    }
}
