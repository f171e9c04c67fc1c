//! Where the cluster is and who is asking: flags, then the environment, then the configuration file, then the defaults.
//!
//! The file is `$MUSTER_CONFIG`, or `~/.config/muster/config.yaml`; an absent file is an empty one, an unknown key is refused.

use crate::failure::Failure;
use crate::output::Format;
use crate::spec::yaml;
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
}

/// The keys of the file, for naming the one that was meant.
const KEYS: &[&str] = &["endpoints", "tenant", "output"];

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

fn usual_path() -> Option<PathBuf> {
    let base = match std::env::var_os("XDG_CONFIG_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME")?).join(".config"),
    };
    Some(base.join("muster/config.yaml"))
}
