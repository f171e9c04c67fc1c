//! What people write wrong, each refused with the field and the fix. Every case starts from something right and breaks one thing.

use muster_model::movable::Movable;
use muster_model::needs::{Choice, Isolation, Needs, Rule};
use muster_model::node::{Gpu, NodeSpec};
use muster_model::request::TaskRequest;
use muster_model::resources::Resource;
use muster_model::tenant::TenantSpec;
use muster_model::validate::warnings;
use muster_model::{
    AntiAffinity, AntiAffinityLevel, DeviceRequest, Elastic, FieldError, GpuModel, GpuUnits, JobSpec, LimitSignal,
    Limits, Mount, MountRule, NumaPolicy, Pool, Preemption, ResourceVec, Spread, StopSignal, Topology, TopologyLevel,
    Trust, WorkloadClass,
};

/// The system's own would win over a job's, in silence.
#[test]
fn variables_of_the_system_are_refused_with_their_list() {
    for name in ["RANK", "CUDA_VISIBLE_DEVICES", "MUSTER_TASK_DIR"] {
        let spec = JobSpec { env: [(name.to_owned(), "0".to_owned())].into(), ..job() };
        let faults = spec.validate().expect_err("it would be lost");
        assert_eq!((faults.len(), faults[0].field.as_str()), (1, "env"));
        assert!(faults[0].problem.starts_with(name) && faults[0].fix.contains("MASTER_PORT"), "{}", faults[0]);
    }
    let mine = JobSpec { env: [("MUSTER_SIM_EXIT".to_owned(), "1".to_owned())].into(), ..job() };
    assert!(mine.validate().is_ok());
}

fn job() -> JobSpec {
    let devices = DeviceRequest::Whole { count: 8, models: vec![GpuModel::H100] };
    let request = TaskRequest { devices, cpu_milli: 1_000, memory_mib: 1_024 };
    JobSpec {
        name: "train".to_owned(),
        tasks: 2,
        env: [("A".to_owned(), "b".to_owned())].into(),
        time_limit_s: Some(60),
        ..JobSpec::usual("research/nlp", request, &["true"])
    }
}

fn fields(errors: Result<(), Vec<FieldError>>) -> Vec<String> {
    let errors = errors.err().unwrap_or_default();
    for error in &errors {
        assert!(!error.problem.is_empty() && !error.fix.is_empty(), "{error:?} does not say what to do");
    }
    errors.into_iter().map(|error| error.field).collect()
}

fn check(title: &str, field: &str, spoil: impl FnOnce(&mut JobSpec)) {
    let mut spec = job();
    spoil(&mut spec);
    let named = fields(spec.validate().map(drop));
    assert!(named.iter().any(|name| name == field), "{title}: expected {field:?} among {named:?}");
}

#[test]
fn a_user_stands_in_one_column() {
    for user in ["", "alice", "alice@example.org", "CORP\\alice", "zoë"] {
        let spec = JobSpec { user: user.to_owned(), ..job() };
        assert_eq!(fields(spec.validate().map(drop)), [""; 0], "{user:?}");
    }
    check("two words", "user", |spec| spec.user = "Alice Liddell".to_owned());
    check("a line", "user", |spec| spec.user = "alice\nbob".to_owned());
    check("long", "user", |spec| spec.user = "a".repeat(129));
}

#[test]
fn a_signal_before_the_limit_needs_a_limit_that_is_longer() {
    let before = |before_s| Some(LimitSignal { signal: StopSignal::Usr1, before_s });
    check("no limit", "limit_signal", |s| (s.time_limit_s, s.limit_signal) = (None, before(10)));
    check("at the start", "limit_signal.before_s", |s| s.limit_signal = before(60));
    check("long", "limit_signal.before_s", |s| (s.time_limit_s, s.limit_signal) = (Some(100_000), before(65_536)));
    let spec = JobSpec { limit_signal: before(59), ..job() };
    assert_eq!(fields(spec.validate().map(drop)), [""; 0]);
}

