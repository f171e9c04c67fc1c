//! How a story makes its commands.

use super::{Chance, Story, placing};
use muster_control_core::{Command, LeasedBinding, TaskReport};
use muster_model::Reservation;
use muster_model::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, Rank};
use muster_model::mig::{MigPlacement, MigShape, PinnedLayout};
use muster_model::movable::Movable;
use muster_model::needs::{Isolation, Needs};
use muster_model::node::{Gpu, NodeSpec, Place, Repair, Withheld};
use muster_model::priority_class::DEFAULT_PRIORITY_CLASS;
use muster_model::request::{SharingMode, TaskRequest};
use muster_model::resources::Resource;
use muster_model::task::CleanUp;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::{Edit, TenantEdit};
use muster_model::usage::{UsageInterval, UseKind};
use muster_model::{
    AllocationState, AntiAffinity, AntiAffinityLevel, Asked, Change, Checkpoint, DeviceClass, DeviceRequest, GpuModel,
    GpuUnits, IsolationLevel, Job, JobPhase, JobSpec, JobUpdate, Key, Limits, NetworkPolicy, NodeHealth, NumaPolicy,
    Pool, Preemption, PriorityClass, Proof, Protection, ResourceVec, Spread, TaskState, Topology, TopologyLevel, Trust,
    WorkloadClass,
};
use std::collections::{BTreeMap, BTreeSet};

/// Selectors that some, all or none of the nodes' cards satisfy.
const SELECTORS: [&str; 4] = [
    "device.model == \"h100\"",
    "device.driver >= version(\"550\") && device.memory_mib > 1000",
    "node.labels[\"tier\"] == \"gold\"",
    "device.memory_mib > 100000",
];
const PATHS: [&str; 6] = ["red", "red/one", "red/one/deep", "red/two", "blue", "blue/one"];
/// Where tenants are moved to, and from there again.
const PLACES: [&str; 9] =
    ["red", "red/one", "red/one/deep", "red/two", "blue", "blue/one", "green", "blue/two", "red/two/far"];

impl Story {
    pub(super) fn next_command(&mut self) -> Command {
        match self.chance.below(100) {
            0..=19 => self.submit(),
            20..=39 => self.bind(),
            40..=47 => self.preempt(),
            48..=69 => self.report(),
            70..=76 => self.usage(),
            77..=79 => self.cancel(),
            80..=82 => self.join_node(),
            83..=87 => self.node_command(),
            88..=91 => self.lease(),
            92..=93 => self.hand_over(),
            94 => self.reserve(),
            95 => self.change_tenants(),
            96 => self.pool(),
            97 => self.start_command(),
            98 => self.repeat(),
            _ => self.rare(),
        }
    }

    /// The whole tree at once.
    pub(super) fn found_tenants(&mut self) -> Vec<Command> {
        loop {
            let tenants = PATHS.iter().map(|path| self.tenant(path)).collect();
            let command = Command::ApplyTenants { tenants };
            if muster_control_core::plan(&self.state, self.now_ms, &command).is_ok() {
                // Some histories are of a cluster before its upgrade.
                let level = if self.chance.one_in(4) { 1 } else { 3 };
                let urgent = PriorityClass {
                    name: "urgent".to_owned(),
                    priority: 2,
                    preempts: [DEFAULT_PRIORITY_CLASS.to_owned()].into(),
                    tenants: BTreeSet::new(),
                };
                return vec![Command::RaiseFeatureLevel { level }, Command::PutPriorityClass(urgent), command];
            }
        }
    }

    /// A shard for every cell.
    pub(super) fn acquire_all(&mut self) -> Vec<Command> {
        let cells = self.state.cells.keys().copied();
        cells.map(|cell| Command::AcquireCell { cell, shard: "s1".to_owned() }).collect()
    }

