//! Replays of small traces whose outcome can be worked out by hand, and what must hold of any.

mod common;

use common::job;
use muster_model::GpuModel;
use muster_twin::fleet::Fleet;
use muster_twin::import::{EndState, Format, Trace, TraceDevices, TraceJob};
use muster_twin::quota::QuotaChoice;
use muster_twin::report::Report;
use muster_twin::window::WindowChoice;
use muster_twin::{NodeModel, Options, ReplayError, ReplayInput, html, replay};
use proptest::prelude::*;

const NODES: NodeModel = NodeModel { start_delay_ms: 1_000, stop_delay_ms: 500 };

fn input(fleet: &str, jobs: Vec<TraceJob>, options: Options) -> ReplayInput {
    let mut trace = Trace { jobs, ..Trace::default() };
    trace.jobs.sort_by_key(|job| job.submit_s);
    let fleet = Fleet::parse_shorthand(fleet).expect("a fleet");
    ReplayInput { title: "test".to_owned(), trace, fleet, options }
}

fn options() -> Options {
    Options { nodes: NODES, ..Options::default() }
}

fn run(fleet: &str, jobs: Vec<TraceJob>, options: Options) -> Report {
    replay(&input(fleet, jobs, options), &mut |_, _| {}).expect("a report")
}

/// GPU-hours of `gpus` held for `ms`.
fn gpu_h(gpus: u64, ms: u64) -> f64 {
    (gpus * ms) as f64 / 3_600_000.0
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6 * a.abs().max(b.abs()).max(1e-9)
}

#[test]
fn jobs_that_fill_the_fleet_run_one_after_another() {
    let jobs = (0..3).map(|n| job("a", 10 + n, 100, 8)).collect();
    let report = run("1x8:h100", jobs, options());
    // Each holds the node for its start and its work: 101 s.
    let wait = report.waits[0].wait_s;
    assert_eq!((report.jobs.completed, report.waits.len(), report.waits[0].size.as_str()), (3, 1, "5-8"));
    assert_eq!((wait.p50, wait.max, wait.mean), (100.0, 200.0, 100.0));
    assert_eq!(report.waits[0].at_once, 1);
    assert!(close(report.usage.makespan_h.expect("all ended"), 303.0 / 3600.0));
    assert!(close(report.usage.allocated_gpu_h, gpu_h(8, 303_000)));
    assert!(close(report.usage.running_gpu_h, gpu_h(8, 300_000)));
    assert_eq!((report.usage.peak_gpus, report.usage.peak_waiting_jobs), (8.0, 2));
}

#[test]
fn a_gang_larger_than_a_node_is_split_and_bound_whole() {
    let report = run("4x8:h100", vec![job("a", 0, 60, 24), job("a", 1, 60, 12)], options());
    assert_eq!((report.jobs.completed, report.jobs.gangs_split, report.jobs.gpus_added), (2, 2, 0));
    assert_eq!(report.waits.iter().map(|row| row.size.as_str()).collect::<Vec<_>>(), ["9-16", "17-32"]);
    assert!(close(report.usage.allocated_gpu_h, gpu_h(36, 61_000)), "{}", report.usage.allocated_gpu_h);
    // 24 GPUs fill three nodes; of the 12 only eight find a node, so the second waits for the first.
    assert_eq!(report.waits[0].wait_s.max, 60.0);
    assert!(close(report.usage.idle_while_waiting_gpu_h, gpu_h(8, 60_000)), "eight GPUs stood free meanwhile");
}

