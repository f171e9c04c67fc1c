//! The stand-ins for NVIDIA's commands, as an agent runs them.

use crate::host::{G1, Host};
use muster_gpu_double::{Faults, Fleet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn smi(folder: &Path, arguments: &[&str]) -> (String, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvidia-smi"));
    let output = command.args(arguments).env("MUSTER_GPU_DOUBLE", folder).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
}

#[test]
fn nvidia_smi_lists_cards_and_mig_devices() {
    let host = Host::new(&Fleet::h100(2).with_mig());
    let gpu = host.make_at(0, G1, 0, 1).unwrap();
    let compute = host.make_compute(gpu, 0).unwrap();
    let (text, status) = smi(host.folder.path(), &["-L"]);
    let (card, slice) = (host.uuid(host.handle(0)), host.uuid(host.compute_info(compute).device));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("GPU 0: NVIDIA H100 80GB HBM3 (UUID: {card})"));
    assert_eq!(lines[1], format!("  MIG 1g.10gb     Device  0: (UUID: {slice})"));
    assert!(lines[2].starts_with("GPU 1: ") && lines.len() == 3 && status == 0, "{text}");
    host.faults.lose(1).unwrap();
    let (text, status) = smi(host.folder.path(), &["-L"]);
    assert!(text.contains("GPU is lost") && status == 15, "{status}: {text}");
}

#[test]
fn nvidia_smi_sets_the_time_slice() {
    let host = Host::new(&Fleet::h100(2));
    let slices = || host.faults.fleet().unwrap().cards.iter().map(|card| card.time_slice).collect::<Vec<_>>();
    let folder = host.folder.path();
    assert_eq!(smi(folder, &["compute-policy", "-i", "1", "--set-timeslice", "2"]).1, 0);
    assert_eq!(slices(), [0, 2]);
    let uuid = host.uuid(host.handle(0));
    assert_eq!(smi(folder, &["compute-policy", "--id", &uuid, "--set-timeslice=1"]).1, 0);
    assert_eq!(slices(), [1, 2]);
    assert_eq!(smi(folder, &["compute-policy", "--set-timeslice=0"]).1, 0);
    assert_eq!(slices(), [0, 0]);
    assert_eq!(smi(folder, &["compute-policy", "--set-timeslice=4"]).1, 2);
    assert_eq!(smi(folder, &["compute-policy", "-i", "9", "--set-timeslice=1"]).1, 6);
    host.faults.no_permission(true).unwrap();
    let (text, status) = smi(folder, &["compute-policy", "-i", "0", "--set-timeslice=1"]);
    assert!(text.contains("for GPU 0 : Insufficient Permissions") && status == 4, "{status}: {text}");
    assert_eq!(smi(Path::new("/nowhere"), &["-L"]).1, 9);
}

/// An MPS daemon of one card, which ends with the test.
struct Mps {
    host: Host,
}

impl Mps {
    fn new() -> Self {
        let mps = Mps { host: Host::new(&Fleet::h100(2)) };
        let output = mps.command().arg("-d").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        mps
    }

    fn command(&self) -> Command {
        let folder = self.host.folder.path();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"));
        command.env("MUSTER_GPU_DOUBLE", folder).env("CUDA_VISIBLE_DEVICES", "0");
        command.env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe")).env("CUDA_MPS_LOG_DIRECTORY", folder.join("log"));
        command
    }

    fn output(&self, commands: &str) -> Output {
        let mut child = self.command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn tell(&self, commands: &str) -> String {
        String::from_utf8(self.output(commands).stdout).unwrap()
    }

    /// Starts the server; its process id.
    fn server(&self) -> u32 {
        let list = self.tell("start_server -uid 1000\nget_server_list\n");
        list.trim().parse().unwrap_or_else(|_| panic!("one server: {list:?}"))
    }

    fn log_has(&self, file: &str, text: &str) -> bool {
        let began = Instant::now();
        while !self.host.read(file).contains(text) {
            if began.elapsed() > Duration::from_secs(5) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        let _ = self.output("quit -t 0\n");
    }
}

#[test]
fn an_mps_daemon_starts_servers_with_limits() {
    let mps = Mps::new();
    assert_eq!(mps.command().arg("-d").output().unwrap().status.code(), Some(1), "one daemon for each folder");
    assert_eq!(mps.tell("get_server_list\n"), "");
    assert_eq!(mps.tell("set_default_active_thread_percentage 25\n"), "25.0\n");
    assert_eq!(mps.tell("set_default_device_pinned_mem_limit 0 2G\n"), "");
    let server = mps.server();
    assert_eq!(mps.tell(&format!("get_server_status {server}\n")), "ACTIVE\n");
    assert!(mps.log_has("log/server.log", "Active Threads Percentage set to 25.0"));
    assert!(mps.log_has("log/server.log", "limit for device 0 set to 0x80000000 bytes"));
    assert!(mps.log_has("log/control.log", &format!("NEW SERVER {server}: Ready")));
    let listed = mps.host.nvml.device_by_index(0).unwrap().running_compute_processes().unwrap();
    assert_eq!(listed.iter().map(|process| process.pid).collect::<Vec<_>>(), [server]);
    assert!(mps.host.nvml.device_by_index(1).unwrap().running_compute_processes().unwrap().is_empty());
    assert_eq!(mps.tell("quit\n"), "");
    assert!(mps.host.nvml.device_by_index(0).unwrap().running_compute_processes().unwrap().is_empty());
    assert_eq!(mps.output("get_server_list\n").status.code(), Some(1), "the daemon has gone");
}

#[test]
fn after_a_fault_the_server_takes_nobody_until_all_have_gone() {
    let mps = Mps::new();
    let server = mps.server();
    let pipe = mps.host.folder.path().join("pipe");
    let faults: &Faults = &mps.host.faults;
    faults.mps_join(&pipe, 11).unwrap();
    faults.mps_join(&pipe, 12).unwrap();
    assert_eq!(mps.tell(&format!("get_client_list {server}\n")), "11\n12\n");
    faults.mps_fault(&pipe).unwrap();
    assert_eq!(mps.tell(&format!("get_server_status {server}\n")), "FAULT\n");
    assert!(mps.log_has("log/server.log", "fatal GPU error"));
    assert!(faults.mps_join(&pipe, 13).is_err());
    faults.mps_leave(&pipe, 11).unwrap();
    assert!(faults.mps_join(&pipe, 13).is_err(), "12 is still there");
    assert_eq!(mps.tell(&format!("terminate_client {server} 12\n")), "");
    assert_eq!(mps.tell(&format!("get_server_status {server}\n")), "ACTIVE\n");
    faults.mps_join(&pipe, 13).unwrap();
}

#[test]
fn servers_end_with_their_daemon_however_it_ends() {
    let mps = Mps::new();
    let server = mps.server();
    let daemon = mps.host.read("pipe/nvidia-cuda-mps-control.pid");
    assert!(Command::new("kill").args(["-9", &daemon]).status().unwrap().success());
    let began = Instant::now();
    while Path::new(&format!("/proc/{server}/stat")).exists()
        && !std::fs::read_to_string(format!("/proc/{server}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    {
        assert!(began.elapsed() < Duration::from_secs(5), "server {server} is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(mps.host.faults.mps_join(&mps.host.folder.path().join("pipe"), 11).is_err());
    let output = mps.command().arg("-d").output().unwrap();
    assert!(output.status.success(), "another daemon takes the folder: {output:?}");
    assert_eq!(mps.tell("get_server_list\n"), "");
}
