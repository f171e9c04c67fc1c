//! Who uses a card.
//!
//! What must stay true: a real process is named with its start, so that its entry ends with it.

use super::Faults;
use crate::files::{DoubleError, started_ticks};
use crate::state::card::{Client, Process};
use crate::state::refusal::Refusal;

impl Faults {
    /// A process uses a card. It stays in the lists until it is removed, whether there is a process of this id or not.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn add_process(&self, card: u32, process: Process) -> Result<(), DoubleError> {
        self.change_card(card, |card| card.processes.push(process))
    }

    /// A real process uses a card until it ends.
    ///
    /// # Errors
    /// There is no such process; see [`Faults::hang`].
    pub fn add_real_process(&self, card: u32, process: Process) -> Result<(), DoubleError> {
        let started_ticks = Some(started_ticks(process.pid).ok_or(Refusal::NotFound)?);
        self.change_card(card, |card| card.processes.push(Process { started_ticks, ..process }))
    }

    /// A process uses a card no longer.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn remove_process(&self, card: u32, pid: u32) -> Result<(), DoubleError> {
        self.change_card(card, |card| card.processes.retain(|process| process.pid != pid))
    }

    /// The process lists of a card are empty, whoever uses it.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn hide_processes(&self, card: u32, hides: bool) -> Result<(), DoubleError> {
        self.change_plan(|plan| {
            if hides {
                plan.hides_processes.insert(card)
            } else {
                plan.hides_processes.remove(&card)
            };
        })
    }

    /// Memory in use on a card that no process holds, in bytes: what somebody left, or the idle baseline.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn set_memory_used(&self, card: u32, bytes: u64) -> Result<(), DoubleError> {
        self.change_card(card, |card| card.memory_other_bytes = bytes)
    }

    /// Another process has NVML open on a card; it blocks changes of the MIG mode and resets until it is removed.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn add_client(&self, card: u32, pid: u32) -> Result<(), DoubleError> {
        self.change_card(card, |card| card.clients.push(Client { pid, started_ticks: None }))
    }

    /// A process has closed NVML.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn remove_client(&self, pid: u32) -> Result<(), DoubleError> {
        self.change(|state| {
            state.fleet.remove_client(pid);
            Ok(())
        })
    }
}
