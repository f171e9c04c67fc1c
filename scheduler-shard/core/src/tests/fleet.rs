//! A small fleet with a stand-in for the control plane: it proves each proposal against its own books, and sends its changes to
//! the view as late as a test wants. Laws are checked on what it committed, without the arithmetic under test.

use crate::{Bounds, Proposal, View, plan};
use muster_model::capacity::{Capacity, TenantUse};
use muster_model::mig::MigPlacement;
use muster_model::node::NodeSpec;
use muster_model::request::TaskRequest;
use muster_model::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub(super) const CELL: CellId = CellId(1);

/// A node as a test describes it.
pub(super) struct Host {
    pub(super) name: &'static str,
    pub(super) leaf: &'static str,
    pub(super) block: &'static str,
    pub(super) model: GpuModel,
    pub(super) gpus: u16,
    pub(super) per_island: u16,
    /// The NVLink domain it shares with others; all its cards are one island then.
    pub(super) nvlink: &'static str,
}

impl Host {
    pub(super) fn new(name: &'static str, model: GpuModel, gpus: u16) -> Self {
        Host { name, leaf: "l1", block: "b1", model, gpus, per_island: 8, nvlink: "" }
    }

    pub(super) fn at(self, block: &'static str, leaf: &'static str) -> Self {
        Host { leaf, block, ..self }
    }
}

/// A job that asks for `tasks` times `gpus` whole H100.
pub(super) fn gang(tasks: u32, gpus: u32) -> JobSpec {
    job(tasks, DeviceRequest::Whole { count: gpus, models: vec![GpuModel::H100] })
}

pub(super) fn mig(profile: &str) -> JobSpec {
    job(1, DeviceRequest::Mig { profile: profile.into(), models: vec![GpuModel::H100] })
}

pub(super) fn mps(percent: u8, memory_mib: u64) -> JobSpec {
    job(1, DeviceRequest::Mps { percent, memory_mib, models: vec![GpuModel::H100] })
}

pub(super) fn slice(memory_mib: u64) -> JobSpec {
    job(1, DeviceRequest::TimeSlice { memory_mib, models: vec![GpuModel::H100] })
}

pub(super) fn job(tasks: u32, devices: DeviceRequest) -> JobSpec {
    let request = TaskRequest { devices, cpu_milli: 100, memory_mib: 10 };
    JobSpec { tasks, grace_s: 1, ..JobSpec::usual("org", request, &["true"]) }
}

/// The fleet, what its control plane committed, and the shard's view of it.
#[derive(Clone, Default)]
pub(super) struct Fleet {
    pub(super) view: View,
    pub(super) ledger: Capacity,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) allocations: BTreeMap<AllocationId, Allocation>,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) tenants: BTreeMap<String, Tenant>,
    cells: BTreeMap<CellId, Cell>,
    pub(super) pools: BTreeMap<String, Pool>,
    /// Committed, not yet seen by the view.
    on_the_way: VecDeque<Change>,
    pub(super) refused: u32,
    /// Allocations that a rule about who is kept apart found where they are.
    found: std::collections::BTreeSet<AllocationId>,
    last_id: u64,
    pub(super) now_ms: u64,
    pub(super) bounds: Bounds,
    /// Past use counts by this half-life; 0: not at all.
    half_life_s: u64,
    histories: BTreeMap<TenantId, UseHistory>,
}

impl Fleet {
    pub(super) fn new(hosts: impl IntoIterator<Item = Host>) -> Self {
        // Preemptions are tested where the real control plane decides them: with the simulator.
        let bounds = Bounds { preemptions_max: 0, ..Bounds::default() };
        let mut fleet = Fleet { bounds, ..Fleet::default() };
        fleet.cell(CELL, Some("s1"));
        fleet.tenant("org", |_| {});
        for host in hosts {
            fleet.host(&host);
        }
        fleet
    }

    pub(super) fn cell(&mut self, id: CellId, holder: Option<&str>) {
        let cell = Cell { id, name: format!("cell-{id}"), epoch: Epoch(1), holder: holder.map(str::to_owned) };
        self.cells.insert(id, cell.clone());
        self.commit(Change::put(Object::Cell(cell)));
        self.deliver(usize::MAX);
    }

