//! The process's use of the library: initialised or not, of which folder; and how a call passes the fault rules.
//!
//! What must stay true: no lock is held while a call waits, so a call that hangs keeps no other thread and no other process from anything;
//! a process that was initialised before a reboot is not initialised.

use super::handle::{Kind, Target};
use crate::files::{Folder, Snapshot, started_ticks};
use crate::library;
use crate::state::card::{Card, Client};
use crate::state::fault::FaultPlan;
use crate::state::fleet::Fleet;
use crate::state::refusal::{Answer, Refusal};
use nvml_wrapper_sys::bindings::nvmlDevice_t;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

struct Session {
    folder: Arc<Folder>,
    /// `nvmlInit` less `nvmlShutdown`.
    uses: u32,
    /// Of which boot.
    boot: u32,
    /// Slots of the cards that this process has opened, noted in the fleet file.
    opened: BTreeSet<usize>,
}

/// What a call sees.
pub(super) struct View {
    snapshot: Arc<Snapshot>,
    /// What it is about.
    pub(super) target: Target,
    /// Now, in Unix time.
    pub(super) now_ms: u64,
}

impl View {
    pub(super) fn fleet(&self) -> &Fleet {
        &self.snapshot.fleet
    }

    pub(super) fn plan(&self) -> &FaultPlan {
        &self.snapshot.plan
    }

    pub(super) fn card(&self) -> Answer<&Card> {
        self.snapshot.fleet.card(self.target.slot)
    }
}

/// One call of one function.
#[derive(Clone, Copy)]
pub(super) struct Call {
    function: &'static str,
}

impl Call {
    pub(super) const fn new(function: &'static str) -> Self {
        Call { function }
    }

    /// `nvmlInit`.
    pub(super) fn init(self) -> Answer<()> {
        let (known, boot) = match &*session() {
            Some(session) => (Some(Arc::clone(&session.folder)), session.boot),
            None => (None, 0),
        };
        let folder = match known {
            Some(folder) => folder,
            None => {
                let path = library::folder(Call::init as fn(Call) -> _ as usize).ok_or(Refusal::DriverNotLoaded)?;
                Arc::new(Folder::open(&path).map_err(|_| Refusal::DriverNotLoaded)?)
            }
        };
        let snapshot = self.pass(&folder, None)?;
        let mut session = session();
        match &mut *session {
            Some(open) if open.boot == boot && open.boot == snapshot.fleet.boot => open.uses += 1,
            _ => *session = Some(Session { folder, uses: 1, boot: snapshot.fleet.boot, opened: BTreeSet::new() }),
        }
        Ok(())
    }

    /// `nvmlShutdown`.
    pub(super) fn shutdown(self) -> Answer<()> {
        let folder = folder()?;
        self.pass(&folder, None)?;
        let mut guard = session();
        let open = guard.as_mut().ok_or(Refusal::Uninitialized)?;
        open.uses -= 1;
        if open.uses > 0 {
            return Ok(());
        }
        let was_client = !open.opened.is_empty();
        *guard = None;
        drop(guard);
        if was_client {
            folder.change(|state| -> Answer<()> {
                state.fleet.remove_client(std::process::id());
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A call about no card.
    pub(super) fn system(self) -> Answer<View> {
        let snapshot = self.pass(&*folder()?, None)?;
        booted(&snapshot)?;
        Ok(View { snapshot, target: Target::card(usize::MAX), now_ms: now_ms() })
    }

    /// A call about a card or a MIG device.
    pub(super) fn device(self, device: nvmlDevice_t) -> Answer<View> {
        self.target(Target::of(Kind::Device, device))
    }

    /// A call about a card or a MIG device that is still to be found; the card counts as opened by this process then.
    pub(super) fn find(self, find: impl FnOnce(&Fleet) -> Option<Target>) -> Answer<View> {
        let snapshot = folder()?.read()?;
        booted(&snapshot)?;
        let Some(target) = find(&snapshot.fleet) else {
            self.pass(&*folder()?, None)?;
            return Err(Refusal::NotFound);
        };
        let view = self.target(Ok(target))?;
        self.open(target.slot)?;
        Ok(view)
    }

    /// A call about a whole card; of a MIG device the driver does not tell it.
    pub(super) fn whole(self, device: nvmlDevice_t) -> Answer<View> {
        let view = self.device(device)?;
        if view.target.part.is_some() { Err(Refusal::NotSupported) } else { Ok(view) }
    }

    /// A call about what a handle means.
    pub(super) fn target(self, target: Answer<Target>) -> Answer<View> {
        let folder = folder()?;
        let target = target?;
        let snapshot = self.pass(&folder, Some(target.slot))?;
        booted(&snapshot)?;
        let card = snapshot.fleet.card(target.slot)?;
        if snapshot.plan.is_lost(target.slot) || card.is_absent {
            return Err(Refusal::GpuIsLost);
        }
        if target.part.is_some() {
            target.find(card)?;
        }
        Ok(View { snapshot, target, now_ms: now_ms() })
    }

    /// Refuses the call to whoever is not root.
    pub(super) fn privileged(self, view: &View) -> Answer<()> {
        if view.plan().no_permission { Err(Refusal::NoPermission) } else { Ok(()) }
    }

    /// A change of a card, by whoever is root, after the call has passed as `view`.
    pub(super) fn change<T>(self, view: &View, change: impl FnOnce(&mut Fleet) -> Answer<T>) -> Answer<T> {
        self.privileged(view)?;
        let target = view.target;
        folder()?.change(|state| {
            // The part may have gone since the call began.
            if target.part.is_some() {
                target.find(state.fleet.card(target.slot)?)?;
            }
            change(&mut state.fleet)
        })
    }

    /// Notes that this process has opened a card.
    fn open(self, slot: usize) -> Answer<()> {
        let folder = {
            let mut session = session();
            let open = session.as_mut().ok_or(Refusal::Uninitialized)?;
            if !open.opened.insert(slot) {
                return Ok(());
            }
            Arc::clone(&open.folder)
        };
        let pid = std::process::id();
        folder.change(|state| {
            state.fleet.add_client(slot, &Client { pid, started_ticks: started_ticks(pid) });
            Ok(())
        })
    }

    fn pass(self, folder: &Folder, card: Option<usize>) -> Answer<Arc<Snapshot>> {
        folder.pass(self.function, card)
    }
}

fn session() -> std::sync::MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

fn folder() -> Answer<Arc<Folder>> {
    session().as_ref().map(|session| Arc::clone(&session.folder)).ok_or(Refusal::Uninitialized)
}

/// # Errors
/// The host has rebooted since this process was initialised.
fn booted(snapshot: &Snapshot) -> Answer<()> {
    let is_same = session().as_ref().is_some_and(|session| session.boot == snapshot.fleet.boot);
    if is_same { Ok(()) } else { Err(Refusal::Uninitialized) }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
