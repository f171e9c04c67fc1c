//! The `muster` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    muster_cli::run()
}
