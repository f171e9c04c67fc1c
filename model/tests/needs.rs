//! Needs alone: what the system picks, with the figures of the worked examples, and what it refuses.

use muster_model::capacity::ShareRule;
use muster_model::needs::{Asker, Isolation, Needs, Offer, Rule, choose};
use muster_model::request::SharingMode;
use muster_model::{DeviceRequest, GpuModel, Pool, WorkloadClass, mig};
use proptest::prelude::*;

fn needs(memory_mib: u64, compute_percent: u32, isolation: Isolation) -> Needs {
    Needs { memory_mib, compute_percent, isolation, bursty: false, latency_critical: false, models: vec![] }
}

fn bursty(needs: Needs) -> Needs {
    Needs { bursty: true, ..needs }
}

fn latency(needs: Needs) -> Needs {
    Needs { latency_critical: true, ..needs }
}

const ONE: Asker = Asker { tasks: 1, class: WorkloadClass::Inference, untrusted: false };

fn pool(modes: &[SharingMode]) -> Pool {
    Pool { modes: modes.iter().copied().collect(), ..Pool::standard() }
}

/// The request in short, on H100 in a pool that allows everything, and the rule.
fn on_h100(needs: &Needs, asker: &Asker) -> (String, Rule) {
    on(needs, asker, GpuModel::H100, &Pool::standard())
}

fn on(needs: &Needs, asker: &Asker, model: GpuModel, pool: &Pool) -> (String, Rule) {
    let offers = [Offer { model, pool, island_cards: 8, shares: ShareRule::default() }];
    let (request, choice) = choose(needs, asker, &offers).unwrap_or_else(|error| panic!("{needs:?}: {error}"));
    assert_eq!(request.models(), [model]);
    (short(&request), choice.rule)
}

fn short(request: &DeviceRequest) -> String {
    match request {
        DeviceRequest::None => "none".into(),
        DeviceRequest::Whole { count, .. } => format!("{count} whole"),
        DeviceRequest::Mig { profile, .. } => profile.clone(),
        DeviceRequest::Mps { percent, memory_mib, .. } => format!("mps {percent} % {memory_mib}"),
        DeviceRequest::TimeSlice { memory_mib, .. } => format!("slice {memory_mib}"),
    }
}

#[test]
fn each_kind_of_need_gets_its_way() {
    use Isolation::{BestEffort, Strict, Trusted};
    let check = |needs: Needs, expected: &str, rule: Rule| {
        assert_eq!(on_h100(&needs, &ONE), (expected.to_owned(), rule), "{needs:?}");
    };
    // Steady and small: the smallest slice that holds the memory, and the compute within a fifth.
    check(needs(8_000, 15, BestEffort), "1g.10gb", Rule::SteadyAndSmall);
    check(needs(8_000, 17, Trusted), "1g.10gb", Rule::SteadyAndSmall);
    check(needs(8_000, 18, BestEffort), "2g.20gb", Rule::SteadyAndSmall);
    check(needs(15_000, 10, BestEffort), "1g.20gb", Rule::SteadyAndSmall);
    check(needs(22_000, 10, BestEffort), "3g.40gb", Rule::SteadyAndSmall);
    check(needs(8_000, 60, Strict), "4g.40gb", Rule::StrictIsolation);
    // Strict: whole or MIG.
    check(needs(50_000, 10, Strict), "1 whole", Rule::StrictIsolation);
    check(bursty(needs(8_000, 15, Strict)), "2g.20gb", Rule::StrictIsolation);
    // Bursty and best-effort borrows; bursty and latency-critical is sized for its peak, without tolerance.
    check(bursty(needs(8_000, 15, BestEffort)), "slice 8000", Rule::BorrowsIdleTime);
    check(bursty(needs(8_000, 15, Trusted)), "mps 15 % 8000", Rule::BorrowsIdleTime);
    check(latency(bursty(needs(8_000, 15, BestEffort))), "2g.20gb", Rule::LatencyCritical);
    check(latency(bursty(needs(8_000, 14, BestEffort))), "1g.10gb", Rule::LatencyCritical);
    check(latency(bursty(needs(60_000, 50, BestEffort))), "1 whole", Rule::LatencyCritical);
    // More than a card: whole cards of one island.
    check(needs(200_000, 50, BestEffort), "3 whole", Rule::LargerThanACard);
    check(needs(8_000, 350, Strict), "4 whole", Rule::LargerThanACard);
}