#[test]
fn an_elastic_gang_grows_beyond_its_least_by_whole_segments() {
    let up_to = |tasks_max| Some(Elastic { tasks_max, signal: None });
    let least = job().tasks;
    check("no more", "elastic.tasks_max", |s| s.elastic = up_to(s.tasks));
    check("too many", "elastic.tasks_max", |s| s.elastic = up_to(32_769));
    check("half a segment", "elastic.tasks_max", |s| {
        (s.tasks, s.topology.segment_tasks, s.elastic) = (2, Some(2), up_to(5));
    });
    check("shares", "elastic", |s| {
        let devices = DeviceRequest::TimeSlice { memory_mib: 1_024, models: Vec::new() };
        (s.request.devices, s.class, s.elastic) = (devices, WorkloadClass::Batch, up_to(s.tasks + 1));
    });
    let spec = JobSpec { elastic: up_to(least + 1), ..job() };
    assert_eq!(fields(spec.validate().map(drop)), [""; 0]);
    assert_eq!((job().tasks_max(), JobSpec { elastic: up_to(9), ..job() }.tasks_max()), (least, 9));
}

#[test]
fn a_preemption_has_bounds_and_a_checkpoint_that_takes_too_long_is_warned_about() {
    check("an hour and more", "preemption.grace_s", |s| s.preemption.grace_s = Some(3_601));
    check("huge", "preemption.checkpoint_bytes", |s| s.preemption.checkpoint_bytes = (1 << 50) + 1);
    check("long", "preemption.restart_cost_s", |s| s.preemption.restart_cost_s = 43_201);
    // Two tasks write 4 GB/s together, in the 30 s of the job's own grace.
    let warned = |checkpoint_bytes, grace_s| {
        let preemption = Preemption { checkpoint_bytes, grace_s, ..Preemption::default() };
        fields(Err(warnings(&JobSpec { preemption, ..job() })))
    };
    assert_eq!(warned(120_000_000_000, None), [""; 0]);
    assert_eq!(warned(120_000_000_001, None), ["preemption.checkpoint_bytes"]);
    assert_eq!(warned(120_000_000_001, Some(31)), [""; 0]);
    assert_eq!(warned(0, Some(0)), [""; 0], "nothing is said of a size");
}

#[test]
fn the_pattern_is_right() {
    assert_eq!(fields(job().validate().map(drop)), [""; 0]);
    assert_eq!(fields(node().validate()), [""; 0]);
    assert_eq!(fields(tenant().validate()), [""; 0]);
    assert_eq!(fields(Pool::standard().validate()), [""; 0]);
}

