//! How a card is set, how it should be, and the steps between.
//!
//! What must stay true: a setting that somebody holds is never taken away; a card is taken apart before it is set up anew; a card that
//! nobody holds or is about to hold is whole, or has the MIG instances that its pool pins to it; the steps of one card never depend on another card, so
//! each is worked on by itself; a card is reset only where its plan says so, which is in a drain.

use crate::health::Scope;
use crate::mps::{MpsLimits, MpsSetting, MpsStart};
use crate::task::TaskSpec;
use crate::users::TaskUsers;
use muster_model::GpuModel;
use muster_model::mig::{self, MigPlacement};
use muster_model::request::SharingMode;
use muster_model::sharing::{CardSharing, TimeSlice};
use muster_model::task::HoldMode;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How a card is driven now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CardSetting {
    /// One task may have it all.
    #[default]
    Whole,
    /// MIG mode is on, and these instances stand, each with so many equal compute instances.
    Mig(BTreeMap<MigPlacement, u8>),
    /// An MPS server runs on it.
    Mps(MpsSetting),
    /// It is shared by turns.
    TimeSlice,
}

/// What is known of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardObserved {
    /// Its model.
    pub model: GpuModel,
    /// How it was driven when it was read last; absent while it has not been read, or the driver does not answer for it.
    pub setting: Option<CardSetting>,
    /// Its steps are under way: the setting above may be out of date already.
    pub changing: bool,
    /// Why its last steps failed, until they succeed or are not needed any more.
    pub failed: Option<String>,
    /// Those steps.
    pub failed_steps: Vec<CardStep>,
    /// A fault has taken its MPS server down: once its clients have gone it is started again, and nobody joins it before.
    pub mps_failed: bool,
    /// Why nothing may be started on it, if so.
    pub withheld: Option<String>,
    /// Slices on which nothing may be started, and why; the rest of the card is used.
    pub withheld_slices: Vec<(MigPlacement, String)>,
    /// A verdict asks for a reset of the card, or a change of its MIG mode waits for one.
    pub asks_for_reset: bool,
    /// A change of its MIG mode takes a reset.
    pub mode_needs_reset: bool,
}

impl CardObserved {
    /// Why nothing may be started on what `mode` takes of the card, if so.
    pub(crate) fn withheld_from(&self, mode: HoldMode) -> Option<&str> {
        let touches = |place: MigPlacement| match mode {
            HoldMode::Mig(asked) => Scope::Slice(place).touches(Scope::Slice(asked)),
            HoldMode::Whole | HoldMode::Mps { .. } | HoldMode::TimeSlice { .. } => true,
        };
        let slice = self.withheld_slices.iter().find(|(place, _)| touches(*place)).map(|(_, why)| why.as_str());
        self.withheld.as_deref().or(slice)
    }

    /// Whether a task that has this hold can start on it now.
    fn serves(&self, holder: &Holder) -> bool {
        let as_needed = match (&self.setting, holder.mode) {
            (Some(CardSetting::Mig(standing)), HoldMode::Mig(place)) => {
                standing.get(&place) == Some(&holder.compute_instances)
            }
            (Some(CardSetting::Mps(server)), mode @ HoldMode::Mps { .. }) => {
                let grants = |asked| server.limits.is_some_and(|limits| limits.grant(asked));
                let is_granted = MpsLimits::of(self.model, mode).is_some_and(grants);
                !self.mps_failed && server.takes(holder.user) && is_granted
            }
            (Some(CardSetting::Whole), HoldMode::Whole)
            | (Some(CardSetting::TimeSlice), HoldMode::TimeSlice { .. }) => true,
            _ => false,
        };
        as_needed && !self.changing
    }

    /// Whether what has failed was done for this hold: of the instances that are missing, one that a task waits for is made first.
    fn failed_for(&self, holder: &Holder) -> bool {
        let first = self.failed_steps.iter().find_map(|step| match step {
            CardStep::CreateInstance(place, count) => Some((*place, *count)),
            _ => None,
        });
        match (first, holder.mode) {
            (None, _) => true,
            (Some(first), HoldMode::Mig(place)) => first == (place, holder.compute_instances),
            (Some(_), _) => false,
        }
    }