    pub(super) fn tenant(&mut self, path: &str, change: impl Fn(&mut Tenant)) -> TenantId {
        let parent = Tenant::parent_path(path).map(|parent| self.tenants[parent].id);
        let id = self.tenants.get(path).map_or(TenantId(self.tenants.len() as u32 + 1), |tenant| tenant.id);
        let mut tenant = Tenant { parent, ..Tenant::usual(id, path) };
        change(&mut tenant);
        if self.tenants.get(path).is_none_or(|old| old.anti_affinity != tenant.anti_affinity) {
            self.found.extend(self.allocations.keys());
        }
        self.tenants.insert(path.into(), tenant.clone());
        self.ledger.put_tenant(&tenant);
        if self.ledger.wants_tenants_counted() {
            self.ledger.count_tenants(self.allocations.values());
        }
        self.commit(Change::put(Object::Tenant(tenant)));
        self.deliver(usize::MAX);
        id
    }

    pub(super) fn host(&mut self, host: &Host) -> NodeId {
        let id = NodeId(self.nodes.len() as u32 + 1);
        let island = |index| if host.nvlink.is_empty() { (index / u32::from(host.per_island)) as u8 } else { 0 };
        let gpu = |index| Gpu { island: island(index), ..Gpu::usual(host.name, index, host.model) };
        let mut spec = NodeSpec::usual(host.name, (0..host.gpus.into()).map(gpu).collect());
        let [block, leaf, nvlink_domain] = [host.block, host.leaf, host.nvlink].map(str::to_owned);
        spec.place = Place { block, leaf, nvlink_domain, ..spec.place };
        spec.driver = "550".to_owned();
        self.put_node(Node::usual(id, CELL, spec));
        self.deliver(usize::MAX);
        id
    }

    pub(super) fn put_pool(&mut self, pool: Pool) {
        self.pools.insert(pool.name.clone(), pool.clone());
        self.ledger.put_pool(pool.clone());
        self.commit(Change::put(Object::Pool(pool)));
    }

    pub(super) fn put_node(&mut self, node: Node) {
        self.nodes.insert(node.id, node.clone());
        self.ledger.put_node(Arc::new(node.clone()));
        self.commit(Change::put(Object::Node(node)));
    }

    pub(super) fn submit(&mut self, spec: JobSpec) -> JobId {
        self.last_id += 1;
        let id = JobId(self.last_id);
        let tenant = self.tenants[&spec.tenant].id;
        let spec = spec.validate().expect("test jobs are valid");
        let (routed_ms, submitted_ms) = (self.now_ms, self.now_ms);
        let job = Job { cell: Some(CELL), routed_ms, submitted_ms, ..Job::usual(id, tenant, spec) };
        self.jobs.insert(id, job.clone());
        self.commit(Change::put(Object::Job(job)));
        id
    }

    fn commit(&mut self, change: Change) {
        self.on_the_way.push_back(change);
    }

    /// Lets the view see the next `count` changes.
    pub(super) fn deliver(&mut self, count: usize) {
        for change in self.on_the_way.drain(..count.min(self.on_the_way.len())) {
            self.view.apply(&change);
        }
    }

    /// Plans until nothing more is found, deciding every proposal at once; answers the jobs that were bound.
    pub(super) fn settle(&mut self) -> Vec<JobId> {
        let mut bound = Vec::new();
        loop {
            self.deliver(usize::MAX);
            let proposals = self.pass();
            if proposals.is_empty() {
                return bound;
            }
            for proposal in proposals {
                bound.extend(self.decide(proposal));
            }
        }
    }

    pub(super) fn pass(&mut self) -> Vec<Proposal> {
        plan(&mut self.view, CELL, &self.bounds, self.now_ms).proposals
    }

    /// The same in every cell that a shard holds; jobs that fit nowhere there go to the next. Nothing is left to start in `first` before the
    /// others send it any.
    pub(super) fn settle_all(&mut self, first: CellId) {
        let others = self.cells.values().filter(|cell| cell.holder.is_some() && cell.id != first).map(|cell| cell.id);
        let cells: Vec<CellId> = std::iter::once(first).chain(others).collect();
        loop {
            let mut idle = true;
            for cell in &cells {
                while self.settle_once(*cell) {
                    idle = false;
                }
            }
            if idle {
                return;
            }
        }
    }

    /// One pass over a cell, each proposal decided at once; answers whether there was any.
    fn settle_once(&mut self, cell: CellId) -> bool {
        self.deliver(usize::MAX);
        let proposals = plan(&mut self.view, cell, &self.bounds, self.now_ms).proposals;
        let any = !proposals.is_empty();
        for proposal in proposals {
            self.decide(proposal);
        }
        any
    }

