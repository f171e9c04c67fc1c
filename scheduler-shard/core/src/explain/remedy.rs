//! What would start a waiting job: changes of what it asks for, of what others hold, or of what operators have set.
//!
//! What must stay true: a remedy is told only after the change was made on a copy and the job started there ([`super::trial`]).

use super::supply::ClosedNode;
use super::words::{HIDDEN, amount, counted, cpus, joined, listed, memory, named_jobs, resource_word, span, tasks};
use crate::job_class::ClassKey;
use muster_model::resources::Resource;
use muster_model::{DeviceRequest, GpuModel, JobId, NodeHealth, NodeId, NumaPolicy, Spread, TenantId, TopologyLevel};

/// A node that would have to take work again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToOpen {
    /// Which.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// An operator has drained it.
    pub drained: bool,
    /// It has not proved what its pool needs.
    pub unproven: bool,
    /// It comes from a backup, and not all is clear yet.
    pub restored: bool,
    /// What the control plane thinks of it.
    pub health: NodeHealth,
}

impl From<ClosedNode> for ToOpen {
    fn from(closed: ClosedNode) -> Self {
        let ClosedNode { node, name, drained, quarantined: _, unproven, restored, health, amount: _ } = closed;
        ToOpen { node, name, drained, unproven, restored, health }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The max of a tenant becomes this.
    RaiseMax {
        /// Which tenant.
        tenant: TenantId,
        /// Its path.
        path: String,
        /// Of which resource.
        resource: Resource,
        /// The new max.
        to: u64,
    },
    /// The guarantee of a tenant becomes this, so that a floor covers the job.
    RaiseGuarantee {
        /// Which tenant.
        tenant: TenantId,
        /// Its path.
        path: String,
        /// Of which resource.
        resource: Resource,
        /// The new guarantee.
        to: u64,
    },
    /// The tenant lends what is idle of its guarantee.
    Lend {
        /// Which tenant.
        tenant: TenantId,
        /// Its path.
        path: String,
        /// Of which resource.
        resource: Resource,
    },
    /// The tenant may share cards with others.
    Trust {
        /// Which tenant.
        tenant: TenantId,
        /// Its path.
        path: String,
    },
    /// The job has a higher priority.
    Priority(i32),
    /// The gang may spread over this level; none: over all of its cell.
    Topology {
        /// What it requires now.
        from: TopologyLevel,
        /// What it should.
        to: Option<TopologyLevel>,
    },
    /// Any pool will do, not only this one.
    AnyPool(String),
    /// Any driver will do.
    AnyDriver,
    /// Any card of its models will do.
    AnyCard,
    /// One more model will do.
    Model(GpuModel),
    /// A smaller gang.
    Tasks {
        /// Tasks it has.
        from: u32,
        /// Tasks that would start.
        to: u32,
    },
    /// Another NUMA policy.
    Numa(NumaPolicy),
    /// More tasks may share a domain.
    TasksMax {
        /// Of which level.
        level: TopologyLevel,
        /// Tasks in one.
        tasks: u32,
    },
    /// A time limit of at most so many seconds.
    TimeLimit(u64),
    /// Less CPU for each task, in milli-CPUs.
    Cpu(u64),
    /// Less memory for each task, in MiB.
    Memory(u64),
    /// These nodes take work again.
    Open(Vec<ToOpen>),
    /// These jobs end, or leave the queue.
    End(Vec<JobId>),
}

/// Changes that together start the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy(pub Vec<Change>);

/// Jobs that are named in one remedy; the rest is counted.
const NAMED_MAX: usize = 8;

impl Remedy {
    /// For people: `raise the max of research to 24 h100 and wait until job 12 ends`.
    #[must_use]
    pub fn text(&self) -> String {
        joined(self.0.iter().map(Change::text), " and ")
    }

    /// A stable word of its first change.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.0.first().map_or("none", Change::kind)
    }
}

impl Change {
    /// Whether it gives the job the right to preempt others.
    pub(super) fn is_for_preemption(&self) -> bool {
        matches!(self, Change::RaiseGuarantee { .. } | Change::Priority(_))
    }