#[test]
fn who_asks_and_where_narrows_the_ways() {
    use SharingMode::{Mig, Mps, TimeSlice, Whole};
    let small = bursty(needs(8_000, 15, Isolation::BestEffort));
    let steady = needs(8_000, 15, Isolation::BestEffort);
    let check = |needs: &Needs, asker: Asker, model, modes: &[SharingMode], expected: &str| {
        assert_eq!(on(needs, &asker, model, &pool(modes)).0, expected, "{asker:?} {model} {modes:?}");
    };
    let all = [Whole, Mig, Mps, TimeSlice];
    check(&small, Asker { untrusted: true, ..ONE }, GpuModel::H100, &all, "2g.20gb");
    check(&small, Asker { class: WorkloadClass::Training, ..ONE }, GpuModel::H100, &all, "mps 15 % 8000");
    // A gang gets no MIG slices: they have no peer access.
    check(&steady, Asker { tasks: 2, ..ONE }, GpuModel::H100, &all, "mps 15 % 8000");
    check(&needs(8_000, 15, Isolation::Strict), Asker { tasks: 2, ..ONE }, GpuModel::H100, &all, "1 whole");
    // A card without MIG, and pools that leave ways out.
    check(&steady, ONE, GpuModel::L40S, &all, "mps 15 % 8000");
    check(&needs(8_000, 15, Isolation::Strict), ONE, GpuModel::L40S, &all, "1 whole");
    check(&small, ONE, GpuModel::H100, &[Whole, Mps], "mps 15 % 8000");
    check(&steady, ONE, GpuModel::H100, &[Whole, TimeSlice], "slice 8000");
    check(&steady, ONE, GpuModel::H100, &[Whole], "1 whole");
    assert_eq!(on(&steady, &ONE, GpuModel::H100, &pool(&[Whole])).1, Rule::NothingSmaller);
    // A seventh of a card is 14 %: a pool without tolerance gives the next larger slice for 15 %.
    let strict = Pool { compute_tolerance_percent: 0, ..Pool::standard() };
    assert_eq!(on(&steady, &ONE, GpuModel::H100, &strict).0, "2g.20gb");
}

/// A time-slice gives at least the part of the card that is left when all of its places are taken.
#[test]
fn compute_on_a_time_slice_is_what_is_left_when_the_card_is_full() {
    use SharingMode::{Mps, TimeSlice, Whole};
    let on_places = |replicas, percent, modes: &[SharingMode]| {
        let pool = Pool { time_slice_replicas: replicas, ..pool(modes) };
        on(&bursty(needs(8_000, percent, Isolation::BestEffort)), &ONE, GpuModel::H100, &pool).0
    };
    let all = [Whole, Mps, TimeSlice];
    assert_eq!(on_places(4, 25, &all), "slice 8000");
    assert_eq!(on_places(4, 26, &all), "mps 26 % 8000");
    assert_eq!(on_places(10, 15, &all), "mps 15 % 8000");
    assert_eq!(on_places(10, 15, &[Whole, TimeSlice]), "1 whole");
    assert_eq!(on_places(10, 0, &all), "slice 8000", "compute that does not matter");
    // Where one of the pools gives less, it might be that one.
    let [four, ten] = [4, 10].map(|replicas| Pool { time_slice_replicas: replicas, ..pool(&[Whole, TimeSlice]) });
    let offers =
        [&four, &ten].map(|pool| Offer { model: GpuModel::H100, pool, island_cards: 8, shares: ShareRule::default() });
    let choice = |percent| choose(&bursty(needs(8_000, percent, Isolation::BestEffort)), &ONE, &offers).expect("a way");
    assert!(matches!(choice(15).0, DeviceRequest::Whole { .. }));
    let (request, choice) = choice(10);
    assert!(matches!(request, DeviceRequest::TimeSlice { .. }));
    assert!(choice.text(&request).contains("at least 10 % of the compute"), "{}", choice.text(&request));
}

