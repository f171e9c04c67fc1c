//! Stands in for `nvidia-smi`; see `muster_gpu_double::standin::smi`.

use muster_gpu_double::standin::{folder, smi};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = std::env::current_exe().ok().and_then(|exe| folder(&exe));
    let printed = smi::run(&arguments, folder.as_deref());
    print!("{}", printed.text);
    ExitCode::from(printed.status)
}
