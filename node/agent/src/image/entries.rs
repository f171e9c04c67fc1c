//! The entries of a layer's archive, read with a bound on everything that is kept in memory.
//!
//! What must stay true: names and links come as they are written, and nobody has checked them; an extension that says more than a bound is refused before it is
//! read; an archive that ends in the middle of an entry is an error.

use std::io::{self, Read};
use tar::{EntryType, Header};

/// Bytes of one extension: names of the longest path and a few attributes.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;
const BLOCK: usize = 512;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Folder,
    Symlink,
    HardLink,
    /// A device, a pipe, or something that this version does not know.
    Other,
}

/// One entry; its bytes are read from [`Entries`] next.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) size: u64,
    /// Seconds since the Unix epoch.
    pub(super) changed_s: u64,
}

/// Reads an archive.
pub(super) struct Entries<R> {
    input: R,
    /// Of the present entry: bytes not read yet, and those that fill its last block.
    left: u64,
    fill: u64,
}

/// What extensions say of the next entry.
#[derive(Default)]
struct Said {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

fn wrong(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

impl<R: Read> Entries<R> {
    pub(super) fn new(input: R) -> Self {
        Entries { input, left: 0, fill: 0 }
    }

    /// What is left of the input, behind the archive.
    pub(super) fn into_input(self) -> R {
        self.input
    }

    /// The next entry; none at the end.
    pub(super) fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut said = Said::default();
        loop {
            self.skip_rest()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size()?;
            match header.entry_type() {
                EntryType::GNULongName => said.path = Some(without_nul(self.extension(size)?)),
                EntryType::GNULongLink => said.link = Some(without_nul(self.extension(size)?)),
                EntryType::XHeader => pax(&self.extension(size)?, &mut said)?,
                EntryType::XGlobalHeader => drop(self.extension(size)?),
                kind => return self.entry(&header, kind, said).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &Header, kind: EntryType, said: Said) -> io::Result<Entry> {
        let kind = match kind {
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Directory => Kind::Folder,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Link => Kind::HardLink,
            _ => Kind::Other,
        };
        // Only files have content, whatever the header of another says.
        let has_content = kind == Kind::File;
        let size = if has_content { said.size.unwrap_or(header.entry_size()?) } else { 0 };
        self.expect(size);
        Ok(Entry {
            path: said.path.unwrap_or_else(|| header.path_bytes().into_owned()),
            link: said.link.or_else(|| header.link_name_bytes().map(|name| name.into_owned())).unwrap_or_default(),
            kind,
            mode: header.mode()?,
            size,
            changed_s: header.mtime().unwrap_or(0),
        })
    }

    fn expect(&mut self, size: u64) {
        self.left = size;
        // A size that no archive can have is refused by its bound.
        self.fill = size.checked_next_multiple_of(BLOCK as u64).map_or(0, |end| end - size);
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        let rest = self.left.saturating_add(self.fill);
        (self.left, self.fill) = (0, 0);
        let skipped = io::copy(&mut (&mut self.input).take(rest), &mut io::sink())?;
        if skipped < rest { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// None at the end: blocks of zeroes, or nothing.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut block = [0; BLOCK];
        let mut read = 0;
        while read < BLOCK {
            match self.input.read(&mut block[read..])? {
                0 if read == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => read += more,
            }
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block).clone();
        // Its own eight bytes count as spaces.
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let expected = sum(&block[..148]) + 8 * u32::from(b' ') + sum(&block[156..]);
        if header.cksum().ok() != Some(expected) {
            return Err(wrong("a header of the archive is damaged"));
        }
        Ok(Some(header))
    }

    fn extension(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > EXTENSION_BYTES_MAX {
            return Err(wrong(format!("an extension of the archive has {size} bytes")));
        }
        self.expect(size);
        let mut content = vec![0; size as usize];
        self.read_exact(&mut content)?;
        Ok(content)
    }
}

impl<R: Read> Read for Entries<R> {
    /// The bytes of the present entry.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let read = self.input.read(&mut into[..most])?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

fn without_nul(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&0) {
        name.pop();
    }
    name
}

/// Records `LENGTH KEY=VALUE\n`, where the length counts the whole record.
fn pax(mut records: &[u8], said: &mut Said) -> io::Result<()> {
    let bad = || wrong("an extension of the archive is damaged");
    while !records.is_empty() {
        let space = records.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
        let length = std::str::from_utf8(&records[..space]).ok().and_then(|text| text.parse::<usize>().ok());
        let length = length.filter(|length| *length > space + 1 && *length <= records.len()).ok_or_else(bad)?;
        let record = records[space + 1..length].strip_suffix(b"\n").ok_or_else(bad)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => said.path = Some(value.to_vec()),
            b"linkpath" => said.link = Some(value.to_vec()),
            b"size" => {
                let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                said.size = Some(size.ok_or_else(bad)?);
            }
            _ => {}
        }
        records = &records[length..];
    }
    Ok(())
}
