//! What Muster gives a container on this node, written down as a CDI 0.6 specification: for people, and for `muster node doctor`.
//!
//! What must stay true: it says exactly what is mounted and which device nodes are made, from the same lists; nothing reads it back.

use super::driver_files::DriverFiles;
use crate::task_folder::record::DeviceNode;
use serde_json::{Value, json};
use std::io;
use std::path::Path;

/// The specification: one device for each GPU, by its number.
#[must_use]
pub fn spec(files: &DriverFiles, gpus: &[(u16, Vec<DeviceNode>)]) -> Value {
    let node = |node: &DeviceNode| {
        json!({
            "path": format!("/dev/{}", node.name), "type": "c", "major": node.major, "minor": node.minor,
            "fileMode": 0o666, "permissions": "rw",
        })
    };
    let device = |(gpu, nodes): &(u16, Vec<DeviceNode>)| json!({"name": gpu.to_string(), "containerEdits": {"deviceNodes": nodes.iter().map(node).collect::<Vec<_>>()}});
    let mounts: Vec<Value> = files
        .binds()
        .iter()
        .map(|bind| {
            let options = ["ro", "nosuid", "nodev", "bind"];
            json!({"hostPath": bind.source.path(), "containerPath": bind.target, "options": options})
        })
        .collect();
    let env: Vec<String> = files.library_path(None).map(|path| format!("LD_LIBRARY_PATH={path}")).into_iter().collect();
    json!({
        "cdiVersion": "0.6.0",
        "kind": "muster.dev/gpu",
        "devices": gpus.iter().map(device).collect::<Vec<_>>(),
        "containerEdits": {"mounts": mounts, "env": env},
    })
}

/// Writes it to `cdi/muster.json` of the node's data folder.
///
/// # Errors
/// When the disk refuses.
pub fn write(data: &Path, spec: &Value) -> io::Result<()> {
    let folder = data.join("cdi");
    std::fs::create_dir_all(&folder)?;
    let text = serde_json::to_vec_pretty(spec)?;
    let fresh = folder.join("muster.json.new");
    std::fs::write(&fresh, text)?;
    std::fs::rename(fresh, folder.join("muster.json"))
}

#[cfg(test)]
mod tests {
    use super::{spec, write};
    use crate::image::driver_files::DriverFiles;
    use crate::task_folder::record::DeviceNode;

    #[test]
    fn it_says_what_is_mounted() {
        let files = DriverFiles {
            files: vec![("/host/libcuda.so.1".into(), "/usr/lib64/libcuda.so.1".into())],
            library_folders: [std::path::PathBuf::from("/usr/lib64")].into(),
        };
        let said = spec(&files, &[(3, vec![DeviceNode { name: "nvidia3".into(), major: 195, minor: 3 }])]);
        assert_eq!(said["cdiVersion"], "0.6.0");
        assert_eq!(said["devices"][0]["name"], "3");
        assert_eq!(said["devices"][0]["containerEdits"]["deviceNodes"][0]["path"], "/dev/nvidia3");
        let mounts = said["containerEdits"]["mounts"].as_array().expect("mounts");
        let of_sandbox = files.binds();
        assert_eq!(mounts.len(), of_sandbox.len());
        assert_eq!(mounts[0]["hostPath"], "/host/libcuda.so.1");
        assert_eq!(mounts[0]["containerPath"], of_sandbox[0].target.to_str().expect("text"));
        let data = tempfile::tempdir().expect("a folder");
        write(data.path(), &said).expect("written");
        let read = std::fs::read(data.path().join("cdi/muster.json")).expect("there");
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&read).expect("JSON"), said);
    }
}
