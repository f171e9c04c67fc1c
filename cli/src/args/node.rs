//! What else `muster node` does than to run an agent.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What else `muster node` does.
#[derive(Clone, Debug, Subcommand)]
pub enum NodeCommand {
    /// Try what this machine gives to isolate tasks, and say what is missing and how to get it
    Doctor(Box<Doctor>),
    /// Record what NVIDIA's driver tells of the GPUs of this machine, without changing anything, as a host for --gpus double
    Record(Box<Record>),
}

/// `muster node doctor`.
#[derive(Clone, Debug, Args)]
pub struct Doctor {
    /// Where NVIDIA's driver is installed
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub driver_root: PathBuf,
    /// NVIDIA's management library
    #[arg(long, value_name = "FILE", default_value = "libnvidia-ml.so.1", hide_default_value = true)]
    pub nvml_library: PathBuf,
}

/// `muster node record`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  muster node record --out host.json                                     on the machine with the GPUs, as root
  muster node --data sim --gpus double --gpu-recording host.json         elsewhere: an agent on a double of that machine

The recording has the names, UUIDs and serial numbers of the GPUs and MIG instances as they are, and PCI addresses; with --anonymous other UUIDs and
serial numbers are made up. Processes are not recorded. Reading MIG instances takes root. What could not be read, and profiles of which the double has
other figures, are named on standard error.")]
pub struct Record {
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Make up UUIDs and serial numbers
    #[arg(long)]
    pub anonymous: bool,
    /// Where NVIDIA's driver is installed
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub driver_root: PathBuf,
    /// NVIDIA's management library
    #[arg(long, value_name = "FILE", default_value = "libnvidia-ml.so.1", hide_default_value = true)]
    pub nvml_library: PathBuf,
}
