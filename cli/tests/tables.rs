//! What people see, as golden text.

use muster_cli::output::{Block, Format, Out};
use muster_cli::view::detail::JobDetail;
use muster_cli::view::job::JobView;
use muster_cli::view::jobs::table;
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
    failed.reason = "rank 3 exited with 1 on node-0007, which is a very long scenario to tell in a list".into();
    let mut homeless = job(114, v1::JobPhase::Pending, None);
    homeless.cell = None;
    homeless.spec.as_mut().expect("a specification").user = "alice".into();
    let views: Vec<JobView> = [running, queued, failed, homeless].iter().map(|job| JobView::new(job, NOW_MS)).collect();
    check(
        &table(&views, false),
        "
        JOBID  TENANT        USER   NAME      STATE     TIME      GPUS  NODES  REASON
            7  research/nlp  -      pretrain  running   3:07        32      3
           12  research/nlp  -      pretrain  pending  10:00   1g.10gb      -  node node-0003 was lost
          113  research/nlp  -      pretrain  failed    1:40  30%/20Gi      -  rank 3 exited with 1 on node-0007, which is a very long scenario to tell in a list
          114  research/nlp  alice  pretrain  pending  10:00         -      -  no cell is large enough
",
    );
    assert_eq!(views[0].waited_s, 100);
    // A terminal of eighty columns: what is long is cut, the longest first, and every line fits.
    let narrow = table(&views, false)[0].render(false, Some(80));
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    assert!(
        narrow.contains("rank 3 exit…")
            && narrow.contains("…earch/nlp")
            && narrow.contains("30%/20Gi")
            && narrow.contains("alice"),
        "{narrow}"
    );
    assert_eq!(table(&views, false)[0].render(false, Some(200)), table(&views, false)[0].render(false, None));
}

#[test]
fn jobs_are_put_in_order() {
    use muster_cli::args::jobs::SortKey;
    let whole = |count| Some(Kind::Whole(v1::WholeGpus { count }));
    let mut jobs = [
        job(1, v1::JobPhase::Pending, whole(2)),
        job(2, v1::JobPhase::Running, None),
        job(10, v1::JobPhase::Pending, Some(Kind::Mig(v1::MigInstance { profile: "1g.10gb".into() }))),
        job(11, v1::JobPhase::Completed, whole(8)),
    ];
    for (job, (name, user, priority)) in
        jobs.iter_mut().zip([("run-10", "bob", 0), ("run-9", "", 5), ("a", "al", -1), ("b", "al", 0)])
    {
        let spec = job.spec.as_mut().expect("a specification");
        (spec.name, spec.user, spec.priority) = (name.into(), user.into(), priority);
        job.submitted_ms -= job.id * 1_000;
    }
    let check = |key, reverse, expected: [u64; 4]| {
        let mut views: Vec<JobView> = jobs.iter().map(|job| JobView::new(job, NOW_MS)).collect();
        muster_cli::view::jobs::sort(&mut views, key, reverse);
        assert_eq!(views.iter().map(|view| view.id).collect::<Vec<_>>(), expected, "{key:?} {reverse}");
    };
    check(SortKey::Id, false, [1, 2, 10, 11]);
    check(SortKey::Id, true, [11, 10, 2, 1]);
    check(SortKey::Name, false, [10, 11, 2, 1]);
    check(SortKey::User, false, [2, 10, 11, 1]);
    check(SortKey::Gpus, false, [11, 1, 10, 2]);
    check(SortKey::State, false, [1, 10, 2, 11]);
    check(SortKey::Priority, false, [2, 1, 11, 10]);
    check(SortKey::Waited, false, [11, 10, 2, 1]);
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
    let state = |kind: v1::task_state::Kind, code| v1::TaskState {
        kind: kind.into(),
        code,
        reason: String::new(),
        by_node: false,
        by_job: false,
    };
    let allocation = v1::Allocation {
        tasks: vec![placement(1, &[0, 1]), placement(2, &[3, 4])],
        task_states: vec![state(v1::task_state::Kind::Running, 0), state(v1::task_state::Kind::Exited, 3)],
        classes: vec![
            v1::ClassSegment { from_ms: NOW_MS - 300_000, account: None, tier: "spot".to_owned() },
            v1::ClassSegment { from_ms: NOW_MS - 100_000, account: Some(4), tier: String::new() },
        ],
        ..Default::default()
    };
    let end = |kind, code, ranks| v1::EndCount { end: Some(state(kind, code)), ranks };
    running.attempts = vec![v1::AttemptRecord {
        attempt: 1,
        started_ms: Some(NOW_MS - 280_000),
        ended_ms: NOW_MS - 250_000,
        reason: "rank 3 was ended by signal 9 (SIGKILL) on node-0002".to_owned(),
        ends: vec![end(v1::task_state::Kind::Stopped, 0, 3), end(v1::task_state::Kind::Signaled, 9, 1)],
        failures: vec![v1::RankFailure {
            rank: 3,
            node: 2,
            end: Some(state(v1::task_state::Kind::Signaled, 9)),
            at_ms: NOW_MS - 251_000,
        }],
        bound_ms: NOW_MS - 900_000,
        classes: vec![
            v1::ClassSegment { from_ms: NOW_MS - 310_000, account: Some(4), tier: String::new() },
            v1::ClassSegment { from_ms: NOW_MS - 290_000, account: None, tier: "standard".to_owned() },
        ],
        earlier: Some(v1::EarlierClasses {
            sums: vec![v1::ClassSum { account: Some(4), tier: String::new(), ms: 580_000 }],
            unattributed_ms: 10_000,
        }),
        ..Default::default()
    }];
    let reply = v1::GetJobReply {
        failure_nodes: [(2, "node-0002".to_owned())].into(),
        job: Some(running),
        allocation: Some(allocation),
        revision: 9,
        node_names: vec!["node-0001".into(), "node-0002".into()],
        cell_name: "cell-a".into(),
        account_paths: [(4, "research".to_owned())].into(),
        ..v1::GetJobReply::default()
    };
    check(
        &JobDetail::new(&reply, NOW_MS).table(),
        "
        job        7
        name       pretrain
        tenant     research/nlp
        state      running
        submitted  2025-11-20T22:56:40Z
        waited     5:00
        started    2025-11-20T23:03:33Z
        ran        3:07
        attempt    2 (1 failed)
        cell       cell-a
        quota      guaranteed by research since 2025-11-20T23:05:00Z; before: burst (spot) since 2025-11-20T23:01:40Z
        runs on    node-0001 (0), node-0002 (1)
        tasks      4
        each       2 GPUs (h100), 0.5 CPUs, 64Gi of memory
        class      batch
        priority   0
        command    torchrun train.py

        RANK  NODE       GPUS  STATE
           0  node-0001  0,1   running
           1  node-0002  3,4   exit code 3

        ATTEMPT  ENDED                  RAN  RANKS                            QUOTA                                                                     REASON
              1  2025-11-20T23:02:30Z  0:30  3 stopped, 1 signal 9 (SIGKILL)  guaranteed by research 10:00, burst (standard) 0:40, not attributed 0:10  rank 3 was ended by signal 9 (SIGKILL) on node-0002

        FAILED RANK  NODE       HOW                 AT
                  3  node-0002  signal 9 (SIGKILL)  2025-11-20T23:02:29Z
",
    );
}

