//! How the cards and network cards of a node reach each other: for people, and for whoever tunes a gang. Placement reads islands and NUMA nodes of the
//! cards themselves.
//!
//! What must stay true: the words are those of `nvidia-smi topo -m`; a node says all of it or nothing; its size is bounded.

use crate::bounds::{GPUS_PER_NODE_MAX, NAME_BYTES_MAX, NICS_PER_NODE_MAX, WORD_BYTES_MAX};
use crate::field_error::FieldError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The way between two devices of a node, from the shortest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LinkKind {
    /// The same device.
    Own,
    /// So many NVLinks.
    NvLink(u8),
    /// At most one PCIe bridge.
    Pix,
    /// Several PCIe bridges, below one host bridge.
    Pxb,
    /// The PCIe host bridge.
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    /// From one NUMA node to another.
    Sys,
}

/// More NVLinks than a card will have; codes from here up are numbers of links.
const NVLINK: u8 = 128;

impl LinkKind {
    /// The number that stands for it in a matrix.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            LinkKind::Own => 0,
            LinkKind::Pix => 1,
            LinkKind::Pxb => 2,
            LinkKind::Phb => 3,
            LinkKind::Node => 4,
            LinkKind::Sys => 5,
            LinkKind::NvLink(links) => NVLINK | links,
        }
    }

    /// What a number stands for.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => LinkKind::Own,
            1 => LinkKind::Pix,
            2 => LinkKind::Pxb,
            3 => LinkKind::Phb,
            4 => LinkKind::Node,
            5 => LinkKind::Sys,
            NVLINK.. => LinkKind::NvLink(code & !NVLINK),
            _ => return None,
        })
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkKind::Own => f.write_str("X"),
            LinkKind::NvLink(links) => write!(f, "NV{links}"),
            LinkKind::Pix => f.write_str("PIX"),
            LinkKind::Pxb => f.write_str("PXB"),
            LinkKind::Phb => f.write_str("PHB"),
            LinkKind::Node => f.write_str("NODE"),
            LinkKind::Sys => f.write_str("SYS"),
        }
    }
}

/// A network card of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Such as `mlx5_0`.
    pub name: String,
    /// NUMA node.
    pub numa: u8,
}

/// What an agent has found of the ways inside its node; nothing where it has not looked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLinks {
    /// The newest CUDA that the driver serves, such as `13.0`.
    pub cuda: String,
    /// How many cards have a row.
    pub gpus: u16,
    /// Network cards.
    pub nics: Vec<Nic>,
    /// A row for each card: the codes of the ways to each card, then to each network card.
    pub matrix: Vec<u8>,
}

impl NodeLinks {
    /// The way from a card to a device: a card by index, or network card N as `gpus` + N.
    #[must_use]
    pub fn kind(&self, gpu: usize, to: usize) -> Option<LinkKind> {
        let columns = usize::from(self.gpus) + self.nics.len();
        (to < columns).then_some(())?;
        self.matrix.get(gpu * columns + to).copied().and_then(LinkKind::from_code)
    }

    /// The cards that a network card is nearest to.
    #[must_use]
    pub fn nearest(&self, nic: usize) -> Vec<u16> {
        let way = |gpu: u16| self.kind(usize::from(gpu), usize::from(self.gpus) + nic);
        let best = (0..self.gpus).filter_map(way).min();
        (0..self.gpus).filter(|gpu| best.is_some() && way(*gpu) == best).collect()
    }

    /// Checks that it is whole and not too large.
    ///
    /// # Errors
    /// What is wrong.
    pub fn validate(&self) -> Result<(), FieldError> {
        let (gpus, nics) = (usize::from(self.gpus), self.nics.len());
        if gpus > GPUS_PER_NODE_MAX || nics > NICS_PER_NODE_MAX {
            let problem = format!("has {gpus} GPUs and {nics} network cards");
            return Err(FieldError::new("links", problem, "a node has at most 72 GPUs and 64 network cards"));
        }
        if self.cuda.len() > WORD_BYTES_MAX || self.nics.iter().any(|nic| nic.name.len() > NAME_BYTES_MAX) {
            return Err(FieldError::new("links", "has a name that is too long", "use the names of the driver"));
        }
        let is_whole = self.matrix.len() == gpus * (gpus + nics);
        if !is_whole || self.matrix.iter().any(|code| LinkKind::from_code(*code).is_none()) {
            let problem = format!("has {} ways for {gpus} GPUs and {nics} network cards", self.matrix.len());
            return Err(FieldError::new("links.matrix", problem, "give a known way from each GPU to each device"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links() -> NodeLinks {
        let nics = ["mlx5_0", "mlx5_1"].map(|name| Nic { name: name.to_owned(), numa: 0 }).to_vec();
        let nv = LinkKind::NvLink(18).code();
        NodeLinks { cuda: "13.0".to_owned(), gpus: 2, nics, matrix: vec![0, nv, 1, 4, nv, 0, 5, 1] }
    }

    #[test]
    fn ways_are_read_by_card_and_device() {
        let links = links();
        assert_eq!(links.validate(), Ok(()));
        assert_eq!(links.kind(0, 1).map(|kind| kind.to_string()).as_deref(), Some("NV18"));
        assert_eq!((links.kind(1, 2), links.kind(1, 4), links.kind(2, 0)), (Some(LinkKind::Sys), None, None));
        assert_eq!((links.nearest(0), links.nearest(1)), (vec![0], vec![1]));
        assert!(LinkKind::NvLink(18) < LinkKind::Pix && LinkKind::Node < LinkKind::Sys);
    }

    #[test]
    fn every_code_is_one_way() {
        for code in 0..=u8::MAX {
            assert!(LinkKind::from_code(code).is_none_or(|kind| kind.code() == code), "{code}");
        }
    }

    #[test]
    fn half_a_matrix_is_refused() {
        let check = |change: fn(&mut NodeLinks)| {
            let mut links = links();
            change(&mut links);
            assert!(links.validate().is_err(), "{links:?}");
        };
        check(|links| links.matrix.truncate(7));
        check(|links| links.matrix[0] = 77);
        check(|links| links.gpus = 100);
        check(|links| links.nics[0].name = "n".repeat(1_000));
        assert_eq!(NodeLinks::default().validate(), Ok(()));
    }
}
