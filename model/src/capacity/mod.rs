//! What fits, what is charged, what is released: the one place for all three.
//!
//! Shards plan with a [`Capacity`] that has their own pending proposals already charged; the control plane keeps its own and
//! proves every binding again with the same [`Capacity::prove`]. What must stay true (laws 1, 3 and 8): after any sequence of
//! proved charges and releases, no card, MIG placement or share is held twice, no memory is oversubscribed, no tenant at any level
//! is over its max, and shares of one card belong to one trust domain. `charge` of something that was not proved panics rather
//! than corrupt the capacity ledger.

mod accounts;
mod anti_affinity;
mod card;
mod ended;
mod floors;
mod node_use;
mod occupancy;
mod proof;
pub mod shares;
mod tenants;

pub use accounts::{NotLent, Rank as PromotionRank};
pub use anti_affinity::Kept;
pub use card::{
    CardConflict, CardRules, CardUse, MPS_CLIENTS_MAX, MPS_CLIENTS_MORE_DRIVER, MPS_CLIENTS_OLD_MAX, Share,
    TIME_SLICE_REPLICAS_MAX,
};
pub use ended::Ended;
pub use floors::{healthy_of, unmet};
pub use node_use::NodeUse;
pub use occupancy::{SoleHolder, Tenants};
pub use shares::ShareRule;
pub use tenants::{OverMax, TenantUse};

use node_use::each_hold;
use proof::Taken;

