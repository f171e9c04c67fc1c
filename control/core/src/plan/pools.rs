//! Pools.

use crate::bounds::POOLS_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::object::Key;
use muster_model::{Object, Pool};

/// New rules hold for bindings from now on; what runs goes on under those it was bound by.
pub(super) fn put(draft: &mut Draft<'_>, pool: &Pool) -> Result<Done, Reject> {
    pool.validate().map_err(Reject::Invalid)?;
    let known = draft.state.pools.get(&pool.name);
    if known.is_none() && draft.state.pools.len() >= POOLS_MAX {
        return Err(Reject::Full { what: "the table of pools".to_owned(), limit: POOLS_MAX as u64 });
    }
    if known != Some(pool) {
        draft.put(Object::Pool(pool.clone()));
    }
    Ok(Done::Ok)
}

pub(super) fn delete(draft: &mut Draft<'_>, name: &str) -> Result<Done, Reject> {
    if !draft.state.pools.contains_key(name) {
        return Err(Reject::not_found("pool", name));
    }
    if let Some(nodes) = draft.state.index().pool_nodes.get(name) {
        let why = format!("{nodes} nodes belong to it; move or remove them first");
        return Err(Reject::InUse { what: "pool".to_owned(), id: name.to_owned(), why });
    }
    draft.delete(Key::Pool(name.to_owned()));
    Ok(Done::Ok)
}
