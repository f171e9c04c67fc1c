//! Several processes on one host, and a host that outlives them.

use crate::host::{G1, Host, IN_USE, OK};
use muster_gpu_double::{FOLDER_VARIABLE, Fleet, library_beside};
use nvml_wrapper::Nvml;
use std::process::{Command, Stdio};

/// In a process of its own: makes one instance, or holds a card until it is killed. Elsewhere it does nothing.
#[test]
fn child() {
    let Ok(does) = std::env::var("DOUBLE_TEST_CHILD") else { return };
    let library = library_beside(&std::env::current_exe().unwrap()).unwrap();
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().expect("by the environment variable");
    let device = nvml.device_by_index(0).unwrap();
    if does == "hold" {
        println!("holds");
        std::thread::sleep(std::time::Duration::from_secs(60));
        return;
    }
    // SAFETY: loading the double runs nothing, and the pointers are valid.
    unsafe {
        let raw = nvml_wrapper_sys::bindings::NvmlLib::new(&library).unwrap();
        let mut gpu = std::ptr::null_mut();
        let code = raw.nvmlDeviceCreateGpuInstance(device.handle(), G1, &mut gpu);
        println!("made {code}");
    }
}

fn start(host: &Host, does: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "shared::child", "--nocapture"]).env(FOLDER_VARIABLE, host.folder.path());
    command.env("DOUBLE_TEST_CHILD", does).stdout(Stdio::piped());
    command
}

#[test]
fn processes_share_one_state_and_no_change_is_lost() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    let children: Vec<_> = (0..9).map(|_| start(&host, "make").spawn().unwrap()).collect();
    let outputs = children.into_iter().map(|child| child.wait_with_output().unwrap().stdout);
    let texts: Vec<String> = outputs.map(|output| String::from_utf8_lossy(&output).into_owned()).collect();
    let made = |text: &&String| text.contains("made 0");
    assert_eq!(texts.iter().filter(made).count(), 7, "{texts:?}");
    assert_eq!(texts.iter().filter(|text| text.contains("made 23")).count(), 2, "{texts:?}");
    let instances = host.faults.fleet().unwrap().cards.remove(0).mig.instances;
    assert_eq!(instances.iter().map(|gpu| gpu.id).collect::<Vec<_>>(), [7, 8, 9, 10, 11, 12, 13]);
    assert!(instances.windows(2).all(|pair| pair[0].serial != pair[1].serial));
}

#[test]
fn another_process_with_nvml_open_blocks_the_mode_until_it_ends() {
    use std::io::{BufRead, BufReader};
    let host = Host::new(&Fleet::h100(1));
    let mut other = start(&host, "hold").spawn().unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("holds")));
    assert_eq!(host.set_mig(0, true), IN_USE);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(host.set_mig(0, true), OK);
}

#[test]
fn a_host_outlives_whoever_has_it_open() {
    let host = Host::new(&Fleet::h100(1).with_mig());
    host.make_at(0, G1, 3, 1).unwrap();
    let Host { nvml, raw, folder, library, .. } = host;
    drop((nvml, raw));
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    assert_eq!(nvml.device_by_index(0).unwrap().mig_mode().unwrap().current, 1);
    let faults = muster_gpu_double::Faults::open(folder.path()).unwrap();
    let fleet = faults.fleet().unwrap();
    assert_eq!(fleet.cards[0].mig.instances[0].start, 3);
    assert_eq!(fleet.cards[0].clients.len(), 1, "only who has it open now");
}

#[test]
fn a_file_edited_by_hand_counts_at_once() {
    let host = Host::new(&Fleet::h100(1));
    let card = host.nvml.device_by_index(0).unwrap();
    assert_eq!(card.power_usage().unwrap(), 70_000);
    let path = host.folder.path().join("fleet.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("\"power_mw\": 70000", "\"power_mw\": 71000");
    std::fs::write(&path, text).unwrap();
    assert_eq!(card.power_usage().unwrap(), 71_000);
}
