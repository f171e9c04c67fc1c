//! A second table of who may do what, written from the guide alone, against the code; and fifteen holes in the code, each of which it finds.
//!
//! What must stay true: nothing here asks the code for a rule. A right is a role and a path; it reaches the path and what lies below it.

use crate::world::{GROUPS, ROLES, TENANTS, USERS, World, worlds};
use muster_control_core::authz::{About, Ask, Denied};
use muster_model::identity::Subject;
use muster_model::{JobId, Role, Rpc};

/// A job that never was.
const NO_JOB: JobId = JobId(9_999);

/// The rights of one user, in the plainest form.
struct Rights {
    /// Roles on tenants, by path; the root of the tree is the empty path.
    on: Vec<(Role, String)>,
    operator: bool,
    auditor: bool,
}

impl Rights {
    fn of(world: &World, user: usize) -> Self {
        let own = |subject: &Subject| match subject {
            Subject::User(name) => name == USERS[user],
            Subject::Group(name) => name == GROUPS[user % 2],
            Subject::Service(_) => false,
        };
        let mut rights = Rights { on: Vec::new(), operator: false, auditor: false };
        for grant in world.state.grants.values().filter(|grant| own(&grant.subject)) {
            match grant.role {
                Role::Operator => rights.operator = true,
                Role::Auditor => rights.auditor = true,
                role => {
                    let path = grant.at.map(|at| world.state.tenants[&at].path.clone());
                    rights.on.push((role, path.unwrap_or_default()));
                }
            }
        }
        rights
    }

    fn has(&self, role: Role, path: &str) -> bool {
        let reaches = |at: &str| at.is_empty() || path == at || path.starts_with(&format!("{at}/"));
        self.on.iter().any(|(own, at)| *own >= role && reaches(at))
    }

    fn is_root(&self) -> bool {
        self.on.iter().any(|(role, at)| *role == Role::Admin && at.is_empty())
    }

    fn reads_fleet(&self) -> bool {
        self.operator || self.auditor
    }

    fn any(&self) -> bool {
        !self.on.is_empty() || self.reads_fleet()
    }

    /// Admin strictly above a path.
    fn admin_above(&self, path: &str) -> bool {
        match path.rsplit_once('/') {
            Some((above, _)) => self.has(Role::Admin, above),
            None => self.is_root(),
        }
    }
}

/// What the guide says of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Allowed,
    Refused,
    /// In the words of what does not exist.
    Hidden,
}

fn answer(allowed: bool) -> Answer {
    if allowed { Answer::Allowed } else { Answer::Refused }
}

fn of_job(world: &World, user: usize, ask: &Ask<'_>, id: JobId) -> Answer {
    let rights = Rights::of(world, user);
    let Some((_, tenant, owner)) = world.jobs.iter().find(|(job, ..)| *job == id) else { return Answer::Hidden };
    let own = rights.has(Role::Submitter, tenant) && *owner == USERS[user];
    let admin = rights.has(Role::Admin, tenant);
    let allowed = match (ask.rpc.name(), &ask.about) {
        (_, About::JobAsAdmin(_)) => admin || rights.operator,
        ("Jobs.Get" | "Jobs.Explain", _) => rights.has(Role::Viewer, tenant) || rights.reads_fleet(),
        ("Jobs.Logs", _) => own || admin,
        _ => own || admin || rights.operator,
    };
    match allowed || rights.has(Role::Viewer, tenant) || rights.reads_fleet() {
        true => answer(allowed),
        false => Answer::Hidden,
    }
}

