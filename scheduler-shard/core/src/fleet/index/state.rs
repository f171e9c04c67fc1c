//! States: what placement tells nodes and cards apart by. Whatever is of one state is interchangeable.

use muster_model::capacity::CardUse;
use muster_model::mig::Occupied;
use muster_model::{DriverVersion, GpuModel, Node, TenantId};

/// Islands of one node that a state tells apart; the largest are kept. A node has at most sixteen cards in practice.
const ISLANDS_MAX: usize = 16;
/// Free milli-CPUs of a node are told apart in this many steps of its total.
const CPU_STEPS: u64 = 16;

/// What a shared card has left, as far as placement tells cards apart. Cards of one state are interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CardState {
    /// Pinned to the layout that its pool has for its model, with this much of it taken, or nothing.
    Pinned(Occupied),
    /// Cut into instances that hold this much.
    Mig(Occupied),
    /// Shared under MPS.
    Mps { domain: TenantId, percent: u32, memory_mib: u64, clients: usize },
    /// Shared by turns.
    TimeSlice { domain: TenantId, memory_mib: u64, clients: usize },
}

impl CardState {
    /// The state of a card that is shared now. A pinned card is shared even when it is empty, and whatever else it is still used for,
    /// more of that does not go there.
    pub(crate) fn of(card: &CardUse, pinned: bool) -> Option<Self> {
        match card {
            CardUse::Free if pinned => Some(CardState::Pinned(Occupied::default())),
            CardUse::Free | CardUse::Whole(_) => None,
            CardUse::Mig(instances) => {
                let occupied = Occupied::by(instances.iter().map(|(place, _)| *place));
                Some(if pinned { CardState::Pinned(occupied) } else { CardState::Mig(occupied) })
            }
            CardUse::Mps { .. } | CardUse::TimeSlice { .. } if pinned => None,
            CardUse::Mps { domain, shares } => Some(CardState::Mps {
                domain: *domain,
                percent: shares.iter().map(|share| u32::from(share.percent)).sum(),
                memory_mib: shares.iter().map(|share| share.memory_mib).sum(),
                clients: shares.len(),
            }),
            CardUse::TimeSlice { domain, shares } => Some(CardState::TimeSlice {
                domain: *domain,
                memory_mib: shares.iter().map(|share| share.memory_mib).sum(),
                clients: shares.len(),
            }),
        }
    }
}

/// The free units of a node on one bucket: whole cards and how they lie in islands, or milli-CPUs where there are no cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreeState {
    /// Free cards; on the bucket without a model, free milli-CPUs rounded up to a step of the node's total.
    pub(crate) free: u32,
    /// Free cards per island, the largest first.
    pub(crate) islands: [u8; ISLANDS_MAX],
    /// Cards of the largest island, held and withheld ones included: what such a node could at best join.
    pub(crate) largest: u8,
    /// All its cards are part of an NVLink island that spans several nodes.
    pub(crate) spans: bool,
}

impl FreeState {
    /// From the island of each free card.
    pub(crate) fn of_cards(islands: impl Iterator<Item = u8>, largest: u8, spans: bool) -> Self {
        let (mut counts, mut free, mut top) = ([0_u8; 256], 0, 0);
        for island in islands {
            let count = &mut counts[usize::from(island)];
            *count = count.saturating_add(1);
            free += 1;
            top = top.max(usize::from(island));
        }
        let counts = &mut counts[..=top];
        if top > 0 {
            counts.sort_unstable_by(|a, b| b.cmp(a));
        }
        let mut room = FreeState { free, islands: [0; ISLANDS_MAX], largest, spans: spans && free > 0 };
        room.islands.iter_mut().zip(counts).for_each(|(kept, count)| *kept = *count);
        room
    }

    /// At least the free milli-CPUs of a node, less than one step above them: an upper bound that rarely changes.
    pub(crate) fn of_cpu(free_milli: i64, total_milli: u64) -> Self {
        let step = total_milli.div_ceil(CPU_STEPS).max(1);
        let free = (free_milli.max(0) as u64).div_ceil(step) * step;
        FreeState { free: u32::try_from(free).unwrap_or(u32::MAX), ..FreeState::default() }
    }

    /// How many units of `each` it holds, each inside one island.
    pub(crate) fn in_islands(&self, each: u64) -> u64 {
        let mut slots = 0;
        for &free in self.islands.iter().take_while(|free| u64::from(**free) >= each) {
            slots += u64::from(free) / each;
        }
        slots
    }

    /// How many units of `each` it holds wherever the cards lie.
    pub(crate) fn anywhere(&self, each: u64) -> u64 {
        u64::from(self.free) / each
    }

