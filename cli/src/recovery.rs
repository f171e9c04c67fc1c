//! The recovery socket of a control node: a session, or a backup, for whoever has its machine.
//!
//! What must stay true: the socket is in the node's data folder and nobody else's to open; who connects is asked of the kernel and must be the node's own
//! user or root; a call that hangs holds up one of few places and nothing else.

use anyhow::Context;
use muster_control_server::ControlNode;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Bytes of a question: a name.
const QUESTION_BYTES_MAX: u64 = 4_096;
/// Calls at a time: people in trouble are few.
const CALLS_MAX: usize = 4;
/// A call that takes longer is given up: a session needs one entry of the log.
const CALL_MAX: Duration = Duration::from_secs(15);
/// Of a backup this is the most for one part of it: who takes longer, at either end, does not move.
const PART_MAX: Duration = Duration::from_secs(60);
/// Bytes read at once of a backup.
const BUFFER_BYTES: usize = 256 << 10;

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Question {
    /// A session for an hour: admin of the root of the tree, operator and auditor.
    Session {
        /// Under whose name.
        user: String,
    },
    /// The whole state, for a file.
    Backup {
        /// Of what this node has, without a quorum.
        stale: bool,
    },
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The session's text.
    Session {
        /// To be sent with calls.
        token: String,
    },
    /// The bytes of the file follow, up to the end of the stream.
    Backup,
    /// Why not.
    Refused {
        /// In words.
        why: String,
    },
}

/// Where the socket of a data folder is.
#[must_use]
pub fn socket(data: &Path) -> PathBuf {
    data.join("recovery.sock")
}

/// Serves the socket of `data` until the node ends.
///
/// # Errors
/// When the socket cannot be made.
pub fn serve(data: &Path, node: Arc<ControlNode>) -> anyhow::Result<()> {
    let path = socket(data);
    // Nobody can be listening: the folder is locked by this process.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing the old {}", path.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .context("closing the recovery socket to others")?;
    let calls = Arc::new(Semaphore::new(CALLS_MAX));
    tokio::spawn(async move {
        loop {
            let Ok(place) = Arc::clone(&calls).acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let node = Arc::clone(&node);
            tokio::spawn(async move {
                let _place = place;
                if let Err(error) = attend(stream, &node).await {
                    tracing::info!(%error, "a call to the recovery socket failed");
                }
            });
        }
    });
    Ok(())
}

async fn attend(stream: UnixStream, node: &ControlNode) -> anyhow::Result<()> {
    let (uid, own) = (stream.peer_cred()?.uid(), nix::unistd::geteuid().as_raw());
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    tokio::time::timeout(CALL_MAX, BufReader::new(read.take(QUESTION_BYTES_MAX)).read_line(&mut line)).await??;
    let (answer, backup) = match serde_json::from_str(&line) {
        _ if uid != own && uid != 0 => {
            (Answer::Refused { why: format!("user {uid} may not; the control node runs as user {own}") }, None)
        }
        Ok(Question::Session { user }) => match tokio::time::timeout(CALL_MAX, node.recovery_session(&user)).await? {
            Ok(token) => {
                tracing::warn!(user, uid, "a recovery session was made");
                (Answer::Session { token }, None)
            }
            Err(error) => (Answer::Refused { why: error.to_string() }, None),
        },
        Ok(Question::Backup { stale }) => match tokio::time::timeout(CALL_MAX, node.backup(stale)).await? {
            Ok(backup) => {
                tracing::warn!(uid, stale, "a backup of the state is read");
                (Answer::Backup, Some(backup))
            }
            Err(error) => (Answer::Refused { why: error.to_string() }, None),
        },
        Err(error) => (Answer::Refused { why: format!("the question cannot be read: {error}") }, None),
    };
    write.write_all(format!("{}\n", serde_json::to_string(&answer)?).as_bytes()).await?;
    if let Some(mut backup) = backup {
        while let Some(part) = backup.part()? {
            tokio::time::timeout(PART_MAX, write.write_all(&part)).await??;
        }
    }
    Ok(())
}

/// Asks the control node whose data folder is `data` for a backup, and hands on its bytes as they come.
///
/// # Errors
/// When nobody listens there, it is refused, or `take` fails. Whether all bytes came is for the reader of the file to say.
pub async fn backup(data: &Path, stale: bool, mut take: impl FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let asked = tokio::time::timeout(CALL_MAX, ask(data, &Question::Backup { stale })).await;
    let (answer, mut stream) = asked.context("no answer in time")?.with_context(|| asking(data))?;
    match answer {
        Answer::Backup => {}
        Answer::Refused { why } => anyhow::bail!("{why}"),
        Answer::Session { .. } => anyhow::bail!("the control node answered another question"),
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = tokio::time::timeout(PART_MAX, stream.read(&mut buffer)).await;
        match read.context("the control node does not go on")?? {
            0 => return Ok(()),
            read => take(&buffer[..read])?,
        }
    }
}

fn asking(data: &Path) -> String {
    format!("asking the control node at {}", socket(data).display())
}

/// Asks, and reads the answer; more may follow on the stream.
async fn ask(data: &Path, question: &Question) -> anyhow::Result<(Answer, BufReader<UnixStream>)> {
    let mut stream = UnixStream::connect(socket(data)).await?;
    stream.write_all(format!("{}\n", serde_json::to_string(question)?).as_bytes()).await?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    (&mut stream).take(QUESTION_BYTES_MAX).read_line(&mut line).await?;
    Ok((serde_json::from_str(&line)?, stream))
}

/// Asks the control node whose data folder is `data` for a session.
///
/// # Errors
/// When nobody listens there, or it is refused.
pub async fn session(data: &Path, user: &str) -> anyhow::Result<String> {
    let question = Question::Session { user: user.to_owned() };
    let answered = tokio::time::timeout(CALL_MAX, ask(data, &question)).await.context("no answer in time")?;
    match answered.with_context(|| asking(data))?.0 {
        Answer::Session { token } => Ok(token),
        Answer::Refused { why } => anyhow::bail!("{why}"),
        Answer::Backup => anyhow::bail!("the control node answered another question"),
    }
}
