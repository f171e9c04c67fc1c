//! The state frozen for a backup, and the first state store of a folder that is made from one.
//!
//! What must stay true: a backup is the state at one revision, with its history; what follows from restoring it is decided by the state machine like everything
//! else, and stored before the folder says that it belongs to a cluster.

use super::apply::write_changes;
use super::load::{load, marks};
use super::upgrade::order_history;
use super::{Replica, check_level, key, store_name};
use crate::consensus::forms::form_of;
use crate::consensus::snapshot::{Frame, Frames, Unpacker};
use crate::consensus::stored::{self, corrupt, encode, object_key, state_space};
use crate::consensus::types::{LogId, Member, Membership};
use muster_control_core::{Entry, Reject, execute};
use muster_model::object::Meta;
use muster_model::{Key, Object};
use muster_runtime::disk::KvRead;
use muster_runtime::{Batch, DiskError, Host};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The state store a restored folder begins with.
pub(crate) const FIRST_GENERATION: u64 = 1;
/// Revisions that may have been given out between the backup and the loss: who has seen one of them sees only higher ones.
const REVISIONS_SKIPPED: u64 = 1_000_000_000;

/// The state at one revision.
pub(crate) struct FrozenState {
    view: Arc<dyn KvRead>,
    applied: Option<LogId>,
    membership: Membership,
    meta: Option<Meta>,
}

/// What a frozen state is.
pub(crate) struct About {
    /// The counters.
    pub(crate) meta: Meta,
    /// The last entry's term.
    pub(crate) term: u64,
    /// And its index.
    pub(crate) index: u64,
    /// The control nodes, with their addresses.
    pub(crate) members: Vec<(u64, String)>,
}

/// Its frames.
pub(crate) struct BackupFrames(Frames);

impl BackupFrames {
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, DiskError> {
        self.0.next()
    }
}

impl FrozenState {
    /// What it is; `None` where there is no cluster yet.
    pub(crate) fn about(&self) -> Option<About> {
        let applied = self.applied?;
        let members = self.membership.nodes().map(|(id, member)| (*id, member.address.clone())).collect();
        Some(About { meta: self.meta.clone()?, term: applied.leader_id.term, index: applied.index, members })
    }

    pub(crate) fn frames(self) -> BackupFrames {
        BackupFrames(Frames::new(self.view))
    }
}

impl Replica {
    /// Freezes what is applied.
    pub(crate) fn freeze(&self) -> Result<FrozenState, DiskError> {
        let view = self.store.read().kv.checkpoint()?;
        let (applied, membership, _) = marks(view.as_ref())?;
        let meta = match view.get(state_space::OBJECTS, &object_key(&Key::Meta))? {
            None => None,
            Some(bytes) => match stored::object(&bytes)? {
                Object::Meta(meta) => Some(meta),
                other => return Err(corrupt("the state", &format!("{:?} is stored as the counters", other.key()))),
            },
        };
        Ok(FrozenState { view, applied, membership, meta })
    }
}

/// Whose folder is made.
pub(crate) struct Owner {
    pub(crate) id: u64,
    pub(crate) member: Member,
}

/// Why there is no state store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotRestored<E> {
    /// The frames end with an error.
    Frames(E),
    /// The store.
    Disk(DiskError),
    /// The frames are no state, or one that cannot be restored.
    State(String),
}

impl<E> From<DiskError> for NotRestored<E> {
    fn from(error: DiskError) -> Self {
        NotRestored::Disk(error)
    }
}

/// Makes the state store of a new cluster of one, from the frames of a backup and the commands with which its history begins. Gives the counters after them, and
/// the log entry that the log begins after.
pub(crate) async fn restore<E>(
    host: &Host,
    owner: &Owner,
    mut next: impl FnMut() -> Result<Option<Frame>, E>,
    commands: impl FnOnce(&Meta) -> Entry,
) -> Result<(Meta, LogId), NotRestored<E>> {
    let kv = host.disk.open(&store_name(FIRST_GENERATION), &state_space::ALL)?;
    let mut unpacker = Unpacker::new(kv.as_ref());
    loop {
        let frame = next().map_err(NotRestored::Frames)?;
        let frame = frame.ok_or_else(|| NotRestored::State("the backup has no end".to_owned()))?;
        if unpacker.take(frame).map_err(|error| NotRestored::State(error.to_string()))? {
            break;
        }
        // Whatever else this process does goes on.
        tokio::task::yield_now().await;
    }
    let mut memory = load(kv.as_ref()).await?;
    order_history(kv.as_ref(), &mut memory).await?;
    let applied = memory.applied.ok_or_else(|| NotRestored::State("the backup is of no cluster".to_owned()))?;
    let entry = commands(&memory.state.meta);
    let executed = execute(&mut memory.state, &entry);
    let refused: Option<Reject> = executed.decided.into_iter().find_map(Result::err);
    if let Some(reject) = refused {
        return Err(NotRestored::State(format!("the state cannot begin a new history: {reject}")));
    }
    check_level("the state", memory.state.meta.feature_level)?;
    let leader = openraft::CommittedLeaderId::new(applied.leader_id.term + 1, owner.id);
    let begins = LogId::new(leader, applied.index.saturating_add(REVISIONS_SKIPPED));
    let voters =
        openraft::Membership::new(vec![BTreeSet::from([owner.id])], BTreeMap::from([(owner.id, owner.member.clone())]));
    let (membership, used) = (Membership::new(Some(begins), voters), BTreeMap::from([(owner.id, owner.member.disk)]));
    let form = form_of(memory.state.meta.feature_level);
    let mut batch = Batch::default();
    write_changes(form, &mut batch, &executed.changes);
    batch.put(state_space::META, key::APPLIED, encode(form, &Some(begins)));
    batch.put(state_space::META, key::MEMBERSHIP, encode(form, &(&membership, &used)));
    kv.write(&batch)?;
    kv.sync().await?;
    Ok((memory.state.meta, begins))
}