#[test]
fn ends_of_every_kind_are_re_enacted() {
    let ends = [EndState::Completed, EndState::Failed, EndState::Cancelled, EndState::TimedOut];
    let mut jobs: Vec<TraceJob> = ends.iter().map(|end| TraceJob { end: *end, ..job("a", 0, 100, 16) }).collect();
    jobs.push(TraceJob { time_limit_s: Some(40), ..job("a", 0, 100, 16) });
    let report = run("10x8:h100", jobs, options());
    let counts = &report.jobs;
    assert_eq!((counts.completed, counts.failed, counts.cancelled, counts.timed_out), (1, 1, 1, 2));
    // A gang that fails or is cancelled holds its GPUs until the last task is gone.
    let held_ms = [101_000, 101_500, 101_500, 101_000, 41_000].iter().sum();
    assert!(
        close(report.usage.allocated_gpu_h_to_stop, gpu_h(16, held_ms)),
        "{}",
        report.usage.allocated_gpu_h_to_stop
    );
}

#[test]
fn what_no_fleet_could_serve_is_refused_with_its_reason() {
    let absent = TraceJob { models: vec![GpuModel::B200], ..job("a", 0, 10, 1) };
    let report = run("2x8:h100", vec![job("a", 0, 10, 17), absent, job("a", 0, 10, 1)], options());
    assert_eq!((report.jobs.refused, report.jobs.completed), (2, 1), "{:?}", report.refused);
    assert_eq!(report.refused.values().sum::<u64>(), 2);
    assert!(report.refused.keys().any(|why| why.starts_with("tasks: ")), "{:?}", report.refused);
    assert_eq!(report.waits.iter().map(|row| row.jobs).sum::<u64>(), 1, "refused jobs have no wait");
}

#[test]
fn any_model_lets_any_card_serve() {
    let absent = TraceJob { models: vec![GpuModel::B200], ..job("a", 0, 10, 1) };
    let mut options = options();
    options.shape.any_model = true;
    assert_eq!(run("2x8:h100", vec![absent], options).jobs.completed, 1);
}

#[test]
fn imposed_quota_holds_a_tenant_back_and_is_named() {
    let jobs = || (0..4).map(|n| job("a/x", n, 100, 4)).chain([job("b", 0, 1, 1)]).collect();
    let free = run("2x8:h100", jobs(), options());
    assert_eq!(free.tenants[0].peak_gpus, 16.0);
    let quota = QuotaChoice::Equal { percent: 100 };
    let held = run("2x8:h100", jobs(), Options { quota, ..options() });
    assert_eq!((held.tenants[0].peak_gpus, held.tenants[0].max_gpus), (8.0, Some(8.0)));
    assert_eq!(held.jobs.completed, 5);
    assert!(held.assumptions.iter().any(|line| line.starts_with("Imposed quota")));
    assert!(free.assumptions.iter().any(|line| line.starts_with("No quota")));
}

#[test]
fn quantile_quota_comes_from_the_days_before_the_window() {
    const DAY_S: u64 = 86_400;
    // One day with 4 GPUs busy all day, then a window in which 16 are wanted at once.
    let mut jobs = vec![job("a", 0, DAY_S, 4)];
    jobs.extend((0..4).map(|n| job("a", DAY_S + n, 100, 4)));
    let quota = QuotaChoice::Quantile { permille: 900, training_days: 1 };
    let window = WindowChoice::Days { from: 1, days: 1 };
    let report = run("2x8:h100", jobs, Options { quota, window, ..options() });
    assert_eq!((report.tenants[0].max_gpus, report.tenants[0].peak_gpus), (Some(4.0), 4.0));
}

#[test]
fn shares_stand_together_on_few_cards() {
    let share = |n| TraceJob { devices: TraceDevices::Share { milli: 120 }, ..job("org/a", n, 100, 1) };
    let report = run("1x8:a100-80", (0..8).map(share).collect(), options());
    assert_eq!((report.jobs.completed, report.waits[0].size.as_str()), (8, "share"));
    assert_eq!(report.usage.peak_gpus, 0.96);
    assert!(
        report.waits[0].wait_s.max == 0.0 && report.fragmentation.partly_held.len() == report.series.waiting_jobs.len()
    );
}

