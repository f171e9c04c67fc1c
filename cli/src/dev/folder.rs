//! The data folder of a development cluster: what lies where, and that one supervisor at a time has it.

use crate::config::Config;
use crate::failure::Failure;
use crate::session_file;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A data folder.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it where it is missing; its path is absolute from here on.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::io(format!("making the data folder {}", path.display()), error);
        for part in ["logs", "nodes"] {
            std::fs::create_dir_all(path.join(part)).map_err(failed)?;
        }
        Ok(Folder(path.canonicalize().map_err(failed)?))
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// What was chosen at the first start.
    #[must_use]
    pub fn settings(&self) -> PathBuf {
        self.0.join("settings.json")
    }

    /// The processes that run now.
    #[must_use]
    pub fn dev_json(&self) -> PathBuf {
        self.0.join("dev.json")
    }

    /// The clients' configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.0.join("config.yaml")
    }

    /// The session of this machine's user.
    #[must_use]
    pub fn token(&self) -> PathBuf {
        self.0.join("session.token")
    }

    /// Writes it, for nobody else to read.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_token(&self, token: &str) -> Result<(), Failure> {
        session_file::write(&self.token(), token)
    }

    /// The key and certificate of one process, or of the root.
    #[must_use]
    pub fn identity(&self, name: &str) -> PathBuf {
        self.0.join("identities").join(name)
    }

    /// Those of the simulated hosts, each in a folder of its name.
    #[must_use]
    pub fn node_identities(&self) -> PathBuf {
        self.identity("nodes")
    }

    /// The roots by which control nodes prove themselves.
    #[must_use]
    pub fn roots(&self) -> PathBuf {
        self.identity("ca").join("roots.pem")
    }

    /// What the simulated hosts are like.
    #[must_use]
    pub fn node_spec(&self) -> PathBuf {
        self.0.join("node.yaml")
    }

    /// One folder for each simulated host.
    #[must_use]
    pub fn nodes(&self) -> PathBuf {
        self.0.join("nodes")
    }

    /// A control node's data.
    #[must_use]
    pub fn control(&self, id: u32) -> PathBuf {
        self.0.join(format!("control-{id}"))
    }

    /// What a role prints.
    #[must_use]
    pub fn log(&self, role: &str) -> PathBuf {
        self.0.join("logs").join(format!("{role}.log"))
    }

    /// Keeps every other supervisor out for as long as it is held.
    ///
    /// # Errors
    /// When another one has it.
    pub fn lock(&self) -> Result<Flock<File>, Failure> {
        let path = self.0.join("lock");
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|error| Failure::io(format!("opening {}", path.display()), error))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
            Failure::Refused(format!(
                "another `muster dev` uses the folder {}; stop it, or give another --data",
                self.0.display()
            ))
        })
    }

    /// Writes the clients' configuration.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_config(&self, config: &Config) -> Result<(), Failure> {
        let text = serde_yaml_ng::to_string(config).map_err(|error| Failure::Role(error.into()))?;
        self.replace(&self.config(), text.as_bytes())
    }

    /// Replaces a file whole: readers see the old one or the new one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn replace(&self, path: &Path, content: &[u8]) -> Result<(), Failure> {
        let draft = path.with_extension("new");
        let write = || {
            let mut file = File::create(&draft)?;
            file.write_all(content)?;
            file.sync_all()?;
            std::fs::rename(&draft, path)
        };
        write().map_err(|error| Failure::io(format!("writing {}", path.display()), error))
    }
}