    /// How far a card is for a task that may have this hold on it. Where the server of a card takes another user's clients alone, the task waits until
    /// those have gone.
    pub(crate) fn readiness(&self, holder: &Holder) -> Readiness<'_> {
        match &self.failed {
            _ if self.serves(holder) => Readiness::Ready,
            Some(why) if !self.changing && self.failed_for(holder) => Readiness::Failed(why),
            _ => Readiness::NotYet,
        }
    }
}

/// How far a card is for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness<'a> {
    /// The task can start.
    Ready,
    /// The card is to be read or set first.
    NotYet,
    /// Setting it has failed, for this reason.
    Failed(&'a str),
}

/// The steps that one card needs, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardWork {
    /// Its index.
    pub card: u16,
    /// What to change; nothing when it is as it should be.
    pub steps: Vec<CardStep>,
}

/// One change of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CardStep {
    /// Removes an instance that nobody holds.
    DestroyInstance(MigPlacement),
    /// Leaves MIG mode; no instance stands.
    DisableMig,
    /// Ends the MPS server; it has no client.
    StopMps,
    /// Back to one task at a time.
    ClearTimeSlice,
    /// Enters MIG mode; nothing runs on the card.
    EnableMig,
    /// Makes an instance at its place, and so many equal compute instances in it.
    CreateInstance(MigPlacement, u8),
    /// Starts an MPS server; nothing runs on the card.
    StartMps(MpsStart),
    /// Sets what the MPS server grants each client that comes from now on.
    SetMpsLimits(MpsLimits),
    /// Lets several tasks take turns of this length.
    SetTimeSlice(TimeSlice),
    /// Notes the MIG mode that the next reset brings; nothing runs on the card.
    NoteMig(bool),
    /// Resets the card; nothing runs on the node.
    Reset,
}

impl fmt::Display for CardStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CardStep::DestroyInstance(place) => write!(f, "destroying MIG instance {place}"),
            CardStep::DisableMig => f.write_str("leaving MIG mode"),
            CardStep::StopMps => f.write_str("stopping MPS"),
            CardStep::ClearTimeSlice => f.write_str("ending time-slicing"),
            CardStep::EnableMig => f.write_str("entering MIG mode"),
            CardStep::CreateInstance(place, 1) => write!(f, "creating MIG instance {place}"),
            CardStep::CreateInstance(place, count) => {
                write!(f, "creating MIG instance {place} with {count} compute instances")
            }
            CardStep::StartMps(_) => f.write_str("starting MPS"),
            CardStep::SetMpsLimits(limits) => write!(f, "limiting clients of MPS to {limits}"),
            CardStep::SetTimeSlice(length) => write!(f, "starting time-slicing with {length} turns"),
            CardStep::NoteMig(true) => f.write_str("noting that MIG mode is to be on after a reset"),
            CardStep::NoteMig(false) => f.write_str("noting that MIG mode is to be off after a reset"),
            CardStep::Reset => f.write_str("resetting the GPU"),
        }
    }
}

/// Who holds a card: live tasks, and those that are about to start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holders(Vec<Holder>);

/// What a task holds of a card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    mode: HoldMode,
    compute_instances: u8,
    /// Its user; none: the agent's own.
    user: Option<u32>,
    /// It has begun, and may have left something.
    has_begun: bool,
}

impl Holder {
    /// A task that is about to start.
    pub(crate) fn of(task: &TaskSpec, mode: HoldMode, users: TaskUsers) -> Self {
        // A task whose user cannot be had never starts.
        let user = users.of(task.tenant_id, task.run_as).ok().flatten();
        Holder { mode, compute_instances: task.compute_instances(), user, has_begun: false }
    }

    /// The same once it has.
    pub(crate) const fn begun(self) -> Self {
        Holder { has_begun: true, ..self }
    }
}

/// By which rules of the node a card is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettingRules<'a> {
    pub(crate) model: GpuModel,
    pub(crate) sharing: &'a CardSharing,
    pub(crate) users: TaskUsers,
    /// MIG instances that stand also while nobody holds them.
    pub(crate) pinned: &'a [MigPlacement],
}

