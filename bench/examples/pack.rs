use muster_bench::packing::{policy::Policy, sweep::{Sweep, run}};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let policy = match a[2].as_str() { "muster" => Policy::Muster, "fgd" => Policy::Fgd, _ => Policy::BestFit };
    run(&Sweep { folder: a[1].clone().into(), orders: a[3].parse().unwrap(), moves_percent: a[4].parse().unwrap(), policy, logs: a.get(5).map(|x| x.into()), published: None }, false).unwrap();
}
