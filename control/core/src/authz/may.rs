//! Judges one ask by the caller's rights.
//!
//! What must stay true: a refusal of what the caller may not see is the same as if it were not there.

use super::rights::{FLEET_ROLES_LEVEL, Rights};
use super::table::{Rule, rule};
use super::{About, Ask, Denied};
use crate::state::State;
use muster_model::identity::{MachineRole, Subject};
use muster_model::ids::{JobId, TenantId};
use muster_model::object::Number;
use muster_model::{Principal, Role, Rpc, Tenant};

/// # Errors
/// Why not.
pub(super) fn may(state: &State, rights: &Rights<'_>, ask: &Ask<'_>) -> Result<(), Denied> {
    let judge = Judge { state, rights, rpc: ask.rpc };
    match rule(ask.rpc) {
        Rule::Open | Rule::Own => Ok(()),
        Rule::Filtered => judge.need(rights.any(), "a grant of any role"),
        Rule::Reads(role) => judge.reads(role, &ask.about),
        Rule::On(role) => judge.on(role, &ask.about),
        Rule::JobSeen => judge.job(&ask.about, &[Access::Viewer, Access::ReadsFleet]),
        Rule::JobContent => judge.job(&ask.about, &[Access::Owner, Access::Admin]),
        Rule::JobChanged => judge.job(&ask.about, &[Access::Owner, Access::Admin, Access::Operator]),
        Rule::TenantsEdited => judge.edits(&ask.about),
        Rule::Operator => judge.need(rights.has_on_fleet(Role::Operator), "role operator"),
        Rule::Auditor => judge.need(rights.has_on_fleet(Role::Auditor), "role auditor"),
        Rule::ReadsFleet => judge.need(rights.reads_fleet(), "role operator or auditor"),
        Rule::OperatorOrRoot => judge.need(
            rights.has_on_fleet(Role::Operator) || rights.is_root(),
            "role operator, or admin of the root of the tree",
        ),
        Rule::ReadsMembers => judge.need(
            rights.reads_fleet() || rights.is_root(),
            "role operator or auditor, or admin of the root of the tree",
        ),
        Rule::Root => judge.need(rights.is_root(), "admin of the root of the tree"),
        Rule::Delegates => judge.delegates(&ask.about),
        Rule::Recovery => judge.need(false, "the recovery socket in the data folder of a control node"),
        Rule::Member => {
            judge.need(matches!(rights.principal(), Principal::Member(_)), "the identity of a control node")
        }
        Rule::Node => judge.node(&ask.about),
        Rule::Shard => judge.shard(&ask.about),
        Rule::Machine => judge.machine(&ask.about),
        Rule::Machines => judge.machines(&ask.about),
    }
}

/// A way to have access to a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Viewer,
    Owner,
    Admin,
    Operator,
    ReadsFleet,
}

struct Judge<'a> {
    state: &'a State,
    rights: &'a Rights<'a>,
    rpc: Rpc,
}

