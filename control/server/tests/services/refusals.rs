//! Law 11 at the door: what is malformed is refused with the field named, and nothing has changed.

use super::common::*;
use muster_proto::v1;
use v1::device_request::Kind;

fn devices(spec: &mut v1::JobSpec, kind: Option<Kind>, models: &[&str]) {
    let models = models.iter().map(|&model| model.to_owned()).collect();
    spec.request.as_mut().expect("it has one").devices = Some(v1::DeviceRequest { kind, models });
}

fn mig(profile: &str) -> Option<Kind> {
    Some(Kind::Mig(v1::MigInstance { profile: profile.to_owned() }))
}

fn mps(percent: u32, memory_mib: u64) -> Option<Kind> {
    Some(Kind::Mps(v1::MpsShare { percent, memory_mib }))
}

fn whole(count: u32) -> Option<Kind> {
    Some(Kind::Whole(v1::WholeGpus { count }))
}

fn slice(memory_mib: u64) -> Option<Kind> {
    Some(Kind::TimeSlice(v1::TimeSliceShare { memory_mib }))
}

fn needs(memory_mib: u64, compute_percent: u32) -> v1::Needs {
    v1::Needs { memory_mib, compute_percent, ..v1::Needs::default() }
}

fn topology(required: &str, preferred: &str) -> Option<v1::Topology> {
    Some(v1::Topology { required: required.to_owned(), preferred: preferred.to_owned(), ..Default::default() })
}

