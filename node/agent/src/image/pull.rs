//! Bringing an image of a registry to this node, with skopeo: it knows registries, their keys and their mirrors, as the host's operator has configured them.
//!
//! What must stay true: it runs outside of every sandbox, as the agent's own user, and is told nothing by a task but the name of an image that was checked; it ends within its
//! deadline, with all that it has started, and with the agent; what it says and what it writes is bounded.

use super::{ImageError, ImagesConfig};
use crate::ready;
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What it says is kept up to this: enough for the cause of a failure.
const SAID_BYTES_MAX: usize = 16 << 10;
/// Between two looks whether it has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// And between two looks at what it has written.
const MEASURE_EVERY: Duration = Duration::from_secs(2);

/// The digest that a name stands for now.
pub(super) fn digest_of(config: &ImagesConfig, source: &str) -> Result<String, ImageError> {
    let words = ["inspect", "--no-tags", "--format", "{{.Digest}}", source].map(OsStr::new);
    let said = run(config, &words, None)?;
    let digest = said.trim().to_owned();
    let is_digest =
        digest.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    if is_digest {
        return Ok(digest);
    }
    Err(ImageError::Pull { said: format!("skopeo gave no digest but {digest:?}"), by_node: true })
}

/// Copies it into a folder that is not there yet, as an OCI layout.
pub(super) fn copy(config: &ImagesConfig, source: &str, into: &Path) -> Result<(), ImageError> {
    let mut target = std::ffi::OsString::from("oci:");
    target.push(into);
    target.push(":image");
    let words = ["copy", "--quiet", "--override-os", "linux", source].map(OsStr::new);
    let words: Vec<&OsStr> = words.into_iter().chain([target.as_os_str()]).collect();
    run(config, &words, Some(into)).map(drop)
}

fn run(config: &ImagesConfig, words: &[&OsStr], writes: Option<&Path>) -> Result<String, ImageError> {
    let program = config.skopeo.display();
    let by_node = |said: String| ImageError::Pull { said, by_node: true };
    let mut command = Command::new(&config.skopeo);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let die_with_agent = || Ok(prctl::set_pdeathsig(Signal::SIGKILL)?);
    // SAFETY: between fork and exec one system call is made; nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(die_with_agent) };
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => by_node(format!(
            "this node has no skopeo, which brings images from registries (looked for {program}): install it, or use oci:/path or dir:/path"
        )),
        _ => by_node(format!("running {program}: {error}")),
    })?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut said = [Said::of(out), Said::of(err)];
    let ended = wait(&mut child, config, writes, &mut said);
    let [out, err] = &said.map(|said| String::from_utf8_lossy(&said.kept).into_owned());
    match ended.map_err(|error| by_node(format!("{program}: {error}")))? {
        Ended::By(status) if status.success() => Ok(out.clone()),
        Ended::By(_) => {
            // What the registry denies, it denies to every node.
            let denied = ["manifest unknown", "not found", "unauthorized", "denied", "name unknown", "no image found"];
            let is_denied = denied.iter().any(|word| err.contains(word));
            let last =
                err.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed and did not say why");
            Err(ImageError::Pull { said: last.trim().chars().take(600).collect(), by_node: !is_denied })
        }
        Ended::TooLate => {
            Err(by_node(format!("the registry did not deliver it within {} s", config.pull_within.as_secs())))
        }
        Ended::TooLarge => {
            let super::Bounds { bytes_max, entries_max } = config.bounds;
            Err(ImageError::TooLarge { bytes_max, entries_max })
        }
    }
}

enum Ended {
    By(ExitStatus),
    TooLate,
    TooLarge,
}

/// Waits for its end, or ends it with all that it has started.
fn wait(child: &mut Child, config: &ImagesConfig, writes: Option<&Path>, said: &mut [Said; 2]) -> io::Result<Ended> {
    let started = Instant::now();
    let mut measured = started;
    let over = loop {
        let status = child.try_wait()?;
        for said in &mut *said {
            said.read(LOOK_AGAIN)?;
        }
        if said.iter().all(|said| said.pipe.is_none()) {
            std::thread::sleep(LOOK_AGAIN);
        }
        if let Some(status) = status {
            return Ok(Ended::By(status));
        }
        if started.elapsed() > config.pull_within {
            break Ended::TooLate;
        }
        if measured.elapsed() > MEASURE_EVERY {
            measured = Instant::now();
            if writes.is_some_and(|folder| bytes_below(folder) > config.bounds.bytes_max) {
                break Ended::TooLarge;
            }
        }
    };
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    child.wait()?;
    Ok(over)
}

/// What it has said on one of its outputs: the beginning is kept, and the rest is read, so that it never waits for a reader.
struct Said {
    pipe: Option<Box<dyn AsPipe>>,
    kept: Vec<u8>,
}

trait AsPipe: Read + AsFd {}

impl<T: Read + AsFd> AsPipe for T {}

impl Said {
    fn of(pipe: Option<impl Read + AsFd + 'static>) -> Self {
        Said { pipe: pipe.map(|pipe| Box::new(pipe) as Box<dyn AsPipe>), kept: Vec::new() }
    }

    /// Reads what is there, and waits for it for so long.
    fn read(&mut self, within: Duration) -> io::Result<()> {
        let mut part = [0; 4_096];
        let mut within = within;
        while let Some(pipe) = &mut self.pipe
            && ready::readable(pipe, Some(within))?
        {
            match pipe.read(&mut part)? {
                0 => self.pipe = None,
                read => self.kept.extend(&part[..read.min(SAID_BYTES_MAX.saturating_sub(self.kept.len()))]),
            }
            within = Duration::ZERO;
        }
        Ok(())
    }
}

/// Bytes of the files below a folder that no task can write to.
pub(super) fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(what) if what.is_dir() => bytes_below(&entry.path()),
        Ok(what) => what.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}
