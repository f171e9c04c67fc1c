//! What tests do to a host: faults, processes, reboots.
//!
//! What must stay true: every call changes the files under their lock and is seen by the next call of whoever has the library loaded; cards
//! are named by their slots, which a reboot does not change.

use crate::files::{
    DoubleError, FAULTS, FLEET, Folder, KERNEL_LOG, KernelLog, Snapshot, replace, started_ticks, write_root,
};
use crate::state::card::{Card, Client, Process};
use crate::state::fault::{Effect, FaultPlan, Rule, XID};
use crate::state::fleet::Fleet;
use crate::state::mps::MpsServer;
use crate::state::refusal::Refusal;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

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

impl Fleet {
    /// Writes the folder of this host: the fleet file, an empty fault file, the driver's folders, an empty kernel log.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), DoubleError> {
        let failed = |source| DoubleError::File { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        write_root(folder, self)?;
        std::fs::write(folder.join(KERNEL_LOG), []).map_err(failed)?;
        replace(folder, FAULTS, &FaultPlan::default())?;
        let mut fleet = self.clone();
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        fleet.cards.iter_mut().filter(|card| card.gauges.energy_at_ms == 0).for_each(|card| {
            card.gauges.energy_at_ms = now_ms;
        });
        // Last: by it the library knows that the folder is one.
        replace(folder, FLEET, &fleet)
    }
}

/// A host's fault file and fleet file, for whoever makes trouble.
#[derive(Debug)]
pub struct Faults {
    folder: Folder,
}

impl Faults {
    /// Of the folder that [`Fleet::write`] has made.
    ///
    /// # Errors
    /// There is no fleet file.
    pub fn open(folder: &Path) -> Result<Self, DoubleError> {
        Ok(Faults { folder: Folder::open(folder)? })
    }

    /// The host as it is now.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn fleet(&self) -> Result<Fleet, DoubleError> {
        Ok(self.folder.read()?.fleet.clone())
    }

    /// The faults as they are now.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn plan(&self) -> Result<FaultPlan, DoubleError> {
        Ok(Arc::unwrap_or_clone(self.folder.read()?).plan)
    }

    /// Every call about a card hangs.
    ///
    /// # Errors
    /// The files cannot be changed; so for all below.
    pub fn hang(&self, card: u32) -> Result<(), DoubleError> {
        self.add_rule(Rule { card: Some(card), function: None, effect: Effect::Hang })
    }

    /// Every call hangs.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn hang_all(&self) -> Result<(), DoubleError> {
        self.add_rule(Rule { card: None, function: None, effect: Effect::Hang })
    }

    /// Every call of one function hangs, for all cards.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn hang_function(&self, function: &str) -> Result<(), DoubleError> {
        self.add_rule(Rule { card: None, function: Some(function.to_owned()), effect: Effect::Hang })
    }

    /// Calls about a card, or all calls, take this long.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn slow(&self, card: Option<u32>, ms: u64) -> Result<(), DoubleError> {
        self.add_rule(Rule { card, function: None, effect: Effect::SlowMs(ms) })
    }

    /// One function fails, for a card or for all.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn fail(&self, card: Option<u32>, function: &str, refusal: Refusal) -> Result<(), DoubleError> {
        self.add_rule(Rule { card, function: Some(function.to_owned()), effect: Effect::Fail(refusal) })
    }

    /// Adds a rule; of two that fit, the older one counts.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn add_rule(&self, rule: Rule) -> Result<(), DoubleError> {
        self.change_plan(|plan| plan.rules.push(rule))
    }

    /// Lifts all rules: calls that hang return.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn lift(&self) -> Result<(), DoubleError> {
        self.change_plan(|plan| plan.rules.clear())
    }

    /// An Xid of a card, or of an instance of it: to the event sets, and to the kernel's log as the act of the first process there.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn xid(&self, card: u32, gpu: Option<u32>, compute: Option<u32>, code: u32) -> Result<(), DoubleError> {
        self.change(|state| {
            state.plan.add_event(card, XID, u64::from(code), (gpu, compute));
            self.log_xid(state, card, gpu, code)
        })
    }

    /// Another event (`nvmlEventType*`), such as 32768 for a new recovery action.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn event(&self, card: u32, kind: u64, data: u64) -> Result<(), DoubleError> {
        self.change_plan(|plan| plan.add_event(card, kind, data, (None, None)))
    }

    /// A line of the kernel's log, after `NVRM: `.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn kernel_log(&self, text: &str) -> Result<(), DoubleError> {
        self.change(|state| self.log(state, &KernelLog { text: text.to_owned() }))
    }

    /// A card falls off the bus: every call about it says so, and the kernel's log has Xid 79. After a reboot it is absent.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn lose(&self, card: u32) -> Result<(), DoubleError> {
        self.change(|state| {
            state.plan.lost.insert(card);
            self.log_xid(state, card, None, 79)
        })
    }

    /// A lost card is there again, after the next reboot if it is absent.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn find(&self, card: u32) -> Result<(), DoubleError> {
        self.change_plan(|plan| {
            plan.lost.remove(&card);
        })
    }

    /// The host reboots: instances, processes and event sets end; whoever has the library open must call `nvmlInit` again.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn reboot(&self) -> Result<(), DoubleError> {
        self.change(|state| {
            let Snapshot { fleet, plan } = state;
            fleet.reboot(|slot| plan.is_lost(slot));
            plan.events.clear();
            Ok(())
        })
    }

    /// A card is reset, as by `nvidia-smi --gpu-reset`.
    ///
    /// # Errors
    /// Somebody uses the card; see [`Faults::hang`].
    pub fn reset(&self, card: u32) -> Result<(), DoubleError> {
        self.change(|state| Ok(state.fleet.reset_card(card as usize, 0)?))
    }

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

    /// Whether callers are refused what only root may.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn no_permission(&self, is_refused: bool) -> Result<(), DoubleError> {
        self.change_plan(|plan| plan.no_permission = is_refused)
    }

    /// This driver lacks a function.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn unsupported(&self, function: &str) -> Result<(), DoubleError> {
        self.change_plan(|plan| {
            plan.unsupported.insert(function.to_owned());
        })
    }

    /// A client joins the MPS server of a pipe folder.
    ///
    /// # Errors
    /// The server is not there, or takes nobody after a fault; see [`Faults::hang`].
    pub fn mps_join(&self, pipe: &Path, pid: u32) -> Result<(), DoubleError> {
        self.change_mps(pipe, |server| server.join(pid))
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

    /// Changes anything of a card: its counters, temperatures, load, links.
    ///
    /// # Errors
    /// There is no such card; see [`Faults::hang`].
    pub fn change_card(&self, card: u32, change: impl FnOnce(&mut Card)) -> Result<(), DoubleError> {
        self.change(|state| {
            change(state.fleet.card_mut(card as usize)?);
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
            let is_there =
                |server: &&mut MpsServer| Path::new(&server.pipe) == pipe && started_ticks(server.pid).is_some();
            let server = state.fleet.mps.iter_mut().find(is_there);
            Ok(change(server.ok_or(Refusal::NotFound)?)?)
        })
    }

    fn change_plan(&self, change: impl FnOnce(&mut FaultPlan)) -> Result<(), DoubleError> {
        self.change(|state| {
            change(&mut state.plan);
            Ok(())
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Snapshot) -> Result<T, DoubleError>) -> Result<T, DoubleError> {
        self.folder.change(change)
    }

    fn log_xid(&self, state: &mut Snapshot, slot: u32, gpu: Option<u32>, code: u32) -> Result<(), DoubleError> {
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
