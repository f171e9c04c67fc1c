//! What telemetry costs at 8 cards of 7 slices each. A measurement, made when it is asked for:
//! `MUSTER_TELEMETRY_COST=1 cargo test -p muster-agent --test nvml cost -- --nocapture`.

use crate::host::{Host, create, take};
use crate::node::Node;
use muster_agent::HealthMode;
use muster_gpu_double::Fleet;
use muster_model::mig::MigShape::G1;
use std::time::{Duration, Instant};

/// Samples that are taken; a minute has six.
const ROUNDS: u32 = 60;
const PER_MINUTE: f64 = 6.0;

/// Processor time and resident memory of a process, in ms and KiB.
fn usage(pid: u32) -> (f64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    (ticks * 10.0, resident.trim().trim_end_matches(" kB").parse().unwrap())
}

#[tokio::test]
async fn cost_of_a_full_node() {
    if std::env::var_os("MUSTER_TELEMETRY_COST").is_none() {
        return;
    }
    let host = Host::new(&Fleet::h100(8).with_mig());
    let setting = host.gpus();
    for card in 0..8 {
        for start in 0..7 {
            take(&setting, card, create(G1, start)).await;
        }
    }
    drop(setting);
    let hour = Duration::from_secs(3_600);
    let node = Node::start_with(&host, HealthMode::Enforce, host.gpus().polled_every(hour, hour)).await;
    node.sample().await;
    let (own, helper) = (std::process::id(), node.gpus.helper_pid().unwrap());
    let (before, before_helper) = (usage(own).0, usage(helper).0);
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        node.sample().await;
        longest = longest.max(began.elapsed());
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    let took = began.elapsed();
    let rendering = Instant::now();
    let page = node.page(true);
    let rendered = rendering.elapsed();
    let ((after, resident), (after_helper, resident_helper)) = (usage(own), usage(helper));
    let per_minute = |ms: f64| ms / f64::from(ROUNDS) * PER_MINUTE;
    let samples = node.agent.telemetry().since(0).len();
    println!("{ROUNDS} samples of 8 cards and 56 slices in {took:?}, the longest {longest:?}; {samples} kept");
    println!("agent: {:.1} ms of a processor a minute, {resident} KiB", per_minute(after - before));
    println!(
        "helper: {:.1} ms of a processor a minute, {resident_helper} KiB",
        per_minute(after_helper - before_helper)
    );
    println!("memory of the samples: {} bytes for {samples}", node.agent.telemetry().bytes());
    println!("page: {} bytes, {} lines, {rendered:?}", page.len(), page.lines().count());
}
