//! Every field of a job, a tenant, a pool and a node is honoured, refused or warned about: here stands by what, and a field that is added to the
//! API without a row fails.
//!
//! A row names a test: a function of a file with tests, or words of a command, a refusal or an answer in a transcript, which is played
//! by one. A row of anything else fails.

use muster_proto::bounded::{Kind, schema};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const REQUESTS: &str = "scheduler-shard/core/src/tests/requests.rs";
const VALIDATION: &str = "model/tests/validation.rs";
const NEEDS: &str = "model/tests/needs.rs";
const QUEUEING: &str = "scheduler-shard/core/src/tests/queueing.rs";
const LAWS: &str = "control/core/tests/laws.rs";
const CAPACITY: &str = "model/tests/capacity.rs";
const SELECTORS: &str = "model/tests/selectors.rs";
const ENDS: &str = "control/core/tests/transcripts/ends.txt";
const CLASSES: &str = "scheduler-shard/core/src/tests/classes.rs";
const BINDING: &str = "control/core/tests/transcripts/binding.txt";
const CARDS: &str = "control/core/tests/transcripts/cards.txt";
const WITHHOLDING: &str = "control/core/tests/withholding.rs";
const NODES: &str = "control/core/tests/transcripts/nodes.txt";
const PINNED: &str = "control/core/tests/transcripts/pinned.txt";
const ISOLATION: &str = "control/core/tests/transcripts/isolation.txt";
const IMAGES: &str = "node/agent/tests/agent/images.rs";
const PLACES: &str = "scheduler-shard/core/src/tests/requests.rs";
const STARTS: &str = "control/core/tests/starts/mod.rs";

