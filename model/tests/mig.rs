//! MIG geometry, exhaustively: names, places and the number of layouts that NVIDIA's tables give.

use muster_model::GpuModel;
use muster_model::gpu::MigFamily;
use muster_model::mig::MigShape::{G1, G1Double, G1Media, G2, G2Media, G3, G4, G7};
use muster_model::mig::{
    MigPlacement, MigShape, can_stand, canonical_profile, free_starts, instance_memory_mib, is_maximal, legal_layouts,
    parse_profile, profile_name,
};
use std::collections::BTreeSet;

fn shapes(family: MigFamily, keep: impl Fn(MigShape) -> bool) -> Vec<MigShape> {
    MigShape::ALL.into_iter().filter(|shape| keep(*shape) && !shape.starts(family).is_empty()).collect()
}

fn check_counts(family: MigFamily, keep: impl Fn(MigShape) -> bool, maximal: usize, legal: usize) {
    let shapes = shapes(family, keep);
    let layouts = legal_layouts(family, &shapes);
    let distinct: BTreeSet<_> = layouts.iter().collect();
    assert_eq!(distinct.len(), layouts.len(), "a layout is listed twice");
    assert_eq!(layouts.len(), legal, "legal layouts of {family:?} from {shapes:?}");
    assert_eq!(layouts.iter().filter(|layout| is_maximal(family, layout, &shapes)).count(), maximal);
}

#[test]
fn layouts_are_as_many_as_the_tables_say() {
    check_counts(MigFamily::Eight, MigShape::is_base, 19, 298);
    check_counts(MigFamily::Four, MigShape::is_base, 5, 26);
    check_counts(MigFamily::Eight, |shape| !shape.has_media(), 78, 723);
}

#[test]
fn no_layout_uses_a_slice_twice_or_more_compute_than_there_is() {
    for (family, memory, compute) in [(MigFamily::Eight, 8, 7), (MigFamily::Four, 4, 4)] {
        for layout in legal_layouts(family, &shapes(family, |_| true)) {
            let mut owners = [0_u8; 8];
            for place in &layout {
                for slice in place.start..place.start + place.shape.memory_slices() {
                    assert!(slice < memory, "{place} stands outside the card");
                    owners[usize::from(slice)] += 1;
                }
            }
            assert!(owners.iter().all(|count| *count <= 1), "{layout:?}");
            assert!(layout.iter().map(|place| place.shape.compute_slices()).sum::<u8>() <= compute, "{layout:?}");
            assert!(layout.iter().filter(|place| place.shape.has_media()).count() <= 1, "{layout:?}");
        }
    }
}

/// The names that `nvidia-smi` prints.
const NAMES: &[(GpuModel, &[(MigShape, &str)])] = &[
    (
        GpuModel::A30,
        &[(G1, "1g.6gb"), (G1Media, "1g.6gb+me"), (G2, "2g.12gb"), (G2Media, "2g.12gb+me"), (G4, "4g.24gb")],
    ),
    (
        GpuModel::A100_40,
        &[
            (G1, "1g.5gb"),
            (G1Media, "1g.5gb+me"),
            (G1Double, "1g.10gb"),
            (G2, "2g.10gb"),
            (G3, "3g.20gb"),
            (G4, "4g.20gb"),
            (G7, "7g.40gb"),
        ],
    ),
    (
        GpuModel::A100_80,
        &[
            (G1, "1g.10gb"),
            (G1Media, "1g.10gb+me"),
            (G1Double, "1g.20gb"),
            (G2, "2g.20gb"),
            (G3, "3g.40gb"),
            (G4, "4g.40gb"),
            (G7, "7g.80gb"),
        ],
    ),
    (
        GpuModel::H100,
        &[
            (G1, "1g.10gb"),
            (G1Media, "1g.10gb+me"),
            (G1Double, "1g.20gb"),
            (G2, "2g.20gb"),
            (G3, "3g.40gb"),
            (G4, "4g.40gb"),
            (G7, "7g.80gb"),
        ],
    ),
    (
        GpuModel::H200,
        &[
            (G1, "1g.18gb"),
            (G1Media, "1g.18gb+me"),
            (G1Double, "1g.35gb"),
            (G2, "2g.35gb"),
            (G3, "3g.71gb"),
            (G4, "4g.71gb"),
            (G7, "7g.141gb"),
        ],
    ),
    (
        GpuModel::B200,
        &[
            (G1, "1g.23gb"),
            (G1Media, "1g.23gb+me"),
            (G1Double, "1g.45gb"),
            (G2, "2g.45gb"),
            (G3, "3g.90gb"),
            (G4, "4g.90gb"),
            (G7, "7g.180gb"),
        ],
    ),
    (
        GpuModel::H100_94,
        &[
            (G1, "1g.12gb"),
            (G1Media, "1g.12gb+me"),
            (G1Double, "1g.24gb"),
            (G2, "2g.24gb"),
            (G3, "3g.47gb"),
            (G4, "4g.47gb"),
            (G7, "7g.94gb"),
        ],
    ),
    (
        GpuModel::GH200,
        &[
            (G1, "1g.12gb"),
            (G1Media, "1g.12gb+me"),
            (G1Double, "1g.24gb"),
            (G2, "2g.24gb"),
            (G3, "3g.48gb"),
            (G4, "4g.48gb"),
            (G7, "7g.96gb"),
        ],
    ),
];

