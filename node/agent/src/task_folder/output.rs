//! A task's output on disk: its beginning and its end, within a bound.
//!
//! The file of the stream holds the first quarter of the bound. What comes after goes into segments, files beside it that are named by
//! the place of their first byte (`stdout.4194304`), of three eighths each; the last two are kept. What must stay true: a byte is
//! told by its place in the whole stream, so a reader sees what was dropped, and how much; the files of a stream are never larger
//! than the bound and one piece; a disk that refuses loses output and stops nothing. The task may put anything into the folder: only plain files that
//! have this name alone are read, and only files that were not there before are written.

use super::{Stream, TaskFolder};
use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Segments that are kept: one that is being written, and the whole one before it.
const SEGMENTS_MAX: usize = 2;
/// A segment may be dropped while it is being opened to be read; by then there are newer ones.
const READ_TRIES: u32 = 5;

/// Writes one stream. It is the only writer.
#[derive(Debug)]
pub(crate) struct Writer {
    folder: TaskFolder,
    stream: Stream,
    head_max: u64,
    segment_max: u64,
    /// The file that is being written: its first byte's place, and how much is in it.
    open: Option<(File, u64)>,
    /// Segments that are there, by the place and length of each.
    segments: VecDeque<(u64, u64)>,
    /// The head is full, or was given up.
    past_head: bool,
    /// How many bytes have come.
    position: u64,
    dropped: u64,
}

impl Writer {
    /// At most `bytes_max` bytes are kept.
    pub(crate) fn new(folder: &TaskFolder, stream: Stream, bytes_max: u64) -> Self {
        let head_max = bytes_max / 4;
        let segment_max = ((bytes_max - head_max) / SEGMENTS_MAX as u64).max(1);
        let head = || create(&folder.log(stream)).ok();
        let open = (head_max > 0).then(head).flatten().map(|file| (file, 0));
        let past_head = open.is_none();
        Writer {
            folder: folder.clone(),
            stream,
            head_max,
            segment_max,
            open,
            segments: VecDeque::new(),
            past_head,
            position: 0,
            dropped: 0,
        }
    }

    /// Bytes that are not on disk any more, or never were.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes what came next.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room();
            let part = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
            self.write_part(part);
            bytes = &bytes[part.len()..];
        }
    }

    /// How much the open file still takes; opens the next one when it takes nothing.
    fn room(&mut self) -> u64 {
        let most = if self.past_head { self.segment_max } else { self.head_max };
        match &self.open {
            Some((_, held)) if *held < most => return most - held,
            _ => {}
        }
        self.past_head = true;
        self.open = None;
        if let Ok(file) = create(&self.folder.segment(self.stream, self.position)) {
            self.open = Some((file, 0));
            self.segments.push_back((self.position, 0));
            while self.segments.len() > SEGMENTS_MAX {
                self.drop_oldest();
            }
        }
        self.segment_max
    }

    fn drop_oldest(&mut self) {
        let Some((place, held)) = self.segments.pop_front() else { return };
        self.dropped += held;
        // One that stays is found by readers; it holds what it says.
        let _ = std::fs::remove_file(self.folder.segment(self.stream, place));
    }

    fn write_part(&mut self, part: &[u8]) {
        let long = part.len() as u64;
        let written = self.open.as_mut().is_some_and(|(file, _)| file.write_all(part).is_ok());
        self.position += long;
        if !written {
            // A full disk must not block the task: this much is lost, and the next part tries again in a file of its own.
            self.open = None;
            self.past_head = true;
            self.dropped += long;
            return;
        }
        if let Some((_, held)) = &mut self.open {
            *held += long;
        }
        if self.past_head
            && let Some((_, held)) = self.segments.back_mut()
        {
            *held += long;
        }
    }
}

/// A file that was not there before: whatever the task has put at the path is not opened.
fn create(path: &Path) -> io::Result<File> {
    File::options().create_new(true).append(true).open(path)
}

/// Opens a file of a stream. What is no plain file with this name alone is as good as none: it may be a link to any file of the host.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(io::ErrorKind::NotFound.into()),
        other => other?,
    };
    if is_output(&file.metadata()?) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn is_output(what: &Metadata) -> bool {
    what.is_file() && what.nlink() == 1
}