#[test]
fn what_is_left_when_time_is_up_is_counted_and_waits_so_far() {
    const DAY_S: u64 = 86_400;
    let jobs = vec![job("a", 0, 10 * DAY_S, 8), job("a", DAY_S / 2, 60, 8)];
    let report = run("1x8:h100", jobs, Options { drain_days_max: 1, ..options() });
    assert_eq!((report.jobs.running_at_stop, report.jobs.waiting_at_stop), (1, 1));
    assert_eq!((report.usage.makespan_h, report.waits[0].never_bound), (None, 1));
    assert!(report.waits[0].wait_s.max >= (DAY_S + DAY_S / 2 - 3600) as f64, "{:?}", report.waits[0]);
    assert!(
        close(report.usage.allocated_share, 1.0),
        "the window is measured to its end: {}",
        report.usage.allocated_share
    );
}

#[test]
fn a_warm_start_carries_over_what_was_left_and_counts_apart() {
    const DAY_S: u64 = 86_400;
    let jobs = || vec![job("a", 0, DAY_S + 100, 8), job("a", 10, 100, 8), job("a", DAY_S, 60, 8)];
    let window = WindowChoice::Days { from: 1, days: 1 };
    let warm = run("1x8:h100", jobs(), Options { window, ..options() });
    assert_eq!((warm.jobs.warm, warm.jobs.submitted, warm.jobs.completed), (1, 1, 2));
    assert_eq!(warm.waits[0].wait_s.max, 101.0, "100 s were left of the first");
    let cold = run("1x8:h100", jobs(), Options { window, warm_start: false, ..options() });
    assert_eq!((cold.jobs.warm, cold.jobs.submitted, cold.waits[0].wait_s.max), (0, 1, 0.0));
}

#[test]
fn the_busiest_window_is_found() {
    const DAY_S: u64 = 86_400;
    let jobs =
        vec![job("a", 5, 10, 1), job("a", 3 * DAY_S, 500, 8), job("a", 4 * DAY_S, 500, 8), job("a", 6 * DAY_S, 10, 1)];
    let report = run("2x8:h100", jobs, Options { window: WindowChoice::Busiest { days: 2 }, ..options() });
    assert_eq!((report.window.from_day, report.jobs.submitted), (3, 2));
}

#[test]
fn several_cells_serve_one_queue() {
    let jobs = (0..40).map(|n| job(["a", "b"][n % 2], n as u64, 300, 8)).collect();
    let report = run("32x8:h100:leaf=2:block=4:cells=4", jobs, options());
    assert_eq!((report.jobs.completed, report.fleet.cells, report.fleet.blocks, report.fleet.leaves), (40, 4, 4, 16));
    assert_eq!(report.usage.peak_gpus, 256.0);
}

#[test]
fn nothing_to_replay_is_an_error_not_an_empty_page() {
    let window = WindowChoice::Days { from: 9, days: 1 };
    let error = replay(&input("1x8:h100", vec![job("a", 0, 1, 1)], Options { window, ..options() }), &mut |_, _| {});
    assert!(matches!(error, Err(ReplayError::Empty { jobs: 1, .. })), "{error:?}");
    let error = replay(&input("1x8:h100", Vec::new(), options()), &mut |_, _| {});
    assert!(matches!(error, Err(ReplayError::Empty { jobs: 0, .. })), "{error:?}");
}

