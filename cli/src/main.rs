//! The `muster` command.
//!
//! What must stay true: the task shim is started before anything else is, so that it is as small as a process can be.

use std::process::ExitCode;

/// Most of what a control node allocates is freed by another thread, which costs the C library's allocator a fifth of the throughput.
#[global_allocator]
static ALLOCATOR: muster_cli::allocator::Allocator = muster_cli::allocator::Allocator;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == "shim") {
        let Some(never) = muster_agent::shim::main_of(words) else {
            muster_cli::output::note("usage: muster shim TASK_FOLDER (started by the agent, not by hand)");
            return ExitCode::from(muster_cli::failure::exit::INVALID);
        };
        match never {}
    }
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == muster_cli::roles::gpus::HELPER) {
        let Some(never) = muster_agent::gpu::nvml::helper::main_of(words) else {
            muster_cli::output::note("usage: muster gpu-helper NVML_LIBRARY (started by the agent, not by hand)");
            return ExitCode::from(muster_cli::failure::exit::INVALID);
        };
        match never {}
    }
    muster_cli::run()
}
