//! The GPU helper by itself, for tests of this crate; in production it is the hidden subcommand `muster gpu-helper`.

fn main() {
    let Some(never) = muster_agent::gpu::nvml::helper::main_of(std::env::args_os().skip(1)) else {
        eprintln!("usage: muster-gpu-helper <NVML library>");
        std::process::exit(2);
    };
    match never {}
}
