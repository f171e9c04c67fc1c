//! Public traces, where they are at hand: `MUSTER_TRACES` names their folder, `../shared/traces` is looked at otherwise.
//! Without them these tests say so and pass; where `MUSTER_CI` is set they fail.

use muster_twin::fleet::Fleet;
use muster_twin::import::{Format, Trace};
use muster_twin::window::WindowChoice;
use muster_twin::{Options, ReplayInput, html, replay};
use std::fs::File;
use std::path::PathBuf;

fn file(name: &str) -> Option<PathBuf> {
    let beside = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is") + "/../../shared/traces";
    let folder = std::env::var_os("MUSTER_TRACES").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let path = folder.join(name);
    if !path.is_file() {
        let missing = format!("{} is not there; set MUSTER_TRACES to the folder of the public traces", path.display());
        assert!(std::env::var_os("MUSTER_CI").is_none(), "{missing}");
        println!("not tested: {missing}");
        return None;
    }
    Some(path)
}

fn load(format: Format, names: &[&str]) -> Option<Trace> {
    let mut trace = Trace::default();
    for name in names {
        let path = file(name)?;
        let source = path.file_name()?.to_string_lossy().into_owned();
        trace.add(format, File::open(&path).expect("it is there"), &source).expect("the header fits");
    }
    Some(trace)
}

#[test]
fn every_row_of_the_published_files_is_understood() {
    let cases: [(Format, &[&str], usize); 4] = [
        (Format::Itp, &["itp/cluster01.csv", "itp/cluster04.csv"], 1_595 + 15_802),
        (Format::Philly, &["philly/philly_until_2017-11.csv"], 74_167),
        (Format::Openb, &["openb/openb_pod_list_default.csv"], 8_152),
        (Format::Openb, &["openb/openb_pod_list_gpuspec33.csv"], 8_152),
    ];
    for (format, names, rows) in cases {
        let Some(trace) = load(format, names) else { return };
        assert_eq!(
            (trace.jobs.len() as u64 + trace.bad.count, trace.bad.count),
            (rows as u64, 0),
            "{names:?}: {:?}",
            trace.bad
        );
        let skipped: u64 = trace.skipped.values().sum();
        assert_eq!(skipped, 0, "{names:?}");
    }
}

#[test]
fn a_week_of_itp_is_served_whole() {
    let Some(trace) = load(Format::Itp, &["itp/cluster03.csv"]) else { return };
    let options = Options { window: WindowChoice::Busiest { days: 7 }, ..Options::default() };
    let fleet = Fleet::parse_shorthand("256x8:h100").expect("a fleet");
    let input = ReplayInput { title: "ITP 03".to_owned(), trace, fleet, options };
    let report = replay(&input, &mut |_, _| {}).expect("a report");
    assert_eq!((report.jobs.refused, report.jobs.running_at_stop, report.jobs.waiting_at_stop), (0, 0, 0));
    assert!(report.jobs.submitted > 700 && report.usage.allocated_share > 0.1, "{:?}", report.usage);
    assert!(html::render(&report).len() < 300 * 1024);
}

#[test]
fn openb_shares_run_on_the_nodes_they_were_recorded_on() {
    let (Some(trace), Some(nodes)) =
        (load(Format::Openb, &["openb/openb_pod_list_gpuspec33.csv"]), file("openb/openb_node_list_gpu_node.csv"))
    else {
        return;
    };
    let fleet = Fleet::from_openb_nodes(File::open(nodes).expect("it is there"), "openb").expect("a fleet");
    assert_eq!((fleet.gpus(), fleet.groups.iter().map(|group| group.nodes).sum::<u32>()), (6_212, 1_213));
    let options = Options { window: WindowChoice::Whole, drain_days_max: 400, ..Options::default() };
    let input = ReplayInput { title: "openb".to_owned(), trace, fleet, options };
    let report = replay(&input, &mut |_, _| {}).expect("a report");
    // One pod of this list wants 120 CPUs beside eight G2 cards; nodes with G2 have 96.
    assert_eq!(report.jobs.refused, 1, "{:?}", report.refused);
    assert!(
        report.jobs.failed > 0 && report.waits.iter().any(|row| row.size == "share" && row.recorded_wait_s.is_some())
    );
}
