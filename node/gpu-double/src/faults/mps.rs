//! Clients of MPS servers, and their faults.
//!
//! What must stay true: a server that has ended takes nobody.

use super::Faults;
use crate::files::{DoubleError, name_of, started_ticks};
use crate::state::card::{Card, MIB, Process, ProcessKind};
use crate::state::mps::{MEMORY_VARIABLE, MpsClient, MpsServer, THREADS_VARIABLE};
use crate::state::refusal::Refusal;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What the context of a client takes of its card, in bytes.
const CONTEXT_BYTES: u64 = 300 * MIB;

/// Whether the server of a pipe folder lives.
fn is_at(server: &MpsServer, pipe: &Path) -> bool {
    Path::new(&server.pipe) == pipe && started_ticks(server.pid).is_some()
}

/// A process as CUDA in it would introduce itself to a server.
fn client_of(pid: u32) -> Option<MpsClient> {
    let started_ticks = Some(started_ticks(pid)?);
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let words = environment.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok()?.split_once('='));
    let limits = words.filter(|(name, _)| [MEMORY_VARIABLE, THREADS_VARIABLE].contains(name));
    let env = limits.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Some(MpsClient { pid, uid, env, started_ticks })
}

impl Faults {
    /// A client joins the MPS server of a pipe folder.
    ///
    /// # Errors
    /// The server is not there, or takes nobody after a fault; see [`Faults::hang`].
    pub fn mps_join(&self, pipe: &Path, pid: u32) -> Result<(), DoubleError> {
        self.change_mps(pipe, |server| server.join(pid))
    }

    /// A real process becomes a client of the MPS server of a pipe folder, as CUDA in it would: with its user and the limits of its environment. From
    /// then on the card lists it with the memory of a context.
    ///
    /// # Errors
    /// There is no such process, or the server is not there or does not take it; see [`Faults::hang`].
    pub fn mps_connect(&self, pipe: &Path, pid: u32) -> Result<(), DoubleError> {
        let client = client_of(pid).ok_or(Refusal::NotFound)?;
        self.change(|state| {
            let server = state.fleet.mps.iter_mut().find(|server| is_at(server, pipe)).ok_or(Refusal::NotFound)?;
            server.join_as(&client)?;
            let server = server.pid;
            let on_card = |card: &&mut Card| card.processes.iter().any(|process| process.pid == server);
            let card = state.fleet.cards.iter_mut().find(on_card).ok_or(Refusal::NotFound)?;
            let (kind, memory_bytes) = (ProcessKind::Mps, CONTEXT_BYTES);
            let name = name_of(pid).unwrap_or_default();
            let started_ticks = client.started_ticks;
            card.processes.push(Process { pid, name, kind, memory_bytes, started_ticks, ..Process::default() });
            Ok(())
        })
    }

    /// A client of an MPS server allocates memory of its card.
    ///
    /// # Errors
    /// It is no client, or it asks for more than it was granted, or than is free; see [`Faults::hang`].
    pub fn mps_allocate(&self, pipe: &Path, pid: u32, bytes: u64) -> Result<(), DoubleError> {
        self.change(|state| {
            let server = state.fleet.mps.iter().find(|server| is_at(server, pipe)).ok_or(Refusal::NotFound)?;
            let granted = server.granted.get(&pid).ok_or(Refusal::NotFound)?.memory_bytes;
            let is_it = |process: &Process| process.pid == pid && process.kind == ProcessKind::Mps;
            let card = state.fleet.cards.iter_mut().find(|card| card.processes.iter().any(is_it));
            let card = card.ok_or(Refusal::NotFound)?;
            let free = card.memory().free;
            let process = card.processes.iter_mut().find(|process| is_it(process)).ok_or(Refusal::NotFound)?;
            let after = process.memory_bytes.saturating_add(bytes);
            if bytes > free || granted.is_some_and(|granted| after > granted) {
                return Err(Refusal::Memory.into());
            }
            process.memory_bytes = after;
            Ok(())
        })
    }

    /// A client leaves the MPS server of a pipe folder.
    ///
    /// # Errors
    /// The server is not there; see [`Faults::hang`].
    pub fn mps_leave(&self, pipe: &Path, pid: u32) -> Result<(), DoubleError> {
        self.change_mps(pipe, |server| {
            server.leave(pid);
            Ok(())
        })
    }

    /// A fatal fault of a client of the MPS server of a pipe folder.
    ///
    /// # Errors
    /// The server is not there; see [`Faults::hang`].
    pub fn mps_fault(&self, pipe: &Path) -> Result<(), DoubleError> {
        self.change_mps(pipe, |server| {
            server.fail();
            Ok(())
        })
    }

    /// Changes the MPS servers.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn change_servers<T>(&self, change: impl FnOnce(&mut Vec<MpsServer>) -> T) -> Result<T, DoubleError> {
        self.change(|state| Ok(change(&mut state.fleet.mps)))
    }

    fn change_mps(
        &self,
        pipe: &Path,
        change: impl FnOnce(&mut MpsServer) -> Result<(), Refusal>,
    ) -> Result<(), DoubleError> {
        self.change(|state| {
            let server = state.fleet.mps.iter_mut().find(|server| is_at(server, pipe));
            Ok(change(server.ok_or(Refusal::NotFound)?)?)
        })
    }
}