#[test]
fn a_choice_is_told_with_its_figures() {
    let standard = Pool::standard();
    let offers = [Offer { model: GpuModel::H100, pool: &standard, island_cards: 8, shares: ShareRule::default() }];
    let (request, choice) = choose(&needs(8_000, 15, Isolation::BestEffort), &ONE, &offers).expect("a slice");
    let told = choice.text(&request);
    for part in ["MIG slice 1g.10gb", "smallest", "10240 MiB", "14 %", "h100"] {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn models_are_taken_in_the_order_of_preference_and_all_that_hold_are_accepted() {
    let standard = Pool::standard();
    let offer = |model| Offer { model, pool: &standard, island_cards: 8, shares: ShareRule::default() };
    let offers = [GpuModel::A100_80, GpuModel::H100, GpuModel::T4].map(offer);
    let pick = |models: &[GpuModel]| {
        let needs = Needs { models: models.to_vec(), ..needs(8_000, 10, Isolation::BestEffort) };
        choose(&needs, &ONE, &offers)
            .map(|(request, choice)| (short(&request), request.models().to_vec(), choice.model))
    };
    let both = vec![GpuModel::A100_80, GpuModel::H100];
    assert_eq!(pick(&[]), Ok(("1g.10gb".into(), both, GpuModel::A100_80)));
    let turned = vec![GpuModel::H100, GpuModel::A100_80];
    assert_eq!(pick(&turned.clone()), Ok(("1g.10gb".into(), turned, GpuModel::H100)));
    assert_eq!(pick(&[GpuModel::T4]).map(|picked| picked.0), Ok("mps 10 % 8000".into()));
    let error = pick(&[GpuModel::B200]).expect_err("there is none");
    assert_eq!((error.field.as_str(), error.fix.contains("h100")), ("needs.models", true), "{error}");
}

#[test]
fn what_no_pool_offers_is_refused_with_the_fix() {
    let check = |needs: Needs, modes: &[SharingMode], problem: &str, fix: &str| {
        let pool = pool(modes);
        let offers = [Offer { model: GpuModel::H100, pool: &pool, island_cards: 4, shares: ShareRule::default() }];
        let error = choose(&needs, &ONE, &offers).expect_err("nothing holds it");
        assert!(error.problem.contains(problem) && error.fix.contains(fix), "{error}");
    };
    let everything = [SharingMode::Whole, SharingMode::Mig, SharingMode::Mps];
    check(needs(400_000, 0, Isolation::Strict), &everything, "largest island (4 h100)", "split");
    check(needs(1_000, 500, Isolation::Strict), &everything, "largest island (4 h100)", "split");
    check(needs(8_000, 15, Isolation::Strict), &[SharingMode::Mps], "pool default allows mps", "weaker isolation");
    let error = choose(&needs(1, 1, Isolation::Strict), &ONE, &[]).expect_err("no offers");
    assert_eq!(error.field, "needs");
}

fn any_needs() -> impl Strategy<Value = Needs> {
    let isolation = prop::sample::select(vec![Isolation::Strict, Isolation::Trusted, Isolation::BestEffort]);
    (1..300_000_u64, 0..400_u32, isolation, any::<bool>(), any::<bool>()).prop_map(
        |(memory_mib, compute_percent, isolation, bursty, latency_critical)| Needs {
            memory_mib,
            compute_percent,
            isolation,
            bursty,
            latency_critical,
            models: vec![],
        },
    )
}

proptest! {
    /// What is chosen holds the memory, gives the compute within the tolerance, and keeps the isolation, on every model it names.
    #[test]
    fn a_choice_keeps_what_was_asked(
        needs in any_needs(), tasks in 1..3_u32, training in any::<bool>(), untrusted in any::<bool>(),
        models in prop::sample::subsequence(GpuModel::ALL.to_vec(), 1..GpuModel::COUNT),
    ) {
        let class = if training { WorkloadClass::Training } else { WorkloadClass::Inference };
        let asker = Asker { tasks, class, untrusted };
        let pool = Pool::standard();
        let offers: Vec<Offer<'_>> = models.iter().map(|model| Offer { model: *model, pool: &pool, island_cards: 8, shares: ShareRule::default() }).collect();
        let Ok((request, choice)) = choose(&needs, &asker, &offers) else { return Ok(()) };
        prop_assert!(request.models().contains(&choice.model));
        for model in request.models() {
            prop_assert!(models.contains(model) && request.possible_on(*model));
            let cards = u64::from(request.cards());
            let (memory, percent) = match &request {
                DeviceRequest::Whole { .. } => (cards * model.memory_mib(), cards * 100),
                DeviceRequest::Mig { .. } => {
                    let shape = request.mig_shape(*model).expect("it has the profile");
                    let all = if model.facts().mig == Some(muster_model::gpu::MigFamily::Four) { 4 } else { 7 };
                    (mig::instance_memory_mib(*model, shape).expect("MIG"), u64::from(shape.compute_slices()) * 100 / all)
                }
                DeviceRequest::Mps { percent, memory_mib, .. } => (*memory_mib, u64::from(*percent)),
                DeviceRequest::TimeSlice { memory_mib, .. } => (*memory_mib, u64::from(choice.compute_percent)),
                DeviceRequest::None => (0, 0),
            };
            prop_assert!(memory >= needs.memory_mib, "{request:?}");
            // Whole percents are rounded down: one less is as good.
            let least = u64::from(needs.compute_percent) * 80 / 100;
            prop_assert!(percent + 1 > least, "{request:?} gives {percent} %");
            if needs.bursty || needs.latency_critical {
                prop_assert!(percent + 1 >= u64::from(needs.compute_percent), "{request:?} gives {percent} %");
            }
        }
        let shared = matches!(request, DeviceRequest::Mps { .. } | DeviceRequest::TimeSlice { .. });
        prop_assert!(!(shared && (untrusted || needs.isolation == Isolation::Strict)));
        prop_assert!(!(needs.bursty && needs.latency_critical && shared));
        let mig_gang = matches!(request, DeviceRequest::Mig { .. }) && tasks > 1;
        prop_assert!(!mig_gang);
        let by_turns = matches!(request, DeviceRequest::TimeSlice { .. });
        prop_assert!(!(by_turns && (training || needs.isolation == Isolation::Trusted)));
    }
}
