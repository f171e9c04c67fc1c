//! Job classes: two jobs that differ in one field alone share a decision only where the field decides nothing.

use super::fleet::*;
use crate::job_class::JobClasses;
use crate::{Bounds, plan};
use muster_model::needs::Needs;
use muster_model::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a field is to the scheduler.
enum Matters {
    /// On this fleet the first waits and the second starts, whichever came first.
    Starts(fn() -> Fleet),
    /// Both start, but not in the same place.
    Stands,
    /// Nothing: one decision serves both.
    Nothing,
}
use Matters::{Nothing, Stands, Starts};

/// A field and what it is to the scheduler.
struct Case {
    field: &'static str,
    one: JobSpec,
    other: JobSpec,
    matters: Matters,
}

/// Every field by name with its value; a new field does not compile before it is named here, and then needs a case.
fn fields(spec: &JobSpec) -> BTreeMap<&'static str, String> {
    let JobSpec {
        tenant,
        name,
        tasks,
        request,
        topology,
        numa,
        driver_min,
        asked,
        class,
        pool,
        priority,
        command,
        env,
        workdir,
        time_limit_s,
        grace_s,
        disconnect_grace_s,
        max_retries,
        movable,
        user,
        preemption,
        limit_signal,
        start,
        array,
        priority_class,
        reservation,
        elastic,
        image,
        mounts,
        compute_instances,
        comment,
        secret_env,
    } = spec;
    let request::TaskRequest { devices, cpu_milli, memory_mib } = request;
    let Topology { required, preferred, segment_tasks, spread } = topology;
    let Asked { selector, device_class, gpu_memory_mib, needs, choice } = asked;
    let text = |value: &dyn std::fmt::Debug| format!("{value:?}");
    BTreeMap::from([
        ("tenant", text(tenant)),
        ("name", text(name)),
        ("tasks", text(tasks)),
        ("request.devices", text(devices)),
        ("request.cpu_milli", text(cpu_milli)),
        ("request.memory_mib", text(memory_mib)),
        ("topology.required", text(required)),
        ("topology.preferred", text(preferred)),
        ("topology.segment_tasks", text(segment_tasks)),
        ("topology.spread", text(spread)),
        ("numa", text(numa)),
        ("driver_min", text(driver_min)),
        ("asked.selector", text(selector)),
        ("asked.device_class", text(device_class)),
        ("asked.gpu_memory_mib", text(gpu_memory_mib)),
        ("asked.needs", text(needs)),
        ("asked.choice", text(choice)),
        ("class", text(class)),
        ("pool", text(pool)),
        ("priority", text(priority)),
        ("command", text(command)),
        ("env", text(env)),
        ("workdir", text(workdir)),
        ("time_limit_s", text(time_limit_s)),
        ("grace_s", text(grace_s)),
        ("disconnect_grace_s", text(disconnect_grace_s)),
        ("max_retries", text(max_retries)),
        ("movable", text(movable)),
        ("user", text(user)),
        ("preemption", text(preemption)),
        ("limit_signal", text(limit_signal)),
        ("start", text(start)),
        ("array", text(array)),
        ("priority_class", text(priority_class)),
        ("reservation", text(reservation)),
        ("elastic", text(elastic)),
        ("image", text(image)),
        ("mounts", text(mounts)),
        ("compute_instances", text(compute_instances)),
        ("comment", text(comment)),
        ("secret_env", text(secret_env)),
    ])
}

/// Two nodes of eight H100 under one leaf each, their cards on two NUMA nodes.
fn two_nodes() -> Fleet {
    let mut fleet = Fleet::new([
        Host::new("a", GpuModel::H100, 8).at("b1", "l1"),
        Host::new("b", GpuModel::H100, 8).at("b1", "l2"),
    ]);
    fleet.tenant("capped", |tenant| tenant.max.gpu = [(GpuModel::H100, GpuUnits::cards(1))].into());
    let nodes: Vec<Node> = fleet.nodes.values().cloned().collect();
    for mut node in nodes {
        node.spec.gpus.iter_mut().enumerate().for_each(|(at, gpu)| gpu.numa = u8::from(at >= 4));
        fleet.put_node(node);
    }
    fleet.deliver(usize::MAX);
    fleet
}