    /// The smallest island that has `count` free.
    pub(crate) fn tightest(&self, count: u64) -> Option<u8> {
        self.islands.iter().copied().take_while(|free| u64::from(*free) >= count).last()
    }

    /// Whether every free card lies in one island, so that nothing can cross.
    pub(crate) fn is_one_island(&self) -> bool {
        u32::from(self.islands[0]) == self.free
    }
}

/// A node's free CPU and memory in half-octaves. Monotone: a lower step certainly has less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostState {
    cpu: u8,
    memory: u8,
}

impl HostState {
    /// Of free (or asked) milli-CPUs and MiB.
    pub(crate) fn of(cpu_milli: i64, memory_mib: i64) -> Self {
        HostState { cpu: half_octave(cpu_milli), memory: half_octave(memory_mib) }
    }

    /// Whether a node of this step may hold what `asked` stands for; `false` is certain.
    pub(crate) fn may_hold(self, asked: HostState) -> bool {
        self.cpu >= asked.cpu && self.memory >= asked.memory
    }
}

fn half_octave(amount: i64) -> u8 {
    if amount <= 0 {
        return 0;
    }
    let octave = amount.ilog2();
    let upper_half = octave > 0 && amount >> (octave - 1) & 1 == 1;
    1 + 2 * octave as u8 + u8::from(upper_half)
}

/// What a node is when nothing runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EmptyState {
    pub(crate) room: FreeState,
    pub(crate) cpu_milli: u64,
    pub(crate) memory_mib: u64,
    /// Usable cards per NUMA node, the largest first.
    numa: [u8; ISLANDS_MAX],
    pub(crate) driver: Option<DriverVersion>,
}

impl EmptyState {
    /// Of `node`, as the bucket of `model` sees it: `pinned` cards, bit by bit, are none that can be had whole.
    pub(crate) fn of(node: &Node, pinned: u128, model: Option<GpuModel>) -> Self {
        let spec = &node.spec;
        let whole = |(index, _): &(usize, &muster_model::Gpu)| pinned.checked_shr(*index as u32).unwrap_or(0) & 1 == 0;
        let whole = || spec.gpus.iter().enumerate().filter(whole).map(|(_, gpu)| gpu);
        let of_model = || whole().filter(|gpu| Some(gpu.model) == model);
        let usable = || of_model().filter(|gpu| gpu.withheld.is_none());
        let numa = FreeState::of_cards(usable().map(|gpu| gpu.numa), 0, false).islands;
        let room = match model {
            Some(_) => {
                let largest = FreeState::of_cards(of_model().map(|gpu| gpu.island), 0, false).islands[0];
                FreeState::of_cards(usable().map(|gpu| gpu.island), largest, !spec.place.nvlink_domain.is_empty())
            }
            None => FreeState::of_cpu(spec.cpu_milli as i64, spec.cpu_milli),
        };
        let driver = DriverVersion::reported(&spec.driver);
        EmptyState { room, cpu_milli: spec.cpu_milli, memory_mib: spec.memory_mib, numa, driver }
    }

    /// How many tasks of `each` cards it holds, each on one NUMA node.
    pub(crate) fn on_numa_nodes(&self, each: u64) -> u64 {
        self.numa
            .iter()
            .map(|cards| u64::from(*cards).checked_div(each).unwrap_or(u64::MAX))
            .fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_cards_count_by_island() {
        let room = FreeState::of_cards([0, 0, 0, 2, 2, 1].into_iter(), 3, false);
        assert_eq!((room.free, &room.islands[..4]), (6, &[3, 2, 1, 0][..]));
        assert_eq!((room.in_islands(2), room.anywhere(2), room.in_islands(3), room.in_islands(4)), (2, 3, 1, 0));
        assert_eq!((room.tightest(1), room.tightest(2), room.tightest(4)), (Some(1), Some(2), None));
        assert_eq!(FreeState::of_cards([].into_iter(), 0, true), FreeState::default());
    }

    #[test]
    fn steps_of_hosts_are_monotone() {
        let mut last = 0;
        for amount in 0..100_000_i64 {
            let step = half_octave(amount);
            assert!(step >= last);
            last = step;
        }
        assert!(!HostState::of(5_000, 10).may_hold(HostState::of(6_200, 1)));
        assert!(HostState::of(6_500, 10).may_hold(HostState::of(6_400, 10)));
    }

    #[test]
    fn free_cpu_is_never_understated() {
        for free in 0..=70_i64 {
            let room = FreeState::of_cpu(free, 64);
            assert!(i64::from(room.free) >= free && i64::from(room.free) < free + 4);
        }
    }
}