#[test]
fn a_job_that_is_wrong_names_its_field() {
    check("no tenant", "tenant", |s| s.tenant.clear());
    check("hole in the path", "tenant", |s| s.tenant = "a//b".to_owned());
    check("too deep", "tenant", |s| s.tenant = "a/b/c/d/e/f/g/h/i".to_owned());
    check("odd characters", "tenant", |s| s.tenant = "a/b c".to_owned());
    check("no name", "name", |s| s.name.clear());
    check("long name", "name", |s| s.name = "n".repeat(129));
    check("newline in the name", "name", |s| s.name = "a\nb".to_owned());
    check("segments that do not divide", "topology.segment_tasks", |s| {
        s.tasks = 6;
        s.topology.segment_tasks = Some(4);
    });
    check("segments of nothing", "topology.segment_tasks", |s| s.topology.segment_tasks = Some(0));
    check("segments larger than any island", "topology.segment_tasks", |s| {
        s.tasks = 600;
        s.topology.segment_tasks = Some(300);
    });
    check("no tasks", "tasks", |s| s.tasks = 0);
    check("too many tasks", "tasks", |s| s.tasks = 32_769);
    check("no command", "command", |s| s.command.clear());
    check("empty program", "command", |s| s.command = vec![String::new()]);
    check("NUL in an argument", "command", |s| s.command.push("a\0b".to_owned()));
    check("endless command", "command", |s| s.command.push("x".repeat(40_000)));
    check("two thousand empty arguments", "command", |s| s.command.resize(2_000, String::new()));
    check("a thousand empty variables", "env", |s| {
        s.env = (0..1_000).map(|i| (format!("V{i}"), String::new())).collect()
    });
    check("a model twice", "request.models", |s| {
        s.request.devices = DeviceRequest::Whole { count: 1, models: vec![GpuModel::H100, GpuModel::H100] };
    });
    check("a tenant of long names", "tenant", |s| s.tenant = vec!["x".repeat(120); 5].join("/"));
    check("NUL in the environment", "command", |s| drop(s.env.insert("A".to_owned(), "\0".to_owned())));
    check("variable without a name", "env", |s| drop(s.env.insert(String::new(), "b".to_owned())));
    check("variable with =", "env", |s| drop(s.env.insert("A=B".to_owned(), "b".to_owned())));
    check("relative folder", "workdir", |s| s.workdir = Some("here".to_owned()));
    check("no time", "time_limit_s", |s| s.time_limit_s = Some(0));
    check("ten years", "time_limit_s", |s| s.time_limit_s = Some(315_360_000));
    check("endless grace", "grace_s", |s| s.grace_s = 43_201);
    check("no disconnect grace", "disconnect_grace_s", |s| s.disconnect_grace_s = 0);
    check("a disconnect grace shorter than a leader change", "disconnect_grace_s", |s| s.disconnect_grace_s = 9);
    assert!(JobSpec { disconnect_grace_s: 10, ..job() }.validate().is_ok(), "the shortest");
    check("endless disconnect grace", "disconnect_grace_s", |s| s.disconnect_grace_s = u64::MAX);
    check("endless retries", "max_retries", |s| s.max_retries = 1_001);
    check("priority beyond bounds", "priority", |s| s.priority = i32::MIN);
    check("pool with odd name", "pool", |s| s.pool = Some("a/b".to_owned()));
    check("nothing asked", "request", |s| {
        s.request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 0, memory_mib: 1 };
    });
    check("no cards", "request.whole.count", |s| s.request.devices = DeviceRequest::Whole { count: 0, models: vec![] });
    check("17 cards", "request.whole.count", |s| {
        s.request.devices = DeviceRequest::Whole { count: 17, models: vec![] }
    });
    check("CPU beyond bounds", "request.cpu_milli", |s| s.request.cpu_milli = u64::MAX);
    check("memory beyond bounds", "request.memory_mib", |s| s.request.memory_mib = u64::MAX);
    check("unknown profile", "request.mig.profile", |s| {
        s.tasks = 1;
        s.request.devices = DeviceRequest::Mig { profile: "9g.90gb".to_owned(), models: vec![] };
    });
    check("MIG on a card without it", "request.mig.profile", |s| {
        s.tasks = 1;
        s.request.devices = DeviceRequest::Mig { profile: "1g.10gb".to_owned(), models: vec![GpuModel::T4] };
    });
    check("a gang of MIG slices", "tasks", |s| {
        s.request.devices = DeviceRequest::Mig { profile: "1g.10gb".to_owned(), models: vec![] };
    });
    check("no percent", "request.mps.percent", |s| {
        s.request.devices = DeviceRequest::Mps { percent: 0, memory_mib: 1, models: vec![] };
    });
    check("101 percent", "request.mps.percent", |s| {
        s.request.devices = DeviceRequest::Mps { percent: 101, memory_mib: 1, models: vec![] };
    });
    check("share without memory", "request.mps.memory_mib", |s| {
        s.request.devices = DeviceRequest::Mps { percent: 10, memory_mib: 0, models: vec![] };
    });
    check("share larger than the card", "request.mps.memory_mib", |s| {
        s.request.devices = DeviceRequest::Mps { percent: 10, memory_mib: 100_000, models: vec![GpuModel::H100] };
    });
    check("slice larger than any card", "request.time_slice.memory_mib", |s| {
        s.request.devices = DeviceRequest::TimeSlice { memory_mib: u64::MAX, models: vec![] };
    });
    check("training on a time-slice", "request.time_slice", |s| {
        s.class = WorkloadClass::Training;
        s.request.devices = DeviceRequest::TimeSlice { memory_mib: 1_000, models: vec![] };
    });
    check("preferred wider than required", "topology.preferred", |s| {
        s.topology = Topology {
            required: Some(TopologyLevel::Node),
            preferred: Some(TopologyLevel::Block),
            segment_tasks: None,
            spread: None,
        };
    });
    check("more cards than a node has", "topology.required", |s| {
        s.tasks = 10;
        s.topology.required = Some(TopologyLevel::Node);
    });
}

