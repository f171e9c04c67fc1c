//! What tasks ask for and what they hold of cards, for people and for scripts.

use crate::units::show_mebibytes;
use muster_proto::v1;
use muster_proto::v1::device_hold::Mode;
use muster_proto::v1::device_request::Kind;
use serde::Serialize;

/// What each task of a job asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum DevicesView {
    /// No card.
    None,
    /// Whole cards.
    Gpus {
        /// How many.
        count: u32,
    },
    /// One MIG instance.
    Mig {
        /// Such as `1g.10gb`.
        profile: String,
    },
    /// A share of a card under MPS.
    Mps {
        /// Of its compute.
        percent: u32,
        /// Of its memory.
        memory_mib: u64,
    },
    /// Turns on a card.
    TimeSlice {
        /// Of its memory.
        memory_mib: u64,
    },
}

impl DevicesView {
    /// From the message.
    #[must_use]
    pub fn new(kind: Option<&Kind>) -> Self {
        match kind {
            None => DevicesView::None,
            Some(Kind::Whole(whole)) => DevicesView::Gpus { count: whole.count },
            Some(Kind::Mig(mig)) => DevicesView::Mig { profile: mig.profile.clone() },
            Some(Kind::Mps(mps)) => DevicesView::Mps { percent: mps.percent, memory_mib: mps.memory_mib },
            Some(Kind::TimeSlice(slice)) => DevicesView::TimeSlice { memory_mib: slice.memory_mib },
        }
    }

    /// Of all tasks of a gang, in a column: `32`, `1g.10gb`, `30%/20Gi`, `slice/8Gi`, `-`.
    #[must_use]
    pub fn column(&self, tasks: u32) -> String {
        match self {
            DevicesView::None => "-".to_owned(),
            DevicesView::Gpus { count } => (u64::from(*count) * u64::from(tasks)).to_string(),
            DevicesView::Mig { profile } => profile.clone(),
            DevicesView::Mps { percent, memory_mib } => format!("{percent}%/{}", show_mebibytes(*memory_mib)),
            DevicesView::TimeSlice { memory_mib } => format!("slice/{}", show_mebibytes(*memory_mib)),
        }
    }

    /// Of one task, in a sentence: `8 GPUs`, `a MIG instance 1g.10gb`.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            DevicesView::None => "no GPU".to_owned(),
            DevicesView::Gpus { count: 1 } => "1 GPU".to_owned(),
            DevicesView::Gpus { count } => format!("{count} GPUs"),
            DevicesView::Mig { profile } => format!("a MIG instance {profile}"),
            DevicesView::Mps { percent, memory_mib } => {
                format!("{percent} % of a GPU under MPS with {}", show_mebibytes(*memory_mib))
            }
            DevicesView::TimeSlice { memory_mib } => {
                format!("a time-slice of a GPU with {}", show_mebibytes(*memory_mib))
            }
        }
    }
}

/// A card that a task holds, or its part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HoldView {
    /// Index of the card on its node.
    pub gpu: u32,
    /// How it is held.
    #[serde(flatten)]
    pub how: How,
}

/// How a task holds a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum How {
    /// All of it.
    Whole,
    /// A MIG instance.
    Mig {
        /// Such as `1g.10gb`.
        profile: String,
        /// Its first memory slice.
        start: u32,
    },
    /// A share under MPS.
    Mps {
        /// Of its compute.
        percent: u32,
        /// Of its memory.
        memory_mib: u64,
    },
    /// Turns.
    TimeSlice {
        /// Of its memory.
        memory_mib: u64,
    },
}

impl HoldView {
    /// From the message; `profile` is what the job asked for, in the catalogue's words.
    #[must_use]
    pub fn new(hold: &v1::DeviceHold, asked: &DevicesView) -> Self {
        let how = match &hold.mode {
            Some(Mode::Mig(mig)) => {
                let profile = match asked {
                    DevicesView::Mig { profile } => profile.clone(),
                    _ => mig.shape.clone(),
                };
                How::Mig { profile, start: mig.start }
            }
            Some(Mode::Mps(mps)) => How::Mps { percent: mps.percent, memory_mib: mps.memory_mib },
            Some(Mode::TimeSlice(slice)) => How::TimeSlice { memory_mib: slice.memory_mib },
            Some(Mode::Whole(_)) | None => How::Whole,
        };
        HoldView { gpu: hold.gpu, how }
    }

    /// In a column: `0`, `2 (1g.10gb at slice 3)`.
    #[must_use]
    pub fn words(&self) -> String {
        let gpu = self.gpu;
        match &self.how {
            How::Whole => gpu.to_string(),
            How::Mig { profile, start } => format!("{gpu} ({profile} at slice {start})"),
            How::Mps { percent, memory_mib } => format!("{gpu} (MPS {percent} %, {})", show_mebibytes(*memory_mib)),
            How::TimeSlice { memory_mib } => format!("{gpu} (time-slice, {})", show_mebibytes(*memory_mib)),
        }
    }
}

/// All that a task holds, in a column.
#[must_use]
pub fn holds_words(holds: &[HoldView]) -> String {
    if holds.is_empty() { "-".to_owned() } else { holds.iter().map(HoldView::words).collect::<Vec<_>>().join(",") }
}