#[test]
fn the_page_stands_by_itself_and_escapes_what_the_trace_says() {
    let mut input = input("2x8:h100", (0..30).map(|n| job("a", n * 600, 900, 8)).collect(), options());
    input.title = "<script>alert(1)</script> & \"co\"".to_owned();
    input
        .trace
        .add(Format::Itp, &b"job_id,submission_time,duration,num_gpu\n<b>x,1,2,three\n"[..], "x<y>.csv")
        .expect("reads");
    let report = replay(&input, &mut |_, _| {}).expect("a report");
    let page = html::render(&report);
    for section in [
        "Allocation over time",
        "Waits by size",
        "Use by tenant",
        "Fragmentation",
        "Counts",
        "not used",
        "What was assumed",
    ] {
        assert!(page.contains(section), "{section}");
    }
    for foreign in ["<script", "http:", "https:", "<link", "<img", "@import", "<b>x", "x<y>"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert_eq!(page, html::render(&report));
    let balanced = |tag: &str| page.matches(&format!("<{tag}")).count() == page.matches(&format!("</{tag}>")).count();
    assert!(
        ["svg", "section", "table", "tr", "text", "ul", "li", "div"].into_iter().all(balanced),
        "every tag is closed"
    );
}

/// Pixels of the page's body, less the padding of a section: what a table has on a wide screen.
const TABLE_WIDTH: usize = 1_080 - 2 * 24 - 2 * 24;
/// Of a digit or a letter in a table, rounded up, and between two columns.
const CHARACTER: usize = 9;
const BETWEEN: usize = 14;

/// How wide a table is at least: heads break between words, figures nowhere.
fn table_width(table: &str) -> usize {
    let mut columns: Vec<usize> = Vec::new();
    for row in table.split("<tr>").skip(1) {
        let cells = row.split("<t").skip(1).filter_map(|cell| cell.split_once('>')?.1.split('<').next());
        let is_head = row.starts_with("<th");
        for (index, cell) in cells.enumerate() {
            let longest = |text: &str| text.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
            let wide = if is_head { longest(cell) } else { cell.chars().count() };
            columns.resize(columns.len().max(index + 1), 0);
            columns[index] = columns[index].max(wide);
        }
    }
    columns.iter().map(|characters| characters * CHARACTER + BETWEEN).sum()
}

#[test]
fn the_page_shows_whole_tables_and_says_where_a_line_is_cut() {
    let waited = |mut job: TraceJob| {
        job.recorded_wait_s = Some(123_456);
        job
    };
    let few = (0..60).map(|n| waited(job("a", n * 600, 900, 8))).collect();
    let page = html::render(&run("2x8:h100", few, options()));
    assert!(page.contains("p99 in the trace") && !page.contains("their line runs along the top"));
    let style = page.split("th{").nth(1).and_then(|rest| rest.split('}').next()).expect("the style of heads");
    assert!(style.contains("white-space:normal"), "heads break between words: {style}");
    for table in page.split("<div class=\"scroll\"><table>").skip(1) {
        let table = table.split("</table>").next().expect("its end");
        assert!(table_width(table) <= TABLE_WIDTH, "{} pixels of {TABLE_WIDTH}: {table}", table_width(table));
    }

    // More is asked for at once than is drawn.
    let many = (0..200).map(|_| job("a", 10, 36_000, 8)).collect();
    let page = html::render(&run("2x8:h100", many, options()));
    assert!(page.contains("The plot ends at 40: above it, their line runs along the top"), "it is said");
}

/// Any small trace: a few tenants, sizes up to two nodes and a half, bursts, every kind of end.
fn traces() -> impl Strategy<Value = Vec<TraceJob>> {
    let ends = prop::sample::select(vec![
        EndState::Completed,
        EndState::Completed,
        EndState::Failed,
        EndState::Cancelled,
        EndState::TimedOut,
    ]);
    let devices = prop_oneof![
        6 => (1u32..=20).prop_map(|gpus_per_task| TraceDevices::Whole { gpus_per_task }),
        2 => (1u32..=999).prop_map(|milli| TraceDevices::Share { milli }),
        1 => Just(TraceDevices::None),
    ];
    let limit = prop::option::weighted(0.2, 1u64..2000);
    let one = (0u64..4_000, 0u64..3_000, 0usize..4, devices, limit, ends).prop_map(
        |(submit_s, duration_s, tenant, devices, time_limit_s, end)| TraceJob {
            devices,
            time_limit_s,
            end,
            cpu_milli: 1_000,
            memory_mib: 1_024,
            ..job(["a", "a/x", "a/y", "b"][tenant], submit_s, duration_s, 1)
        },
    );
    prop::collection::vec(one, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Law 10 as far as a replay shows it, with every other law checked on the way, and the sums of jobs and GPU time.
    #[test]
    fn same_input_same_report_and_everything_adds_up(jobs in traces(), cells in 1u32..=2, percent in prop::option::of(80u32..200)) {
        let quota = percent.map_or(QuotaChoice::None, |percent| QuotaChoice::Equal { percent });
        let options = Options { quota, checks: 20, ..options() };
        let input = input(&format!("4x8:h100:leaf=1:block=2:cells={cells}"), jobs.clone(), options);
        let report = replay(&input, &mut |_, _| {}).expect("a report");
        let again = replay(&input, &mut |_, _| {}).expect("a report");
        prop_assert_eq!(serde_json::to_string(&report).expect("json"), serde_json::to_string(&again).expect("json"));
        prop_assert!(report.jobs.balances());
        prop_assert_eq!(report.jobs.running_at_stop + report.jobs.waiting_at_stop, 0, "all of it can be served in time");
        prop_assert_eq!(report.work.bound, report.jobs.submitted - report.jobs.refused, "each job is bound once");
        if report.jobs.refused == 0 {
            prop_assert!(close(report.usage.allocated_gpu_h_to_stop, expected_gpu_h(&jobs)), "{} held, {} expected", report.usage.allocated_gpu_h_to_stop, expected_gpu_h(&jobs));
        }
        let by_tenant: f64 = report.tenants.iter().map(|row| row.gpu_h).sum();
        prop_assert!(close(by_tenant, report.usage.allocated_gpu_h), "tenants' sums are the whole");
        prop_assert!(report.usage.peak_gpus <= 32.0);
        let drawn: f64 = report.series.allocated_gpus.iter().sum::<f64>() * report.series.bin_s / 3600.0;
        let rounding = 0.0005 * report.series.allocated_gpus.len() as f64 * report.series.bin_s / 3600.0;
        prop_assert!((drawn - report.usage.allocated_gpu_h).abs() <= rounding, "the plot shows what was held");
    }
}

/// What jobs hold whatever the queue is like: from binding to start, while they work, and to the last task's end.
fn expected_gpu_h(jobs: &[TraceJob]) -> f64 {
    let held = |job: &TraceJob| {
        let limit_s = job.time_limit_s.unwrap_or(u64::MAX);
        let work_ms = job.duration_s.min(limit_s) * 1000;
        let tasks = match job.devices {
            TraceDevices::Whole { gpus_per_task } if gpus_per_task > 8 => 2,
            _ => 1,
        };
        // The rank that fails is gone at once; the others are told to stop.
        let stop_ms = match job.end {
            EndState::Cancelled if job.duration_s <= limit_s => NODES.stop_delay_ms,
            EndState::Failed if job.duration_s <= limit_s && tasks > 1 => NODES.stop_delay_ms,
            _ => 0,
        };
        let units = match job.devices {
            TraceDevices::None => 0.0,
            TraceDevices::Whole { gpus_per_task } => rounded(gpus_per_task),
            TraceDevices::Share { milli } | TraceDevices::Slice { milli } => share_units(milli),
        };
        units * (NODES.start_delay_ms + work_ms + stop_ms) as f64
    };
    jobs.iter().map(held).sum::<f64>() / 3_600_000.0
}

/// Cards after splitting into equal tasks on nodes of eight.
fn rounded(gpus: u32) -> f64 {
    let fewest = gpus.div_ceil(8);
    let tasks = (fewest..=2 * fewest).find(|tasks| gpus.is_multiple_of(*tasks)).unwrap_or(fewest);
    f64::from(tasks * gpus.div_ceil(tasks))
}

/// A share is charged the larger of its percentage and its memory, on an H100 of 81,920 MiB.
fn share_units(milli: u32) -> f64 {
    let percent = u64::from(milli.div_ceil(10)) * 7_000 / 100;
    let memory_mib = (u64::from(milli) * 81_920 / 1_000).max(1);
    percent.max((memory_mib * 7_000).div_ceil(81_920)) as f64 / 7_000.0
}
