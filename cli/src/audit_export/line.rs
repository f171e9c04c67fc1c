//! A record of the audit as one line of JSON.
//!
//! What must stay true: a line has everything that the hash of its record covers, so that whoever has the lines can verify them alone; each value has one
//! spelling, so that a line that was touched does not pass for the original.

use super::{Head, Outgoing};
use jiff::Timestamp;
use muster_model::{AuditRecord, Author, Principal};
use serde::{Deserialize, Serialize};

/// The longest line that is read: a record's texts are bounded to some hundred bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// One line. The names of its fields are part of the interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// From 1, without gaps.
    pub number: u64,
    /// As RFC 3339 writes it, in UTC, with milliseconds.
    pub time: String,
    /// Who: `user:alice`.
    pub principal: String,
    /// By which session or token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<u64>,
    /// From which address; empty where it is not known.
    pub from: String,
    /// The call: `Jobs.Submit`.
    pub rpc: String,
    /// What it was about.
    pub target: String,
    /// SHA-256 of what was asked, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_sha256: Option<String>,
    /// SHA-256 over the hash of the record before it and the fields above.
    pub hash: String,
}

/// Why a line is no record and no signed head.
#[derive(Debug, thiserror::Error)]
pub enum BadLine {
    /// It is not JSON, or has not these fields.
    #[error("it is no record: {0}")]
    Json(#[from] serde_json::Error),
    /// It begins as a signed head does, and is none.
    #[error("it is no signed head: {0}")]
    SignedHead(#[source] serde_json::Error),
    /// A field has a value that no record and no signed head has.
    #[error("its {0} is not as an export writes it")]
    Field(&'static str),
}

impl Line {
    /// The line of a record. `None` where its time is none that RFC 3339 can write.
    #[must_use]
    pub fn of(record: &AuditRecord) -> Option<Self> {
        let AuditRecord { number, at_ms, author, rpc, target, hash } = record;
        let Author { principal, credential, from, request_sha256 } = author;
        Some(Line {
            number: *number,
            time: time(*at_ms)?,
            principal: principal.to_string(),
            credential: *credential,
            from: from.clone(),
            rpc: rpc.clone(),
            target: target.clone(),
            request_sha256: request_sha256.as_ref().map(|digest| hex(digest)),
            hash: hex(hash),
        })
    }

    /// Reads a line back.
    ///
    /// # Errors
    /// When it is no record.
    pub fn parse(text: &[u8]) -> Result<AuditRecord, BadLine> {
        let Line { number, time: written, principal: name, credential, from, rpc, target, request_sha256, hash } =
            serde_json::from_slice(text)?;
        let at_ms = at_ms(&written).ok_or(BadLine::Field("time"))?;
        let principal = name.parse::<Principal>().ok().filter(|read| read.to_string() == name);
        let principal = principal.ok_or(BadLine::Field("principal"))?;
        let digest = request_sha256.map(|text| unhex(&text).ok_or(BadLine::Field("request_sha256"))).transpose()?;
        let author = Author { principal, credential, from, request_sha256: digest };
        let hash = unhex(&hash).ok_or(BadLine::Field("hash"))?;
        Ok(AuditRecord { number, at_ms, author, rpc, target, hash })
    }
}

impl Outgoing {
    /// A record that is ready to be sent.
    ///
    /// # Errors
    /// In words, when it cannot be written as a line.
    pub fn new(record: &AuditRecord) -> Result<Self, String> {
        let line = Line::of(record).ok_or_else(|| format!("record {} has no valid time", record.number))?;
        let json = serde_json::to_string(&line).map_err(|error| format!("record {}: {error}", record.number))?;
        let head = Head { number: record.number, hash: record.hash };
        Ok(Outgoing { head, time: line.time, json, is_record: true })
    }
}

/// As RFC 3339 writes it, in UTC, with milliseconds.
pub(super) fn time(at_ms: u64) -> Option<String> {
    let at = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
    Some(format!("{at:.3}"))
}

/// The milliseconds of a time, if it is as [`time`] writes it.
pub(super) fn at_ms(written: &str) -> Option<u64> {
    let at = written.parse::<Timestamp>().ok()?;
    let at_ms = u64::try_from(at.as_millisecond()).ok()?;
    (time(at_ms)? == written).then_some(at_ms)
}

/// Hexadecimal digits of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A hash from its hexadecimal digits, as [`hex`] writes them.
#[must_use]
pub fn unhex(text: &str) -> Option<[u8; 32]> {
    unhex_up_to(text, 32)?.try_into().ok()
}

/// At most so many bytes from their hexadecimal digits, as [`hex`] writes them.
pub(super) fn unhex_up_to(text: &str, bytes_max: usize) -> Option<Vec<u8>> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() > 2 * bytes_max || !text.len().is_multiple_of(2) || !text.bytes().all(is_digit) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::chain::example;
    use super::*;

    #[test]
    fn records_are_read_back_from_their_lines() {
        for record in example(12) {
            let outgoing = Outgoing::new(&record).expect("a line");
            assert!(!outgoing.json.contains('\n'));
            assert_eq!(Line::parse(outgoing.json.as_bytes()).expect("a record"), record);
        }
    }

    #[test]
    fn names_and_spelling_of_a_line_are_part_of_the_interface() {
        let record = &example(1)[0];
        let hash = hex(&record.hash);
        let expected = format!(
            r#"{{"number":1,"time":"2023-11-14T22:13:21.001Z","principal":"user:user-1","from":"10.0.0.9:4411","rpc":"Tenants.Apply","target":"tenant \"ä\\1\"","request_sha256":"{}","hash":"{hash}"}}"#,
            "07".repeat(32)
        );
        assert_eq!(Outgoing::new(record).expect("a line").json, expected);
    }

    #[test]
    fn another_spelling_is_no_record() {
        let json = Outgoing::new(&example(2)[1]).expect("a line").json;
        for (of, to) in [
            ("22.002Z", "22.002000Z"),
            ("22.002Z", "22.002+00:00"),
            ("user:user-2", "User:user-2"),
            ("\"hash\":\"", "\"hash\":\"A"),
            ("\"rpc\"", "\"more\":1,\"rpc\""),
            ("\"number\":2", "\"number\":2,\"number\":2"),
            ("\"from\":\"10.0.0.9:4411\",", ""),
            ("{", "["),
        ] {
            assert!(json.contains(of), "{json} has no {of}");
            assert!(Line::parse(json.replacen(of, to, 1).as_bytes()).is_err(), "{to}");
        }
    }
}
