//! The file that an operator gives to a machine that is to join: a join token, where to ask, and whom to trust.
//!
//! ```text
//! # for people
//! mj1_17_...
//! endpoint control-1:7400
//! -----BEGIN CERTIFICATE-----
//! ```
//!
//! What must stay true: the roots come with the token, so that a machine never has to trust whom it asks; what cannot be such a file is refused with the
//! line that is wrong.

use muster_runtime::pki::{Certificate, PkiError, Roots, Scheme};
use std::fmt;

const ENDPOINT: &str = "endpoint ";
const CERTIFICATE: &str = "CERTIFICATE";
/// The largest file: eight roots and some endpoints.
const BYTES_MAX: usize = 64 << 10;
/// Endpoints of one file.
const ENDPOINTS_MAX: usize = 64;

/// See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinFile {
    /// The text of the token.
    pub token: String,
    /// Where people are served: `host:port` of control nodes.
    pub endpoints: Vec<String>,
    /// Whom to trust.
    pub roots: Roots,
}

impl fmt::Debug for JoinFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinFile")
            .field("endpoints", &self.endpoints)
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

/// Why it is no such file.
#[derive(Debug, thiserror::Error)]
pub enum BadJoinFile {
    /// It is too long.
    #[error("it has {bytes} bytes; at most {BYTES_MAX} are read")]
    TooLarge {
        /// How long it is.
        bytes: usize,
    },
    /// A line is none of those that there are.
    #[error("line {line} is no join token, no `endpoint HOST:PORT` and no certificate")]
    Line {
        /// Which, from 1.
        line: usize,
    },
    /// Something is not there, or twice.
    #[error("it has {got} {what} instead of {expected}")]
    Count {
        /// What.
        what: &'static str,
        /// How many are meant to be there.
        expected: &'static str,
        /// How many there are.
        got: usize,
    },
    /// Its certificates are no roots of one cluster.
    #[error(transparent)]
    Roots(#[from] PkiError),
}

impl JoinFile {
    /// Reads one.
    ///
    /// # Errors
    /// [`BadJoinFile`].
    pub fn read(scheme: &dyn Scheme, text: &str) -> Result<Self, BadJoinFile> {
        if text.len() > BYTES_MAX {
            return Err(BadJoinFile::TooLarge { bytes: text.len() });
        }
        // Certificates stand last.
        let (head, roots) = text.find("-----BEGIN").map_or((text, ""), |at| text.split_at(at));
        let (mut tokens, mut endpoints) = (Vec::new(), Vec::new());
        for (line, content) in (1..).zip(head.lines()) {
            match content.trim() {
                "" => {}
                content if content.starts_with('#') => {}
                content if content.starts_with("mj1_") => tokens.push(content.to_owned()),
                content => match content.strip_prefix(ENDPOINT) {
                    Some(endpoint) => endpoints.push(endpoint.trim().to_owned()),
                    None => return Err(BadJoinFile::Line { line }),
                },
            }
        }
        let count = |what, expected, got| BadJoinFile::Count { what, expected, got };
        let [token] = <[String; 1]>::try_from(tokens).map_err(|got| count("join tokens", "1", got.len()))?;
        if endpoints.is_empty() || endpoints.len() > ENDPOINTS_MAX {
            return Err(count("endpoints", "1 to 64", endpoints.len()));
        }
        Ok(JoinFile { token, endpoints, roots: Roots::from_pem(scheme, roots.as_bytes())? })
    }

    /// One with these roots, as they are sent.
    ///
    /// # Errors
    /// When they are no roots of one cluster.
    pub fn new(
        scheme: &dyn Scheme,
        token: String,
        endpoints: Vec<String>,
        roots: Vec<Vec<u8>>,
    ) -> Result<Self, PkiError> {
        let roots = roots.into_iter().map(Certificate::from_bytes).collect::<Result<Vec<_>, _>>()?;
        Ok(JoinFile { token, endpoints, roots: Roots::new(scheme, roots)? })
    }

    /// As the text of the file; `note` is for people, one line for each of its lines.
    #[must_use]
    pub fn text(&self, note: &str) -> String {
        let mut text: String = note.lines().map(|line| format!("# {line}\n")).collect();
        text += &format!("{}\n", self.token);
        text.extend(self.endpoints.iter().map(|endpoint| format!("{ENDPOINT}{endpoint}\n")));
        let armoured = |root: &Certificate| pem::encode(&pem::Pem::new(CERTIFICATE, root.bytes()));
        text.extend(self.roots.certificates().iter().map(armoured));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_runtime::pki::{X509, new_root};

    fn file() -> JoinFile {
        let root = new_root(&X509, "test", 1_700_000_000_000).expect("a root");
        let roots = vec![root.certificate().bytes().to_vec()];
        let endpoints = vec!["control-1:7400".to_owned(), "10.0.0.2:7400".to_owned()];
        JoinFile::new(&X509, "mj1_7_secret_00000000".to_owned(), endpoints, roots).expect("a file")
    }

    #[test]
    fn a_join_file_is_read_back_and_says_what_is_wrong_with_another() {
        let file = file();
        let text = file.text("for node gpu-1\nvalid for a day");
        assert_eq!(JoinFile::read(&X509, &text).expect("it is one"), file);
        for (from, to, why) in [
            ("mj1_7", "mx1_7", "line 3 is no join token"),
            ("mj1_7_secret_00000000\n", "", "0 join tokens"),
            ("endpoint control-1:7400\nendpoint 10.0.0.2:7400\n", "", "0 endpoints"),
            ("endpoint 10", "mj1_7_secret_00000000\nendpoint 10", "2 join tokens"),
            ("# for", "for", "line 1 is no"),
        ] {
            let got = JoinFile::read(&X509, &text.replacen(from, to, 1)).expect_err(why).to_string();
            assert!(got.contains(why), "{got:?} lacks {why:?}");
        }
        let without = text.split_once("-----BEGIN").expect("a certificate").0;
        assert!(JoinFile::read(&X509, without).is_err(), "whom to trust is missing");
        assert!(!format!("{file:?}").contains("secret"), "nothing prints the token");
    }
}
