//! Processes on the cards that Muster did not start: their card is withheld, and they are named with user and command.
//!
//! What must stay true: a process counts as a stranger only when two looks in a row have seen it and no task has it, since a task that is just ending is nobody's for a moment;
//! what the driver runs itself (MPS) is none; a card whose processes cannot be listed keeps what is known of it.

use super::{Health, User};
use crate::config::AgentError;
use crate::gpu::GpuProcess;
use muster_model::request::SharingMode;
use muster_node_core::health::{Cause, GpuUuid, HealthEvent};
use std::collections::BTreeSet;
use std::time::Duration;

/// A listing takes milliseconds; what a driver in trouble does not answer is asked for again at the next look.
const LIST_MAX: Duration = Duration::from_secs(5);
/// NVIDIA's MPS server and its control daemon, as the kernel names them, which cuts names to 15 bytes.
const MPS_NAME: &str = "nvidia-cuda-mps";

/// Unknown processes that the last look has seen, by card.
pub(super) type Seen = BTreeSet<(u16, u32)>;

impl Health {
    /// Looks at every card. `seen` is what the last look has seen, and is replaced.
    pub(super) async fn look_for_strangers(&self, seen: &mut Seen) -> Result<(), AgentError> {
        let mut now_seen = Seen::new();
        for card in 0..self.parts.gpus.len() as u16 {
            let listed = tokio::time::timeout(LIST_MAX, self.parts.backend.processes(card)).await;
            let Ok(Ok(listed)) = listed else {
                self.users.lock().remove(&card);
                now_seen.extend(seen.iter().filter(|(of, _)| *of == card));
                continue;
            };
            let user = |GpuProcess { pid, place, .. }: &GpuProcess| {
                (*pid, User { task: self.parts.executor.task_of(*pid), place: *place })
            };
            let users: Vec<(u32, User)> = listed.iter().map(user).collect();
            self.users.lock().insert(card, users.iter().map(|(_, user)| *user).collect());
            let is_stranger = |(pid, user): &&(u32, User)| user.task.is_none() && !self.is_mps(card, *pid);
            let strangers: Vec<u32> = users.iter().filter(is_stranger).map(|(pid, _)| *pid).collect();
            let told = self.strangers_told(card);
            for pid in told.iter().filter(|pid| !strangers.contains(pid)) {
                self.take(card, &HealthEvent::ForeignGone { pid: *pid }).await?;
            }
            for pid in strangers {
                now_seen.insert((card, pid));
                if !told.contains(&pid) && seen.contains(&(card, pid)) {
                    let (user, command) = (user_of(pid), command_of(pid));
                    self.take(card, &HealthEvent::ForeignProcess { pid, user, command }).await?;
                }
            }
        }
        *seen = now_seen;
        Ok(())
    }

    fn is_mps(&self, card: u16, pid: u32) -> bool {
        self.parts.cards.mode(card) == Some(SharingMode::Mps) && name_of(pid).starts_with(MPS_NAME)
    }

    /// Those that the ledger holds against the card.
    pub(super) fn strangers_told(&self, card: u16) -> Vec<u32> {
        let Some(gpu) = self.parts.gpus.get(usize::from(card)) else { return Vec::new() };
        let ledger = self.ledger.lock();
        let known = ledger.cards().get(&GpuUuid(gpu.uuid.clone()));
        let told =
            known.into_iter().flat_map(|known| known.conditions()).filter_map(|condition| match condition.cause {
                Cause::ForeignProcess(pid) => Some(pid),
                _ => None,
            });
        told.collect()
    }
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}

fn user_of(pid: u32) -> String {
    use std::os::unix::fs::MetadataExt;
    let Ok(owner) = std::fs::metadata(format!("/proc/{pid}")) else { return "unknown".to_owned() };
    let user = nix::unistd::User::from_uid(owner.uid().into()).ok().flatten();
    user.map_or_else(|| owner.uid().to_string(), |user| user.name)
}

fn command_of(pid: u32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    // The kernel's own threads, and processes that have gone, have none.
    if words.trim().is_empty() { name_of(pid) } else { words.trim().to_owned() }
}
