//! What people see, as golden text.

use muster_cli::output::{Block, Format, Out};
use muster_cli::view::job::{JobDetail, JobView, table};
use muster_cli::view::{fleet, tenants};
use muster_proto::v1;
use muster_proto::v1::device_request::Kind;

const NOW_MS: u64 = 1_763_680_000_000;

fn shown(blocks: &[Block]) -> String {
    blocks.iter().map(|block| block.render(false, None)).collect::<Vec<_>>().join("\n")
}

/// Compares line by line; `expected` is indented as the test likes.
fn check(blocks: &[Block], expected: &str) {
    let expected: Vec<&str> =
        expected.trim_matches('\n').lines().map(|line| line.strip_prefix("        ").unwrap_or(line)).collect();
    assert_eq!(shown(blocks), expected.join("\n"), "\n{}", shown(blocks));
}

fn job(id: u64, phase: v1::JobPhase, kind: Option<Kind>) -> v1::Job {
    let devices = v1::DeviceRequest { models: vec!["h100".into()], kind };
    let spec = v1::JobSpec {
        tenant: "research/nlp".into(),
        name: "pretrain".into(),
        tasks: 4,
        request: Some(v1::TaskRequest { devices: Some(devices), cpu_milli: 500, memory_mib: 65_536 }),
        command: vec!["torchrun".into(), "train.py".into()],
        ..Default::default()
    };
    v1::Job {
        id,
        spec: Some(spec),
        phase: phase.into(),
        submitted_ms: NOW_MS - 600_000,
        cell: Some(1),
        ..Default::default()
    }
}

#[test]
fn jobs_read_like_squeue() {
    let whole = Some(Kind::Whole(v1::WholeGpus { count: 8 }));
    let mut running = job(7, v1::JobPhase::Running, whole);
    running.nodes = vec![1, 1, 2, 3];
    running.attempt = 1;
    running.bound_ms = Some(NOW_MS - 500_000);
    running.started_ms = Some(NOW_MS - 187_000);
    let mut queued = job(12, v1::JobPhase::Pending, Some(Kind::Mig(v1::MigInstance { profile: "1g.10gb".into() })));
    queued.requeue_reason = "node node-0003 was lost".into();
    // The times of the attempt that was lost are not shown as if it ran.
    queued.started_ms = Some(NOW_MS - 100_000);
    let mut failed = job(113, v1::JobPhase::Failed, Some(Kind::Mps(v1::MpsShare { percent: 30, memory_mib: 20_480 })));
    failed.started_ms = Some(NOW_MS - 500_000);
    failed.finished_ms = Some(NOW_MS - 400_000);
    failed.reason = "rank 3 exited with 1 on node-0007, which is a very long story to tell in a list".into();
    let mut homeless = job(114, v1::JobPhase::Pending, None);
    homeless.cell = None;
    let views: Vec<JobView> = [running, queued, failed, homeless].iter().map(|job| JobView::new(job, NOW_MS)).collect();
    check(
        &table(&views, false),
        "
        JOBID  TENANT        NAME      STATE        GPUS  NODES  TIME  REASON
            7  research/nlp  pretrain  running        32      3  3:07
           12  research/nlp  pretrain  pending   1g.10gb      0  0:00  node node-0003 was lost
          113  research/nlp  pretrain  failed   30%/20Gi      0  1:40  rank 3 exited with 1 on node-0007, which is a very long sto…
          114  research/nlp  pretrain  pending         -      0  0:00  no cell could hold it yet
",
    );
    assert_eq!(views[0].waited_s, 100);
}

