//! What an agent reads on its host: the kernel's log, its own files, the records of tasks.

use super::{headed, json_again, json_readable, read_again};
use crate::target::{Target, reached};
use muster_agent::task_folder::record::{ExitRecord, LaunchRecord, MemoryNote, ShimRecord, StartedRecord};
use muster_node_core::health::{Ledger, TEXT_MAX, kmsg};
use muster_node_core::telemetry::Figures;
use muster_node_core::{Gate, Meter};

/// See the module.
pub const TARGETS: &[Target] = &[
    Target {
        name: "kernel-log",
        what: "records of /dev/kmsg and lines of dmesg: only the kernel's own words count; what is kept is bounded",
        words: &[
            "NVRM: ",
            "Xid (PCI:0000:17:00): ",
            "79, ",
            "pid=",
            "name=",
            "GPU-I:05",
            "fallen off the bus",
            "6,1234,5678901,-;",
            "[  1.5] ",
            "<6>",
        ],
        reaches: &["record", "line", "PciAddress"],
        run: kernel_log,
    },
    Target {
        name: "agent-file",
        what: "files of an agent and records of its tasks: the first line names which, JSON follows",
        words: &[
            "launch\n",
            "exit\n",
            "meter\n",
            "ledger\n",
            "gate\n",
            "{",
            "}",
            "null",
            "\"exited\"",
            "[",
            "]",
            ":",
            ",",
        ],
        reaches: &["LaunchRecord", "ExitRecord", "StartedRecord", "Meter", "Ledger", "Gate", "Figures"],
        run: agent_file,
    },
];

fn kernel_log(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let bounded = |event: &kmsg::KernelEvent| {
        if let kmsg::KernelEvent::Xid(xid) = event {
            assert!(xid.text.len() <= TEXT_MAX, "{xid:?}");
            assert!(xid.process.as_ref().is_none_or(|name| name.len() <= kmsg::PROCESS_MAX), "{xid:?}");
            read_again::<kmsg::PciAddress>(&xid.pci.to_string()).unwrap_or_else(|| panic!("{}", xid.pci));
        }
    };
    for line in text.split('\n') {
        if let Some(record) = kmsg::parse_record(line) {
            let priority = line.split(',').next().and_then(|priority| priority.parse::<u32>().ok());
            assert!(priority.is_some_and(|priority| priority < 8), "a user has written {line:?}");
            reached("record");
            bounded(&record.event);
        }
        if let Some(event) = kmsg::parse_line(line) {
            reached("line");
            bounded(&event);
        }
        read_again::<kmsg::PciAddress>(line);
    }
}

fn agent_file(bytes: &[u8]) {
    let Some((kind, content)) = headed(bytes) else { return };
    match kind {
        "launch" => drop(json_again::<LaunchRecord>(content)),
        "exit" => drop(json_again::<ExitRecord>(content).map(|record| record.end.to_state())),
        "started" => {
            let _ = json_again::<StartedRecord>(content);
        }
        "shim" => {
            let _ = json_again::<ShimRecord>(content);
        }
        "memory-note" => drop(json_again::<MemoryNote>(content)),
        "meter" => drop(json_again::<Meter>(content)),
        "ledger" => drop(json_again::<Ledger>(content)),
        "gate" => {
            let _ = json_again::<Gate>(content);
        }
        "figures" => drop(json_readable::<Figures>(content)),
        _ => {}
    }
}
