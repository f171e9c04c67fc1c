//! What a process inside a sandbox tries. Each exits with 0 where the sandbox held.
//!
//! What must stay true: nothing here is left behind on the host, whether it holds or not.

use super::super::confine::Rules;
use super::super::sys;
use super::{LIMITS, NOBODY};
use muster_model::PortBlock;
use muster_model::ports::PORT_BLOCKS;
use nix::unistd::{ForkResult, fork};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The name of a device in the folder of a task.
pub(super) const DEVICE: &str = "device";
/// The name of a socket of the host, and the ports of the host that tasks must not reach: one that is nobody's, and one that is another job's.
pub(super) static SOCKET: OnceLock<String> = OnceLock::new();
pub(super) static PORTS: OnceLock<[u16; 2]> = OnceLock::new();
/// Ports of its own, for what is tried.
pub(super) const OWN: PortBlock = PortBlock(PORT_BLOCKS - 1);

fn as_code(holds: bool) -> i32 {
    i32::from(!holds)
}

pub(super) fn sees_nobody() -> i32 {
    let numbers = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u32>().ok();
    let seen = std::fs::read_dir("/proc").map(|all| all.filter_map(numbers).count());
    as_code(seen.is_ok_and(|seen| seen <= 2) && nix::unistd::getppid().as_raw() == 0)
}

pub(super) fn is_no_root() -> i32 {
    let cannot = nix::unistd::setuid(nix::unistd::Uid::from_raw(0)).is_err();
    as_code(nix::unistd::getuid().as_raw() == NOBODY && cannot)
}

pub(super) fn cannot_write() -> i32 {
    let here = |path: &str| File::create(path).is_err_and(|error| error.raw_os_error() == Some(libc::EROFS));
    as_code(here("/muster-probe") && here("/var/muster-probe") && File::create("/tmp/muster-probe").is_ok())
}

pub(super) fn has_no_devices() -> i32 {
    let made = nix::sys::stat::mknod(
        "/tmp/muster-device",
        nix::sys::stat::SFlag::S_IFCHR,
        nix::sys::stat::Mode::S_IRUSR,
        nix::sys::stat::makedev(1, 1),
    );
    let usual =
        ["full", "null", "ptmx", "pts", "random", "shm", "fd", "stdin", "stdout", "stderr", "tty", "urandom", "zero"];
    let known = |entry: io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| usual.iter().any(|name| entry.file_name() == *name))
    };
    as_code(made.is_err() && std::fs::read_dir("/dev").is_ok_and(|mut all| all.all(known)))
}

pub(super) fn opens_no_device() -> i32 {
    let refused = File::open(DEVICE).is_err_and(|error| error.raw_os_error() == Some(libc::EPERM));
    as_code(refused && File::open("/dev/null").is_ok())
}

pub(super) fn reaches_no_socket() -> i32 {
    let address = SOCKET.get().and_then(|name| SocketAddr::from_abstract_name(name).ok());
    as_code(address.is_some_and(|address| UnixStream::connect_addr(&address).is_err()))
}

pub(super) fn is_filtered() -> i32 {
    let refused = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER) == Err(nix::Error::EPERM);
    as_code(refused)
}

pub(super) fn fills_memory() -> i32 {
    let filled = vec![1_u8; 200 << 20];
    i32::from(std::hint::black_box(&filled).len() != 200 << 20)
}

pub(super) fn cannot_fork_for_ever() -> i32 {
    for _ in 0..LIMITS.pids_max * 2 {
        // SAFETY: a process inside has one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { .. }) => {}
            Ok(ForkResult::Child) => {
                std::thread::sleep(Duration::from_secs(5));
                sys::exit_now(0)
            }
            Err(_) => return 0,
        }
    }
    1
}

pub(super) fn spins() -> i32 {
    let (begun, period) = (Instant::now(), Duration::from_millis(500));
    while begun.elapsed() < period {
        std::hint::spin_loop();
    }
    let used = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    let used_us = used.map_or(i64::MAX, |used| used.user_time().tv_sec() * 1_000_000 + used.user_time().tv_usec());
    as_code(used_us < period.as_micros() as i64 / 2)
}

pub(super) fn leaves_a_daemon() -> i32 {
    // SAFETY: a process inside has one thread.
    if let Ok(ForkResult::Child) = unsafe { fork() } {
        let _ = nix::unistd::setsid();
    }
    std::thread::sleep(Duration::from_secs(600));
    0
}

/// Under rules of its own that allow less: the task's own rules cannot be seen from inside.
pub(super) fn is_confined() -> i32 {
    let path = "/tmp/muster-probe-landlock";
    let before = File::create(path).is_ok();
    let applied = Rules::writing_below_only(Path::new("/dev")).apply();
    let refused = File::create(path).is_err_and(|error| error.raw_os_error() == Some(libc::EACCES));
    as_code(before && applied.files && refused)
}

/// The host listens, and its own loopback serves itself.
pub(super) fn has_own_network() -> i32 {
    let Some([of_nobody, _]) = PORTS.get() else { return 1 };
    let reached = TcpStream::connect((Ipv4Addr::LOCALHOST, *of_nobody)).is_ok();
    let own = TcpListener::bind((Ipv4Addr::LOCALHOST, *of_nobody))
        .and_then(|own| TcpStream::connect(own.local_addr()?))
        .is_ok();
    as_code(!reached && own)
}

/// What another job listens on, one more port of another's, and its own.
pub(super) fn keeps_to_its_ports() -> i32 {
    let Some([of_nobody, of_another]) = PORTS.get() else { return 1 };
    let refused = |result: io::Result<()>| result.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM));
    let connect = |port: u16| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(drop);
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(drop);
    let is_free = |port: &u16| listen(*port).is_ok();
    let own = (OWN.first()..=OWN.last()).any(|port| is_free(&port));
    let others = refused(connect(*of_another)) && refused(listen(*of_another));
    as_code(others && refused(listen(OWN.first() - 1)) && own && connect(*of_nobody).is_ok())
}
