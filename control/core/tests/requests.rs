//! The table of request ids under pressure: whoever floods it shortens its own memory, and nobody's submission is refused for it.

#[path = "common/chance.rs"]
mod chance;

use chance::Chance;
use muster_control_core::bounds::{REQUEST_HORIZON_MS, REQUESTS_MAX};
use muster_control_core::{Command, Decided, Done, Entry, Reject, State, execute};
use muster_model::ids::{JobId, TenantId};
use muster_model::object::RequestRecord;
use muster_model::request::TaskRequest;
use muster_model::tenant::TenantSpec;
use muster_model::{DeviceRequest, JobSpec, Object, ValidJobSpec};

const NOW_MS: u64 = 200_000_000;
/// Tenants that fill the table, each with its share.
const TENANTS: u32 = 5_000;
const SHARE: u64 = REQUESTS_MAX / TENANTS as u64;

fn path(tenant: u32) -> String {
    format!("t{tenant}")
}

fn spec(tenant: u32) -> ValidJobSpec {
    let request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 1_000, memory_mib: 1 };
    JobSpec::usual(&path(tenant), request, &["true"]).validate().expect("a good job")
}

fn run(state: &mut State, now_ms: u64, command: Command) -> Result<Done, Reject> {
    let mut decided: Decided = execute(state, &Entry { now_ms, commands: vec![command] }).decided;
    decided.remove(0)
}

/// Every tenant has used its whole share within the last hours: the table is full.
fn full() -> State {
    let mut state = State::new(7);
    let tenants = (1..=TENANTS).map(|tenant| TenantSpec::usual(&path(tenant))).collect();
    run(&mut state, NOW_MS, Command::ApplyTenants { tenants }).expect("good tenants");
    let mut meta = state.meta.clone();
    meta.next_job = JobId(REQUESTS_MAX + 1);
    let mut objects: Vec<Object> = state.objects().collect();
    objects.push(Object::Meta(meta));
    objects.extend((0..REQUESTS_MAX).map(|number| {
        Object::Request(RequestRecord {
            id: format!("before-{number}").into(),
            payload_hash: number,
            accepted_ms: NOW_MS,
            first_job: JobId(number + 1),
            jobs: 1,
            issued_ms: NOW_MS - 1 - number * 100,
            tenant: TenantId((number % u64::from(TENANTS)) as u32 + 1),
        })
    }));
    State::from_objects(objects)
}

fn submit(tenant: u32, id: &str, issued_ms: u64) -> Command {
    Command::Submit {
        request_id: id.to_owned(),
        issued_ms,
        payload_hash: 1,
        specs: vec![spec(tenant)],
        ended: Vec::new(),
    }
}

/// A submission that was accepted.
struct Sent {
    tenant: u32,
    id: String,
    issued_ms: u64,
    first: JobId,
}

const FLOOD: u32 = 1;
/// Tenants that submit now and then.
const OTHERS: u64 = 20;

/// What a history promises: everybody's new submissions are taken; a retry makes no second job; and it is answered as the first time
/// as long as the tenant has made fewer calls since than its share.
fn history(seed: u64, mut state: State) {
    let mut chance = Chance::new(seed);
    let (mut now_ms, mut sent): (u64, Vec<Sent>) = (NOW_MS, Vec::new());
    let (mut forgotten, mut recalled) = (0, 0);
    for step in 0..3_000 {
        now_ms += chance.below(20);
        if chance.below(4) > 0 || sent.is_empty() {
            let tenant = if chance.below(10) > 0 { FLOOD } else { 2 + chance.below(OTHERS) as u32 };
            let (id, issued_ms) = (format!("seed-{seed}-{step}"), now_ms - chance.below(5));
            let next = state.meta.next_job;
            let done = run(&mut state, now_ms, submit(tenant, &id, issued_ms));
            assert_eq!(done, Ok(Done::Submitted { first: next, count: 1 }), "step {step}: tenant {tenant} was refused");
            sent.push(Sent { tenant, id, issued_ms, first: next });
        } else {
            let again = chance.below(sent.len() as u64) as usize;
            let Sent { tenant, id, issued_ms, first } = &sent[again];
            let next = state.meta.next_job;
            let since = sent[again + 1..].iter().filter(|later| later.tenant == *tenant).count() as u64;
            match run(&mut state, now_ms, submit(*tenant, id, *issued_ms)) {
                Ok(done) => {
                    recalled += 1;
                    assert_eq!(done, Done::Submitted { first: *first, count: 1 }, "step {step}: {id} ran twice");
                }
                Err(Reject::RequestTooOld { horizon_ms, age_ms, .. }) => {
                    forgotten += 1;
                    assert!(horizon_ms <= age_ms, "step {step}: {age_ms} ms is within {horizon_ms} ms");
                    // Times of issue are a few ms apart from the order in which calls came.
                    assert!(
                        since + 50 > SHARE,
                        "step {step}: tenant {tenant} made {since} calls since, its share is {SHARE}"
                    );
                }
                Err(other) => panic!("step {step}: {id} was answered {other}"),
            }
            assert_eq!(state.meta.next_job, next, "step {step}: a retry made a job");
        }
        assert!(state.requests.len() as u64 <= REQUESTS_MAX, "step {step}: the table grows");
    }
    assert!(forgotten > 50 && recalled > 50, "{forgotten} forgotten and {recalled} recalled say nothing");
    state.check().expect("the indexes are right");
}

