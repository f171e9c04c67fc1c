//! Why a command did not do what it was asked, and the exit status that says so.
//!
//! What must stay true: the exit statuses are part of the interface (they stand in `muster --help`), so a number never changes its
//! meaning; a refused field is shown as `field: problem; fix`, as the API gave it.

use muster_model::FieldError;
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
}

/// A command's failure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Fields of the input are wrong.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<FieldError>),
    /// The command line asks for something that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// There is no such job, tenant, node ...
    #[error("{0}")]
    NotFound(String),
    /// Nobody answered in time.
    #[error(
        "{what}: {why}\n  endpoints tried: {endpoints}; set MUSTER_ENDPOINTS, --endpoints or the configuration file"
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
    /// The reader of our output is gone: not an error of ours.
    #[error("output closed")]
    ClosedPipe,
}

impl Failure {
    /// One wrong field.
    pub fn field(field: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Failure::Invalid(vec![FieldError::new(field, problem, fix)])
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
            Failure::Invalid(_) | Failure::Usage(_) => exit::INVALID,
            Failure::NotFound(_) => exit::NOT_FOUND,
            Failure::Unavailable { .. } => exit::UNAVAILABLE,
            Failure::Refused(_) => exit::REFUSED,
            Failure::Job(_) | Failure::Io { .. } | Failure::Server { .. } | Failure::Role(_) => exit::FAILED,
            Failure::ClosedPipe => exit::OK,
        }
    }

    /// From a server's answer that will not get better by asking again.
    #[must_use]
    pub fn from_status(what: &str, status: &Status) -> Self {
        if let Some(bad) = status.get_details_bad_request() {
            let fields = bad.field_violations.into_iter().map(|violation| {
                let (problem, fix) = violation.description.rsplit_once("; ").unwrap_or((&violation.description, ""));
                FieldError::new(violation.field, problem, fix)
            });
            let fields: Vec<FieldError> = fields.collect();
            if !fields.is_empty() {
                return Failure::Invalid(fields);
            }
        }
        let message = status.message().to_owned();
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

impl From<Vec<FieldError>> for Failure {
    fn from(fields: Vec<FieldError>) -> Self {
        Failure::Invalid(fields)
    }
}
