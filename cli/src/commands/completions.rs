//! `muster completions`.

use crate::failure::Failure;
use crate::output::{Colour, Format, Out};
use clap_complete::env::Shells;

/// The variable by which a shell asks.
pub(crate) const VARIABLE: &str = "MUSTER_COMPLETE";

/// Prints the script; it asks this binary whenever something is completed.
///
/// # Errors
/// When standard output is closed.
pub fn run(shell: clap_complete::Shell) -> Result<(), Failure> {
    let shells = Shells::builtins();
    let shell =
        shells.completer(&shell.to_string()).ok_or_else(|| Failure::Usage(format!("{shell} is not supported")))?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "muster", "muster", "muster", &mut script)
        .map_err(|error| Failure::io("writing the script", error))?;
    Out::new(Format::Table, Colour::Never).bytes(&script)
}
