//! The double's MIG rules against those of `muster_model`.

use muster_gpu_double::{Card, Fleet, Refusal, state::profiles};
use muster_model::mig::{MigPlacement, MigShape, free_starts, profile_name};
use muster_model::{GpuModel, mig::can_stand};
use proptest::prelude::*;

const MODELS: [GpuModel; 8] = [
    GpuModel::A30,
    GpuModel::A100_40,
    GpuModel::A100_80,
    GpuModel::H100,
    GpuModel::H100_94,
    GpuModel::GH200,
    GpuModel::H200,
    GpuModel::B200,
];

/// The number of a shape's profile in `nvml.h`.
const fn number(shape: MigShape) -> u32 {
    match shape {
        MigShape::G1 => 0,
        MigShape::G2 => 1,
        MigShape::G3 => 2,
        MigShape::G4 => 3,
        MigShape::G7 => 4,
        MigShape::G1Media => 7,
        MigShape::G2Media => 8,
        MigShape::G1Double => 9,
    }
}

#[test]
fn every_model_has_the_profiles_of_the_model() {
    for model in MODELS {
        let family = model.facts().mig.unwrap();
        for shape in MigShape::ALL {
            let own = profiles::by_number(model, number(shape));
            let starts: Vec<u32> = shape.starts(family).iter().map(|start| u32::from(*start)).collect();
            assert_eq!(own.map_or(&[][..], |profile| profile.starts), starts, "{model} {shape:?}");
            let Some(own) = own else { continue };
            assert_eq!(Some(own.name.to_owned()), profile_name(model, shape));
            assert_eq!(own.compute_slices, u32::from(shape.compute_slices()));
            assert_eq!(own.memory_slices, u32::from(shape.memory_slices()));
            assert_eq!(own.has_media(), shape.has_media());
        }
        assert_eq!(profiles::of(model).len(), MigShape::ALL.iter().filter(|s| !s.starts(family).is_empty()).count());
    }
    assert!(GpuModel::ALL.iter().all(|model| model.facts().mig.is_some() != profiles::of(*model).is_empty()));
}

/// Where the double would make an instance of `shape`.
fn possible(card: &Card, shape: MigShape) -> Vec<u32> {
    let profile = profiles::by_number(card.model, number(shape));
    profile.map_or_else(Vec::new, |profile| {
        profile.starts.iter().copied().filter(|start| card.can_stand(profile, *start)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Instances are made anywhere and destroyed in any order: both sides allow the same, and the same places stay open.
    #[test]
    fn the_double_and_the_model_agree(
        model in 0..MODELS.len(),
        steps in proptest::collection::vec((any::<bool>(), 0..8usize, 0..8u8, any::<usize>()), 1..60),
    ) {
        let model = MODELS[model];
        let family = model.facts().mig.unwrap();
        let mut card = Fleet::of(model, 1).with_mig().cards.remove(0);
        let mut standing: Vec<(u32, MigPlacement)> = Vec::new();
        for (serial, (makes, shape, start, which)) in steps.into_iter().enumerate() {
            let shape = MigShape::ALL[shape];
            let beside: Vec<MigPlacement> = standing.iter().map(|(_, place)| *place).collect();
            if makes {
                let place = MigPlacement { shape, start };
                let Some(profile) = profiles::by_number(model, number(shape)) else { continue };
                let at = Some((start.into(), profile.memory_slices));
                let made = card.make_instance(profile.id, at, serial as u32).map(|gpu| gpu.id);
                prop_assert_eq!(made.is_ok(), can_stand(family, &beside, place), "{:?} beside {:?}", place, beside);
                match made {
                    Ok(id) => {
                        prop_assert!(standing.iter().all(|(other, _)| *other != id), "id {} twice", id);
                        standing.push((id, place));
                    }
                    Err(refusal) => {
                        let is_legal = shape.starts(family).contains(&start);
                        let expected = if is_legal { Refusal::InsufficientResources } else { Refusal::InvalidArgument };
                        prop_assert_eq!(refusal, expected);
                    }
                }
            } else if !standing.is_empty() {
                let (id, _) = standing.remove(which % standing.len());
                prop_assert_eq!(card.destroy_instance(id), Ok(()));
            }
            let beside: Vec<MigPlacement> = standing.iter().map(|(_, place)| *place).collect();
            for shape in MigShape::ALL {
                let of_model: Vec<u32> = free_starts(family, &beside, shape).map(|place| place.start.into()).collect();
                prop_assert_eq!(possible(&card, shape), of_model, "{:?} beside {:?}", shape, beside);
            }
        }
    }
}
