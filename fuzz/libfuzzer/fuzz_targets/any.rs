//! Any of the targets under libFuzzer, with a nightly compiler and cargo-fuzz:
//!
//! `MUSTER_FUZZ_TARGET=selector cargo +nightly fuzz run --fuzz-dir fuzz/libfuzzer any fuzz/corpus/selector`
//!
//! What must stay true: it runs what `muster-fuzz` runs, and nothing else. New inputs go to the first folder that is named.

#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_fuzz::list::named;
use muster_fuzz::target::Target;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("MUSTER_FUZZ_TARGET").expect("MUSTER_FUZZ_TARGET names a target");
    named(&name).expect("a target of `muster-fuzz list`")
});

fuzz_target!(|input: &[u8]| (TARGET.run)(input));
