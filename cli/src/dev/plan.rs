//! Which processes a development cluster is made of, with their arguments.

use crate::dev::folder::Folder;
use crate::dev::ports::Ports;
use crate::dev::settings::Settings;
use crate::failure::Failure;
use std::path::PathBuf;

/// One process.
#[derive(Clone, Debug)]
pub struct RolePlan {
    /// `control-1`, `shard-2`, `agent-1`.
    pub name: String,
    /// `control`, `shard` or `agent`.
    pub role: &'static str,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Where it serves, for control nodes.
    pub endpoint: Option<String>,
    /// Its metrics and health page.
    pub http: String,
    /// The simulated hosts it is.
    pub nodes: Vec<String>,
}

/// Where the control nodes serve.
#[must_use]
pub fn endpoints(settings: &Settings, ports: &Ports) -> Vec<String> {
    (1..=settings.voters).map(|id| local(ports.control(id))).collect()
}

/// Where machines reach them.
fn for_machines(settings: &Settings, ports: &Ports) -> Vec<String> {
    match settings.secured {
        true => (1..=settings.voters).map(|id| local(ports.control_machines(id))).collect(),
        false => endpoints(settings, ports),
    }
}

fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Every process of the cluster.
///
/// # Errors
/// When the description of the simulated hosts cannot be written.
pub fn roles(folder: &Folder, settings: &Settings, ports: &Ports) -> Result<Vec<RolePlan>, Failure> {
    let node = format!(
        "name: node\nmodel: {}\ngpus: {}\ncpus: {}\nmemory: {}Gi\n",
        settings.model,
        settings.gpus_per_node,
        settings.gpus_per_node * 16,
        settings.gpus_per_node * 256,
    );
    folder.replace(&folder.node_spec(), node.as_bytes())?;
    let all = for_machines(settings, ports);
    let controls = (1..=settings.voters).map(|id| control(folder, settings, ports, id, &all));
    let shards = (1..=settings.shards).map(|number| shard(folder, settings, ports, number, &all));
    let agents = (1..=settings.agents).map(|number| agent(folder, settings, ports, number, &all));
    Ok(controls.chain(shards).chain(agents).collect())
}

fn arguments(words: &[&str], pairs: &[(&str, String)]) -> Vec<String> {
    let pairs = pairs.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.clone()]);
    words.iter().map(|word| (*word).to_owned()).chain(pairs).collect()
}

fn control(folder: &Folder, settings: &Settings, ports: &Ports, id: u32, all: &[String]) -> RolePlan {
    let (endpoint, http) = (local(ports.control(id)), local(ports.control_http(id)));
    let data: PathBuf = folder.control(id);
    let mut pairs = vec![
        ("--id", id.to_string()),
        ("--data", data.display().to_string()),
        ("--listen", endpoint.clone()),
        ("--http", http.clone()),
    ];
    if settings.secured {
        pairs.push(("--listen-machines", local(ports.control_machines(id))));
        pairs.push(("--identity", folder.identity(&format!("control-{id}")).display().to_string()));
    }
    // Once the cluster is there, the option is left out: a lost folder must not become a cluster of its own.
    if !settings.bootstrapped {
        pairs.extend(all.iter().zip(1..).map(|(endpoint, id): (_, u32)| ("--bootstrap", format!("{id}={endpoint}"))));
    }
    RolePlan {
        name: format!("control-{id}"),
        role: "control",
        arguments: arguments(&["control"], &pairs),
        endpoint: Some(endpoint),
        http,
        nodes: Vec::new(),
    }
}

fn shard(folder: &Folder, settings: &Settings, ports: &Ports, number: u32, all: &[String]) -> RolePlan {
    let name = format!("shard-{number}");
    let http = local(ports.shard_http(number));
    let mut pairs = vec![
        ("--name", name.clone()),
        ("--shards-expected", settings.shards.to_string()),
        ("--endpoints", all.join(",")),
        ("--http", http.clone()),
    ];
    if settings.secured {
        pairs.push(("--identity", folder.identity(&name).display().to_string()));
    }
    RolePlan { name, role: "shard", arguments: arguments(&["shard"], &pairs), endpoint: None, http, nodes: Vec::new() }
}

/// The ordinary user for whom this process runs as root.
fn sudo_user() -> Option<String> {
    let user = std::env::var("SUDO_UID").ok()?;
    let is_ordinary = user.parse::<u32>().is_ok_and(|user| user > 0);
    (is_ordinary && nix::unistd::geteuid().is_root()).then_some(user)
}

fn agent(folder: &Folder, settings: &Settings, ports: &Ports, number: u32, all: &[String]) -> RolePlan {
    // Equal runs of hosts, so that a host's folder is always some agent's and only one's.
    let bound = |number: u32| u64::from(settings.nodes) * u64::from(number) / u64::from(settings.agents);
    let (first, end) = (bound(number - 1), bound(number));
    let http = local(ports.agent_http(number));
    let dialled = match settings.sessions_on {
        Some(id) => &all[id as usize - 1..id as usize],
        None => all,
    };
    let pairs = [
        ("--data", folder.nodes().display().to_string()),
        ("--spec", folder.node_spec().display().to_string()),
        ("--first", first.to_string()),
        ("--simulate", (end - first).to_string()),
        ("--total", settings.nodes.to_string()),
        ("--cells", settings.shards.to_string()),
        ("--nodes-per-leaf", settings.nodes_per_leaf.to_string()),
        ("--leaves-per-block", settings.leaves_per_block.to_string()),
        ("--boot", settings.boot.to_string()),
        ("--usage-period", format!("{}s", settings.usage_period_s)),
        ("--endpoints", dialled.join(",")),
        ("--http", http.clone()),
    ];
    let mut arguments_of = pairs.to_vec();
    if settings.secured {
        arguments_of.push(("--identity", folder.node_identities().display().to_string()));
    }
    if let Some(nodes) = settings.nvlink_domain {
        arguments_of.push(("--nvlink-domain", nodes.to_string()));
    }
    arguments_of.push(("--gpus", settings.gpus.name().to_owned()));
    arguments_of.push(("--isolation", settings.isolation.name().to_owned()));
    for path in &settings.task_writes {
        arguments_of.push(("--task-writes", path.display().to_string()));
    }
    // Who runs this by sudo wants to read what the tasks write.
    arguments_of.extend(sudo_user().map(|user| ("--task-user", user)));
    // A machine that cannot isolate tasks can still be developed on.
    let words: &[&str] = match settings.virtual_tasks {
        true => &["node", "--virtual-tasks"],
        false => &["node", "--allow-system-users"],
    };
    RolePlan {
        name: format!("agent-{number}"),
        role: "agent",
        arguments: arguments(words, &arguments_of),
        endpoint: None,
        http,
        nodes: (first..end).map(|index| format!("node-{index:04}")).collect(),
    }
}
