//! The shim by itself, for tests of this crate; in production it is the hidden subcommand `muster shim`.

fn main() {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: muster-shim <task folder>");
        std::process::exit(2);
    };
    muster_agent::shim::shim_main(folder.as_ref())
}
