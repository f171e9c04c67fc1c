//! Readings of a card for its health: rows, memory errors, clocks, links.
//!
//! What must stay true: what cannot be read now (rows under MIG, links in MIG mode) is absent, so that nobody takes it for well or for broken.

use super::driver::{Called, Device};
use super::taken::told;
use crate::gpu::sample::Readings;
use muster_node_core::health::RemappedRows;

pub(super) fn read(device: Device) -> Called<Readings> {
    let in_mig_mode = || Ok(device.mig_mode()?.is_some_and(|mode| mode.current || mode.pending));
    let rows = told(device.remapped_rows())?.map(|(correctable, uncorrectable, pending, failed)| RemappedRows {
        pending: pending != 0,
        failed: failed != 0,
        correctable,
        uncorrectable,
    });
    // MIG mode may take links down. Somebody may have set it while they were read.
    let links_up = if in_mig_mode()? { None } else { device.links_up()? };
    let links_up = if links_up.is_some() && in_mig_mode()? { None } else { links_up };
    Ok(Readings {
        rows,
        double_bits: told(device.double_bits())?,
        clocks_event_reasons: told(device.clocks_event_reasons())?,
        links_up,
    })
}
