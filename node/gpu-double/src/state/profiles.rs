//! The GPU instance profiles of each model, as `nvidia-smi mig -lgip` and `-lgipp` print them.
//!
//! What must stay true: these are the driver's own tables and not those of `muster_model`; a property test holds the two against each
//! other. Of the B200's three largest profiles the counts of engines and the memory are taken in proportion: no print of them was at hand.

use muster_model::GpuModel;

/// A GPU instance profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`, by which it is asked for.
    pub number: u32,
    /// Its id, by which instances are made and listed.
    pub id: u32,
    /// Its name, such as `1g.10gb+me`.
    pub name: &'static str,
    /// Compute slices.
    pub compute_slices: u32,
    /// Memory slices, which is the size of its placements.
    pub memory_slices: u32,
    /// How many of it a card holds.
    pub instances_max: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// JPEG decoders.
    pub jpeg_engines: u32,
    /// Optical flow accelerators.
    pub ofa_engines: u32,
    memory_mib: u64,
    /// Where it may start.
    pub starts: &'static [u32],
}

impl Profile {
    /// Memory.
    #[must_use]
    pub const fn memory_mib(&self) -> u64 {
        self.memory_mib
    }

    /// Whether it has the media engines, which exist once.
    #[must_use]
    pub fn has_media(&self) -> bool {
        self.name.ends_with("+me")
    }
}

/// `slices` is compute, memory, most of it on a card; `engines` is multiprocessors, copy, decoders, JPEG, OFA.
const fn p(
    number: u32,
    id: u32,
    name: &'static str,
    slices: [u32; 3],
    engines: [u32; 5],
    memory_mib: u64,
    starts: &'static [u32],
) -> Profile {
    let [compute_slices, memory_slices, instances_max] = slices;
    let [multiprocessors, copy_engines, decoders, jpeg_engines, ofa_engines] = engines;
    Profile {
        number,
        id,
        name,
        compute_slices,
        memory_slices,
        instances_max,
        multiprocessors,
        copy_engines,
        decoders,
        jpeg_engines,
        ofa_engines,
        memory_mib,
        starts,
    }
}

/// The profiles of a model; empty when it has no MIG.
#[must_use]
pub const fn of(model: GpuModel) -> &'static [Profile] {
    match model {
        GpuModel::A30 => A30,
        GpuModel::A100_40 => A100_40,
        GpuModel::A100_80 => A100_80,
        GpuModel::H100 => H100,
        GpuModel::H100_94 => H100_94,
        GpuModel::GH200 => GH200,
        GpuModel::H200 => H200,
        GpuModel::B200 => B200,
        _ => &[],
    }
}

/// By its id.
#[must_use]
pub fn by_id(model: GpuModel, id: u32) -> Option<&'static Profile> {
    of(model).iter().find(|profile| profile.id == id)
}

/// By its number.
#[must_use]
pub fn by_number(model: GpuModel, number: u32) -> Option<&'static Profile> {
    of(model).iter().find(|profile| profile.number == number)
}

/// By its name.
#[must_use]
pub fn by_name(model: GpuModel, name: &str) -> Option<&'static Profile> {
    of(model).iter().find(|profile| profile.name == name)
}

const A30: &[Profile] = &[
    p(0, 14, "1g.6gb", [1, 1, 4], [14, 1, 0, 0, 0], 5949, &[0, 1, 2, 3]),
    p(7, 21, "1g.6gb+me", [1, 1, 1], [14, 1, 1, 1, 1], 5949, &[0, 1, 2, 3]),
    p(1, 5, "2g.12gb", [2, 2, 2], [28, 2, 2, 0, 0], 11971, &[0, 2]),
    p(8, 6, "2g.12gb+me", [2, 2, 1], [28, 2, 2, 1, 1], 11971, &[0, 2]),
    p(3, 0, "4g.24gb", [4, 4, 1], [56, 4, 4, 1, 1], 24003, &[0]),
];

const A100_40: &[Profile] = &[
    p(0, 19, "1g.5gb", [1, 1, 7], [14, 1, 0, 0, 0], 4864, &[0, 1, 2, 3, 4, 5, 6]),
    p(7, 20, "1g.5gb+me", [1, 1, 1], [14, 1, 1, 1, 1], 4864, &[0, 1, 2, 3, 4, 5, 6]),
    p(9, 15, "1g.10gb", [1, 2, 4], [14, 1, 1, 0, 0], 9984, &[0, 2, 4, 6]),
    p(1, 14, "2g.10gb", [2, 2, 3], [28, 2, 1, 0, 0], 9984, &[0, 2, 4]),
    p(2, 9, "3g.20gb", [3, 4, 2], [42, 3, 2, 0, 0], 20091, &[0, 4]),
    p(3, 5, "4g.20gb", [4, 4, 1], [56, 4, 2, 0, 0], 20091, &[0]),
    p(4, 0, "7g.40gb", [7, 8, 1], [98, 7, 5, 1, 1], 40325, &[0]),
];

const A100_80: &[Profile] = &[
    p(0, 19, "1g.10gb", [1, 1, 7], [14, 1, 0, 0, 0], 9728, &[0, 1, 2, 3, 4, 5, 6]),
    p(7, 20, "1g.10gb+me", [1, 1, 1], [14, 1, 1, 1, 1], 9728, &[0, 1, 2, 3, 4, 5, 6]),
    p(9, 15, "1g.20gb", [1, 2, 4], [14, 1, 1, 0, 0], 19968, &[0, 2, 4, 6]),
    p(1, 14, "2g.20gb", [2, 2, 3], [28, 2, 1, 0, 0], 19968, &[0, 2, 4]),
    p(2, 9, "3g.40gb", [3, 4, 2], [42, 3, 2, 0, 0], 40192, &[0, 4]),
    p(3, 5, "4g.40gb", [4, 4, 1], [56, 4, 2, 0, 0], 40192, &[0]),
    p(4, 0, "7g.80gb", [7, 8, 1], [98, 7, 5, 1, 1], 80640, &[0]),
];

