//! Where the cluster is and who is asking: flags, then the environment, then the configuration file, then the defaults.
//!
//! The file is `$MUSTER_CONFIG`, or `~/.config/muster/config.yaml`; an absent file is an empty one, an unknown key is refused.

use crate::client::Access;
use crate::failure::Failure;
use crate::output::Format;
use crate::private_file;
use crate::spec::yaml;
use muster_runtime::pki::{Roots, X509};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where `muster dev` listens unless told otherwise.
pub const DEFAULT_ENDPOINT: &str = "127.0.0.1:7400";

/// The configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `host:port` of control nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// The tenant of jobs that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Output format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Format>,
    /// A file with a session or token that goes with every call. It must be nobody else's to read.
    #[serde(default, rename = "token-file", skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// A file with the roots by which control nodes have to prove themselves; with it, calls are encrypted.
    #[serde(default, rename = "roots-file", skip_serializing_if = "Option::is_none")]
    pub roots_file: Option<PathBuf>,
}

/// The keys of the file, for naming the one that was meant.
const KEYS: &[&str] = &["endpoints", "tenant", "output", "token-file", "roots-file"];
/// Names a file with a session or token, before the configuration does.
const TOKEN_FILE: &str = "MUSTER_TOKEN_FILE";
/// Names a file with roots, before the configuration does.
const ROOTS_FILE: &str = "MUSTER_ROOTS_FILE";

/// The file that a variable of the environment names.
fn from_environment(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl Config {
    /// Reads `path`, or the usual place when none is given. A file that was named must be there.
    ///
    /// # Errors
    /// When the file cannot be read or is not a configuration.
    pub fn load(path: Option<&Path>) -> Result<Self, Failure> {
        let usual = path.is_none();
        let Some(path) = path.map(Path::to_path_buf).or_else(usual_path) else {
            return Ok(Config::default());
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, &path.display().to_string()),
            Err(error) if usual && error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
            Err(error) => Err(Failure::io(format!("reading configuration {}", path.display()), error)),
        }
    }

    /// Where `muster login` keeps its session: the file that was named, the one from which commands take it, or the usual one.
    ///
    /// # Errors
    /// When nothing says where this user's files are.
    pub fn session_file(&self, named: Option<&Path>) -> Result<PathBuf, Failure> {
        let named =
            named.map(Path::to_owned).or_else(|| from_environment(TOKEN_FILE)).or_else(|| self.token_file.clone());
        let no_home = || Failure::field("out", "is missing, and HOME is not set", "give a file");
        named.or_else(usual_session).ok_or_else(no_home)
    }

    /// The session or token that goes with every call, from `MUSTER_TOKEN_FILE`, the file that the configuration names, or where `muster login` has put
    /// it.
    ///
    /// # Errors
    /// When the file cannot be read, or others can read it.
    pub fn token(&self) -> Result<Option<String>, Failure> {
        let named = from_environment(TOKEN_FILE).or_else(|| self.token_file.clone());
        let Some(path) = named.or_else(|| usual_session().filter(|path| path.is_file())) else { return Ok(None) };
        let doing = || format!("reading the token file {}", path.display());
        let meta = std::fs::metadata(&path).map_err(|error| Failure::io(doing(), error))?;
        private_file::check(&path, &meta, "token-file")?;
        let text = std::fs::read_to_string(&path).map_err(|error| Failure::io(doing(), error))?;
        Ok(Some(text.trim().to_owned()))
    }

    /// How both sides prove who they are: the token, and the roots from `MUSTER_ROOTS_FILE` or the file that the configuration names.
    ///
    /// # Errors
    /// When a file cannot be read, others can read the token, or the roots are none.
    pub fn access(&self) -> Result<Access, Failure> {
        Ok(Access { token: self.token()?, roots: self.roots()? })
    }

    /// The roots from `MUSTER_ROOTS_FILE` or the file that the configuration names.
    ///
    /// # Errors
    /// When the file cannot be read, or has no roots.
    pub fn roots(&self) -> Result<Option<Roots>, Failure> {
        let path = from_environment(ROOTS_FILE).or_else(|| self.roots_file.clone());
        path.map(|path| read_roots("roots-file", &path)).transpose()
    }

    /// From the file's text.
    ///
    /// # Errors
    /// When it is not a configuration.
    pub fn parse(text: &str, name: &str) -> Result<Self, Failure> {
        let mut documents = yaml::documents::<Config>(text, name, "a configuration", KEYS)?;
        if documents.len() > 1 {
            return Err(Failure::field(name, "has more than one document", "keep one document"));
        }
        Ok(documents.pop().unwrap_or_default())
    }
}

/// The roots in a file that `field` names.
///
/// # Errors
/// When it cannot be read, or has no roots.
pub fn read_roots(field: &str, path: &Path) -> Result<Roots, Failure> {
    let doing = || format!("reading the roots file {}", path.display());
    let text = std::fs::read(path).map_err(|error| Failure::io(doing(), error))?;
    Roots::from_pem(&X509, &text).map_err(|error| {
        let problem = format!("{}: {error}", path.display());
        Failure::field(field, problem, "give the roots.pem that `muster ca init` has made")
    })
}

fn usual_path() -> Option<PathBuf> {
    Some(usual_folder()?.join("config.yaml"))
}

fn usual_session() -> Option<PathBuf> {
    Some(usual_folder()?.join("session"))
}

fn usual_folder() -> Option<PathBuf> {
    let base = match std::env::var_os("XDG_CONFIG_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME")?).join(".config"),
    };
    Some(base.join("muster"))
}