/// The two nodes, in a pool that serves no training.
fn without_training() -> Fleet {
    let mut fleet = two_nodes();
    let classes = BTreeSet::from([WorkloadClass::Batch]);
    fleet.put_pool(Pool { classes, ..Pool::standard() });
    fleet.deliver(usize::MAX);
    fleet
}

/// Tasks see no other node.
fn private_network() -> Fleet {
    let mut fleet = two_nodes();
    fleet.put_pool(Pool { network: Some(NetworkPolicy::Private), ..Pool::standard() });
    fleet.deliver(usize::MAX);
    fleet
}

/// One card of 40 GB is free beside taken ones of 80.
fn small_card_free() -> Fleet {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1), Host::new("b", GpuModel::A100_40, 2)]);
    fleet.submit(gang(1, 1));
    fleet.settle();
    fleet
}

/// A node of eight is free, and kept for a gang that starts in an hour.
fn kept_for_an_hour() -> Fleet {
    let mut fleet = two_nodes();
    fleet.submit(JobSpec { time_limit_s: Some(3_600), grace_s: 0, ..gang(1, 8) });
    fleet.settle();
    fleet.submit(gang(2, 8));
    fleet.settle();
    fleet
}

fn with(change: impl FnOnce(&mut JobSpec)) -> JobSpec {
    let mut spec = gang(1, 1);
    change(&mut spec);
    spec
}

fn differing(field: &'static str, matters: Matters, one: JobSpec, change: impl FnOnce(&mut JobSpec)) -> Case {
    let mut other = one.clone();
    change(&mut other);
    Case { field, one, other, matters }
}

fn any_card() -> JobSpec {
    job(1, DeviceRequest::Whole { count: 1, models: Vec::new() })
}

