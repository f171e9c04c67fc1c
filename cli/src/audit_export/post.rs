//! An export to a web server that takes JSON lines.
//!
//! What must stay true: an answer of 2xx to a batch, and nothing else, says that the server has it; no redirect is followed.

use super::{NotTaken, Outgoing, json_lines};
use crate::failure::Failure;
use crate::web::Web;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Request, StatusCode};
use std::path::Path;

/// What receivers of JSON lines know them by.
const JSON_LINES: &str = "application/x-ndjson";
/// What is shown of an answer's text.
const SHOWN_MAX: usize = 200;

/// A server.
#[derive(Clone, Debug)]
pub struct Receiver {
    web: Web,
    url: String,
    authorization: Option<HeaderValue>,
}

impl Receiver {
    /// A server at `url`, trusted by the usual authorities or those of a file; a file may have what it asks for in `Authorization`.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn new(url: &str, ca_file: Option<&Path>, authorization: Option<&Path>) -> Result<Self, Failure> {
        let web = if url.starts_with("https:") { Web::new(ca_file)? } else { Web::of_this_machine() };
        let authorization = authorization.map(read_header).transpose()?;
        Ok(Receiver { web, url: url.to_owned(), authorization })
    }

    /// Sends a batch. It blocks.
    ///
    /// # Errors
    /// When the server does not say that it has it.
    pub fn send(&self, batch: &[Outgoing]) -> Result<(), NotTaken> {
        let mut request = Request::post(&self.url).header(CONTENT_TYPE, JSON_LINES);
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(json_lines(batch).into_bytes());
        let request = request.map_err(|error| refused(error.to_string()))?;
        let answer = self.web.send(request).map_err(|error| NotTaken::ForNow(error.to_string()))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(answer.body());
        let text: String = text.trim().chars().take(SHOWN_MAX).collect();
        let problem = match text.as_str() {
            "" => format!("it answers {status}"),
            text => format!("it answers {status}: {text}"),
        };
        match status {
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
                Err(NotTaken::ForNow(problem))
            }
            _ if status.is_server_error() => Err(NotTaken::ForNow(problem)),
            _ => Err(refused(problem)),
        }
    }
}

fn refused(why: String) -> NotTaken {
    NotTaken::ForGood(Failure::Server { what: "the receiver does not take the audit".to_owned(), why })
}

fn read_header(path: &Path) -> Result<HeaderValue, Failure> {
    let text =
        std::fs::read_to_string(path).map_err(|error| Failure::io(format!("reading {}", path.display()), error))?;
    let bad = || {
        let problem = format!("{} has no value of a header", path.display());
        Failure::field("authorization-file", problem, "write one line, such as Bearer TOKEN")
    };
    let mut value = HeaderValue::from_str(text.trim()).ok().filter(|value| !value.is_empty()).ok_or_else(bad)?;
    value.set_sensitive(true);
    Ok(value)
}
