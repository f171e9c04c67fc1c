//! An image for the tasks of the bench: an OCI layout with the host's `sleep` and the libraries that it needs.
//!
//! What must stay true: it is made of files of this machine alone, so it runs where the bench runs, and nothing is fetched.

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "/bin/sleep";

/// Writes the layout.
pub(super) fn layout_of_sleep(at: &Path) -> Result<()> {
    let blobs = at.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    let put = |bytes: &[u8], kind: &str| -> Result<serde_json::Value> {
        let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(blobs.join(&digest), bytes)?;
        Ok(serde_json::json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len()}))
    };
    let layer = put(&layer()?, "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": []},
    });
    let config = put(&serde_json::to_vec(&config)?, "application/vnd.oci.image.config.v1+json")?;
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer],
    });
    let manifest = put(&serde_json::to_vec(&manifest)?, "application/vnd.oci.image.manifest.v1+json")?;
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [manifest]});
    std::fs::write(at.join("index.json"), serde_json::to_vec(&index)?)?;
    std::fs::write(at.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}")?;
    Ok(())
}

/// The program and its libraries, each at its own place.
fn layer() -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    builder.follow_symlinks(true);
    let mut files = BTreeSet::from([PathBuf::from(PROGRAM)]);
    let said = Command::new("ldd").arg(PROGRAM).output().context("ldd, which names the libraries of a program")?;
    let words = String::from_utf8_lossy(&said.stdout).into_owned();
    files.extend(words.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
    for file in files {
        let inside = file.strip_prefix("/").unwrap_or(&file);
        builder.append_path_with_name(&file, inside).with_context(|| format!("packing {}", file.display()))?;
    }
    Ok(builder.into_inner()?.finish()?)
}
