//! Gives the built library NVML's soname, so that it stands for `libnvidia-ml.so.1` wherever that is looked for by name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
}
