//! Worked examples of requests, with their numbers: needs, drivers, selectors, NUMA.

use super::fleet::*;
use muster_model::needs::{Asker, Isolation, Needs, Offer, choose};
use muster_model::request::SharingMode;
use muster_model::*;
use std::collections::{BTreeMap, BTreeSet};

/// The request that the control plane would accept for these needs on this fleet.
fn resolved(fleet: &Fleet, needs: Needs) -> JobSpec {
    let pool = Pool::standard();
    let models: BTreeSet<GpuModel> =
        fleet.nodes.values().flat_map(|node| node.spec.gpus.iter().map(|gpu| gpu.model)).collect();
    let offers: Vec<Offer<'_>> = models
        .into_iter()
        .map(|model| Offer { model, pool: &pool, island_cards: 8, shares: fleet.ledger.share_rule() })
        .collect();
    let asker = Asker { tasks: 1, class: WorkloadClass::Batch, untrusted: false };
    let (devices, choice) = choose(&needs, &asker, &offers).expect("the fleet has a way");
    let asked = Asked { needs: Some(needs), choice: Some(choice), ..Asked::default() };
    JobSpec { asked, ..job(1, devices) }
}

fn cards_used(fleet: &Fleet) -> usize {
    let tasks = fleet.allocations.values().flat_map(|allocation| &allocation.tasks);
    tasks.flat_map(|task| task.devices.iter().map(move |hold| (task.node, hold.gpu))).collect::<BTreeSet<_>>().len()
}

#[test]
fn five_jobs_of_fifteen_percent_five_cards_before_one_h100_in_slices_after() {
    let fleet = || Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    let mut before = fleet();
    for _ in 0..5 {
        before.submit(gang(1, 1));
    }
    before.settle();
    assert_eq!(cards_used(&before), 5);

    let mut after = fleet();
    let needs = Needs {
        memory_mib: 8_192,
        compute_percent: 15,
        isolation: Isolation::Strict,
        bursty: false,
        latency_critical: false,
        models: vec![],
    };
    let jobs: Vec<JobId> = (0..5).map(|_| after.submit(resolved(&after, needs.clone()))).collect();
    after.settle();
    assert!(jobs.iter().all(|job| after.runs(*job)));
    assert_eq!(cards_used(&after), 1);
    let held = after.allocation_of(jobs[0]).expect("runs");
    assert!(matches!(held.tasks[0].devices[0].mode, HoldMode::Mig(place) if place.shape == mig::MigShape::G1));
}

/// Cards by the mode in which they are driven.
fn cards_by_mode(fleet: &Fleet) -> BTreeMap<SharingMode, usize> {
    let tasks = fleet.allocations.values().flat_map(|allocation| &allocation.tasks);
    let cards = tasks.flat_map(|task| task.devices.iter().map(move |hold| (hold.mode.mode(), task.node, hold.gpu)));
    let cards: BTreeSet<_> = cards.collect();
    let mut modes = BTreeMap::new();
    cards.into_iter().for_each(|(mode, ..)| *modes.entry(mode).or_default() += 1);
    modes
}

/// `8 GiB, 15 % of a card, strictly kept apart` and the like.
fn strictly(memory_mib: u64, compute_percent: u32) -> Needs {
    Needs {
        memory_mib,
        compute_percent,
        isolation: Isolation::Strict,
        bursty: false,
        latency_critical: false,
        models: vec![],
    }
}

/// A notebook: mostly idle, happy with turns.
fn notebook(memory_mib: u64) -> Needs {
    Needs { bursty: true, isolation: Isolation::BestEffort, ..strictly(memory_mib, 5) }
}

#[test]
fn ten_a100_serve_four_trainings_twenty_models_and_thirty_notebooks() {
    let host = Host { per_island: 10, ..Host::new("a", GpuModel::A100_80, 10) };
    let mut fleet = Fleet::new([host]);
    fleet.put_pool(Pool { time_slice_replicas: 10, ..Pool::standard() });
    let training = job(1, DeviceRequest::Whole { count: 4, models: vec![] });
    let mut jobs = vec![fleet.submit(JobSpec { class: WorkloadClass::Training, ..training })];
    for number in 0..30 {
        if number < 20 {
            jobs.push(fleet.submit(resolved(&fleet, strictly(10_240, 0))));
        }
        // Ten of them with their contexts, and the driver, fill a card.
        jobs.push(fleet.submit(resolved(&fleet, notebook(7_680))));
    }
    fleet.settle();
    assert!(jobs.iter().all(|job| fleet.runs(*job)));
    let modes = [(SharingMode::Whole, 4), (SharingMode::Mig, 3), (SharingMode::TimeSlice, 3)];
    assert_eq!(cards_by_mode(&fleet), modes.into());
    // Three cards have twenty-one sevenths: one is spare.
    let more =
        [fleet.submit(resolved(&fleet, strictly(10_240, 0))), fleet.submit(resolved(&fleet, strictly(10_240, 0)))];
    fleet.settle();
    assert_eq!(more.map(|job| fleet.runs(job)), [true, false]);
}

