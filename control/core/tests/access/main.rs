//! Who may do what: the security laws of the state machine, over random trees, rights and calls, each with a hole that is caught.

mod naive;
mod world;

use muster_control_core::authz::{About, Ask, Denied, Rule, authorize, is_of_machines, rule};
use muster_control_core::{Command, Done, Entry, Reject, State, execute};
use muster_model::identity::{Author, CredentialKind, Enrolment, Subject};
use muster_model::tenant_edit::TenantEdit;
use muster_model::{AccessMode, JobId, Principal, Role, Rpc};
use std::collections::BTreeSet;
use world::{
    Chance, GROUPS, HOUR_MS, NOW_MS, ROLES, TENANTS, USERS, World, done, grant, member, pick, random_grant, session,
    worlds,
};

/// Everything that could be asked in this world.
fn every_ask<'a>(world: &'a World) -> Vec<Ask<'a>> {
    let mut asks = Vec::new();
    for rpc in Rpc::ALL.iter().copied() {
        asks.push(Ask { rpc, about: About::Nothing });
        for path in TENANTS {
            asks.push(Ask { rpc, about: About::Tenant(path) });
            asks.push(Ask { rpc, about: About::Edit { path, privileged: false } });
            asks.push(Ask { rpc, about: About::Edit { path, privileged: true } });
            for user in USERS {
                asks.push(Ask { rpc, about: About::Submission { tenant: path, user } });
            }
            for role in ROLES {
                asks.push(Ask { rpc, about: About::Right { role, at: Some(path) } });
            }
        }
        for (job, ..) in &world.jobs {
            asks.push(Ask { rpc, about: About::Job(*job) });
            asks.push(Ask { rpc, about: About::JobAsAdmin(*job) });
        }
    }
    asks
}

/// Tenants on which the user has some role, counted anew and simply: by every grant of theirs and of their groups.
fn reached(world: &World, index: usize) -> BTreeSet<&'static str> {
    let of = |subject: &Subject| match subject {
        Subject::User(name) => name == USERS[index],
        Subject::Group(name) => name == GROUPS[index % 2],
        Subject::Service(_) => false,
    };
    let grants = world.state.grants.values().filter(|grant| of(&grant.subject) && grant.role.is_on_tenants());
    let tops: Vec<String> =
        grants.filter_map(|grant| Some(world.state.tenants.get(&grant.at?)?.path.clone())).collect();
    let below = |path: &&&str| tops.iter().any(|top| **path == top || path.starts_with(&format!("{top}/")));
    TENANTS.iter().filter(below).copied().collect()
}

fn reads_fleet(world: &World, index: usize) -> bool {
    let of = |subject: &Subject| match subject {
        Subject::User(name) => name == USERS[index],
        Subject::Group(name) => name == GROUPS[index % 2],
        Subject::Service(_) => false,
    };
    world.state.grants.values().any(|grant| of(&grant.subject) && !grant.role.is_on_tenants())
}

