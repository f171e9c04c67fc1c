//! Stored forms: what is on disk, in snapshots and copies, and what control nodes send each other.
//!
//! Bytes whose checksum is wrong are refused before they are read, so the targets put the right one under what they are given. What must stay true: what is
//! read in an old form is written in the newest and read as the same.

use super::{headed, postcard_again};
use crate::target::{Target, reached};
use muster_control_core::authz::Asks;
use muster_control_core::{Command, audit_link};
use muster_control_server::backup::Reader;
use muster_control_server::consensus::fuzzing::{FORM, KINDS};
use muster_control_server::copied;
use muster_control_server::event_export::Export;
use muster_control_server::fuzzing::backup_file;
use muster_model::{AuditRecord, Object, Revision, Selector};
use muster_proto::v1;
use muster_proto::v1::copied_change::Change as Copied;
use prost::Message;

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "stored-object",
        what: "an object of the state: its form, and postcard's bytes",
        words: &["\x09", "\x04", "\x05\x01", "\x08train.py"],
        reaches: &["object"],
        run: object,
    },
    Target {
        name: "stored-selector",
        what: "a selector in a stored job",
        words: &["\x00\x02", "\x01\x02", "\x02", "\x02\x02\x02\x02"],
        reaches: &["Selector"],
        run: selector,
    },
    Target {
        name: "stored-commands",
        what: "commands of a log entry",
        words: &["\x01", "\x01\x00", "\x08research"],
        reaches: &["command"],
        run: commands,
    },
    Target {
        name: "stored-refusal",
        what: "a record of what was refused",
        words: &["\x01", "\x05alice"],
        reaches: &["AuditRecord"],
        run: refusal,
    },
    Target {
        name: "peer-message",
        what: "what control nodes send each other, and what their logs keep: the first line names it, form and bytes follow",
        words: &["append\n", "vote\n", "forward\n", "snapshot-frame\n", "log-entry\n", "\x09", "\x04"],
        reaches: &["append", "heartbeat", "vote", "pre-vote", "forward", "identify", "snapshot-frame"],
        run: peer_message,
    },
    Target {
        name: "backup",
        what: "the file of a backup: its parts, each after its length in two bytes",
        words: &["\x00\x01", "\x01", "MUSTERBK", "\x050.1.0"],
        reaches: &["backup"],
        run: backup,
    },
    Target {
        name: "event-export",
        what: "parts of a history, as the command reads them from a control node, each after its length; revisions up to the last number",
        words: &["\x08\x01", "\x18\x01", "\x38\x01", "\x2a\x02"],
        reaches: &["line", "part that follows"],
        run: event_export,
    },
];

/// The bytes with their checksum, as they are stored.
#[must_use]
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    [bytes, &crc32fast::hash(bytes).to_le_bytes()].concat()
}

/// An object in the newest form, without its checksum.
#[must_use]
pub fn object_bytes(object: &Object) -> Vec<u8> {
    let body = postcard::to_stdvec(object).unwrap_or_else(|error| panic!("{object:?} cannot be written: {error}"));
    [&[FORM], body.as_slice()].concat()
}

fn object(bytes: &[u8]) {
    let Ok(object) = copied::decode(&sealed(bytes)) else { return };
    reached("object");
    let again = copied::decode(&sealed(&object_bytes(&object)));
    assert_eq!(again.ok().as_ref(), Some(&object));
    let _ = object.key().to_bytes();
}

fn selector(bytes: &[u8]) {
    if let Some(selector) = postcard_again::<Selector>(bytes) {
        // What was stored by hand may be longer than a text; showing it must do no harm.
        let _ = selector.to_string().parse::<Selector>();
    }
}

fn commands(bytes: &[u8]) {
    for command in postcard_again::<Vec<Command>>(bytes).unwrap_or_default() {
        reached("command");
        let _ = Asks::of(&command);
        let _ = command.parts();
    }
}

fn refusal(bytes: &[u8]) {
    if let Some(record) = postcard_again::<AuditRecord>(bytes) {
        assert_eq!(audit_link(&record.hash, &record), audit_link(&record.hash, &record.clone()));
    }
}

fn peer_message(bytes: &[u8]) {
    let Some((name, content)) = headed(bytes) else { return };
    let Some((kind, read)) = KINDS.iter().find(|(known, _)| *known == name) else { return };
    let Some(newest) = read(&sealed(content)) else { return };
    reached(kind);
    assert_eq!(read(&newest).as_ref(), Some(&newest), "a {name} is written otherwise than it was read");
}

/// Parts, each after its length.
#[must_use]
pub fn parted(parts: &[Vec<u8>]) -> Vec<u8> {
    let part = |part: &Vec<u8>| [&(part.len() as u16).to_be_bytes(), part.as_slice()].concat();
    parts.iter().flat_map(part).collect()
}

/// Checksums of parts and of the whole are put right.
fn backup(bytes: &[u8]) {
    let verify = |bytes: &[u8]| Reader::open(bytes).and_then(Reader::verify);
    let _ = verify(bytes);
    let (mut parts, mut rest) = (Vec::new(), bytes);
    while let Some((length, content)) = rest.split_first_chunk::<2>() {
        let (part, after) = content.split_at(usize::from(u16::from_be_bytes(*length)).min(content.len()));
        parts.push(part);
        rest = after;
    }
    let file = backup_file(&parts);
    let Ok((head, summary)) = verify(&file) else { return };
    reached("backup");
    assert_eq!(summary.bytes, file.len() as u64, "{head:?}");
    assert!(verify(&file[..file.len() - 1]).is_err(), "it was cut");
}

/// The parts of one call. Checksums of objects are put right.
fn event_export(mut bytes: &[u8]) {
    let mut export = Export::new(Revision(0), 60_000);
    let _ = export.request(false, v1::Consistency::Linearizable);
    let mut last = export.at();
    while let Ok(mut part) = v1::CopyHistoryPart::decode_length_delimited(&mut bytes) {
        part.objects.iter_mut().for_each(|object| *object = sealed(object));
        for change in part.changes.iter_mut().filter_map(|change| change.change.as_mut()) {
            if let Copied::Put(object) | Copied::RetiredJob(object) = change {
                *object = sealed(object);
            }
        }
        let has_begun = export.has_begun();
        let Ok(lines) = export.take(part) else { return };
        if has_begun {
            reached("part that follows");
        }
        for line in &lines {
            reached("line");
            serde_json::to_string(line).unwrap_or_else(|error| panic!("{line:?} cannot be written: {error}"));
        }
        assert!(!has_begun || export.at() >= last, "the log goes back");
        last = export.at();
        if bytes.is_empty() {
            return;
        }
    }
}
