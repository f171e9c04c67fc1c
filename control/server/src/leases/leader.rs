//! Keeps the lease table while this node leads, and proposes what it finds due.

use super::LeaseConfig;
use super::renewal::{Renewal, Verdict};
use super::table::Table;
use crate::consensus::Consensus;
use crate::history::{Due, HistoryConfig};
use muster_control_core::Command;
use muster_model::object::FinishedJob;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A proposal that takes longer has lost its quorum; the next tick finds the same again.
const PROPOSE_WITHIN: Duration = Duration::from_secs(5);

/// The leader's leases; idle on a follower.
pub(crate) struct LeaderLeases {
    consensus: Consensus,
    config: LeaseConfig,
    /// How long finished jobs and records of the audit are kept.
    pub(crate) history: HistoryConfig,
    table: Mutex<Option<Table>>,
}

impl LeaderLeases {
    pub(crate) fn new(consensus: Consensus, config: LeaseConfig, history: HistoryConfig) -> Arc<Self> {
        Arc::new(LeaderLeases { consensus, config, history, table: Mutex::new(None) })
    }

    /// Renews leases; `None` when this node is not a leader that a quorum confirms. The order matters: written down first,
    /// confirmed then, answered last, and all in one term.
    pub(crate) async fn renew(&self, renewals: &[Renewal]) -> Option<Vec<Verdict>> {
        let now = Instant::now();
        let (term, mut verdicts) = self.note(renewals, now)?;
        // This node's own leadership: that somebody leads, which is what a read asks, would not do.
        self.consensus.confirm_leadership().await.ok()?;
        // What was committed before the confirmation counts: a fence inherited from an earlier leader is seen here at the latest.
        let (term_now, again) = self.note(renewals, now)?;
        if term_now != term {
            return None;
        }
        for (verdict, again) in verdicts.iter_mut().zip(again) {
            if again == Verdict::Lost {
                *verdict = Verdict::Lost;
            }
        }
        Some(verdicts)
    }

    fn note(&self, renewals: &[Renewal], now: Instant) -> Option<(u64, Vec<Verdict>)> {
        let mut table = self.table.lock();
        let table = table.as_mut()?;
        let verdicts = self.consensus.read(|state, _| {
            let held = |renewal: &Renewal| match renewal {
                Renewal::Node(node, epoch) => table.renew_node(state, *node, *epoch, now),
                Renewal::Cell(cell, epoch, shard) => table.renew_cell(state, *cell, *epoch, shard, now),
            };
            renewals.iter().map(held).map(|held| if held { Verdict::Renewed } else { Verdict::Lost }).collect()
        });
        Some((table.term, verdicts))
    }

    /// Follows the leadership for ever: a fresh table for each term of this node, none otherwise.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut leadership = self.consensus.leadership();
        loop {
            let now = leadership.borrow_and_update().clone();
            if now.here {
                tracing::info!(term = now.term, "this node is the leader: leases count from now");
                *self.table.lock() = Some(Table::new(now.term, Instant::now()));
                let left = self.lead(now.term, &mut leadership).await;
                *self.table.lock() = None;
                if left.is_err() {
                    return;
                }
            } else if leadership.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ticks until the leadership of `term` ends; an error when this node stops.
    async fn lead(
        &self,
        term: u64,
        leadership: &mut tokio::sync::watch::Receiver<crate::consensus::Leadership>,
    ) -> Result<(), tokio::sync::watch::error::RecvError> {
        let mut swept = Instant::now();
        // The last finished job that was forgotten, while more of them are due.
        let mut forgetting: Option<FinishedJob> = None;
        loop {
            tokio::select! {
                biased;
                changed = leadership.changed() => {
                    changed?;
                    let now = leadership.borrow_and_update().clone();
                    if !now.here || now.term != term {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(self.config.tick_ms)) => {
                    let sweep = swept.elapsed() >= Duration::from_millis(self.config.sweep_ms);
                    if sweep {
                        swept = Instant::now();
                    }
                    let forget = if sweep || forgetting.is_some() { self.finished(forgetting) } else { None };
                    forgetting = forget.as_ref().filter(|due| due.more).map(|due| due.last);
                    let mut old: Vec<Command> = forget.into_iter().map(|due| due.command).collect();
                    old.extend(if sweep { self.old_records() } else { None });
                    self.tick(term, sweep, old).await;
                }
            }
        }
    }

    /// Whether time has decided something about a job or a window: the state knows when it next does, so this costs one look where no window is about to
    /// begin.
    fn jobs_are_due(&self) -> bool {
        let now_ms = self.consensus.now_ms();
        let next_ms = self.consensus.read(|state, _| state.next_due_ms(now_ms));
        next_ms.is_some_and(|next_ms| next_ms <= now_ms)
    }

    /// Finished jobs that are due to be forgotten.
    fn finished(&self, after: Option<FinishedJob>) -> Option<Due> {
        self.history.due(&self.consensus, after).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the finished jobs; the next sweep tries again");
            None
        })
    }

    /// Records of the audit that are due to be forgotten: a part at each sweep.
    fn old_records(&self) -> Option<Command> {
        self.history.audit_due(&self.consensus).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the audit; the next sweep tries again");
            None
        })
    }

    /// `old`: what is kept no longer.
    async fn tick(&self, term: u64, sweep: bool, old: Vec<Command>) {
        let now = Instant::now();
        let mut due = {
            let mut table = self.table.lock();
            let Some(table) = table.as_mut() else { return };
            self.consensus.read(|state, _| table.due(state, now, &self.config))
        };
        for command in &due {
            tracing::info!(?command, term, "a lease has expired");
        }
        metrics::counter!("muster_leases_due_total").increment(due.len() as u64);
        due.extend(sweep.then_some(Command::Sweep));
        due.extend(self.jobs_are_due().then_some(Command::DecideDue));
        due.extend(old);
        if due.is_empty() {
            return;
        }
        match tokio::time::timeout(PROPOSE_WITHIN, self.consensus.propose_here(term, due)).await {
            Ok(Ok(proposed)) => {
                for reject in proposed.decided.iter().filter_map(|decided| decided.as_ref().err()) {
                    tracing::debug!(%reject, "an expired lease was renewed in the meantime");
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, term, "cannot propose the end of an expired lease"),
            Err(_) => tracing::warn!(term, "no decision in time about an expired lease"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::tests::three;
    use muster_model::ids::{Epoch, NodeId};

    /// A node that led, and has not noticed that another does, acknowledges nothing: the next leader may have given the devices away.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_the_leader_itself_renews() {
        let folder = tempfile::tempdir().expect("folder");
        let (nodes, leader) = three(folder.path()).await;
        let renewals = [Renewal::Node(NodeId(1), Epoch(1))];
        for (number, node) in nodes.iter().enumerate() {
            node.read_index().await.expect("somebody leads");
            let leader_leases = LeaderLeases::new(node.clone(), LeaseConfig::default(), HistoryConfig::default());
            let term = node.status().term;
            *leader_leases.table.lock() = Some(Table::new(term, Instant::now()));
            let renewed = leader_leases.renew(&renewals).await;
            assert_eq!(renewed.is_some(), number == leader, "node {number}, {leader} leads: {renewed:?}");
        }
    }
}
