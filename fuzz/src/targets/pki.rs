//! Machines' names, certificates, requests for them, and the files in which they come.
//!
//! What must stay true: a machine has one name, and a name has one text; what is read of a certificate can be read again from what it names.

use super::text_of;
use crate::target::{Target, reached};
use muster_enrolment::JoinFile;
use muster_runtime::pki::{Certificate, MachineName, Roots, Scheme, SecretKey, Subject, X509};

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "machine-name",
        what: "names of machines and authorities: one text each",
        words: &["spiffe://", "/node/", "/control/", "/shard/", "/issuer/", "/root", "c1", "01", "+1", "..", "%20"],
        reaches: &["machine", "subject"],
        run: machine_name,
    },
    Target {
        name: "certificate",
        what: "a certificate, also as a chain and as a root, and a private key",
        words: &["\x30\x03", "\x06\x03\x55\x1d", "spiffe://c1/node/n", "\x04\x02\x30\x00", "\x17\x0d"],
        reaches: &["machine", "issuer", "root", "roots"],
        run: certificate,
    },
    Target {
        name: "certificate-request",
        what: "a request for a certificate: only whoever has the key can make one",
        words: &["\x30\x03", "\x06\x03\x55\x1d", "spiffe://c1/node/n", "\x03\x02\x00"],
        reaches: &["request"],
        run: request,
    },
    Target {
        name: "join-file",
        what: "a join file, and a file of roots: written and read again",
        words: &[
            "mj1_7_secret_00000000\n",
            "endpoint a:1\n",
            "# ",
            "-----BEGIN CERTIFICATE-----\n",
            "-----END CERTIFICATE-----\n",
            "\n",
        ],
        reaches: &["join file"],
        run: join_file,
    },
];

fn machine_name(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    if let Ok(subject) = text.parse::<Subject>() {
        reached("subject");
        assert_eq!(subject.to_string(), text, "a second text of a name");
    }
    if let Ok(name) = text.parse::<MachineName>() {
        reached("machine");
        let again = MachineName::new(name.cluster(), name.role().clone());
        assert_eq!(again.ok().as_ref(), Some(&name));
    }
}

fn certificate(bytes: &[u8]) {
    let _ = SecretKey::from_bytes(bytes.to_vec()).map(|key| X509.public(&key));
    let Ok(certificate) = Certificate::from_bytes(bytes) else { return };
    if let Ok(stated) = X509.read(&certificate) {
        reached(match &stated.subject {
            Subject::Machine(_) => "machine",
            Subject::Issuer { .. } => "issuer",
            Subject::Root { .. } => "root",
        });
        assert_eq!(stated.subject.to_string().parse::<Subject>().ok().as_ref(), Some(&stated.subject));
        if let Ok(roots) = Roots::new(&X509, vec![certificate.clone()]) {
            reached("roots");
            let again = Roots::from_pem(&X509, roots.to_pem().as_bytes());
            assert_eq!(again.ok().as_ref(), Some(&roots));
        }
    }
    let chain = [certificate.clone(), certificate];
    assert!(X509.verify(&chain, &chain[..1]).is_err(), "a certificate vouches for itself");
}

fn request(bytes: &[u8]) {
    if let Ok(requested) = X509.check_request(bytes) {
        reached("request");
        assert_eq!(requested.subject.to_string().parse::<Subject>().ok().as_ref(), Some(&requested.subject));
    }
}

fn join_file(bytes: &[u8]) {
    let _ = Roots::from_pem(&X509, bytes);
    let Some(file) = text_of(bytes).and_then(|text| JoinFile::read(&X509, text).ok()) else { return };
    reached("join file");
    let again = JoinFile::read(&X509, &file.text("for people\nof two lines"));
    assert_eq!(again.ok().as_ref(), Some(&file));
}