#[test]
fn profiles_have_their_usual_names() {
    for model in GpuModel::ALL {
        let expected = NAMES.iter().find(|(of, _)| *of == model).map_or(&[][..], |(_, names)| names);
        for shape in MigShape::ALL {
            let name = expected.iter().find(|(of, _)| *of == shape).map(|(_, name)| (*name).to_owned());
            assert_eq!(profile_name(model, shape), name, "{shape:?} on {model}");
        }
        for (shape, name) in expected {
            for written in
                [(*name).to_owned(), name.to_uppercase(), format!("nvidia.com/mig-{name}"), name.replace('+', ".")]
            {
                assert_eq!(parse_profile(model, &written), Some(*shape), "{written} on {model}");
            }
        }
        for nonsense in ["", "1g", "9g.90gb", "1g.10gb ;", "mig-", "2g.12gb+mee"] {
            assert_eq!(parse_profile(model, nonsense), None, "{nonsense:?} on {model}");
        }
    }
}

#[test]
fn after_two_of_three_slices_no_single_one_fits() {
    let two = [MigPlacement { shape: MigShape::G3, start: 0 }, MigPlacement { shape: MigShape::G3, start: 4 }];
    assert!(can_stand(MigFamily::Eight, &two[..1], two[1]));
    assert_eq!(free_starts(MigFamily::Eight, &two, MigShape::G1).count(), 0);
    let one = [MigPlacement { shape: MigShape::G1, start: 6 }];
    assert_eq!(free_starts(MigFamily::Eight, &one, MigShape::G3).count(), 1);
    assert_eq!(free_starts(MigFamily::Eight, &one, MigShape::G7).count(), 0);
}

#[test]
fn instances_share_the_cards_memory() {
    for model in GpuModel::ALL {
        for shape in MigShape::ALL {
            let memory = profile_name(model, shape).and_then(|_| instance_memory_mib(model, shape));
            let whole = model.memory_mib();
            assert!(memory.is_none_or(|memory| memory <= whole), "{shape:?} on {model}: {memory:?} of {whole}");
        }
    }
    assert_eq!(instance_memory_mib(GpuModel::H100, MigShape::G1), Some(10_240));
    assert_eq!(instance_memory_mib(GpuModel::T4, MigShape::G1), None);
}

#[test]
fn a_profile_has_one_canonical_form() {
    let check = |written: &str, kept: &str| assert_eq!(canonical_profile(written), kept, "{written:?}");
    for written in ["1g.10gb", " 1G.10GB\n", "mig-1g.10gb", "nvidia.com/MIG-1g.10gb"] {
        check(written, "1g.10gb");
    }
    check("1g.10gb.me", "1g.10gb+me");
    check(" nonsense ", "nonsense");
    for model in GpuModel::ALL {
        for shape in MigShape::ALL {
            let Some(name) = profile_name(model, shape) else { continue };
            check(&name, &name);
        }
    }
}