type Spoil<T> = (&'static str, fn(&mut T));

const JOBS: &[Spoil<v1::JobSpec>] = &[
    ("tenant", |job| job.tenant.clear()),
    ("tenant", |job| job.tenant = "research//nlp".to_owned()),
    ("tenant", |job| job.tenant = "nobody".to_owned()),
    ("name", |job| job.name = "my job".to_owned()),
    ("name", |job| job.name = "x".repeat(200)),
    ("tasks", |job| job.tasks = 0),
    ("tasks", |job| job.tasks = 40_000),
    ("request", |job| job.request = None),
    ("request", |job| job.request = Some(v1::TaskRequest::default())),
    ("request.whole.count", |job| devices(job, whole(0), &["h100"])),
    ("request.whole.count", |job| devices(job, whole(17), &["h100"])),
    ("request.models[0]", |job| devices(job, whole(1), &["h1000"])),
    ("request.models", |job| devices(job, None, &["h100"])),
    ("request.mig.profile", |job| devices(job, mig("9g.99gb"), &["h100"])),
    ("request.mig.profile", |job| devices(job, mig("1g.10gb"), &["t4"])),
    ("tasks", |job| {
        devices(job, mig("1g.10gb"), &["h100"]);
        job.tasks = 2;
    }),
    ("request.mps.percent", |job| devices(job, mps(0, 1_024), &["h100"])),
    ("request.mps.percent", |job| devices(job, mps(300, 1_024), &["h100"])),
    ("request.mps.memory_mib", |job| devices(job, mps(10, 0), &["h100"])),
    ("request.mps.memory_mib", |job| devices(job, mps(10, 1_000_000), &["h100"])),
    ("request.time_slice.memory_mib", |job| devices(job, slice(0), &["h100"])),
    ("request.time_slice", |job| {
        devices(job, slice(1_024), &["h100"]);
        job.workload_class = "training".to_owned();
    }),
    ("request.cpu_milli", |job| job.request.as_mut().unwrap().cpu_milli = u64::MAX),
    ("request.memory_mib", |job| job.request.as_mut().unwrap().memory_mib = u64::MAX),
    ("topology.required", |job| job.topology = topology("galaxy", "")),
    ("topology.preferred", |job| job.topology = topology("node", "region")),
    ("workload_class", |job| job.workload_class = "fun".to_owned()),
    ("command", |job| job.command.clear()),
    ("command", |job| job.command = vec!["a\0b".to_owned()]),
    ("command[0]", |job| job.command = vec!["x".repeat(40_000)]),
    ("command", |job| job.command = vec!["x".repeat(20_000), "y".repeat(20_000)]),
    ("env", |job| drop(job.env.insert("A=B".to_owned(), "c".to_owned()))),
    ("workdir", |job| job.workdir = "here".to_owned()),
    ("time_limit_s", |job| job.time_limit_s = Some(0)),
    ("time_limit_s", |job| job.time_limit_s = Some(u64::MAX)),
    ("grace_s", |job| job.grace_s = Some(1_000_000)),
    ("disconnect_grace_s", |job| job.disconnect_grace_s = Some(0)),
    ("max_retries", |job| job.max_retries = 5_000),
    ("movable.checkpoint_every_s", |job| {
        job.movable = Some(v1::Movable { checkpoint_every_s: Some(0), restart_s: None });
    }),
    ("movable.restart_s", |job| {
        job.movable = Some(v1::Movable { checkpoint_every_s: None, restart_s: Some(1_000_000) });
    }),
    ("priority", |job| job.priority = i32::MIN),
    ("pool", |job| job.pool = "a pool".to_owned()),
    ("topology.segment_tasks", |job| {
        devices(job, whole(1), &["h100"]);
        job.tasks = 6;
        job.topology = Some(v1::Topology { segment_tasks: 4, ..v1::Topology::default() });
    }),
    ("numa", |job| job.numa = "sideways".to_owned()),
    ("numa", |job| {
        devices(job, whole(8), &["h100"]);
        job.numa = "single-numa-node".to_owned();
    }),
    ("driver_min", |job| job.driver_min = "new".to_owned()),
    ("driver_min", |job| {
        devices(job, whole(1), &["h100"]);
        job.driver_min = "600".to_owned();
    }),
    ("selector", |job| {
        devices(job, whole(1), &["h100"]);
        job.selector = "device.color == \"red\"".to_owned();
    }),
    ("selector", |job| {
        devices(job, whole(1), &[]);
        job.selector = "device.driver >= version(\"600\")".to_owned();
    }),
    ("device_class", |job| {
        devices(job, whole(1), &[]);
        job.device_class = "unheard-of".to_owned();
    }),
    // 22 GB on 1g.10gb.
    ("gpu_memory_mib", |job| {
        devices(job, mig("1g.10gb"), &["h100"]);
        job.gpu_memory_mib = Some(22 * 1_024);
    }),
    // Training on several slices: no peer access.
    ("tasks", |job| {
        devices(job, mig("3g.40gb"), &["h100"]);
        job.workload_class = "training".to_owned();
        job.tasks = 4;
    }),
    ("request.mps", |job| {
        devices(job, mps(10, 1_024), &["h100"]);
        job.tenant = "guest".to_owned();
    }),
    ("request.time_slice", |job| {
        devices(job, slice(1_024), &["h100"]);
        job.tenant = "guest".to_owned();
    }),
    ("needs.isolation", |job| job.needs = Some(v1::Needs { isolation: "total".into(), ..needs(8_192, 15) })),
    ("needs.memory_mib", |job| job.needs = Some(needs(0, 15))),
    ("needs", |job| {
        devices(job, whole(1), &["h100"]);
        job.needs = Some(needs(8_192, 15));
    }),
    // Nine cards' worth on islands of eight.
    ("needs", |job| job.needs = Some(needs(9 * 81_920, 0))),
    ("choice", |job| {
        devices(job, whole(1), &["h100"]);
        job.needs = Some(needs(8_192, 15));
        let (rule, model) = ("steady-and-small".to_owned(), "h100".to_owned());
        job.choice = Some(v1::Choice { rule, model, ..v1::Choice::default() });
    }),
    // Only the state knows these: a gang larger than any cell, a request over the tenant's max.
    ("tasks", |job| {
        devices(job, whole(8), &["h100"]);
        job.tasks = 2;
    }),
    ("tasks", |job| {
        devices(job, whole(1), &["h100"]);
        job.tenant = "small".to_owned();
    }),
];

const TENANTS: &[Spoil<v1::TenantSpec>] = &[
    ("path", |tenant| tenant.path.clear()),
    ("path", |tenant| tenant.path = "a//b".to_owned()),
    ("path", |tenant| tenant.path = "a b".to_owned()),
    ("path", |tenant| tenant.path = "1/2/3/4/5/6/7/8/9".to_owned()),
    ("path", |tenant| tenant.path = "nobody/here".to_owned()),
    ("weight", |tenant| tenant.weight = Some(0)),
    ("weight", |tenant| tenant.weight = Some(u32::MAX)),
    ("trust", |tenant| tenant.trust = "maybe".to_owned()),
    ("guarantee.gpu_units.h1000", |tenant| {
        let gpu_units = [("h1000".to_owned(), 7_000)].into();
        tenant.guarantee = Some(v1::ResourceVec { gpu_units, ..v1::ResourceVec::default() });
    }),
    ("guarantee", |tenant| {
        tenant.guarantee = Some(v1::ResourceVec { cpu_milli: 2_000, ..v1::ResourceVec::default() });
        tenant.max = Some(v1::Limits { cpu_milli: Some(1_000), ..v1::Limits::default() });
    }),
    ("guarantee", |tenant| {
        tenant.path = "small/child".to_owned();
        tenant.guarantee = Some(v1::ResourceVec { cpu_milli: 2_000, ..v1::ResourceVec::default() });
    }),
];

const NODES: &[Spoil<v1::NodeSpec>] = &[
    ("name", |node| node.name.clear()),
    ("name", |node| node.name = "a node".to_owned()),
    ("cell", |node| node.cell.clear()),
    ("pool", |node| node.pool = "/".to_owned()),
    ("place.region", |node| node.place.as_mut().unwrap().region.clear()),
    ("place.leaf", |node| node.place.as_mut().unwrap().leaf = "x".repeat(200)),
    ("address", |node| node.address.clear()),
    ("boot_id", |node| node.boot_id.clear()),
    ("gpus[0].uuid", |node| node.gpus[0].uuid.clear()),
    ("gpus[1].uuid", |node| node.gpus[1].uuid = node.gpus[0].uuid.clone()),
    ("gpus[2].model", |node| node.gpus[2].model = "abacus".to_owned()),
    ("gpus[3].memory_mib", |node| node.gpus[3].memory_mib = 0),
    ("gpus[0].numa", |node| node.gpus[0].numa = 1_000),
    ("gpus", |node| node.gpus = (0..73).map(|i| v1::Gpu { uuid: i.to_string(), ..node.gpus[0].clone() }).collect()),
    ("cpu_milli", |node| node.cpu_milli = 0),
    ("memory_mib", |node| node.memory_mib = 0),
];

/// A tenant tree and one node: something to be changed by mistake.
async fn furnished() -> (Control, Agent) {
    let control = Control::start().await;
    control.tenant("research").await;
    let small = v1::TenantSpec {
        path: "small".to_owned(),
        max: Some(v1::Limits { gpu_units: [("h100".to_owned(), 6_999)].into(), ..v1::Limits::default() }),
        ..v1::TenantSpec::default()
    };
    let guest = v1::TenantSpec { path: "guest".to_owned(), trust: "untrusted".to_owned(), ..Default::default() };
    control
        .tenants()
        .apply(v1::ApplyTenantsRequest { tenants: vec![small, guest], ..Default::default() })
        .await
        .expect("a good tenant");
    let agent = Agent::join(&control, node_spec("n1"), None).await;
    control.submit("good", vec![gpu_job(1)]).await;
    (control, agent)
}

fn check(case: &str, status: &tonic::Status, field: &str) {
    let named = refused_fields(status);
    // What is held against its bounds before it is decoded is named from the message, not from what is in it.
    let is_it = |error: &muster_model::FieldError| error.field.strip_prefix("hello.").unwrap_or(&error.field) == field;
    assert!(named.iter().any(is_it), "{case}: expected {field}, named {named:?}");
    assert!(named.iter().all(|error| !error.fix.is_empty()), "{case}: a fix is missing in {named:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_submissions_are_refused_and_change_nothing() {
    let (control, _agent) = furnished().await;
    let before = control.objects();
    for (index, (field, spoil)) in JOBS.iter().enumerate() {
        let mut spec = job();
        spoil(&mut spec);
        let case = format!("job {index}: {spec:?}");
        let status = control.try_submit(&format!("bad-{index}"), vec![job(), spec]).await.expect_err(&case);
        check(&case, &status, &format!("jobs[1].{field}"));
    }
    let calls: Vec<(&str, v1::SubmitRequest)> = vec![
        ("request_id", v1::SubmitRequest { request_id: String::new(), issued_ms: issued_now(), jobs: vec![job()] }),
        ("request_id", v1::SubmitRequest { request_id: "x".repeat(129), issued_ms: issued_now(), jobs: vec![job()] }),
        ("request_id", v1::SubmitRequest { request_id: "a\nb".into(), issued_ms: issued_now(), jobs: vec![job()] }),
        ("request_id", v1::SubmitRequest { request_id: "good".into(), issued_ms: issued_now(), jobs: vec![job()] }),
        ("jobs", v1::SubmitRequest { request_id: "none".into(), issued_ms: issued_now(), jobs: vec![] }),
        ("jobs", v1::SubmitRequest { request_id: "many".into(), issued_ms: issued_now(), jobs: vec![job(); 1_001] }),
        ("issued_ms", v1::SubmitRequest { request_id: "never".into(), issued_ms: None, jobs: vec![job()] }),
        ("issued_ms", v1::SubmitRequest { request_id: "old".into(), issued_ms: Some(1), jobs: vec![job()] }),
        ("issued_ms", v1::SubmitRequest { request_id: "new".into(), issued_ms: Some(u64::MAX), jobs: vec![job()] }),
        (
            "jobs[0].tenant",
            v1::SubmitRequest {
                request_id: "alone".into(),
                issued_ms: issued_now(),
                jobs: vec![v1::JobSpec { tenant: "nobody".into(), ..job() }],
            },
        ),
    ];
    for (field, request) in calls {
        let case = format!("{} jobs as {:?}", request.jobs.len(), request.request_id);
        let status = control.jobs().submit(request).await.expect_err(&case);
        check(&case, &status, field);
    }
    assert_eq!(control.objects(), before, "a refused submission has changed the state");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_tenants_and_pools_are_refused_and_change_nothing() {
    let (control, _agent) = furnished().await;
    let before = control.objects();
    let good = v1::TenantSpec { path: "new".to_owned(), ..v1::TenantSpec::default() };
    for (index, (field, spoil)) in TENANTS.iter().enumerate() {
        let mut spec = v1::TenantSpec { path: "bad".to_owned(), ..v1::TenantSpec::default() };
        spoil(&mut spec);
        let case = format!("tenant {index}: {spec:?}");
        let tenants = vec![good.clone(), spec];
        let status =
            control.tenants().apply(v1::ApplyTenantsRequest { tenants, ..Default::default() }).await.expect_err(&case);
        check(&case, &status, &format!("tenants[1].{field}"));
    }
    let status = control
        .tenants()
        .apply(v1::ApplyTenantsRequest { tenants: vec![], ..Default::default() })
        .await
        .expect_err("none");
    check("no tenants", &status, "tenants");
    let status = control.fleet().put_pool(v1::PutPoolRequest { pool: None }).await.expect_err("no pool");
    check("no pool", &status, "pool");
    let pool = v1::Pool { name: "p".to_owned(), modes: vec!["upside-down".to_owned()], ..v1::Pool::default() };
    let status = control.fleet().put_pool(v1::PutPoolRequest { pool: Some(pool) }).await.expect_err("a bad pool");
    check("a mode that is none", &status, "pool.modes[0]");
    assert_eq!(control.objects(), before, "a refused description has changed the state");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_nodes_are_refused_and_change_nothing() {
    let (control, _agent) = furnished().await;
    let before = control.objects();
    for (index, (field, spoil)) in NODES.iter().enumerate() {
        let mut spec = node_spec("n2");
        spoil(&mut spec);
        let case = format!("node {index}: {spec:?}");
        let status = turned_away(&control, Agent::hello(Some(spec), None)).await;
        check(&case, &status, &format!("spec.{field}"));
    }
    check("no spec", &turned_away(&control, Agent::hello(None, None)).await, "spec");
    let beat = v1::agent_message::Message::Heartbeat(v1::Heartbeat::default());
    check("no hello", &turned_away(&control, beat).await, "hello");
    assert_eq!(control.objects(), before, "a refused node has changed the state");
}

async fn turned_away(control: &Control, first: v1::agent_message::Message) -> tonic::Status {
    let (_out, mut inbound) = Agent::dial(control, first).await.expect("the stream opens");
    let message = tokio::time::timeout(PATIENCE, inbound.message()).await.expect("an answer in time");
    message.expect_err("the session is turned away")
}