#[test]
fn thirty_six_requests_wait_for_four_cards_of_thirty_two_or_need_twenty_when_packed() {
    let fleet = || Fleet::new(["a", "b", "c", "d"].map(|name| Host::new(name, GpuModel::H100, 8)));
    let mut before = fleet();
    let jobs: Vec<JobId> = (0..36).map(|_| before.submit(gang(1, 1))).collect();
    before.settle();
    let waiting: Vec<JobId> = jobs.into_iter().filter(|job| !before.runs(*job)).collect();
    assert_eq!((waiting.len(), cards_used(&before)), (4, 32));
    let said = crate::explain(&before.view, waiting[0], 0).expect("live");
    assert_eq!(said.reasons[0].code(), "no_free_gpus");
    assert!(
        said.reasons[0].text().contains("0 of 32 h100 are free in cell cell-1; 1 h100 needed"),
        "{}",
        said.reasons[0].text()
    );

    let mut packed = fleet();
    let mut jobs: Vec<JobId> = (0..16).map(|_| packed.submit(gang(1, 1))).collect();
    for number in 0..12 {
        jobs.push(packed.submit(resolved(&packed, strictly(8_192, 15))));
        if number < 8 {
            jobs.push(packed.submit(resolved(&packed, notebook(4_096))));
        }
    }
    packed.settle();
    assert!(jobs.iter().all(|job| packed.runs(*job)));
    // Twelve sevenths on two cards, eight notebooks by four turns on two.
    let modes = [(SharingMode::Whole, 16), (SharingMode::Mig, 2), (SharingMode::TimeSlice, 2)];
    assert_eq!(cards_by_mode(&packed), modes.into());
    assert_eq!(cards_used(&packed), 20);
}

#[test]
fn twenty_two_gigabytes_stand_on_a_3g_40gb_slice() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    let needs = Needs {
        memory_mib: 22 * 1_024,
        compute_percent: 0,
        isolation: Isolation::Strict,
        bursty: false,
        latency_critical: false,
        models: vec![],
    };
    let jobs: Vec<JobId> = (0..3).map(|_| fleet.submit(resolved(&fleet, needs.clone()))).collect();
    fleet.settle();
    // Two of them on one card, whose eighty gigabytes have no room for a third.
    assert_eq!(jobs.iter().map(|job| fleet.runs(*job)).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(cards_used(&fleet), 1);
}

fn with_driver(fleet: &mut Fleet, id: u32, driver: &str) {
    let mut node = fleet.nodes[&NodeId(id)].clone();
    node.spec.driver = driver.into();
    fleet.put_node(node);
    fleet.deliver(usize::MAX);
}

fn with_label(fleet: &mut Fleet, id: u32, key: &str, value: &str) {
    let mut node = fleet.nodes[&NodeId(id)].clone();
    node.spec.labels.insert(key.into(), value.into());
    fleet.put_node(node);
    fleet.deliver(usize::MAX);
}

fn nodes_of(fleet: &Fleet, job: JobId) -> Vec<u32> {
    fleet.allocation_of(job).map(|held| held.tasks.iter().map(|task| task.node.0).collect()).unwrap_or_default()
}

#[test]
fn an_older_driver_is_passed_by_and_told() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 4), Host::new("b", GpuModel::H100, 4)]);
    with_driver(&mut fleet, 1, "535.104.05");
    let driver_min = "550".parse().ok();
    let ways: [JobSpec; 4] = [gang(1, 1), mig("1g.10gb"), mps(10, 1_000), slice(1_000)];
    for spec in ways {
        let id = fleet.submit(JobSpec { driver_min, ..spec });
        fleet.settle();
        assert_eq!(nodes_of(&fleet, id), [2]);
    }
    let newer = fleet.submit(JobSpec { driver_min: "570".parse().ok(), ..gang(1, 1) });
    fleet.settle();
    assert!(!fleet.runs(newer));
    let said = crate::explain(&fleet.view, newer, 0).expect("live");
    assert_eq!(said.reasons[0].code(), "driver_too_old");
    let text = "every h100 of cell cell-1 that it may use has a driver older than 570: the newest is 550";
    assert!(said.reasons[0].text().contains(text), "{}", said.reasons[0].text());
    // An upgraded node starts it.
    with_driver(&mut fleet, 1, "575.10");
    fleet.settle();
    assert_eq!(nodes_of(&fleet, newer), [1]);
}

