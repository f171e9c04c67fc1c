//! `muster node`: the agent of a host. Its cards are simulated, its processes are real; one process may be several such hosts.
//!
//! What must stay true: each simulated host has a data folder, a name and tasks of its own, as if it were alone.

use crate::args::roles::{GpuHealth, GpuKind, GpuResets, MetricsTenants, Node as Args};
use crate::commands::input;
use crate::failure::Failure;
use crate::roles::gpus::Cards;
use crate::roles::http::{self, HttpConfig, Reach};
use crate::roles::{self, gpus, isolation, told_to_stop};
use crate::spec::node::{SimulatedNode, Tiling};
use anyhow::{Context, bail};
use muster_agent::exec::Executor;
use muster_agent::exec::process::{IsolationConfig, ProcessConfig, ProcessExecutor};
use muster_agent::exec::virtual_::VirtualMachine;
use muster_agent::image::{ImagesConfig, cdi, driver_files};
use muster_agent::{Agent, AgentConfig, HealthConfig, HealthMode};
use muster_model::node::NodeSpec;
use muster_runtime::pki::Role;
use muster_runtime::real;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The kernel's word for this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The namespace of the processes that this one sees, and the first of them.
const PID_NAMESPACE: &str = "/proc/self/ns/pid";
const FIRST_PROCESS: &str = "/proc/1/stat";

/// How NVIDIA's driver was loaded, below the folder in which it is installed.
pub(super) const DRIVER_PARAMS: &str = "proc/driver/nvidia/params";

/// Runs until it is told to stop, or an agent gives up.
///
/// # Errors
/// What it failed with.
pub fn run(args: &Args, endpoints: Vec<String>) -> Result<(), Failure> {
    let like = match &args.spec {
        Some(path) => {
            let (text, name) = input::read(path)?;
            SimulatedNode::parse_over(base(args)?, &text, &name)?
        }
        None => base(args)?,
    };
    let hosts = hosts(args, &like)?;
    roles::run(&args.common, |pages| serve(args, hosts, endpoints, pages))
}

/// What a host is like where the node file says nothing: one with real cards is this machine.
fn base(args: &Args) -> Result<SimulatedNode, Failure> {
    let simulated = SimulatedNode::default();
    if args.gpus != GpuKind::Nvml {
        return Ok(simulated);
    }
    let failed = |error| Failure::io("reading /proc/meminfo", error);
    let meminfo = std::fs::read_to_string("/proc/meminfo").map_err(failed)?;
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    let memory_mib = kib.ok_or_else(|| failed(std::io::Error::other("it does not say MemTotal in kB")))? / 1_024;
    let cpus = std::thread::available_parallelism().map_err(|error| Failure::io("counting the CPUs", error))?;
    Ok(SimulatedNode { cpu_milli: cpus.get() as u64 * 1_000, memory_mib, ..simulated })
}

/// The hosts to be: the one that was described, or several laid out over a network.
fn hosts(args: &Args, like: &SimulatedNode) -> Result<Vec<SimulatedNode>, Failure> {
    let Some(count) = args.simulate else { return Ok(vec![like.clone().on_host(&host_name())?]) };
    args.tiling.check()?;
    let tiling = Tiling {
        nodes_per_leaf: args.tiling.nodes_per_leaf(),
        leaves_per_block: args.tiling.leaves_per_block,
        nodes_per_nvlink_domain: args.tiling.nvlink_domain,
        cells: args.tiling.cells,
    };
    let total = args.total.unwrap_or(args.first + count);
    Ok((args.first..args.first + count).map(|index| tiling.node(like, index, total)).collect())
}

/// Empty when the kernel does not say.
fn host_name() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

async fn serve(
    args: &Args,
    hosts: Vec<SimulatedNode>,
    endpoints: Vec<String>,
    pages: HttpConfig,
) -> anyhow::Result<()> {
    let boot_id = format!("{}.{}", boot_id()?, args.boot);
    let data = args.data().context("finding the data folder")?;
    std::fs::create_dir_all(&data).with_context(|| format!("making {}", data.display()))?;
    // Tasks have users of their own, and no business in it.
    std::fs::set_permissions(&data, Permissions::from_mode(0o700))
        .with_context(|| format!("closing {} to other users", data.display()))?;
    let mut agents = Vec::with_capacity(hosts.len());
    let isolation = if args.virtual_tasks { isolation::Tasks::simulated() } else { isolation::of(args)? };
    for host in &hosts {
        let agent = start(args, host, (&boot_id, isolation.clone()), endpoints.clone()).await;
        agents.push(agent.with_context(|| format!("starting the agent of {}", host.name))?);
    }
    let agents: Arc<Vec<Agent>> = Arc::new(agents);
    tracing::info!(hosts = hosts.len(), first = hosts.first().map(|host| host.name.as_str()), "agents started");
    let watched = agents.clone();
    let health = move || {
        let away = watched.iter().filter(|agent| agent.status().session.is_none()).count();
        if away == 0 {
            Ok(())
        } else {
            Err(format!("{away} of {} nodes have no session with the control plane", watched.len()))
        }
    };
    let (sampled, names) = (agents.clone(), args.metrics_tenants);
    let page = move |reach| {
        let telemetry: Vec<_> = sampled.iter().map(Agent::telemetry).collect();
        let with_tenants = reach == Reach::Loopback && names == MetricsTenants::Loopback;
        muster_agent::telemetry::page(telemetry.iter().map(AsRef::as_ref), with_tenants)
    };
    http::serve(pages, Arc::new(health), Some(Arc::new(page))).await?;
    tokio::select! {
        signal = told_to_stop() => {
            tracing::info!(signal = signal?, "agents are stopping; tasks continue under their shims");
            Ok(())
        }
        name = first_to_give_up(&agents, &hosts) => bail!("the agent of node {name} stopped; the log says why"),
    }
}

