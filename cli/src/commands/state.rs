//! Copies of the state: fetched from a control node, saved, and read again.
//!
//! A file is one line of JSON that says what it is, and the objects in their stored form, each after its length. What must stay true: a copy that is not
//! whole is never used.

use crate::args::what_if::State;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output::Block;
use crate::units::{counted, show_moment};
use muster_control_server::copied;
use muster_model::Object;
use muster_proto::v1;
use muster_proto::v1::admin_client::AdminClient;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tonic::Status;

/// Copies that are begun again after a stream broke.
const TRIES_MAX: u32 = 3;
/// Bytes of one object: far above the largest gang's allocation.
const OBJECT_BYTES_MAX: u32 = 64 << 20;
/// Bytes of the first line.
const HEAD_BYTES_MAX: usize = 4_096;
/// The number of the file's form.
const FORM: u32 = 1;

/// A copy of the state.
#[derive(Debug)]
pub struct Copy {
    /// At this revision.
    pub revision: u64,
    /// The cluster's time then.
    pub now_ms: u64,
    /// Every object in its stored form.
    stored: Vec<Vec<u8>>,
}

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    muster_state: u32,
    revision: u64,
    now_ms: u64,
    objects: u64,
}

/// What saving answers.
#[derive(Debug, Serialize)]
struct Saved {
    file: String,
    revision: u64,
    as_of: String,
    objects: u64,
}

impl Copy {
    /// The objects.
    ///
    /// # Errors
    /// When one is damaged, or of a newer version.
    pub fn objects(&self, source: &str) -> Result<Vec<Object>, Failure> {
        let fix = "make the copy again, with a command that is no older than the control nodes";
        let read = |bytes: &Vec<u8>| {
            copied::decode(bytes).map_err(|error| Failure::field(source, format!("cannot be read: {error}"), fix))
        };
        self.stored.iter().map(read).collect()
    }
}

/// Runs one of `muster state`.
///
/// # Errors
/// When the cluster stays away, or the file cannot be written.
pub async fn run(context: &Context, command: &State) -> Result<(), Failure> {
    let State::Save { file } = command;
    let copy = fetch(context).await?;
    save(&copy, file)?;
    let saved = Saved {
        file: file.display().to_string(),
        revision: copy.revision,
        as_of: show_moment(copy.now_ms),
        objects: copy.stored.len() as u64,
    };
    let text = format!(
        "{}: {} of revision {}, {}",
        saved.file,
        counted(copy.stored.len(), "object"),
        saved.revision,
        saved.as_of
    );
    context.out.show(&saved, |_| vec![Block::Text(text)])
}

/// A copy from the cluster.
///
/// # Errors
/// When the cluster stays away, or copies break off again and again.
pub async fn fetch(context: &Context) -> Result<Copy, Failure> {
    let mut tries = 1;
    loop {
        match fetch_once(context).await? {
            Ok(copy) => return Ok(copy),
            Err(status) if tries >= TRIES_MAX => return Err(Failure::from_status("copy state", &status)),
            Err(_) => tries += 1,
        }
    }
}

async fn fetch_once(context: &Context) -> Result<Result<Copy, Status>, Failure> {
    let request = v1::CopyStateRequest { consistency: context.consistency.into() };
    let call = |channel| {
        let client = AdminClient::new(channel).max_decoding_message_size(crate::client::reply_bytes_max());
        let mut client = client;
        async move { client.copy_state(request).await }
    };
    let mut parts = context.client.call("copy state", call).await?;
    let mut copy: Option<Copy> = None;
    loop {
        let part = match parts.message().await {
            Ok(Some(part)) => part,
            Ok(None) => return Ok(Err(Status::unavailable("the copy ended early"))),
            Err(status) => return Ok(Err(status)),
        };
        let v1::CopyStatePart { revision, now_ms, objects, more } = part;
        let whole = copy.get_or_insert(Copy { revision, now_ms, stored: Vec::new() });
        if whole.revision != revision {
            return Ok(Err(Status::unavailable("the parts of the copy are of different revisions")));
        }
        whole.stored.extend(objects);
        if !more {
            break;
        }
    }
    Ok(copy.ok_or_else(|| Status::unavailable("the copy is empty")))
}

fn save(copy: &Copy, path: &Path) -> Result<(), Failure> {
    let head =
        Head { muster_state: FORM, revision: copy.revision, now_ms: copy.now_ms, objects: copy.stored.len() as u64 };
    let write = || -> std::io::Result<()> {
        // Names of jobs and users are nobody else's concern.
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut out = BufWriter::new(file);
        serde_json::to_writer(&mut out, &head)?;
        out.write_all(b"\n")?;
        for object in &copy.stored {
            out.write_all(&(object.len() as u32).to_le_bytes())?;
            out.write_all(object)?;
        }
        out.into_inner()?.sync_all()
    };
    write().map_err(|error| Failure::io(format!("writing {}", path.display()), error))
}

/// A copy from a file.
///
/// # Errors
/// When it cannot be read, or is no whole copy.
pub fn read(path: &Path) -> Result<Copy, Failure> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::NotFound(format!("file {name} does not exist")),
        _ => Failure::io(format!("reading {name}"), error),
    })?;
    read_from(BufReader::new(file))
        .map_err(|problem| Failure::field(name, problem, "use a file that `muster state save` has written to its end"))
}

fn read_from(mut from: impl Read) -> Result<Copy, String> {
    let short = |error: std::io::Error| format!("is not a whole copy of a state: {error}");
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        from.read_exact(&mut byte).map_err(short)?;
        if byte == *b"\n" {
            break;
        }
        line.push(byte[0]);
        if line.len() > HEAD_BYTES_MAX {
            return Err("is not a copy of a state".to_owned());
        }
    }
    let head: Head = serde_json::from_slice(&line).map_err(|_| "is not a copy of a state".to_owned())?;
    if head.muster_state != FORM {
        return Err(format!("has form {}, but this version of muster reads form {FORM}", head.muster_state));
    }
    let mut stored = Vec::new();
    for _ in 0..head.objects {
        let mut length = [0; 4];
        from.read_exact(&mut length).map_err(short)?;
        let length = u32::from_le_bytes(length);
        if length > OBJECT_BYTES_MAX {
            return Err("is damaged".to_owned());
        }
        let mut object = Vec::new();
        let got = from.by_ref().take(u64::from(length)).read_to_end(&mut object).map_err(short)?;
        if got < length as usize {
            return Err("is not a whole copy of a state: it ends early".to_owned());
        }
        stored.push(object);
    }
    Ok(Copy { revision: head.revision, now_ms: head.now_ms, stored })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_read_as_it_was_saved_and_not_when_it_was_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.state");
        let copy = Copy { revision: 7, now_ms: 8, stored: vec![vec![1, 2, 3], Vec::new(), vec![4; 5_000]] };
        save(&copy, &path).expect("saved");
        let bytes = std::fs::read(&path).expect("the file");
        let read = read_from(&bytes[..]).expect("a copy");
        assert_eq!((read.revision, read.now_ms, read.stored), (7, 8, copy.stored));
        for end in [0, 5, 60, bytes.len() - 1] {
            assert!(read_from(&bytes[..end]).is_err(), "cut at {end}");
        }
        let other = read_from(&b"{\"muster_state\":2,\"revision\":1,\"now_ms\":1,\"objects\":0}\n"[..]);
        assert!(other.expect_err("another form").contains("form 2"));
    }
}
