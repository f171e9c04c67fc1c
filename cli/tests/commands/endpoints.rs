//! Several endpoints of which one hangs: it costs little once, and nothing afterwards.

use crate::common::{Dev, Said};
use std::net::TcpListener;

#[test]
fn an_endpoint_that_hangs_is_passed_by_and_remembered() {
    let dev = Dev::start(&["--nodes", "1"]);
    // The kernel accepts connections for it and nobody answers them, as for a process that was stopped.
    let hanging = TcpListener::bind("127.0.0.1:0").expect("a port");
    hanging.set_nonblocking(true).expect("a setting");
    let good = dev.endpoints().remove(0);
    let both = format!("{},{good}", hanging.local_addr().expect("its address"));
    let home = tempfile::tempdir().expect("a folder");
    let asked = |timeout: &str| -> Said {
        let args = ["--endpoints", &both, "--timeout", timeout, "nodes", "-o", "json"];
        dev.command(&args).env("HOME", home.path()).output().expect("muster").into()
    };
    let connections = || std::iter::from_fn(|| hanging.accept().ok()).count();

    // Less than one attempt at one endpoint may take: the good one was asked while the other one hung.
    let said = asked("4s");
    assert_eq!((said.code, said.json().as_array().map(Vec::len)), (0, Some(1)), "{}", said.err);
    assert_eq!(connections(), 1);
    // The next command asks the good one first, and no other.
    assert_eq!(asked("4s").code, 0);
    assert_eq!(connections(), 0);
    // What was kept is a hint: without it, it is found again.
    std::fs::write(home.path().join(".cache/muster/endpoint"), "nonsense").expect("written");
    assert_eq!(asked("4s").code, 0);
    assert_eq!(connections(), 1);
}

#[test]
fn a_voter_that_is_stopped_is_passed_by() {
    use nix::sys::signal::{Signal, kill};
    let dev = Dev::start(&["--nodes", "1", "--voters", "3"]);
    let peers = dev.run(&["raft", "status", "-o", "json"]).json();
    let follower =
        peers.as_array().expect("three").iter().find(|peer| peer["state"] == "follower").expect("a follower");
    let address = follower["address"].as_str().expect("an address").to_owned();
    let role = dev.roles().into_iter().find(|role| role.endpoint.as_ref() == Some(&address)).expect("its process");
    let others = dev.endpoints().into_iter().filter(|endpoint| *endpoint != address).collect::<Vec<_>>();
    let endpoints = format!("{address},{}", others.join(","));
    let pid = nix::unistd::Pid::from_raw(role.pid);
    kill(pid, Signal::SIGSTOP).expect("stopped");
    let said = dev.run(&["--endpoints", &endpoints, "--timeout", "4s", "jobs"]);
    kill(pid, Signal::SIGCONT).expect("it goes on");
    assert_eq!(said.code, 0, "{}", said.err);
}
