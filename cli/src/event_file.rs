//! A file for an event log, plain or compressed.
//!
//! What must stay true: a disk that is full shows as an error and not as a log that breaks off.

use crate::failure::Failure;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Where an event log goes.
pub enum EventFile {
    /// As it is.
    Plain(BufWriter<File>),
    /// Compressed.
    Zipped(GzEncoder<BufWriter<File>>),
}

impl EventFile {
    /// Compressed when the name ends in `.gz`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| Failure::io(format!("writing {}", path.display()), error))?;
        let plain = BufWriter::new(file);
        Ok(match path.extension().is_some_and(|ending| ending == "gz") {
            true => EventFile::Zipped(GzEncoder::new(plain, Compression::default())),
            false => EventFile::Plain(plain),
        })
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// When the disk is full, for example.
    pub fn finish(self) -> std::io::Result<()> {
        match self {
            EventFile::Plain(mut file) => file.flush(),
            EventFile::Zipped(file) => file.finish()?.flush(),
        }
    }
}

impl Write for EventFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            EventFile::Plain(file) => file.write(bytes),
            EventFile::Zipped(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            EventFile::Plain(file) => file.flush(),
            EventFile::Zipped(file) => file.flush(),
        }
    }
}