/// Message, field, file, test.
#[rustfmt::skip]
const EVIDENCE: &[(&str, &str, &str, &str)] = &[
    ("JobSpec", "tenant", "control/core/tests/transcripts/submitting.txt", "tenant: \"green\" does not exist"),
    ("JobSpec", "name", "control/server/tests/services/jobs.rs", "fn jobs_are_found_live_and_finished"),
    ("JobSpec", "tasks", LAWS, "fn law_2_gangs_are_bound_whole"),
    ("JobSpec", "request", CLASSES, "fn jobs_that_differ_in_a_field_that_matters_share_no_decision"),
    ("JobSpec", "topology", "scheduler-shard/core/src/tests/preferred.rs", "fn gangs_of_whole_cards_stand_as_close_as_they_prefer"),
    ("JobSpec", "workload_class", BINDING, "pool fast does not allow batch"),
    ("JobSpec", "pool", "control/core/tests/transcripts/submitting.txt", "pool=defualt"),
    ("JobSpec", "priority", QUEUEING, "fn inside_a_tenant_priority_then_age"),
    ("JobSpec", "command", "node/agent/tests/agent/shims.rs", "fn a_task_ends_as_its_command_does"),
    ("JobSpec", "env", VALIDATION, "fn variables_of_the_system_are_refused_with_their_list"),
    ("JobSpec", "workdir", "node/agent/tests/agent/shims.rs", "fn what_cannot_be_started_says_why"),
    ("JobSpec", "time_limit_s", "node/agent/tests/agent/shims.rs", "fn the_time_limit_ends_a_task"),
    ("JobSpec", "grace_s", "node/agent/tests/agent/shims.rs", "fn who_ignores_a_stop_is_killed_after_its_grace_with_all_that_left_its_group"),
    ("JobSpec", "disconnect_grace_s", "cli/tests/nodes/starts.rs", "fn a_disconnect_grace_that_can_never_work_is_refused_with_the_shortest_that_does"),
    ("JobSpec", "max_retries", ENDS, "submit red tasks=4 gpus=1 retries=1"),
    ("JobSpec", "numa", REQUESTS, "fn four_gpus_across_numa_nodes_are_refused_under_restricted"),
    ("JobSpec", "driver_min", REQUESTS, "fn an_older_driver_is_passed_by_and_told"),
    ("JobSpec", "selector", REQUESTS, "fn a_selector_picks_its_nodes_or_is_told"),
    ("JobSpec", "device_class", "control/server/tests/services/requests.rs", "fn device_classes_come_are_used_and_go"),
    ("JobSpec", "gpu_memory_mib", VALIDATION, "fn memory_narrows_the_models"),
    ("JobSpec", "needs", "scheduler-shard/core/src/tests/examples.rs", "fn five_jobs_of_fifteen_percent_run_on_one_h100_in_slices"),
    ("JobSpec", "choice", "control/server/tests/services/refusals.rs", "fn malformed_submissions_are_refused_and_change_nothing"),
    ("JobSpec", "movable", "scheduler-shard/core/src/tests/planner.rs", "fn the_cheapest_work_moves_and_its_loss_is_told"),
    ("JobSpec", "preemption", VALIDATION, "fn a_preemption_has_bounds_and_a_checkpoint_that_takes_too_long_is_warned_about"),
    ("JobSpec", "limit_signal", VALIDATION, "fn a_signal_before_the_limit_needs_a_limit_that_is_longer"),
    ("JobSpec", "elastic", VALIDATION, "fn an_elastic_gang_grows_beyond_its_least_by_whole_segments"),
    ("Elastic", "tasks_max", VALIDATION, "fn an_elastic_gang_grows_beyond_its_least_by_whole_segments"),
    ("Elastic", "signal", "cli/tests/commands/elastic.rs", "fn an_elastic_gang_grows_into_idle_gpus_and_gives_them_back"),
    ("JobSpec", "image", IMAGES, "fn a_task_sees_its_image_and_nothing_of_the_host"),
    ("JobSpec", "compute_instances", "cli/tests/commands/compute_instances.rs", "fn a_task_has_several_compute_instances_in_one_mig_instance"),
    ("JobSpec", "mounts", IMAGES, "fn mounts_are_read_only_unless_they_say_otherwise_and_no_link_leads_out"),
    ("Mount", "source", IMAGES, "fn mounts_are_read_only_unless_they_say_otherwise_and_no_link_leads_out"),
    ("Mount", "target", IMAGES, "fn links_of_an_image_lead_to_nothing_of_the_host_and_onto_nothing_of_the_sandbox"),
    ("Mount", "writable", IMAGES, "fn mounts_are_read_only_unless_they_say_otherwise_and_no_link_leads_out"),
    ("Pool", "images", PLACES, "fn a_job_with_an_image_or_mounts_goes_where_a_pool_allows_them"),
    ("Pool", "mounts", PLACES, "fn a_job_with_an_image_or_mounts_goes_where_a_pool_allows_them"),
    ("MountRule", "path", PLACES, "fn a_job_with_an_image_or_mounts_goes_where_a_pool_allows_them"),
    ("MountRule", "write", PLACES, "fn a_job_with_an_image_or_mounts_goes_where_a_pool_allows_them"),
    (
        "JobSpec",
        "secret_env",
        "cli/tests/commands/secrets.rs",
        "fn a_secret_reaches_the_tasks_that_name_it_and_nobody_reads_it_back",
    ),
    ("JobSpec", "comment", "cli/tests/commands/starts.rs", "fn a_comment_is_kept_and_changed"),
    ("JobSpec", "user", VALIDATION, "fn a_user_stands_in_one_column"),
    ("TaskRequest", "devices", CLASSES, "fn jobs_that_differ_in_a_field_that_matters_share_no_decision"),
    ("TaskRequest", "cpu_milli", "scheduler-shard/core/src/tests/findings.rs", "fn cpu_that_is_short_is_told_with_its_figures"),
    ("TaskRequest", "memory_mib", "control/core/tests/transcripts/submitting.txt", "memory=600000"),
    ("DeviceRequest", "whole", BINDING, "gpus="),
    ("DeviceRequest", "mig", BINDING, "mig="),
    ("DeviceRequest", "mps", BINDING, "mps=50:10000"),
    ("DeviceRequest", "time_slice", BINDING, "ts=1000"),
    ("DeviceRequest", "models", "scheduler-shard/core/src/tests/examples.rs", "fn cpu_only_gangs_and_other_models_find_their_nodes"),
    ("WholeGpus", "count", "control/core/tests/transcripts/submitting.txt", "submit red gpus=9"),
    ("MigInstance", "profile", "control/server/tests/services/bounds.rs", "fn a_mig_profile_is_kept_in_one_form"),
    ("MpsShare", "percent", BINDING, "mps=60:10000"),
    ("MpsShare", "memory_mib", BINDING, "mps=10:80000"),
    ("TimeSliceShare", "memory_mib", CAPACITY, "fn the_books_agree_with_a_naive_model"),
    ("Topology", "required", "scheduler-shard/core/src/tests/examples.rs", "fn segments_stand_on_one_island_each_inside_the_required_level"),
    ("Topology", "preferred", "scheduler-shard/core/src/tests/preferred.rs", "fn shares_stand_as_close_as_they_prefer"),
    ("Topology", "segment_tasks", "scheduler-shard/core/src/tests/examples.rs", "fn segments_stand_on_one_island_each_inside_the_required_level"),
    ("Topology", "spread", "scheduler-shard/core/src/tests/anti_affinity.rs", "fn tasks_are_spread_over_nodes_leaves_and_blocks"),
    ("Spread", "level", "scheduler-shard/core/src/tests/anti_affinity.rs", "fn tasks_are_spread_over_nodes_leaves_and_blocks"),
    ("Spread", "tasks_max", "scheduler-shard/core/src/tests/anti_affinity.rs", "fn a_spread_that_finds_too_few_domains_says_so"),
    ("Spread", "required", "scheduler-shard/core/src/tests/anti_affinity.rs", "fn a_preferred_spread_takes_what_there_is"),
    ("Movable", "checkpoint_every_s", "scheduler-shard/core/src/tests/planner.rs", "fn the_cheapest_work_moves_and_its_loss_is_told"),
    ("Movable", "restart_s", "scheduler-shard/core/src/tests/planner.rs", "fn the_cheapest_work_moves_and_its_loss_is_told"),
    ("Preemption", "signal", "node/agent/tests/agent/shims.rs", "fn a_preempted_task_gets_its_own_signal_and_grace_in_all_its_processes"),
    ("LimitSignal", "signal", "node/agent/tests/agent/shims.rs", "fn a_signal_comes_before_the_time_limit_once"),
    ("LimitSignal", "before_s", "node/agent/tests/agent/shims.rs", "fn a_signal_comes_before_the_time_limit_once"),
    ("Preemption", "grace_s", VALIDATION, "fn a_preemption_has_bounds_and_a_checkpoint_that_takes_too_long_is_warned_about"),
    ("Preemption", "checkpoint_bytes", VALIDATION, "fn a_preemption_has_bounds_and_a_checkpoint_that_takes_too_long_is_warned_about"),
    ("Preemption", "restart_cost_s", VALIDATION, "fn a_preemption_has_bounds_and_a_checkpoint_that_takes_too_long_is_warned_about"),
    ("Needs", "memory_mib", NEEDS, "fn what_no_pool_offers_is_refused_with_the_fix"),
    ("Needs", "compute_percent", NEEDS, "fn compute_on_a_time_slice_is_what_is_left_when_the_card_is_full"),
    ("Needs", "isolation", NEEDS, "fn each_kind_of_need_gets_its_way"),
    ("Needs", "bursty", NEEDS, "fn each_kind_of_need_gets_its_way"),
    ("Needs", "latency_critical", NEEDS, "fn each_kind_of_need_gets_its_way"),
    ("Needs", "models", NEEDS, "fn models_are_taken_in_the_order_of_preference_and_all_that_hold_are_accepted"),
    ("Choice", "rule", NEEDS, "fn a_choice_is_told_with_its_figures"),
    ("Choice", "model", NEEDS, "fn a_choice_is_told_with_its_figures"),
    ("Choice", "compute_percent", NEEDS, "fn a_choice_is_told_with_its_figures"),
    ("Choice", "memory_mib", NEEDS, "fn a_choice_is_told_with_its_figures"),
    ("Choice", "text", NEEDS, "fn a_choice_is_told_with_its_figures"),
    ("TenantSpec", "path", VALIDATION, "fn a_tenant_that_is_wrong_names_its_field"),
    ("TenantSpec", "guarantee", QUEUEING, "fn what_a_guarantee_covers_goes_first_and_the_emptiest_guarantee_before_others"),
    ("TenantSpec", "max", "scheduler-shard/core/src/tests/findings.rs", "fn ceilings_are_told_in_cards_and_cpus"),
    ("TenantSpec", "weight", QUEUEING, "fn above_guarantees_weights_decide_at_each_level"),
    ("TenantSpec", "trust", LAWS, "fn law_8_untrusted_tenants_do_not_share"),
    ("TenantSpec", "anti_affinity", "scheduler-shard/core/src/tests/anti_affinity.rs", "fn tenants_that_disturb_each_other_share_no_card_node_or_island"),
    ("TenantSpec", "lend", "model/tests/tenant_edits.rs", "fn a_tenant_lends_unless_it_says_otherwise"),
    ("TenantSpec", "weights", QUEUEING, "fn a_weight_for_one_model_divides_the_share_of_that_model_alone"),
    ("TenantSpec", "lends", "cli/tests/nodes/floors.rs", "fn a_tenant_lends_one_model_and_keeps_another"),
    ("TenantSpec", "run_as", "control/core/tests/transcripts/ports.txt", "run-as=5001"),
    ("ResourceVec", "gpu_units", QUEUEING, "fn what_a_guarantee_covers_goes_first_and_the_emptiest_guarantee_before_others"),
    ("ResourceVec", "cpu_milli", QUEUEING, "fn a_guarantee_of_cpu_counts_beside_gpus"),
    ("ResourceVec", "memory_mib", VALIDATION, "fn a_tenant_that_is_wrong_names_its_field"),
    ("Limits", "gpu_units", "scheduler-shard/core/src/tests/findings.rs", "fn ceilings_are_told_in_cards_and_cpus"),
    ("Limits", "cpu_milli", "scheduler-shard/core/src/tests/findings.rs", "fn ceilings_are_told_in_cards_and_cpus"),
    ("Limits", "memory_mib", "model/tests/charges.rs", "fn a_limit_is_passed_by_exactly_what_is_above_it"),
    ("AntiAffinity", "tenant", "scheduler-shard/core/src/tests/anti_affinity.rs", "fn who_is_kept_apart_is_told_and_starts_when_the_other_has_left"),
    ("AntiAffinity", "level", "scheduler-shard/core/src/tests/anti_affinity.rs", "fn tenants_that_disturb_each_other_share_no_card_node_or_island"),
    ("TenantSpec", "lend", "model/tests/tenant_edits.rs", "fn a_tenant_lends_unless_it_says_otherwise"),
    ("ArraySpec", "indices", "control/core/tests/starts/arrays.rs", "fn tasks_follow_each_other_under_the_limit_and_the_array_ends_with_the_last"),
    ("ArraySpec", "max_running", "control/core/tests/starts/arrays.rs", "fn an_array_never_gets_more_live_tasks_than_its_limit"),
    ("Dependency", "delay_s", STARTS, "fn a_job_starts_only_when_eligible"),
    ("Dependency", "job_id", STARTS, "fn jobs_depend_on_earlier_jobs_alone"),
    ("Dependency", "kind", STARTS, "fn a_job_starts_only_when_eligible"),
    ("JobSpec", "array", "control/core/tests/starts/arrays.rs", "fn a_held_array_starts_no_task_and_a_cancelled_one_ends_whole"),
    ("JobSpec", "priority_class", "cli/tests/commands/classes.rs", "fn a_marked_class_preempts_burst_of_another_tenant_and_nobody_else_does"),
    ("JobSpec", "reservation", "cli/tests/commands/windows.rs", "fn windows_keep_others_off_and_open_and_end_by_themselves"),
    ("JobSpec", "start", STARTS, "fn a_job_that_waits_for_nothing_but_devices_is_in_a_queue"),
    ("Pool", "checkpoint_mib_per_s", "twin/tests/pains/storage_cannot_save_all.rs", "fn preemptions_wait_for_the_storage_of_checkpoints"),
    ("Pool", "moves_per_hour", "twin/tests/histories/moves.rs", "fn moves_have_a_full_plan_keep_their_budget_and_satisfy_the_referee"),
    ("Pool", "moves_lost_gpu_hours_per_day", "model/src/moves.rs", "fn a_pool_moves_nothing_unless_both_budgets_are_set"),
    ("Pool", "preemptions_max", "twin/tests/pains/storage_cannot_save_all.rs", "fn a_pool_bounds_how_often_a_job_is_preempted"),
    ("Pool", "cool_down_s", "twin/tests/histories/main.rs", "fn random_histories_keep_the_laws_and_satisfy_the_referee"),
    ("StartConditions", "any_dependency", STARTS, "fn one_of_several_dependencies_is_enough"),
    ("StartConditions", "begin_ms", STARTS, "fn a_job_starts_only_when_eligible"),
    ("StartConditions", "deadline_ms", STARTS, "fn time_decides_by_the_command_alone"),
    ("StartConditions", "dependencies", STARTS, "fn dependents_are_decided_in_the_entry_that_ends_the_job"),
    ("StartConditions", "held", STARTS, "fn what_an_administrator_holds_an_administrator_releases"),
    ("StartConditions", "kill_on_invalid_dependency", STARTS, "fn a_dependency_that_can_never_be_met_stays_pending_or_ends_the_job"),
    ("StartConditions", "singleton", STARTS, "fn singletons_of_a_name_follow_each_other"),
    ("Pool", "name", "control/core/tests/transcripts/submitting.txt", "pool=glod"),
    ("Pool", "modes", BINDING, "modes=whole"),
    ("Pool", "workload_classes", BINDING, "pool fast classes=training"),
    ("Pool", "time_slice_replicas", "scheduler-shard/core/src/tests/examples.rs", "fn four_replicas_on_one_card_run_and_the_fifth_waits_and_says_why"),
    ("Pool", "mps_clients", BINDING, "pool shared mps=2"),
    ("Pool", "time_slice", "cli/tests/nodes/shares.rs", "fn a_pool_sets_the_length_of_turns"),
    ("Pool", "compute_tolerance_percent", NEEDS, "fn who_asks_and_where_narrows_the_ways"),
    ("Pool", "mig_layouts", PINNED, "pool serving keeps the MIG layout"),
    ("Pool", "isolation", ISOLATION, "pool default isolation=full"),
    ("Pool", "network", ISOLATION, "network=host"),
    ("Pool", "memory_limit_mib", ISOLATION, "memory-limit=2048"),
    ("Pool", "withheld_max_percent", "control/core/tests/withholding.rs", "fn a_pool_says_how_much_may_be_withheld"),
    ("Pool", "withheld_max_gpus", "control/core/tests/withholding.rs", "fn a_pool_says_how_much_may_be_withheld"),
    ("PinnedLayout", "model", PINNED, "pin=h100/"),
    ("PinnedLayout", "slices", PINNED, "3g.40gb:1,2g.20gb:1"),
    ("PinnedLayout", "cards_per_node", PINNED, "pin-cards=1"),
    ("NodeSpec", "name", VALIDATION, "fn a_node_that_is_wrong_names_its_field"),
    ("NodeSpec", "address", "control/server/tests/services/agents.rs", "fn a_task_lives_from_desired_to_completed"),
    ("NodeSpec", "place", "scheduler-shard/core/src/tests/nvlink.rs", "fn a_name_is_a_domain_of_its_leaf_alone"),
    ("NodeSpec", "cell", NODES, "cannot change its cell"),
    ("NodeSpec", "pool", "control/core/tests/transcripts/submitting.txt", "pool=glod"),
    ("NodeSpec", "gpus", NODES, "join n1 gpus=9"),
    ("NodeSpec", "cpu_milli", "control/core/tests/transcripts/submitting.txt", "cpu=100000"),
    ("NodeSpec", "memory_mib", "control/core/tests/transcripts/submitting.txt", "memory=600000"),
    ("NodeSpec", "driver", REQUESTS, "fn an_older_driver_is_passed_by_and_told"),
    ("NodeSpec", "labels", SELECTORS, "fn a_selector_says_which_cards_will_do"),
    ("NodeSpec", "boot_id", NODES, "boot=3"),
    ("NodeSpec", "proofs", ISOLATION, "proofs=all"),
    ("Proof", "protection", ISOLATION, "proofs=but:foreign-devices,ports"),
    ("Proof", "fault", ISOLATION, "proofs n2 but:memory"),
    ("Place", "region", SELECTORS, "fn a_selector_says_which_cards_will_do"),
    ("Place", "zone", SELECTORS, "fn a_selector_says_which_cards_will_do"),
    ("Place", "block", "scheduler-shard/core/src/tests/preferred.rs", "fn gangs_of_whole_cards_stand_as_close_as_they_prefer"),
    ("Place", "leaf", "scheduler-shard/core/src/tests/preferred.rs", "fn gangs_of_whole_cards_stand_as_close_as_they_prefer"),
    ("Place", "nvlink_domain", "scheduler-shard/core/src/tests/nvlink.rs", "fn a_name_is_a_domain_of_its_leaf_alone"),
    ("Gpu", "uuid", NODES, "join n1 uuid=NEW"),
    ("Gpu", "model", NODES, "join n1 model=h200"),
    ("Gpu", "memory_mib", SELECTORS, "fn a_selector_says_which_cards_will_do"),
    ("Gpu", "numa", REQUESTS, "fn four_gpus_across_numa_nodes_are_refused_under_restricted"),
    ("Gpu", "island", "scheduler-shard/core/src/tests/examples.rs", "fn the_smallest_island_that_holds_a_gang_is_taken"),
    ("Gpu", "withheld", CAPACITY, "fn the_books_agree_with_a_naive_model"),
    ("Gpu", "withheld_slices", CAPACITY, "fn the_books_agree_with_a_naive_model"),
    ("Gpu", "repair", WITHHOLDING, "fn what_is_to_be_done_about_a_card_is_kept_while_its_agent_joins"),
    ("WithheldSlice", "slice", CARDS, "cards n2 0/G3@4:Xid_94"),
    ("WithheldSlice", "reason", CARDS, "GPU 0 of node 1 is withheld: Xid 79"),
    ("MigHold", "shape", CARDS, "which is not a MIG slice of h100"),
    ("MigHold", "start", CARDS, "which is not a MIG slice of h100"),
];