fn placement_cases() -> Vec<Case> {
    let at = |level| move |spec: &mut JobSpec| spec.topology.required = Some(level);
    let apart = Spread { level: TopologyLevel::Node, tasks_max: 1, required: true };
    vec![
        differing("tasks", Starts(two_nodes), gang(17, 1), |spec| spec.tasks = 1),
        differing("reservation", Starts(two_nodes), with(|spec| spec.reservation = Some("launch".into())), |spec| {
            spec.reservation = None;
        }),
        differing("request.devices", Starts(two_nodes), gang(1, 9), |spec| {
            spec.request.devices = gang(1, 8).request.devices
        }),
        differing("request.cpu_milli", Starts(two_nodes), with(|spec| spec.request.cpu_milli = 64_001), |spec| {
            spec.request.cpu_milli = 64_000;
        }),
        differing("request.memory_mib", Starts(two_nodes), with(|spec| spec.request.memory_mib = 512_001), |spec| {
            spec.request.memory_mib = 512_000;
        }),
        differing(
            "topology.required",
            Starts(two_nodes),
            JobSpec { tasks: 9, ..with(at(TopologyLevel::Leaf)) },
            |spec| {
                spec.topology.required = None;
            },
        ),
        differing("topology.preferred", Stands, gang(2, 1), |spec| spec.topology.preferred = Some(TopologyLevel::Leaf)),
        differing(
            "topology.segment_tasks",
            Starts(two_nodes),
            JobSpec { topology: Topology { segment_tasks: Some(9), ..Topology::default() }, ..gang(9, 1) },
            |spec| spec.topology.segment_tasks = None,
        ),
        differing(
            "topology.spread",
            Starts(two_nodes),
            JobSpec { topology: Topology { spread: Some(apart), ..Topology::default() }, ..gang(3, 1) },
            |spec| spec.topology.spread = None,
        ),
        differing("numa", Starts(two_nodes), JobSpec { numa: NumaPolicy::SingleNumaNode, ..gang(1, 5) }, |spec| {
            spec.numa = NumaPolicy::Restricted;
        }),
        differing(
            "driver_min",
            Starts(two_nodes),
            with(|spec| spec.driver_min = Some(DriverVersion::major(551))),
            |spec| {
                spec.driver_min = Some(DriverVersion::major(550));
            },
        ),
        differing(
            "asked.selector",
            Starts(two_nodes),
            with(|spec| spec.asked.selector = Some("device.driver >= version(\"560\")".parse().expect("a selector"))),
            |spec| spec.asked.selector = None,
        ),
        differing("asked.gpu_memory_mib", Starts(small_card_free), any_card(), |_| ()).swapped(|spec| {
            spec.asked.gpu_memory_mib = Some(60 * 1024);
        }),
        differing("class", Starts(without_training), with(|spec| spec.class = WorkloadClass::Training), |spec| {
            spec.class = WorkloadClass::Batch;
        }),
        differing("pool", Starts(two_nodes), with(|spec| spec.pool = Some("gold".into())), |spec| spec.pool = None),
        differing("image", Starts(two_nodes), with(|spec| spec.image = Some("dir:/srv/a".into())), |spec| {
            spec.image = None;
        }),
        differing(
            "mounts",
            Starts(two_nodes),
            with(|spec| {
                spec.mounts.push(Mount { source: "/data".into(), target: "/data".into(), read_only: true });
            }),
            |spec| spec.mounts.clear(),
        ),
        // A gang waits with its least, but may grow onto other nodes.
        differing(
            "elastic",
            Starts(private_network),
            with(|spec| spec.elastic = Some(muster_model::Elastic { tasks_max: 4, signal: None })),
            |spec| spec.elastic = None,
        ),
        differing("time_limit_s", Starts(kept_for_an_hour), with(|spec| spec.time_limit_s = Some(7_200)), |spec| {
            spec.time_limit_s = Some(1_800);
        }),
        differing(
            "grace_s",
            Starts(kept_for_an_hour),
            with(|spec| (spec.time_limit_s, spec.grace_s) = (Some(1_800), 3_600)),
            |spec| spec.grace_s = 60,
        ),
    ]
}

fn other_cases() -> Vec<Case> {
    let latency_critical = |latency_critical| {
        let models = Vec::new();
        let isolation = needs::Isolation::BestEffort;
        Some(Needs { memory_mib: 1, compute_percent: 0, isolation, bursty: false, latency_critical, models })
    };
    let rule = needs::Rule::NothingSmaller;
    let choice = needs::Choice { rule, model: GpuModel::H100, compute_percent: 100, memory_mib: 1 };
    let said = |needs| with(|spec| (spec.asked.needs, spec.asked.choice) = (needs, Some(choice)));
    vec![
        differing("tenant", Starts(two_nodes), JobSpec { tenant: "capped".into(), ..gang(1, 2) }, |spec| {
            spec.tenant = "org".into()
        }),
        differing("asked.needs", Stands, said(latency_critical(false)), |spec| {
            spec.asked.needs = latency_critical(true)
        }),
        differing("asked.choice", Nothing, said(latency_critical(false)), |spec| {
            spec.asked.choice = Some(needs::Choice { compute_percent: 50, ..choice });
        }),
        differing("asked.device_class", Nothing, gang(1, 1), |spec| spec.asked.device_class = Some("large".into())),
        differing("name", Nothing, gang(1, 1), |spec| spec.name = "other".into()),
        differing("priority", Nothing, gang(1, 1), |spec| spec.priority = 1),
        differing("command", Nothing, gang(1, 1), |spec| spec.command = vec!["false".into()]),
        differing("env", Nothing, gang(1, 1), |spec| drop(spec.env.insert("A".into(), "b".into()))),
        differing("workdir", Nothing, gang(1, 1), |spec| spec.workdir = Some("/tmp".into())),
        differing("disconnect_grace_s", Nothing, gang(1, 1), |spec| spec.disconnect_grace_s += 1),
        differing("max_retries", Nothing, gang(1, 1), |spec| spec.max_retries = 1),
        differing("user", Nothing, gang(1, 1), |spec| spec.user = "ann".into()),
        differing("comment", Nothing, gang(1, 1), |spec| spec.comment = "OPS-12".into()),
        differing("secret_env", Nothing, gang(1, 1), |spec| spec.secret_env = [("A".into(), "b".into())].into()),
        differing("preemption", Nothing, gang(1, 1), |spec| spec.preemption.restart_cost_s = 9),
        differing("limit_signal", Nothing, JobSpec { time_limit_s: Some(60), ..gang(1, 1) }, |spec| {
            spec.limit_signal = Some(LimitSignal { signal: StopSignal::Usr1, before_s: 9 });
        }),
        // Whom it may preempt goes by it, so its jobs are tried by themselves.
        differing("priority_class", Stands, gang(1, 1), |spec| spec.priority_class = Some("production".into())),
        // Shards see a job only once it is eligible.
        differing("start", Nothing, gang(1, 1), |spec| spec.start.begin_ms = Some(1)),
        differing("array", Nothing, gang(1, 1), |spec| {
            spec.array = Some(muster_model::ArraySpec { indices: [1].into_iter().collect(), max_running: None });
        }),
        differing("compute_instances", Nothing, mig("3g.40gb"), |spec| spec.compute_instances = 3),
        differing("movable", Nothing, gang(1, 1), |spec| spec.movable = Some(Movable::default())),
    ]
}

