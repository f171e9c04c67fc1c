//! An export to a file of JSON lines, and such files read back.
//!
//! What must stay true: the file itself says how far the export has come, by its last whole line, a record or a signed head; what a crash left behind that
//! is cut off; a batch is on the disk before the next one is asked for; one process writes a file at a time.

use super::line::{BadLine, LINE_BYTES_MAX};
use super::position::sync_folder;
use super::{Head, Line, Outgoing, SignedHead, json_lines};
use crate::failure::Failure;
use muster_model::AuditRecord;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const OWNER_ONLY: u32 = 0o600;

/// A file that is written to.
#[derive(Debug)]
pub struct AuditFile {
    file: File,
    path: PathBuf,
    length: u64,
    /// The last line is a signed head.
    ends_signed: bool,
}

impl AuditFile {
    /// Opens or makes it, and gives the last record in it, and how many bytes of a line that was not whole were cut off.
    ///
    /// # Errors
    /// When another export has it, its last line is no record, or the disk fails.
    pub fn open(path: &Path) -> Result<(Self, Option<Head>, u64), Failure> {
        let io = |error| Failure::io(format!("opening {}", path.display()), error);
        let opened = File::options().read(true).append(true).create(true).mode(OWNER_ONLY).open(path);
        let mut file = opened.map_err(io)?;
        if file.try_lock().is_err() {
            let problem = format!("another process writes {}", path.display());
            return Err(Failure::Refused(format!("{problem}; stop it, or name another file")));
        }
        let (length, last) = last_line(&mut file).map_err(io)?;
        let torn = file.metadata().map_err(io)?.len() - length;
        if torn > 0 {
            file.set_len(length).map_err(io)?;
        }
        file.sync_all().and_then(|()| sync_folder(path)).map_err(io)?;
        let ends_signed = last.as_ref().is_some_and(|line| SignedHead::is_in(line));
        let last = last.map(|line| head_of(&line)).transpose().map_err(|bad| {
            let problem = format!("the last line of {} is no record of the audit: {bad}", path.display());
            Failure::Refused(format!("{problem}; look at it with `muster audit verify --file`, or name another file"))
        })?;
        Ok((AuditFile { file, path: path.to_owned(), length, ends_signed }, last, torn))
    }

    /// Whether the last record in it was signed when it was opened.
    #[must_use]
    pub fn ends_signed(&self) -> bool {
        self.ends_signed
    }

    /// Appends records; they are on the disk when it returns.
    ///
    /// # Errors
    /// When the disk is full or fails. What was written of the batch is taken back, or is cut off the next time.
    pub fn append(&mut self, batch: &[Outgoing]) -> Result<(), Failure> {
        let text = json_lines(batch);
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.length += text.len() as u64,
            Err(error) => {
                let _ = self.file.set_len(self.length);
                return Err(Failure::io(format!("writing {}", self.path.display()), error));
            }
        }
        Ok(())
    }
}

/// The last record up to a line: that of a signed head is the one before it.
fn head_of(line: &[u8]) -> Result<Head, BadLine> {
    if SignedHead::is_in(line) {
        return SignedHead::parse(line).map(|signed| signed.head);
    }
    Line::parse(line).map(|record| Head { number: record.number, hash: record.hash })
}

/// Where the last whole line ends, and its text without the end.
fn last_line(file: &mut File) -> std::io::Result<(u64, Option<Vec<u8>>)> {
    // Two lines: one that is whole, and one that may not be.
    let kept = 2 * (LINE_BYTES_MAX as u64 + 1);
    let length = file.metadata()?.len();
    let from = length.saturating_sub(kept);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    Read::take(file, kept).read_to_end(&mut tail)?;
    let is_end = |byte: &u8| *byte == b'\n';
    let Some(end) = tail.iter().rposition(is_end) else {
        let far_too_long = || std::io::Error::new(ErrorKind::InvalidData, "it is no export: its last line has no end");
        return if from == 0 { Ok((0, None)) } else { Err(far_too_long()) };
    };
    let start = tail[..end].iter().rposition(is_end).map_or(0, |before| before + 1);
    Ok((from + end as u64 + 1, Some(tail[start..end].to_vec())))
}

/// Reads the records and signed heads of a file one after another.
pub struct Records {
    reader: BufReader<File>,
    line: u64,
}

/// What a file has next.
pub enum Next {
    /// A record.
    Record(Box<AuditRecord>),
    /// What a control node has signed about the record before it.
    Signed(Box<SignedHead>),
    /// A line that is none of both.
    Bad(BadLine),
    /// The file ends within a line, as after a crash.
    Torn,
    /// The file ends.
    End,
}