#[test]
fn a_spread_that_is_wrong_names_its_field() {
    let spread = |level, tasks_max| Some(Spread { level, tasks_max, required: true });
    check("a spread of no tasks", "topology.spread.tasks_max", |s| {
        s.topology.spread = spread(TopologyLevel::Node, 0);
    });
    check("a spread over islands", "topology.spread.level", |s| {
        s.topology.spread = spread(TopologyLevel::Island, 1);
    });
    check("a spread beside segments", "topology.spread", |s| {
        s.tasks = 4;
        s.topology.segment_tasks = Some(2);
        s.topology.spread = spread(TopologyLevel::Leaf, 1);
    });
    check("a spread wider than what is required", "topology.spread.level", |s| {
        s.tasks = 4;
        s.topology.required = Some(TopologyLevel::Leaf);
        s.topology.spread = spread(TopologyLevel::Block, 1);
    });
    check("a spread over what one task may fill", "topology.spread.level", |s| {
        s.tasks = 4;
        s.topology.required = Some(TopologyLevel::Node);
        s.topology.spread = Some(Spread { level: TopologyLevel::Node, tasks_max: 3, required: false });
    });
}

#[test]
fn everything_wrong_is_said_at_once() {
    let mut spec = job();
    spec.tasks = 0;
    spec.command.clear();
    spec.max_retries = 9_999;
    assert_eq!(fields(spec.validate().map(drop)), ["tasks", "command", "max_retries"]);
}

fn node() -> NodeSpec {
    let labels = [("rack".to_owned(), "r1".to_owned())].into();
    NodeSpec { labels, ..NodeSpec::usual("node-0001", Gpu::usual_cards("node-0001", 8, GpuModel::H100)) }
}

fn check_node(title: &str, field: &str, spoil: impl FnOnce(&mut NodeSpec)) {
    let mut spec = node();
    spoil(&mut spec);
    let named = fields(spec.validate());
    assert!(named.iter().any(|name| name == field), "{title}: expected {field:?} among {named:?}");
}

#[test]
fn a_node_that_is_wrong_names_its_field() {
    check_node("no name", "name", |s| s.name.clear());
    check_node("no cell", "cell", |s| s.cell.clear());
    check_node("odd pool", "pool", |s| s.pool = "a pool".to_owned());
    check_node("no region", "place.region", |s| s.place.region.clear());
    check_node("no zone", "place.zone", |s| s.place.zone.clear());
    check_node("no block", "place.block", |s| s.place.block.clear());
    check_node("odd leaf", "place.leaf", |s| s.place.leaf = "l/0".to_owned());
    check_node("an odd NVLink domain", "place.nvlink_domain", |s| s.place.nvlink_domain = "a/b".to_owned());
    check_node("an NVLink domain over several islands", "place.nvlink_domain", |s| {
        s.place.nvlink_domain = "nvl".to_owned();
        s.gpus[7].island = 1;
    });
    check_node("no address", "address", |s| s.address.clear());
    check_node("endless address", "address", |s| s.address = "a".repeat(10_000));
    check_node("no boot id", "boot_id", |s| s.boot_id.clear());
    check_node("too many cards", "gpus", |s| s.gpus = vec![s.gpus[0].clone(); 73]);
    check_node("a card twice", "gpus[1].uuid", |s| s.gpus[1].uuid = s.gpus[0].uuid.clone());
    check_node("a card without memory", "gpus[0].memory_mib", |s| s.gpus[0].memory_mib = 0);
    check_node("a card of all memory", "gpus.memory_mib", |s| s.gpus[0].memory_mib = u64::MAX);
    check_node("no CPU", "cpu_milli", |s| s.cpu_milli = 0);
    check_node("all CPUs", "cpu_milli", |s| s.cpu_milli = u64::MAX);
    check_node("no memory", "memory_mib", |s| s.memory_mib = 0);
    check_node("all memory", "memory_mib", |s| s.memory_mib = u64::MAX);
    check_node("endless labels", "labels", |s| s.labels = (0..65).map(|i| (i.to_string(), String::new())).collect());
    check_node("an endless label", "labels", |s| drop(s.labels.insert("a".to_owned(), "b".repeat(257))));
}

