//! What of NVIDIA's driver a program in an image needs: its libraries and tools are of the host's very version, so no image can bring them.
//!
//! What must stay true: this is the only list; what a sandbox mounts, and what the CDI specification says, are both made from it; nothing is shown that is
//! not part of the driver.

use crate::task_folder::record::{Beneath, Bind};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Libraries, by the beginning of their names: those of CUDA, of NVML, the compilers that the driver loads, and OpenCL. Each has a name with its version, and links
/// to that.
const LIBRARIES: [&str; 12] = [
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-ml.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-nvvm.so",
    "libnvidia-gpucomp.so",
    "libnvidia-cfg.so",
    "libnvidia-opencl.so",
    "libnvidia-allocator.so",
    "libnvidia-fatbinaryloader.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
];
const TOOLS: [&str; 3] = ["nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control"];
/// Where distributions keep libraries of this architecture.
const LIBRARY_FOLDERS: [&str; 7] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib64",
    "usr/local/nvidia/lib64",
];
const TOOL_FOLDERS: [&str; 2] = ["usr/bin", "usr/local/nvidia/bin"];
/// Where programs look for libraries.
pub const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// More than any driver has: a folder full of other names is not read for ever.
const FILES_MAX: usize = 128;

/// Files of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverFiles {
    /// Each with its place inside, which is its place on the host.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Folders inside in which libraries lie.
    pub library_folders: BTreeSet<PathBuf>,
}

/// Finds them below `root`: `/` where the driver is installed on the host itself.
#[must_use]
pub fn find(root: &Path) -> DriverFiles {
    let mut found = DriverFiles::default();
    let mut seen = BTreeSet::new();
    for (folders, is_one) in [
        (&LIBRARY_FOLDERS[..], is_library as fn(&str) -> bool),
        (&TOOL_FOLDERS[..], |name: &str| TOOLS.contains(&name)),
    ] {
        for folder in folders {
            // On many hosts one of these is a link to another.
            let Ok(there) = std::fs::canonicalize(root.join(folder)) else { continue };
            if seen.insert(there.clone()) {
                found.take(&there, &Path::new("/").join(folder), is_one);
            }
        }
    }
    found
}

/// `libcuda.so`, and `.1` or a version behind it.
fn is_library(name: &str) -> bool {
    let is_version = |rest: &str| {
        rest.is_empty() || rest.starts_with('.') && rest.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit())
    };
    LIBRARIES.iter().any(|library| name.strip_prefix(library).is_some_and(is_version))
}

impl DriverFiles {
    fn take(&mut self, folder: &Path, inside: &Path, is_one: fn(&str) -> bool) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| is_one(name));
        names.sort();
        for name in names {
            // Also of a link: the name of an interface, which programs look for, is a link to the version.
            let Ok(file) = std::fs::canonicalize(folder.join(&name)) else { continue };
            if !file.is_file() || self.files.len() >= FILES_MAX {
                continue;
            }
            if name.contains(".so") {
                self.library_folders.insert(inside.to_owned());
            }
            self.files.push((file, inside.join(&name)));
        }
    }

    /// As a sandbox mounts them.
    #[must_use]
    pub fn binds(&self) -> Vec<Bind> {
        let bind = |(file, inside): &(PathBuf, PathBuf)| Bind {
            source: Beneath { below: file.clone(), rest: PathBuf::new() },
            target: inside.clone(),
            read_only: true,
        };
        self.files.iter().map(bind).collect()
    }

    /// `LD_LIBRARY_PATH` with their folders behind what the image or the job says: an image's cache of libraries knows nothing of them.
    #[must_use]
    pub fn library_path(&self, said: Option<&str>) -> Option<String> {
        let folders = self.library_folders.iter().filter_map(|folder| folder.to_str());
        let all: Vec<&str> = said.into_iter().filter(|text| !text.is_empty()).chain(folders).collect();
        (!self.library_folders.is_empty()).then(|| all.join(":"))
    }
}

#[cfg(test)]
mod tests {
    use super::find;
    use std::path::PathBuf;

    #[test]
    fn libraries_with_their_links_and_tools_are_found_and_nothing_else() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir_all(at("usr/lib/x86_64-linux-gnu")).expect("made");
        std::fs::create_dir_all(at("usr/bin")).expect("made");
        std::os::unix::fs::symlink("usr/lib", at("lib")).expect("made");
        for name in ["libcuda.so.570.1", "libcudart.so.12", "libcuda.so.old", "libnvidia-ml.so.570.1", "libc.so.6"] {
            std::fs::write(at("usr/lib/x86_64-linux-gnu").join(name), name).expect("written");
        }
        std::os::unix::fs::symlink("libcuda.so.570.1", at("usr/lib/x86_64-linux-gnu/libcuda.so.1")).expect("made");
        for name in ["nvidia-smi", "nvidia-settings", "sh"] {
            std::fs::write(at("usr/bin").join(name), name).expect("written");
        }
        let found = find(root.path());
        let inside: Vec<_> = found.files.iter().map(|(_, inside)| inside.display().to_string()).collect();
        let of = |name: &str| format!("/usr/lib/x86_64-linux-gnu/{name}");
        assert_eq!(
            inside,
            [of("libcuda.so.1"), of("libcuda.so.570.1"), of("libnvidia-ml.so.570.1"), "/usr/bin/nvidia-smi".to_owned()]
        );
        assert_eq!(found.library_path(Some("/opt/x")).as_deref(), Some("/opt/x:/usr/lib/x86_64-linux-gnu"));
        assert_eq!(found.library_folders, [PathBuf::from("/usr/lib/x86_64-linux-gnu")].into());
        assert_eq!(found.binds().len(), 4);
    }
}
