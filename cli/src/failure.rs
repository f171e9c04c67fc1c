//! Why a command did not do what it was asked, and the exit status that says so.
//!
//! What must stay true: the exit statuses are part of the interface (they stand in `muster --help`), so a number never changes its
//! meaning; a refused field is shown as `field: problem; fix`, as the API gave it.

use muster_model::FieldError;
use muster_proto::status;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Exit statuses, as in `muster --help`.
pub mod exit {
    /// Done.
    pub const OK: u8 = 0;
    /// The job failed, or the operation did.
    pub const FAILED: u8 = 1;
    /// Wrong usage, or input that was refused.
    pub const INVALID: u8 = 2;
    /// There is no such thing.
    pub const NOT_FOUND: u8 = 3;
    /// No control node could be reached, or none leads.
    pub const UNAVAILABLE: u8 = 4;
    /// Refused as things stand: in use, full, already there.
    pub const REFUSED: u8 = 5;
    /// Ctrl-C while waiting: what was waited for goes on. 128 and the number of SIGINT, as shells have it.
    pub const INTERRUPTED: u8 = 130;
}

/// A command's failure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Fields of the input are wrong: these, and so many more that are not named.
    #[error("{}", in_lines(.0, *.1))]
    Invalid(Vec<FieldError>, u64),
    /// The command line asks for something that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// There is no such job, tenant, node ...
    #[error("{0}")]
    NotFound(String),
    /// Nobody answered in time.
    #[error(
        "{what}: {why}\n  tried: {endpoints}. Check that a control node runs there, or set --endpoints, MUSTER_ENDPOINTS or the configuration file"
    )]
    Unavailable {
        /// What was asked.
        what: String,
        /// The last answer.
        why: String,
        /// Who was asked.
        endpoints: String,
    },
    /// The state of things does not allow it.
    #[error("{0}")]
    Refused(String),
    /// The state of things does not allow it unless the caller says so.
    #[error("{0}")]
    Unconfirmed(String),
    /// The job has ended, so that nothing can be done to it any more.
    #[error("{text}")]
    JobEnded {
        /// Which, and how it ended.
        text: String,
        /// Its state.
        state: String,
    },
    /// A job that was waited for did not complete.
    #[error("{0}")]
    Job(String),
    /// A file or the terminal.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, with the path.
        doing: String,
        /// The operating system's words.
        source: std::io::Error,
    },
    /// A server answered with something else.
    #[error("{what}: {why}")]
    Server {
        /// What was asked.
        what: String,
        /// Its answer.
        why: String,
    },
    /// A role or a demonstration stopped because of this.
    #[error("{0:#}")]
    Role(anyhow::Error),
    /// Ctrl-C ended the waiting; nothing else.
    #[error("{0}")]
    Interrupted(String),
    /// The reader of our output is gone: not an error of ours.
    #[error("output closed")]
    ClosedPipe,
}

impl Failure {
    /// One wrong field.
    pub fn field(field: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Failure::from(vec![FieldError::new(field, problem, fix)])
    }

    /// A failed use of a file.
    pub fn io(doing: impl Into<String>, source: std::io::Error) -> Self {
        if source.kind() == std::io::ErrorKind::BrokenPipe {
            return Failure::ClosedPipe;
        }
        Failure::Io { doing: doing.into(), source }
    }

    /// The exit status.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Failure::Invalid(..) | Failure::Usage(_) => exit::INVALID,
            Failure::NotFound(_) => exit::NOT_FOUND,
            Failure::Unavailable { .. } => exit::UNAVAILABLE,
            Failure::Refused(_) | Failure::Unconfirmed(_) | Failure::JobEnded { .. } => exit::REFUSED,
            Failure::Job(_) | Failure::Io { .. } | Failure::Server { .. } | Failure::Role(_) => exit::FAILED,
            Failure::Interrupted(_) => exit::INTERRUPTED,
            Failure::ClosedPipe => exit::OK,
        }
    }

    /// From a server's answer that will not get better by asking again.
    #[must_use]
    pub fn from_status(what: &str, status: &Status) -> Self {
        let fields = status::field_errors(status);
        if !fields.is_empty() {
            return Failure::Invalid(fields, status::left_out(status));
        }
        let message = status.message().to_owned();
        if let Some(info) = status.get_details_error_info() {
            match info.reason.as_str() {
                "JOB_ENDED" => {
                    let state = info.metadata.get("state").cloned().unwrap_or_default();
                    return Failure::JobEnded { text: message, state };
                }
                "LOWER_TOLERANCE" => return Failure::Unconfirmed(message),
                _ => {}
            }
        }
        match status.code() {
            Code::InvalidArgument | Code::OutOfRange => Failure::Usage(message),
            Code::NotFound => Failure::NotFound(message),
            Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::PermissionDenied
            | Code::Unauthenticated => Failure::Refused(message),
            code => Failure::Server { what: what.to_owned(), why: format!("{code:?}: {message}") },
        }
    }
}

/// One line for each field that is named, and one for those that are not.
fn in_lines(fields: &[FieldError], left_out: u64) -> String {
    let more = (left_out > 0).then(|| status::and_more(left_out));
    fields.iter().map(ToString::to_string).chain(more).collect::<Vec<_>>().join("\n")
}

impl From<Vec<FieldError>> for Failure {
    fn from(fields: Vec<FieldError>) -> Self {
        Failure::Invalid(fields, 0)
    }
}