fn tenant() -> TenantSpec {
    let guarantee = ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(8));
    let max = Limits { gpu: [(GpuModel::H100, GpuUnits::cards(16))].into(), ..Limits::default() };
    TenantSpec {
        path: "research/nlp".to_owned(),
        guarantee,
        max,
        weight: 1,
        trust: Trust::Trusted,
        anti_affinity: Vec::new(),
        lend: true,
        weights: Default::default(),
        lends: Default::default(),
        run_as: None,
    }
}

fn check_tenant(title: &str, field: &str, spoil: impl FnOnce(&mut TenantSpec)) {
    let mut spec = tenant();
    spoil(&mut spec);
    let named = fields(spec.validate());
    assert!(named.iter().any(|name| name == field), "{title}: expected {field:?} among {named:?}");
}

#[test]
fn a_tenant_that_is_wrong_names_its_field() {
    check_tenant("no path", "path", |s| s.path.clear());
    check_tenant("a slash too many", "path", |s| s.path = "a/".to_owned());
    check_tenant("no weight", "weight", |s| s.weight = 0);
    let apart = |path: &str| AntiAffinity { tenant: path.to_owned(), level: AntiAffinityLevel::Node };
    check_tenant("apart from itself", "anti_affinity", |s| s.anti_affinity = vec![apart("research/nlp")]);
    check_tenant("apart from its parent", "anti_affinity", |s| s.anti_affinity = vec![apart("research")]);
    check_tenant("apart from its child", "anti_affinity", |s| s.anti_affinity = vec![apart("research/nlp/a")]);
    check_tenant("apart twice", "anti_affinity", |s| s.anti_affinity = vec![apart("ads"), apart("ads")]);
    check_tenant("apart from no path", "anti_affinity", |s| s.anti_affinity = vec![apart("ads//x")]);
    check_tenant("apart from everybody", "anti_affinity", |s| {
        s.anti_affinity = (0..65).map(|n| apart(&format!("t{n}"))).collect()
    });
    check_tenant("weight beyond bounds", "weight", |s| s.weight = u32::MAX);
    check_tenant("no weight of one model", "weights.gpu.h100", |s| {
        s.weights.insert(Resource::Gpu(GpuModel::H100), 0);
    });
    check_tenant("weight of CPU beyond bounds", "weights.cpu_milli", |s| {
        s.weights.insert(Resource::Cpu, u32::MAX);
    });
    check_tenant("floor above the ceiling", "guarantee", |s| s.guarantee.set_gpu(GpuModel::H100, GpuUnits::cards(17)));
    check_tenant("a floor of memory above the ceiling", "guarantee", |s| {
        (s.guarantee.memory_mib, s.max.memory_mib) = (2, Some(1));
    });
    check_tenant("all the memory of the world", "guarantee", |s| s.guarantee.memory_mib = u64::MAX);
    check_tenant("ceiling beyond sums", "max", |s| s.max.cpu_milli = Some(u64::MAX));
}

fn check_pool(title: &str, field: &str, spoil: impl FnOnce(&mut Pool)) {
    let mut pool = Pool::standard();
    spoil(&mut pool);
    let named = fields(pool.validate());
    assert!(named.iter().any(|name| name == field), "{title}: expected {field:?} among {named:?}");
}