/// SL4: a job of a tenant that the caller does not see is refused in the words of one that never was.
fn hides_foreign_jobs(world: &World, judge: impl Fn(&Author, &Ask<'_>) -> Result<(), Denied>) -> Result<(), String> {
    for (index, author) in world.sessions.iter().enumerate() {
        if reads_fleet(world, index) {
            continue;
        }
        let reached = reached(world, index);
        for rpc in Rpc::ALL
            .iter()
            .copied()
            .filter(|rpc| matches!(rule(*rpc), Rule::JobSeen | Rule::JobContent | Rule::JobChanged))
        {
            for (job, tenant, _) in world.jobs.iter().filter(|(_, tenant, _)| !reached.contains(tenant)) {
                let missing = JobId(9_999);
                let (there, not) = (
                    judge(author, &Ask { rpc, about: About::Job(*job) }),
                    judge(author, &Ask { rpc, about: About::Job(missing) }),
                );
                let said =
                    |answer: &Result<(), Denied>, job: JobId| format!("{answer:?}").replace(&job.to_string(), "N");
                if said(&there, *job) != said(&not, missing) {
                    return Err(format!(
                        "{rpc} about job {job} of {tenant} tells {} that it is there: {there:?}",
                        USERS[index]
                    ));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn sl4_a_foreign_job_is_refused_as_one_that_never_was() {
    for (seed, world) in worlds(200) {
        let held = hides_foreign_jobs(&world, |author, ask| world.asks(author, ask));
        assert_eq!(held, Ok(()), "MUSTER_SEED={seed}");
    }
    // The hole: whoever is refused is told why.
    let leaks = |world: &World| {
        hides_foreign_jobs(world, |author, ask| match (world.asks(author, ask), &ask.about) {
            (Err(Denied::NotFound { .. }), About::Job(job)) if world.state.jobs.contains_key(job) => {
                Err(Denied::Forbidden { who: String::new(), rpc: String::new(), needs: String::new() })
            }
            (answer, _) => answer,
        })
    };
    assert!(worlds(50).any(|(_, world)| leaks(&world).is_err()), "the hole is not seen");
}

#[test]
fn sl4_rights_on_a_tenant_reach_nothing_outside_it() {
    for (seed, world) in worlds(200) {
        for (index, author) in world.sessions.iter().enumerate() {
            let (reached, fleet) = (reached(&world, index), reads_fleet(&world, index));
            for ask in every_ask(&world) {
                let tenant = match &ask.about {
                    About::Tenant(path) | About::Submission { tenant: path, .. } => *path,
                    About::Job(job) | About::JobAsAdmin(job) => {
                        world.jobs.iter().find(|(id, ..)| id == job).expect("a job").1
                    }
                    _ => continue,
                };
                let about_tenants = matches!(
                    rule(ask.rpc),
                    Rule::On(_) | Rule::Reads(_) | Rule::JobSeen | Rule::JobContent | Rule::JobChanged
                );
                if about_tenants && !fleet && !reached.contains(tenant) {
                    assert!(world.asks(author, &ask).is_err(), "MUSTER_SEED={seed}: {} may {ask:?}", USERS[index]);
                }
            }
        }
    }
}

#[test]
fn more_rights_never_allow_less() {
    for (seed, mut world) in worlds(60) {
        let before: Vec<bool> = every_ask(&world)
            .iter()
            .flat_map(|ask| world.sessions.iter().map(|author| world.asks(author, ask).is_ok()).collect::<Vec<_>>())
            .collect();
        let mut chance = Chance::new(seed ^ 0xA11);
        let _ = random_grant(&mut chance, &mut world.state);
        let after = every_ask(&world);
        let after = after
            .iter()
            .flat_map(|ask| world.sessions.iter().map(|author| world.asks(author, ask).is_ok()).collect::<Vec<_>>());
        for (index, (before, after)) in before.iter().zip(after).enumerate() {
            assert!(!before || after, "MUSTER_SEED={seed}: ask {index} was allowed before a grant and is not after it");
        }
    }
}

/// SL3: whatever somebody gives away, the receiver has nothing that the giver has not.
#[test]
fn sl3_no_one_grants_more_than_they_hold() {
    for (seed, mut world) in worlds(100) {
        let mut chance = Chance::new(seed ^ 0x5713);
        for round in 0..20 {
            // Somebody whom nobody has given anything.
            let new = format!("new{round}");
            let giver = chance.below(USERS.len() as u64) as usize;
            let author = world.sessions[giver].clone();
            let role = pick(&mut chance, &ROLES);
            let at = role.is_on_tenants().then(|| pick(&mut chance, &TENANTS).to_owned());
            let subject = Subject::User(new.clone());
            let could: Vec<bool> = every_ask(&world).iter().map(|ask| world.asks(&author, ask).is_ok()).collect();
            let mut state = world.state.clone();
            let command = Command::PutGrant { subject, role, at, until_ms: None, reason: String::new() };
            if done(&mut state, command.clone().by(author.clone())).is_err() {
                continue;
            }
            let receiver = session(&mut state, &new, &[]);
            let given = World { state, sessions: Vec::new(), jobs: world.jobs.clone() };
            for (ask, could) in every_ask(&given).iter().zip(could) {
                // Jobs are submitted under one's own name, and nobody has a job yet that is new.
                let own_name = matches!(ask.about, About::Submission { .. })
                    || matches!(rule(ask.rpc), Rule::Own | Rule::Filtered);
                let can = given.asks(&receiver, ask).is_ok();
                assert!(
                    own_name || !can || could,
                    "MUSTER_SEED={seed}: {} gave {command:?}, and with it {ask:?}",
                    USERS[giver]
                );
            }
            world.state = given.state;
        }
    }
}

/// A token of `a/ci` that is admin there, made by `author`.
fn token(state: &mut State, author: Author) -> Result<Author, Reject> {
    let principal = Principal::Service("a/ci".to_owned());
    let command = Command::PutCredential {
        kind: CredentialKind::Token,
        principal: principal.clone(),
        groups: Vec::new(),
        secret_sha256: [8; 32],
        ttl_ms: HOUR_MS,
        scope: Some((Role::Admin, "a".to_owned())),
        from: Vec::new(),
        note: String::new(),
    };
    match done(state, command.by(author))? {
        Done::Numbered { id } => Ok(Author { principal, credential: Some(id), ..Author::default() }),
        other => panic!("a token was answered {other:?}"),
    }
}

/// SL3 for services: a role on the fleet that root gives to a service is one of its tokens, and nobody else can make one of those.
#[test]
fn sl3_a_service_has_the_roles_on_the_fleet_that_root_gives_it_and_only_root_makes_its_tokens_then() {
    let (_, mut world) = worlds(1).next().expect("a world");
    let root = session(&mut world.state, "root", &[]);
    let admin = session(&mut world.state, "new", &[]);
    grant(&mut world.state, Subject::User("new".to_owned()), Role::Admin, Some("a")).expect("a right");
    let service = Subject::Service("a/ci".to_owned());
    let query = Ask { rpc: Rpc::AuditDenials, about: About::Nothing };
    let drain = Ask { rpc: Rpc::FleetSetDrained, about: About::Nothing };
    let theirs = token(&mut world.state, admin.clone()).expect("the admin of its tenant makes it");
    assert!(world.asks(&theirs, &query).is_err() && world.asks(&theirs, &drain).is_err());

    let on_tenant = grant(&mut world.state, service.clone(), Role::Submitter, Some("e"));
    assert!(matches!(on_tenant, Err(Reject::Invalid(_))), "a role without effect: {on_tenant:?}");
    let reason = String::new();
    let give = Command::PutGrant { subject: service, role: Role::Auditor, at: None, until_ms: None, reason };
    let give = give.by(root.clone());
    // The token that somebody else holds would have the role too.
    let in_use = done(&mut world.state, give.clone()).expect_err("it would reach further than root knows").to_string();
    assert!(in_use.contains("user:new has made it"), "{in_use}");
    let id = theirs.credential.expect("a token");
    done(&mut world.state, Command::RevokeCredential { id }.by(root.clone())).expect("revoked");
    let own = token(&mut world.state, root.clone()).expect("root makes one");
    done(&mut world.state, give).expect("root gives it");
    assert!(world.asks(&own, &query).is_ok() && world.asks(&own, &drain).is_err());
    // Its role on its tenant is what it was, and reaches no other.
    let right = |role, at| Ask { rpc: Rpc::AuthCreateToken, about: About::Right { role, at: Some(at) } };
    assert!(world.asks(&own, &right(Role::Admin, "a/b")).is_ok());
    assert!(world.asks(&own, &right(Role::Viewer, "e")).is_err());

    for giver in [admin, own.clone()] {
        let refused = token(&mut world.state, giver).expect_err("it would give more than it has");
        assert!(refused.to_string().contains("role on the fleet"), "{refused}");
    }
    let second = token(&mut world.state, root).expect("root gives it");
    assert!(world.asks(&second, &query).is_ok());
    // A cluster of older voters decides as they do.
    world.state.meta.feature_level = 4;
    assert!(world.asks(&own, &query).is_err());
}

/// SL5: after a revocation nothing that is asked with the credential succeeds.
#[test]
fn sl5_a_revoked_or_expired_session_does_nothing() {
    for (seed, mut world) in worlds(50) {
        let author = world.sessions[0].clone();
        let id = author.credential.expect("a session");
        let later =
            authorize(&world.state, NOW_MS + HOUR_MS, &author, &Ask { rpc: Rpc::AuthWhoAmI, about: About::Nothing });
        assert!(matches!(later, Ok(_) | Err(Denied::Unauthenticated { .. })));
        for ask in every_ask(&world) {
            let expired = authorize(&world.state, NOW_MS + HOUR_MS, &author, &ask);
            assert!(
                rule(ask.rpc) == Rule::Open || expired.is_err(),
                "MUSTER_SEED={seed}: an expired session may {ask:?}"
            );
        }
        done(&mut world.state, Command::RevokeCredential { id }.by(author.clone())).expect("one's own");
        for ask in every_ask(&world) {
            assert!(rule(ask.rpc) == Rule::Open || world.asks(&author, &ask).is_err(), "MUSTER_SEED={seed}: {ask:?}");
        }
        let command = Command::DeleteTenant { path: "a/d".to_owned() };
        assert!(matches!(done(&mut world.state, command.by(author)), Err(Reject::Denied(_))));
    }
}

#[test]
fn sl1_nobody_without_an_identity_may_anything_but_what_is_open() {
    let (_, mut world) = worlds(1).next().expect("a world");
    let nobody = Author::default();
    // Machines are believed by their names until enrolment is required.
    for ask in every_ask(&world) {
        let open = rule(ask.rpc) == Rule::Open || is_of_machines(ask.rpc);
        assert_eq!(world.asks(&nobody, &ask).is_ok(), open, "{ask:?}");
    }
    world.state.meta.enrolment = Enrolment::Required;
    for ask in every_ask(&world) {
        assert_eq!(world.asks(&nobody, &ask).is_ok(), rule(ask.rpc) == Rule::Open, "{ask:?}");
    }
}

/// A machine that was enrolled.
fn machine(principal: Principal) -> muster_model::identity::Machine {
    muster_model::identity::Machine {
        principal,
        key_sha256: [1; 32],
        next_key_sha256: None,
        generation: 1,
        nonce: 0,
        standing: muster_model::identity::MachineStanding::Active,
        enrolled: Default::default(),
        since_ms: 0,
        join_token: 0,
    }
}

#[test]
fn sl2_a_machine_acts_as_itself_alone() {
    let (_, mut world) = worlds(1).next().expect("a world");
    let shard = Author { principal: Principal::Shard("s1".to_owned()), ..Author::default() };
    let ask = Ask { rpc: Rpc::ShardsRenew, about: About::Shard("s1-0a") };
    world.state.meta.enrolment = Enrolment::Required;
    assert!(world.asks(&shard, &ask).is_err(), "a shard that nobody has enrolled");
    world.state.machines.insert(shard.principal.to_string(), machine(shard.principal.clone()));
    assert!(world.asks(&shard, &ask).is_ok());
    for (rpc, about) in [
        (Rpc::ShardsRenew, About::Shard("s10-0a")),
        (Rpc::ShardsRenew, About::Shard("s2")),
        (Rpc::AgentsSession, About::NodeNamed("n1")),
        (Rpc::PeerForward, About::Nothing),
        (Rpc::JobsList, About::Nothing),
        (Rpc::FleetPutPool, About::Nothing),
    ] {
        assert!(world.asks(&shard, &Ask { rpc, about }).is_err(), "{rpc}");
    }
}

/// A certificate says who a machine is before anybody is enrolled, and in an open cluster too: it acts as nobody else.
#[test]
fn sl2_a_machine_with_a_certificate_is_no_other_machine_in_an_open_cluster() {
    let (_, mut world) = worlds(1).next().expect("a world");
    let of = |principal| Author { principal, ..Author::default() };
    let (shard, node) = (of(Principal::Shard("s1".to_owned())), of(Principal::Node("n1".to_owned())));
    let own = [
        (&shard, Rpc::ShardsRenew, About::Shard("s1-0a")),
        (&node, Rpc::AgentsSession, About::NodeNamed("n1")),
        (&member(), Rpc::PeerForward, About::Nothing),
    ];
    let others = [
        (&shard, Rpc::ShardsRenew, About::Shard("s2")),
        (&shard, Rpc::AgentsSession, About::NodeNamed("n1")),
        (&shard, Rpc::PeerForward, About::Nothing),
        (&node, Rpc::AgentsSession, About::NodeNamed("n2")),
        (&node, Rpc::ShardsAcquire, About::Shard("n1")),
        (&node, Rpc::PeerAppendEntries, About::Nothing),
        (&member(), Rpc::AgentsSession, About::NodeNamed("n1")),
    ];
    for access in [AccessMode::Open, AccessMode::Closed] {
        world.state.meta.access = access;
        for (author, rpc, about) in &own {
            assert!(world.asks(author, &Ask { rpc: *rpc, about: about.clone() }).is_ok(), "{access:?} {rpc}");
        }
        for (author, rpc, about) in &others {
            let answer = world.asks(author, &Ask { rpc: *rpc, about: about.clone() });
            assert!(answer.is_err(), "{access:?}: {} may {rpc} {about:?}", author.principal);
        }
    }
    // Whoever is enrolled alone counts once that is required.
    world.state.machines.insert(shard.principal.to_string(), machine(shard.principal.clone()));
    assert!(world.asks(&node, &Ask { rpc: Rpc::AgentsSession, about: About::NodeNamed("n1") }).is_ok());
    world.state.meta.enrolment = Enrolment::Required;
    assert!(world.asks(&shard, &Ask { rpc: Rpc::ShardsRenew, about: About::Shard("s1-0a") }).is_ok());
    assert!(world.asks(&node, &Ask { rpc: Rpc::AgentsSession, about: About::NodeNamed("n1") }).is_err());
}

#[test]
fn nobody_acts_as_the_cluster_itself() {
    let (_, mut world) = worlds(1).next().expect("a world");
    let root = session(&mut world.state, "root", &[]);
    for author in [Author::system(), root, Author::default(), member()] {
        for command in [Command::Sweep, Command::DecideDue, Command::RaiseFeatureLevel { level: 5 }] {
            let answer = done(&mut world.state, command.clone().by(author.clone()));
            assert!(matches!(answer, Err(Reject::Denied(_))), "{} may {command:?}: {answer:?}", author.principal);
        }
    }
}

#[test]
fn the_audit_is_a_chain_without_gaps() {
    let mut state = State::new(1);
    state.meta.feature_level = 4;
    let mut head = [0; 32];
    for number in 1..=20 {
        let edits = vec![TenantEdit { path: format!("t{number}"), ..TenantEdit::default() }];
        let command = Command::EditTenants { edits, prune: false, half_life_s: None }.by(Author::default());
        let executed = execute(&mut state, &Entry { now_ms: NOW_MS, commands: vec![command] });
        let records: Vec<_> = executed
            .changes
            .iter()
            .filter_map(|change| match change {
                muster_model::Change::Audit(record) => Some(record),
                _ => None,
            })
            .collect();
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].number, records[0].target.as_str()), (number, format!("tenants t{number}").as_str()));
        assert_eq!(
            records[0].hash,
            muster_control_core::audit_link(&head, records[0]),
            "each covers the one before it"
        );
        head = records[0].hash;
        assert_eq!((state.meta.audited, state.meta.audit_head), (number, head));
    }
    let before = state.meta.clone();
    let refused = Command::DeleteTenant { path: "nobody".to_owned() }.by(Author::default());
    execute(&mut state, &Entry { now_ms: NOW_MS, commands: vec![refused] });
    assert_eq!(state.meta, before, "a refused command changes nothing (law 11)");
}

/// The guide shows the table that the code has. `MUSTER_UPDATE_DOCS=1` writes it.
#[test]
fn the_guide_has_the_table_of_calls() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SECURITY.md");
    let text = std::fs::read_to_string(path).expect("the guide");
    let (begin, end) = ("<!-- table of calls: begin -->\n", "<!-- table of calls: end -->");
    let (before, rest) = text.split_once(begin).expect("where the table begins");
    let (table, after) = rest.split_once(end).expect("where it ends");
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for rpc in Rpc::ALL {
        let words = rule(*rpc).in_words();
        match rows.iter_mut().find(|(known, _)| *known == words) {
            Some((_, calls)) => calls.push(rpc.name()),
            None => rows.push((words, vec![rpc.name()])),
        }
    }
    let rows = rows.iter().map(|(words, calls)| format!("| {words} | {} |\n", calls.join(", ")));
    let wanted = format!("| needs | calls |\n| --- | --- |\n{}", rows.collect::<String>());
    if std::env::var_os("MUSTER_UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{begin}{wanted}{end}{after}")).expect("the guide is written");
        return;
    }
    assert_eq!(table, wanted, "MUSTER_UPDATE_DOCS=1 cargo test -p muster-control-core --test access writes it");
}
