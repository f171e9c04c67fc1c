//! Everything that a replay took for granted, as sentences for the report.
//!
//! What must stay true: whatever changes what a replay finds and is not in the trace is said here.

use crate::gathered::Account;
use crate::input::{Options, ReplayInput};
use crate::ledger::models_in_words;
use crate::queue::QueueChoice;
use crate::quota::QuotaChoice;
use crate::window::Window;
use muster_model::use_history::half_life_in_words;
use muster_scheduler_core::PlacementPolicy;

/// Of a finished replay.
pub(crate) fn assumptions(account: &Account<'_>) -> Vec<String> {
    let (input, options) = (account.input, &account.input.options);
    let mut lines = input.trace.assumptions.clone();
    lines.push(fleet_line(input));
    lines.push(window_line(account.window, options));
    lines.push(shape_line(account, options));
    if options.quota != QuotaChoice::None || account.tree.with_max == 0 {
        lines.push(quota_line(options.quota));
    }
    lines.push(format!(
        "Nodes never fail. Tasks start {} ms after binding and are gone {} ms after they are told to stop; a job works for its recorded duration from its start, wherever it lands, whatever else runs beside it.",
        options.nodes.start_delay_ms, options.nodes.stop_delay_ms
    ));
    lines.push(policy_line(options.policy).to_owned());
    lines.push("One shard holds every cell, and every binding is decided at the millisecond at which it is proposed: delays of network, log and agents are left out.".to_owned());
    lines.push("Users are not re-enacted: jobs are submitted when they were, whatever the queue is like; nobody gives up or waits for another job.".to_owned());
    lines.push(tree_line(account));
    lines.push(preemption_line(account));
    lines.push(format!(
        "After the window nothing more is submitted; the replay goes on for up to {} days so that what was submitted can end, and what is left then is counted as such.",
        options.drain_days_max
    ));
    lines
}

fn fleet_line(input: &ReplayInput) -> String {
    let groups: Vec<String> = input
        .fleet
        .groups
        .iter()
        .map(|group| {
            format!(
                "{} nodes of {} × {} ({} nodes per leaf, {} leaves per block, {})",
                group.nodes,
                group.gpus,
                group.model,
                group.nodes_per_leaf,
                group.leaves_per_block,
                match group.nodes_per_nvlink_domain {
                    Some(nodes) => format!("NVLink domains of {nodes} nodes"),
                    None => {
                        let islands = group.gpus.div_ceil(group.gpus_per_island.unwrap_or(group.gpus));
                        format!("{islands} NVLink island(s) per node")
                    }
                }
            )
        })
        .collect();
    format!(
        "The fleet is described, not the one the trace was recorded on: {}. Work runs as fast on it as it ran there.",
        groups.join("; ")
    )
}

fn window_line(window: &Window, options: &Options) -> String {
    let warm = if options.warm_start {
        "Jobs submitted before it that would still run then, had each begun when it was submitted, are bound first with what was left of them; they use GPUs but do not count in the waits."
    } else {
        "The fleet is empty when it begins, so its first days look better than they would have been."
    };
    format!(
        "Replayed: the submissions from second {} to {} of the trace's clock (day {} and the following, counted from midnight before its first submission). Times and durations are not scaled. {warm}",
        window.from_s, window.to_s, window.from_day
    )
}

fn shape_line(account: &Account<'_>, options: &Options) -> String {
    let gang = match (options.shape.required, options.shape.preferred) {
        (Some(level), _) => format!("gangs of several tasks insist on one {level}"),
        (None, Some(level)) => format!("gangs of several tasks prefer one {level}"),
        (None, None) => "no gang asks for closeness".to_owned(),
    };
    let models = if options.shape.any_model {
        format!(
            "models that the trace names are not asked for; any of {} serves",
            models_in_words(account.input.fleet.gpus_by_model().into_keys())
        )
    } else {
        "models that the trace names are insisted on".to_owned()
    };
    let limits = match options.shape.limit_percent {
        Some(percent) => {
            format!("; a job whose time limit the trace does not say has one of {percent} % of what it takes")
        }
        None => String::new(),
    };
    format!(
        "A gang larger than the fleet's largest acceptable node becomes equal tasks, the fewest that divide its GPUs exactly (up to twice the fewest possible), else rounded up: {} gangs were split and gained {} GPUs in all; {gang}; {models}{limits}.",
        account.ledger.gangs_split, account.ledger.gpus_added
    )
}

fn policy_line(policy: PlacementPolicy) -> &'static str {
    match policy {
        PlacementPolicy::Topology => "Places are chosen by the network and by what is left of cards, as a fleet does.",
        PlacementPolicy::FirstFit => {
            "To compare: nodes are taken in the order of their ids and cards by their index; the network is not looked at."
        }
        PlacementPolicy::BestFit => "To compare: the fullest node and card first; the network is not looked at.",
    }
}

fn quota_line(quota: QuotaChoice) -> String {
    match quota {
        QuotaChoice::None => "No quota is imposed: any tenant may use the whole fleet.".to_owned(),
        QuotaChoice::Equal { percent } => format!(
            "Imposed quota: every organisation may hold at most {percent} % of an equal share of each GPU model (rounded up to cards)."
        ),
        QuotaChoice::Quantile { permille, training_days } => format!(
            "Imposed quota: every organisation may hold at most the {:.1} % quantile of its hourly demand in the {training_days} days before the window (each job counted from its submission for its duration), as the same part of each GPU model, at least one card of each.",
            f64::from(permille) / 10.0
        ),
    }
}

fn tree_line(account: &Account<'_>) -> String {
    let (tree, queue) = (account.tree, account.input.options.queue);
    let guaranteed = if tree.with_guarantee == 0 {
        "no tenant has a guarantee, so order among tenants is by use".to_owned()
    } else {
        format!(
            "{} of {} tenants have a guarantee, the organisations together one of {} of {} GPUs, and {} a max",
            tree.with_guarantee, tree.tenants, tree.guaranteed_gpus, account.fleet.gpus, tree.with_max
        )
    };
    match queue {
        QueueChoice::Tree => {
            let past = match account.input.options.half_life_s {
                0 => String::new(),
                half_life_s => {
                    format!(" Past use counts with a half-life of {}.", half_life_in_words(half_life_s))
                }
            };
            format!("Jobs wait under their tenants, all with one priority: {guaranteed}.{past}")
        }
        QueueChoice::Fifo => format!(
            "To compare: all jobs wait in one queue without quota, the oldest first; a smaller one passes a gang without room until the gang was passed often enough. Floors are measured against a tree that the scheduler does not know: {guaranteed}."
        ),
        QueueChoice::StrictPriority => format!(
            "To compare: all jobs wait in one queue without quota, with a priority by their tenant: the larger its guarantee, the higher, and a higher one takes devices from a lower one. Floors are measured against a tree that the scheduler does not know: {guaranteed}."
        ),
    }
}

fn preemption_line(account: &Account<'_>) -> String {
    let options = &account.input.options;
    let grace_s = options.shape.grace_s.unwrap_or(muster_model::job::GRACE_S_DEFAULT);
    let kept = match options.checkpoint_s {
        0 => "saves nothing and begins anew".to_owned(),
        every_s => format!(
            "goes on from its last checkpoint, one in every {every_s} s in which it ran, and saves nothing more in its grace"
        ),
    };
    format!(
        "A preempted attempt works for nothing during all of its grace of {grace_s} s, then stops; its job {kept}. Burst work runs for {} s before it may be preempted.",
        options.cool_down_s
    )
}