#[test]
fn a_pool_that_is_wrong_names_its_field() {
    check_pool("no name", "name", |p| p.name.clear());
    check_pool("no mode", "modes", |p| p.modes.clear());
    check_pool("no class", "classes", |p| p.classes.clear());
    check_pool("no replicas", "time_slice_replicas", |p| p.time_slice_replicas = 0);
    check_pool("too many replicas", "time_slice_replicas", |p| p.time_slice_replicas = 33);
    check_pool("image without a place", "images[0]", |p| p.images.push("/srv/images".to_owned()));
    check_pool("all of the host", "mounts[0].path", |p| p.mounts.push(MountRule { path: "/".into(), write: true }));
    check_pool("many rules", "images", |p| p.images = vec!["dir:/srv".to_owned(); 17]);
    check_pool("too many clients", "mps_clients", |p| p.mps_clients = 61);
}

fn without_gpus(s: &mut JobSpec) {
    s.request.devices = DeviceRequest::None;
}

fn mig(s: &mut JobSpec, profile: &str, models: &[GpuModel]) {
    s.tasks = 1;
    s.request.devices = DeviceRequest::Mig { profile: profile.to_owned(), models: models.to_vec() };
}

fn needs() -> Needs {
    Needs {
        memory_mib: 8_192,
        compute_percent: 15,
        isolation: Isolation::Strict,
        bursty: false,
        latency_critical: false,
        models: vec![],
    }
}

#[test]
fn what_a_move_loses_is_checked() {
    let movable = |checkpoint_every_s, restart_s| Some(Movable { checkpoint_every_s, restart_s });
    check("checkpoints all the time", "movable.checkpoint_every_s", |s| s.movable = movable(Some(0), 0));
    check("checkpoints once in a lifetime", "movable.checkpoint_every_s", |s| s.movable = movable(Some(1 << 40), 0));
    check("a start that takes days", "movable.restart_s", |s| s.movable = movable(None, 100_000));
}

#[test]
fn what_stands_beside_a_request_is_checked() {
    check("NUMA without GPUs", "numa", |s| {
        without_gpus(s);
        s.numa = NumaPolicy::Restricted;
    });
    check("driver without GPUs", "driver_min", |s| {
        without_gpus(s);
        s.driver_min = "550".parse().ok();
    });
    check("selector without GPUs", "selector", |s| {
        without_gpus(s);
        s.asked.selector = "device.memory_mib > 1".parse().ok();
    });
    check("class without GPUs", "device_class", |s| {
        without_gpus(s);
        s.asked.device_class = Some("big".to_owned());
    });
    check("class that is no name", "device_class", |s| s.asked.device_class = Some("a b".to_owned()));
    check("selector that shuts the models out", "selector", |s| {
        s.asked.selector = "device.model == \"t4\"".parse().ok();
    });
    check("selector that no card of the model can satisfy", "selector", |s| {
        s.asked.selector = "device.memory_mib > 100000".parse().ok();
    });
    check("memory that no card has", "gpu_memory_mib", |s| s.asked.gpu_memory_mib = Some(100_000));
    check("needs beside devices", "needs", |s| s.asked.needs = Some(needs()));
    check("a choice of one's own", "choice", |s| {
        s.asked.choice =
            Some(Choice { rule: Rule::StrictIsolation, model: GpuModel::H100, compute_percent: 1, memory_mib: 1 });
    });
    check("needs without memory", "needs.memory_mib", |s| {
        without_gpus(s);
        s.asked.needs = Some(Needs { memory_mib: 0, ..needs() });
    });
    check("needs of more than sixteen cards", "needs.compute_percent", |s| {
        without_gpus(s);
        s.asked.needs = Some(Needs { compute_percent: 1_601, ..needs() });
    });
}

