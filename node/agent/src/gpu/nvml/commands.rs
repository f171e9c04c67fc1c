//! NVIDIA's commands, each with an end.
//!
//! What must stay true: a command that does not end in time is killed; a failure says what the command itself has said.

use crate::own_children;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

/// A command opens the driver and ends; on large hosts that takes seconds.
const COMMAND_MAX: Duration = Duration::from_secs(15);
/// Of what a command says, in an error.
const WORDS_MAX: usize = 400;

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("{program} cannot be run: {source}; install the driver's tools")]
    NotRun { program: String, source: std::io::Error },
    #[error("{program} has not ended after {} s", most.as_secs())]
    Hangs { program: String, most: Duration },
    #[error("{program} says: {words} ({status})")]
    Failed { program: String, words: String, status: std::process::ExitStatus },
}

fn program(command: &Command) -> String {
    command.as_std().get_program().to_string_lossy().into_owned()
}

/// Runs a command with this on its standard input; gives its standard output.
pub(super) async fn run(command: Command, input: &str) -> Result<String, CommandError> {
    run_for(command, input, COMMAND_MAX).await
}

/// The same for one that may take so long.
pub(super) async fn run_for(mut command: Command, input: &str, most: Duration) -> Result<String, CommandError> {
    let program = program(&command);
    let not_run = |source| CommandError::NotRun { program: program.clone(), source };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let (mut child, _waited) = own_children::spawn(&mut command).map_err(not_run)?;
    let work = async {
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read says why in its output.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let Ok(output) = timeout(most, work).await else { return Err(CommandError::Hangs { program, most }) };
    let output = output.map_err(not_run)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let words = format!("{text} {}", String::from_utf8_lossy(&output.stderr));
    let words: String = words.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WORDS_MAX).collect();
    Err(CommandError::Failed { program, words, status: output.status })
}

/// Runs a command that leaves a daemon behind, which may keep its standard streams.
pub(super) async fn run_detached(mut command: Command) -> Result<std::process::ExitStatus, CommandError> {
    let program = program(&command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let not_run = |source| CommandError::NotRun { program: program.clone(), source };
    let (mut child, _waited) = own_children::spawn(&mut command).map_err(not_run)?;
    match timeout(COMMAND_MAX, child.wait()).await {
        Ok(status) => status.map_err(not_run),
        Err(_) => Err(CommandError::Hangs { program, most: COMMAND_MAX }),
    }
}