    fn kind(&self) -> &'static str {
        match self {
            Change::RaiseMax { .. } => "raise_max",
            Change::RaiseGuarantee { .. } => "raise_guarantee",
            Change::Lend { .. } => "lend",
            Change::Trust { .. } => "trust",
            Change::Priority(_) => "priority",
            Change::Topology { .. } => "topology",
            Change::AnyPool(_) => "pool",
            Change::AnyDriver => "driver_min",
            Change::AnyCard => "selector",
            Change::Model(_) => "model",
            Change::Tasks { .. } => "tasks",
            Change::Numa(_) => "numa",
            Change::TasksMax { .. } => "tasks_max",
            Change::TimeLimit(_) => "time_limit",
            Change::Cpu(_) => "cpu",
            Change::Memory(_) => "memory",
            Change::Open(_) => "open_nodes",
            Change::End(_) => "end_jobs",
        }
    }

    fn text(&self) -> String {
        match self {
            Change::RaiseMax { path, resource, to, .. } => {
                format!("raise the max of {path} to {}", amount(*resource, *to))
            }
            Change::RaiseGuarantee { path, resource, to, .. } => {
                format!("raise the guarantee of {path} to {}", amount(*resource, *to))
            }
            Change::Lend { path, resource, .. } => {
                format!("let {path} lend its idle guarantee of {}", resource_word(*resource))
            }
            Change::Trust { path, .. } => format!("set the trust of {path} to trusted"),
            Change::Priority(priority) => {
                format!("raise its priority to {priority}: it may then preempt jobs of its own tenant")
            }
            Change::Topology { from, to: Some(to) } => format!("require topology {to} instead of {from}"),
            Change::Topology { from, to: None } => format!("leave out topology {from}"),
            Change::AnyPool(pool) => format!("leave out pool {pool}"),
            Change::AnyDriver => "leave out the driver minimum".to_owned(),
            Change::AnyCard => "leave out the selector".to_owned(),
            Change::Model(model) => format!("accept model {model} too"),
            Change::Tasks { from, to } => format!("request {} instead of {from}", tasks(u64::from(*to))),
            Change::Numa(policy) => format!("accept NUMA policy {policy}"),
            Change::TasksMax { level, tasks: most } => {
                format!("accept {} on one {level}", tasks(u64::from(*most)))
            }
            Change::TimeLimit(seconds) => format!("set a time limit of at most {}", span(1_000 * seconds)),
            Change::Cpu(milli) => format!("request at most {} for each task", cpus(*milli)),
            Change::Memory(mib) => format!("request at most {} of memory for each task", memory(*mib)),
            Change::Open(nodes) => joined(open_words(nodes).into_iter(), " and "),
            Change::End(jobs) => {
                let (has, them) = if jobs.len() == 1 { ("has", "it") } else { ("have", "them") };
                let cancel = if jobs.contains(&HIDDEN) { String::new() } else { format!(", or cancel {them}") };
                format!("wait until {} {has} ended{cancel}", named_jobs(jobs, NAMED_MAX))
            }
        }
    }

    /// Makes the change of a request; false where it is a change of something else.
    pub(super) fn edit(&self, key: &mut ClassKey) -> bool {
        match self {
            Change::Topology { to, .. } => key.topology.required = *to,
            Change::AnyPool(_) => key.pool = None,
            Change::AnyDriver => key.driver_min = None,
            Change::AnyCard => key.selector = None,
            Change::Model(model) => add_model(&mut key.request.devices, *model),
            Change::Tasks { to, .. } => key.tasks = *to,
            Change::Numa(policy) => key.numa = *policy,
            Change::TasksMax { tasks, .. } => {
                key.topology.spread = key.topology.spread.map(|spread| Spread { tasks_max: *tasks, ..spread });
            }
            Change::TimeLimit(seconds) => key.limit_time(*seconds),
            Change::Cpu(milli) => key.request.cpu_milli = *milli,
            Change::Memory(mib) => key.request.memory_mib = *mib,
            Change::RaiseMax { .. }
            | Change::RaiseGuarantee { .. }
            | Change::Lend { .. }
            | Change::Trust { .. }
            | Change::Priority(_)
            | Change::Open(_)
            | Change::End(_) => return false,
        }
        true
    }
}

/// `undrain node-1, node-2` and `make node-3 (silent) available again`.
fn open_words(nodes: &[ToOpen]) -> Vec<String> {
    if nodes.iter().any(|node| node.name.is_empty()) {
        return vec![format!(
            "wait until {} more take new work, or ask an operator",
            counted(nodes.len() as u64, "node")
        )];
    }
    let drained: Vec<&ToOpen> = nodes.iter().filter(|node| node.drained).collect();
    let away: Vec<&ToOpen> = nodes.iter().filter(|node| node.health != NodeHealth::Ready).collect();
    let mut words = Vec::new();
    if !drained.is_empty() {
        words.push(format!("undrain {}", listed(drained.iter().map(|node| node.name.clone()), NAMED_MAX)));
    }
    if !away.is_empty() {
        let named = away.iter().map(|node| format!("{} ({})", node.name, health_word(node.health)));
        words.push(format!("make {} available again", listed(named, NAMED_MAX)));
    }
    let restored: Vec<&ToOpen> = nodes.iter().filter(|node| node.restored).collect();
    if !restored.is_empty() {
        let named = listed(restored.iter().map(|node| node.name.clone()), NAMED_MAX);
        words.push(format!("confirm {named} after the restore from a backup (`muster machine confirm`)"));
    }
    let unproven: Vec<&ToOpen> = nodes.iter().filter(|node| node.unproven).collect();
    if !unproven.is_empty() {
        let named = listed(unproven.iter().map(|node| node.name.clone()), NAMED_MAX);
        words.push(format!("give {named} the isolation that its pool needs (`muster nodes` says what is missing)"));
    }
    if words.is_empty() {
        words.push(format!("allow new work on {}", listed(nodes.iter().map(|node| node.name.clone()), NAMED_MAX)));
    }
    words
}

pub(super) fn health_word(health: NodeHealth) -> &'static str {
    match health {
        NodeHealth::Ready => "ready",
        NodeHealth::Silent => "silent",
        NodeHealth::Down => "down",
    }
}

/// Adds `model` to those that the tenant named; naming none means any already.
pub(crate) fn add_model(devices: &mut DeviceRequest, model: GpuModel) {
    match devices {
        DeviceRequest::None => {}
        DeviceRequest::Whole { models, .. }
        | DeviceRequest::Mig { models, .. }
        | DeviceRequest::Mps { models, .. }
        | DeviceRequest::TimeSlice { models, .. } => models.push(model),
    }
}
