//! The file of a backup.
//!
//! `MUSTERBK`, then parts: a length (32 bits, big-endian), a CRC-32 of the bytes, the bytes. The first part is the [`Head`], then come frames of the state store as
//! snapshots have them, and last a part with the SHA-256 of everything before it. What must stay true: what is read is what was written, or an error that says
//! where it is not.

use crate::consensus::Frame;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::Read;

const MAGIC: &[u8; 8] = b"MUSTERBK";
/// The layout of the file; a newer one is refused.
const FORM: u32 = 1;
/// A frame is some hundred KiB; one object may be larger.
const PART_BYTES_MAX: usize = 64 << 20;
const LENGTHS_BYTES: usize = 8;

/// What a backup is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Identity of the cluster.
    pub cluster: u64,
    /// The history of the cluster: a restore begins a higher one.
    pub incarnation: u64,
    /// Which versions can read it.
    pub feature_level: u32,
    /// The term of its last log entry.
    pub term: u64,
    /// The index of its last log entry.
    pub revision: u64,
    /// The state's time, in ms since the Unix epoch.
    pub state_ms: u64,
    /// The clock of the control node that made it, in ms since the Unix epoch.
    pub made_ms: u64,
    /// Which control node made it.
    pub made_by: u64,
    /// Its version of Muster.
    pub version: String,
    /// The control nodes, with their addresses.
    pub members: Vec<(u64, String)>,
}

/// What a whole file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Keys of the state store.
    pub pairs: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Why a file is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file cannot be read.
    #[error("reading the backup: {0}")]
    Io(#[from] std::io::Error),
    /// It is something else.
    #[error("this file is no backup of Muster")]
    Other,
    /// A newer version made it.
    #[error(
        "the backup has form {got}, and this version of muster reads form {FORM}: use the version that made it, or a later one"
    )]
    Newer {
        /// Its form.
        got: u32,
    },
    /// It ends early.
    #[error("the backup ends early, after {at} bytes: it was cut")]
    Cut {
        /// Where.
        at: u64,
    },
    /// It was changed.
    #[error("the backup is damaged at byte {at}: {why}")]
    Damaged {
        /// Where the part begins.
        at: u64,
        /// How it shows.
        why: String,
    },
}

/// Makes the bytes of a file.
pub(super) struct Writer {
    head: Option<Head>,
    hash: Sha256,
    ended: bool,
}

impl Writer {
    pub(super) fn new(head: Head) -> Self {
        Writer { head: Some(head), hash: Sha256::new(), ended: false }
    }

    /// How the file begins; once.
    pub(super) fn head(&mut self) -> Option<Vec<u8>> {
        let head = self.head.take()?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(part(&encoded(&(FORM, head))));
        self.hash.update(&bytes);
        Some(bytes)
    }

    pub(super) fn frame(&mut self, frame: &Frame) -> Vec<u8> {
        let bytes = part(&encoded(frame));
        self.hash.update(&bytes);
        bytes
    }

    /// How the file ends; once.
    pub(super) fn end(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        self.ended = true;
        Some(part(&self.hash.clone().finalize()))
    }
}

/// These are plain structures of numbers, texts and bytes: there is nothing that postcard refuses.
fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).unwrap_or_default()
}

fn part(bytes: &[u8]) -> Vec<u8> {
    let mut part = Vec::with_capacity(LENGTHS_BYTES + bytes.len());
    // Far below 4 GiB: a frame holds one page, and an object is bounded.
    part.extend((bytes.len() as u32).to_be_bytes());
    part.extend(crc32fast::hash(bytes).to_be_bytes());
    part.extend(bytes);
    part
}

/// The file of these parts, whatever they hold.
pub(crate) fn file_of(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(parts.iter().flat_map(|bytes| part(bytes)));
    let hash = Sha256::digest(&bytes);
    bytes.extend(part(&hash));
    bytes
}

/// The parts of a small backup.
pub(crate) fn example_parts() -> Vec<Vec<u8>> {
    let head = Head {
        cluster: 7,
        incarnation: 1,
        feature_level: 6,
        term: 3,
        revision: 40,
        state_ms: 1_000,
        made_ms: 2_000,
        made_by: 1,
        version: "0.1.0".to_owned(),
        members: vec![(1, "127.0.0.1:7400".to_owned())],
    };
    let pairs = vec![(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())];
    vec![encoded(&(FORM, head)), encoded(&Frame::Pairs { space: 0, pairs }), encoded(&Frame::End { pairs: 2 })]
}

/// Reads a file from its beginning.
pub struct Reader<R> {
    from: R,
    head: Head,
    hash: Sha256,
    at: u64,
    pairs: u64,
}