/// The messages in which people say what they want and what there is, with all that these hold.
fn messages() -> BTreeMap<String, Vec<String>> {
    let schema = schema();
    let mut places: Vec<usize> = schema.roots().map(|(_, place, _)| place).collect();
    let mut seen = BTreeSet::new();
    let mut named = BTreeMap::new();
    while let Some(place) = places.pop() {
        if !seen.insert(place) {
            continue;
        }
        let message = schema.message(place);
        named.insert(message.name.clone(), place);
        places.extend(message.fields.values().filter_map(|field| match field.kind {
            Kind::Message(inner) => Some(inner),
            _ => None,
        }));
    }
    let mut places: Vec<usize> =
        ["JobSpec", "TenantSpec", "Pool", "NodeSpec"].iter().map(|name| named[*name]).collect();
    let mut found = BTreeMap::new();
    while let Some(place) = places.pop() {
        let message = schema.message(place);
        if message.map_entry || found.contains_key(&message.name) {
            continue;
        }
        found.insert(message.name.clone(), message.fields.values().map(|field| field.name.clone()).collect());
        places.extend(message.fields.values().filter_map(|field| match field.kind {
            Kind::Message(inner) => Some(inner),
            _ => None,
        }));
    }
    found
}

#[test]
fn every_field_of_what_people_write_has_its_evidence() {
    let rows: BTreeSet<(&str, &str)> = EVIDENCE.iter().map(|(message, field, ..)| (*message, *field)).collect();
    let there = messages();
    let fields: BTreeSet<(&str, &str)> = there
        .iter()
        .flat_map(|(message, fields)| fields.iter().map(move |field| (message.as_str(), field.as_str())))
        .collect();
    let missing: Vec<_> = fields.difference(&rows).collect();
    assert!(missing.is_empty(), "fields of which nobody has said how they are honoured: {missing:?}");
    let gone: Vec<_> = rows.difference(&fields).collect();
    assert!(gone.is_empty(), "rows of fields that are not there: {gone:?}");
}

#[test]
fn the_evidence_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    for (message, field, file, words) in EVIDENCE {
        let text =
            std::fs::read_to_string(root.join(file)).unwrap_or_else(|why| panic!("{message}.{field}: {file}: {why}"));
        let there = match words.strip_prefix("fn ") {
            Some(name) => is_test(&text, name),
            None => {
                file.contains("/tests/transcripts/")
                    && text.lines().any(|line| !line.starts_with('#') && line.contains(words))
            }
        };
        assert!(there, "{message}.{field}: {file} has no test {words:?}");
    }
}

/// Whether the text has a test function of that very name.
fn is_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let declared = |line: &str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ").and_then(|line| line.strip_prefix(name)).is_some_and(|rest| rest.starts_with('('))
    };
    let marked = |at: usize| {
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        above.into_iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    };
    (0..lines.len()).any(|at| declared(lines[at]) && marked(at))
}
