//! Memory of MIG slices: whether a task has come so near to the end of it that a failure may be for want of memory, and which profile has more.
//!
//! A program that cannot allocate GPU memory ends by itself, with an exit code of its own: neither the driver nor the kernel tells of it. What can be seen is
//! how much of the slice was in use shortly before. So what must stay true: this is a hint in words, and never decides how a task has ended.

use muster_model::GpuModel;
use muster_model::mig::{MigPlacement, MigShape, profile_name};
use serde::{Deserialize, Serialize};

/// From this share of its memory on, in percent, a slice counts as nearly full: an allocator asks for pieces of some hundred MiB, and the last one that does
/// not fit leaves about so much of a small slice free.
const NEARLY_FULL_PERCENT: u64 = 95;

/// Memory of a MIG slice, as the driver tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceUse {
    /// Which slice.
    pub place: MigPlacement,
    /// In use, in MiB.
    pub used_mib: u64,
    /// All of it, in MiB.
    pub total_mib: u64,
}

impl SliceUse {
    fn is_nearly_full(self) -> bool {
        self.used_mib.saturating_mul(100) >= self.total_mib.saturating_mul(NEARLY_FULL_PERCENT)
    }
}

/// The smallest profile of a model that has more memory than `shape`, and no fewer compute slices.
#[must_use]
pub fn next_larger(model: GpuModel, shape: MigShape) -> Option<MigShape> {
    let family = model.facts().mig?;
    let is_larger = |other: &MigShape| {
        let has_more = other.memory_slices() > shape.memory_slices();
        has_more && other.compute_slices() >= shape.compute_slices() && (shape.has_media() || !other.has_media())
    };
    let there = MigShape::ALL.into_iter().filter(|other| !other.starts(family).is_empty());
    let is_other_kind = |other: &MigShape| other.has_media() != shape.has_media();
    there.filter(is_larger).min_by_key(|other| (other.memory_slices(), other.compute_slices(), is_other_kind(other)))
}

/// What to tell the user of a task that fails after its slice on GPU `card` was seen so; none where there was memory left.
#[must_use]
pub fn hint(card: u16, model: GpuModel, seen: SliceUse) -> Option<String> {
    if !seen.is_nearly_full() {
        return None;
    }
    let shape = seen.place.shape;
    let name = profile_name(model, shape)?;
    let larger = match next_larger(model, shape).and_then(|larger| Some((larger, profile_name(model, larger)?))) {
        Some((larger, name)) => {
            let mib = seen.total_mib * u64::from(larger.memory_slices()) / u64::from(shape.memory_slices());
            format!("the next larger profile is {name} (about {})", gib(mib))
        }
        None => format!("no profile of the model {model} has more memory"),
    };
    let (used, total) = (gib(seen.used_mib), gib(seen.total_mib));
    Some(format!(
        "{used} of the {total} of its {name} slice of GPU {card} were in use, so it may have run out of GPU memory; {larger}"
    ))
}

/// `9.75 GiB`, `19.5 GiB`, `20 GiB`, `512 MiB`.
fn gib(mib: u64) -> String {
    let hundredths = mib * 100 / 1_024;
    match (hundredths / 100, hundredths % 100) {
        (0, _) => format!("{mib} MiB"),
        (whole, 0) => format!("{whole} GiB"),
        (whole, part) if part % 10 == 0 => format!("{whole}.{} GiB", part / 10),
        (whole, part) => format!("{whole}.{part:02} GiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_larger_profile_has_more_memory_and_no_fewer_compute_slices() {
        let check = |model, name: &str, expected: Option<&str>| {
            let shape = muster_model::mig::parse_profile(model, name).expect("a profile");
            let found = next_larger(model, shape).and_then(|larger| profile_name(model, larger));
            assert_eq!(found.as_deref(), expected, "{model} {name}");
        };
        check(GpuModel::H100, "1g.10gb", Some("1g.20gb"));
        check(GpuModel::H100, "1g.10gb+me", Some("1g.20gb"));
        check(GpuModel::H100, "1g.20gb", Some("3g.40gb"));
        check(GpuModel::H100, "2g.20gb", Some("3g.40gb"));
        check(GpuModel::H100, "3g.40gb", Some("7g.80gb"));
        check(GpuModel::H100, "4g.40gb", Some("7g.80gb"));
        check(GpuModel::H100, "7g.80gb", None);
        check(GpuModel::A30, "1g.6gb", Some("2g.12gb"));
        check(GpuModel::A30, "1g.6gb+me", Some("2g.12gb+me"));
        check(GpuModel::A30, "2g.12gb", Some("4g.24gb"));
        check(GpuModel::A30, "4g.24gb", None);
        check(GpuModel::B200, "1g.23gb", Some("1g.45gb"));
    }

    #[test]
    fn every_profile_but_the_largest_has_a_larger_one() {
        for model in GpuModel::ALL {
            let Some(family) = model.facts().mig else { continue };
            let there: Vec<_> = MigShape::ALL.into_iter().filter(|one| !one.starts(family).is_empty()).collect();
            let most = there.iter().map(|one| one.memory_slices()).max().expect("profiles");
            for shape in there {
                let larger = next_larger(model, shape);
                assert_eq!(larger.is_none(), shape.memory_slices() == most, "{model} {shape:?}");
                assert!(
                    larger.is_none_or(|larger| larger.memory_slices() > shape.memory_slices()),
                    "{model} {shape:?}"
                );
            }
        }
    }

    #[test]
    fn only_a_slice_that_is_nearly_full_gives_a_hint() {
        let seen = |shape, used_mib, total_mib| {
            hint(0, GpuModel::H100, SliceUse { place: MigPlacement { shape, start: 0 }, used_mib, total_mib })
        };
        assert_eq!(seen(MigShape::G1, 9_400, 9_984), None, "94 %");
        let said = "9.7 GiB of the 9.75 GiB of its 1g.10gb slice of GPU 0 were in use, so it may have run out of GPU memory; \
                    the next larger profile is 1g.20gb (about 19.5 GiB)";
        assert_eq!(seen(MigShape::G1, 9_940, 9_984).as_deref(), Some(said));
        let whole = seen(MigShape::G7, 81_000, 81_152).expect("nearly full");
        assert!(whole.ends_with("; no profile of the model h100 has more memory"), "{whole}");
    }

    #[test]
    fn memory_is_written_as_people_write_it() {
        for (mib, text) in
            [(512, "512 MiB"), (9_984, "9.75 GiB"), (19_968, "19.5 GiB"), (20_480, "20 GiB"), (20_521, "20.04 GiB")]
        {
            assert_eq!(gib(mib), text);
        }
    }
}