/// At most `bytes_max` bytes from `offset`, or from the first place behind it of which there is something; and that place.
pub(crate) fn read(folder: &TaskFolder, stream: Stream, offset: u64, bytes_max: usize) -> io::Result<(u64, Vec<u8>)> {
    let mut tries = 0;
    loop {
        let Some((place, start, path)) = find(folder, stream, offset)? else { return Ok((offset, Vec::new())) };
        match open(&path) {
            Ok(file) => {
                let mut data = vec![0; bytes_max];
                let read = file.read_at(&mut data, start - place)?;
                data.truncate(read);
                return Ok((start, data));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < READ_TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The file that holds `offset`, or else the next one behind it: the place of its first byte, where to read, and its path.
fn find(folder: &TaskFolder, stream: Stream, offset: u64) -> io::Result<Option<(u64, u64, PathBuf)>> {
    let mut best: Option<(u64, u64, PathBuf)> = None;
    for (place, path) in files(folder, stream)? {
        let Ok(what) = std::fs::symlink_metadata(&path) else { continue };
        // The file holds nothing from `offset` on.
        if !is_output(&what) || what.len() == 0 || place + what.len() <= offset {
            continue;
        }
        let start = place.max(offset);
        if best.as_ref().is_none_or(|(_, found, _)| start < *found) {
            best = Some((place, start, path));
        }
    }
    Ok(best)
}

/// The files of a stream, by the place of their first byte.
fn files(folder: &TaskFolder, stream: Stream) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = vec![(0, folder.log(stream))];
    for entry in std::fs::read_dir(folder.path())? {
        let path = entry?.path();
        if let Some(place) = folder.place_of(stream, &path) {
            files.push((place, path));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten bytes to a number, so that every byte tells its place.
    fn numbered(from: u64, count: u64) -> Vec<u8> {
        (from..from + count).flat_map(|number| format!("{number:09}\n").into_bytes()).collect()
    }

    fn whole(folder: &TaskFolder) -> Vec<(u64, Vec<u8>)> {
        let (mut pieces, mut offset): (Vec<(u64, Vec<u8>)>, u64) = (Vec::new(), 0);
        loop {
            let (start, data) = read(folder, Stream::Stdout, offset, 700).expect("readable");
            if data.is_empty() {
                return pieces;
            }
            offset = start + data.len() as u64;
            match pieces.last_mut() {
                Some((place, held)) if *place + held.len() as u64 == start => held.extend(data),
                _ => pieces.push((start, data)),
            }
        }
    }

    #[test]
    fn the_beginning_and_the_end_are_kept_and_the_gap_is_told() {
        for (bytes_max, chunk) in [(4_000_u64, 10_u64), (4_000, 170), (4_000, 5_000), (10, 30), (0, 10)] {
            let dir = tempfile::tempdir().expect("a folder");
            let folder = TaskFolder::new(dir.path());
            let mut writer = Writer::new(&folder, Stream::Stdout, bytes_max);
            let mut number = 0;
            while number < 3_000 {
                writer.write(&numbered(number, chunk / 10));
                number += chunk / 10;
                let on_disk: u64 = std::fs::read_dir(dir.path())
                    .expect("a folder")
                    .map(|entry| entry.expect("an entry").metadata().expect("there").len())
                    .sum();
                assert!(on_disk <= bytes_max.max(2), "{on_disk} bytes of {bytes_max}");
            }
            let all = numbered(0, number);
            let pieces = whole(&folder);
            for (place, data) in &pieces {
                let place = *place as usize;
                assert!(
                    all[place..].starts_with(data),
                    "{bytes_max} by {chunk}: {place} is not what was written there"
                );
            }
            let kept: usize = pieces.iter().map(|(_, data)| data.len()).sum();
            assert_eq!(kept as u64 + writer.dropped(), all.len() as u64, "{bytes_max} by {chunk}");
            let (place, last) = pieces.last().expect("something is kept");
            assert_eq!(*place as usize + last.len(), all.len(), "the end is kept");
            if bytes_max == 4_000 {
                assert_eq!((pieces.len(), pieces[0].0, pieces[0].1.len()), (2, 0, 1_000), "one gap, behind the head");
                assert!(last.len() >= 1_500, "of the end at least three eighths: {}", last.len());
            }
        }
    }

    #[test]
    fn what_fits_is_kept_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = TaskFolder::new(dir.path());
        let mut writer = Writer::new(&folder, Stream::Stdout, 4_000);
        writer.write(&numbered(0, 400));
        assert_eq!(whole(&folder), [(0, numbered(0, 400))]);
        assert_eq!(writer.dropped(), 0);
    }

    #[test]
    fn what_the_task_puts_in_the_place_of_its_output_is_neither_read_nor_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let secret = dir.path().join("secret");
        let plant = |name: &str, how: fn(&Path, &Path) -> io::Result<()>| {
            let folder = TaskFolder::new(&dir.path().join(name));
            std::fs::create_dir(folder.path()).expect("a folder");
            std::fs::write(&secret, "of the host").expect("a file");
            how(&secret, &folder.log(Stream::Stdout)).expect("planted");
            how(&secret, &folder.segment(Stream::Stdout, 1_000)).expect("planted");
            let mut writer = Writer::new(&folder, Stream::Stdout, 4_000);
            writer.write(&numbered(0, 200));
            let there = std::fs::read_to_string(&secret).expect("it is there");
            assert_eq!(there, "of the host", "{name}: it is not written");
            for (place, data) in whole(&folder) {
                assert!(numbered(0, 200)[place as usize..].starts_with(&data), "{name}: what is read was written");
            }
        };
        plant("symbolic", |from, to| std::os::unix::fs::symlink(from, to));
        plant("hard", |from, to| std::fs::hard_link(from, to));
        plant("folder", |_, to| std::fs::create_dir(to));
    }

    #[test]
    fn a_folder_that_is_gone_loses_output_and_blocks_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = TaskFolder::new(&dir.path().join("task"));
        let mut writer = Writer::new(&folder, Stream::Stdout, 4_000);
        writer.write(&numbered(0, 1_000));
        assert_eq!(writer.dropped(), 10_000);
        // As soon as the disk takes it again, what comes is kept, at its place.
        std::fs::create_dir(folder.path()).expect("a folder");
        writer.write(&numbered(1_000, 3));
        assert_eq!(whole(&folder), [(10_000, numbered(1_000, 3))]);
    }
}
