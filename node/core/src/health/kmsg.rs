//! Reads the lines of NVIDIA's driver in the kernel's log: a record of `/dev/kmsg`, or a line of `dmesg`.
//!
//! What must stay true: any input is read without a panic and nothing unbounded is kept; a line counts only when the driver's words stand at
//! its beginning, and a record only when the kernel wrote it (facility 0): the kernel gives what a user writes to `/dev/kmsg` another
//! facility, and a process could carry the driver's words in its name.

use super::xid::Xid;
use super::{TEXT_MAX, cut};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longest process name that is kept, in bytes; the kernel keeps 15.
pub const PROCESS_MAX: usize = 64;

const DRIVER: &str = "NVRM: ";

/// Where a card sits, without the function, as the driver writes it: `0000:17:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

/// A text that is no PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got:?} is not a PCI address like 0000:17:00")]
pub struct BadPciAddress {
    /// What was read, cut to 32 bytes.
    pub got: String,
}

impl FromStr for PciAddress {
    type Err = BadPciAddress;

    /// `0000:17:00`, `00000000:17:00.0`, or without the domain as `17:00.0`; with `PCI:` before it or not.
    fn from_str(text: &str) -> Result<Self, BadPciAddress> {
        let read = || {
            let plain = text.strip_prefix("PCI:").unwrap_or(text);
            let plain = match plain.split_once('.') {
                Some((plain, function)) => {
                    function.parse::<u8>().is_ok_and(|function| function < 8).then_some(plain)?
                }
                None => plain,
            };
            let mut parts = plain.rsplit(':');
            let (device, bus) = (hex(parts.next()?, 2)?, hex(parts.next()?, 2)?);
            let domain = parts.next().map_or(Some(0), |domain| hex(domain, 8))?;
            if parts.next().is_some() || device > 31 {
                return None;
            }
            Some(PciAddress { domain, bus: bus as u8, device: device as u8 })
        };
        read().ok_or_else(|| BadPciAddress { got: cut(text, 32) })
    }
}

/// A number of one to `digits_max` hexadecimal digits, and nothing else.
fn hex(text: &str, digits_max: usize) -> Option<u32> {
    let is_hex = !text.is_empty() && text.len() <= digits_max && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex { u32::from_str_radix(text, 16).ok() } else { None }
}

/// An Xid as the kernel's log has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelXid {
    /// Which card.
    pub pci: PciAddress,
    /// The MIG GPU instance, when the driver names one.
    pub gpu_instance: Option<u8>,
    /// The code.
    pub code: Xid,
    /// The process, when the driver names one; as the host numbers it.
    pub pid: Option<u32>,
    /// Its name, at most [`PROCESS_MAX`] bytes.
    pub process: Option<String>,
    /// What follows, at most [`TEXT_MAX`] bytes.
    pub text: String,
}

/// What the kernel's log can say of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelEvent {
    /// An Xid.
    Xid(KernelXid),
    /// The card does not answer on its bus any more.
    FellOffTheBus(PciAddress),
}

/// A record of `/dev/kmsg` that says something of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KmsgRecord {
    /// Counts the kernel's messages of this boot.
    pub seq: u64,
    /// When it was written, in microseconds since boot (CLOCK_MONOTONIC).
    pub since_boot_us: u64,
    /// What it says.
    pub event: KernelEvent,
}

/// Reads one record of `/dev/kmsg` (`6,1234,5678901,-;message`); `None` when it is of no use here.
#[must_use]
pub fn parse_record(record: &str) -> Option<KmsgRecord> {
    let (prefix, rest) = record.split_once(';')?;
    let mut fields = prefix.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let seq = fields.next()?.parse().ok()?;
    let since_boot_us = fields.next()?.parse().ok()?;
    // The lower three bits are the level, the rest the facility: 0 is the kernel's own.
    if priority >> 3 != 0 {
        return None;
    }
    Some(KmsgRecord { seq, since_boot_us, event: parse_message(rest)? })
}

/// Reads one line of `dmesg`, with `<6>` or `[  123.456789]` before it or not; `None` when it is of no use here.
#[must_use]
pub fn parse_line(line: &str) -> Option<KernelEvent> {
    let mut message = line.trim_start();
    for (open, close) in [('<', '>'), ('[', ']')] {
        if let Some(inner) = message.strip_prefix(open) {
            message = inner.split_once(close)?.1.trim_start();
        }
    }
    parse_message(message)
}

/// The message itself: its first line, since a record of `/dev/kmsg` goes on with the device's properties.
fn parse_message(message: &str) -> Option<KernelEvent> {
    let said = message.lines().next()?.strip_prefix(DRIVER)?;
    if let Some(xid) = said.strip_prefix("Xid (") {
        return parse_xid(xid).map(KernelEvent::Xid);
    }
    // `GPU at PCI:0000:17:00 has fallen off the bus` and `GPU 0000:17:00.0: GPU has fallen off the bus.`
    let gpu = said.strip_prefix("GPU ")?;
    let gpu = gpu.strip_prefix("at ").unwrap_or(gpu);
    let (address, rest) = gpu.split_once(' ')?;
    let pci = address.trim_end_matches([':', ',', ';']).parse().ok()?;
    rest.contains("fallen off the bus").then_some(KernelEvent::FellOffTheBus(pci))
}

/// What follows `Xid (`: `PCI:0000:17:00 GPU-I:05 GPU-CI:01): 94, pid=123, name=python, Ch 00000008`. The address is hexadecimal, the numbers
/// of the instances are decimal (open-gpu-kernel-modules, `kernel_rc.c`).
fn parse_xid(text: &str) -> Option<KernelXid> {
    let (place, rest) = text.split_once("): ")?;
    let mut words = place.split(' ').filter(|word| !word.is_empty());
    let pci = words.next()?.parse().ok()?;
    let mut gpu_instance = None;
    for word in words {
        if let Some(instance) = word.strip_prefix("GPU-I:") {
            gpu_instance = Some(instance.parse().ok()?);
        }
    }
    let (code, mut rest) = rest.split_once(',').unwrap_or((rest, ""));
    let code = Xid(code.trim().parse().ok()?);
    let (mut pid, mut process) = (None, None);
    rest = rest.trim_start();
    if let Some(after) = rest.strip_prefix("pid=") {
        let (number, after) = after.split_once(',').unwrap_or((after, ""));
        pid = number.trim().trim_matches('\'').parse().ok().filter(|pid| *pid > 0);
        rest = after.trim_start();
        if let Some(after) = rest.strip_prefix("name=") {
            let (name, after) = after.split_once(',').unwrap_or((after, ""));
            let name = name.trim().trim_matches('\'');
            process = (!name.is_empty() && name != "<unknown>").then(|| cut(name, PROCESS_MAX));
            rest = after.trim_start();
        }
    }
    Some(KernelXid { pci, gpu_instance, code, pid, process, text: cut(rest, TEXT_MAX) })
}