impl Holders {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, holder: Holder) {
        self.0.push(holder);
    }

    /// Whether `mode` can be had beside the present holders, by what the card can do. The capacity ledger allows nothing else to be asked
    /// for; this is the node's own check.
    pub(crate) fn admit(&self, model: GpuModel, mode: HoldMode) -> bool {
        match mode {
            HoldMode::Whole => self.0.is_empty(),
            HoldMode::Mig(place) => {
                let Some(family) = model.facts().mig else { return false };
                let places: Vec<MigPlacement> = self.instances().map(|(place, _)| place).collect();
                self.all_in(SharingMode::Mig) && mig::can_stand(family, &places, place)
            }
            HoldMode::Mps { .. } | HoldMode::TimeSlice { .. } => self.all_in(mode.mode()),
        }
    }

    fn all_in(&self, mode: SharingMode) -> bool {
        self.0.iter().all(|held| held.mode.mode() == mode)
    }

    /// The MIG instances that are held, and how many compute instances each has.
    fn instances(&self) -> impl Iterator<Item = (MigPlacement, u8)> + '_ {
        self.0.iter().filter_map(|held| match held.mode {
            HoldMode::Mig(place) => Some((place, held.compute_instances)),
            HoldMode::Whole | HoldMode::Mps { .. } | HoldMode::TimeSlice { .. } => None,
        })
    }

    /// The MIG instances that are held, and those that are pinned beside them. What is held from before a layout may be in the way of some.
    fn instances_beside(&self, rules: SettingRules<'_>) -> BTreeMap<MigPlacement, u8> {
        let mut all: BTreeMap<MigPlacement, u8> = self.instances().collect();
        let Some(family) = rules.model.facts().mig else { return all };
        for slot in rules.pinned {
            let places: Vec<MigPlacement> = all.keys().copied().collect();
            if !all.contains_key(slot) && mig::can_stand(family, &places, *slot) {
                all.insert(*slot, 1);
            }
        }
        all
    }

    /// How an MPS server for the holders is started; none where nobody has a share of it.
    fn mps_start(&self, rules: SettingRules<'_>) -> Option<MpsStart> {
        let limits = self.0.iter().filter_map(|held| MpsLimits::of(rules.model, held.mode));
        let (limits, first) = (limits.reduce(MpsLimits::or_more)?, self.0.first()?);
        Some(MpsStart { limits, user: first.user, for_all: rules.users.may_differ() })
    }

    /// The setting that the holders need; `None` when they need different ones, which only a corrupted record can show: such a
    /// card is left as it is until enough of them are gone.
    fn setting(&self, rules: SettingRules<'_>) -> Option<CardSetting> {
        let mode = match self.0.first() {
            Some(first) => first.mode.mode(),
            None if rules.pinned.is_empty() => SharingMode::Whole,
            None => SharingMode::Mig,
        };
        if !self.all_in(mode) {
            return None;
        }
        Some(match mode {
            SharingMode::Whole => CardSetting::Whole,
            SharingMode::Mig => CardSetting::Mig(self.instances_beside(rules)),
            // Whose clients it takes and what it grants is not the card's mode.
            SharingMode::Mps => CardSetting::Mps(MpsSetting::default()),
            SharingMode::TimeSlice => CardSetting::TimeSlice,
        })
    }
}

/// Whether `mode` can ever be had on a card of `model`, else why not.
pub(crate) fn possible(model: GpuModel, mode: HoldMode) -> Result<(), String> {
    let HoldMode::Mig(place) = mode else { return Ok(()) };
    let family = model.facts().mig.ok_or_else(|| format!("{model} has no MIG"))?;
    if mig::can_stand(family, &[], place) {
        Ok(())
    } else {
        Err(format!("{place} is not a valid MIG placement on {model}"))
    }
}

/// The steps for a card whose MPS server has failed and has no client any more: it is stopped first, whoever comes next.
pub(crate) fn steps_after_failed_mps(holders: &Holders, rules: SettingRules<'_>) -> Vec<CardStep> {
    std::iter::once(CardStep::StopMps).chain(steps(&CardSetting::Whole, holders, rules)).collect()
}