/// Each rank is told apart from the others, in fields that a program reads.
#[test]
fn each_rank_says_how_it_ended() {
    use v1::task_state::Kind as State;
    let state = |kind: State, code, reason: &str| v1::TaskState {
        kind: kind.into(),
        code,
        reason: reason.to_owned(),
        ..v1::TaskState::default()
    };
    let limit = "the task has a limit of 64 MiB; the kernel killed 1 of its processes";
    let allocation = v1::Allocation {
        tasks: vec![v1::TaskPlacement { node: 1, devices: Vec::new() }; 4],
        task_states: vec![
            state(State::Running, 0, ""),
            state(State::Exited, 3, ""),
            state(State::Signaled, 11, ""),
            state(State::OutOfMemory, 0, limit),
        ],
        ..v1::Allocation::default()
    };
    let mut running = job(7, v1::JobPhase::Completing, Some(Kind::Whole(v1::WholeGpus { count: 2 })));
    running.nodes = vec![1];
    let reply = v1::GetJobReply {
        job: Some(running),
        allocation: Some(allocation),
        node_names: vec!["n1".to_owned()],
        ..v1::GetJobReply::default()
    };
    let detail = serde_json::to_value(JobDetail::new(&reply, NOW_MS)).expect("it can be written");
    let shown = |rank: usize| {
        let task = &detail["placement"][rank];
        ["state", "end", "code", "signal", "reason"].map(|field| task[field].clone())
    };
    let none = serde_json::Value::Null;
    assert_eq!(shown(0), ["running".into(), none.clone(), none.clone(), none.clone(), none.clone()]);
    assert_eq!(shown(1), ["exit code 3".into(), "exited".into(), 3.into(), none.clone(), none.clone()]);
    let signal = "signal 11 (SIGSEGV)";
    assert_eq!(shown(2), [signal.into(), "signaled".into(), none.clone(), 11.into(), none.clone()]);
    let words = format!("out of memory: {limit}");
    assert_eq!(shown(3), [words.into(), "out-of-memory".into(), none.clone(), none, limit.into()]);
}

