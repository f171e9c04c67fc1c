//! A voter made from the library, with a bug that was found and fixed once: an experiment that does not find it shows nothing.

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use muster_control_server::{ControlConfig, ControlNode, PlantedBug};
use muster_runtime::real;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bug {
    /// A leader that starts again leads on in its old term, by the commit mark on its disk.
    LeadershipResumed,
    /// The leader's own clock is believed, whatever the others say.
    ClockBelieved,
    /// An append that takes longer than openraft waits for it is ended, and begun again from the start.
    AppendsGivenUp,
    /// Whoever hears no leader for a while takes a new term without asking.
    PreVoteSkipped,
}

/// As `muster control`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Voter {
    #[arg(long)]
    bug: Bug,
    #[arg(long)]
    id: u64,
    #[arg(long)]
    data: PathBuf,
    #[arg(long)]
    listen: String,
    #[arg(long, value_parser = member)]
    bootstrap: Vec<(u64, String)>,
}

fn member(text: &str) -> Result<(u64, String), String> {
    let parts = text.split_once('=').and_then(|(id, address)| Some((id.parse().ok()?, address.to_owned())));
    parts.ok_or_else(|| "is not ID=HOST:PORT; write it as 1=10.0.0.1:7400".to_owned())
}

/// Runs until it is killed.
pub(crate) fn run(voter: &Voter) -> Result<()> {
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    threads.block_on(serve(voter))
}

async fn serve(voter: &Voter) -> Result<()> {
    let host = real::host(format!("control-{}", voter.id), &voter.data);
    let mut config = ControlConfig::new(voter.id, voter.listen.clone());
    config.consensus.planted = Some(match voter.bug {
        Bug::LeadershipResumed => PlantedBug::LeadershipResumed,
        Bug::ClockBelieved => PlantedBug::ClockBelieved,
        Bug::AppendsGivenUp => PlantedBug::AppendsGivenUp,
        Bug::PreVoteSkipped => PlantedBug::PreVoteSkipped,
    });
    let node = ControlNode::start(host, config).await.context("starting the voter")?;
    if voter.bootstrap.iter().map(|(id, _)| *id).min() == Some(voter.id) {
        let members: BTreeMap<u64, String> = voter.bootstrap.iter().cloned().collect();
        // Refused after the first start.
        let _ = node.consensus().bootstrap(members).await;
    }
    bail!("the voter ended: {}", node.ended().await)
}
