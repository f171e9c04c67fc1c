//! Reservations as reservations: when each gang was told that it starts at the latest, and when it did.
//!
//! What must stay true: a gang is judged by the first time that it was told and by the earliest; a reservation that was withdrawn or put off still
//! counts. A gang is *covered throughout* where a floor covered it each time that it was told one, and paid for it when it began: nodes that are reserved for others
//! yield to floors, and a floor that the tenant's other jobs have used up meanwhile covers the gang no more. Only first attempts count: a requeued job was reserved nothing.

use crate::report::{Lateness, Reservations};

/// What one job was told. Milliseconds from the window's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) told_ms: u64,
    pub(crate) first_ms: u64,
    pub(crate) earliest_ms: u64,
    /// A floor account covered the gang each time that it was told one.
    pub(crate) covered: bool,
}

impl Told {
    /// A reservation says `start_ms`; `covered`: whether a floor account covers the gang now.
    pub(crate) fn again(told: Option<Self>, now_ms: u64, start_ms: u64, covered: impl FnOnce() -> bool) -> Self {
        match told {
            Some(told) => {
                Told { earliest_ms: told.earliest_ms.min(start_ms), covered: told.covered && covered(), ..told }
            }
            None => Told { told_ms: now_ms, first_ms: start_ms, earliest_ms: start_ms, covered: covered() },
        }
    }
}

/// What reservations came to: of each job what it was told, when it began, if it did, and whether a floor account paid
/// for it then.
pub(crate) fn reservations(jobs: impl Iterator<Item = (Told, Option<u64>, bool)>, stopped_ms: u64) -> Reservations {
    let (mut given, mut never, mut covered_throughout, mut late_covered, mut late_covered_throughout) = (0, 0, 0, 0, 0);
    let (mut first, mut earliest, mut ahead) = (Vec::new(), Vec::new(), Vec::new());
    for (told, bound_ms, covered) in jobs {
        given += 1;
        never += u64::from(bound_ms.is_none());
        // One that never began is as late as the replay is long.
        let bound_ms = bound_ms.unwrap_or(stopped_ms);
        covered_throughout += u64::from(covered && told.covered);
        late_covered += u64::from(covered && bound_ms > told.first_ms);
        late_covered_throughout += u64::from(covered && told.covered && bound_ms > told.first_ms);
        first.push(bound_ms as i64 - told.first_ms as i64);
        earliest.push(bound_ms as i64 - told.earliest_ms as i64);
        ahead.push(told.first_ms.saturating_sub(told.told_ms));
    }
    Reservations {
        given,
        never_started: never,
        covered_throughout,
        late_covered,
        late_covered_throughout,
        told_ahead_s: crate::report::Percentiles::of_ms(ahead),
        first: lateness(first),
        earliest: lateness(earliest),
    }
}

pub(crate) fn lateness(mut errors_ms: Vec<i64>) -> Lateness {
    errors_ms.sort_unstable();
    let at = |share: f64| {
        let rank = (errors_ms.len() as f64 * share).ceil() as usize;
        errors_ms.get(rank.clamp(1, errors_ms.len().max(1)) - 1).map_or(0.0, |ms| *ms as f64 / 1000.0)
    };
    Lateness {
        late: errors_ms.iter().filter(|ms| **ms > 0).count() as u64,
        p10_s: at(0.1),
        p50_s: at(0.5),
        p90_s: at(0.9),
        worst_s: at(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_floor_covers_all_the_time_is_covered_throughout() {
        let told = |covered: [bool; 2]| {
            let first = Told::again(None, 0, 1_000, || covered[0]);
            Told::again(Some(first), 500, 2_000, || covered[1])
        };
        let late = |covered, paid| reservations([(told(covered), Some(1_500), paid)].into_iter(), 9_000);
        let covered_throughout =
            |found: &Reservations| (found.covered_throughout, found.late_covered, found.late_covered_throughout);
        assert_eq!(covered_throughout(&late([true, true], true)), (1, 1, 1));
        assert_eq!(covered_throughout(&late([true, false], true)), (0, 1, 0));
        assert_eq!(covered_throughout(&late([false, true], true)), (0, 1, 0));
        assert_eq!(covered_throughout(&late([true, true], false)), (0, 0, 0));
        let in_time = reservations([(told([true, true]), Some(1_000), true)].into_iter(), 9_000);
        assert_eq!(covered_throughout(&in_time), (1, 0, 0));
    }
}
