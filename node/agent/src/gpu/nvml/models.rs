//! Which model a card is, from NVML's name and memory.
//!
//! What must stay true: a card of another memory size than the catalogue's is an unknown model, not the nearest one.

use muster_model::GpuModel;

/// The model of a card with this name and memory; `None` when the catalogue does not have it.
pub(super) fn model(name: &str, memory_mib: u64) -> Option<GpuModel> {
    let family = |model: GpuModel| {
        let name = model.facts().nvml_name;
        name.split([' ', '-']).next().unwrap_or(name)
    };
    let words: Vec<&str> = name.split([' ', '-']).collect();
    let fits = |model: &GpuModel| {
        // What NVML counts is up to 7 % less than the data sheet: ECC takes its part.
        let sheet = model.memory_mib();
        words.contains(&family(*model)) && memory_mib.abs_diff(sheet) * 10 <= sheet
    };
    GpuModel::ALL.into_iter().filter(fits).min_by_key(|model| memory_mib.abs_diff(model.memory_mib()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_memory_tell_the_model() {
        let check = |name, memory_mib, expected| assert_eq!(model(name, memory_mib), expected, "{name}");
        check("NVIDIA H100 80GB HBM3", 81_559, Some(GpuModel::H100));
        check("NVIDIA H100 PCIe", 81_559, Some(GpuModel::H100));
        check("NVIDIA H100 NVL", 95_830, Some(GpuModel::H100_94));
        check("NVIDIA H100 64GB", 65_247, None);
        check("NVIDIA H200", 143_771, Some(GpuModel::H200));
        check("NVIDIA H200 NVL", 143_771, Some(GpuModel::H200));
        check("NVIDIA GH200 480GB", 97_871, Some(GpuModel::GH200));
        check("NVIDIA GH200 144G HBM3e", 146_831, None);
        check("NVIDIA B200", 183_359, Some(GpuModel::B200));
        check("NVIDIA A100-SXM4-40GB", 40_960, Some(GpuModel::A100_40));
        check("NVIDIA A100 80GB PCIe", 81_920, Some(GpuModel::A100_80));
        check("NVIDIA A10", 23_028, Some(GpuModel::A10));
        check("NVIDIA A10G", 23_028, None);
        check("NVIDIA A30", 24_258, Some(GpuModel::A30));
        check("NVIDIA L40S", 46_068, Some(GpuModel::L40S));
        check("NVIDIA L40", 46_068, None);
        check("Tesla T4", 15_360, Some(GpuModel::T4));
        check("Tesla V100-SXM2-16GB", 16_160, Some(GpuModel::V100_16));
        check("Tesla V100-PCIE-32GB", 32_510, Some(GpuModel::V100_32));
        check("Tesla P100-PCIE-16GB", 16_276, Some(GpuModel::P100));
        check("NVIDIA GeForce RTX 5090", 32_607, None);
    }
}