#[test]
fn a_selector_picks_its_nodes_or_is_told() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 4), Host::new("b", GpuModel::H100, 4)]);
    with_label(&mut fleet, 2, "tier", "gold");
    let selecting = |text: &str, spec: JobSpec| JobSpec {
        asked: Asked { selector: Some(text.parse().expect("a selector")), ..Asked::default() },
        ..spec
    };
    let gold = "node.labels[\"tier\"] == \"gold\"";
    let ways: [JobSpec; 4] = [gang(1, 1), mig("1g.10gb"), mps(10, 1_000), slice(1_000)];
    for spec in ways {
        let id = fleet.submit(selecting(gold, spec));
        fleet.settle();
        assert_eq!(nodes_of(&fleet, id), [2]);
    }
    let silver = fleet.submit(selecting("node.labels[\"tier\"] == \"silver\"", gang(1, 1)));
    fleet.settle();
    assert!(!fleet.runs(silver));
    let said = crate::explain(&fleet.view, silver, 0).expect("live");
    assert_eq!(said.reasons[0].code(), "not_selected");
    assert!(said.reasons[0].text().contains("silver"), "{}", said.reasons[0].text());
    with_label(&mut fleet, 1, "tier", "silver");
    fleet.settle();
    assert_eq!(nodes_of(&fleet, silver), [1]);
}

/// Of two pools with free cards, one allows the image, for reading and writing below one folder.
#[test]
fn a_job_with_an_image_or_mounts_goes_where_a_pool_allows_them() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8), Host::new("b", GpuModel::H100, 8)]);
    let mut node = fleet.nodes[&NodeId(2)].clone();
    node.spec.pool = "images".to_owned();
    fleet.put_node(node);
    let rule = |path: &str, write| MountRule { path: path.to_owned(), write };
    let mut pool = Pool { name: "images".to_owned(), ..Pool::standard() };
    pool.images = vec!["docker://r.example/ml/".to_owned()];
    pool.mounts = vec![rule("/data", false), rule("/data/out", true)];
    fleet.put_pool(pool);
    fleet.deliver(usize::MAX);
    let mount = |source: &str, read_only| Mount { source: source.to_owned(), target: "/data".to_owned(), read_only };
    let with = |image: Option<&str>, mounts: &[Mount]| JobSpec {
        image: image.map(str::to_owned),
        mounts: mounts.to_vec(),
        ..gang(1, 1)
    };
    let torch = Some("docker://r.example/ml/torch:2");
    for spec in
        [with(torch, &[]), with(None, &[mount("/data/sets", true)]), with(torch, &[mount("/data/out/a", false)])]
    {
        let id = fleet.submit(spec);
        fleet.settle();
        assert_eq!(nodes_of(&fleet, id), [2]);
    }
    for (spec, said) in [
        (with(Some("docker://r.example/mlx/torch"), &[]), "does not allow image docker://r.example/mlx/torch"),
        (with(torch, &[mount("/data/sets", false)]), "does not allow mount /data/sets:/data:rw"),
        (with(torch, &[mount("/data2", true)]), "does not allow mount /data2:/data:ro"),
    ] {
        let id = fleet.submit(spec);
        fleet.settle();
        assert!(!fleet.runs(id));
        let why = crate::explain(&fleet.view, id, 0).expect("live");
        assert!(why.reasons[0].text().contains(said), "{}", why.reasons[0].text());
    }
}

