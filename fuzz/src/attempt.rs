//! One run of a target on one input.
//!
//! What must stay true: a target runs with no more stack than a thread of a server has.

use crate::target::Target;
use std::any::Any;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The stack of tokio's threads.
pub const STACK_BYTES: usize = 2 << 20;
/// An input that takes longer is a fault. Kept inputs take some milliseconds, in a debug build too; the rest is for a machine that does other work.
pub const SLOW: Duration = Duration::from_secs(10);

/// Runs a target on an input.
///
/// # Errors
/// What the panic said, or how long it took.
pub fn attempt(target: &Target, input: &[u8]) -> Result<(), String> {
    let began = Instant::now();
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|panic| words(panic.as_ref()))?;
    let took = began.elapsed();
    if took > SLOW { Err(format!("it took {} s", took.as_secs())) } else { Ok(()) }
}

/// Does some work with the stack of a server's thread.
///
/// # Errors
/// What the work's panic said, or that there is no thread.
pub fn on_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let spawned = thread::Builder::new().name("fuzz".to_owned()).stack_size(STACK_BYTES).spawn(work);
    spawned.map_err(|error| error.to_string())?.join().map_err(|panic| words(panic.as_ref()))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".to_owned())
}

/// Keeps an input that failed, and gives its path.
///
/// # Errors
/// When the folder cannot be written.
pub fn keep(folder: &Path, target: &Target, input: &[u8]) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let mut name = String::from(target.name);
    let _ = write!(name, "-{:08x}", crc32fast::hash(input));
    let path = folder.join(name);
    std::fs::write(&path, input)?;
    Ok(path)
}

/// How to run one input again.
#[must_use]
pub fn again(target: &Target, path: &Path) -> String {
    format!("cargo run --locked -p muster-fuzz -- {} {}", target.name, path.display())
}