    fn tenant(&mut self, path: &str) -> TenantSpec {
        let depth = path.matches('/').count() as u64;
        let mut max = Limits::default();
        if self.chance.one_in(2) {
            max.gpu.insert(GpuModel::H100, GpuUnits::cards(self.chance.below(6) + 2));
        }
        if self.chance.one_in(4) {
            max.cpu_milli = Some(self.chance.below(12_000) + 4_000);
        }
        // Mostly small enough for the parent; sometimes not.
        let most = [12, 5, 2][depth as usize] + 2 * u64::from(self.chance.one_in(6));
        let mut guarantee = ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(most));
        if max.first_passed_by(&guarantee).is_some() {
            guarantee = ResourceVec::default();
        }
        let untrusted = path == "blue/one" || (path == "blue" && self.chance.one_in(4));
        let trust = if untrusted { Trust::Untrusted } else { Trust::Trusted };
        let levels = [AntiAffinityLevel::Card, AntiAffinityLevel::Node, AntiAffinityLevel::Island];
        let others = PATHS.iter().filter(|_| self.chance.one_in(30)).collect::<Vec<_>>();
        let apart =
            |other: &&str| Some(AntiAffinity { tenant: (*other).to_owned(), level: self.chance.pick(&levels)? });
        let anti_affinity = others.into_iter().filter_map(apart).collect();
        TenantSpec {
            path: path.to_owned(),
            guarantee,
            max,
            weight: 1,
            trust,
            anti_affinity,
            lend: !self.chance.one_in(4),
            weights: self.by_resource(|chance| chance.below(4) as u32 + 1),
            lends: self.by_resource(|chance| !chance.one_in(2)),
            run_as: self.chance.one_in(10).then(|| 5_000 + self.chance.below(3) as u32),
        }
    }

    /// Values that some resources have of their own.
    fn by_resource<T>(&mut self, value: impl Fn(&mut Chance) -> T) -> BTreeMap<Resource, T> {
        // Only what every version can hold, before the cluster's upgrade.
        if self.state.meta.feature_level < 3 {
            return BTreeMap::new();
        }
        let resources = [Resource::Gpu(GpuModel::H100), Resource::Cpu];
        let mut own = BTreeMap::new();
        for of in resources {
            if self.chance.one_in(4) {
                own.insert(of, value(&mut self.chance));
            }
        }
        own
    }

    /// Part of a description as an edit; now and then what it leaves out is removed.
    fn tenant_edit(&mut self, path: &str) -> TenantEdit {
        let spec = self.tenant(path);
        let mut edit = TenantEdit { path: path.to_owned(), ..TenantEdit::default() };
        edit.max.clear = self.chance.one_in(3);
        if self.chance.one_in(2) {
            edit.max.gpu = spec.max.gpu.into_iter().map(|(model, units)| (model, Some(units))).collect();
        }
        if self.chance.one_in(3) {
            edit.guarantee
                .gpu
                .insert(GpuModel::H100, Some(spec.guarantee.gpu(GpuModel::H100)).filter(|_| self.chance.one_in(2)));
        }
        if self.chance.one_in(3) {
            edit.trust = Edit::Set(spec.trust);
        }
        if self.chance.one_in(4) {
            edit.lend = Edit::Set(spec.lend);
        }
        if self.chance.one_in(4) {
            edit.weights.clear = self.chance.one_in(2);
            edit.weights.of = spec.weights.into_iter().map(|(of, weight)| (of, Some(weight))).collect();
            edit.lends.clear = self.chance.one_in(2);
            edit.lends.of = spec.lends.into_iter().map(|(of, lend)| (of, Some(lend))).collect();
        }
        edit.anti_affinity.clear = self.chance.one_in(4);
        edit.anti_affinity.levels =
            spec.anti_affinity.into_iter().map(|apart| (apart.tenant, Some(apart.level))).collect();
        edit
    }

    /// Mostly a tenant that is there to a place that is free.
    fn move_tenant(&mut self) -> Command {
        let there: Vec<String> = self.state.tenants.values().map(|tenant| tenant.path.clone()).collect();
        let is_there = |path: &str| there.iter().any(|other| other == path);
        let free = |to: &&str| !is_there(to) && to.rsplit_once('/').is_none_or(|(parent, _)| is_there(parent));
        let places: Vec<&str> = PLACES.iter().copied().filter(free).collect();
        let places = if self.chance.one_in(4) { PLACES.to_vec() } else { places };
        let path = self.chance.pick(&there).unwrap_or_else(|| "red".to_owned());
        Command::MoveTenant { path, to: self.chance.pick(&places).unwrap_or_default().to_owned() }
    }

    fn change_tenants(&mut self) -> Command {
        if self.chance.one_in(2) {
            return self.move_tenant();
        }
        if self.chance.one_in(2) {
            let paths = (0..2).filter_map(|_| self.chance.pick(&PATHS)).collect::<std::collections::BTreeSet<_>>();
            let edits = paths.into_iter().map(|path| self.tenant_edit(path)).collect();
            let prune = self.chance.one_in(6);
            // Drawn from what there is, so that the rest of the history stays as it was drawn.
            let turn = self.state.meta.next_job.0 as usize;
            let half_life_s = turn.is_multiple_of(4).then(|| [60, 0, 1, 86_400][turn / 4 % 4]);
            return Command::EditTenants { edits, prune, half_life_s };
        }
        let count = self.chance.below(3) + 1;
        let tenants = (0..count).filter_map(|_| self.chance.pick(&PATHS)).collect::<Vec<_>>();
        Command::ApplyTenants { tenants: tenants.into_iter().map(|path| self.tenant(path)).collect() }
    }

    fn rare(&mut self) -> Command {
        match self.chance.below(7) {
            6 => Command::DeletePriorityClass { name: "urgent".to_owned() },
            4 => {
                let selector = self.chance.pick(&SELECTORS).unwrap_or_default().parse().expect("a selector");
                let tenants = self.chance.pick(&PATHS).into_iter().filter(|_| self.chance.one_in(2)).map(str::to_owned);
                let tenants = tenants.collect();
                Command::PutDeviceClass(DeviceClass { name: "class".to_owned(), selector, tenants })
            }
            5 => Command::DeleteDeviceClass { name: "class".to_owned() },
            0 => Command::RaiseFeatureLevel { level: self.chance.below(5) as u32 },
            1 => {
                Command::DeletePool { name: self.chance.pick(&["small", "default", "none"]).unwrap_or_default().into() }
            }
            _ => Command::DeleteTenant { path: self.chance.pick(&PATHS).unwrap_or_default().to_owned() },
        }
    }

    /// What an agent has tried; most hosts give nearly everything.
    fn proofs(&mut self) -> Vec<Proof> {
        if self.chance.one_in(6) {
            return Vec::new();
        }
        let mut fault = || self.chance.one_in(40).then(|| "it does not hold".to_owned());
        Protection::ALL.into_iter().map(|protection| Proof::new(protection, fault())).collect()
    }

    fn pool(&mut self) -> Command {
        let mut pool =
            Pool { name: self.chance.pick(&["small", "default"]).unwrap_or_default().into(), ..Pool::standard() };
        pool.mps_clients = self.chance.below(5) as u8;
        pool.time_slice_replicas = self.chance.below(5) as u8 + 1;
        if self.chance.one_in(3) {
            pool.modes.remove(&SharingMode::Mps);
        }
        if self.chance.one_in(3) {
            pool.classes.remove(&WorkloadClass::Training);
        }
        if self.chance.one_in(8) {
            pool.isolation = self.chance.pick(&[IsolationLevel::Limits, IsolationLevel::Full]).unwrap_or_default();
        }
        if self.chance.one_in(8) {
            pool.network = self.chance.pick(&[NetworkPolicy::Host, NetworkPolicy::Private]);
        }
        if self.chance.one_in(3) {
            let slices = self.chance.pick(&[("1g.10gb", 7), ("2g.20gb", 3), ("3g.40gb", 1)]).unwrap_or(("1g.10gb", 7));
            let slices = [(slices.0.to_owned(), slices.1)].into();
            let cards = self.chance.one_in(2).then_some(1);
            let pin = PinnedLayout::new(GpuModel::H100, &slices, cards).expect("a legal layout");
            pool.pinned.insert(GpuModel::H100, pin);
        }
        Command::PutPool(pool)
    }

    fn request(&mut self) -> TaskRequest {
        let models = match self.chance.below(3) {
            0 => vec![],
            1 => vec![GpuModel::H100],
            _ => vec![GpuModel::A100_80, GpuModel::H100],
        };
        let devices = match self.chance.below(10) {
            0 => DeviceRequest::None,
            1..=4 => DeviceRequest::Whole { count: self.chance.below(3) as u32 + 1, models },
            5 | 6 => {
                let profile = self.chance.pick(&["1g.10gb", "2g.20gb", "3g.40gb", "1g.10gb+me", "1g.20gb"]);
                DeviceRequest::Mig { profile: profile.unwrap_or_default().to_owned(), models }
            }
            7 | 8 => {
                let percent = self.chance.below(60) as u8 + 10;
                DeviceRequest::Mps { percent, memory_mib: self.chance.below(30_000) + 5_000, models }
            }
            _ => DeviceRequest::TimeSlice { memory_mib: self.chance.below(30_000) + 5_000, models },
        };
        TaskRequest { devices, cpu_milli: self.chance.below(3_000) + 1, memory_mib: self.chance.below(4_000) }
    }

    /// How cards are described beside the request; mostly not at all.
    fn asked(&mut self, request: &mut TaskRequest) -> Asked {
        let mut asked = Asked::default();
        if self.chance.one_in(8) {
            request.devices = DeviceRequest::None;
            let isolation = self.chance.pick(&[Isolation::Strict, Isolation::Trusted, Isolation::BestEffort]);
            asked.needs = Some(Needs {
                memory_mib: self.chance.below(120_000) + 1,
                compute_percent: self.chance.below(150) as u32,
                isolation: isolation.unwrap_or_default(),
                bursty: self.chance.one_in(2),
                latency_critical: self.chance.one_in(4),
                models: vec![],
            });
        }
        if request.devices.mode().is_some() || asked.needs.is_some() {
            let selector = self.chance.pick(&SELECTORS).filter(|_| self.chance.one_in(6));
            asked.selector = selector.map(|text| text.parse().expect("a selector"));
            asked.device_class = self.chance.one_in(20).then(|| "class".to_owned());
        }
        asked
    }

    fn spec(&mut self) -> JobSpec {
        let mut request = self.request();
        let asked = self.asked(&mut request);
        let gpus = request.devices.mode().is_some() || asked.needs.is_some();
        let numa = self.chance.pick(&NumaPolicy::ALL).filter(|_| gpus && self.chance.one_in(6)).unwrap_or_default();
        let driver_min = (gpus && self.chance.one_in(8)).then(|| "550".parse().expect("a version"));
        let segment_tasks = self.chance.one_in(8).then(|| self.chance.below(2) as u32 + 1);
        let gang = !matches!(request.devices, DeviceRequest::Mig { .. });
        let spread = (segment_tasks.is_none() && self.chance.one_in(6)).then(|| Spread {
            level: self.chance.pick(&TopologyLevel::ALL).unwrap_or(TopologyLevel::Node),
            tasks_max: self.chance.below(3) as u32,
            required: self.chance.one_in(2),
        });
        let required = if self.chance.one_in(4) { self.chance.pick(&TopologyLevel::ALL) } else { None };
        JobSpec {
            tenant: if self.chance.one_in(30) {
                "green".into()
            } else {
                self.chance.pick(&PATHS).unwrap_or_default().into()
            },
            name: "job".to_owned(),
            tasks: if gang { self.chance.below(4) as u32 + 1 } else { 1 },
            request,
            topology: Topology { required, preferred: None, segment_tasks, spread },
            numa,
            driver_min,
            asked,
            class: self.chance.pick(&[WorkloadClass::Batch, WorkloadClass::Interactive]).unwrap_or_default(),
            pool: if self.chance.one_in(20) { Some("small".to_owned()) } else { None },
            priority: self.chance.below(3) as i32,
            command: vec!["true".to_owned()],
            env: BTreeMap::new(),
            workdir: None,
            time_limit_s: None,
            grace_s: 1,
            disconnect_grace_s: 10,
            max_retries: self.chance.below(3) as u32,
            movable: self.chance.one_in(3).then(Movable::default),
            preemption: Preemption::default(),
            limit_signal: None,
            user: self.chance.pick(&["ann", "bob"]).unwrap_or_default().to_owned(),
            start: self.start(),
            array: self.array(),
            priority_class: None,
            reservation: None,
            elastic: None,
            image: None,
            mounts: Vec::new(),
            compute_instances: 0,
            comment: String::new(),
            secret_env: Default::default(),
        }
    }

    fn submit(&mut self) -> Command {
        if self.chance.one_in(6)
            && let Some(mut again) = self.chance.pick(&self.submitted.clone())
        {
            if self.chance.one_in(4)
                && let Command::Submit { payload_hash, .. } = &mut again
            {
                *payload_hash ^= 1;
            }
            return again;
        }
        let count = if self.chance.one_in(5) { self.chance.below(6) } else { 1 };
        let class = self.chance.one_in(4).then(|| "urgent".to_owned());
        let specs: Vec<_> = (0..count)
            .filter_map(|_| {
                let spec = self.spec();
                // The class sets the priority.
                let priority = if class.is_some() { 0 } else { spec.priority };
                JobSpec { priority, priority_class: class.clone(), ..spec }.validate().ok()
            })
            .collect();
        let issued_ms = match self.chance.below(30) {
            0 => self.now_ms - 90_000_000,
            1 => self.now_ms + 1_000_000,
            _ => self.now_ms,
        };
        let ended = self.ends_of(&specs);
        let command = Command::Submit {
            request_id: format!("r{}", self.chance.below(1_000_000)),
            issued_ms,
            payload_hash: self.chance.next(),
            specs,
            ended,
        };
        self.submitted.push(command.clone());
        command
    }

    pub(super) fn some_job(&mut self, keep: impl Fn(&Job) -> bool) -> Option<Job> {
        let jobs: Vec<JobId> = self.state.jobs.values().filter(|job| keep(job)).map(|job| job.id).collect();
        let id = self.chance.pick(&jobs)?;
        self.state.jobs.get(&id).map(|job| Job::clone(job))
    }

    fn cancel(&mut self) -> Command {
        let job = self.some_job(|_| true).map_or(JobId(999_999), |job| job.id);
        match self.chance.below(5) {
            0 => Command::Requeue { job },
            1 => Command::UpdateJob { job, update: self.job_update() },
            _ => Command::Cancel { job },
        }
    }

    /// Mostly something; sometimes nothing, or what must be refused.
    fn job_update(&mut self) -> JobUpdate {
        let mut update = JobUpdate::default();
        if self.chance.one_in(2) {
            update.time_limit_s = [Edit::Set(60), Edit::Set(0), Edit::Remove][self.chance.below(3) as usize];
        }
        if self.chance.one_in(2) {
            update.priority = Some(self.chance.below(9) as i32);
        }
        if self.chance.one_in(2) {
            update.tenant = self.chance.pick(&PATHS).map(str::to_owned);
        }
        if self.chance.one_in(8) {
            update.comment = Some("for bob".to_owned());
        }
        update
    }

    /// Now and then one that a clock ahead or behind has stamped.
    fn checkpoint(&mut self) -> Option<Checkpoint> {
        let at_ms = (self.now_ms + self.chance.below(60_000)).saturating_sub(40_000);
        self.chance.one_in(5).then(|| Checkpoint { at_ms, note: "step\n1".to_owned() })
    }

    fn bind(&mut self) -> Command {
        // Sometimes a job that runs already, as a shard with an old view would.
        let any = self.chance.one_in(12);
        let Some(job) = self.some_job(|job| job.cell.is_some() && (any || job.phase == JobPhase::Queued)) else {
            return self.submit();
        };
        let lapsed = self.state.cells.values().find(|cell| Some(cell.id) == job.cell && cell.holder.is_none());
        if let Some(cell) = lapsed {
            return Command::AcquireCell { cell: cell.id, shard: "s2".to_owned() };
        }
        let mut binding: Option<LeasedBinding> = None;
        for _ in 0..6 {
            let Some(tried) = placing::place(&self.state, &mut self.chance, &job) else { continue };
            let probe = muster_control_core::plan(&self.state, self.now_ms, &Command::Bind(tried.clone()));
            binding = Some(tried);
            if probe.is_ok() {
                break;
            }
        }
        let Some(mut binding) = binding else { return self.lease() };
        if self.chance.one_in(5) {
            self.spoil(&mut binding);
        }
        Command::Bind(binding)
    }

    /// A waiting job gets what some attempts of its cell hold, whoever they are.
    fn preempt(&mut self) -> Command {
        let Some(job) = self.some_job(|job| job.cell.is_some() && job.phase == JobPhase::Queued) else {
            return self.submit();
        };
        let held: Vec<AllocationId> = self
            .state
            .allocations
            .values()
            .filter(|held| Some(held.cell) == job.cell && held.state == AllocationState::Active)
            .map(|held| held.id)
            .collect();
        let mut proposed = None;
        for _ in 0..6 {
            let many = 1 + self.chance.below(3);
            let victims: Vec<AllocationId> = (0..many).filter_map(|_| self.chance.pick(&held)).collect();
            let mut without = self.state.clone();
            for victim in &victims {
                without.apply(&Change::Delete(Key::Allocation(*victim)));
            }
            let Some(binding) = placing::place(&without, &mut self.chance, &job) else { continue };
            let command = Command::Preempt { binding, victims };
            let legal = muster_control_core::plan(&self.state, self.now_ms, &command).is_ok();
            proposed = Some(command);
            if legal {
                break;
            }
        }
        match proposed {
            Some(command) => command,
            None => self.lease(),
        }
    }

    fn spoil(&mut self, binding: &mut LeasedBinding) {
        match self.chance.below(8) {
            0 => binding.epoch = Epoch(binding.epoch.0.saturating_sub(1)),
            1 => binding.attempt = Attempt(binding.attempt.0 + 1),
            2 => drop(binding.tasks.pop()),
            3 => binding.model = Some(GpuModel::T4),
            4 => binding.cell = CellId(binding.cell.0 % 3 + 1),
            5 => binding.job = JobId(binding.job.0 + 1),
            6 => binding.tasks.iter_mut().for_each(|task| task.node = NodeId(1)),
            _ => binding.tasks.iter_mut().flat_map(|task| &mut task.devices).for_each(|hold| hold.gpu = 0),
        }
    }

    fn lease(&mut self) -> Command {
        let cells: Vec<(CellId, Epoch)> = self.state.cells.values().map(|cell| (cell.id, cell.epoch)).collect();
        let (cell, epoch) = self.chance.pick(&cells).unwrap_or((CellId(9), Epoch(1)));
        if self.chance.one_in(4) {
            let epoch = if self.chance.one_in(4) { Epoch(epoch.0.saturating_sub(1)) } else { epoch };
            return Command::ExpireCell { cell, epoch };
        }
        Command::AcquireCell { cell, shard: self.chance.pick(&["s1", "s1", "s2"]).unwrap_or_default().to_owned() }
    }

    fn hand_over(&mut self) -> Command {
        let job = self.some_job(|job| job.phase == JobPhase::Queued && job.cell.is_some());
        let Some(job) = job else { return self.lease() };
        let cell = job.cell.unwrap_or_default();
        let epoch = self.state.cells.get(&cell).map_or(Epoch(0), |cell| cell.epoch);
        let epoch = if self.chance.one_in(6) { epoch.next() } else { epoch };
        Command::HandOver { cell, epoch, job: job.id }
    }

    fn reserve(&mut self) -> Command {
        let Command::HandOver { cell, epoch, job } = self.hand_over() else { return self.lease() };
        let nodes: Vec<NodeId> = self.state.nodes.keys().copied().collect();
        let mut nodes: Vec<NodeId> = (0..3).filter_map(|_| self.chance.pick(&nodes)).collect();
        if !self.chance.one_in(6) {
            nodes.retain(|node| self.state.nodes[node].cell == cell);
            nodes.sort_unstable();
            nodes.dedup();
        }
        if self.chance.one_in(4) {
            return Command::RecordBypass { cell, epoch, job, cards: self.chance.below(100) };
        }
        let start_ms = self.state.meta.now_ms.saturating_add(self.chance.below(1_000_000));
        let start_ms = if self.chance.one_in(6) { self.chance.below(100_000) } else { start_ms };
        let reserved = Reservation { start_ms, nodes };
        Command::Reserve { cell, epoch, job, reserved: Some(reserved).filter(|_| !self.chance.one_in(5)) }
    }

    pub(super) fn join_node(&mut self) -> Command {
        let number = self.chance.below(8);
        let model = if number % 4 == 3 { GpuModel::A100_80 } else { GpuModel::H100 };
        let cards = if self.chance.one_in(12) { 3 } else { 4 };
        let withheld = self.chance.one_in(10);
        // The nodes of two leaves share an NVLink domain each, where all their cards are one island.
        let spans = number >= 4;
        let nvlink_domain = if spans { "nvl".to_owned() } else { String::new() };
        let of = number.to_string();
        let gpu = |index: u8| Gpu {
            numa: index / 3,
            island: if spans { 0 } else { index / 2 },
            withheld: (withheld && index == 0).then(|| "xid 79".to_owned()),
            withheld_slices: Vec::new(),
            ..Gpu::usual(&of, index.into(), model)
        };
        let name = |what: &str, which: u64| format!("{what}{which}");
        let place = Place {
            region: "eu".into(),
            zone: "z".into(),
            block: name("b", number / 4),
            leaf: name("l", number / 2),
            nvlink_domain,
        };
        let name = if self.chance.one_in(40) { String::new() } else { name("n", number) };
        let known = self.state.index().node_ids.get(&name).and_then(|id| self.state.nodes.get(id));
        let (known_boot, known_id) = known.map(|node| (node.spec.boot_id.clone(), node.id)).unzip();
        let reboot = self.chance.one_in(3);
        let boot_id = known_boot.filter(|_| !reboot).unwrap_or_else(|| format!("boot{}", self.chance.below(1_000)));
        let usage_incarnation = known_id.and_then(|id| self.streams.get(&id)).map(|(incarnation, _)| *incarnation);
        let spec = NodeSpec {
            name,
            address: format!("10.0.0.{number}"),
            place,
            cell: format!("c{}", if self.chance.one_in(15) { 0 } else { number % 3 }),
            pool: if number == 2 { "small".into() } else { "default".into() },
            gpus: (0..cards).map(gpu).collect(),
            cpu_milli: 16_000,
            memory_mib: 64_000,
            driver: if number % 3 == 1 { "535.1" } else { "550.54" }.to_owned(),
            proofs: self.proofs(),
            labels: if number == 3 { [("tier".to_owned(), "gold".to_owned())].into() } else { BTreeMap::new() },
            boot_id,
        };
        let known_agent = known_id.and_then(|id| self.state.nodes.get(&id)).map(|node| node.notes.agent);
        let other = self.chance.one_in(4);
        let agent = known_agent.filter(|_| !other).unwrap_or_else(|| 1 + self.chance.below(1_000));
        Command::JoinNode { spec, usage_incarnation: usage_incarnation.filter(|_| !self.chance.one_in(4)), agent }
    }

    fn node_command(&mut self) -> Command {
        let nodes: Vec<(NodeId, Epoch)> = self.state.nodes.values().map(|node| (node.id, node.epoch)).collect();
        let (node, epoch) = self.chance.pick(&nodes).unwrap_or((NodeId(99), Epoch(1)));
        let epoch = if self.chance.one_in(8) { Epoch(epoch.0 - 1) } else { epoch };
        match self.chance.below(12) {
            0..=2 => Command::MarkSilent { node, epoch },
            3..=6 => Command::MarkReady { node, epoch },
            7 | 8 => {
                // Most of what leaders find due is about nodes that are silent.
                let silent = self.state.nodes.values().filter(|node| node.health == NodeHealth::Silent);
                let silent: Vec<(NodeId, Epoch)> = silent.map(|node| (node.id, node.epoch)).collect();
                let found = self.chance.pick(&silent).filter(|_| !self.chance.one_in(4));
                let (node, epoch) = found.unwrap_or((node, epoch));
                Command::FenceNode { node, epoch }
            }
            9 if self.chance.one_in(2) => {
                let slice = self.chance.one_in(2).then_some(MigPlacement { shape: MigShape::G3, start: 4 });
                let gpu = self.chance.below(3) as u16;
                let one =
                    Withheld { gpu, slice, reason: "Xid 94".to_owned(), by_verdict: gpu == 2, repair: Repair::Wait };
                if self.chance.one_in(4) {
                    return Command::ClearGpu {
                        node,
                        gpu: self.chance.below(5) as u16,
                        reason: "new riser".to_owned(),
                    };
                }
                let withheld = if self.chance.one_in(3) { Vec::new() } else { vec![one] };
                Command::ReportCards { node, epoch, withheld }
            }
            9 if self.chance.one_in(3) => Command::ReportProofs { node, epoch, proofs: self.proofs() },
            9 => Command::SetDrained { node, drained: true, reason: "new cables".to_owned(), force: false },
            10 => Command::SetDrained { node, drained: false, reason: String::new(), force: false },
            _ => Command::RemoveNode { node },
        }
    }

    /// What the agent of one node saw: usually progress, sometimes failure, sometimes nonsense.
    fn report(&mut self) -> Command {
        let held: Vec<AllocationId> = self.state.allocations.keys().copied().collect();
        let Some(id) = self.chance.pick(&held) else { return self.bind() };
        let allocation = self.state.allocations[&id].clone();
        let task = self.chance.below(allocation.tasks.len() as u64) as usize;
        let node = allocation.tasks[task].node;
        let epoch = self.state.nodes.get(&node).map_or(Epoch(0), |node| node.epoch);
        let epoch = if self.chance.one_in(15) { Epoch(epoch.0.saturating_sub(1)) } else { epoch };
        let usual = match self.chance.below(12) {
            0..=4 => TaskState::Running,
            5..=8 => TaskState::Exited { code: 0 },
            9 => TaskState::Stopped,
            10 => TaskState::Exited { code: 1 },
            _ => TaskState::TimedOut,
        };
        let whole_node = !self.chance.one_in(4);
        let mut reports = Vec::new();
        for (rank, place) in allocation.tasks.iter().enumerate() {
            if rank == task || (whole_node && place.node == node) || self.chance.one_in(10) {
                let state = match self.chance.below(25) {
                    0 => TaskState::StartFailed { reason: "no such file".to_owned(), by_node: self.chance.one_in(2) },
                    3 => TaskState::Signaled { signal: 9 },
                    4 => TaskState::OutOfMemory { reason: "its limit is 64 MiB".to_owned() },
                    1 => TaskState::Pending,
                    2 => TaskState::Fenced,
                    _ => usual.clone(),
                };
                let checkpoint = self.checkpoint();
                reports.push(TaskReport {
                    allocation: id,
                    rank: Rank(rank as u32),
                    state,
                    ended_ms: None,
                    checkpoint,
                    clean_up: self.clean_up(),
                });
            }
        }
        if self.chance.one_in(10) {
            reports.push(TaskReport {
                allocation: AllocationId(id.0 + 1),
                rank: Rank(77),
                state: usual,
                ended_ms: None,
                checkpoint: None,
                clean_up: CleanUp::default(),
            });
        }
        let command = Command::ReportTasks { node, epoch, reports };
        self.sent.push(command.clone());
        command
    }

    fn clean_up(&mut self) -> CleanUp {
        match self.chance.below(8) {
            0..=4 => CleanUp::Done { took_ms: self.chance.below(3) },
            5 | 6 => CleanUp::UnderWay,
            _ => CleanUp::Failed { reason: "process 7 uses it".to_owned() },
        }
    }

    fn usage(&mut self) -> Command {
        let nodes: Vec<NodeId> = self.state.usage_streams.keys().copied().collect();
        let Some(node) = self.chance.pick(&nodes) else { return Command::Sweep };
        let stream = self.state.usage_streams[&node].clone();
        let known = self.streams.entry(node).or_insert((stream.incarnation, 0));
        if known.0 != stream.incarnation {
            *known = (stream.incarnation, 0);
        }
        let (incarnation, mut seq) = *known;
        let held: Vec<AllocationId> = self.state.allocations.keys().copied().collect();
        let mut intervals = Vec::new();
        for _ in 0..self.chance.below(4) {
            seq += 1;
            let allocation = self.chance.pick(&held).unwrap_or(AllocationId(self.chance.below(30)));
            // What an interval says is fixed by its number, as it is in an agent's own record.
            intervals.push(UsageInterval {
                seq,
                allocation,
                duration_ms: 1_000,
                gpu_unit_ms: incarnation * 1_000 + seq,
                kind: [UseKind::Run, UseKind::Idle, UseKind::Clean][(seq % 3) as usize],
            });
        }
        match self.chance.below(8) {
            0 => drop(intervals.pop()),
            1 if intervals.len() > 1 => drop(intervals.remove(0)),
            2 => intervals.extend(intervals.clone()),
            _ => {}
        }
        // The agent counts on only from what was taken; otherwise it would send the same again.
        let command = Command::RecordUsage { node, incarnation, intervals };
        let taken = muster_control_core::plan(&self.state, self.now_ms, &command);
        if let Ok((_, muster_control_core::Done::Counted { mark })) = taken {
            self.streams.insert(node, (incarnation, mark));
        }
        self.sent.push(command.clone());
        command
    }

    /// Something that was sent long ago comes again.
    fn repeat(&mut self) -> Command {
        let sent = self.chance.pick(&self.sent.clone());
        sent.unwrap_or(Command::Sweep)
    }
}
