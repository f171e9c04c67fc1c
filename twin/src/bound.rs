//! The most goodput that any schedule could reach, even one that knows every job in advance.
//!
//! Let `C` be the cards of the fleet, `T` the length of the window, and let job `j` come at `r_j`, work for `d_j` and hold `g_j` cards. Until `s` no
//! schedule can have put more GPU time into work than `A(s) = Σ g_j · min(d_j, s − r_j)` over the jobs that came before `s`, and from `s` on no
//! more than `C · (T − s)`. So the goodput within the window is at most the least of `A(s) + C · (T − s)` over all `s` in `[0, T]`, of `C · T`. Whole
//! gangs, places and the order of tenants are ignored, so the bound may be out of reach.

/// A job as the bound sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// When it comes.
    pub(crate) from_ms: u64,
    /// How long it works.
    pub(crate) length_ms: u64,
    /// What it holds meanwhile.
    pub(crate) units: u64,
}

/// The bound, as a share of `capacity` units over the window.
pub(crate) fn goodput_bound(work: impl Iterator<Item = Work>, capacity: u64, window_ms: u64) -> f64 {
    let all = u128::from(capacity) * u128::from(window_ms);
    if all == 0 {
        return 0.0;
    }
    // The slope of A changes by these amounts.
    let mut turns: Vec<(u64, i128)> = Vec::new();
    for job in work {
        let end_ms = job.from_ms.saturating_add(job.length_ms);
        turns.push((job.from_ms, i128::from(job.units)));
        turns.push((end_ms, -i128::from(job.units)));
    }
    turns.push((window_ms, 0));
    turns.sort_unstable();
    let (mut at_ms, mut slope, mut come, mut least) = (0, 0_i128, 0_i128, all as i128);
    for (turn_ms, change) in turns {
        if turn_ms > window_ms {
            break;
        }
        come += slope * i128::from(turn_ms - at_ms);
        least = least.min(come + i128::from(capacity) * i128::from(window_ms - turn_ms));
        (at_ms, slope) = (turn_ms, slope + change);
    }
    least as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::{Work, goodput_bound};

    #[test]
    fn idle_time_is_not_made_up_later() {
        let work = |from_ms, length_ms, units| Work { from_ms, length_ms, units };
        let check = |work: &[Work], expected: f64| {
            let bound = goodput_bound(work.iter().copied(), 4, 100);
            assert!((bound - expected).abs() < 1e-9, "{work:?}: {bound}, not {expected}");
        };
        check(&[], 0.0);
        check(&[work(0, 100, 4)], 1.0);
        check(&[work(0, 1_000, 400)], 1.0);
        check(&[work(0, 50, 4)], 0.5);
        // All of it comes half-way: the first half is lost whatever comes.
        check(&[work(50, 1_000, 400)], 0.5);
        // One card cannot do the work of four.
        check(&[work(0, 400, 1)], 0.25);
        check(&[work(0, 100, 2), work(50, 100, 4)], (2.0 * 50.0 + 4.0 * 50.0) / 400.0);
        // What comes after the window is nothing.
        check(&[work(100, 10, 4)], 0.0);
    }
}
