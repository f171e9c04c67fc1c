//! `muster-chaos`: the real `muster` binary under real faults on one Linux machine.
//!
//! Hosts are network namespaces, disks are ext4 on loop devices, and faults are made with what the kernel and Debian's packages offer.
//! What must stay true: nothing survives a run (all of it lives in namespaces of its own, which end with the run, however it ends); what
//! the machine lacks is skipped and said; only what Muster did wrong is called broken, never that the machine is slow.

mod client;
mod cluster;
mod disk;
mod enclosure;
mod etcd;
mod experiments;
mod judge;
mod lab;
mod large;
mod needs;
mod network;
mod planted;
mod report;
mod tools;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Run the muster binary under real faults, and print what was found.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    /// Names of experiments [default: all]
    names: Vec<String>,
    /// List the experiments and exit
    #[arg(long)]
    list: bool,
    /// Number of rounds, for experiments that have rounds [default: set by each experiment]
    #[arg(long)]
    rounds: Option<u32>,
    /// Duration of each measurement, in seconds [default: set by each experiment]
    #[arg(long)]
    seconds: Option<u64>,
    /// Run fewer rounds and shorter measurements, as in CI
    #[arg(long)]
    short: bool,
    /// Time limit of all experiments together, in minutes; experiments that are not complete then are skipped [default: none]
    #[arg(long)]
    minutes: Option<u64>,
    /// The muster binary [default: in the folder of this binary]
    #[arg(long, value_name = "FILE")]
    muster: Option<PathBuf>,
    /// Folder for the logs of all processes [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Set by the command itself once it runs in namespaces of its own, to what tells the run's disks from those of others
    #[arg(long, hide = true)]
    enclosed: Option<u32>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// A voter with a bug that was fixed once, to see that the experiments find it
    #[command(hide = true)]
    Voter(planted::Voter),
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(Role::Voter(voter)) = &args.role {
        return planted::run(voter).map(|()| ExitCode::SUCCESS);
    }
    if args.list {
        for experiment in experiments::ALL {
            println!("{:<12} {}", experiment.name, experiment.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = experiments::chosen(&args.names)?;
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let Some(run) = args.enclosed else {
        return match enclosure::possible() {
            Ok(()) => threads.block_on(enclosure::enter()),
            Err(why) => {
                let names: Vec<&str> = chosen.iter().map(|experiment| experiment.name).collect();
                Ok(report::all_skipped(&names, &why))
            }
        };
    };
    enclosure::furnish(run)?;
    let lab = lab::Lab::new(&args)?;
    let reports = threads.block_on(experiments::run(&lab, &chosen));
    report::show(&reports).context("writing the table")
}
