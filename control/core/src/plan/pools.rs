//! Pools.

use super::{isolation, level};
use crate::bounds::{ERRORS_SHOWN_MAX, POOLS_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::capacity::{MPS_CLIENTS_MORE_DRIVER, MPS_CLIENTS_OLD_MAX};
use muster_model::node::NodeSpec;
use muster_model::object::Key;
use muster_model::validate::nearest;
use muster_model::{DriverVersion, FieldError, IsolationLevel, Object, Pool};

/// New rules hold for bindings from now on; what runs goes on under those it was bound by.
pub(super) fn put(draft: &mut Draft<'_>, pool: &Pool) -> Result<Done, Reject> {
    pool.validate().map_err(Reject::Invalid)?;
    let members = draft.state.nodes.values().filter(|node| node.spec.pool == pool.name);
    members
        .flat_map(|node| fits_cards(pool, &node.spec))
        .next()
        .map_or(Ok(()), |fault| Err(Reject::Invalid(vec![fault])))?;
    if (pool.moves_per_hour, pool.moves_lost_gpu_hours_per_day) != (0, 0) {
        level::need(draft.state, level::QUOTAS, "moves_per_hour")?;
    }
    for (field, level, is_set) in [
        ("isolation", level::QUOTAS, pool.isolation != IsolationLevel::None),
        ("network", level::QUOTAS, pool.network.is_some()),
        ("time_slice", level::QUOTAS, pool.time_slice != Pool::standard_rules().time_slice),
        ("memory_limit_mib", level::QUOTAS, pool.memory_limit_mib.is_some()),
        ("withheld_max_percent", level::ENROLMENT, pool.withheld_max_percent.is_some()),
        ("withheld_max_gpus", level::ENROLMENT, pool.withheld_max_gpus.is_some()),
    ] {
        if is_set {
            level::need(draft.state, level, field)?;
        }
    }
    let known = draft.state.pools.get(&pool.name);
    if known.is_none() && draft.state.pools.len() >= POOLS_MAX {
        return Err(Reject::Full { what: "the table of pools".to_owned(), limit: POOLS_MAX as u64 });
    }
    if known != Some(pool) {
        isolation::judge_nodes_of(draft, pool);
        draft.put(Object::Pool(pool.clone()));
    }
    Ok(Done::Ok)
}

/// Whether somebody has described the pool, or it is the standard one: in a misspelt one, everything would be allowed.
pub(super) fn described(state: &State, name: &str) -> Result<(), Reject> {
    if name == Pool::standard_rules().name || state.pools.contains_key(name) {
        return Ok(());
    }
    let fix = match nearest(name, known(state)) {
        Some(meant) => format!("did you mean {meant}? Otherwise create the pool with `muster pools apply`"),
        None => format!("create it with `muster pools apply`, or use one of {}", some_of(known(state))),
    };
    Err(Reject::field("pool", format!("pool {name:?} does not exist"), fix))
}

/// The pools that a node can join, and so those that a job can name.
pub(super) fn known(state: &State) -> impl Iterator<Item = &str> {
    state.all_pools().map(|pool| pool.name.as_str())
}

/// As many names as a refusal shows.
pub(super) fn some_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.take(ERRORS_SHOWN_MAX).collect::<Vec<_>>().join(", ")
}

/// Whether the pool lets in more clients than a card of the node takes.
pub(super) fn fits_cards(pool: &Pool, node: &NodeSpec) -> Option<FieldError> {
    let driver = DriverVersion::reported(&node.driver);
    let old = driver.is_none_or(|driver| driver < MPS_CLIENTS_MORE_DRIVER);
    if pool.mps_clients > MPS_CLIENTS_OLD_MAX && old && !node.gpus.is_empty() {
        let problem = format!(
            "is {}, more than MPS allows on node {} with driver {:?}",
            pool.mps_clients, node.name, node.driver
        );
        let fix = format!(
            "use 1 to {MPS_CLIENTS_OLD_MAX}, or driver {MPS_CLIENTS_MORE_DRIVER} (CUDA 13.1) or newer on all nodes of the pool"
        );
        return Some(FieldError::new("mps_clients", problem, fix));
    }
    None
}

pub(super) fn delete(draft: &mut Draft<'_>, name: &str) -> Result<Done, Reject> {
    if !draft.state.pools.contains_key(name) {
        if name == Pool::standard_rules().name {
            let problem =
                format!("pool {name} is built in, and its rules were not changed: there is nothing to delete");
            return Err(Reject::field("name", problem, "change its rules with `muster pools apply`"));
        }
        return Err(Reject::not_found("pool", name));
    }
    if let Some(nodes) = draft.state.index().pool_nodes.get(name) {
        let why = format!("{nodes} nodes belong to it; move or remove them first");
        return Err(Reject::InUse { what: "pool".to_owned(), id: name.to_owned(), why });
    }
    draft.delete(Key::Pool(name.to_owned()));
    Ok(Done::Ok)
}
