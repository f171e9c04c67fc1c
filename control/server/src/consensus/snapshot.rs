//! Snapshots on their way: a frozen view of the state store, read as frames and written from frames into a fresh store. Never a copy in
//! memory.
//!
//! What must stay true: what is received is what was frozen, pair by pair, history included; the last frame says how many pairs there
//! were, so a stream that ends early is not a snapshot.

use crate::consensus::stored::state_space;
use muster_runtime::disk::{KvRead, Pair};
use muster_runtime::{Batch, DiskError, Kv};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Bytes of a frame: some hundred microseconds of a fast network, small beside what a connection may have in flight.
const FRAME_BYTES: usize = 512 << 10;
/// Pairs read at once; a value may be some tens of kilobytes.
const PAGE_PAIRS: usize = 64;

/// Part of a snapshot on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// Pairs of one space, by its place in [`state_space::ALL`].
    Pairs { space: u8, pairs: Vec<Pair> },
    /// All of them have been sent.
    End { pairs: u64 },
}

/// Reads a view as frames.
pub(crate) struct Frames {
    view: Arc<dyn KvRead>,
    space: usize,
    from: Vec<u8>,
    pairs: u64,
    ended: bool,
}

impl Frames {
    pub(crate) fn new(view: Arc<dyn KvRead>) -> Self {
        Frames { view, space: 0, from: Vec::new(), pairs: 0, ended: false }
    }

    /// The next frame; `None` after the end.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, DiskError> {
        while let Some(name) = state_space::ALL.get(self.space) {
            let pairs = self.read(name)?;
            if !pairs.is_empty() {
                self.pairs += pairs.len() as u64;
                // The number of spaces is a constant far below 256.
                return Ok(Some(Frame::Pairs { space: self.space as u8, pairs }));
            }
            self.space += 1;
            self.from.clear();
        }
        let end = (!self.ended).then_some(Frame::End { pairs: self.pairs });
        self.ended = true;
        Ok(end)
    }

    fn read(&mut self, space: &'static str) -> Result<Vec<Pair>, DiskError> {
        let (mut pairs, mut bytes) = (Vec::new(), 0);
        while bytes < FRAME_BYTES {
            let page = self.view.scan(space, &self.from, None, PAGE_PAIRS, false)?;
            let Some((last, _)) = page.last() else { break };
            // The next page begins right after the last key.
            self.from.clone_from(last);
            self.from.push(0);
            bytes += page.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
            pairs.extend(page);
        }
        Ok(pairs)
    }
}

/// Writes frames into an empty store.
pub(crate) struct Unpacker<'a> {
    kv: &'a dyn Kv,
    pairs: u64,
}

impl<'a> Unpacker<'a> {
    pub(crate) fn new(kv: &'a dyn Kv) -> Self {
        Unpacker { kv, pairs: 0 }
    }

    /// Takes a frame; true once the last has come and all were there.
    pub(crate) fn take(&mut self, frame: Frame) -> Result<bool, Incomplete> {
        match frame {
            Frame::Pairs { space, pairs } => {
                let space = *state_space::ALL.get(usize::from(space)).ok_or(Incomplete::Space { space })?;
                self.pairs += pairs.len() as u64;
                let mut batch = Batch::default();
                for (key, value) in pairs {
                    batch.put(space, key, value);
                }
                self.kv.write(&batch)?;
                Ok(false)
            }
            Frame::End { pairs } if pairs == self.pairs => Ok(true),
            Frame::End { pairs } => Err(Incomplete::Pairs { expected: pairs, got: self.pairs }),
        }
    }
}

/// Why frames are not a whole snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Incomplete {
    #[error("space {space} is not known here")]
    Space { space: u8 },
    #[error("{expected} pairs were sent, {got} came")]
    Pairs { expected: u64, got: u64 },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Copies a view into an empty store of the same machine.
pub(crate) fn copy(view: Arc<dyn KvRead>, kv: &dyn Kv) -> Result<(), DiskError> {
    let (mut frames, mut unpacker) = (Frames::new(view), Unpacker::new(kv));
    while let Some(frame) = frames.next()? {
        unpacker.take(frame).map_err(|error| match error {
            Incomplete::Disk(error) => error,
            other => crate::consensus::stored::corrupt("a copied snapshot", &other),
        })?;
    }
    Ok(())
}
