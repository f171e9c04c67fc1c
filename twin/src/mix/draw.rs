//! Numbers drawn from a seed (SplitMix64, Steele et al., OOPSLA 2014): the same seed, the same numbers on every machine.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    /// The `stream`th stream of a seed.
    pub(crate) fn seeded(seed: u64, stream: u64) -> Self {
        let mut draw = Draw(seed);
        let first = draw.next();
        Draw(first ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..bound`; 0 when there is none.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Draw;

    #[test]
    fn draws_are_spread_over_their_range_and_streams_differ() {
        let mut counts = [0_u32; 10];
        let mut draw = Draw::seeded(7, 0);
        for _ in 0..10_000 {
            counts[draw.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert_ne!(Draw::seeded(7, 1).below(u64::MAX), Draw::seeded(7, 2).below(u64::MAX));
        assert_eq!(Draw::seeded(7, 1).below(0), 0);
    }
}