#[test]
fn one_job_with_its_tasks() {
    let mut running = job(7, v1::JobPhase::Running, Some(Kind::Whole(v1::WholeGpus { count: 2 })));
    running.nodes = vec![1, 2];
    running.attempt = 2;
    running.failures = 1;
    running.bound_ms = Some(NOW_MS - 300_000);
    running.started_ms = Some(NOW_MS - 187_000);
    let hold = |gpu| v1::DeviceHold { gpu, mode: None };
    let placement = |node, gpus: &[u32]| v1::TaskPlacement { node, devices: gpus.iter().copied().map(hold).collect() };
    let state = |kind: v1::task_state::Kind, code| v1::TaskState { kind: kind.into(), code, reason: String::new() };
    let allocation = v1::Allocation {
        tasks: vec![placement(1, &[0, 1]), placement(2, &[3, 4])],
        task_states: vec![state(v1::task_state::Kind::Running, 0), state(v1::task_state::Kind::Exited, 3)],
        ..Default::default()
    };
    let reply = v1::GetJobReply {
        job: Some(running),
        allocation: Some(allocation),
        revision: 9,
        node_names: vec!["node-0001".into(), "node-0002".into()],
    };
    check(
        &JobDetail::new(&reply, NOW_MS).table(),
        "
        job        7
        tenant     research/nlp
        name       pretrain
        state      running
        tasks      4
        each       2 gpu (h100), 0.5 cpus, 64Gi
        attempt    2 (1 failed)
        cell       1
        submitted  2025-11-20T22:56:40Z
        waited     5:00
        started    2025-11-20T23:03:33Z
        ran        3:07
        command    torchrun train.py

        RANK  NODE       GPUS  STATE
           0  node-0001  0,1   running
           1  node-0002  3,4   exited 3
",
    );
}

#[test]
fn tenants_as_a_tree() {
    let tenant = |path: &str, h100: u64| {
        let guarantee = v1::ResourceVec { gpu_units: [("h100".to_owned(), h100)].into(), ..Default::default() };
        let spec =
            v1::TenantSpec { path: path.into(), guarantee: Some(guarantee), weight: Some(2), ..Default::default() };
        let used =
            v1::ResourceVec { gpu_units: [("h100".to_owned(), 1_000)].into(), cpu_milli: 500, memory_mib: 1_024 };
        tenants::TenantView::new(&v1::Tenant { id: 1, parent: None, spec: Some(spec), used: Some(used) })
    };
    // `research-x` sorts between `research` and `research/nlp` as text, but not as a tree.
    let views = [tenant("research-x", 0), tenant("research/nlp", 3_500), tenant("research", 56_000)];
    check(
        &tenants::table(&views, true),
        "
        TENANT      GUARANTEE  MAX  USED                             WEIGHT  TRUST
        research    h100 8     -    h100 0.14, cpus 0.5, memory 1Gi       2  trusted
          nlp       h100 0.5   -    h100 0.14, cpus 0.5, memory 1Gi       2  trusted
        research-x  -          -    h100 0.14, cpus 0.5, memory 1Gi       2  trusted
",
    );
}

#[test]
fn nodes_say_whether_they_are_empty_yet() {
    let node = |name: &str, health: v1::NodeHealth, drained, tasks| {
        let gpu = v1::Gpu { model: "h100".into(), ..Default::default() };
        let spec = v1::NodeSpec {
            name: name.into(),
            cell: "cell-0".into(),
            pool: "default".into(),
            gpus: vec![gpu; 8],
            ..Default::default()
        };
        let node = v1::Node { spec: Some(spec), health: health.into(), drained, ..Default::default() };
        fleet::NodeView::new(&v1::NodeView {
            node: Some(node),
            gpus_free: 4,
            cpu_free_milli: 64_000,
            memory_free_mib: 1_024,
            tasks,
        })
    };
    let ready = v1::NodeHealth::Ready;
    let views = [
        node("node-0", ready, false, 1),
        node("node-1", ready, true, 1),
        node("node-2", ready, true, 0),
        node("node-3", v1::NodeHealth::Down, true, 0),
    ];
    check(
        &fleet::nodes_table(&views, false),
        "
        NODE    STATE     CELL    POOL     MODEL  GPUS  FREE  CPUS FREE  MEMORY FREE  TASKS
        node-0  ready     cell-0  default  h100      8     4         64          1Gi      1
        node-1  draining  cell-0  default  h100      8     4         64          1Gi      1
        node-2  drained   cell-0  default  h100      8     4         64          1Gi      0
        node-3  down      cell-0  default  h100      8     4         64          1Gi      0
",
    );
}

