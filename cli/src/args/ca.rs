//! Arguments of `muster ca`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `muster ca`.
#[derive(Clone, Debug, Subcommand)]
#[command(after_help = "\
A new cluster of three control nodes. The first command makes the root; keep its folder away from the cluster:
  muster ca init fleet --out ca
  muster ca control 1 --ca ca --out control-1        then 2 and 3
  muster ca shard shard --issuer control-1 --out shard
  muster ca node gpu-0001 --issuer control-1 --out gpu-0001
Copy each folder to its machine, readable by its user alone, and start the role with --identity FOLDER. People need
roots.pem alone: `roots-file` of the configuration, or MUSTER_ROOTS_FILE.

Certificates of machines are valid for 30 days, and accepted with an alarm for 90 more. To renew one, run the command
that made it again: it keeps the keys, and the machine takes the new certificate over within 10 seconds.

To replace the root: add the new one everywhere (`ca trust`), renew all folders of control nodes with it, then all
others, and drop the old one (`ca trust --only`).")]
pub enum Ca {
    /// Make the root of a new cluster
    Init {
        /// Name of the cluster: lower-case letters, digits and '-'; it is part of the name of each machine
        cluster: String,
        /// Folder of the root
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Make or renew the identity of a control node, with its issuer, which signs other machines
    Control {
        /// Id of the control node, as in `muster control --id`
        id: u64,
        /// Folder of the root
        #[arg(long, value_name = "DIR")]
        ca: PathBuf,
        /// Folder of the identity
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Make or renew the identity of a scheduler shard
    Shard(Machine),
    /// Make or renew the identity of a GPU node
    Node(Machine),
    /// Trust the roots of a file too, or only those
    Trust {
        /// File with roots, such as roots.pem of another folder
        roots: PathBuf,
        /// Folder of the identity
        #[arg(long, value_name = "DIR")]
        identity: PathBuf,
        /// Trust no others; refused where the machine's own certificate leads to none of them
        #[arg(long)]
        only: bool,
    },
    /// Make the key that seals the secrets of tenants; where there is one, the new one seals and the others open
    SecretsKey {
        /// Folder: that of the root, or of a control node's identity
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Show what is in a folder: names, keys, validity
    Show {
        /// Folder of the root or of an identity
        folder: PathBuf,
    },
}

/// A machine whose identity an issuer signs.
#[derive(Clone, Debug, Args)]
pub struct Machine {
    /// Name: that of the node, or the value of `muster shard --name`
    pub name: String,
    /// Folder of a control node's identity, with its issuer
    #[arg(long, value_name = "DIR")]
    pub issuer: PathBuf,
    /// Folder of the identity
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}
