//! Mixed days: what is drawn is what was recorded, what is wrong is refused by its field, and placement is told apart by policy.

use muster_twin::fleet::Fleet;
use muster_twin::import::{Format, ImportError, Trace, TraceDevices};
use muster_twin::mix::{MixError, MixSpec, mixed};
use muster_twin::report::Report;
use muster_twin::window::WindowChoice;
use muster_twin::{Options, PlacementPolicy, ReplayInput, html, replay};

const ITP: &str =
    "job_id,submission_time,duration,num_gpu\na,100,600,1\nb,100,7200,8\nc,90000,60,64\nd,90001,3600,16\n";
const OPENB: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
    p,1000,1024,1,140,,LS,Running,10,4000,10\nq,1000,1024,1,470,,LS,Running,20,5000,20\nr,1000,1024,1,810,,BE,Running,30,900,30\ns,1000,1024,2,1000,,LS,Running,40,900,40\n";

fn open(from: &muster_twin::mix::TraceSpec) -> Result<Trace, ImportError> {
    let mut trace = Trace::default();
    for file in &from.files {
        let text = if from.format == Format::Itp { ITP } else { OPENB };
        trace.add(from.format, text.as_bytes(), file)?;
    }
    Ok(trace)
}

fn spec(json: &str) -> MixSpec {
    serde_json::from_str(json).expect("a mix")
}

const MIX: &str = r#"{"seed": 3, "warm_days": 2, "sources": [
    {"name": "gangs", "jobs_per_day": 40, "tenants": 25, "trace": {"format": "itp", "files": ["one.csv"]}},
    {"name": "slices", "jobs_per_day": 30, "trace": {"format": "openb", "files": ["pods.csv"], "only": "shares", "tenants": ["openb/ls"], "shares": "mig"}},
    {"name": "shares", "jobs_per_day": 20, "trace": {"format": "openb", "files": ["pods.csv"], "only": "shares", "shares": "mps"}},
    {"name": "large", "jobs_per_day": 5, "gangs": {"gpus": [32, 128], "hours": [1, 2]}}]}"#;

#[test]
fn each_day_has_its_number_of_jobs_with_durations_beside_their_sizes() {
    let trace = mixed(&spec(MIX), open).expect("a mix");
    for day in 0..3 {
        let of = |name: &str| {
            let of_day = trace.jobs.iter().filter(|job| job.submit_s / 86_400 == day);
            of_day.filter(|job| job.name.starts_with(name)).count()
        };
        assert_eq!((of("gangs-"), of("slices-"), of("shares-"), of("large-")), (40, 30, 20, 5), "day {day}");
    }
    for job in &trace.jobs {
        let as_recorded = match job.devices {
            TraceDevices::Whole { gpus_per_task: gpus } if job.name.starts_with("large-") => {
                [32, 128].contains(&gpus) && (3_600..=7_200).contains(&job.duration_s)
            }
            TraceDevices::Whole { gpus_per_task: gpus } => {
                [(1, 600), (8, 7_200), (64, 60), (16, 3_600)].contains(&(gpus, job.duration_s))
            }
            TraceDevices::Slice { milli } => {
                job.name.starts_with("slices-") && [(140, 3_990), (470, 4_980)].contains(&(milli, job.duration_s))
            }
            TraceDevices::Share { milli } => {
                job.name.starts_with("shares-")
                    && [(140, 3_990), (470, 4_980), (810, 870)].contains(&(milli, job.duration_s))
            }
            TraceDevices::None => false,
        };
        assert!(as_recorded, "{job:?}");
    }
    assert_eq!(mixed(&spec(MIX), open).expect("a mix").jobs, trace.jobs, "the same description gives the same jobs");
    let other = spec(&MIX.replace("\"seed\": 3", "\"seed\": 4"));
    assert_ne!(mixed(&other, open).expect("a mix").jobs, trace.jobs, "another seed gives others");
    // Both jobs of second 100 stay together wherever their day went.
    let gangs: Vec<_> = trace.jobs.iter().filter(|job| job.name.starts_with("gangs-")).collect();
    let together = |eight: &&&muster_twin::import::TraceJob| {
        gangs.iter().any(|job| job.duration_s == 600 && job.submit_s == eight.submit_s && job.tenant == eight.tenant)
    };
    assert!(gangs.iter().filter(|job| job.duration_s == 7_200).all(|job| together(&job)));
}