const H100: &[Profile] = &[
    p(0, 19, "1g.10gb", [1, 1, 7], [16, 1, 1, 1, 0], 9984, &[0, 1, 2, 3, 4, 5, 6]),
    p(7, 20, "1g.10gb+me", [1, 1, 1], [16, 1, 1, 1, 1], 9984, &[0, 1, 2, 3, 4, 5, 6]),
    p(9, 15, "1g.20gb", [1, 2, 4], [26, 1, 1, 1, 0], 20091, &[0, 2, 4, 6]),
    p(1, 14, "2g.20gb", [2, 2, 3], [32, 2, 2, 2, 0], 20091, &[0, 2, 4]),
    p(2, 9, "3g.40gb", [3, 4, 2], [60, 3, 3, 3, 0], 40448, &[0, 4]),
    p(3, 5, "4g.40gb", [4, 4, 1], [64, 4, 4, 4, 0], 40448, &[0]),
    p(4, 0, "7g.80gb", [7, 8, 1], [132, 8, 7, 7, 1], 81152, &[0]),
];

const H100_94: &[Profile] = &[
    p(0, 19, "1g.12gb", [1, 1, 7], [16, 1, 1, 1, 0], 11008, &[0, 1, 2, 3, 4, 5, 6]),
    p(7, 20, "1g.12gb+me", [1, 1, 1], [16, 1, 1, 1, 1], 11008, &[0, 1, 2, 3, 4, 5, 6]),
    p(9, 15, "1g.24gb", [1, 2, 4], [26, 1, 1, 1, 0], 22139, &[0, 2, 4, 6]),
    p(1, 14, "2g.24gb", [2, 2, 3], [32, 2, 2, 2, 0], 22139, &[0, 2, 4]),
    p(2, 9, "3g.47gb", [3, 4, 2], [60, 3, 3, 3, 0], 47493, &[0, 4]),
    p(3, 5, "4g.47gb", [4, 4, 1], [64, 4, 4, 4, 0], 47493, &[0]),
    p(4, 0, "7g.94gb", [7, 8, 1], [132, 8, 7, 7, 1], 95355, &[0]),
];

const GH200: &[Profile] = &[
    p(0, 19, "1g.12gb", [1, 1, 7], [16, 1, 1, 1, 0], 11264, &[0, 1, 2, 3, 4, 5, 6]),
    p(7, 20, "1g.12gb+me", [1, 1, 1], [16, 1, 1, 1, 1], 11264, &[0, 1, 2, 3, 4, 5, 6]),
    p(9, 15, "1g.24gb", [1, 2, 4], [26, 1, 1, 1, 0], 23552, &[0, 2, 4, 6]),
    p(1, 14, "2g.24gb", [2, 2, 3], [32, 2, 2, 2, 0], 23552, &[0, 2, 4]),
    p(2, 9, "3g.48gb", [3, 4, 2], [60, 3, 3, 3, 0], 47616, &[0, 4]),
    p(3, 5, "4g.48gb", [4, 4, 1], [64, 4, 4, 4, 0], 47616, &[0]),
    p(4, 0, "7g.96gb", [7, 8, 1], [132, 8, 7, 7, 1], 95232, &[0]),
];

const H200: &[Profile] = &[
    p(0, 19, "1g.18gb", [1, 1, 7], [16, 1, 1, 1, 0], 16384, &[0, 1, 2, 3, 4, 5, 6]),
    p(7, 20, "1g.18gb+me", [1, 1, 1], [16, 1, 1, 1, 1], 16384, &[0, 1, 2, 3, 4, 5, 6]),
    p(9, 15, "1g.35gb", [1, 2, 4], [26, 1, 1, 1, 0], 33024, &[0, 2, 4, 6]),
    p(1, 14, "2g.35gb", [2, 2, 3], [32, 2, 2, 2, 0], 33024, &[0, 2, 4]),
    p(2, 9, "3g.71gb", [3, 4, 2], [60, 3, 3, 3, 0], 71168, &[0, 4]),
    p(3, 5, "4g.71gb", [4, 4, 1], [64, 4, 4, 4, 0], 71168, &[0]),
    p(4, 0, "7g.141gb", [7, 8, 1], [132, 8, 7, 7, 1], 143360, &[0]),
];

const B200: &[Profile] = &[
    p(0, 19, "1g.23gb", [1, 1, 7], [18, 2, 1, 1, 0], 20992, &[0, 1, 2, 3, 4, 5, 6]),
    p(7, 20, "1g.23gb+me", [1, 1, 1], [18, 2, 1, 1, 1], 20992, &[0, 1, 2, 3, 4, 5, 6]),
    p(9, 15, "1g.45gb", [1, 2, 4], [30, 2, 1, 1, 0], 45312, &[0, 2, 4, 6]),
    p(1, 14, "2g.45gb", [2, 2, 3], [36, 4, 2, 2, 0], 45312, &[0, 2, 4]),
    p(2, 9, "3g.90gb", [3, 4, 2], [70, 6, 4, 4, 0], 91136, &[0, 4]),
    p(3, 5, "4g.90gb", [4, 4, 1], [72, 8, 4, 4, 0], 91136, &[0]),
    p(4, 0, "7g.180gb", [7, 8, 1], [148, 16, 7, 7, 1], 182784, &[0]),
];
