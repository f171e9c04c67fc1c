//! Compiles the .proto files without a system protoc, and keeps their descriptors for the reflection service.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files =
        ["types", "plan", "jobs", "tenants", "fleet", "shards", "agents", "admin", "auth", "machines", "secrets"];
    let paths: Vec<String> = files.iter().map(|name| format!("muster/v1/{name}.proto")).collect();
    println!("cargo::rerun-if-changed=muster");
    let descriptors = protox::compile(&paths, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    std::fs::write(out.join("rpcs.rs"), rpcs(&descriptors))?;
    let mut names = prost_build::Config::new();
    names.enable_type_names();
    tonic_prost_build::configure()
        .btree_map(".")
        // What is received is held against its bounds before it is decoded.
        .codec_path("crate::bounded::Codec")
        .compile_fds_with_config(descriptors, names)?;
    Ok(())
}

/// The methods of `muster.v1` as variants of `muster_model::Rpc`: one that it lacks does not compile.
fn rpcs(descriptors: &prost_types::FileDescriptorSet) -> String {
    let mut arms = String::new();
    for service in descriptors.file.iter().filter(|file| file.package() == "muster.v1").flat_map(|file| &file.service) {
        for method in &service.method {
            let (service, method) = (service.name(), method.name());
            arms += &format!("\"/muster.v1.{service}/{method}\" => Rpc::{service}{method},\n");
        }
    }
    format!("Some(match path {{\n{arms}_ => return None,\n}})")
}