use crate::allocation::Allocation;
use crate::gpu::GpuModel;
use crate::ids::{AllocationId, JobId, NodeId, TenantId};
use crate::mig::PinnedLayout;
use crate::node::{Node, Pool};
use crate::request::SharingMode;
use crate::resources::ResourceVec;
use crate::task::{HoldMode, TaskPlacement};
use crate::tenant::AntiAffinityLevel;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a placement does not fit. Every variant carries what was there and what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The node has left the fleet.
    #[error("node {node} is not in the fleet")]
    NoNode {
        /// Which.
        node: NodeId,
    },
    /// The node takes no new work.
    #[error("node {node} takes no new work (silent, down, drained, quarantined or unproven)")]
    NodeClosed {
        /// Which.
        node: NodeId,
    },
    /// No such card.
    #[error("node {node} has no GPU {gpu}")]
    NoGpu {
        /// Which node.
        node: NodeId,
        /// Which card.
        gpu: u16,
    },
    /// The card is withheld.
    #[error("GPU {gpu} of node {node} is withheld: {reason}")]
    Withheld {
        /// Which node.
        node: NodeId,
        /// Which card.
        gpu: u16,
        /// Why.
        reason: String,
    },
    /// The card, instance or share is not free.
    #[error("GPU {gpu} of node {node} cannot take {}: {}", asked.in_words(*model), conflict.on(*model))]
    Taken {
        /// Which node.
        node: NodeId,
        /// Which card.
        gpu: u16,
        /// Its model.
        model: GpuModel,
        /// What was asked.
        asked: HoldMode,
        /// What stands in the way.
        conflict: CardConflict,
    },
    /// The node's pool does not let its cards take this mode.
    #[error("pool {pool:?} of node {node} does not allow {mode}")]
    ModeNotAllowed {
        /// Which node.
        node: NodeId,
        /// Which pool.
        pool: String,
        /// Which mode.
        mode: SharingMode,
    },
    /// The card holds a fixed layout, and this is none of its slots.
    #[error(
        "GPU {gpu} of node {node} keeps the MIG layout {} of pool {pool:?}, which has no slot for {}",
        layout.in_words(*model), asked.in_words(*model)
    )]
    Pinned {
        /// Which node.
        node: NodeId,
        /// Which card.
        gpu: u16,
        /// Which pool.
        pool: String,
        /// The card's model.
        model: GpuModel,
        /// Its layout.
        layout: PinnedLayout,
        /// What was asked.
        asked: HoldMode,
    },
    /// CPU or memory of the node does not suffice.
    #[error("node {node} has {free} {what} free, {asked} needed")]
    Host {
        /// Which node.
        node: NodeId,
        /// `milli-CPU` or `MiB`.
        what: &'static str,
        /// What is free.
        free: u64,
        /// What was asked.
        asked: u64,
    },
    /// Another job has claimed the node, and gets it when those that it preempts have ended.
    #[error("node {node} is claimed by job {job}, which preempts what runs there")]
    Claimed {
        /// Which node.
        node: NodeId,
        /// By whom.
        job: JobId,
    },
    /// The tenant is not trusted enough to share a card.
    #[error("untrusted tenants may share a GPU only through MIG")]
    Untrusted,
    /// Tenants that admins keep apart.
    #[error("tenants {tenant} and {other} may not share one {level} (anti-affinity), and {other} is on node {node}")]
    AntiAffinityConflict {
        /// Whose gang it is.
        tenant: String,
        /// Who is there.
        other: String,
        /// What they may not share.
        level: AntiAffinityLevel,
        /// Where the other is.
        node: NodeId,
    },
    /// No such tenant.
    #[error("tenant {tenant} does not exist")]
    NoTenant {
        /// Which.
        tenant: TenantId,
    },
    /// A ceiling would be passed.
    #[error(transparent)]
    OverMax(#[from] OverMax),
    /// It would use what others do not lend.
    #[error(transparent)]
    NotLent(#[from] NotLent),
}

/// The capacity ledger of the fleet: what each node and each tenant has in use.
#[derive(Clone, Debug, Default)]
pub struct Capacity {
    nodes: BTreeMap<NodeId, NodeUse>,
    tenants: BTreeMap<TenantId, TenantUse>,
    pools: BTreeMap<String, Pool>,
    share_rule: ShareRule,
    accounts: accounts::Accounts,
    /// Nodes of NVLink domains that span several.
    spans: anti_affinity::Spans,
    occupancy: occupancy::Occupancy,
    floors: floors::Floors,
}

impl Capacity {
    /// The nodes, by id.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<NodeId, NodeUse> {
        &self.nodes
    }

    /// The tenants, by id.
    #[must_use]
    pub fn tenants(&self) -> &BTreeMap<TenantId, TenantUse> {
        &self.tenants
    }

    /// The pools, by name.
    #[must_use]
    pub fn pools(&self) -> &BTreeMap<String, Pool> {
        &self.pools
    }

    /// Adds a node or takes over its new description; what is held of it stays held.
    pub fn put_node(&mut self, node: Arc<Node>) {
        let before = self.nodes.get(&node.id).map(|old| old.node.clone());
        self.change_healthy(before.as_deref(), Some(&node));
        if let Some(old) = before {
            self.leave_span(&old);
        }
        self.join_span(&node);
        let pool = self.pools.get(&node.spec.pool).unwrap_or_else(|| Pool::standard_rules());
        let Some(old) = self.nodes.get_mut(&node.id) else {
            self.nodes.insert(node.id, NodeUse::of(node, pool));
            return;
        };
        old.pinned = pool.pinned_cards(&node.spec.gpus);
        old.cpu_free_milli += node.spec.cpu_milli as i64 - old.node.spec.cpu_milli as i64;
        old.memory_free_mib += node.spec.memory_mib as i64 - old.node.spec.memory_mib as i64;
        // Cards that are gone leave the capacity ledger once nobody holds them.
        while old.cards.len() > node.spec.gpus.len() && old.cards.last() == Some(&CardUse::Free) {
            old.cards.pop();
        }
        if old.cards.len() < node.spec.gpus.len() {
            old.cards.resize(node.spec.gpus.len(), CardUse::Free);
        }
        old.cards.iter_mut().zip(&node.spec.gpus).for_each(|(card, gpu)| card.withhold(gpu));
        old.node = node;
    }

    /// Takes a node out; nothing may be held of it.
    pub fn remove_node(&mut self, id: NodeId) {
        if let Some(old) = self.nodes.remove(&id) {
            self.change_healthy(Some(&old.node), None);
            self.leave_span(&old.node);
        }
    }

    /// Adds a pool or takes over its new rules, for bindings from now on.
    pub fn put_pool(&mut self, pool: Pool) {
        let name = pool.name.clone();
        let old = self.pools.insert(name.clone(), pool);
        if old.map(|old| old.pinned).unwrap_or_default() != self.pools[&name].pinned {
            self.pin_nodes_of(&name);
        }
    }

    /// Takes a pool out.
    pub fn remove_pool(&mut self, name: &str) {
        if self.pools.remove(name).is_some_and(|old| !old.pinned.is_empty()) {
            self.pin_nodes_of(name);
        }
    }

    /// The layouts of a pool have changed.
    fn pin_nodes_of(&mut self, name: &str) {
        let pool = self.pools.get(name).unwrap_or_else(|| Pool::standard_rules());
        for there in self.nodes.values_mut().filter(|there| there.node.spec.pool == name) {
            there.pinned = pool.pinned_cards(&there.node.spec.gpus);
        }
    }

    /// The pool that rules `node`: its own, or the standard rules when that has not been described.
    #[must_use]
    pub fn pool_of(&self, node: &Node) -> &Pool {
        self.pool_named(&node.spec.pool)
    }

    /// The rules of the pool of that name; the standard rules when it has not been described.
    #[must_use]
    pub fn pool_named(&self, name: &str) -> &Pool {
        self.pools.get(name).unwrap_or_else(|| Pool::standard_rules())
    }

    /// How much of a card its shares may have, for bindings from now on.
    pub const fn set_share_rule(&mut self, rule: ShareRule) {
        self.share_rule = rule;
    }

    /// How much of a card its shares may have.
    #[must_use]
    pub const fn share_rule(&self) -> ShareRule {
        self.share_rule
    }

    /// By which rules the cards of `node` are given.
    #[must_use]
    pub fn card_rules(&self, node: &Node) -> CardRules<'_> {
        CardRules { pool: self.pool_of(node), shares: self.share_rule }
    }

    /// Whether `tasks` fit, whole, for `tenant` at `charge`: devices, host, pool, trust, neighbours, and the max of every level.
    ///
    /// # Errors
    /// The first thing in the way.
    pub fn prove(
        &self,
        tenant: TenantId,
        tasks: &[TaskPlacement],
        cpu_milli: u64,
        memory_mib: u64,
        charge: &ResourceVec,
    ) -> Result<(), Misfit> {
        self.max_allows(tenant, charge)?;
        self.prove_devices(tenant, tasks, cpu_milli, memory_mib, &BTreeMap::new())
    }

    /// The same for devices alone, as nodes would be once `victims` have ended.
    ///
    /// # Errors
    /// The first thing in the way.
    pub fn prove_without(
        &self,
        victims: &[&Allocation],
        tenant: TenantId,
        tasks: &[TaskPlacement],
        cpu_milli: u64,
        memory_mib: u64,
    ) -> Result<(), Misfit> {
        let mut freed: BTreeMap<NodeId, NodeUse> = BTreeMap::new();
        for (victim, task) in victims.iter().flat_map(|victim| victim.tasks.iter().map(move |task| (victim, task))) {
            let Some(there) = self.nodes.get(&task.node) else { continue };
            freed.entry(task.node).or_insert_with(|| there.clone()).release(victim, task);
        }
        self.prove_devices(tenant, tasks, cpu_milli, memory_mib, &freed)
    }

    /// Whether gangs fit one beside the other, each whole, on devices as nodes would be once `ended` have.
    ///
    /// # Errors
    /// The first thing in the way of one of them.
    pub fn prove_together(&self, ended: &[&Allocation], gangs: &[&Allocation]) -> Result<(), Misfit> {
        let mut as_then: BTreeMap<NodeId, NodeUse> = BTreeMap::new();
        for (victim, task) in ended.iter().flat_map(|victim| victim.tasks.iter().map(move |task| (victim, task))) {
            let Some(there) = self.nodes.get(&task.node) else { continue };
            as_then.entry(task.node).or_insert_with(|| there.clone()).release(victim, task);
        }
        for (at, gang) in gangs.iter().enumerate() {
            self.prove_devices(gang.tenant, &gang.tasks, gang.cpu_milli, gang.memory_mib, &as_then)?;
            self.kept_off_each_other(gang, &gangs[..at])?;
            let domain = self.domain_of(gang.tenant);
            for task in &gang.tasks {
                let there = self.nodes.get(&task.node).ok_or(Misfit::NoNode { node: task.node })?;
                let there = as_then.entry(task.node).or_insert_with(|| there.clone());
                there.charge(gang.id, domain, task, gang.cpu_milli, gang.memory_mib)?;
                if self.occupancy.counting {
                    each_hold(task, |gpu| there.tenants.add(gang.tenant, gpu));
                }
            }
        }
        Ok(())
    }

    /// Whether no device would be held twice if `coming` stood where they are to stand and `leaving` had left; who may stand there is not asked.
    ///
    /// # Errors
    /// The first conflict.
    pub fn devices_without(&self, leaving: &[&Allocation], coming: &[&Allocation]) -> Result<(), Misfit> {
        let mut as_then: BTreeMap<NodeId, NodeUse> = BTreeMap::new();
        for (held, task) in leaving.iter().flat_map(|held| held.tasks.iter().map(move |task| (held, task))) {
            let Some(there) = self.nodes.get(&task.node) else { continue };
            as_then.entry(task.node).or_insert_with(|| there.clone()).release(held, task);
        }
        for (gang, task) in coming.iter().flat_map(|gang| gang.tasks.iter().map(move |task| (gang, task))) {
            let Some(there) = self.nodes.get(&task.node) else { continue };
            let there = as_then.entry(task.node).or_insert_with(|| there.clone());
            there.charge(gang.id, self.domain_of(gang.tenant), task, gang.cpu_milli, gang.memory_mib)?;
        }
        Ok(())
    }

    fn prove_devices(
        &self,
        tenant: TenantId,
        tasks: &[TaskPlacement],
        cpu_milli: u64,
        memory_mib: u64,
        freed: &BTreeMap<NodeId, NodeUse>,
    ) -> Result<(), Misfit> {
        let payer = self.tenants.get(&tenant).ok_or(Misfit::NoTenant { tenant })?;
        let domain = self.domain_of(tenant);
        let mut taken = Taken::default();
        for task in tasks {
            let there = freed.get(&task.node).or_else(|| self.nodes.get(&task.node));
            let there = there.ok_or(Misfit::NoNode { node: task.node })?;
            if !there.node.accepts_work() {
                return Err(Misfit::NodeClosed { node: task.node });
            }
            if let Some(job) = self.claimed_by(task.node) {
                return Err(Misfit::Claimed { node: task.node, job });
            }
            self.check_modes(payer, there, task)?;
            self.check_neighbours(tenant, there, task)?;
            let rules = self.card_rules(&there.node);
            taken.on(there).take(there, domain, task, (cpu_milli, memory_mib), rules)?;
        }
        Ok(())
    }

    fn check_modes(&self, payer: &TenantUse, there: &NodeUse, task: &TaskPlacement) -> Result<(), Misfit> {
        let pool = self.pool_of(&there.node);
        for hold in &task.devices {
            let mode = hold.mode.mode();
            if payer.untrusted && matches!(mode, SharingMode::Mps | SharingMode::TimeSlice) {
                return Err(Misfit::Untrusted);
            }
            if !pool.modes.contains(&mode) {
                let pool = there.node.spec.pool.clone();
                return Err(Misfit::ModeNotAllowed { node: task.node, pool, mode });
            }
        }
        Ok(())
    }

    fn check_neighbours(&self, tenant: TenantId, there: &NodeUse, task: &TaskPlacement) -> Result<(), Misfit> {
        if !self.has_anti_affinity() {
            return Ok(());
        }
        let path = |id| self.tenants.get(&id).map_or_else(String::new, |at: &TenantUse| at.path.clone());
        let on_card = || task.devices.iter().find_map(|hold| self.kept_off_card(tenant, there, hold.gpu));
        match self.kept_off_node(tenant, there).or_else(on_card) {
            Some(Kept { other, level, node }) => {
                Err(Misfit::AntiAffinityConflict { tenant: path(tenant), other: path(other), level, node })
            }
            None => Ok(()),
        }
    }

    /// Charges an allocation that was proved against exactly this ledger.
    ///
    /// # Panics
    /// When it does not fit: the capacity ledger would be wrong from here on.
    pub fn charge(&mut self, allocation: &Allocation) {
        let domain = self.domain_of(allocation.tenant);
        for task in &allocation.tasks {
            let there = self.nodes.get_mut(&task.node).expect("a charged node is in the fleet");
            there
                .charge(allocation.id, domain, task, allocation.cpu_milli, allocation.memory_mib)
                .expect("a charged allocation was proved");
            if self.occupancy.counting {
                each_hold(task, |gpu| there.tenants.add(allocation.tenant, gpu));
            }
        }
        if allocation.pays() {
            self.charge_tenants(allocation.tenant, &allocation.charge, allocation.account());
        }
    }

    /// Puts `new` in the place of `old`, which holds exactly the same for the same tenant: only the name of the holder changes.
    pub fn rename(&mut self, old: &Allocation, new: AllocationId) {
        for task in &old.tasks {
            let Some(there) = self.nodes.get_mut(&task.node) else { continue };
            for hold in &task.devices {
                there.cards[usize::from(hold.gpu)].rename(old.id, new);
            }
        }
    }

    /// Gives back everything an allocation holds.
    pub fn release(&mut self, allocation: &Allocation) {
        for task in &allocation.tasks {
            if let Some(there) = self.nodes.get_mut(&task.node) {
                there.release(allocation, task);
            }
        }
        if allocation.pays() {
            self.release_tenants(allocation.tenant, &allocation.charge, allocation.account());
        }
    }
}
