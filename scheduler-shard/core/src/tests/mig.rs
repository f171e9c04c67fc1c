//! MIG through the shard's own plan: every legal request sequence on one empty card, one by one and waiting together; and which card is
//! cut next.

use super::fleet::*;
use muster_model::mig::{MigPlacement, MigShape, ShapeCounts, legal_layouts, profile_name};
use muster_model::*;
use std::collections::{BTreeMap, BTreeSet};

fn slice_of(model: GpuModel, shape: MigShape) -> JobSpec {
    let profile = profile_name(model, shape).expect("a profile of the model");
    job(1, DeviceRequest::Mig { profile, models: vec![model] })
}

/// Every order of every set of instances that fits on one card of `model`.
fn legal_sequences(model: GpuModel) -> Vec<Vec<MigShape>> {
    fn grow(legal: &BTreeSet<ShapeCounts>, set: ShapeCounts, sequence: &[MigShape], out: &mut Vec<Vec<MigShape>>) {
        for shape in MigShape::ALL {
            let mut more = set;
            more[shape as usize] += 1;
            if legal.contains(&more) {
                let longer = [sequence, &[shape]].concat();
                out.push(longer.clone());
                grow(legal, more, &longer, out);
            }
        }
    }
    let family = model.facts().mig.expect("MIG");
    let shapes: Vec<MigShape> = MigShape::ALL.into_iter().filter(|s| !s.starts(family).is_empty()).collect();
    let counts = |layout: Vec<MigPlacement>| {
        let mut counts = ShapeCounts::default();
        layout.iter().for_each(|place| counts[place.shape as usize] += 1);
        counts
    };
    let legal = legal_layouts(family, &shapes).into_iter().map(counts).collect();
    let mut out = Vec::new();
    grow(&legal, ShapeCounts::default(), &[], &mut out);
    out
}

/// What stands on each card, in order of start.
fn cuts(fleet: &Fleet) -> BTreeMap<(u32, u16), Vec<MigPlacement>> {
    let mut cuts: BTreeMap<(u32, u16), Vec<MigPlacement>> = BTreeMap::new();
    for task in fleet.allocations.values().flat_map(|held| &held.tasks) {
        for hold in &task.devices {
            let HoldMode::Mig(place) = hold.mode else { continue };
            cuts.entry((task.node.0, hold.gpu)).or_default().push(place);
        }
    }
    cuts.values_mut().for_each(|cut| cut.sort_by_key(|place| place.start));
    cuts
}

/// Plays a sequence on one empty card; answers whether all of it runs. What stands is in the legal table, whatever came of it.
fn accepts(model: GpuModel, sequence: &[MigShape], together: bool, table: &BTreeSet<Vec<MigPlacement>>) -> bool {
    let mut fleet = Fleet::new([Host::new("a", model, 1)]);
    let jobs: Vec<JobId> = sequence
        .iter()
        .map(|shape| {
            let id = fleet.submit(slice_of(model, *shape));
            if !together {
                fleet.settle();
            }
            id
        })
        .collect();
    fleet.settle();
    for cut in cuts(&fleet).values() {
        assert!(table.contains(cut), "{cut:?} is no legal layout of {model}");
    }
    jobs.iter().all(|id| fleet.runs(*id))
}

/// One by one as many sequences are accepted as by the best of all policies (`model/tests/mig_starts.rs` proves that there is no better
/// one); what waits together is accepted in every order.
#[test]
fn every_sequence_that_can_be_accepted_is() {
    for (model, legal, one_by_one) in [(GpuModel::A30, 38, 38), (GpuModel::H100, 1_322, 1_231)] {
        let family = model.facts().mig.expect("MIG");
        let shapes: Vec<MigShape> = MigShape::ALL.into_iter().filter(|s| !s.starts(family).is_empty()).collect();
        let table: BTreeSet<Vec<MigPlacement>> = legal_layouts(family, &shapes).into_iter().collect();
        let sequences = legal_sequences(model);
        let accepted = |together| sequences.iter().filter(|s| accepts(model, s, together, &table)).count();
        assert_eq!((sequences.len(), accepted(false), accepted(true)), (legal, one_by_one, legal), "{model}");
    }
}

#[test]
fn a_cut_card_goes_before_an_empty_one_and_the_one_that_loses_least_first() {
    use MigShape::{G1, G3, G4, G7};
    let h100 = |shape| slice_of(GpuModel::H100, shape);
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 3)]);
    let three = fleet.submit(h100(G3));
    fleet.settle();
    // The other half of the same card, and where a 4g can still stand.
    let four = fleet.submit(h100(G4));
    fleet.settle();
    assert!(fleet.runs(three) && fleet.runs(four));
    assert_eq!(cuts(&fleet).len(), 1);
    // Seven singles fill the second card; a hole in it is filled before the half that a 3g could have.
    let singles: Vec<JobId> = (0..7).map(|_| fleet.submit(h100(G1))).collect();
    fleet.settle();
    assert_eq!(cuts(&fleet).len(), 2);
    fleet.end(four, false);
    fleet.end(singles[3], false);
    let next = fleet.submit(h100(G1));
    fleet.settle();
    assert!(fleet.runs(next));
    let by_size: Vec<usize> = cuts(&fleet).values().map(Vec::len).collect();
    assert_eq!(by_size, [1, 7]);
    let whole = fleet.submit(h100(G7));
    fleet.settle();
    assert!(fleet.runs(whole), "the third card was never cut");
}

/// A larger slice that waits behind keeps its place; without knowing of it, the first goes where most sequences are left.
#[test]
fn what_waits_behind_is_thought_of() {
    use MigShape::{G1, G4};
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    let both = [fleet.submit(slice_of(GpuModel::H100, G1)), fleet.submit(slice_of(GpuModel::H100, G4))];
    fleet.settle();
    assert!(both.iter().all(|id| fleet.runs(*id)), "4g stands at 0, so 1g must not");
    let mut alone = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    alone.submit(slice_of(GpuModel::H100, G1));
    alone.settle();
    assert_eq!(cuts(&alone)[&(1, 0)], [MigPlacement { shape: G1, start: 0 }]);
}