/// The steps for a card whose MPS server runs and is needed.
fn steps_of_mps(now: &MpsSetting, holders: &Holders, rules: SettingRules<'_>) -> Vec<CardStep> {
    let Some(start) = holders.mps_start(rules) else { return Vec::new() };
    if holders.0.iter().all(|held| !held.has_begun && !now.takes(held.user)) {
        return vec![CardStep::StopMps, CardStep::StartMps(start)];
    }
    if now.limits == Some(start.limits) { Vec::new() } else { vec![CardStep::SetMpsLimits(start.limits)] }
}

/// The steps that take a card from `now` to what its holders need: what takes it apart comes first.
pub(crate) fn steps(now: &CardSetting, holders: &Holders, rules: SettingRules<'_>) -> Vec<CardStep> {
    let Some(wanted) = holders.setting(rules) else { return Vec::new() };
    let mut steps = Vec::new();
    // A fault in making one that nobody waits for holds up nobody.
    let held: BTreeSet<MigPlacement> = holders.instances().map(|(place, _)| place).collect();
    let held_first = |new: &mut Vec<CardStep>| {
        new.sort_by_key(|step| !matches!(step, CardStep::CreateInstance(place, _) if held.contains(place)));
    };
    match (now, &wanted) {
        (CardSetting::Mig(standing), CardSetting::Mig(needed)) => {
            let is_in = |all: &BTreeMap<MigPlacement, u8>, place, count| all.get(place) == Some(count);
            let gone = standing.iter().filter(|(place, count)| !is_in(needed, place, count));
            steps.extend(gone.map(|(place, _)| CardStep::DestroyInstance(*place)));
            let new = needed.iter().filter(|(place, count)| !is_in(standing, place, count));
            let mut new: Vec<CardStep> = new.map(|(place, count)| CardStep::CreateInstance(*place, *count)).collect();
            held_first(&mut new);
            steps.extend(new);
        }
        (CardSetting::Mps(server), CardSetting::Mps(_)) => return steps_of_mps(server, holders, rules),
        (now, wanted) if now == wanted => {}
        (now, wanted) => {
            match now {
                CardSetting::Whole => {}
                CardSetting::Mig(standing) => {
                    steps.extend(standing.keys().map(|place| CardStep::DestroyInstance(*place)));
                    steps.push(CardStep::DisableMig);
                }
                CardSetting::Mps(_) => steps.push(CardStep::StopMps),
                CardSetting::TimeSlice => steps.push(CardStep::ClearTimeSlice),
            }
            match wanted {
                CardSetting::Whole => {}
                CardSetting::Mig(needed) => {
                    steps.push(CardStep::EnableMig);
                    let new = needed.iter().map(|(place, count)| CardStep::CreateInstance(*place, *count));
                    let mut new: Vec<CardStep> = new.collect();
                    held_first(&mut new);
                    steps.extend(new);
                }
                CardSetting::Mps(_) => steps.extend(holders.mps_start(rules).map(CardStep::StartMps)),
                CardSetting::TimeSlice => steps.push(CardStep::SetTimeSlice(rules.sharing.time_slice)),
            }
        }
    }
    steps
}

/// The steps that take a card apart and reset it. What it is set to after that is planned when it was read.
pub(crate) fn steps_to_reset(now: &CardSetting) -> Vec<CardStep> {
    let mut steps: Vec<CardStep> = match now {
        CardSetting::Whole => Vec::new(),
        CardSetting::Mig(standing) => standing.keys().map(|place| CardStep::DestroyInstance(*place)).collect(),
        CardSetting::Mps(_) => vec![CardStep::StopMps],
        CardSetting::TimeSlice => vec![CardStep::ClearTimeSlice],
    };
    steps.push(CardStep::Reset);
    steps
}

/// Of steps that change the MIG mode of a card which takes a reset for it: those before the change, and a reset that makes it. None where the mode stays.
pub(crate) fn changed_by_reset(steps: &[CardStep]) -> Option<Vec<CardStep>> {
    let is_change = |step: &CardStep| matches!(step, CardStep::EnableMig | CardStep::DisableMig);
    let at = steps.iter().position(is_change)?;
    let mode = CardStep::NoteMig(steps[at] == CardStep::EnableMig);
    Some(steps[..at].iter().copied().chain([mode, CardStep::Reset]).collect())
}
