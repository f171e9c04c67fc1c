//! Where the built library is.
//!
//! What must stay true: a library that lies in `FOLDER/lib` beside a fleet file serves that folder without any environment variable, so
//! tests of one process may each have their own host.

use crate::files::{DoubleError, FLEET};
use std::fs;
use std::path::{Path, PathBuf};

/// The environment variable that names the folder.
pub const FOLDER_VARIABLE: &str = "MUSTER_GPU_DOUBLE";

/// The library's file, as Cargo builds it. Its soname is `libnvidia-ml.so.1`.
pub const LIBRARY_FILE: &str = "libmuster_gpu_double.so";

/// The built library beside an executable, in `deps` below its folder, or beside that: where Cargo puts it for binaries and for tests.
#[must_use]
pub fn library_beside(exe: &Path) -> Option<PathBuf> {
    let beside = exe.parent()?;
    let folders = [Some(beside.to_owned()), Some(beside.join("deps")), beside.parent().map(Path::to_owned)];
    folders.into_iter().flatten().map(|folder| folder.join(LIBRARY_FILE)).find(|path| path.is_file())
}

/// Copies the built library to `FOLDER/lib/libnvidia-ml.so.1`, where it serves that folder whatever the environment says of others.
///
/// # Errors
/// The library cannot be copied.
pub fn library_into(library: &Path, folder: &Path) -> Result<PathBuf, DoubleError> {
    let path = folder.join("lib/libnvidia-ml.so.1");
    let copy = || {
        fs::create_dir_all(folder.join("lib"))?;
        fs::copy(library, &path)
    };
    copy().map(|_| path.clone()).map_err(|source| DoubleError::File { path: path.clone(), source })
}

/// The folder that the loaded library serves: the one it lies in, otherwise that of the environment. `code` is an address in it.
pub(crate) fn folder(code: usize) -> Option<PathBuf> {
    let own = path_at(code).and_then(|path| path.parent()?.parent().map(Path::to_owned));
    own.filter(|folder| folder.join(FLEET).is_file()).or_else(|| std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from))
}

/// The file that is mapped at an address of this process.
fn path_at(address: usize) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        range.and_then(|(from, to)| Some(number(from)? <= address && address < number(to)?)).unwrap_or(false)
    })?;
    line.find('/').map(|at| PathBuf::from(&line[at..]))
}
