//! MIG geometry: which instances can stand where on a card.
//!
//! A placement is an interval of memory slices; two instances may stand on one card when their intervals are disjoint and
//! neither breaks a profile's own limit (media extensions exist once). Source: NVIDIA's MIG user guide and the placements that
//! `nvidia-smi mig -lgipp` prints. What must stay true, and is tested exhaustively: the eight-slice family has 298 legal
//! layouts of base profiles (19 of them maximal), the A30 26 and 5.

mod layout;
mod worth;

pub use layout::PinnedLayout;
pub use worth::{Occupied, ShapeCounts, Start, best_start, best_start_before, fits, fullest_sets, worth};

use crate::gpu::{GpuModel, MigFamily};
use crate::resources::GpuUnits;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The shape of an instance, the same on every card of a family; the *name* (`1g.10gb`) depends on the card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MigShape {
    /// One compute slice, one memory slice.
    G1,
    /// The same with the card's media engines.
    G1Media,
    /// One compute slice, two memory slices.
    G1Double,
    /// Two compute slices, two memory slices.
    G2,
    /// The same with the card's media engines (A30 only).
    G2Media,
    /// Three compute slices, four memory slices.
    G3,
    /// Four compute slices, four memory slices.
    G4,
    /// The whole card of the eight-slice family.
    G7,
}

impl MigShape {
    /// All shapes, smallest first.
    pub const ALL: [MigShape; 8] = [
        MigShape::G1,
        MigShape::G1Media,
        MigShape::G1Double,
        MigShape::G2,
        MigShape::G2Media,
        MigShape::G3,
        MigShape::G4,
        MigShape::G7,
    ];

    /// Compute slices.
    #[must_use]
    pub const fn compute_slices(self) -> u8 {
        match self {
            MigShape::G1 | MigShape::G1Media | MigShape::G1Double => 1,
            MigShape::G2 | MigShape::G2Media => 2,
            MigShape::G3 => 3,
            MigShape::G4 => 4,
            MigShape::G7 => 7,
        }
    }

    /// Memory slices, which is the length of its interval.
    #[must_use]
    pub const fn memory_slices(self) -> u8 {
        match self {
            MigShape::G1 | MigShape::G1Media => 1,
            MigShape::G1Double | MigShape::G2 | MigShape::G2Media => 2,
            MigShape::G3 | MigShape::G4 => 4,
            MigShape::G7 => 8,
        }
    }

    /// Where it may start on a card of `family`; empty when the family does not have it.
    #[must_use]
    pub const fn starts(self, family: MigFamily) -> &'static [u8] {
        match (family, self) {
            (MigFamily::Eight, MigShape::G1 | MigShape::G1Media) => &[0, 1, 2, 3, 4, 5, 6],
            (MigFamily::Eight, MigShape::G1Double) => &[0, 2, 4, 6],
            (MigFamily::Eight, MigShape::G2) => &[0, 2, 4],
            (MigFamily::Eight, MigShape::G3) => &[0, 4],
            (MigFamily::Eight, MigShape::G4 | MigShape::G7) => &[0],
            (MigFamily::Four, MigShape::G1 | MigShape::G1Media) => &[0, 1, 2, 3],
            (MigFamily::Four, MigShape::G2 | MigShape::G2Media) => &[0, 2],
            (MigFamily::Four, MigShape::G4) => &[0],
            _ => &[],
        }
    }

    /// Whether it claims the card's media engines, which exist once.
    #[must_use]
    pub const fn has_media(self) -> bool {
        matches!(self, MigShape::G1Media | MigShape::G2Media)
    }

    /// A base profile: neither media extension nor double memory.
    #[must_use]
    pub const fn is_base(self) -> bool {
        !self.has_media() && !matches!(self, MigShape::G1Double)
    }

    /// What a tenant is charged: the larger of the compute and the memory share of the card.
    #[must_use]
    pub const fn charge(self, family: MigFamily) -> GpuUnits {
        let (compute_all, memory_all) = match family {
            MigFamily::Eight => (7, 8),
            MigFamily::Four => (4, 4),
        };
        let compute = GpuUnits::CARD.0 * self.compute_slices() as u64 / compute_all;
        let memory = GpuUnits::CARD.0 * self.memory_slices() as u64 / memory_all;
        GpuUnits(if compute > memory { compute } else { memory })
    }

    /// The memory slices it would hold at `start`, as a bit mask (bit 0 is slice 0).
    #[must_use]
    pub const fn mask(self, start: u8) -> u8 {
        (((1_u16 << self.memory_slices()) - 1) << start) as u8
    }
}