/// The guide's answer to a user's call.
fn expected(world: &World, user: usize, ask: &Ask<'_>) -> Answer {
    let rights = Rights::of(world, user);
    let sees = |path: &str| rights.has(Role::Viewer, path) || rights.reads_fleet();
    let of_tenant = |allowed: bool, path: &str| if sees(path) { answer(allowed) } else { Answer::Hidden };
    let (service, call) = ask.rpc.name().split_once('.').expect("a service and a call");
    match (service, call, &ask.about) {
        (_, _, About::Job(id) | About::JobAsAdmin(id)) => of_job(world, user, ask, *id),
        ("Jobs", "Submit", About::Submission { tenant, user: name }) => {
            of_tenant(rights.has(Role::Submitter, tenant) && *name == USERS[user], tenant)
        }
        ("Tenants", _, About::Edit { path, privileged }) => match rights.is_root() {
            true => Answer::Allowed,
            false if rights.admin_above(path) => answer(!privileged),
            false => of_tenant(false, path),
        },
        ("Tenants", "Explain", About::Tenant(path)) => match rights.reads_fleet() {
            true => Answer::Allowed,
            false => of_tenant(rights.has(Role::Viewer, path), path),
        },
        ("Secrets", "List", About::Tenant(path)) => of_tenant(rights.has(Role::Submitter, path), path),
        ("Secrets", _, About::Tenant(path)) => of_tenant(rights.has(Role::Admin, path), path),
        ("Auth", _, About::Right { role, at: Some(path) }) => match rights.is_root() {
            true => Answer::Allowed,
            false if matches!(role, Role::Operator | Role::Auditor) => Answer::Refused,
            false => of_tenant(rights.has(Role::Admin, path), path),
        },
        ("Auth", "Secure", _) | ("Machines", "SetEnrolment", _) => answer(rights.is_root()),
        ("Auth", "Login" | "LoginSettings" | "Logout" | "WhoAmI" | "ListSessions", _) => Answer::Allowed,
        ("Auth", "ListTokens" | "ListGrants", _) => Answer::Allowed,
        ("Machines", "Enroll", _) => Answer::Allowed,
        ("Machines", "Confirm", _) => answer(rights.operator || rights.is_root()),
        ("Machines", "List" | "ListJoinTokens", _) | ("Admin", "RaftStatus", _) => {
            answer(rights.reads_fleet() || rights.is_root())
        }
        ("Admin", "AddLearner" | "Promote" | "Remove" | "ResetClock", _) => answer(rights.operator || rights.is_root()),
        ("Admin", "CopyState" | "CopyHistory", _) | ("Fleet", "ListMoves", _) => answer(rights.reads_fleet()),
        ("Audit", "Denials", _) => answer(rights.auditor),
        ("Fleet", call, _) if !call.starts_with("List") => answer(rights.operator),
        ("Fleet" | "Jobs" | "Tenants" | "Usage" | "Audit", _, _) => answer(rights.any()),
        // The recovery socket, and what machines of the cluster ask.
        _ => Answer::Refused,
    }
}

/// Every call with what it is naturally about.
fn asks(world: &World) -> Vec<Ask<'_>> {
    let mut asks = Vec::new();
    let jobs: Vec<JobId> = world.jobs.iter().map(|(job, ..)| *job).chain([NO_JOB]).collect();
    for rpc in Rpc::ALL.iter().copied() {
        let mut ask = |about| asks.push(Ask { rpc, about });
        match rpc.name().split_once('.').expect("a service and a call") {
            ("Jobs", "List" | "Watch") => ask(About::Nothing),
            ("Jobs", "Submit") => {
                for (tenant, user) in TENANTS.iter().flat_map(|tenant| USERS.iter().map(move |user| (tenant, user))) {
                    ask(About::Submission { tenant, user });
                }
            }
            ("Jobs", call) => {
                jobs.iter().for_each(|job| ask(About::Job(*job)));
                if matches!(call, "Hold" | "Release") {
                    jobs.iter().for_each(|job| ask(About::JobAsAdmin(*job)));
                }
            }
            ("Tenants", "Apply" | "Move" | "Delete") => {
                for (path, privileged) in TENANTS.iter().flat_map(|path| [(path, false), (path, true)]) {
                    ask(About::Edit { path, privileged });
                }
            }
            ("Tenants", "Explain") | ("Secrets", _) => TENANTS.iter().for_each(|path| ask(About::Tenant(path))),
            ("Auth", "Grant" | "CreateToken") => {
                for (role, path) in ROLES.iter().flat_map(|role| TENANTS.iter().map(move |path| (role, path))) {
                    ask(About::Right { role: *role, at: Some(path) });
                }
            }
            // What is about one machine, node, credential or grant is judged by that one: see the laws beside this file.
            ("Auth", "Revoke" | "RevokeGrant") | ("Machines", _)
                if !matches!(
                    rpc,
                    Rpc::MachinesList
                        | Rpc::MachinesListJoinTokens
                        | Rpc::MachinesSetEnrolment
                        | Rpc::MachinesConfirm
                        | Rpc::MachinesEnroll
                ) => {}
            _ => ask(About::Nothing),
        }
    }
    asks
}

type Judged = Result<(), Denied>;