/// What was not asked for is not shown as 0.
#[test]
fn a_job_that_asks_for_no_cpu_and_memory_shows_none() {
    let each = |devices: Option<Kind>, cpu_milli, memory_mib| {
        let mut asks = job(8, v1::JobPhase::Pending, devices);
        let request = asks.spec.as_mut().and_then(|spec| spec.request.as_mut()).expect("a request");
        (request.cpu_milli, request.memory_mib) = (cpu_milli, memory_mib);
        request.devices.as_mut().expect("devices").models.clear();
        let detail = JobDetail::new(&v1::GetJobReply { job: Some(asks), ..Default::default() }, NOW_MS);
        let shown = shown(&detail.table());
        shown.lines().find_map(|line| line.strip_prefix("each")).expect("the line").trim().to_owned()
    };
    let one = || Some(Kind::Whole(v1::WholeGpus { count: 1 }));
    assert_eq!(each(one(), 0, 0), "1 GPU");
    assert_eq!(each(one(), 2_000, 0), "1 GPU, 2 CPUs");
    assert_eq!(each(None, 0, 1_024), "no GPU, 1Gi of memory");
}

/// A job that asks for everything that can be asked for.
fn asks_for_all() -> v1::Job {
    let mut all = job(9, v1::JobPhase::Completed, Some(Kind::Mig(v1::MigInstance { profile: "1g.10gb".into() })));
    let spec = all.spec.as_mut().expect("a specification");
    spec.user = "alice".into();
    spec.topology = Some(v1::Topology {
        required: "block".into(),
        preferred: "leaf".into(),
        segment_tasks: 2,
        spread: Some(v1::Spread { level: "node".into(), tasks_max: Some(3), required: false }),
    });
    spec.workload_class = "inference".into();
    spec.pool = "gold".into();
    spec.priority = -7;
    spec.command = vec!["sh".into(), "-c".into(), "echo it's $RANK".into()];
    spec.env = [("A".to_owned(), "b".to_owned())].into();
    spec.workdir = "/work".into();
    spec.image = "docker://r.example/ml/torch:2.9".into();
    spec.mounts = vec![v1::Mount { source: "/data".into(), target: "/d".into(), writable: false }];
    spec.time_limit_s = Some(14_400);
    spec.grace_s = Some(61);
    spec.disconnect_grace_s = Some(660);
    spec.max_retries = 4;
    spec.numa = "restricted".into();
    spec.driver_min = "550.1".into();
    spec.selector = "device.memory_mib > 1".into();
    spec.device_class = "big".into();
    spec.gpu_memory_mib = Some(4_096);
    spec.needs = Some(v1::Needs {
        memory_mib: 8_192,
        compute_percent: 15,
        isolation: "strict".into(),
        bursty: true,
        latency_critical: true,
        models: vec![],
    });
    spec.choice = Some(v1::Choice { text: "a slice, because".into(), ..Default::default() });
    spec.movable = Some(v1::Movable { checkpoint_every_s: Some(1_800), restart_s: Some(90) });
    all.nodes = vec![5, 5, 6, 5];
    all.attempt = 3;
    all.failures = 2;
    all.bound_ms = Some(NOW_MS - 400_000);
    all.started_ms = Some(NOW_MS - 300_000);
    all.finished_ms = Some(NOW_MS - 200_000);
    all
}

#[test]
fn a_job_says_all_that_was_asked_and_where_it_ran() {
    let names = ["n5", "n5", "n6", "n5"].map(str::to_owned).to_vec();
    let reply = v1::GetJobReply { job: Some(asks_for_all()), node_names: names, ..Default::default() };
    let detail = JobDetail::new(&reply, NOW_MS);
    check(
        &detail.table(),
        "
        job        9
        name       pretrain
        tenant     research/nlp
        user       alice
        state      completed
        submitted  2025-11-20T22:56:40Z
        waited     3:20
        started    2025-11-20T23:01:40Z
        ran        1:40
        finished   2025-11-20T23:03:20Z
        attempt    3 (2 failed of 4 allowed)
        cell       1
        ran on     n5 (0-1,3), n6 (2)
        tasks      4
        each       a MIG instance 1g.10gb (h100) with 4Gi each at least, 0.5 CPUs, 64Gi of memory
        needs      8Gi, 15 % of a GPU, isolation strict, bursty, latency-critical
        chosen     a slice, because
        selector   device.memory_mib > 1 (device class big)
        driver     550.1 or newer
        topology   inside one block, preferably inside one leaf
        segments   of 2 tasks
        spread     preferably at most 3 tasks on each node
        numa       restricted
        pool       gold
        class      inference
        priority   -7
        movable    a move loses at most 30:00 of work, and 1:30 to start again
        limit      4:00:00
        grace      1:01
        disconnect 11:00
        command    sh -c 'echo it'\\''s $RANK'
        workdir    /work
        image      docker://r.example/ml/torch:2.9
        mount      /data:/d:ro
        env        A=b
",
    );
    let json = serde_json::to_value(&detail).expect("json");
    assert_eq!(json["devices"], serde_json::json!({"kind": "mig", "profile": "1g.10gb"}));
    assert_eq!(json["ran_on"][0], serde_json::json!({"node": "n5", "ranks": [[0, 1], [3, 3]]}));
    assert_eq!(json["spread"], serde_json::json!({"level": "node", "tasks_max": 3, "required": false}));
    assert_eq!(json["needs"]["isolation"], "strict");
}