/// The usual name of `shape` on `model`, for example `1g.10gb`; `None` when the card does not have it.
#[must_use]
pub fn profile_name(model: GpuModel, shape: MigShape) -> Option<String> {
    let family = model.facts().mig?;
    if shape.starts(family).is_empty() {
        return None;
    }
    let gb = gigabytes(model, shape)?;
    let media = if shape.has_media() { "+me" } else { "" };
    Some(format!("{}g.{gb}gb{media}", shape.compute_slices()))
}

/// GB per shape as nvidia-smi prints them: they round, so they are a table and not a product.
fn gigabytes(model: GpuModel, shape: MigShape) -> Option<u32> {
    Some(match (model, shape.memory_slices()) {
        (GpuModel::A30, slices) => 6 * u32::from(slices),
        (GpuModel::A100_40, slices) => 5 * u32::from(slices),
        (GpuModel::A100_80 | GpuModel::H100, slices) => 10 * u32::from(slices),
        (GpuModel::H200, 1) => 18,
        (GpuModel::H200, 2) => 35,
        (GpuModel::H200, 4) => 71,
        (GpuModel::H200, _) => 141,
        (GpuModel::H100_94 | GpuModel::GH200, slices @ (1 | 2)) => 12 * u32::from(slices),
        (GpuModel::H100_94, 4) => 47,
        (GpuModel::H100_94, _) => 94,
        (GpuModel::GH200, slices) => 12 * u32::from(slices),
        (GpuModel::B200, 1) => 23,
        (GpuModel::B200, 2) => 45,
        (GpuModel::B200, 4) => 90,
        (GpuModel::B200, _) => 180,
        _ => return None,
    })
}

/// Memory that an instance of `shape` holds on `model`, in MiB (the card's memory by slices, rounded down).
#[must_use]
pub fn instance_memory_mib(model: GpuModel, shape: MigShape) -> Option<u64> {
    let family = model.facts().mig?;
    let slices = match family {
        MigFamily::Four => 4,
        MigFamily::Eight => 8,
    };
    Some(model.memory_mib() * u64::from(shape.memory_slices()) / slices)
}

/// The shape that `name` means on `model`: `1g.10gb` is a base profile of an H100 and the double-memory one of an A100-40.
/// The device plugin's form `nvidia.com/mig-1g.10gb` is understood too.
#[must_use]
pub fn parse_profile(model: GpuModel, name: &str) -> Option<MigShape> {
    // Asked for every model at every submission and pass: nothing is built, the parts are compared.
    let family = model.facts().mig?;
    let (compute, gb, media) = profile_parts(name)?;
    MigShape::ALL.into_iter().find(|shape| {
        shape.has_media() == media
            && u32::from(shape.compute_slices()) == compute
            && !shape.starts(family).is_empty()
            && gigabytes(model, *shape) == Some(gb)
    })
}

/// The one form in which a profile is kept, whatever the model: `" MIG-1G.10GB.me "` is `1g.10gb+me`. What is no profile only loses the
/// white space around it.
#[must_use]
pub fn canonical_profile(name: &str) -> String {
    match profile_parts(name) {
        Some((compute, gb, media)) => format!("{compute}g.{gb}gb{}", if media { "+me" } else { "" }),
        None => name.trim().to_owned(),
    }
}

