//! The file that says how far an export to a receiver has come.
//!
//! What must stay true: it never names a record that the receiver does not have, and is replaced whole and durably: a crash leaves the old position or the
//! new one.

use super::Head;
use super::line::{hex, unhex};
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const OWNER_ONLY: u32 = 0o600;
/// A position has some hundred bytes.
const BYTES_MAX: u64 = 4 << 10;

/// The file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    number: u64,
    hash: String,
}

/// Reads a position; none where there is no such file.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn read(path: &Path) -> Result<Option<Head>, Failure> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() != ErrorKind::InvalidData => {
            return Err(Failure::io(format!("reading {}", path.display()), error));
        }
        _ => {}
    }
    let written = serde_json::from_str::<Written>(&text).ok();
    let head = written.and_then(|written| Some(Head { number: written.number, hash: unhex(&written.hash)? }));
    head.map(Some).ok_or_else(|| {
        let fix = "give the file of an earlier export; or remove it, and say with --from which record is next";
        Failure::field("position", format!("{} is no position", path.display()), fix)
    })
}

/// Writes a position.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, head: Head) -> Result<(), Failure> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = PathBuf::from(draft);
    let written = Written { number: head.number, hash: hex(&head.hash) };
    let write = || {
        match std::fs::remove_file(&draft) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(OWNER_ONLY).open(&draft)?;
        writeln!(file, "{}", serde_json::to_string(&written)?)?;
        file.sync_all()?;
        std::fs::rename(&draft, path)?;
        sync_folder(path)
    };
    write().map_err(|error| Failure::io(format!("writing {}", path.display()), error))
}

/// Makes a file's name in its folder durable.
///
/// # Errors
/// When the disk fails.
pub(super) fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_position_is_read_back_and_is_nobody_elses_to_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.position");
        assert_eq!(read(&path).expect("nothing yet"), None);
        for number in [7, 19] {
            let head = Head { number, hash: [0xa1; 32] };
            // What a crash has left.
            std::fs::write(folder.path().join("audit.position.new"), "half").expect("a file");
            write(&path, head).expect("written");
            assert_eq!(read(&path).expect("a position"), Some(head));
        }
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, OWNER_ONLY);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn another_file_is_not_taken_for_a_position() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.position");
        for text in [&b""[..], b"17", b"{\"number\":17}", b"{\"number\":17,\"hash\":\"00\"}", &[0xff, 0xfe]] {
            std::fs::write(&path, text).expect("a file");
            let refused = read(&path).expect_err("it is none").to_string();
            assert!(refused.contains("is no position") && refused.contains("--from"), "{refused}");
        }
    }
}