#[test]
fn twenty_two_gigabytes_on_1g_10gb_are_told_to_ask_for_3g_40gb() {
    let check = |profile: &str, models: &[GpuModel], memory_mib: u64, fix: &str| {
        let mut spec = job();
        mig(&mut spec, profile, models);
        spec.asked.gpu_memory_mib = Some(memory_mib);
        let errors = spec.validate().expect_err("too much memory");
        let error = errors.iter().find(|error| error.field == "gpu_memory_mib").expect("the field is named");
        assert!(error.fix.contains(fix), "{error}");
    };
    check("1g.10gb", &[GpuModel::H100], 22 * 1_024, "3g.40gb on h100");
    check("1g.10gb", &[], 22 * 1_024, "3g.40gb on a100-80");
    check("1g.10gb", &[GpuModel::H100], 15 * 1_024, "1g.20gb on h100");
    check("1g.18gb", &[GpuModel::H200], 22 * 1_024, "1g.35gb on h200");
    check("1g.10gb", &[GpuModel::H100], 100 * 1_024, "several whole GPUs");
}

#[test]
fn memory_narrows_the_models() {
    let mut spec = job();
    spec.request.devices =
        DeviceRequest::Whole { count: 1, models: vec![GpuModel::A100_40, GpuModel::H200, GpuModel::H100] };
    spec.asked.gpu_memory_mib = Some(60_000);
    assert_eq!(spec.possible_models().collect::<Vec<_>>(), [GpuModel::H200, GpuModel::H100]);
    spec.asked.selector = "device.memory_mib < 100000".parse().ok();
    assert_eq!(spec.possible_models().collect::<Vec<_>>(), [GpuModel::H100]);
}

#[test]
fn training_on_one_slice_is_a_warning() {
    let mut spec = job();
    mig(&mut spec, "1g.10gb", &[GpuModel::H100]);
    assert_eq!(warnings(&spec), []);
    spec.class = WorkloadClass::Training;
    assert_eq!(warnings(&spec).len(), 1);
    assert!(spec.validate().is_ok());
}

/// The image says what it runs.
#[test]
fn a_job_in_an_image_may_leave_its_command_out() {
    let silent = JobSpec { command: Vec::new(), ..job() };
    assert!(silent.clone().validate().is_err());
    let image = Some("docker://r.example/ml/serve:3".to_owned());
    assert!(JobSpec { image, ..silent }.validate().is_ok());
}

#[test]
fn compute_instances_are_equal_parts_of_a_mig_instance() {
    let mig = |profile: &str| DeviceRequest::Mig { profile: profile.to_owned(), models: vec![GpuModel::H100] };
    check("without MIG", "compute_instances", |s| s.compute_instances = 2);
    for (profile, count) in [("3g.40gb", 2), ("4g.40gb", 3), ("1g.10gb", 2), ("7g.80gb", 2)] {
        check(profile, "compute_instances", |s| {
            (s.tasks, s.request.devices, s.compute_instances) = (1, mig(profile), count);
        });
    }
    for (profile, count) in [("3g.40gb", 3), ("4g.40gb", 2), ("4g.40gb", 4), ("7g.80gb", 7), ("1g.10gb", 1)] {
        let mut spec = job();
        (spec.tasks, spec.request.devices, spec.compute_instances) = (1, mig(profile), count);
        assert_eq!(fields(spec.validate().map(drop)), [""; 0], "{profile} in {count}");
    }
}

#[test]
fn an_image_and_mounts_name_what_is_wrong_with_them() {
    check("bare image", "image", |s| s.image = Some("ubuntu:24.04".to_owned()));
    let mount = |source: &str, target: &str| Mount { source: source.into(), target: target.into(), read_only: true };
    check("source above", "mounts[0].source", |s| s.mounts.push(mount("/data/../etc", "/data")));
    check("its own place", "mounts[0].target", |s| s.mounts.push(mount("/data", "/proc")));
    check("two in one place", "mounts[1].target", |s| s.mounts = vec![mount("/a", "/x"), mount("/b", "/x")]);
    check("many mounts", "mounts", |s| s.mounts = (0..17).map(|at| mount("/a", &format!("/x{at}"))).collect());
}
