//! How much of something is left after a time when half of it goes in each half-life: 2^-x in fixed point.
//!
//! What must stay true: integers only, so that every replica finds the same; what is left never grows with time, and is exactly half
//! after one half-life. The error is below 2^-56 of the whole (a unit test compares it with floating point).

/// 1 in fixed point.
pub const ONE: u64 = 1 << BITS;
const BITS: u32 = 62;
/// The natural logarithm of 2.
const LN_2: u128 = 3_196_577_161_300_663_915;
/// Terms of the series of e^-y: for y up to ln 2 the first one left out is below 2^-62.
const TERMS: u128 = 19;

/// The part that is left after `elapsed_ms`, of [`ONE`]. A half-life of 0 leaves nothing.
#[must_use]
pub fn left_after(elapsed_ms: u64, half_life_ms: u64) -> u64 {
    if half_life_ms == 0 {
        return 0;
    }
    let halvings = elapsed_ms / half_life_ms;
    if halvings >= u64::from(BITS) {
        return 0;
    }
    let one = u128::from(ONE);
    let fraction = (u128::from(elapsed_ms % half_life_ms) << BITS) / u128::from(half_life_ms);
    let exponent = (fraction * LN_2) >> BITS;
    // e^-y = 1 - y (1 - y/2 (1 - y/3 (...))), from the inside.
    let left = (1..=TERMS).rev().fold(one, |left, term| one - ((exponent * left) >> BITS) / term);
    (left >> halvings) as u64
}

/// `amount` times a part of [`ONE`], rounded to the nearest.
#[must_use]
pub fn part_of(amount: u64, part: u64) -> u64 {
    let exact = u128::from(amount) * u128::from(part) + u128::from(ONE / 2);
    u64::try_from(exact >> BITS).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn half_is_left_after_each_half_life() {
        for half_life_ms in [1, 1_000, 10_000, 7 * DAY_MS, 365 * DAY_MS] {
            for times in 0..70 {
                let expected = if times < u64::from(BITS) { ONE >> times } else { 0 };
                assert_eq!(left_after(times * half_life_ms, half_life_ms), expected, "{times} × {half_life_ms}");
            }
        }
    }

    #[test]
    fn the_error_is_below_that_of_floating_point() {
        for half_life_ms in [10_000, DAY_MS, 7 * DAY_MS, 365 * DAY_MS] {
            for step in 0..10_000_u64 {
                let elapsed_ms = step * half_life_ms / 1_000 + step % 7;
                let exact = (-(elapsed_ms as f64) / half_life_ms as f64).exp2();
                let found = left_after(elapsed_ms, half_life_ms) as f64 / ONE as f64;
                assert!((found - exact).abs() < 1e-15, "{elapsed_ms} of {half_life_ms}: {found} is not {exact}");
            }
        }
        // A millisecond of a long half-life is not lost.
        let gone = (ONE - left_after(1, 30 * DAY_MS)) as f64 / ONE as f64;
        let exact = std::f64::consts::LN_2 / (30 * DAY_MS) as f64;
        assert!((gone / exact - 1.0).abs() < 1e-6, "{gone} is not {exact}");
    }

    #[test]
    fn never_more_is_left_later() {
        for half_life_ms in [1_000, 12_345, DAY_MS] {
            let left: Vec<u64> = (0..5_000).map(|step| left_after(step * half_life_ms / 777, half_life_ms)).collect();
            assert!(left.is_sorted_by(|earlier, later| earlier >= later));
        }
    }
}
