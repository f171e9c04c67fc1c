//! Arguments of the commands about identities: `whoami`, `logout`, `sessions`, `token`, `grant`, `audit`, `secure`.

use super::{Seconds, duration};
use clap::{Args, Subcommand};

/// `muster sessions`.
#[derive(Clone, Debug, Args)]
pub struct Sessions {
    /// Sessions of everybody, for admins of the root of the tree
    #[arg(long)]
    pub all: bool,
}

/// `muster login`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A browser opens on this machine; on one without a browser use --device. The session goes with every command from then on, unless
MUSTER_TOKEN_FILE or `token-file` of the configuration names another file.")]
pub struct Login {
    /// Show a code that you enter in a browser on any machine. Enter no code that somebody has sent you
    #[arg(long)]
    pub device: bool,
    /// Show the address instead of opening a browser
    #[arg(long)]
    pub no_browser: bool,
    /// File of the session [default: MUSTER_TOKEN_FILE, `token-file` of the configuration, or ~/.config/muster/session]
    #[arg(long, value_name = "FILE")]
    pub out: Option<std::path::PathBuf>,
    /// Trust the authorities of this PEM file for connections to the identity provider [default: the usual ones]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<std::path::PathBuf>,
}

/// `muster token`.
#[derive(Clone, Debug, Subcommand)]
pub enum Token {
    /// Make a token for a service of a tenant; its text is printed once and kept nowhere
    #[command(after_help = "\
Examples:
  muster token create research/nlp/ci --role submitter --ttl 90d > ci.token
  MUSTER_TOKEN_FILE=ci.token muster submit --tenant research/nlp --gpus 8 -- ./train.sh")]
    Create {
        /// The tenant's path and a name for the service: research/nlp/ci
        #[arg(value_name = "TENANT/NAME")]
        service: String,
        /// What it may do on that tenant: viewer, submitter or admin
        #[arg(long)]
        role: String,
        /// How long it is valid; at most a year
        #[arg(long, value_name = "TIME", value_parser = duration)]
        ttl: Seconds,
        /// Address ranges from which it is taken, such as 10.0.0.0/8 [default: all]
        #[arg(long, value_name = "RANGE", value_delimiter = ',')]
        from: Vec<String>,
        /// For people
        #[arg(long, default_value = "", value_name = "TEXT")]
        note: String,
    },
    /// List tokens of the tenants that you administer
    List {
        /// Only of this tenant and below
        #[arg(default_value = "")]
        tenant: String,
    },
    /// End a token or a session: nothing that is asked with it succeeds any more
    Revoke {
        /// Its number, as `muster token list` and `muster sessions` show it
        id: u64,
    },
}

/// `muster grant`.
#[derive(Clone, Debug, Subcommand)]
pub enum Grant {
    /// Give somebody a role
    #[command(after_help = "\
Roles on a tenant and all below it:
  viewer     sees jobs and quotas
  submitter  submits jobs, and changes their own
  admin      changes all jobs, the tenants below, tokens and grants
Roles on the fleet, given by admins of the root of the tree:
  operator   runs nodes, pools and control nodes; sees all metadata, and nothing that tenants wrote
  auditor    reads what operators see, and the audit

Examples:
  muster grant add group:ml-platform admin research
  muster grant add user:alice operator --ttl 8h --reason \"on call\"")]
    Add {
        /// user:NAME, group:NAME or service:TENANT/NAME
        subject: String,
        /// viewer, submitter, admin, operator or auditor
        role: String,
        /// Tenant [default: the root of the tree, or the fleet]
        #[arg(default_value = "")]
        tenant: String,
        /// For how long [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = duration)]
        ttl: Option<Seconds>,
        /// Why, for people; at most 256 bytes
        #[arg(long, default_value = "", value_name = "TEXT")]
        reason: String,
    },
    /// List grants that you may see
    List {
        /// Only on this tenant and below
        #[arg(default_value = "")]
        tenant: String,
        /// Only of user:NAME, group:NAME or service:TENANT/NAME
        #[arg(long, default_value = "", value_name = "SUBJECT")]
        subject: String,
    },
    /// Take a grant away
    Revoke {
        /// Its number, as `muster grant list` shows it
        id: u64,
    },
}

/// `muster audit`.
#[derive(Clone, Debug, Subcommand)]
pub enum Audit {
    /// Show who changed what, the newest first
    List {
        /// Only about this tenant and below
        #[arg(long, default_value = "")]
        tenant: String,
        /// Only of user:NAME, service:TENANT/NAME, node:NAME and so on
        #[arg(long, default_value = "", value_name = "PRINCIPAL")]
        by: String,
        /// Only the last so much time
        #[arg(long, value_name = "TIME", value_parser = duration)]
        since: Option<Seconds>,
        /// At most so many
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Show what was refused, and who read what others wrote; each control node has its own record
    Denials {
        /// At most so many of each control node
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Copy every record to a file or a receiver outside of the cluster
    Export(super::audit::Export),
    /// Read every record, and check that each follows from the one before it and the last is the cluster's
    Verify(super::audit::Verify),
}

/// `muster recover`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Run it on the machine of a control node, as the user of that node or as root:
  muster recover --data /var/lib/muster/control --user alice > admin.token
  MUSTER_TOKEN_FILE=admin.token muster grant add user:alice admin

The session goes through the log, so a quorum of control nodes must be up. It is in the audit.")]
pub struct Recover {
    /// Data folder of the control node
    #[arg(long, value_name = "FOLDER")]
    pub data: std::path::PathBuf,
    /// Under whose name the session is
    #[arg(long, default_value = "recovery")]
    pub user: String,
}

/// `muster access`.
#[derive(Clone, Debug, Subcommand)]
pub enum Access {
    /// From now on every call is judged by grants; somebody must be admin of the root of the tree
    Close,
    /// From now on whoever reaches a port may do everything
    Open,
}
