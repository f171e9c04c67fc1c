//! Arguments of `muster audit export` and `verify`.

use clap::Args;
use std::path::PathBuf;

/// `muster audit export`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Each record is one line of JSON with its number, time, principal, call, target and hash. Records
come in order and at least once. Each is checked against the one before it, and the first against
what was exported before. It needs the role auditor or operator.

Where the cluster has certificates, the control node that answers signs the newest record: a line
signed_head after it, at the end, and with --follow at most once a minute.

  file:PATH         JSON lines at the end of the file, which itself says what was exported
  syslog:HOST:PORT  RFC 5424 over TCP, not encrypted: for a receiver on this machine
  https://HOST/...  a POST of JSON lines; an answer of 2xx says that they have arrived
                    (http:// is for receivers on this machine alone)

Examples:
  muster audit export --to file:audit.jsonl
  muster audit export --to file:audit.jsonl --follow
  muster audit export --to syslog:127.0.0.1:601 --position audit.position --follow
  muster audit export --to https://logs.example.com/in --position audit.position --follow")]
pub struct Export {
    /// Where to: file:PATH, syslog:HOST:PORT or a URL
    #[arg(long, value_name = "DESTINATION")]
    pub to: String,
    /// File that keeps how far the export has come, for syslog and https
    #[arg(long, value_name = "FILE")]
    pub position: Option<PathBuf>,
    /// Begin with this record; what was exported already is not exported again [default: the first, or where the last export ended]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub from: Option<u64>,
    /// Go on with new records until Ctrl-C, whatever is away meanwhile
    #[arg(long, short)]
    pub follow: bool,
    /// Send what is in this file as the header Authorization, for https
    #[arg(long, value_name = "FILE")]
    pub authorization_file: Option<PathBuf>,
    /// Trust the authorities of this PEM file, for https [default: the usual ones]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// `muster audit verify`.
#[derive(Clone, Debug, Args)]
pub struct Verify {
    /// Read a file that `muster audit export` has written instead of the cluster
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Check also that the cluster has the last record of the file
    #[arg(long, requires = "file")]
    pub against_cluster: bool,
    /// Check that control nodes under the roots of this PEM file have signed the heads in the file; it must have one [default: check them by MUSTER_ROOTS_FILE or roots-file of the configuration]
    #[arg(long, value_name = "FILE", requires = "file")]
    pub roots: Option<PathBuf>,
}
