//! How the floor accounts stand, as metrics of the leader.
//!
//! What must stay true: the number of series is bounded; a node that does not lead shows 0 for what it has shown before, so that the sum over the control
//! nodes is what the leader says.

use crate::consensus::{Consensus, Leadership};
use muster_control_core::State;
use muster_model::floor_account::{FloorAccount, floor_accounts};
use muster_model::resources::{GpuUnits, Resource};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two looks: Prometheus scrapes no more often in most installations.
const EVERY: Duration = Duration::from_secs(15);
/// Levels of the tree that are told apart; accounts below count with the tenant of that level. Users and projects would be too many series.
const LEVELS: usize = 2;
/// Series in all: 300 teams with four states of several resources, several times over.
const SERIES_MAX: usize = 20_000;
const MIB: f64 = 1_048_576.0;

/// One series: tenant, resource, state.
type Series = (String, Resource, &'static str);

/// Shows the accounts while this node leads, until it stops.
pub(crate) async fn run(consensus: Consensus) {
    let mut leadership = consensus.leadership();
    let mut shown: BTreeMap<Series, u64> = BTreeMap::new();
    loop {
        let leads = leadership.borrow_and_update().here;
        let now = if leads { consensus.read(|state, _| amounts(state)) } else { BTreeMap::new() };
        show(&shown, &now);
        // What is gone was set to 0 once.
        shown = now;
        if !wait(&mut leadership).await {
            return;
        }
    }
}

/// Whether the node goes on.
async fn wait(leadership: &mut tokio::sync::watch::Receiver<Leadership>) -> bool {
    tokio::select! {
        changed = leadership.changed() => changed.is_ok(),
        () = tokio::time::sleep(EVERY) => true,
    }
}

/// Sums over the accounts at and below each tenant of the upper levels.
fn amounts(state: &State) -> BTreeMap<Series, u64> {
    let mut amounts: BTreeMap<Series, u64> = BTreeMap::new();
    for (id, account) in floor_accounts(state.capacity()) {
        let Some(tenant) = state.tenants.get(&id) else { continue };
        let path = tenant.path.split('/').take(LEVELS).collect::<Vec<_>>().join("/");
        let FloorAccount { size, busy, idle, lent, unmet } = account;
        for (resource, _) in size.plus(&busy).nonzero() {
            for (word, part) in [("busy", busy), ("idle", idle), ("lent", lent), ("unmet", unmet)] {
                *amounts.entry((path.clone(), resource, word)).or_default() += part.get(resource);
            }
        }
    }
    let left_out = amounts.len().saturating_sub(SERIES_MAX);
    metrics::gauge!("muster_floor_account_series_left_out").set(left_out as f64);
    if left_out > 0 {
        amounts = amounts.into_iter().take(SERIES_MAX).collect();
    }
    amounts
}

fn show(before: &BTreeMap<Series, u64>, now: &BTreeMap<Series, u64>) {
    let gone = before.keys().filter(|series| !now.contains_key(*series)).map(|series| (series, 0));
    for ((tenant, resource, state), amount) in now.iter().map(|(series, amount)| (series, *amount)).chain(gone) {
        let (tenant, state) = (tenant.clone(), *state);
        match resource {
            Resource::Gpu(model) => {
                let labels = [("tenant", tenant), ("model", model.to_string()), ("state", state.to_owned())];
                metrics::gauge!("muster_floor_account_gpus", &labels).set(GpuUnits(amount).as_cards());
            }
            Resource::Cpu => {
                let cpus = amount as f64 / 1_000.0;
                metrics::gauge!("muster_floor_account_cpus", "tenant" => tenant, "state" => state).set(cpus);
            }
            Resource::Memory => {
                let bytes = amount as f64 * MIB;
                metrics::gauge!("muster_floor_account_memory_bytes", "tenant" => tenant, "state" => state).set(bytes);
            }
        }
    }
}