impl<R: Read> Reader<R> {
    /// Reads what the backup is of.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn open(mut from: R) -> Result<Self, BackupError> {
        let mut magic = [0; MAGIC.len()];
        match from.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => {}
            Ok(()) => return Err(BackupError::Other),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(BackupError::Other),
            Err(error) => return Err(error.into()),
        }
        let (mut hash, mut at) = (Sha256::new(), MAGIC.len() as u64);
        hash.update(magic);
        let bytes = read_part(&mut from, &mut at, Some(&mut hash))?;
        let damaged = |why: postcard::Error| BackupError::Damaged { at: MAGIC.len() as u64, why: why.to_string() };
        let (form, rest): (u32, _) = postcard::take_from_bytes(&bytes).map_err(damaged)?;
        if form != FORM {
            return Err(BackupError::Newer { got: form });
        }
        let head = postcard::from_bytes(rest).map_err(damaged)?;
        Ok(Reader { from, head, hash, at, pairs: 0 })
    }

    /// What the backup is of.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next frame; `None` after the last one, once the whole file has proved to be what was written.
    ///
    /// # Errors
    /// [`BackupError`].
    pub(crate) fn frame(&mut self) -> Result<Option<Frame>, BackupError> {
        let at = self.at;
        let bytes = read_part(&mut self.from, &mut self.at, Some(&mut self.hash))?;
        let frame =
            postcard::from_bytes(&bytes).map_err(|error| BackupError::Damaged { at, why: error.to_string() })?;
        if let Frame::Pairs { pairs, .. } = &frame {
            self.pairs += pairs.len() as u64;
        }
        if let Frame::End { .. } = frame {
            self.check_end()?;
        }
        Ok(Some(frame))
    }

    fn check_end(&mut self) -> Result<(), BackupError> {
        let at = self.at;
        let written = read_part(&mut self.from, &mut self.at, None)?;
        let damaged = |why: &str| Err(BackupError::Damaged { at, why: why.to_owned() });
        if written != self.hash.clone().finalize().as_slice() {
            return damaged("its SHA-256 is another one");
        }
        match self.from.read(&mut [0])? {
            0 => Ok(()),
            _ => damaged("something follows its end"),
        }
    }

    /// Reads it to its end.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn verify(mut self) -> Result<(Head, Summary), BackupError> {
        loop {
            let at = self.at;
            if let Some(Frame::End { pairs }) = self.frame()? {
                return match pairs == self.pairs {
                    true => Ok((self.head, Summary { pairs, bytes: self.at })),
                    false => Err(BackupError::Damaged {
                        at,
                        why: format!("{pairs} keys were written, {} are there", self.pairs),
                    }),
                };
            }
        }
    }
}

/// Reads a part at `at`, and moves on.
fn read_part(from: &mut impl Read, at: &mut u64, hash: Option<&mut Sha256>) -> Result<Vec<u8>, BackupError> {
    let begin = *at;
    let cut = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => BackupError::Cut { at: begin },
        _ => BackupError::Io(error),
    };
    let (mut length, mut crc) = ([0; 4], [0; 4]);
    from.read_exact(&mut length).map_err(cut)?;
    from.read_exact(&mut crc).map_err(cut)?;
    let count = u32::from_be_bytes(length) as usize;
    if count > PART_BYTES_MAX {
        return Err(BackupError::Damaged { at: begin, why: format!("a part of {count} bytes") });
    }
    // Not more than is there: the length may be damaged.
    let mut bytes = Vec::new();
    from.take(count as u64).read_to_end(&mut bytes)?;
    if bytes.len() < count {
        return Err(BackupError::Cut { at: begin });
    }
    if crc32fast::hash(&bytes) != u32::from_be_bytes(crc) {
        return Err(BackupError::Damaged { at: begin, why: "its checksum is another one".to_owned() });
    }
    if let Some(hash) = hash {
        hash.update(length);
        hash.update(crc);
        hash.update(&bytes);
    }
    *at = begin + (LENGTHS_BYTES + count) as u64;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let parts = example_parts();
        postcard::from_bytes::<(u32, Head)>(&parts[0]).expect("a head").1
    }

    fn written() -> Vec<u8> {
        let mut writer = Writer::new(head());
        let mut bytes = writer.head().expect("the head");
        let pairs = vec![(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())];
        bytes.extend(writer.frame(&Frame::Pairs { space: 0, pairs }));
        bytes.extend(writer.frame(&Frame::End { pairs: 2 }));
        bytes.extend(writer.end().expect("the end"));
        assert!(writer.end().is_none() && writer.head().is_none());
        let parts = example_parts();
        assert_eq!(bytes, file_of(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        bytes
    }

    #[test]
    fn a_backup_is_read_as_it_was_written() {
        let bytes = written();
        let (read, summary) = Reader::open(&bytes[..]).and_then(Reader::verify).expect("a backup");
        assert_eq!((read, summary), (head(), Summary { pairs: 2, bytes: bytes.len() as u64 }));
    }

    #[test]
    fn a_backup_that_was_cut_or_changed_anywhere_is_refused() {
        let bytes = written();
        for end in 0..bytes.len() {
            assert!(Reader::open(&bytes[..end]).and_then(Reader::verify).is_err(), "cut at {end}");
        }
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert!(Reader::open(&changed[..]).and_then(Reader::verify).is_err(), "changed at {place}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Reader::open(&longer[..]).and_then(Reader::verify).is_err());
        let without_a_frame = {
            let mut writer = Writer::new(head());
            let mut bytes = writer.head().expect("the head");
            bytes.extend(writer.frame(&Frame::End { pairs: 2 }));
            bytes.extend(writer.end().expect("the end"));
            bytes
        };
        let why =
            Reader::open(&without_a_frame[..]).and_then(Reader::verify).expect_err("2 keys are missing").to_string();
        assert!(why.contains("2 keys were written, 0 are there"), "{why}");
    }
}