impl Judge<'_> {
    fn need(&self, holds: bool, needs: &str) -> Result<(), Denied> {
        if holds { Ok(()) } else { Err(self.forbidden(needs)) }
    }

    fn forbidden(&self, needs: &str) -> Denied {
        let who = self.rights.principal().to_string();
        Denied::Forbidden { who, rpc: self.rpc.name().to_owned(), needs: format!("it needs {needs}") }
    }

    fn tenant(&self, path: &str) -> Option<&Tenant> {
        let id = self.state.index().tenant_ids.get(path)?;
        self.state.tenants.get(id)
    }

    fn sees_tenant(&self, tenant: TenantId) -> bool {
        self.rights.has(Role::Viewer, Some(tenant)) || self.rights.reads_fleet()
    }

    fn no_tenant(path: &str) -> Denied {
        Denied::NotFound { what: "tenant".to_owned(), id: path.to_owned() }
    }

    fn on(&self, role: Role, about: &About<'_>) -> Result<(), Denied> {
        match about {
            About::Submission { tenant, user } => {
                self.tenant_role(role, tenant)?;
                let own = self.rights.principal().job_user();
                self.need(own == Some(*user), "jobs to be submitted under the caller's own name")
            }
            About::Tenant(path) => self.tenant_role(role, path),
            _ => self.need(self.rights.is_root(), "admin of the root of the tree"),
        }
    }

    fn tenant_role(&self, role: Role, path: &str) -> Result<(), Denied> {
        let tenant =
            self.tenant(path).filter(|tenant| self.sees_tenant(tenant.id)).ok_or_else(|| Self::no_tenant(path))?;
        self.need(self.rights.has(role, Some(tenant.id)), &format!("role {role} on {path}"))
    }

    fn reads(&self, role: Role, about: &About<'_>) -> Result<(), Denied> {
        if self.rights.reads_fleet() {
            return Ok(());
        }
        self.on(role, about)
    }

    fn job(&self, about: &About<'_>, ways: &[Access]) -> Result<(), Denied> {
        let (job, tenant, user, ways) = match about {
            About::Job(id) => match self.state.jobs.get(id) {
                Some(job) => (*id, job.tenant, job.spec.user.as_str(), ways),
                None => return Err(no_job(*id)),
            },
            About::JobAsAdmin(id) => match self.state.jobs.get(id) {
                Some(job) => (*id, job.tenant, job.spec.user.as_str(), &[Access::Admin, Access::Operator][..]),
                None => return Err(no_job(*id)),
            },
            About::Ended { job, tenant, user } => (*job, *tenant, *user, ways),
            _ => return Err(self.forbidden("a job that is named")),
        };
        let has = |way: &Access| match way {
            Access::Viewer => self.rights.has(Role::Viewer, Some(tenant)),
            Access::Owner => {
                self.rights.has(Role::Submitter, Some(tenant)) && self.rights.principal().job_user() == Some(user)
            }
            Access::Admin => self.rights.has(Role::Admin, Some(tenant)),
            Access::Operator => self.rights.has_on_fleet(Role::Operator),
            Access::ReadsFleet => self.rights.reads_fleet(),
        };
        if ways.iter().any(has) {
            return Ok(());
        }
        if !self.sees_tenant(tenant) {
            return Err(no_job(job));
        }
        let needs = if ways.contains(&Access::Owner) {
            "one's own job, or role admin on its tenant"
        } else {
            "role admin on its tenant"
        };
        Err(self.forbidden(needs))
    }

    /// Admin strictly above what is edited.
    fn edits(&self, about: &About<'_>) -> Result<(), Denied> {
        let About::Edit { path, privileged } = about else {
            return self.need(self.rights.is_root(), "admin of the root of the tree");
        };
        if self.rights.is_root() {
            return Ok(());
        }
        let above = std::iter::successors(Tenant::parent_path(path), |path| Tenant::parent_path(path));
        let above = above.filter_map(|path| self.tenant(path)).next();
        let admin = above.is_some_and(|tenant| self.rights.has(Role::Admin, Some(tenant.id)));
        if admin {
            return self.need(
                !privileged,
                "admin of the root of the tree, since it changes trust, anti-affinity or the user of tasks",
            );
        }
        match self.tenant(path) {
            Some(tenant) if self.sees_tenant(tenant.id) => Err(self.forbidden(&format!("role admin above {path}"))),
            _ => Err(Self::no_tenant(path)),
        }
    }

    fn delegates(&self, about: &About<'_>) -> Result<(), Denied> {
        match about {
            About::Nothing => Ok(()),
            About::Right { role, at } => self.gives(*role, at.map(|path| self.tenant(path).ok_or(path))),
            About::Service(service) => self.speaks_for(service),
            About::Grant(id) => match self.state.grants.get(&Number(*id)) {
                Some(grant)
                    if self.rights.is_root()
                        || grant.role.is_on_tenants() && self.rights.has(Role::Admin, grant.at) =>
                {
                    Ok(())
                }
                _ => Err(Denied::NotFound { what: "grant".to_owned(), id: id.to_string() }),
            },
            About::Credential(id) => match self.state.credentials.get(&Number(*id)) {
                Some(found) => {
                    let own = &found.principal == self.rights.principal();
                    let below = found.scope.as_ref().is_some_and(|(_, at)| self.rights.has(Role::Admin, Some(*at)));
                    if own || below || self.rights.is_root() { Ok(()) } else { Err(no_credential(*id)) }
                }
                None => Err(no_credential(*id)),
            },
            _ => self.need(self.rights.is_root(), "admin of the root of the tree"),
        }
    }

    /// A token of a service has the service's roles on the fleet too, so only root, who gives those, may make one.
    fn speaks_for(&self, service: &Principal) -> Result<(), Denied> {
        if self.state.meta.feature_level < FLEET_ROLES_LEVEL {
            return Ok(());
        }
        let grants = Subject::of(service).map(|subject| self.rights.grants_to(subject));
        let on_fleet = grants.into_iter().flatten().any(|grant| !grant.role.is_on_tenants());
        self.need(
            !on_fleet || self.rights.is_root(),
            &format!("admin of the root of the tree, since {service} has a role on the fleet"),
        )
    }

    /// Nobody gives more than they have (law SL3).
    fn gives(&self, role: Role, at: Option<Result<&Tenant, &str>>) -> Result<(), Denied> {
        if self.rights.is_root() {
            return match at {
                Some(Err(path)) => Err(Self::no_tenant(path)),
                _ => Ok(()),
            };
        }
        match at {
            _ if !role.is_on_tenants() => {
                Err(self.forbidden("admin of the root of the tree to give roles on the fleet"))
            }
            None => Err(self.forbidden("admin of the root of the tree")),
            Some(Err(path)) => Err(Self::no_tenant(path)),
            Some(Ok(tenant)) if self.rights.has(Role::Admin, Some(tenant.id)) => Ok(()),
            Some(Ok(tenant)) if self.sees_tenant(tenant.id) => {
                Err(self.forbidden(&format!("role admin on {}", tenant.path)))
            }
            Some(Ok(tenant)) => Err(Self::no_tenant(&tenant.path)),
        }
    }

    fn machine(&self, about: &About<'_>) -> Result<(), Denied> {
        let own = self.rights.principal();
        let is_own = match about {
            About::Machine(named) => *named == own,
            _ => true,
        };
        self.need(own.is_machine() && is_own, "the identity of that very machine")
    }

    fn machines(&self, about: &About<'_>) -> Result<(), Denied> {
        let of_control = match about {
            About::Machine(machine) => matches!(machine, Principal::Member(_)),
            About::MachinesOf(role) => *role == MachineRole::Control,
            About::JoinToken(id) => {
                self.state.join_tokens.get(&Number(*id)).is_some_and(|token| token.role == MachineRole::Control)
            }
            _ => false,
        };
        let operates = self.rights.has_on_fleet(Role::Operator) && !of_control;
        let needs = match of_control {
            true => "admin of the root of the tree, since it is about a control node",
            false => "role operator, or admin of the root of the tree",
        };
        self.need(operates || self.rights.is_root(), needs)
    }

    fn node(&self, about: &About<'_>) -> Result<(), Denied> {
        let Principal::Node(own) = self.rights.principal() else {
            return Err(self.forbidden("the identity of a node's agent"));
        };
        let name = match about {
            About::NodeNamed(name) => Some(*name),
            About::Node(id) => self.state.nodes.get(id).map(|node| node.spec.name.as_str()),
            _ => Some(own.as_str()),
        };
        self.need(name == Some(own.as_str()), "the identity of that very node")
    }

    fn shard(&self, about: &About<'_>) -> Result<(), Denied> {
        let own = self.rights.principal();
        if !matches!(own, Principal::Shard(_)) {
            return Err(self.forbidden("the identity of a scheduler shard"));
        }
        let is_own = |shard: &str| own.has_process(shard);
        match about {
            About::Lease { cell, epoch } => {
                let held = self.state.cells.get(cell);
                // An older epoch is refused by the plan itself, with the newest one.
                let holds = held.is_none_or(|held| held.epoch != *epoch || held.holder.as_deref().is_some_and(is_own));
                self.need(holds, "the newest lease of the cell")
            }
            About::Cell { cell, shard } => {
                self.need(is_own(shard), "the shard's own name")?;
                let machine = self.state.machines.get(&own.to_string());
                let only = machine.map_or("", |machine| machine.enrolled.cell.as_str());
                let named = self.state.cells.get(cell).map_or("", |cell| cell.name.as_str());
                self.need(only.is_empty() || only == named, "a shard that was enrolled for that cell")
            }
            About::Shard(shard) => self.need(is_own(shard), "the shard's own name"),
            _ => Ok(()),
        }
    }
}

fn no_job(job: JobId) -> Denied {
    Denied::NotFound { what: "job".to_owned(), id: job.to_string() }
}

fn no_credential(id: u64) -> Denied {
    Denied::NotFound { what: "credential".to_owned(), id: id.to_string() }
}
