//! Lines of the kernel's log, as the driver writes them, and as nobody should.

use muster_node_core::health::kmsg::{self, PROCESS_MAX};
use muster_node_core::health::{KernelEvent, KernelXid, PciAddress, RecoveryAction, TEXT_MAX, Xid};
use proptest::prelude::*;

const PCI: PciAddress = PciAddress { domain: 0, bus: 0x17, device: 0 };

fn read(line: &str) -> Option<KernelXid> {
    match kmsg::parse_line(line) {
        Some(KernelEvent::Xid(xid)) => Some(xid),
        _ => None,
    }
}

#[test]
fn every_form_of_an_xid_is_read() {
    let xid = |gpu_instance, code, pid, process: Option<&str>, text: &str| {
        let process = process.map(str::to_owned);
        Some(KernelXid { pci: PCI, gpu_instance, code: Xid(code), pid, process, text: text.to_owned() })
    };
    for (line, expected) in [
        (
            "NVRM: Xid (PCI:0000:17:00 GPU-I:05): 94, pid=123, name=python, Ch 00000008",
            xid(Some(5), 94, Some(123), Some("python"), "Ch 00000008"),
        ),
        // The driver writes instances in decimal: this is the thirteenth, not the nineteenth.
        (
            "NVRM: Xid (PCI:0000:17:00 GPU-I:13 GPU-CI:00): 13, pid=9, name=a, Graphics Exception",
            xid(Some(13), 13, Some(9), Some("a"), "Graphics Exception"),
        ),
        (
            "NVRM: Xid (PCI:0000:17:00): 94, pid=7062, Contained: CE User Channel (0x9). RST: No",
            xid(None, 94, Some(7062), None, "Contained: CE User Channel (0x9). RST: No"),
        ),
        (
            "NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            xid(None, 79, None, None, "GPU has fallen off the bus."),
        ),
        ("NVRM: Xid (0000:17:00): 14, Channel 00000001", xid(None, 14, None, None, "Channel 00000001")),
        ("[  888.328156] NVRM: Xid (PCI:0000:17:00.0): 79, ", xid(None, 79, None, None, "")),
        ("<3>[  888.328156] NVRM: Xid (PCI:0000:17:00): 62", xid(None, 62, None, None, "")),
        // What is none.
        ("NVRM: Xid (PCI:0000:17:00): many, pid=1", None),
        ("NVRM: Xid (PCI:0000:17:00 GPU-I:x): 94, pid=1", None),
        ("NVRM: Xid (PCI:0000:17:99): 94, pid=1", None),
        ("NVRM: Xid (PCI:0000:17:00): 70000, pid=1", None),
        ("NVRM: rcdbAddRmGpuDump: GPU lost, skipping crash dump", None),
        ("NVRM: GPU at PCI:0000:17:00: GPU-f1648d72-c7c8-9814-2832-7a062b009188", None),
        // A process whose name is the driver's words, and a line that only quotes them.
        ("NVRM: Xid (PCI:[123]: segfault at 0 ip 0 sp 0 error 4", None),
        ("python: NVRM: Xid (PCI:0000:17:00): 79, gone", None),
    ] {
        assert_eq!(read(line), expected, "{line}");
    }
}

#[test]
fn a_card_that_fell_off_the_bus_is_read() {
    for line in [
        "NVRM: GPU at PCI:0000:17:00 has fallen off the bus.",
        "NVRM: GPU at PCI:0000:17:00: GPU-f1648d72 has fallen off the bus.",
        "NVRM: GPU 0000:17:00.0: GPU has fallen off the bus.",
        "[ 1.5] NVRM: GPU at PCI:0000:17:00.0: GPU has fallen off the bus",
    ] {
        assert_eq!(kmsg::parse_line(line), Some(KernelEvent::FellOffTheBus(PCI)), "{line}");
    }
}

#[test]
fn a_record_of_the_kernel_is_read_and_one_of_a_user_is_not() {
    let message = "NVRM: Xid (PCI:0000:17:00): 79, gone";
    let record =
        kmsg::parse_record(&format!("3,1234,5678901,-;{message}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:17:00.0\n"));
    let record = record.expect("a record");
    assert_eq!((record.seq, record.since_boot_us), (1234, 5_678_901));
    assert!(matches!(record.event, KernelEvent::Xid(xid) if xid.text == "gone"));
    // Facility 1: what a user writes to /dev/kmsg.
    assert_eq!(kmsg::parse_record(&format!("11,1234,5678901,-;{message}")), None);
    for broken in ["", ";", "3;x", "3,1;x", "a,b,c,-;x", "3,1,2,-", &format!("3,1,2,-; {message}")] {
        assert_eq!(kmsg::parse_record(broken), None, "{broken}");
    }
}

