//! UUIDs that look like NVIDIA's and tell nothing.
//!
//! What must stay true: the same two numbers always give the same text, other numbers give another one, and nothing of the numbers can be
//! read from it: a MIG device's UUID says neither its card nor its place.

/// A UUID from a seed and a number that is used once.
#[must_use]
pub fn opaque(prefix: &str, seed: u64, number: u64) -> String {
    let high = mix(seed ^ mix(number.wrapping_mul(2)));
    let low = mix(seed.rotate_left(32) ^ mix(number.wrapping_mul(2).wrapping_add(1)));
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0x0fff);
    let (d, e) = (low >> 48 & 0x3fff, low & 0xffff_ffff_ffff);
    format!("{prefix}-{a:08x}-{b:04x}-5{c:03x}-{:04x}-{e:012x}", d | 0x8000)
}

/// One round of splitmix64, which sends every number to another one.
const fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
