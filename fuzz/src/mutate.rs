//! Makes new inputs from kept ones.
//!
//! What must stay true: the same seed and the same kept inputs give the same inputs, on every machine; an input is bounded in size.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// An input grows no further than this. One that was kept with more is changed, and does not grow.
const BYTES_MAX: usize = 8 << 10;
/// Changes of one input, at most.
const CHANGES_MAX: usize = 6;
/// How often a piece is repeated, at most.
const REPEATS_MAX: usize = 64;
/// Bytes that stand at the borders of formats.
const BYTES: &[u8] =
    &[0x00, 0x01, 0x7f, 0x80, 0xff, b'\n', b' ', b'"', b'\'', b'/', b'.', b':', b'-', b'+', b'0', b'9', 0xc3];
/// Numbers at the borders of types and of our bounds.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "+1",
    "007",
    "127",
    "128",
    "255",
    "256",
    "65535",
    "65536",
    "999999",
    "1000000",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e309",
    "0.1",
];

/// See the module.
pub struct Mutator {
    chance: ChaCha8Rng,
}

impl Mutator {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Mutator { chance: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The next input: one of the kept ones with some changes.
    pub fn input(&mut self, kept: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
        let mut input = kept.choose(&mut self.chance).cloned().unwrap_or_default();
        for _ in 0..self.chance.gen_range(1..=CHANGES_MAX) {
            self.change(&mut input, kept, words);
        }
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, kept: &[Vec<u8>], words: &[&str]) {
        let may_grow = input.len() < BYTES_MAX;
        match self.chance.gen_range(0..11) {
            0 => self.flip(input),
            1 => self.overwrite(input),
            2 => self.cut(input),
            3 => self.number(input),
            4 => self.swap(input),
            _ if !may_grow => self.cut(input),
            5 | 6 => self.word(input, words),
            7 => self.insert_random(input),
            8 => self.repeat(input),
            9 => self.splice(input, kept),
            _ => self.word(input, words),
        }
    }

    /// A place in the input; its end is one.
    fn place(&mut self, input: &[u8]) -> usize {
        self.chance.gen_range(0..=input.len())
    }

    /// A part of the input, mostly a short one.
    fn part(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let from = self.place(input);
        let most = if self.chance.gen_ratio(1, 4) { input.len() } else { 16 };
        let length = self.chance.gen_range(0..=most.min(input.len() - from));
        from..from + length
    }

    fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
        input.splice(at..at, piece.iter().copied());
    }

    fn flip(&mut self, input: &mut [u8]) {
        if let Some(byte) = input.choose_mut(&mut self.chance) {
            *byte ^= 1 << self.chance.gen_range(0..8);
        }
    }

    fn overwrite(&mut self, input: &mut [u8]) {
        let chosen = *BYTES.choose(&mut self.chance).unwrap_or(&0);
        if let Some(byte) = input.choose_mut(&mut self.chance) {
            *byte = chosen;
        }
    }

    fn cut(&mut self, input: &mut Vec<u8>) {
        let part = self.part(input);
        input.drain(part);
    }

    /// Puts another number in the place of one, or inserts one.
    fn number(&mut self, input: &mut Vec<u8>) {
        let number = NUMBERS.choose(&mut self.chance).copied().unwrap_or("0").as_bytes();
        let at = self.place(input);
        let from = input[at..].iter().position(u8::is_ascii_digit).map_or(at, |further| at + further);
        let digits = input[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        input.splice(from..from + digits, number.iter().copied());
    }

    /// Exchanges two parts that stand side by side.
    fn swap(&mut self, input: &mut [u8]) {
        let part = self.part(input);
        let middle = self.chance.gen_range(0..=part.len());
        input[part].rotate_left(middle);
    }

    fn word(&mut self, input: &mut Vec<u8>, words: &[&str]) {
        let Some(word) = words.choose(&mut self.chance) else { return self.insert_random(input) };
        let at = self.place(input);
        Self::insert(input, at, word.as_bytes());
    }

    fn insert_random(&mut self, input: &mut Vec<u8>) {
        let (at, length) = (self.place(input), self.chance.gen_range(1..=8));
        let piece: Vec<u8> = (0..length)
            .map(|_| match self.chance.r#gen::<bool>() {
                true => self.chance.r#gen(),
                false => *BYTES.choose(&mut self.chance).unwrap_or(&0),
            })
            .collect();
        Self::insert(input, at, &piece);
    }

    /// Repeats a part, sometimes often: what nests, and what adds up.
    fn repeat(&mut self, input: &mut Vec<u8>) {
        let part = self.part(input);
        let room = BYTES_MAX.saturating_sub(input.len()) / part.len().max(1);
        let times = self.chance.gen_range(1..=REPEATS_MAX).min(room);
        let piece = input[part.clone()].repeat(times);
        Self::insert(input, part.end, &piece);
    }

    /// Puts a part of another kept input into this one.
    fn splice(&mut self, input: &mut Vec<u8>, kept: &[Vec<u8>]) {
        let Some(other) = kept.choose(&mut self.chance) else { return };
        let part = self.part(other);
        let (at, end) = (self.place(input), (part.start + BYTES_MAX).min(part.end));
        Self::insert(input, at, &other[part.start..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let kept = [b"device.model == \"h100\"".to_vec(), b"0-9,12".to_vec(), Vec::new()];
        let made = |seed| {
            let mut mutator = Mutator::new(seed);
            (0..500).map(|_| mutator.input(&kept, &["&&", "0-"])).collect::<Vec<_>>()
        };
        assert_eq!(made(7), made(7));
        assert_ne!(made(7), made(8));
        assert!(made(7).iter().all(|input| input.len() < 4 * BYTES_MAX));
    }
}
