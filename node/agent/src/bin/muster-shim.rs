//! The shim by itself, for tests of this crate; in production it is the hidden subcommand `muster shim`.

fn main() {
    let Some(never) = muster_agent::shim::main_of(std::env::args_os().skip(1)) else {
        eprintln!("usage: muster-shim <task folder>");
        std::process::exit(2);
    };
    match never {}
}