#[test]
fn plans_of_moves() {
    let whole = |gpu: u32| v1::DeviceHold { gpu, mode: None };
    let on = |node: &str, gpus: std::ops::Range<u32>| {
        vec![v1::PlacedTask { node: node.into(), devices: gpus.map(whole).collect() }]
    };
    let made = v1::JobMove {
        job_id: 3,
        model: "h100".into(),
        gpu_units: 28_000,
        from: on("n1", 0..4),
        to: on("n2", 0..4),
        unsaved_s: 600,
        restart_s: 60,
        lost_card_seconds: 2_640,
    };
    let opening = v1::Opening {
        job_id: 7,
        model: "h100".into(),
        cards: 8,
        level: "node".into(),
        islands: 1,
        moves: vec![made],
        tasks: on("n1", 0..8),
        cheapest: true,
        lost_card_seconds: 2_640,
    };
    let card = |gpu| v1::PlannedCard { node: "n3".into(), gpu, layout: "7 x 1g.10gb".into() };
    let conversion = v1::Conversion {
        pool: "train".into(),
        model: "h100".into(),
        to: "mig".into(),
        needs_rule: true,
        cards: vec![card(0), card(1)],
        jobs: (20..34).collect(),
        card_seconds: 10,
        pinned: String::new(),
    };
    let unmatched = v1::UnmatchedSlices {
        pool: "default".into(),
        model: "h100".into(),
        profile: "3g.40gb".into(),
        count: 2,
        cards: 2,
        running: 5,
    };
    let why = v1::NoPlan { code: "beyond_share".into(), text: "it would take a share of at least 40 %".into() };
    let plan = v1::CellPlan {
        cell: "cell-0".into(),
        movable_jobs: 5,
        movable_gpu_units: 280_000,
        share_percent: 20,
        moved_gpu_units: 28_000,
        openings: vec![opening],
        conversions: vec![conversion],
        unmatched: vec![unmatched],
        unhelped: vec![v1::Unhelped { job_id: 9, why: Some(why) }],
        complete: true,
        ..v1::CellPlan::default()
    };
    let reply = v1::PlanMovesReply { cells: vec![plan], revision: 8, now_ms: NOW_MS };
    let view = muster_cli::view::plan::PlanView::new(&reply);
    check(
        &view.table(),
        "
        cell cell-0: 5 jobs may be moved, holding 40 GPUs; 4 of them would be, of at most 20 %

        MOVE  GPUS  FROM         TO           GPU TIME LOST  FOR
           3     4  n1[0,1,2,3]  n2[0,1,2,3]  44:00          job 7

        OPENS FOR  GPUS  MODEL  LEVEL  ON                   ISLANDS  MOVES  GPU TIME LOST  CHEAPEST
                7     8  h100   node   n1[0,1,2,3,4,5,6,7]        1      1  44:00          yes

        CONVERT  POOL   MODEL  TO   LAYOUTS              STARTS  GPU TIME LOST  RULES
              2  train  h100   mig  2 of [7 x 1g.10gb]  14 jobs  0:10           let train allow mig

        UNMATCHED  POOL     MODEL  FREE  CARDS  RUNNING
        3g.40gb    default  h100      2      2        5

        WAITS  NO PLAN BECAUSE
            9  it would take a share of at least 40 %
",
    );
    let json = serde_json::to_value(&view).expect("json");
    let opening = &json["cells"][0]["openings"][0];
    assert_eq!((opening["job"].as_u64(), opening["lost_gpu_seconds"].as_u64()), (Some(7), Some(2_640)));
}

#[test]
fn numbers_in_names_count_as_numbers() {
    let mut names =
        ["cell-10", "cell-2", "n-007", "n-7", "cell-2b", "cell-", "", "10", "9", "a99999999999999999999", "a1"];
    names.sort_by(|a, b| muster_cli::output::by_number(a, b));
    let expected =
        ["", "9", "10", "a1", "a99999999999999999999", "cell-", "cell-2", "cell-2b", "cell-10", "n-007", "n-7"];
    assert_eq!(names, expected);
}

#[test]
fn colour_only_where_it_is_wanted() {
    let views = [JobView::new(&job(1, v1::JobPhase::Failed, None), NOW_MS)];
    let blocks = table(&views, false);
    assert!(!blocks[0].render(false, None).contains('\u{1b}'));
    assert!(blocks[0].render(true, None).contains('\u{1b}'));
}

#[test]
fn scripts_get_the_same_names_in_json_and_yaml() {
    let view = JobView::new(&job(1, v1::JobPhase::Pending, None), NOW_MS);
    let json = serde_json::to_value(&view).expect("json");
    assert_eq!(
        (json["id"].as_u64(), json["state"].as_str(), json["cpu_milli"].as_u64()),
        (Some(1), Some("pending"), Some(500))
    );
    let yaml: serde_yaml_ng::Value = serde_yaml_ng::to_value(&view).expect("yaml");
    assert_eq!(yaml["state"].as_str(), Some("pending"));
    assert_eq!(Out { format: Format::Json, colour: false, width: None }.format, Format::Json);
}
