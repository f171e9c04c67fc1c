//! `muster control`: one control node.

use crate::args::roles::Control;
use crate::failure::Failure;
use crate::recovery;
use crate::roles::http::{self, HttpConfig};
use crate::roles::{self, told_to_stop};
use crate::spec::oidc;
use anyhow::{Context, bail};
use muster_control_server::consensus::AdminError;
use muster_control_server::login::LoginConfig;
use muster_control_server::{ControlConfig, ControlNode, HistoryConfig};
use muster_runtime::real;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Whoever waits for a job, or looks after a failure, asks how it ended within the hour.
const KEEP_JOBS_S_MIN: u64 = 3_600;
/// An export that runs once a day misses nothing.
const KEEP_AUDIT_S_MIN: u64 = 24 * 3_600;

/// Runs until it is told to stop, or its disk fails.
///
/// # Errors
/// What it failed with.
pub fn run(args: &Control) -> Result<(), Failure> {
    let me = |(id, _): &(u64, String)| *id == args.id;
    if !args.bootstrap.is_empty() && !args.bootstrap.iter().any(me) {
        let problem = format!("does not contain this node, {}", args.id);
        return Err(Failure::field("bootstrap", problem, "give all voters of the new cluster, this node included"));
    }
    if args.common.identity.is_some() && args.listen_machines.is_none() {
        let problem = "is missing beside --identity";
        return Err(Failure::field(
            "listen-machines",
            problem,
            "give the address for control nodes, shards and agents",
        ));
    }
    if args.keep_jobs.0 < KEEP_JOBS_S_MIN {
        let problem = format!("is {} s", args.keep_jobs.0);
        return Err(Failure::field("keep-jobs", problem, "use 1h or more: clients read how a job ended after its end"));
    }
    if args.keep_audit.0 < KEEP_AUDIT_S_MIN {
        let problem = format!("is {} s", args.keep_audit.0);
        return Err(Failure::field("keep-audit", problem, "use 1d or more, and export the audit before it is removed"));
    }
    // Before anything runs: a wrong file is said at once.
    let login = args.oidc.as_deref().map(oidc::read).transpose()?;
    roles::run(&args.common, |pages| serve(args, login, pages))
}

async fn serve(args: &Control, login: Option<LoginConfig>, pages: HttpConfig) -> anyhow::Result<()> {
    descriptors()?;
    let round_trip = Duration::from_millis(args.wan_rtt);
    let identity = args.common.identity.as_deref();
    let host = real::identified_host(format!("control-{}", args.id), &args.data, round_trip, identity);
    let machines = args.listen_machines.clone();
    let advertise = args.advertise.clone().or_else(|| machines.clone()).unwrap_or_else(|| args.listen.clone());
    let history = HistoryConfig {
        keep_ms: args.keep_jobs.0.saturating_mul(1_000),
        keep_max: args.keep_jobs_max,
        keep_audit_ms: args.keep_audit.0.saturating_mul(1_000),
    };
    let usual = ControlConfig::new(args.id, advertise);
    let consensus = usual.consensus.clone().far(args.wan_rtt);
    let (listen, accept_plaintext) = (args.listen.clone(), args.accept_plaintext);
    if accept_plaintext {
        tracing::warn!("clear text is accepted; run without --accept-plaintext when every machine has its identity");
    }
    let config = ControlConfig { listen, machines, accept_plaintext, history, consensus, login, ..usual };
    let node = Arc::new(ControlNode::start(host, config).await.context("starting the control node")?);
    let watched = node.clone();
    let health =
        move || if watched.is_healthy() { Ok(()) } else { Err("this control node knows no leader".to_owned()) };
    http::serve(pages, Arc::new(health), None).await?;
    recovery::serve(&args.data, node.clone())?;
    // The first of the named voters asks the others; they wait to be asked.
    if args.bootstrap.iter().map(|(id, _)| *id).min() == Some(args.id) {
        bootstrap(&node, args.bootstrap.iter().cloned().collect()).await;
    }
    tokio::select! {
        signal = told_to_stop() => {
            tracing::info!(signal = signal?, "control node is stopping");
            node.shutdown().await;
            Ok(())
        }
        why = node.ended() => bail!("the control node ended: {why}"),
    }
}

async fn bootstrap(node: &ControlNode, members: BTreeMap<u64, String>) {
    match node.consensus().bootstrap(members).await {
        Ok(()) => tracing::info!("created a new cluster"),
        // The usual case after the first start: the option stays in place and says nothing any more.
        Err(AdminError::AlreadyMember { .. }) => tracing::debug!("already part of a cluster; --bootstrap is ignored"),
        // It goes on serving: an operator may bootstrap it, or add it to a cluster.
        Err(error) => tracing::error!(%error, "could not create a new cluster"),
    }
}

/// Takes as many descriptors as the system gives, and says so when they are too few.
fn descriptors() -> anyhow::Result<()> {
    let limit = real::raise_descriptors().context("raising the limit of open files")?;
    let remedy = format!(
        "allow at least {} (systemd: LimitNOFILE={0}; a shell: ulimit -Hn {0}) and start again",
        real::DESCRIPTORS_WANTED
    );
    if limit < real::DESCRIPTORS_MIN {
        bail!(
            "the system allows {limit} open files, but a control node needs at least {}: {remedy}",
            real::DESCRIPTORS_MIN
        );
    }
    if limit < real::DESCRIPTORS_WANTED {
        tracing::warn!(
            limit,
            wanted = real::DESCRIPTORS_WANTED,
            "the limit of open files is low, so fewer clients and agents can connect: {remedy}"
        );
    } else {
        tracing::info!(limit, "limit of open files");
    }
    Ok(())
}
