//! Stands in for `nvidia-cuda-mps-control`; see `muster_gpu_double::standin::mps`.

use muster_gpu_double::standin::mps;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match std::env::current_exe().and_then(|exe| mps::run(&exe, &arguments)) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("nvidia-cuda-mps-control: {error}");
            ExitCode::FAILURE
        }
    }
}
