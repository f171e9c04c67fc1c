//! `muster completions`.

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::{Colour, Format, Out};
use clap::CommandFactory;

/// Prints the script.
///
/// # Errors
/// When standard output is closed.
pub fn run(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "muster", &mut script);
    Out::new(Format::Table, Colour::Never).bytes(&script)
}
