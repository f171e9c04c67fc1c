//! The end of the audit's chain, as a control node has signed it, as one line of JSON among the records.
//!
//! What must stay true: a line has all that its signature covers, but for the name of the cluster, which the roots have; each value has one spelling; a signed
//! head is no record, and stands behind the record that it is about.

use super::line::{BadLine, at_ms, hex, time, unhex, unhex_up_to};
use super::{Head, Outgoing};
use muster_control_core::audit_head_statement;
use muster_runtime::pki::{
    CERTIFICATE_BYTES_MAX, Certificate, MachineName, NotBelieved, Roots, SIGNATURE_BYTES_MAX, Signed, X509,
    verify_statement,
};
use serde::{Deserialize, Serialize};

/// How such a line begins; no record begins so.
const BEGIN: &[u8] = b"{\"signed_head\":";
/// Certificates of a chain that are read: a control node shows two.
const CHAIN_MAX: usize = 4;

/// The last record of the cluster at a moment, and the signature that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedHead {
    /// The record's number and hash.
    pub head: Head,
    /// When it was the last, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// By a control node.
    pub signed: Signed,
}

/// One line. The names of its fields are part of the interface.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    signed_head: Content,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    number: u64,
    hash: String,
    time: String,
    signature: String,
    chain: Vec<String>,
}

impl SignedHead {
    /// Whether a line is one, or is meant to be.
    #[must_use]
    pub fn is_in(line: &[u8]) -> bool {
        line.starts_with(BEGIN)
    }

    /// Reads a line back. The signature is not checked: see [`SignedHead::verify`].
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &[u8]) -> Result<Self, BadLine> {
        let Line { signed_head } = serde_json::from_slice(text).map_err(BadLine::SignedHead)?;
        let Content { number, hash, time: written, signature, chain } = signed_head;
        let hash = unhex(&hash).ok_or(BadLine::Field("hash"))?;
        let at_ms = at_ms(&written).ok_or(BadLine::Field("time"))?;
        let signature = unhex_up_to(&signature, SIGNATURE_BYTES_MAX).ok_or(BadLine::Field("signature"))?;
        if chain.len() > CHAIN_MAX {
            return Err(BadLine::Field("chain"));
        }
        let certificate = |text: &String| Certificate::from_bytes(unhex_up_to(text, CERTIFICATE_BYTES_MAX)?).ok();
        let chain = chain.iter().map(certificate).collect::<Option<Vec<_>>>().ok_or(BadLine::Field("chain"))?;
        Ok(SignedHead { head: Head { number, hash }, at_ms, signed: Signed { signature, chain } })
    }

    /// The line, ready to be sent.
    ///
    /// # Errors
    /// In words, when it cannot be written as a line.
    pub fn outgoing(&self) -> Result<Outgoing, String> {
        let SignedHead { head, at_ms, signed: Signed { signature, chain } } = self;
        let bad = |why: String| format!("the signed head of record {}: {why}", head.number);
        let time = time(*at_ms).ok_or_else(|| bad("it has no valid time".to_owned()))?;
        let content = Content {
            number: head.number,
            hash: hex(&head.hash),
            time: time.clone(),
            signature: hex(signature),
            chain: chain.iter().map(|certificate| hex(certificate.bytes())).collect(),
        };
        let json = serde_json::to_string(&Line { signed_head: content }).map_err(|error| bad(error.to_string()))?;
        Ok(Outgoing { head: *head, time, json, is_record: false })
    }

    /// Checks the signature; which control node has signed.
    ///
    /// # Errors
    /// [`NotBelieved`].
    pub fn verify(&self, roots: &Roots) -> Result<MachineName, NotBelieved> {
        let SignedHead { head, at_ms, signed } = self;
        let statement = audit_head_statement(roots.cluster(), head.number, &head.hash, *at_ms);
        verify_statement(&X509, roots, signed, &statement, *at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_runtime::pki::{LocalAuthorities, Role, sign_statement};
    use std::sync::Arc;

    const AT_MS: u64 = 1_790_000_000_123;

    /// A head that control node 1 has signed, and the roots of its cluster.
    fn example() -> (SignedHead, Roots) {
        let authorities = LocalAuthorities::new(Arc::new(X509), "c1", [1], AT_MS).expect("authorities");
        let own = authorities.machine(Role::Control(1)).expect("a control node");
        let head = Head { number: 17, hash: [0xa1; 32] };
        let statement = audit_head_statement("c1", head.number, &head.hash, AT_MS);
        let signed = sign_statement(&X509, &own, &statement, AT_MS).expect("signed");
        (SignedHead { head, at_ms: AT_MS, signed }, authorities.roots().expect("a root"))
    }

    #[test]
    fn a_signed_head_is_read_back_from_its_line_and_verified() {
        let (signed, roots) = example();
        let outgoing = signed.outgoing().expect("a line");
        assert!(!outgoing.is_record && outgoing.head == signed.head && !outgoing.json.contains('\n'));
        assert!(SignedHead::is_in(outgoing.json.as_bytes()));
        let read = SignedHead::parse(outgoing.json.as_bytes()).expect("a signed head");
        assert_eq!(read, signed);
        assert_eq!(read.verify(&roots).expect("believed").control_id(), Some(1));
        let (_, others) = example();
        read.verify(&others).expect_err("other roots");
        for forged in [
            SignedHead { head: Head { number: 18, ..signed.head }, ..signed.clone() },
            SignedHead { head: Head { hash: [0xa2; 32], ..signed.head }, ..signed.clone() },
            SignedHead { at_ms: AT_MS + 1, ..signed.clone() },
        ] {
            forged.verify(&roots).expect_err("another statement");
        }
    }

    #[test]
    fn names_and_spelling_of_a_line_are_part_of_the_interface() {
        let chain = vec![Certificate::from_bytes([0x30_u8, 0x0a]).expect("small")];
        let signed = Signed { signature: vec![0x01, 0xff], chain };
        let signed = SignedHead { head: Head { number: 17, hash: [0xa1; 32] }, at_ms: AT_MS, signed };
        let json = signed.outgoing().expect("a line").json;
        let expected = format!(
            r#"{{"signed_head":{{"number":17,"hash":"{}","time":"2026-09-21T14:13:20.123Z","signature":"01ff","chain":["300a"]}}}}"#,
            "a1".repeat(32)
        );
        assert_eq!(json, expected);
        for (of, to) in [
            ("20.123Z", "20.1230Z"),
            ("01ff", "01fF"),
            ("01ff", "01f"),
            ("300a", "30 0a"),
            ("\"hash\":\"", "\"hash\":\"A"),
            ("\"time\"", "\"more\":1,\"time\""),
            (",\"chain\":[\"300a\"]", ""),
            ("[\"300a\"]", "[\"\",\"\",\"\",\"\",\"\"]"),
        ] {
            assert!(json.contains(of), "{json} has no {of}");
            assert!(SignedHead::parse(json.replacen(of, to, 1).as_bytes()).is_err(), "{to}");
        }
    }
}
