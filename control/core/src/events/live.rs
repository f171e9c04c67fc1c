//! What the log of a running cluster is made from: which objects and changes it tells of, and what its header says of sharing.
//!
//! What must stay true: a change that is not named here changes no line of any log.

use super::{About, CARD_UNITS_OF_MIG_MAX, CARD_UNITS_OF_SHARES_MAX};
use muster_model::object::Key;
use muster_model::request::SharingMode;
use muster_model::{Change, GpuUnits, Object, Pool};

/// Whether a log tells of such an object.
#[must_use]
pub fn is_told_of(object: &Object) -> bool {
    matches!(
        object,
        Object::Tenant(_)
            | Object::Pool(_)
            | Object::PriorityClass(_)
            | Object::Node(_)
            | Object::Job(_)
            | Object::Allocation(_)
    )
}

/// Whether a log tells of such a change.
#[must_use]
pub fn is_told(change: &Change) -> bool {
    match change {
        Change::Put(object) => is_told_of(object),
        Change::Delete(key) => {
            matches!(key, Key::Tenant(_) | Key::Pool(_) | Key::Node(_) | Key::Allocation(_))
        }
        Change::Retire(_) => true,
        Change::Audit(_) => false,
    }
}

impl About {
    /// A cluster whose pools are these. Nodes may stand in the standard pool, whether or not somebody has described it.
    pub fn of_pools<'p>(pools: impl IntoIterator<Item = &'p Pool>, stop_ms_max: u64) -> About {
        let standard = Pool::standard_rules();
        let (mut units, mut described) = (GpuUnits::CARD.0, false);
        for pool in pools {
            described |= pool.name == standard.name;
            units = units.max(card_units_of(pool));
        }
        if !described {
            units = units.max(card_units_of(standard));
        }
        About { stop_ms_max, card_units_max: units }
    }
}

/// Most that one card of a pool is charged.
fn card_units_of(pool: &Pool) -> u64 {
    if pool.modes.contains(&SharingMode::Mps) || pool.modes.contains(&SharingMode::TimeSlice) {
        CARD_UNITS_OF_SHARES_MAX
    } else if pool.modes.contains(&SharingMode::Mig) {
        CARD_UNITS_OF_MIG_MAX
    } else {
        GpuUnits::CARD.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_a_card_is_charged_is_that_of_the_pool_that_shares_most() {
        let pool = |name: &str, modes: &[SharingMode]| Pool {
            name: name.to_owned(),
            modes: modes.iter().copied().collect(),
            ..Pool::standard()
        };
        let units = |pools: &[Pool]| About::of_pools(pools, 0).card_units_max;
        let standard = Pool::standard().name;
        assert_eq!(units(&[]), CARD_UNITS_OF_SHARES_MAX);
        assert_eq!(units(&[pool("training", &[SharingMode::Whole])]), CARD_UNITS_OF_SHARES_MAX);
        assert_eq!(units(&[pool(&standard, &[SharingMode::Whole])]), GpuUnits::CARD.0);
        let whole_and_mig = [pool(&standard, &[SharingMode::Whole]), pool("mig", &[SharingMode::Mig])];
        assert_eq!(units(&whole_and_mig), CARD_UNITS_OF_MIG_MAX);
    }
}
