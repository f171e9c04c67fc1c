//! The kernel's log, as far as NVIDIA's driver writes it.
//!
//! What must stay true: a line is a record of `/dev/kmsg` (`level,number,microseconds,-;text`), and the text has the driver's form.

use crate::state::card::PciAddress;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The file of records, beside the fleet file; a test may put a fifo in its place.
pub(crate) const KERNEL_LOG: &str = "kmsg";

/// A record to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelLog {
    /// The text after `NVRM: `.
    pub(crate) text: String,
}

impl KernelLog {
    /// An Xid.
    #[must_use]
    pub(crate) fn xid(
        card: PciAddress,
        gpu_instance: Option<u32>,
        code: u32,
        process: Option<(u32, &str)>,
        text: &str,
    ) -> Self {
        let instance = gpu_instance.map(|id| format!(" GPU-I:{id:02}")).unwrap_or_default();
        let (pid, name) = match process {
            Some((pid, name)) => (pid.to_string(), name.to_owned()),
            None => ("'<unknown>'".to_owned(), "<unknown>".to_owned()),
        };
        let card = card.kernel();
        KernelLog { text: format!("Xid (PCI:{card}{instance}): {code}, pid={pid}, name={name}, {text}") }
    }

    /// Appends it to the log of a folder as the record of this number.
    ///
    /// # Errors
    /// The log cannot be written.
    pub(crate) fn append(&self, folder: &Path, number: u64) -> std::io::Result<()> {
        let mut log = OpenOptions::new().append(true).create(true).open(folder.join(KERNEL_LOG))?;
        writeln!(log, "3,{number},{},-;NVRM: {}", uptime_us(), self.text)
    }
}

/// Microseconds since the host booted, to a hundredth of a second.
fn uptime_us() -> u64 {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = uptime.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    (seconds.unwrap_or_default() * 1e6) as u64
}
