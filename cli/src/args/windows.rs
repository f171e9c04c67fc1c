//! Arguments of `muster maintenance` and `muster reservations`.

use clap::{Args, Subcommand};

/// Times are written as for `muster submit --begin`.
#[derive(Clone, Debug, Args)]
pub struct When {
    /// When it begins: now, now+1h, 16:00, 2026-11-23T16:00, or with a time zone as in RFC 3339
    #[arg(long, value_name = "WHEN")]
    pub start: String,
    /// When it ends, written in the same way
    #[arg(long, value_name = "WHEN")]
    pub end: String,
}

/// Which nodes.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// Node names, as `muster nodes` shows them
    #[arg(long, value_name = "NODE", value_delimiter = ',', help_heading = "Nodes")]
    pub nodes: Vec<String>,
    /// All nodes of this cell
    #[arg(long, help_heading = "Nodes")]
    pub cell: Option<String>,
    /// All nodes of this pool
    #[arg(long, help_heading = "Nodes")]
    pub pool: Option<String>,
    /// All nodes of this region, zone, block or leaf, as `muster nodes -o wide` shows places: eu-north/a/block-1
    #[arg(long, value_name = "PLACE", help_heading = "Nodes")]
    pub place: Option<String>,
}

/// `muster maintenance`.
#[derive(Clone, Debug, Subcommand)]
pub enum Maintenance {
    /// List maintenance windows, and drains that have not come yet
    List,
    /// Plan maintenance: until its start the nodes take only jobs that end before, and none until its end
    #[command(after_help = "\
Examples:
  muster maintenance create kernel --nodes node-0007 --start 22:00 --end now+1d --reason \"new kernel\"
  muster maintenance create leaf-3 --place eu-north/a/block-1/leaf-3 --start 2026-12-01T08:00 --end 2026-12-01T12:00 --preempt

A job without a time limit is not placed on the nodes from now on. What still runs at the start runs on, unless --preempt.")]
    Create {
        /// Its name, unique among maintenance windows and reservations
        name: String,
        /// When it is.
        #[command(flatten)]
        when: When,
        /// Which nodes.
        #[command(flatten)]
        place: Place,
        /// Reason, for people; at most 256 bytes
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// Preempt jobs that may still run at the start, each its grace before
        #[arg(long)]
        preempt: bool,
    },
    /// End a maintenance window, or give it up before it begins
    Delete {
        /// Its name
        name: String,
    },
}

/// `muster reservations`.
#[derive(Clone, Debug, Subcommand)]
pub enum Reservations {
    /// List advance reservations
    List,
    /// Reserve nodes for tenants; refused when they cannot be held
    #[command(after_help = "\
Examples:
  muster reservations create launch --tenant research --gpus 64 --model h100 --start 2026-12-01T08:00 --end 2026-12-02T08:00
  muster submit --tenant research --gpus 8 --time 4h --reservation launch -- python train.py

Whole nodes are reserved. Until the start other jobs may use them if their time limits end before. Meanwhile only jobs of the
tenants that name the reservation may, and their time limits must end before its end, unless --flex.")]
    Create(Box<CreateReservation>),
    /// End a reservation, or give it up before it begins; its jobs that run continue
    Delete {
        /// Its name
        name: String,
    },
}

/// `muster reservations create`.
#[derive(Clone, Debug, Args)]
pub struct CreateReservation {
    /// Its name, unique among maintenance windows and reservations
    pub name: String,
    /// When it is.
    #[command(flatten)]
    pub when: When,
    /// Tenants that may use it, with the tenants below them
    #[arg(long, value_name = "TENANT", value_delimiter = ',', required = true)]
    pub tenant: Vec<String>,
    /// GPUs that it needs at least: Muster chooses the nodes
    #[arg(long, value_name = "N", requires = "model", conflicts_with_all = ["nodes", "cell", "pool", "place"])]
    pub gpus: Option<u64>,
    /// Their model
    #[arg(long, requires = "gpus")]
    pub model: Option<String>,
    /// Which nodes.
    #[command(flatten)]
    pub place: Place,
    /// Reason, for people; at most 256 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Jobs that name it may start before it and run past its end
    #[arg(long)]
    pub flex: bool,
}
