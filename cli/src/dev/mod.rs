//! `muster dev`: a whole cluster on this machine, one data folder, each role a process of its own.
//!
//! What must stay true: a kill is a real kill, of a role, of the supervisor or of all; the next start on the same folder goes on with
//! its jobs; a cluster is bootstrapped once; two supervisors never share a folder; nothing is left behind by Ctrl-C.

pub mod child;
mod close;
pub mod file;
pub mod folder;
pub mod identities;
pub mod plan;
pub mod ports;
pub mod ready;
pub mod session;
pub mod settings;
pub mod tasks;

use crate::args::roles::Dev;
use crate::client::Client;
use crate::commands::tenants;
use crate::config::Config;
use crate::failure::Failure;
use crate::output::{Colour, Format, Out, note};
use crate::roles::told_to_stop;
use crate::spec::tenants::TreeFile;
use child::{Phase, Supervised};
use file::Registry;
use folder::Folder;
use muster_proto::v1;
use ports::Ports;
use settings::Settings;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The tenant that a new cluster has, so that the first job needs no set-up.
const FIRST_TENANT: &str = "dev";
/// One call to a cluster on this machine.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Tasks are told to end and given this long, when the cluster is stopped.
const TASKS_END_MAX: Duration = Duration::from_secs(5);

/// Runs the cluster until it is told to stop.
///
/// # Errors
/// When the folder is another cluster's, its ports are taken, or a process cannot be started.
pub fn run(args: &Dev) -> Result<(), Failure> {
    let folder = Folder::open(&args.data)?;
    let out = Out::new(Format::Table, Colour::Never);
    if args.print_env {
        return out.line(&format!("export MUSTER_CONFIG={}", folder.config().display()));
    }
    let _lock = folder.lock()?;
    let before = Settings::load(&folder)?;
    let mut settings = Settings::of(args, before.as_ref())?;
    // Held while the cluster runs, so that no other one takes its ports.
    let ports = Ports::claim(&mut settings, args, before.is_some(), &folder)?;
    settings.save(&folder)?;
    // Everything is started from this thread: children notice its end.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("starting", error))?;
    let rest = Duration::from_secs(args.restart_after.map_or(0, |rest| rest.0));
    runtime.block_on(supervise(&folder, settings, &ports, rest))
}

async fn supervise(folder: &Folder, mut settings: Settings, ports: &Ports, rest: Duration) -> Result<(), Failure> {
    let began = Instant::now();
    let endpoints = plan::endpoints(&settings, ports);
    if settings.secured {
        identities::make(folder, &settings).await?;
    } else {
        note(
            "muster dev: in clear text, on loopback addresses alone: every user of this machine may do everything in this cluster",
        );
    }
    let config = Config {
        endpoints: endpoints.clone(),
        tenant: Some(FIRST_TENANT.to_owned()),
        roots_file: settings.secured.then(|| folder.roots()),
        ..Config::default()
    };
    folder.write_config(&config)?;
    note(&format!("muster dev: starting {}", settings.words()));

    let registry = Registry::new(folder.clone(), endpoints.clone())?;
    let (phase, phases) = watch::channel(Phase::Run);
    let mut running = Vec::new();
    for role in plan::roles(folder, &settings, ports)? {
        let supervised = Supervised::new(role, folder, registry.clone(), phases.clone(), rest);
        running.push(tokio::spawn(supervised.run()));
    }
    let end = tokio::select! {
        signal = told_to_stop() => signal.map_err(|error| Failure::io("listening for signals", error)),
        result = attend(folder, &mut settings, config, began) => match result {
            Ok(never) => match never {},
            Err(failure) => Err(failure),
        },
    };
    if let Ok(signal) = &end {
        note(&format!("muster dev: received {signal}, stopping"));
    }
    // Agents and shards go while there is somebody to say goodbye to.
    for step in [Phase::StopWorkers, Phase::StopAll] {
        let _ = phase.send(step);
        child::all_stopped(&mut running, step).await;
    }
    let ended = tasks::end_all(&folder.nodes(), TASKS_END_MAX).await?;
    if ended > 0 {
        // The hosts' next boot: jobs whose tasks were just ended start again with the cluster, as after a power cut.
        settings.boot += 1;
        settings.save(folder)?;
    }
    registry.clear();
    note(&format!(
        "muster dev: stopped, {} ended; the data is kept in {}",
        crate::units::counted(ended, "task"),
        folder.root().display()
    ));
    end.map(|_| ())
}

/// Waits until the cluster is ready, sets a new one up, and says how to use it. Never ends by itself after that.
async fn attend(
    folder: &Folder,
    settings: &mut Settings,
    mut config: Config,
    began: Instant,
) -> Result<std::convert::Infallible, Failure> {
    let token = session::begin(folder, settings).await?;
    if token.is_some() {
        config.token_file = Some(folder.token());
        folder.write_config(&config)?;
    }
    let client = &Client::open(&config.endpoints, CALL_MAX, &config.access()?)?;
    if settings.secured && token.is_some() {
        identities::enrol(client, folder, settings).await?;
    }
    ready::wait(client, settings, began).await;
    if !settings.bootstrapped {
        let tenant = v1::TenantEdit { path: FIRST_TENANT.to_owned(), ..Default::default() };
        tenants::apply(client, TreeFile { edits: vec![tenant], half_life_s: None }, false, false).await?;
        if settings.secured && token.is_some() {
            close::close(client).await?;
        }
        settings.bootstrapped = true;
        settings.save(folder)?;
    }
    // Whoever read this may have gone: then nobody wants the cluster either.
    Out::new(Format::Table, Colour::Never).line(&ready::welcome(folder, settings, client, began.elapsed()))?;
    if token.is_some() {
        session::keep(folder, settings).await;
    }
    std::future::pending().await
}
