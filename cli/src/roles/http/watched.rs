//! A file that may be replaced while a role runs.
//!
//! What must stay true: content that cannot be read or used leaves the earlier content in use, with an error in the log; a disk that does
//! not answer delays one request and no thread that serves others.

use crate::failure::Failure;
use crate::private_file;
use parking_lot::Mutex;
use ring::digest::{Digest, SHA256, digest};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks at the file: short beside the time in which people replace files, long beside that in which requests come.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What a file has in it.
pub(super) trait Content: Sized + Send + Sync + 'static {
    /// The option that names the file, without its dashes.
    const OPTION: &'static str;
    /// Largest file.
    const BYTES_MAX: u64;
    /// What to do about a file that cannot be used.
    const REMEDY: &'static str;

    /// From the bytes of the file. The error says what is wrong with the file, as a predicate.
    fn parse(bytes: &[u8]) -> Result<Self, String>;
}

/// See the module.
pub(super) struct Watched<T> {
    path: PathBuf,
    state: Mutex<State<T>>,
}

struct State<T> {
    current: Arc<T>,
    /// Of the bytes that `current` was made of.
    digest: Digest,
    looked_at: Instant,
    is_reading: bool,
}

impl<T: Content> Watched<T> {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// When it cannot be read or used, or others can read it.
    pub(super) fn open(path: &Path, now: Instant) -> Result<Self, Failure> {
        let bytes = read::<T>(path)?;
        let (current, digest) = (Arc::new(parse(path, &bytes)?), digest(&SHA256, &bytes));
        let state = State { current, digest, looked_at: now, is_reading: false };
        Ok(Watched { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// The content to use now. Looks at the file again if the last look was long enough ago.
    pub(super) async fn current(self: &Arc<Self>) -> Arc<T> {
        if self.begin(Instant::now()) {
            let own = Arc::clone(self);
            // On a thread for that, since a disk may take its time. It fails only when the runtime ends.
            let _ = tokio::task::spawn_blocking(move || own.read_again()).await;
        }
        Arc::clone(&self.state.lock().current)
    }

    /// Whether the caller is to read the file again; nobody else does meanwhile.
    fn begin(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_due = !state.is_reading && now.saturating_duration_since(state.looked_at) >= LOOK_EVERY;
        if is_due {
            state.is_reading = true;
            state.looked_at = now;
        }
        is_due
    }

    fn read_again(&self) {
        let known = self.state.lock().digest;
        let found = replacement::<T>(&self.path, &known);
        let mut state = self.state.lock();
        state.is_reading = false;
        match found {
            Ok(None) => {}
            Ok(Some((content, digest))) => {
                state.current = Arc::new(content);
                state.digest = digest;
                drop(state);
                tracing::info!(file = %self.path.display(), option = T::OPTION, "the file was replaced; its new content is in use");
            }
            Err(error) => {
                drop(state);
                tracing::error!(%error, "a file of the metrics page cannot be used; what it had in it before stays in use");
            }
        }
    }
}

/// What the file has in it now; nothing where that has not changed.
fn replacement<T: Content>(path: &Path, known: &Digest) -> Result<Option<(T, Digest)>, Failure> {
    let bytes = read::<T>(path)?;
    let digest = digest(&SHA256, &bytes);
    if digest.as_ref() == known.as_ref() {
        return Ok(None);
    }
    Ok(Some((parse(path, &bytes)?, digest)))
}

fn read<T: Content>(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::io(format!("reading the file of --{}, {}", T::OPTION, path.display()), error);
    let meta = std::fs::metadata(path).map_err(failed)?;
    // A pipe would be waited for, and has nothing to give at the second look.
    if !meta.is_file() {
        return Err(unusable::<T>(path, "is not a regular file"));
    }
    private_file::check(path, &meta, T::OPTION)?;
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(T::BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > T::BYTES_MAX {
        return Err(unusable::<T>(path, &format!("is larger than {} bytes", T::BYTES_MAX)));
    }
    Ok(bytes)
}

fn parse<T: Content>(path: &Path, bytes: &[u8]) -> Result<T, Failure> {
    T::parse(bytes).map_err(|problem| unusable::<T>(path, &problem))
}

fn unusable<T: Content>(path: &Path, problem: &str) -> Failure {
    Failure::field(T::OPTION, format!("{} {problem}", path.display()), T::REMEDY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    /// Any text that does not begin with a `!`.
    #[derive(Debug, PartialEq, Eq)]
    struct Text(String);

    impl Content for Text {
        const OPTION: &'static str = "text-file";
        const BYTES_MAX: u64 = 16;
        const REMEDY: &'static str = "write another one";

        fn parse(bytes: &[u8]) -> Result<Self, String> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            if text.starts_with('!') { Err("begins with a `!`".to_owned()) } else { Ok(Text(text)) }
        }
    }

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).expect("a file");
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("its mode");
    }

    #[test]
    fn a_replaced_file_is_taken_over_at_the_next_look() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("text");
        let start = Instant::now();
        write(&path, "first", 0o600);
        let watched = Watched::<Text>::open(&path, start).expect("usable");
        let after = |looks: u32| {
            let due = watched.begin(start + LOOK_EVERY * looks);
            if due {
                watched.read_again();
            }
            (due, watched.state.lock().current.0.clone())
        };
        let reads = |text: &str| (true, text.to_owned());

        write(&path, "second", 0o600);
        assert!(!watched.begin(start + LOOK_EVERY / 2), "it is not time yet");
        assert_eq!(after(1), reads("second"));
        assert_eq!(after(1), (false, "second".to_owned()), "once");
        // What cannot be used leaves what was there.
        write(&path, "!third", 0o600);
        assert_eq!(after(2), reads("second"));
        write(&path, "longer than it may be", 0o600);
        assert_eq!(after(3), reads("second"));
        write(&path, "fourth", 0o640);
        assert_eq!(after(4), reads("second"));
        std::fs::remove_file(&path).expect("a file");
        assert_eq!(after(5), reads("second"));
        write(&path, "fifth", 0o600);
        assert_eq!(after(6), reads("fifth"));
    }

    #[test]
    fn one_reads_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("text");
        let start = Instant::now();
        write(&path, "first", 0o600);
        let watched = Watched::<Text>::open(&path, start).expect("usable");
        assert!(watched.begin(start + LOOK_EVERY));
        assert!(!watched.begin(start + LOOK_EVERY * 5), "the look before has not ended");
        watched.read_again();
        assert!(watched.begin(start + LOOK_EVERY * 5));
    }

    #[test]
    fn what_cannot_be_used_is_refused_at_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("text");
        let refused = |text: &str, mode: u32, why: &str| {
            write(&path, text, mode);
            let failure = Watched::<Text>::open(&path, Instant::now()).err().expect("refused").to_string();
            assert!(failure.starts_with("text-file: ") && failure.contains(why), "{failure}");
        };
        refused("!", 0o600, "begins with a `!`; write another one");
        refused("longer than it may be", 0o600, "is larger than 16 bytes");
        refused("text", 0o604, "can be read by others; chmod 600 it");
        refused("text", 0o640, "can be read by others; chmod 600 it");
        let failure = Watched::<Text>::open(folder.path(), Instant::now()).err().expect("refused").to_string();
        assert!(failure.contains("is not a regular file"), "{failure}");
        let missing = folder.path().join("missing");
        let failure = Watched::<Text>::open(&missing, Instant::now()).err().expect("refused");
        assert!(failure.to_string().contains(&format!("--text-file, {}", missing.display())), "{failure}");
    }
}