    /// A job leaves its cell for one that it has not seen.
    fn hand_over(&mut self, id: JobId) {
        let until_ms = self.now_ms + 30_000;
        let free = |cell: CellId| -> usize {
            let here =
                self.ledger.nodes().values().filter(|there| there.node.cell == cell && there.node.accepts_work());
            here.map(|there| there.free_cards()).sum()
        };
        let free: BTreeMap<CellId, usize> = self.cells.keys().map(|cell| (*cell, free(*cell))).collect();
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.phase == JobPhase::Queued) else { return };
        let from = job.cell.unwrap_or_default();
        // As the control plane does: where more is free than here.
        let next = self.cells.keys().find(|cell| free[cell] > free[&from] && !job.visited.contains(cell));
        match (next, job.cell) {
            (Some(next), Some(from)) => {
                job.visited.insert(from);
                (job.cell, job.routed_ms, job.reserved) = (Some(*next), self.now_ms, None);
                let job = job.clone();
                self.commit(Change::put(Object::Job(job)));
            }
            _ => self.view.not_offered_before(id, until_ms),
        }
    }

    /// A job as the state has it now.
    pub(super) fn put_job(&mut self, job: Job) {
        self.jobs.insert(job.id, job.clone());
        self.commit(Change::put(Object::Job(job)));
    }

    /// A job that waits is cancelled.
    pub(super) fn cancel(&mut self, id: JobId) {
        if self.jobs.get(&id).is_some_and(|job| job.phase == JobPhase::Queued) {
            self.jobs.remove(&id);
            self.commit(Change::Delete(Key::Job(id)));
        }
    }

    /// The control plane's part: proves and commits, or refuses.
    pub(super) fn decide(&mut self, proposal: Proposal) -> Option<JobId> {
        let binding = match proposal {
            Proposal::Bind(binding) => binding,
            Proposal::Reserve { job, reserved } => {
                self.reserve(job, reserved.as_deref().cloned());
                return None;
            }
            Proposal::RecordBypass { job, cards } => {
                self.record_bypass(job, cards);
                return None;
            }
            Proposal::HandOver(job) => {
                self.hand_over(job);
                return None;
            }
            Proposal::Grow(binding) => {
                self.grow(&binding);
                return None;
            }
            Proposal::Shrink { binding, parts } => {
                self.shrink(binding.job, &parts);
                return None;
            }
            // This small control plane neither preempts nor moves.
            Proposal::Preempt { binding, .. } | Proposal::Move { binding, .. } => {
                self.view.refused(binding.job, self.now_ms);
                return None;
            }
        };
        match self.prove(&binding) {
            Some(allocation) => {
                self.check_pins(&allocation);
                let job = self.jobs.get_mut(&binding.job).expect("proved");
                job.phase = JobPhase::Starting(allocation.id);
                job.attempt = binding.attempt;
                job.reserved = None;
                job.bypassed_cards = 0;
                let job = job.clone();
                self.ledger.charge(&allocation);
                self.allocations.insert(allocation.id, allocation.clone());
                self.commit(Change::put(Object::Allocation(allocation)));
                self.commit(Change::put(Object::Job(job)));
                Some(binding.job)
            }
            None => {
                self.refused += 1;
                self.view.refused(binding.job, self.now_ms);
                None
            }
        }
    }

    /// A part for each task: it is of the gang's present attempt, and no floor pays.
    fn grow(&mut self, binding: &Binding) {
        let job = self.jobs[&binding.job].clone();
        let charge = job.spec.charge_on(GpuModel::H100).gpu_total().0 / u64::from(job.spec.tasks);
        let mut growth = job.growth.clone();
        for task in &binding.tasks {
            let mut each = ResourceVec::of_host(job.spec.request.cpu_milli, job.spec.request.memory_mib);
            each.set_gpu(GpuModel::H100, GpuUnits(charge));
            self.last_id += 1;
            let part = Allocation {
                attempt: binding.attempt,
                cell: CELL,
                model: binding.model,
                cpu_milli: job.spec.request.cpu_milli,
                memory_mib: job.spec.request.memory_mib,
                charge: each,
                task_states: vec![TaskState::Pending],
                bound_ms: self.now_ms,
                is_growth: true,
                cleaning: Default::default(),
                cleaned_ms: 0,
                ports: Default::default(),
                ..Allocation::usual(AllocationId(self.last_id), job.id, job.tenant, vec![task.clone()])
            };
            let proved = self.ledger.prove(job.tenant, &part.tasks, part.cpu_milli, part.memory_mib, &part.charge);
            assert_eq!(proved, Ok(()), "growth that is proposed fits");
            self.ledger.charge(&part);
            growth.parts.insert(part.id);
            growth.tasks += 1;
            self.allocations.insert(part.id, part.clone());
            self.commit(Change::put(Object::Allocation(part)));
        }
        assert!(job.spec.tasks + growth.tasks <= job.spec.tasks_max(), "job {} grows too far", job.id);
        growth.grown_ms = self.now_ms;
        self.put_job(Job { growth, ..job });
    }

    /// The parts stop; nobody is preempted.
    fn shrink(&mut self, by: JobId, parts: &[AllocationId]) {
        for id in parts {
            let part = self.allocations.get_mut(id).expect("it is there");
            assert!(part.is_growth, "allocation {id} is no growth");
            part.state = AllocationState::Stopping(EndCause::Shrunk { by: Some(by) });
            let part = part.clone();
            let job = self.jobs[&part.job].clone();
            self.commit(Change::put(Object::Allocation(part)));
            let growth = elastic::Growth { tasks: job.growth.tasks - 1, shrunk_ms: self.now_ms, ..job.growth.clone() };
            self.put_job(Job { growth, ..job });
        }
    }

    /// What was told to stop is gone.
    pub(super) fn stopped(&mut self) {
        let stops = |held: &&Allocation| matches!(held.state, AllocationState::Stopping(_));
        for held in self.allocations.values().filter(stops).cloned().collect::<Vec<_>>() {
            self.allocations.remove(&held.id);
            self.ledger.release(&held);
            self.commit(Change::Delete(Key::Allocation(held.id)));
            let mut job = self.jobs[&held.job].clone();
            job.growth.parts.remove(&held.id);
            self.put_job(job);
        }
        self.deliver(usize::MAX);
    }

    fn record_bypass(&mut self, id: JobId, cards: u64) {
        if let Some(job) = self.jobs.get_mut(&id).filter(|job| job.phase == JobPhase::Queued) {
            job.bypassed_cards = cards.max(job.bypassed_cards);
            let job = job.clone();
            self.commit(Change::put(Object::Job(job)));
        }
    }

    fn reserve(&mut self, id: JobId, reserved: Option<Reservation>) {
        match self.jobs.get_mut(&id).filter(|job| job.phase == JobPhase::Queued) {
            Some(job) => {
                job.reserved = reserved;
                let job = job.clone();
                self.commit(Change::put(Object::Job(job)));
            }
            None => self.view.not_reserved(id, self.now_ms),
        }
    }

    fn prove(&mut self, binding: &Binding) -> Option<Allocation> {
        let job = self.jobs.get(&binding.job)?;
        if job.phase != JobPhase::Queued || job.attempt.next() != binding.attempt {
            return None;
        }
        let spec = &job.spec;
        let charge = match binding.model {
            Some(model) => spec.charge_on(model),
            None => ResourceVec::of_host(spec.request.cpu_milli, spec.request.memory_mib).times(u64::from(spec.tasks)),
        };
        let (cpu, memory) = (spec.request.cpu_milli, spec.request.memory_mib);
        self.ledger.prove(job.tenant, &binding.tasks, cpu, memory, &charge).ok()?;
        self.last_id += 1;
        let mut held = Allocation {
            attempt: binding.attempt,
            cell: job.cell?,
            model: binding.model,
            cpu_milli: cpu,
            memory_mib: memory,
            charge,
            task_states: vec![TaskState::Pending; binding.tasks.len()],
            bound_ms: self.now_ms,
            priority: spec.priority,
            submitted_ms: job.submitted_ms,
            ..Allocation::usual(AllocationId(self.last_id), job.id, job.tenant, binding.tasks.clone())
        };
        held.set_class(self.ledger.account_for(held.tenant, &charge).into(), self.now_ms);
        Some(held)
    }

    /// What is bound on a pinned card is one of its slots, counted by hand.
    fn check_pins(&self, allocation: &Allocation) {
        for task in &allocation.tasks {
            let spec = &self.nodes[&task.node].spec;
            let Some(pool) = self.pools.get(&spec.pool) else { continue };
            for hold in &task.devices {
                let model = spec.gpus[usize::from(hold.gpu)].model;
                let before = spec.gpus[..usize::from(hold.gpu)].iter().filter(|gpu| gpu.model == model).count();
                let Some(pin) = pool.pinned.get(&model) else { continue };
                if pin.cards_per_node().is_none_or(|cards| before < usize::from(cards)) {
                    let slot = matches!(hold.mode, HoldMode::Mig(place) if pin.slots().contains(&place));
                    assert!(slot, "{} on a card pinned to {:?}", hold.mode, pin.slots());
                }
            }
        }
    }

    pub(super) fn allocation_of(&self, job: JobId) -> Option<&Allocation> {
        self.allocations.values().find(|allocation| allocation.job == job)
    }

    pub(super) fn runs(&self, job: JobId) -> bool {
        self.allocation_of(job).is_some()
    }

    /// Ends a running job, or sends it back to the queue.
    pub(super) fn end(&mut self, job: JobId, requeue: bool) {
        let Some(id) = self.allocation_of(job).map(|allocation| allocation.id) else { return };
        let allocation = self.allocations.remove(&id).expect("found");
        self.ledger.release(&allocation);
        self.commit(Change::Delete(Key::Allocation(id)));
        if requeue {
            let job = self.jobs.get_mut(&job).expect("live");
            job.phase = JobPhase::Queued;
            let job = job.clone();
            self.commit(Change::put(Object::Job(job)));
        } else {
            self.jobs.remove(&job);
            self.commit(Change::Delete(Key::Job(job)));
        }
    }

    /// Past use counts from now on, or by another half-life, or no more.
    pub(super) fn set_half_life(&mut self, half_life_s: u64) {
        self.half_life_s = half_life_s;
        let mut histories = std::mem::take(&mut self.histories);
        for record in histories.values_mut() {
            match half_life_s {
                0 => self.commit(Change::Delete(Key::UseHistory(record.tenant))),
                _ => {
                    record.set_half_life(self.now_ms, half_life_s);
                    self.commit(Change::put(Object::UseHistory(record.clone())));
                }
            }
        }
        self.histories = if half_life_s == 0 { BTreeMap::new() } else { histories };
        self.note_use();
    }

    /// What a tenant used above its guarantee on average.
    pub(super) fn average_burst(&self, tenant: TenantId) -> ResourceVec {
        self.histories.get(&tenant).map(|record| record.burst_at(self.now_ms)).unwrap_or_default()
    }

    /// Brings the histories of use up to what is committed, as the control plane does with each entry.
    pub(super) fn note_use(&mut self) {
        if self.half_life_s == 0 {
            return;
        }
        let (half_life_s, now_ms) = (self.half_life_s, self.now_ms);
        let settled = |(id, at): (&TenantId, &TenantUse)| {
            UseHistory::settled(self.histories.get(id), (*id, at), half_life_s, now_ms)
        };
        let changed: Vec<UseHistory> = self.ledger.tenants().iter().filter_map(settled).collect();
        for record in changed {
            self.histories.insert(record.tenant, record.clone());
            self.commit(Change::put(Object::UseHistory(record)));
        }
    }

    /// The committed state as a snapshot sends it.
    pub(super) fn snapshot(&self) -> View {
        let objects = (self.tenants.values().cloned().map(Object::Tenant))
            .chain(self.cells.values().cloned().map(Object::Cell))
            .chain(self.pools.values().cloned().map(Object::Pool))
            .chain(self.histories.values().cloned().map(Object::UseHistory))
            .chain(self.nodes.values().cloned().map(Object::Node))
            .chain(self.jobs.values().cloned().map(Object::Job))
            .chain(self.allocations.values().cloned().map(Object::Allocation));
        View::from_objects(objects)
    }

    /// Laws 1, 2 and 8, from the committed allocations alone.
    pub(super) fn check(&self) -> Result<(), laws::Broken> {
        let allocations: Vec<&Allocation> = self.allocations.values().collect();
        check_laws(
            &self.nodes,
            &self.jobs,
            &allocations,
            |tenant| self.domain(tenant),
            |tenant| self.tenants.values().any(|t| t.id == tenant && t.trust == Trust::Untrusted),
        )
    }

    /// Two allocations that stand where their tenants may not stand together, by hand: none but those that a rule found there.
    pub(super) fn anti_affinity_conflict(&self) -> Option<(AllocationId, AllocationId)> {
        let tenant = |held: &Allocation| self.tenants.values().find(|tenant| tenant.id == held.tenant).expect("known");
        let under = |path: &str, top: &str| path == top || path.starts_with(&format!("{top}/"));
        let said = |one: &Allocation, other: &Allocation| {
            let path = &tenant(other).path;
            let line = self.tenants.values().filter(|above| under(&tenant(one).path, &above.path));
            line.flat_map(|above| &above.anti_affinity)
                .filter(|rule| under(path, &rule.tenant))
                .map(|rule| rule.level)
                .max()
        };
        let place = |id: NodeId| &self.nodes[&id].spec.place;
        let meets = |level: AntiAffinityLevel, one: &Allocation, other: &Allocation| {
            let near = |a: &TaskPlacement, b: &TaskPlacement| match level {
                AntiAffinityLevel::Card => {
                    a.node == b.node && a.devices.iter().any(|x| b.devices.iter().any(|y| x.gpu == y.gpu))
                }
                AntiAffinityLevel::Node => a.node == b.node,
                AntiAffinityLevel::Island => {
                    a.node == b.node || !place(a.node).nvlink_domain.is_empty() && place(a.node) == place(b.node)
                }
            };
            one.tasks.iter().any(|a| other.tasks.iter().any(|b| near(a, b)))
        };
        let all: Vec<&Allocation> = self.allocations.values().collect();
        let pairs = all.iter().flat_map(|one| all.iter().map(move |other| (*one, *other)));
        let pairs = pairs.filter(|(one, other)| !(self.found.contains(&one.id) && self.found.contains(&other.id)));
        let mut broken = pairs.filter(|(one, other)| said(one, other).is_some_and(|level| meets(level, one, other)));
        broken.next().map(|(one, other)| (one.id, other.id))
    }

    pub(super) fn domain(&self, tenant: TenantId) -> String {
        let path = self.tenants.values().find(|t| t.id == tenant).map_or("", |t| t.path.as_str());
        Tenant::domain_of(path).to_owned()
    }
}