#[test]
fn law_5_a_flood_shortens_its_own_memory_and_nothing_runs_twice() {
    let state = full();
    for seed in 1..=3 {
        history(seed, state.clone());
    }
}

/// What the issue reported: one tenant's loop filled the table, and everybody was refused for a day.
#[test]
fn one_tenants_loop_locks_nobody_out() {
    let mut objects: Vec<Object> = full().objects().collect();
    for object in &mut objects {
        if let Object::Request(request) = object {
            request.tenant = TenantId(FLOOD);
        }
    }
    let mut state = State::from_objects(objects);
    for call in 0..100 {
        let other = 2 + call;
        let done = run(&mut state, NOW_MS, submit(other, &format!("other-{call}"), NOW_MS));
        assert!(done.is_ok(), "tenant {other}: {done:?}");
    }
    assert_eq!(state.index().requests.count_of(TenantId(FLOOD)), REQUESTS_MAX - 100);
    // Of the flood what was issued first is forgotten, and refused from now on.
    let oldest = NOW_MS - 1 - (REQUESTS_MAX - 1) * 100;
    let retry = run(&mut state, NOW_MS, submit(FLOOD, "a-retry", oldest + 99 * 100));
    assert!(matches!(retry, Err(Reject::RequestTooOld { .. })), "{retry:?}");
    let newer = run(&mut state, NOW_MS, submit(FLOOD, "a-call", oldest + 100 * 100 + 1));
    assert!(newer.is_ok(), "{newer:?}");
}

/// A tenant that is deleted and made anew has another number; its ids are not forgotten with the old one.
#[test]
fn law_5_ids_of_a_deleted_tenant_do_not_run_again() {
    let mut state = full();
    let gone = 2;
    run(&mut state, NOW_MS, Command::DeleteTenant { path: path(gone) }).expect("nothing hangs on it");
    run(&mut state, NOW_MS, Command::ApplyTenants { tenants: vec![TenantSpec::usual(&path(gone))] })
        .expect("a good tenant");
    let of_gone: Vec<String> =
        state.requests.sorted().filter(|request| request.tenant == TenantId(gone)).map(|r| r.id.to_string()).collect();
    assert_eq!(of_gone.len() as u64, SHARE);
    for id in of_gone {
        let issued_ms = state.requests.get(&id).expect("is known").issued_ms;
        state.apply(&muster_model::Change::Delete(muster_model::Key::Request(id.clone())));
        let retry = run(&mut state, NOW_MS, submit(gone, &id, issued_ms));
        assert!(matches!(retry, Err(Reject::RequestTooOld { .. })), "{id}: {retry:?}");
    }
    assert!(run(&mut state, NOW_MS, submit(gone, "new", NOW_MS)).is_ok());
}

#[test]
fn a_day_later_everything_is_forgotten_and_no_retry_runs() {
    let mut state = full();
    run(&mut state, NOW_MS, submit(FLOOD, "last", NOW_MS)).expect("room is made");
    assert_eq!(state.request_floors.len(), 1);
    let later = NOW_MS + REQUEST_HORIZON_MS + 1;
    for _ in 0..=REQUESTS_MAX / 10_000 {
        run(&mut state, later, Command::Sweep).expect("a sweep");
    }
    assert!(state.requests.is_empty() && state.request_floors.is_empty());
    let retry = run(&mut state, later, submit(FLOOD, "last", NOW_MS));
    assert!(matches!(retry, Err(Reject::RequestTooOld { horizon_ms: REQUEST_HORIZON_MS, .. })), "{retry:?}");
}
