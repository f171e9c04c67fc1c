//! Arguments of `muster secret`.

use clap::Subcommand;
use std::path::PathBuf;

/// `muster secret`.
#[derive(Clone, Debug, Subcommand)]
#[command(after_help = "\
Examples:
  muster secret put registry-token --tenant research --from-file token.txt
  muster submit --tenant research --secret-env TOKEN=registry-token -- ./train.sh
In a job file:
  env:
    TOKEN: {secret: registry-token}
The value is sealed by the control node that receives it, and opened only for the nodes on which a task that names it starts.")]
pub enum Secret {
    /// Give a secret a value, the first or another one; tasks that start later get it
    Put {
        /// Name of the secret
        name: String,
        /// Path of the tenant whose jobs may use it
        #[arg(long, value_name = "PATH")]
        tenant: String,
        /// File with the value, a text of at most 4 KiB; '-' reads standard input. A newline at its end is left out
        #[arg(long, value_name = "FILE", default_value = "-")]
        from_file: PathBuf,
    },
    /// List the names of a tenant's secrets
    List {
        /// Path of the tenant
        #[arg(long, value_name = "PATH")]
        tenant: String,
    },
    /// Delete a secret; refused while a job that has not ended names it
    Delete {
        /// Name of the secret
        name: String,
        /// Path of the tenant
        #[arg(long, value_name = "PATH")]
        tenant: String,
    },
}