/// Goes through every card by hand.
pub(super) fn check_laws(
    nodes: &BTreeMap<NodeId, Node>,
    jobs: &BTreeMap<JobId, Job>,
    allocations: &[&Allocation],
    domain: impl Fn(TenantId) -> String,
    untrusted: impl Fn(TenantId) -> bool,
) -> Result<(), laws::Broken> {
    let broken = |law, what: String| Err(laws::Broken { law: laws::Law(law), what });
    let mut cards: BTreeMap<(NodeId, u16), Vec<(&Allocation, HoldMode)>> = BTreeMap::new();
    for allocation in allocations {
        let in_part = |job: &Job| job.spec.tasks as usize != allocation.tasks.len();
        if !allocation.is_growth && jobs.get(&allocation.job).is_some_and(in_part) {
            return broken(2, format!("allocation {} has {} tasks", allocation.id, allocation.tasks.len()));
        }
        for task in &allocation.tasks {
            for hold in &task.devices {
                cards.entry((task.node, hold.gpu)).or_default().push((allocation, hold.mode));
            }
        }
    }
    for ((node, gpu), holds) in cards {
        let card = &nodes[&node].spec.gpus[usize::from(gpu)];
        let modes: std::collections::BTreeSet<_> = holds.iter().map(|(_, mode)| mode.mode()).collect();
        let whole = holds.iter().any(|(_, mode)| *mode == HoldMode::Whole);
        if modes.len() > 1 || whole && holds.len() > 1 {
            return broken(1, format!("GPU {gpu} of node {node} is held by {} in {modes:?}", holds.len()));
        }
        let mut slices = 0_u8;
        let (mut memory, mut percent) = (0, 0);
        for (_, mode) in &holds {
            match mode {
                HoldMode::Whole => {}
                HoldMode::Mig(MigPlacement { shape, start }) => {
                    if slices & shape.mask(*start) != 0 {
                        return broken(1, format!("instances overlap on GPU {gpu} of node {node}"));
                    }
                    slices |= shape.mask(*start);
                }
                HoldMode::Mps { percent: p, memory_mib } => {
                    (memory, percent) = (memory + memory_mib, percent + u32::from(*p))
                }
                HoldMode::TimeSlice { memory_mib } => memory += memory_mib,
            }
        }
        if memory > card.memory_mib || percent > 100 {
            return broken(1, format!("GPU {gpu} of node {node} is oversubscribed: {memory} MiB, {percent} %"));
        }
        let shared = holds.iter().filter(|(_, mode)| matches!(mode, HoldMode::Mps { .. } | HoldMode::TimeSlice { .. }));
        let domains: std::collections::BTreeSet<_> = shared.clone().map(|(held, _)| domain(held.tenant)).collect();
        if domains.len() > 1 || shared.clone().any(|(held, _)| untrusted(held.tenant)) {
            return broken(8, format!("GPU {gpu} of node {node} is shared by {domains:?}"));
        }
    }
    Ok(())
}
