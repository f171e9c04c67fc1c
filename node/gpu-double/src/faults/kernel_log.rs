//! What the driver writes to the kernel's log.
//!
//! What must stay true: records are numbered in the order in which they are written.

use super::Faults;
use crate::files::{DoubleError, KERNEL_LOG, KernelLog, Snapshot};

/// The kernel log's text of the Xids that tests use most.
const XID_TEXTS: &[(u32, &str)] = &[
    (13, "Graphics Exception: ESR 0x504730=0x107000e 0x504734=0x20 0x504728=0x4c1eb72 0x50472c=0x174"),
    (
        31,
        "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2c_00000000. \
          Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    ),
    (43, "Ch 00000008"),
    (45, "Ch 00000008"),
    (
        48,
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 0, subpartition 0.",
    ),
    (63, "Row Remapper: New row (0x0000000abcdef000) marked for remapping, reset gpu to activate."),
    (64, "Row Remapper: Failed to remap row"),
    (74, "NVLink: fatal error detected on link 0(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"),
    (79, "GPU has fallen off the bus."),
    (94, "Contained: SM (0x1). RST: No, D-RST: No"),
    (95, "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"),
    (
        119,
        "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20800a4c 0x4).",
    ),
];

impl Faults {
    /// A line of the kernel's log, after `NVRM: `.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn kernel_log(&self, text: &str) -> Result<(), DoubleError> {
        self.change(|state| self.log(state, &KernelLog { text: text.to_owned() }))
    }

    pub(super) fn log_xid(
        &self,
        state: &mut Snapshot,
        slot: u32,
        gpu: Option<u32>,
        code: u32,
    ) -> Result<(), DoubleError> {
        let card = state.fleet.card(slot as usize)?;
        let process = card.processes.iter().find(|process| gpu.is_none() || process.gpu_instance == gpu);
        let process = process.map(|process| (process.pid, process.name.clone()));
        let text = XID_TEXTS.iter().find(|(known, _)| *known == code).map_or("Ch 00000008", |(_, text)| text);
        let process = process.as_ref().map(|(pid, name)| (*pid, name.as_str()));
        let line = KernelLog::xid(card.pci, gpu, code, process, text);
        self.log(state, &line)
    }

    fn log(&self, state: &mut Snapshot, line: &KernelLog) -> Result<(), DoubleError> {
        let path = self.folder.path();
        line.append(path, state.plan.next_kernel_record)
            .map_err(|source| DoubleError::File { path: path.join(KERNEL_LOG), source })?;
        state.plan.next_kernel_record += 1;
        Ok(())
    }
}
