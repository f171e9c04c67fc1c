//! What keeps allocations on one node apart, over random histories: proofs of nodes (SL11), users of tenants (SL8), ports. Each is shown to be caught when it is broken on
//! purpose.

use crate::common::{Step, catches, holds, put};
use muster_control_core::{Command, Executed, State};
use muster_model::{Allocation, Object, Pool, Ports, Tenant};
use std::sync::Arc;

/// The state's own checks.
fn checked(step: &Step<'_>) -> Result<(), String> {
    step.after.check().map_err(|broken| broken.to_string())
}

/// New allocations stand on nodes that lack nothing. Entries that change what nodes have proved, or what pools need, are skipped: their changes do not say which came first.
fn proved(step: &Step<'_>) -> Result<(), String> {
    let changes = |command: &Command| {
        matches!(
            command,
            Command::PutPool(_)
                | Command::DeletePool { .. }
                | Command::JoinNode { .. }
                | Command::ReportProofs { .. }
                | Command::RemoveNode { .. }
        )
    };
    if step.entry.commands.iter().any(changes) {
        return Ok(());
    }
    let new = step.after.allocations.values().filter(|held| !step.before.allocations.contains_key(&held.id));
    for task in new.flat_map(|held| &held.tasks) {
        let Some(node) = step.after.nodes.get(&task.node) else { continue };
        let pool = step.after.pools.get(&node.spec.pool).unwrap_or_else(|| Pool::standard_rules());
        if let Some(lacks) = pool.lacks(&node.spec.proofs) {
            return Err(format!("work was placed on node {}: {lacks}", node.spec.name));
        }
    }
    Ok(())
}

#[test]
fn sl_11_work_goes_only_to_nodes_that_have_proved_what_their_pool_needs() {
    holds("sl_11", || proved);
    // Nodes are let in again without a proof.
    catches(
        "work was placed on node",
        || proved,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let lacking = state.nodes.values().find(|node| !node.notes.lacks.is_empty()).cloned();
                if let Some(node) = lacking {
                    let mut node = Arc::unwrap_or_clone(node);
                    node.notes.lacks.clear();
                    put(state, Object::Node(node));
                }
            }
        },
    );
    // A pool needs more, and its nodes are not judged again.
    catches(
        "is told to lack",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let lacking = state.nodes.values().find(|node| !node.notes.lacks.is_empty()).cloned();
                if let Some(node) = lacking {
                    let mut node = Arc::unwrap_or_clone(node);
                    node.notes.lacks = "something else".to_owned();
                    put(state, Object::Node(node));
                }
            }
        },
    );
}

#[test]
fn sl_8_two_organisations_never_run_as_one_user() {
    holds("sl_8", || checked);
    catches(
        "run as user",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let with_user = state.tenants.values().find(|tenant| tenant.run_as.is_some()).cloned();
                let Some(one) = with_user else { return };
                let domain = Tenant::domain_of(&one.path);
                let other = state.tenants.values().find(|tenant| Tenant::domain_of(&tenant.path) != domain).cloned();
                if let Some(other) = other {
                    put(state, Object::Tenant(Tenant { run_as: one.run_as, ..other }));
                }
            }
        },
    );
}

#[test]
fn allocations_on_one_node_have_different_ports() {
    holds("allocations_on_one_node", || checked);
    catches(
        "have ports",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let has = |held: &&Arc<Allocation>| held.ports.block().is_some();
                let Some(one) = state.allocations.values().find(has).cloned() else { return };
                let beside = |held: &&Arc<Allocation>| {
                    held.job != one.job
                        && held.tasks.iter().any(|task| one.tasks.iter().any(|own| own.node == task.node))
                };
                if let Some(other) = state.allocations.values().find(beside).cloned() {
                    put(state, Object::Allocation(Allocation { ports: one.ports, ..Arc::unwrap_or_clone(other) }));
                }
            }
        },
    );
}

/// Below that level no voter could read them.
#[test]
fn below_the_level_nothing_of_it_is_stored() {
    let none = |step: &Step<'_>| -> Result<(), String> {
        if step.after.meta.feature_level >= 3 {
            return Ok(());
        }
        let ports = step.after.allocations.values().any(|held| held.ports != Ports::Unassigned);
        let users = step.after.tenants.values().any(|tenant| tenant.run_as.is_some());
        if ports || users { Err("ports or users below feature level 3".to_owned()) } else { Ok(()) }
    };
    holds("below_the_level", || none);
}
