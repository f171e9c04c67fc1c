//! Pinned layouts: what is taken, at which starts it stands, and that what is not legal names the field, the fix and the nearest.

use muster_model::mig::{MigPlacement, MigShape, Occupied, PinnedLayout, can_stand, legal_layouts};
use muster_model::request::SharingMode;
use muster_model::{GpuModel, Pool};
use std::collections::BTreeMap;

fn slices(of: &[(&str, u32)]) -> BTreeMap<String, u32> {
    of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[track_caller]
fn legal(model: GpuModel, of: &[(&str, u32)], slots: &[(MigShape, u8)], words: &str) {
    let pin = PinnedLayout::new(model, &slices(of), None).expect("legal");
    let expected: Vec<MigPlacement> =
        slots.iter().map(|(shape, start)| MigPlacement { shape: *shape, start: *start }).collect();
    assert_eq!(pin.slots(), expected);
    assert_eq!(pin.in_words(model), words);
    assert_eq!(PinnedLayout::new(model, &pin.slices(model), None), Ok(pin));
}

#[track_caller]
fn refused(model: GpuModel, of: &[(&str, u32)], cards: Option<u16>, field: &str, problem: &str, fix: &str) {
    let error = PinnedLayout::new(model, &slices(of), cards).expect_err("not legal");
    assert_eq!((error.field.as_str(), error.problem.as_str()), (field, problem));
    assert!(error.fix.contains(fix), "{}", error.fix);
}

#[test]
fn legal_layouts_stand_where_they_must() {
    use MigShape::{G1, G1Double, G2, G3, G4};
    let seven: Vec<(MigShape, u8)> = (0..7).map(|start| (G1, start)).collect();
    legal(GpuModel::H100, &[("1g.10gb", 7)], &seven, "1g.10gb x7");
    legal(
        GpuModel::H100,
        &[("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)],
        &[(G2, 0), (G1, 2), (G1, 3), (G3, 4)],
        "3g.40gb x1, 2g.20gb x1, 1g.10gb x2",
    );
    legal(GpuModel::A100_80, &[("4g.40gb", 1), ("3g.40gb", 1)], &[(G4, 0), (G3, 4)], "4g.40gb x1, 3g.40gb x1");
    legal(
        GpuModel::H100,
        &[("2g.20gb", 3), ("1g.20gb", 1)],
        &[(G2, 0), (G2, 2), (G2, 4), (G1Double, 6)],
        "2g.20gb x3, 1g.20gb x1",
    );
    legal(GpuModel::A30, &[("2g.12gb", 1), ("1g.6gb", 2)], &[(G2, 0), (G1, 2), (G1, 3)], "2g.12gb x1, 1g.6gb x2");
    // Part of a card may stay uncut.
    legal(GpuModel::H100, &[("3g.40gb", 1)], &[(G3, 0)], "3g.40gb x1");
}

#[test]
fn what_is_not_legal_names_field_fix_and_nearest() {
    let h100 = GpuModel::H100;
    let field = "mig_layouts[h100].slices";
    refused(
        h100,
        &[("1g.10gb", 8)],
        None,
        field,
        "1g.10gb x8 do not fit on one h100",
        "use a layout that fits, such as 1g.10gb x7",
    );
    refused(
        h100,
        &[("3g.40gb", 2), ("1g.10gb", 1)],
        None,
        field,
        "3g.40gb x2, 1g.10gb x1 do not fit on one h100",
        "use a layout that fits, such as 3g.40gb x2",
    );
    refused(h100, &[("4g.40gb", 2)], None, field, "4g.40gb x2 do not fit on one h100", "4g.40gb x1");
    refused(h100, &[("1g.10gb", u32::MAX)], None, field, "1g.10gb x4294967295 do not fit on one h100", "1g.10gb x7");
    refused(h100, &[("1g.5gb", 7)], None, field, "\"1g.5gb\" is not a profile of h100", "1g.10gb");
    refused(h100, &[], None, field, "is empty", "1g.10gb x7");
    refused(h100, &[("1g.10gb", 0)], None, field, "is empty", "1g.10gb x7");
    refused(h100, &[("1g.10gb", 7)], Some(0), "mig_layouts[h100].cards_per_node", "is 0", "1 or more");
    refused(GpuModel::T4, &[("1g.5gb", 1)], None, "mig_layouts[t4].model", "has no MIG", "models with MIG");
}

/// Every set of the legal table can be pinned, stands as the table says, and one that is not in it cannot.
#[test]
fn exactly_the_legal_table_can_be_pinned() {
    for model in GpuModel::ALL {
        let Some(family) = model.facts().mig else { continue };
        let shapes: Vec<MigShape> = MigShape::ALL.into_iter().filter(|s| !s.starts(family).is_empty()).collect();
        for layout in legal_layouts(family, &shapes).iter().filter(|layout| !layout.is_empty()) {
            let mut asked = BTreeMap::new();
            for place in layout {
                *asked.entry(muster_model::mig::profile_name(model, place.shape).expect("a name")).or_default() += 1;
            }
            let pin = PinnedLayout::new(model, &asked, None).unwrap_or_else(|error| panic!("{layout:?}: {error}"));
            assert_eq!(pin.slices(model), asked);
            for (at, slot) in pin.slots().iter().enumerate() {
                assert!(can_stand(family, &pin.slots()[..at], *slot), "{slot} in {:?}", pin.slots());
                assert_eq!(
                    pin.open_slot(family, Occupied::default(), slot.shape).map(|open| open.shape),
                    Some(slot.shape)
                );
            }
        }
    }
}

#[test]
fn a_pool_pins_the_first_cards_of_a_model_and_must_allow_mig() {
    let pin = |cards| PinnedLayout::new(GpuModel::H100, &slices(&[("1g.10gb", 7)]), cards).expect("legal");
    let mut pool = Pool { pinned: [(GpuModel::H100, pin(Some(2)))].into(), ..Pool::standard() };
    assert_eq!(pool.validate(), Ok(()));
    assert!(pool.pin_at(GpuModel::H100, 1).is_some() && pool.pin_at(GpuModel::H100, 2).is_none());
    assert!(pool.pin_at(GpuModel::A100_80, 0).is_none() && pool.pin_of_all(GpuModel::H100).is_none());
    pool.pinned = [(GpuModel::H100, pin(None))].into();
    assert!(pool.pin_of_all(GpuModel::H100).is_some());
    pool.modes.remove(&SharingMode::Mig);
    let faults = pool.validate().expect_err("no MIG");
    assert_eq!(faults[0].field, "modes");
    assert!(faults[0].fix.contains("add mig"), "{}", faults[0].fix);
}