#[test]
fn a_job_that_may_need_several_nodes_does_not_go_where_the_network_is_private() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8), Host::new("b", GpuModel::H100, 8)]);
    let mut node = fleet.nodes[&NodeId(2)].clone();
    node.spec.pool = "secure".to_owned();
    fleet.put_node(node);
    let private = Some(NetworkPolicy::Private);
    fleet.put_pool(Pool { name: "secure".to_owned(), network: private, ..Pool::standard() });
    fleet.deliver(usize::MAX);
    let there = |spec: JobSpec| JobSpec { pool: Some("secure".to_owned()), ..spec };
    let on_one_node = |mut spec: JobSpec| {
        spec.topology.required = Some(TopologyLevel::Node);
        spec
    };
    for (spec, nodes) in [(there(gang(1, 1)), &[2][..]), (there(on_one_node(gang(4, 1))), &[2; 4])] {
        let id = fleet.submit(spec);
        fleet.settle();
        assert_eq!(nodes_of(&fleet, id), nodes);
    }
    let id = fleet.submit(there(gang(2, 1)));
    fleet.settle();
    assert!(!fleet.runs(id));
    let why = crate::explain(&fleet.view, id, 0).expect("live");
    let said = "does not allow jobs on several nodes (network: private)";
    assert!(why.reasons[0].text().contains(said), "{}", why.reasons[0].text());
    let id = fleet.submit(gang(2, 1));
    fleet.settle();
    assert_eq!(nodes_of(&fleet, id), [1; 2]);
}

/// A node of eight cards, four on each NUMA node, of which the first two of each are held.
fn numa_halves_half_taken() -> Fleet {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    let mut node = fleet.nodes[&NodeId(1)].clone();
    for (index, gpu) in node.spec.gpus.iter_mut().enumerate() {
        gpu.numa = (index / 4) as u8;
        gpu.withheld = (index % 4 < 2).then(|| "held back".to_owned());
    }
    fleet.put_node(node);
    fleet.deliver(usize::MAX);
    fleet
}

#[test]
fn four_gpus_across_numa_nodes_are_refused_under_restricted() {
    let check = |numa: NumaPolicy, runs: bool| {
        let mut fleet = numa_halves_half_taken();
        let id = fleet.submit(JobSpec { numa, ..gang(1, 4) });
        fleet.settle();
        assert_eq!(fleet.runs(id), runs, "{numa}");
        if !runs {
            let said = crate::explain(&fleet.view, id, 0).expect("live");
            let (code, text, fix) = (said.reasons[0].code(), said.reasons[0].text(), said.reasons[0].fix());
            assert_eq!(code, "numa", "{text}");
            assert!(text.contains("no node has 4 free as NUMA policy"), "{text}");
            assert!(fix.contains("best-effort"), "{fix}");
        }
    };
    check(NumaPolicy::None, true);
    check(NumaPolicy::BestEffort, true);
    check(NumaPolicy::Restricted, false);
    check(NumaPolicy::SingleNumaNode, false);
}

#[test]
fn eight_gpus_need_both_numa_nodes_and_restricted_lets_them() {
    let check = |numa: NumaPolicy, runs: bool| {
        let mut fleet = numa_halves_half_taken();
        let mut node = fleet.nodes[&NodeId(1)].clone();
        node.spec.gpus.iter_mut().for_each(|gpu| gpu.withheld = None);
        fleet.put_node(node);
        let id = fleet.submit(JobSpec { numa, ..gang(1, 8) });
        fleet.settle();
        assert_eq!(fleet.runs(id), runs, "{numa}");
    };
    check(NumaPolicy::Restricted, true);
    check(NumaPolicy::SingleNumaNode, false);
}

/// Two tasks of two cards fit six cards on two NUMA nodes, three do not: nothing is held back for what would not fit an empty cell.
#[test]
fn no_cards_are_held_back_for_a_gang_that_the_numa_nodes_of_the_cell_could_never_hold() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 6)]);
    let mut node = fleet.nodes[&NodeId(1)].clone();
    node.spec.gpus.iter_mut().enumerate().for_each(|(index, gpu)| gpu.numa = (index / 3) as u8);
    fleet.put_node(node);
    let check = |fleet: &mut Fleet, tasks: u32, waits: bool| {
        let first = fleet.submit(gang(1, 1));
        fleet.settle();
        let bypassed = fleet.submit(JobSpec { numa: NumaPolicy::SingleNumaNode, ..gang(tasks, 2) });
        fleet.settle();
        if waits {
            fleet.put_job(Job { bypassed_cards: 1_000, ..fleet.jobs[&bypassed].clone() });
            fleet.settle();
        }
        let small = fleet.submit(gang(1, 1));
        fleet.settle();
        let runs = [first, bypassed, small].map(|job| fleet.runs(job));
        [first, small].into_iter().for_each(|job| fleet.end(job, false));
        fleet.end(bypassed, false);
        fleet.cancel(bypassed);
        fleet.settle();
        runs
    };
    assert_eq!(check(&mut fleet, 2, false), [true, true, true]);
    assert_eq!(check(&mut fleet, 3, true), [true, false, true]);
}