impl Case {
    /// The same with the change on the first.
    fn swapped(mut self, change: impl FnOnce(&mut JobSpec)) -> Self {
        change(&mut self.one);
        self
    }

    fn check(&self) {
        let (one, other) = (fields(&self.one), fields(&self.other));
        let differ: Vec<&str> = one.keys().copied().filter(|name| one[name] != other[name]).collect();
        assert_eq!(differ, [self.field], "the two differ in it alone");
        let mut classes = JobClasses::default();
        let [first, second] = [&self.one, &self.other].map(|spec| classes.of(spec));
        match self.matters {
            Starts(fleet) => {
                for waits_first in [true, false] {
                    self.one_waits_and_the_other_starts(fleet(), waits_first);
                }
            }
            Stands => assert_ne!(first, second, "{}", self.field),
            Nothing => {
                assert!(Arc::ptr_eq(&first, &second), "{}", self.field);
                self.share_a_decision();
            }
        }
    }

    fn one_waits_and_the_other_starts(&self, mut fleet: Fleet, waits_first: bool) {
        let specs = if waits_first { [&self.one, &self.other] } else { [&self.other, &self.one] };
        let mut jobs = specs.map(|spec| fleet.submit(spec.clone()));
        fleet.settle();
        if !waits_first {
            jobs.reverse();
        }
        assert_eq!(
            jobs.map(|job| fleet.runs(job)),
            [false, true],
            "{}, the one that waits first: {waits_first}",
            self.field
        );
    }

    fn share_a_decision(&self) {
        let mut fleet = Fleet::new([Host::new("a", GpuModel::A100_40, 1)]);
        for spec in [&self.one, &self.other] {
            fleet.submit(spec.clone());
        }
        fleet.deliver(usize::MAX);
        assert_eq!(plan(&mut fleet.view, CELL, &Bounds::default(), 0).decisions, 1, "{}", self.field);
    }
}

#[test]
fn jobs_that_differ_in_a_field_that_matters_share_no_decision() {
    let cases: Vec<Case> = placement_cases().into_iter().chain(other_cases()).collect();
    cases.iter().for_each(Case::check);
    let covered: BTreeSet<&str> = cases.iter().map(|case| case.field).collect();
    assert_eq!(covered, fields(&gang(1, 1)).into_keys().collect(), "each field has its case");
}
