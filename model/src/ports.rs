//! Ports that the tasks of one allocation have for themselves on their nodes.
//!
//! What must stay true: no two live allocations on one node have the same block; a block lies below the ports that programs
//! take when nobody names one.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The first port of the first block.
pub const PORTS_BASE: u16 = 20_000;
/// Ports of a block: rank 0's, and some for servers that a job starts itself.
pub const PORTS_PER_BLOCK: u16 = 16;
/// Blocks: they end below 29,500, where torchrun listens when nobody says otherwise, and Linux gives away ports from 32,768 on; so a block is nobody's by chance.
pub const PORT_BLOCKS: u16 = (29_500 - PORTS_BASE) / PORTS_PER_BLOCK;

/// A block of ports, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortBlock(pub u16);

impl PortBlock {
    /// Its first port.
    #[must_use]
    pub const fn first(self) -> u16 {
        PORTS_BASE + self.0 * PORTS_PER_BLOCK
    }

    /// Its last port.
    #[must_use]
    pub const fn last(self) -> u16 {
        self.first() + PORTS_PER_BLOCK - 1
    }

    /// The block that begins with this port.
    #[must_use]
    pub const fn beginning_with(port: u16) -> Option<Self> {
        let Some(from_base) = port.checked_sub(PORTS_BASE) else { return None };
        let number = from_base / PORTS_PER_BLOCK;
        if from_base % PORTS_PER_BLOCK == 0 && number < PORT_BLOCKS { Some(PortBlock(number)) } else { None }
    }
}

impl fmt::Display for PortBlock {
    /// `20000-20015`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first(), self.last())
    }
}

/// What ports an allocation has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Ports {
    /// It was bound before there were blocks: its port is one of its number, and nothing keeps others off.
    #[default]
    Unassigned,
    /// A block that no other allocation on its nodes has.
    Block(PortBlock),
    /// Every block was taken on its nodes.
    NoneFree,
}

impl Ports {
    /// The block, if it has one.
    #[must_use]
    pub const fn block(self) -> Option<PortBlock> {
        match self {
            Ports::Block(block) => Some(block),
            Ports::Unassigned | Ports::NoneFree => None,
        }
    }
}