/// The first call that is answered otherwise than the guide says.
fn differs(world: &World, judge: &dyn Fn(&World, usize, &Ask<'_>) -> Judged) -> Option<String> {
    for (user, name) in USERS.iter().enumerate() {
        for ask in asks(world) {
            let got = match judge(world, user, &ask) {
                Ok(()) => Answer::Allowed,
                Err(Denied::NotFound { .. }) => Answer::Hidden,
                Err(_) => Answer::Refused,
            };
            let wanted = expected(world, user, &ask);
            if got != wanted {
                return Some(format!("{name} asks for {ask:?}: {got:?} instead of {wanted:?}"));
            }
        }
    }
    None
}

fn honest(world: &World, user: usize, ask: &Ask<'_>) -> Judged {
    world.asks(&world.sessions[user], ask)
}

#[test]
fn the_code_answers_as_the_guide_says() {
    for (seed, world) in worlds(150) {
        assert_eq!(differs(&world, &honest), None, "MUSTER_SEED={seed}");
    }
}

/// Whether a hole lets this call through, by the rights of the caller.
type Opens = fn(&World, &Rights, usize, &Ask<'_>) -> bool;

fn tenant_of<'a>(world: &'a World, ask: &Ask<'a>) -> &'a str {
    match ask.about {
        About::Job(id) | About::JobAsAdmin(id) => {
            world.jobs.iter().find(|(job, ..)| *job == id).map_or("none", |(_, tenant, _)| tenant)
        }
        About::Tenant(path) | About::Edit { path, .. } | About::Right { at: Some(path), .. } => path,
        About::Submission { tenant, .. } => tenant,
        _ => "none",
    }
}

/// Holes that peers have had, or that one wrong line would make.
const HOLES: [(&str, Opens); 15] = [
    ("a user sees jobs of every tenant", |_, rights, _, ask| rights.any() && ask.rpc == Rpc::JobsGet),
    ("a submitter cancels the jobs of others in the tenant", |world, rights, _, ask| {
        ask.rpc == Rpc::JobsCancel && rights.has(Role::Submitter, tenant_of(world, ask))
    }),
    ("an operator reads what tenants wrote", |_, rights, _, ask| ask.rpc == Rpc::JobsLogs && rights.operator),
    ("an auditor drains nodes", |_, rights, _, ask| ask.rpc == Rpc::FleetSetDrained && rights.auditor),
    ("an admin raises the limits of its own tenant", |world, rights, _, ask| {
        matches!(ask.about, About::Edit { privileged: false, .. }) && rights.has(Role::Admin, tenant_of(world, ask))
    }),
    (
        "an admin chooses the user of tasks",
        |_, rights, _, ask| matches!(ask.about, About::Edit { path, privileged: true } if rights.admin_above(path)),
    ),
    ("somebody submits under another's name", |world, rights, _, ask| {
        ask.rpc == Rpc::JobsSubmit && rights.has(Role::Submitter, tenant_of(world, ask))
    }),
    ("an admin of one tenant gives rights on another", |_, rights, _, ask| {
        ask.rpc == Rpc::AuthGrant && rights.on.iter().any(|(role, _)| *role == Role::Admin)
    }),
    ("an admin of a tenant gives a role on the fleet", |world, rights, _, ask| {
        matches!(ask.about, About::Right { role: Role::Operator, .. }) && rights.has(Role::Admin, tenant_of(world, ask))
    }),
    ("a viewer makes a token", |world, rights, _, ask| {
        ask.rpc == Rpc::AuthCreateToken && rights.has(Role::Viewer, tenant_of(world, ask))
    }),
    ("a tenant whose name begins alike is reached", |world, rights, _, ask| {
        let path = tenant_of(world, ask);
        ask.rpc == Rpc::TenantsExplain && rights.on.iter().any(|(_, at)| path.starts_with(at.as_str()))
    }),
    ("a submitter replaces a secret", |world, rights, _, ask| {
        ask.rpc == Rpc::SecretsPut && rights.has(Role::Submitter, tenant_of(world, ask))
    }),
    ("an operator reads who was refused", |_, rights, _, ask| ask.rpc == Rpc::AuditDenials && rights.operator),
    ("anybody with a right opens the cluster", |_, rights, _, ask| ask.rpc == Rpc::AuthSecure && rights.any()),
    ("a user speaks as a control node", |_, rights, _, ask| ask.rpc == Rpc::PeerForward && rights.any()),
];

#[test]
fn each_of_fifteen_planted_holes_is_found() {
    for (hole, opens) in HOLES {
        let judge = |world: &World, user: usize, ask: &Ask<'_>| {
            if opens(world, &Rights::of(world, user), user, ask) { Ok(()) } else { honest(world, user, ask) }
        };
        let found = worlds(60).find_map(|(_, world)| differs(&world, &judge));
        assert!(found.is_some(), "not found: {hole}");
    }
    // And the one that lets nobody in, but tells them what is there.
    let tells = |world: &World, user: usize, ask: &Ask<'_>| match honest(world, user, ask) {
        Err(Denied::NotFound { .. }) => {
            Err(Denied::Forbidden { who: String::new(), rpc: String::new(), needs: String::new() })
        }
        answer => answer,
    };
    assert!(worlds(60).any(|(_, world)| differs(&world, &tells).is_some()));
}