/// Compute slices, gigabytes and media engines of a profile's name, in any of the forms in use.
fn profile_parts(name: &str) -> Option<(u32, u32, bool)> {
    let plain = name.trim();
    let plain = strip_prefix_of_any_case(plain, "nvidia.com/mig-").unwrap_or(plain);
    let plain = strip_prefix_of_any_case(plain, "mig-").unwrap_or(plain);
    let (compute, rest) = number(plain)?;
    let (gb, rest) = number(strip_prefix_of_any_case(rest, "g.")?)?;
    let rest = strip_prefix_of_any_case(rest, "gb")?;
    let media = rest.eq_ignore_ascii_case("+me") || rest.eq_ignore_ascii_case(".me");
    (media || rest.is_empty()).then_some((compute, gb, media))
}

fn strip_prefix_of_any_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

/// The number that `text` begins with, written without leading zeros, and what follows.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.starts_with('0') {
        return None;
    }
    Some((digits.parse().ok()?, rest))
}

/// One instance at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MigPlacement {
    /// What stands there.
    pub shape: MigShape,
    /// The first memory slice.
    pub start: u8,
}

impl MigPlacement {
    /// In NVIDIA's words for a card of `model`: `1g.10gb at slice 2`.
    #[must_use]
    pub fn in_words(&self, model: GpuModel) -> String {
        let name = profile_name(model, self.shape).unwrap_or_else(|| format!("{:?}", self.shape));
        format!("{name} at slice {}", self.start)
    }
}

impl fmt::Display for MigPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}@{}", self.shape, self.start)
    }
}

/// Whether `new` can be made beside `standing` on a card of `family`: a legal start, slices free, media engines free.
#[must_use]
pub fn can_stand(family: MigFamily, standing: &[MigPlacement], new: MigPlacement) -> bool {
    can_stand_beside(family, standing.iter().copied(), new)
}

/// The same for instances that stand in any list.
pub(crate) fn can_stand_beside(
    family: MigFamily,
    mut standing: impl Iterator<Item = MigPlacement>,
    new: MigPlacement,
) -> bool {
    new.shape.starts(family).contains(&new.start)
        && standing.all(|old| {
            old.shape.mask(old.start) & new.shape.mask(new.start) == 0
                && !(old.shape.has_media() && new.shape.has_media())
        })
}

/// The same on a card of which this much is taken.
pub(crate) fn can_stand_on(family: MigFamily, occupied: Occupied, new: MigPlacement) -> bool {
    new.shape.starts(family).contains(&new.start)
        && occupied.slices & new.shape.mask(new.start) == 0
        && !(occupied.media && new.shape.has_media())
}

/// The starts at which `shape` can be made beside `standing`, lowest first.
pub fn free_starts(
    family: MigFamily,
    standing: &[MigPlacement],
    shape: MigShape,
) -> impl Iterator<Item = MigPlacement> + '_ {
    shape
        .starts(family)
        .iter()
        .map(move |&start| MigPlacement { shape, start })
        .filter(move |place| can_stand(family, standing, *place))
}

/// Every legal layout of `family` from the given shapes, the empty one included, each in order of start.
#[must_use]
pub fn legal_layouts(family: MigFamily, shapes: &[MigShape]) -> Vec<Vec<MigPlacement>> {
    fn grow(
        family: MigFamily,
        shapes: &[MigShape],
        from: u8,
        layout: &mut Vec<MigPlacement>,
        out: &mut Vec<Vec<MigPlacement>>,
    ) {
        out.push(layout.clone());
        for start in from..8 {
            for &shape in shapes {
                let place = MigPlacement { shape, start };
                if can_stand(family, layout, place) {
                    layout.push(place);
                    grow(family, shapes, start + shape.memory_slices(), layout, out);
                    layout.pop();
                }
            }
        }
    }
    let mut out = Vec::new();
    grow(family, shapes, 0, &mut Vec::new(), &mut out);
    out
}

/// Whether nothing of `shapes` can be added to `layout`.
#[must_use]
pub fn is_maximal(family: MigFamily, layout: &[MigPlacement], shapes: &[MigShape]) -> bool {
    shapes.iter().all(|&shape| free_starts(family, layout, shape).next().is_none())
}