#[test]
fn the_recovery_action_is_read_by_its_words_then_by_its_number() {
    for (change, expected) in [
        ("0x0 (None) to 0x1 (GPU Reset Required)", Some(RecoveryAction::GpuReset)),
        ("0x0 (None) to 0x2 (Node Reboot Required)", Some(RecoveryAction::NodeReboot)),
        ("0x0 (None) to 0x4 (Drain and Reset)", Some(RecoveryAction::DrainAndReset)),
        // A driver branch that numbers otherwise.
        ("0x0 (None) to 0x1 (Drain and Reset)", Some(RecoveryAction::DrainAndReset)),
        ("0x0 (None) to 0x3 (Drain P2P)", Some(RecoveryAction::DrainP2p)),
        ("0x1 (GPU Reset Required) to 0x0 (None)", Some(RecoveryAction::None)),
        ("0x0 (None) to 0x1 (PF FLR)", Some(RecoveryAction::GpuReset)),
        ("0x0 (None) to 0x2 (OS Reboot)", Some(RecoveryAction::NodeReboot)),
        ("None to Node Reboot Required", Some(RecoveryAction::NodeReboot)),
        ("0x0 (None) to 0x9 (Something)", Some(RecoveryAction::Unknown(9))),
        ("0x0 (None) to something", None),
        ("0x0 (None)", None),
    ] {
        let text = format!("GPU recovery action changed from {change}");
        assert_eq!(RecoveryAction::from_kernel_text(&text), expected, "{text}");
    }
}

#[test]
fn addresses_have_one_value_each() {
    for text in ["0000:17:00", "PCI:0000:17:00", "00000000:17:00.0", "17:00.0", "PCI:0:17:0"] {
        assert_eq!(text.parse(), Ok(PCI), "{text}");
    }
    for text in ["", "PCI:", "17", "0:0:17:00", "0000:117:00", "0000:17:20", "0000:17:00.8", "0000:1g:00", "+0:17:00"] {
        assert!(text.parse::<PciAddress>().is_err(), "{text}");
    }
    assert_eq!(PCI.to_string(), "0000:17:00");
}

/// The driver's words, garbage, and mixtures of both.
fn any_line() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "NVRM: ",
        "Xid (",
        "PCI:",
        "0000:17:00",
        " GPU-I:",
        "05",
        "): ",
        "94",
        ", ",
        "pid=",
        "123",
        "'<unknown>'",
        "name=",
        "GPU ",
        "at ",
        "has fallen off the bus",
        "[ 1.0] ",
        "<6>",
        "3,1,2,-;",
        ";",
        "\n",
        "é",
        "\u{0}",
        ":",
        ".",
        "(",
        "154",
        "GPU recovery action changed from 0x0 (None) to 0x1 (",
        "GPU Reset Required)",
    ]);
    let part = prop_oneof![4 => words.prop_map(str::to_owned), 1 => any::<String>(), 1 => "[a-z]{0,600}"];
    let begun = prop_oneof![Just(""), Just("NVRM: Xid ("), Just("NVRM: Xid (PCI:0000:17:00): 94, pid=1, name=")];
    (begun, prop::collection::vec(part, 0..12)).prop_map(|(begun, parts)| begun.to_owned() + &parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn any_line_is_read_without_a_panic_and_bounded(line in any_line()) {
        let record = kmsg::parse_record(&format!("3,1,2,-;{line}")).map(|record| record.event);
        let _ = kmsg::parse_record(&line);
        for event in [kmsg::parse_line(&line), record].into_iter().flatten() {
            if let KernelEvent::Xid(xid) = event {
                prop_assert!(xid.text.len() <= TEXT_MAX);
                prop_assert!(xid.process.is_none_or(|name| name.len() <= PROCESS_MAX));
            }
        }
        let _ = RecoveryAction::from_kernel_text(&line);
    }

    #[test]
    fn what_the_driver_writes_is_read_back(
        domain in 0..0x1_0000_u32, bus in any::<u8>(), device in 0..32_u8, instance in prop::option::of(0..100_u8),
        code in any::<u16>(), process in prop::option::of((1..4_000_000_u32, "[a-z_][a-z_0-9:/-]{0,14}")), text in "[A-Za-z0-9 (.]{0,40}",
    ) {
        let pci = PciAddress { domain, bus, device };
        let place = instance.map_or(String::new(), |instance| format!(" GPU-I:{instance:02}"));
        let named = process.as_ref().map_or(String::new(), |(pid, name)| format!("pid={pid}, name={name}, "));
        let line = format!("NVRM: Xid (PCI:{pci}{place}): {code}, {named}{text}");
        let (pid, process) = process.map_or((None, None), |(pid, name)| (Some(pid), Some(name)));
        let text = text.trim_start().to_owned();
        prop_assert_eq!(read(&line), Some(KernelXid { pci, gpu_instance: instance, code: Xid(code), pid, process, text }));
    }
}
