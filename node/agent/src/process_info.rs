//! Whose a process is, and what it runs, for people.
//!
//! What must stay true: a process that has gone has answers too, since it may go at any moment.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// NVIDIA's MPS server and its control daemon, as the kernel names them, which cuts names to 15 bytes.
const MPS_NAME: &str = "nvidia-cuda-mps";

/// The name of its user, or the number where the host knows no name.
pub(crate) fn user(pid: u32) -> String {
    let Ok(owner) = fs::metadata(format!("/proc/{pid}")) else { return "unknown".to_owned() };
    let user = nix::unistd::User::from_uid(owner.uid().into()).ok().flatten();
    user.map_or_else(|| owner.uid().to_string(), |user| user.name)
}

/// Its command line.
pub(crate) fn command(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    // The kernel's own threads, and processes that have gone, have none.
    if words.trim().is_empty() { name(pid) } else { words.trim().to_owned() }
}

/// `alice: python train.py`.
pub(crate) fn user_and_command(pid: u32) -> String {
    format!("{}: {}", user(pid), command(pid))
}

/// Whether it is a server of MPS, or its control daemon: the driver's own.
pub(crate) fn is_mps_server(pid: u32) -> bool {
    name(pid).starts_with(MPS_NAME)
}

/// As the kernel calls it.
fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_and_one_that_has_gone_too() {
        let own = std::process::id();
        let words: Vec<String> = std::env::args().collect();
        assert!(user_and_command(own).contains(&words[0]), "{}", user_and_command(own));
        assert!(!is_mps_server(own));
        // The largest number that a kernel gives is below 2^22.
        assert_eq!(user_and_command(u32::MAX), "unknown: ");
    }
}
