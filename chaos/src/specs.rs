//! The tenants, nodes and jobs of a simulated fleet: small, so that they collide often.

use muster_model::node::{Gpu, NodeSpec};
use muster_model::request::TaskRequest;
use muster_model::resources::Limits;
use muster_model::tenant::{TenantSpec, Trust};
use muster_model::{
    DeviceRequest, GpuModel, GpuUnits, JobSpec, Movable, NumaPolicy, ResourceVec, Spread, Topology, TopologyLevel,
    WorkloadClass,
};
use muster_runtime::Chance;

/// The cards of each simulated node.
pub const GPUS_PER_NODE: usize = 4;
/// The model of all cards.
pub const MODEL: GpuModel = GpuModel::H100;
/// How long tasks outlive contact with the control plane, in seconds: short, so that runs see it pass.
pub const DISCONNECT_GRACE_S: u64 = muster_model::validate::bounds::DISCONNECT_GRACE_S_MIN;

/// Two organisations; one of them with a team that may use little.
#[must_use]
pub fn tenants() -> Vec<TenantSpec> {
    let tenant = |path: &str, cards: Option<u64>, trust| TenantSpec {
        max: Limits {
            gpu: cards.map(|cards| (MODEL, GpuUnits::cards(cards))).into_iter().collect(),
            ..Limits::default()
        },
        trust,
        ..TenantSpec::usual(path)
    };
    vec![
        tenant("research", None, Trust::Trusted),
        tenant("research/nlp", Some(6), Trust::Trusted),
        tenant("guests", None, Trust::Untrusted),
    ]
}

/// The same tenants with floors: three quarters of the cards are guaranteed, so that the loss of two nodes leaves some of it unmet.
#[must_use]
pub fn tenants_with_floors() -> Vec<TenantSpec> {
    let floors = [("research", 8), ("research/nlp", 3), ("guests", 4)];
    let mut tenants = tenants();
    for (path, cards) in floors {
        for tenant in tenants.iter_mut().filter(|tenant| tenant.path == path) {
            tenant.guarantee = ResourceVec::of_gpu(MODEL, GpuUnits::cards(cards));
        }
    }
    tenants
}

/// The paths that jobs are submitted under.
pub const PAYERS: [&str; 3] = ["research", "research/nlp", "guests"];

/// Node number `number`, in one of two cells.
#[must_use]
pub fn node(number: usize, boot_id: &str) -> NodeSpec {
    let name = format!("node-{number}");
    let gpu = |index: u32| Gpu { numa: (index / 2) as u8, ..Gpu::usual(&name, index, MODEL) };
    let mut spec = NodeSpec::usual(&name, (0..GPUS_PER_NODE as u32).map(gpu).collect());
    spec.place.leaf = format!("leaf-{}", number % 2);
    spec.cell = format!("cell-{}", number % 2);
    spec.boot_id = boot_id.to_owned();
    spec
}

/// Any job: a gang, a few cards, a slice, a share, or CPU alone; most succeed, some fail or run into their limit.
#[must_use]
pub fn job(chance: &Chance, number: u64) -> JobSpec {
    let models = vec![MODEL];
    let (tasks, devices) = match chance.between(0, 10) {
        0..=2 => (chance.between(2, 5) as u32, DeviceRequest::Whole { count: 2, models }),
        3..=4 => (1, DeviceRequest::Whole { count: chance.between(1, GPUS_PER_NODE as u64 + 1) as u32, models }),
        5..=6 => (1, DeviceRequest::Mig { profile: "1g.10gb".to_owned(), models }),
        7 => (1, DeviceRequest::Mps { percent: 25, memory_mib: 10_000, models }),
        8 => (1, DeviceRequest::TimeSlice { memory_mib: 8_000, models }),
        _ => (chance.between(1, 4) as u32, DeviceRequest::None),
    };
    let whole = matches!(devices, DeviceRequest::Whole { .. });
    let shared = matches!(devices, DeviceRequest::Mps { .. } | DeviceRequest::TimeSlice { .. });
    let payer = if shared { "research" } else { PAYERS[chance.between(0, 3) as usize] };
    // What the small team may never have would be refused at once; that is tested elsewhere.
    let payer = if payer == "research/nlp" && tasks > 3 { "research" } else { payer };
    // One in five outlasts every fence, so that it is still there when its node is given up.
    let run_ms = if chance.between(0, 5) == 0 { chance.between(14_000, 30_000) } else { chance.between(200, 6_000) };
    let exit = if chance.between(0, 12) == 0 { 1 } else { 0 };
    JobSpec {
        tenant: payer.to_owned(),
        name: format!("job-{number}"),
        tasks,
        request: TaskRequest { devices, cpu_milli: 1_000, memory_mib: 1_024 },
        topology: topology(chance, tasks),
        numa: if whole { NumaPolicy::ALL[chance.between(0, 3) as usize] } else { NumaPolicy::None },
        driver_min: None,
        asked: muster_model::Asked::default(),
        class: WorkloadClass::Batch,
        pool: None,
        priority: chance.between(0, 3) as i32,
        command: vec!["simulated".to_owned()],
        env: [("MUSTER_SIM_RUN_MS", run_ms.to_string()), ("MUSTER_SIM_EXIT", exit.to_string())]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        workdir: None,
        time_limit_s: (chance.between(0, 8) == 0).then_some(4),
        grace_s: 1,
        disconnect_grace_s: DISCONNECT_GRACE_S,
        max_retries: chance.between(0, 3) as u32,
        movable: (chance.between(0, 4) == 0).then(Movable::default),
        user: String::new(),
        preemption: muster_model::Preemption::default(),
        limit_signal: None,
        start: muster_model::StartConditions::default(),
        array: None,
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

/// Where a gang would like to stand; some insist.
fn topology(chance: &Chance, tasks: u32) -> Topology {
    let none = Topology::default();
    if tasks < 2 {
        return none;
    }
    let spread = |tasks_max, required| Some(Spread { level: TopologyLevel::Node, tasks_max, required });
    match chance.between(0, 8) {
        0 => Topology { preferred: Some(TopologyLevel::Node), ..none },
        1 => Topology { required: Some(TopologyLevel::Leaf), ..none },
        2 => Topology { segment_tasks: Some(1), ..none },
        3 => Topology { spread: spread(2, true), ..none },
        4 => Topology { spread: spread(1, false), ..none },
        _ => none,
    }
}