/// Changes whenever all processes that this one could see are gone: at a boot of the machine, and where an agent runs in a container,
/// at each start of that. Two agents of one boot see each other's tasks.
fn boot_id() -> anyhow::Result<String> {
    let boot_id = std::fs::read_to_string(BOOT_ID).with_context(|| format!("reading {BOOT_ID}"))?;
    let namespace = std::fs::metadata(PID_NAMESPACE).with_context(|| format!("reading {PID_NAMESPACE}"))?.ino();
    let first = std::fs::read_to_string(FIRST_PROCESS).with_context(|| format!("reading {FIRST_PROCESS}"))?;
    // The 20th field behind the name, which is in brackets and may hold anything: when it was started, in ticks since the boot.
    let started = first.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(19));
    let started = started.with_context(|| format!("{FIRST_PROCESS} does not say when it was started"))?;
    Ok(format!("{}.{namespace}.{started}", boot_id.trim()))
}

async fn start(
    args: &Args,
    host: &SimulatedNode,
    (boot_id, isolation): (&str, isolation::Tasks),
    endpoints: Vec<String>,
) -> anyhow::Result<Agent> {
    let data = args.data().context("finding the data folder")?.join(&host.name);
    // Several simulated nodes have an identity each.
    let identity = args.common.identity.as_ref();
    let identity =
        identity.map(|folder| if args.simulate.is_some() { folder.join(&host.name) } else { folder.clone() });
    let machine = real::identified_host(&host.name, &data, Duration::ZERO, identity.as_deref());
    roles::join(&machine, Role::Node(host.name.clone()), args.join.as_deref()).await?;
    let cards = gpus::open(args, host, &data, &machine, boot_id).await?;
    let executor: Arc<dyn Executor> = if args.virtual_tasks {
        Arc::new(VirtualMachine::new(machine.clock.clone(), false))
    } else {
        let config = ProcessConfig::new(isolation::shim()?, &data, boot_id);
        let driver_root = cards.driver_root.clone();
        let images = ImagesConfig { skopeo: args.isolation.skopeo.clone(), driver_root, ..ImagesConfig::default() };
        let driver_params = cards.driver_root.as_ref().map(|root| root.join(DRIVER_PARAMS));
        let isolation = isolation.config.map(|config| IsolationConfig { driver_params, ..config });
        let driver = cards.serves.clone();
        let config = ProcessConfig { reaps_orphans: true, isolation, images, driver, ..config };
        Arc::new(ProcessExecutor::new(config))
    };
    write_cdi(&data, &cards).await;
    let spec = NodeSpec {
        name: host.name.clone(),
        address: host.address.clone(),
        place: host.place.clone(),
        cell: host.cell.clone(),
        pool: host.pool.clone(),
        gpus: cards.listed,
        cpu_milli: host.cpu_milli,
        memory_mib: host.memory_mib,
        driver: cards.driver,
        labels: host.labels.clone(),
        boot_id: boot_id.to_owned(),
        proofs: isolation.proofs.borrow().clone(),
    };
    let usage_period = Duration::from_secs(args.usage_period.0.max(1));
    let health = HealthConfig {
        mode: match args.gpu_health {
            GpuHealth::Enforce => HealthMode::Enforce,
            GpuHealth::Observe => HealthMode::ObserveOnly,
        },
        kernel_log: cards.kernel_log,
        resets: args.gpu_resets == GpuResets::Drained,
    };
    let config = AgentConfig {
        transport: args.common.transport(),
        usage_period,
        health,
        proofs: isolation.proofs,
        ..AgentConfig::new(spec, endpoints, executor, cards.backend)
    };
    Ok(Agent::start(machine, config).await?)
}

/// Writes down what containers are given of the driver, for people. Where that cannot be, tasks run all the same.
async fn write_cdi(data: &Path, cards: &Cards) {
    let Some(root) = &cards.driver_root else { return };
    let Ok(all) = cards.backend.cards().await else { return };
    let gpus: Vec<_> =
        (0..all.len() as u16).filter_map(|gpu| Some((gpu, cards.backend.device_nodes(gpu, None).ok()?))).collect();
    if let Err(error) = cdi::write(data, &cdi::spec(&driver_files::find(root), &gpus)) {
        tracing::warn!(%error, "cannot write cdi/muster.json");
    }
}

/// The name of the first host whose agent has stopped by itself.
async fn first_to_give_up<'a>(agents: &[Agent], hosts: &'a [SimulatedNode]) -> &'a str {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let failed = agents.iter().zip(hosts).find(|(agent, _)| agent.status().failed);
        if let Some((_, host)) = failed {
            return &host.name;
        }
    }
}