impl Records {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|error| Failure::io(format!("reading {}", path.display()), error))?;
        Ok(Records { reader: BufReader::new(file), line: 0 })
    }

    /// The number of the line that was read last.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Reads a line.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn read(&mut self) -> std::io::Result<Next> {
        let mut line = Vec::new();
        let read = self.reader.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        self.line += 1;
        Ok(match line.pop() {
            None => Next::End,
            Some(b'\n') if SignedHead::is_in(&line) => match SignedHead::parse(&line) {
                Ok(signed) => Next::Signed(Box::new(signed)),
                Err(bad) => Next::Bad(bad),
            },
            Some(b'\n') => match Line::parse(&line) {
                Ok(record) => Next::Record(Box::new(record)),
                Err(bad) => Next::Bad(bad),
            },
            Some(_) if read > LINE_BYTES_MAX => Next::Bad(BadLine::Field("length")),
            Some(_) => Next::Torn,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::example;
    use super::*;
    use muster_runtime::pki::Signed;

    fn outgoing(count: u64) -> Vec<Outgoing> {
        example(count).iter().map(|record| Outgoing::new(record).expect("a line")).collect()
    }

    fn numbers(path: &Path) -> Vec<u64> {
        let mut records = Records::open(path).expect("a file");
        let mut numbers = Vec::new();
        while let Next::Record(record) = records.read().expect("read") {
            numbers.push(record.number);
        }
        numbers
    }

    #[test]
    fn an_export_goes_on_after_the_last_whole_line_wherever_the_file_was_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let all = outgoing(3);
        let whole = json_lines(&all);
        for cut in (0..whole.len()).step_by(23).chain(whole.len() - 2..=whole.len()) {
            std::fs::write(&path, &whole.as_bytes()[..cut]).expect("a file");
            let lines = whole.as_bytes()[..cut].iter().filter(|byte| **byte == b'\n').count();
            let (mut file, last, torn) = AuditFile::open(&path).expect("it goes on");
            assert_eq!(last, lines.checked_sub(1).map(|at| all[at].head), "cut at {cut}");
            assert_eq!(torn as usize, cut - json_lines(&all[..lines]).len());
            file.append(&all[lines..]).expect("appended");
            assert_eq!(std::fs::read_to_string(&path).expect("a file"), whole);
        }
        assert_eq!(numbers(&path), [1, 2, 3]);
    }

    #[test]
    fn an_export_goes_on_after_the_record_of_a_signed_head() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let all = outgoing(3);
        let signed = Signed { signature: vec![7; 70], chain: Vec::new() };
        let signed = SignedHead { head: all[1].head, at_ms: 1_700_000_000_000, signed };
        let lines = [all[0].clone(), all[1].clone(), signed.outgoing().expect("a line")];
        std::fs::write(&path, json_lines(&lines)).expect("a file");
        let (mut file, last, torn) = AuditFile::open(&path).expect("it goes on");
        assert_eq!((last, torn, file.ends_signed()), (Some(all[1].head), 0, true));
        file.append(&all[2..]).expect("appended");
        drop(file);
        let (file, last, _) = AuditFile::open(&path).expect("it goes on");
        assert_eq!((last, file.ends_signed()), (Some(all[2].head), false));
        drop(file);
        let mut records = Records::open(&path).expect("a file");
        assert!(matches!(records.read().expect("read"), Next::Record(_)));
        assert!(matches!(records.read().expect("read"), Next::Record(_)));
        assert!(matches!(records.read().expect("read"), Next::Signed(read) if *read == signed));
        assert!(matches!(records.read().expect("read"), Next::Record(_)));
        assert!(matches!(records.read().expect("read"), Next::End));
        std::fs::write(&path, "{\"signed_head\":{\"number\":1}}\n").expect("a file");
        let bad = Records::open(&path).expect("a file").read().expect("read");
        assert!(matches!(&bad, Next::Bad(bad) if bad.to_string().contains("no signed head")));
        AuditFile::open(&path).expect_err("it is no export");
    }

    #[test]
    fn one_export_writes_a_file_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let (first, ..) = AuditFile::open(&path).expect("the first");
        assert!(AuditFile::open(&path).expect_err("the second").to_string().contains("another process writes"));
        drop(first);
        AuditFile::open(&path).expect("after the first");
    }

    #[test]
    fn a_file_of_something_else_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notes");
        for text in ["shopping\n".to_owned(), "x".repeat(3 * LINE_BYTES_MAX)] {
            std::fs::write(&path, &text).expect("a file");
            AuditFile::open(&path).expect_err("it is no export");
            assert_eq!(std::fs::read_to_string(&path).expect("a file"), text);
        }
    }

    #[test]
    fn a_line_that_is_none_and_one_that_is_not_whole_are_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("a file");
            Records::open(&path).expect("a file").read().expect("read")
        };
        assert!(matches!(read(""), Next::End));
        assert!(matches!(read("{\"number\":1"), Next::Torn));
        assert!(matches!(read("{\"number\":1\n"), Next::Bad(_)));
        assert!(matches!(read(&"x".repeat(2 * LINE_BYTES_MAX)), Next::Bad(_)));
    }
}