#[test]
fn what_tasks_hold_is_structured_for_scripts() {
    use muster_cli::view::devices::{DevicesView, HoldView};
    use v1::device_hold::Mode;
    let mig = DevicesView::Mig { profile: "1g.10gb".into() };
    let check = |mode, asked: &DevicesView, words: &str, json: serde_json::Value| {
        let view = HoldView::new(&v1::DeviceHold { gpu: 2, mode }, asked);
        assert_eq!((view.words().as_str(), serde_json::to_value(&view).expect("json")), (words, json));
    };
    let hold = v1::MigHold { shape: "G1".into(), start: 3 };
    let json = serde_json::json!({"gpu": 2, "mode": "mig", "profile": "1g.10gb", "start": 3});
    check(Some(Mode::Mig(hold)), &mig, "2 (1g.10gb at slice 3)", json);
    check(None, &DevicesView::None, "2", serde_json::json!({"gpu": 2, "mode": "whole"}));
    let share = v1::MpsShare { percent: 30, memory_mib: 20_480 };
    let json = serde_json::json!({"gpu": 2, "mode": "mps", "percent": 30, "memory_mib": 20_480});
    check(Some(Mode::Mps(share)), &DevicesView::None, "2 (MPS 30 %, 20Gi)", json);
    let slice = v1::TimeSliceShare { memory_mib: 8_192 };
    let json = serde_json::json!({"gpu": 2, "mode": "time-slice", "memory_mib": 8_192});
    check(Some(Mode::TimeSlice(slice)), &DevicesView::None, "2 (time-slice, 8Gi)", json);
}

#[test]
fn tenants_as_a_tree() {
    let tenant = |path: &str, h100: u64| {
        let guarantee = v1::ResourceVec { gpu_units: [("h100".to_owned(), h100)].into(), ..Default::default() };
        let spec =
            v1::TenantSpec { path: path.into(), guarantee: Some(guarantee), weight: Some(2), ..Default::default() };
        let used =
            v1::ResourceVec { gpu_units: [("h100".to_owned(), 1_000)].into(), cpu_milli: 500, memory_mib: 1_024 };
        tenants::TenantView::new(&v1::Tenant {
            id: 1,
            parent: None,
            spec: Some(spec),
            used: Some(used),
            ..Default::default()
        })
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
            windows: Vec::new(),
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
    let why = v1::NoPlan { code: "beyond_share".into(), text: "needs moves of at least 40 %".into() };
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
        cell-0: 5 movable jobs with 40 GPUs; the plan moves 4 of these GPUs (limit 20 %)

        MOVE  GPUS  FROM         TO           GPU TIME LOST  FOR
           3     4  n1[0,1,2,3]  n2[0,1,2,3]  44:00          job 7

        STARTS JOB  GPUS  MODEL  LEVEL  ON                   ISLANDS  MOVES  GPU TIME LOST  CHEAPEST
                 7     8  h100   node   n1[0,1,2,3,4,5,6,7]        1      1  44:00          yes

        CONVERT  POOL   MODEL  TO   LAYOUTS              STARTS  GPU TIME LOST  RULES
              2  train  h100   mig  2 of [7 x 1g.10gb]  14 jobs  0:10           allow mig in pool train

        UNMATCHED  POOL     MODEL  FREE  GPUS  RUNNING
        3g.40gb    default  h100      2     2        5

        PENDING  WHY NO MOVES HELP
              9  needs moves of at least 40 %
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
    assert_eq!(Out { format: Format::Json, colour: false, is_terminal: false, width: None }.format, Format::Json);
}