#[test]
fn what_is_wrong_is_refused_by_its_field() {
    let cases = [
        (r#"{"sources": []}"#, "sources"),
        (
            r#"{"sources": [{"name": "A b", "jobs_per_day": 1, "gangs": {"gpus": [8], "hours": [1, 2]}}]}"#,
            "sources[0].name",
        ),
        (
            r#"{"sources": [{"name": "a", "jobs_per_day": 0, "gangs": {"gpus": [8], "hours": [1, 2]}}]}"#,
            "sources[0].jobs_per_day",
        ),
        (
            r#"{"sources": [{"name": "a", "jobs_per_day": 1, "gangs": {"gpus": [], "hours": [1, 2]}}]}"#,
            "sources[0].gangs.gpus",
        ),
        (
            r#"{"sources": [{"name": "a", "jobs_per_day": 1, "gangs": {"gpus": [8], "hours": [3, 2]}}]}"#,
            "sources[0].gangs.hours",
        ),
        (r#"{"sources": [{"name": "a", "jobs_per_day": 1}]}"#, "sources[0].trace"),
        (
            r#"{"sources": [{"name": "a", "jobs_per_day": 1, "trace": {"format": "itp", "files": []}}]}"#,
            "sources[0].trace.files",
        ),
        (
            r#"{"sources": [{"name": "a", "jobs_per_day": 1, "trace": {"format": "itp", "files": ["x"], "only": "shares"}}]}"#,
            "sources[0].trace",
        ),
        (
            r#"{"warm_days": 4000, "sources": [{"name": "a", "jobs_per_day": 1000, "gangs": {"gpus": [8], "hours": [1, 2]}}]}"#,
            "warm_days",
        ),
    ];
    for (json, field) in cases {
        match mixed(&spec(json), open) {
            Err(MixError::Field { field: named, .. }) => assert_eq!(named, field, "{json}"),
            other => panic!("{json}: {other:?}"),
        }
    }
}

fn day(policy: PlacementPolicy) -> Report {
    let mix = spec(MIX);
    let options = Options { window: WindowChoice::Days { from: mix.warm_days, days: 1 }, policy, ..Options::default() };
    let trace = mixed(&mix, open).expect("a mix");
    let fleet = Fleet::parse_shorthand("40x8:h100:leaf=4:block=2").expect("a fleet");
    let input = ReplayInput { title: "a day".to_owned(), trace, fleet, options };
    replay(&input, &mut |_, _| {}).expect("a report")
}

#[test]
fn blind_policies_serve_the_same_day_and_scatter_its_gangs() {
    let [topology, best, first] =
        [PlacementPolicy::Topology, PlacementPolicy::BestFit, PlacementPolicy::FirstFit].map(day);
    for report in [&topology, &best, &first] {
        assert_eq!((report.jobs.submitted, report.jobs.refused, report.jobs.waiting_at_stop), (95, 0, 0));
        let gangs: u64 = report.closeness.iter().map(|row| row.gangs).sum();
        assert!(gangs > 10);
        assert!(report.closeness.iter().all(|row| row.leaves >= row.leaves_fewest && row.nodes >= row.nodes_fewest));
        assert!(html::render(report).contains("How close together gangs stood"));
    }
    let leaves = |report: &Report| report.closeness.iter().map(|row| row.leaves).sum::<u64>();
    assert!(leaves(&topology) < leaves(&best) && leaves(&topology) < leaves(&first));
    assert!(topology.usage.rounded_up_gpu_h > 0.0, "140 thousandths are less than a seventh");
}
