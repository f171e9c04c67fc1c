//! The demonstration's own checks can fail: each is shown a cluster that did wrong.

use muster_cli::commands::explain::{Explanation, ReasonView};
use muster_cli::demo::checks::Evidence;
use muster_cli::demo::gpu_fault::GpuFault;
use muster_cli::demo::record::parse;
use muster_cli::demo::slices::Slices;
use muster_cli::demo::workload::{TENANTS, Workload, over_max, probe};
use muster_cli::spec::tenants;
use muster_proto::v1;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const LINES: &str = "\
start 1 0 1 10.00
start 1 1 1 10.10
end 1 0 1 12.00
end 1 1 1 12.10
start 2 0 1 11.00
end 2 0 1 12.00
";

fn job(id: u64, name: &str, tasks: u32, phase: v1::JobPhase) -> v1::Job {
    let kind = v1::device_request::Kind::Whole(v1::WholeGpus { count: 2 });
    let devices = v1::DeviceRequest { models: Vec::new(), kind: Some(kind) };
    let spec = v1::JobSpec {
        tenant: "a".to_owned(),
        name: name.to_owned(),
        tasks,
        request: Some(v1::TaskRequest { devices: Some(devices), ..Default::default() }),
        command: vec!["/bin/sh".to_owned()],
        ..Default::default()
    };
    v1::Job { id, spec: Some(spec), phase: phase.into(), ..Default::default() }
}

/// Everything went well: a gang of two tasks and a single one, four and one seconds on two cards each.
fn good() -> Evidence {
    let reason = ReasonView { code: "over_max".to_owned(), fix: "raise the max".to_owned(), ..ReasonView::default() };
    let explanation = Explanation {
        job: 2,
        state: "waiting".to_owned(),
        reasons: vec![reason],
        revision: 1,
        ..Explanation::default()
    };
    Evidence {
        acknowledged: vec![1, 2],
        again: vec![1],
        jobs: vec![job(1, "gang", 2, v1::JobPhase::Completed), job(2, "single", 1, v1::JobPhase::Completed)],
        record: parse(LINES).expect("our own lines"),
        usage: vec![("a".to_owned(), 10.5)],
        reason: Some(explanation),
        leader_back: Some(Duration::from_millis(800)),
        shard_back: Some(Duration::from_millis(2_500)),
        slices: Some(Slices {
            withheld: Duration::from_millis(70),
            restarted: true,
            neighbour_runs: true,
            destroyed: true,
            sharers: muster_cli::demo::sharers::Sharers {
                told_by_whom: true,
                held_back: true,
                cleaned: Duration::from_millis(300),
            },
        }),
        gpu_fault: GpuFault { withheld: Duration::from_millis(60), ran_elsewhere: true, cleared: true },
    }
}

fn caught(claim: &str, spoil: impl FnOnce(&mut Evidence)) {
    let mut evidence = good();
    spoil(&mut evidence);
    let failure = evidence.verdict().expect_err(claim);
    assert!(failure.to_string().contains(claim), "{failure}");
    assert_eq!(failure.code(), 1);
    assert!(evidence.table().contains("NO"));
}

#[test]
fn a_good_run_passes() {
    good().verdict().expect("every check holds");
    assert!(!good().table().contains("NO"), "{}", good().table());
}

#[test]
fn every_claim_can_fail() {
    caught("GPU failed: withheld after", |evidence| evidence.gpu_fault.withheld = Duration::from_secs(2));
    caught("its job completed on another GPU", |evidence| evidence.gpu_fault.ran_elsewhere = false);
    caught("cleared by an operator", |evidence| evidence.gpu_fault.cleared = false);
    let spoilt =
        |evidence: &mut Evidence, spoil: fn(&mut Slices)| spoil(evidence.slices.as_mut().expect("it was played"));
    caught("MIG slice failed: withheld after", |evidence| {
        spoilt(evidence, |seen| seen.withheld = Duration::from_secs(2))
    });
    caught("its job runs again", |evidence| spoilt(evidence, |seen| seen.restarted = false));
    caught("the job on the other slice runs on", |evidence| spoilt(evidence, |seen| seen.neighbour_runs = false));
    caught("GPU instances are destroyed", |evidence| spoilt(evidence, |seen| seen.destroyed = false));
    caught("lost jobs", |evidence| {
        evidence.jobs.pop();
    });
    caught("jobs completed", |evidence| evidence.jobs[0].phase = v1::JobPhase::Failed.into());
    caught("jobs completed", |evidence| evidence.jobs[0].phase = v1::JobPhase::Pending.into());
    let lines =
        |evidence: &mut Evidence, more: &str| evidence.record = parse(&format!("{LINES}{more}")).expect("lines");
    caught("tasks that ran twice", |evidence| lines(evidence, "start 2 0 2 13.00\nend 2 0 2 14.00\n"));
    caught("tasks that ran twice", |evidence| lines(evidence, "start 2 0 1 13.00\n"));
    caught("did not run to the end", |evidence| {
        evidence.record.remove(&2);
    });
    caught("did not run to the end", |evidence| {
        evidence.record = parse(&LINES.replace("end 2 0 1 12.00\n", "")).expect("lines")
    });
    caught("gangs that did not start together", |evidence| {
        evidence.record = parse(&LINES.replace("start 1 1 1 10.10", "start 1 1 1 12.05")).expect("lines");
    });
    caught("jobs without an acknowledgement", |evidence| evidence.jobs.push(job(3, "x", 0, v1::JobPhase::Completed)));
    caught("duplicate job ids", |evidence| evidence.acknowledged.push(2));
    caught("repeated request", |evidence| evidence.again = vec![3]);
    caught("repeated request", |evidence| evidence.again.clear());
    caught("reason of the pending job", |evidence| evidence.reason = None);
    caught("leader killed", |evidence| evidence.leader_back = Some(Duration::from_secs(60)));
    caught("shard killed", |evidence| evidence.shard_back = None);
    caught("usage covers", |evidence| evidence.usage[0].1 = 9.0);
}

#[test]
fn lines_that_are_none_of_ours_are_refused() {
    for line in ["start 1 0 1", "start x 0 1 1.0", "start 1 0 1 1.0 end 1"] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn what_is_submitted_is_whole() {
    let record = Path::new("/tmp/record");
    let known: BTreeSet<String> =
        tenants::parse(TENANTS, "tenants").expect("a tree").edits.into_iter().map(|tenant| tenant.path).collect();
    let workload = Workload::new(record, 40);
    let all: Vec<v1::JobSpec> = workload.waves.iter().flat_map(|(_, specs)| specs.clone()).collect();
    assert_eq!(all.len(), 52);
    for spec in all.into_iter().chain(over_max(record)).chain([probe("x")]) {
        assert!(known.contains(&spec.tenant), "{:?}", spec.tenant);
        assert!(
            !spec.command.is_empty() && spec.request.is_some_and(|request| request.devices.is_some()),
            "{}",
            spec.name
        );
    }
    let ids: BTreeSet<&String> = workload.waves.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), workload.waves.len(), "each submission has a request id of its own");
}
