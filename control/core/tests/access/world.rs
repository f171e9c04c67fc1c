//! A cluster with tenants, jobs and random rights.

#[allow(dead_code, reason = "only the random numbers are used here")]
#[path = "../common/chance.rs"]
mod chance;

pub(crate) use chance::Chance;
use muster_control_core::authz::{Ask, Denied, authorize};
use muster_control_core::{Command, Done, Entry, Reject, State, execute};
use muster_model::identity::{Author, CredentialKind, Subject};
use muster_model::request::TaskRequest;
use muster_model::tenant_edit::TenantEdit;
use muster_model::{AccessMode, DeviceRequest, GpuModel, JobId, JobSpec, Principal, Role, ValidJobSpec};

pub(crate) const HOUR_MS: u64 = 3_600_000;
pub(crate) const NOW_MS: u64 = 1_000_000;
pub(crate) const TENANTS: [&str; 7] = ["a", "a/b", "a/b/c", "a/d", "e", "e/f", "ab"];
pub(crate) const USERS: [&str; 4] = ["ann", "bob", "cy", "dee"];
pub(crate) const GROUPS: [&str; 2] = ["ops", "ml"];
pub(crate) const ROLES: [Role; 5] = [Role::Viewer, Role::Submitter, Role::Admin, Role::Operator, Role::Auditor];

/// See the module.
pub(crate) struct World {
    pub(crate) state: State,
    /// One session for each user.
    pub(crate) sessions: Vec<Author>,
    pub(crate) jobs: Vec<(JobId, &'static str, &'static str)>,
}

pub(crate) fn done(state: &mut State, command: Command) -> Result<Done, Reject> {
    let executed = execute(state, &Entry { now_ms: NOW_MS, commands: vec![command] });
    executed.decided.into_iter().next().expect("one answer")
}

pub(crate) fn member() -> Author {
    Author { principal: Principal::Member(1), ..Author::default() }
}

pub(crate) fn session(state: &mut State, user: &str, groups: &[&str]) -> Author {
    let principal = Principal::User(user.to_owned());
    let command = Command::PutCredential {
        kind: CredentialKind::Session,
        principal: principal.clone(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        secret_sha256: [7; 32],
        ttl_ms: HOUR_MS,
        scope: None,
        from: Vec::new(),
        note: String::new(),
    };
    match done(state, command.by(member())) {
        Ok(Done::Numbered { id }) => Author { principal, credential: Some(id), ..Author::default() },
        other => panic!("a session was answered {other:?}"),
    }
}

fn job(tenant: &str, user: &str) -> ValidJobSpec {
    let devices = DeviceRequest::Whole { count: 1, models: vec![GpuModel::H100] };
    let request = TaskRequest { devices, cpu_milli: 0, memory_mib: 0 };
    let spec = JobSpec { user: user.to_owned(), ..JobSpec::usual(tenant, request, &["true"]) };
    spec.validate().expect("a usual job")
}

fn submit(state: &mut State, tenant: &str, user: &str) -> JobId {
    let count = state.meta.next_job.0;
    let command = Command::Submit {
        request_id: format!("r{count}"),
        issued_ms: NOW_MS,
        payload_hash: count,
        specs: vec![job(tenant, user)],
        ended: Vec::new(),
    };
    match done(state, command) {
        Ok(Done::Submitted { first, .. }) => first,
        other => panic!("a submission was answered {other:?}"),
    }
}

pub(crate) fn grant(state: &mut State, subject: Subject, role: Role, at: Option<&str>) -> Result<Done, Reject> {
    let at = at.map(ToOwned::to_owned);
    done(state, Command::PutGrant { subject, role, at, until_ms: None, reason: String::new() })
}

impl World {
    pub(crate) fn new(chance: &mut Chance) -> Self {
        let mut state = State::new(1);
        state.meta.feature_level = 5;
        let edits =
            TENANTS.iter().map(|path| TenantEdit { path: (*path).to_owned(), ..TenantEdit::default() }).collect();
        done(&mut state, Command::EditTenants { edits, prune: false, half_life_s: None }).expect("a tree");
        let mut jobs = Vec::new();
        for _ in 0..8 {
            let (tenant, user) = (pick(chance, &TENANTS), pick(chance, &USERS));
            jobs.push((submit(&mut state, tenant, user), tenant, user));
        }
        grant(&mut state, Subject::User("root".to_owned()), Role::Admin, None).expect("a root");
        for _ in 0..chance.below(8) {
            let _ = random_grant(chance, &mut state);
        }
        let sessions = USERS.iter().enumerate().map(|(index, user)| {
            let groups = if index % 2 == 0 { &GROUPS[..1] } else { &GROUPS[1..] };
            session(&mut state, user, groups)
        });
        let sessions = sessions.collect();
        done(&mut state, Command::SetAccess { mode: AccessMode::Closed }).expect("a root is there");
        World { state, sessions, jobs }
    }

    pub(crate) fn asks(&self, author: &Author, ask: &Ask<'_>) -> Result<(), Denied> {
        authorize(&self.state, NOW_MS, author, ask).map(drop)
    }
}

pub(crate) fn pick<T: Copy>(chance: &mut Chance, from: &[T]) -> T {
    from[chance.below(from.len() as u64) as usize]
}

pub(crate) fn random_grant(chance: &mut Chance, state: &mut State) -> Result<Done, Reject> {
    let subject = match chance.below(2) {
        0 => Subject::User(pick(chance, &USERS).to_owned()),
        _ => Subject::Group(pick(chance, &GROUPS).to_owned()),
    };
    let role = pick(chance, &ROLES);
    let at = role.is_on_tenants().then(|| pick(chance, &TENANTS));
    grant(state, subject, role, at)
}

pub(crate) fn worlds(count: u64) -> impl Iterator<Item = (u64, World)> {
    let seeds = match std::env::var("MUSTER_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..count + 1,
    };
    seeds.map(|seed| (seed, World::new(&mut Chance::new(seed))))
}
