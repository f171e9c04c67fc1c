//! How fast cards reach each other, by model and by how far apart they stand.
//!
//! Figures are in MB/s (10⁶ bytes) of one card in one direction, from NVIDIA's data sheets: the NVLink and PCIe figures printed there are
//! sums of both directions, so half of them stands here; the network's is that of the model's reference system (DGX-1 for P100 and
//! V100, DGX A100, DGX H100, H200 and B200, DGX GH200), its compute NICs shared evenly by its cards. A fleet's own links may be slower; what must
//! stay true is only the order: NVLink before PCIe before network.

use crate::gpu::GpuModel;
use crate::topology::TopologyLevel;
use std::fmt;

/// The slowest way between two cards of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Inside an island.
    NvLink,
    /// Across islands of one node.
    Pcie,
    /// Between nodes.
    Network,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::NvLink => "NVLink",
            Way::Pcie => "PCIe",
            Way::Network => "network",
        })
    }
}

/// A way and what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Which.
    pub way: Way,
    /// MB/s of one card in one direction.
    pub mb_s: u64,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.mb_s / 1_000, self.mb_s % 1_000 / 10);
        if part == 0 {
            write!(f, "{whole} GB/s ({})", self.way)
        } else {
            write!(f, "{whole}.{part:02} GB/s ({})", self.way)
        }
    }
}

/// One model's links, in MB/s of one card in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// None where the model has no NVLink.
    pub nvlink: Option<u64>,
    /// Sixteen lanes of its generation.
    pub pcie: u64,
    /// None where the model has no reference system: its hosts' networks differ too much.
    pub network: Option<u64>,
}

impl GpuModel {
    /// The model's links.
    #[must_use]
    pub const fn links(self) -> Links {
        const GEN3: u64 = 16_000;
        const GEN4: u64 = 32_000;
        const GEN5: u64 = 64_000;
        const fn links(nvlink: Option<u64>, pcie: u64, network: Option<u64>) -> Links {
            Links { nvlink, pcie, network }
        }
        match self {
            // NVLink of the A30 is a bridge between two cards.
            GpuModel::A30 => links(Some(100_000), GEN4, None),
            // One 200 Gb/s NIC for each card.
            GpuModel::A100_40 | GpuModel::A100_80 => links(Some(300_000), GEN4, Some(25_000)),
            // One 400 Gb/s NIC for each card.
            GpuModel::H100 | GpuModel::H200 => links(Some(450_000), GEN5, Some(50_000)),
            // NVLink of the 94 GB card is the NVL's bridge: the same card as SXM5 has half as much again. A GH200's is SXM's.
            GpuModel::H100_94 => links(Some(300_000), GEN5, None),
            GpuModel::GH200 => links(Some(450_000), GEN5, Some(50_000)),
            GpuModel::B200 => links(Some(900_000), GEN5, Some(50_000)),
            GpuModel::L40S | GpuModel::A10 => links(None, GEN4, None),
            GpuModel::T4 => links(None, GEN3, None),
            // Four 100 Gb/s NICs for eight cards.
            GpuModel::V100_16 | GpuModel::V100_32 => links(Some(150_000), GEN3, Some(6_250)),
            GpuModel::P100 => links(Some(80_000), GEN3, Some(6_250)),
        }
    }

    /// The slowest way between cards of a gang that fills one domain of `level`, where it is known. Cards of an island without NVLink are
    /// joined by PCIe.
    #[must_use]
    pub fn link_at(self, level: TopologyLevel) -> Option<Link> {
        let links = self.links();
        match (level, links.nvlink) {
            (TopologyLevel::Island, Some(mb_s)) => Some(Link { way: Way::NvLink, mb_s }),
            (TopologyLevel::Island | TopologyLevel::Node, _) => Some(Link { way: Way::Pcie, mb_s: links.pcie }),
            (TopologyLevel::Leaf | TopologyLevel::Block | TopologyLevel::Region, _) => {
                links.network.map(|mb_s| Link { way: Way::Network, mb_s })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_is_never_faster() {
        for model in GpuModel::ALL {
            let known: Vec<u64> =
                TopologyLevel::ALL.iter().filter_map(|level| model.link_at(*level)).map(|link| link.mb_s).collect();
            assert!(known.is_sorted_by(|tight, wide| tight >= wide), "{model}: {known:?}");
        }
    }

    #[test]
    fn figures_are_shown_in_gigabytes() {
        let words = |model: GpuModel, level| model.link_at(level).map(|link| link.to_string());
        assert_eq!(words(GpuModel::H100, TopologyLevel::Island).as_deref(), Some("450 GB/s (NVLink)"));
        assert_eq!(words(GpuModel::V100_16, TopologyLevel::Leaf).as_deref(), Some("6.25 GB/s (network)"));
        assert_eq!(words(GpuModel::T4, TopologyLevel::Island).as_deref(), Some("16 GB/s (PCIe)"));
        assert_eq!(words(GpuModel::T4, TopologyLevel::Leaf), None);
    }
}
