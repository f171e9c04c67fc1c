//! Arguments of `muster backup`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `muster backup`.
#[derive(Clone, Debug, Subcommand)]
#[command(after_help = "\
On the machine of a control node, as the user of that node or as root; for example once an hour:
  muster backup create --data /var/lib/muster/control /backup/muster.backup
  muster backup verify /backup/muster.backup

When the control nodes are lost, on a new machine, with an empty folder:
  muster backup restore /backup/muster.backup --data /var/lib/muster/control --id 1 --advertise 10.0.0.9:7400
  muster control --id 1 --data /var/lib/muster/control --listen 0.0.0.0:7400 --advertise 10.0.0.9:7400
  muster machine confirm --dry-run        nothing is started or stopped before this is confirmed")]
pub enum Backup {
    /// Write the whole state to a file
    Create(CreateBackup),
    /// Read a backup to its end, and say what it is of
    Verify {
        /// The file
        file: PathBuf,
    },
    /// Make the data folder of a control node from a backup; it begins as a cluster of one
    Restore(RestoreBackup),
}

/// `muster backup create`.
#[derive(Clone, Debug, Args)]
pub struct CreateBackup {
    /// Data folder of the control node
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// File to write; an older backup there is replaced once the new one is whole
    pub file: PathBuf,
    /// Without a quorum: what this control node has, which may lack the newest changes
    #[arg(long)]
    pub stale: bool,
}

/// `muster backup restore`.
#[derive(Clone, Debug, Args)]
pub struct RestoreBackup {
    /// The file
    pub file: PathBuf,
    /// Data folder of the new control node; it must be empty
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Id of the new control node
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub id: u64,
    /// Address at which other machines will reach it, as `muster control --advertise` has it
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: String,
    /// Folder with its identity, as `muster ca control` makes it, where machines have identities
    #[arg(long, value_name = "DIR")]
    pub identity: Option<PathBuf>,
    /// The new history gets a number above this. Needed only if agents refuse the control node because they know a later history: their logs name its number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub incarnation_above: u64,
}
