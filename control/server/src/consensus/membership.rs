//! Changing who belongs to the cluster: bootstrap, learners, voters, replacements.
//!
//! What must stay true: a folder that was ever part of a cluster never begins another one; an id belongs to one disk for ever; voters
//! change only through joint consensus, one change at a time; a node votes only after it has caught up as a learner.

use crate::consensus::core::Core;
use crate::consensus::error::AdminError;
use crate::consensus::peer::{CallError, Identified, Raftward};
use crate::consensus::types::Member;
use openraft::error::{ClientWriteError, RaftError};
use openraft::{ChangeMembers, RaftMetrics};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Other nodes of a new cluster may still be starting.
const BOOTSTRAP_WAIT: Duration = Duration::from_secs(30);
/// Between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// One question to a node that should be there.
const IDENTIFY_DEADLINE: Duration = Duration::from_secs(2);
/// A change of the membership needs a quorum twice; a failover may come in between.
const CHANGE_DEADLINE: Duration = Duration::from_secs(30);
/// A learner may need a whole snapshot first.
const CATCH_UP_DEADLINE: Duration = Duration::from_secs(900);

type Metrics = RaftMetrics<u64, Member>;

impl Core {
    /// Makes this empty node and the others a cluster of voters.
    pub(crate) async fn bootstrap(&self, members: BTreeMap<u64, String>) -> Result<(), AdminError> {
        self.running()?;
        let me = self.peers.me();
        if let Some(cluster) = me.cluster {
            return Err(AdminError::AlreadyMember { why: format!("cluster {cluster:016x}") });
        }
        if !self.log.is_pristine() {
            return Err(AdminError::AlreadyMember { why: "its log has a vote or an entry".to_owned() });
        }
        if !members.contains_key(&me.id) {
            return Err(AdminError::NotA { id: me.id, role: "member of the new cluster".to_owned() });
        }
        let began = Instant::now();
        // Zero stands for "none yet".
        let cluster = self.host.chance.u64().max(1);
        let mut nodes = BTreeMap::new();
        let mut level = self.config.knows_level;
        for (id, address) in members {
            let disk = if id == me.id {
                me.disk
            } else {
                let found = self.await_pristine(id, &address, began).await?;
                level = level.min(found.knows_level);
                found.disk
            };
            nodes.insert(id, Member { address, disk, cluster, level: 0 });
        }
        nodes.values_mut().for_each(|member| member.level = level);
        // From here on the log says what this folder belongs to; the identity follows for the sake of who reads it.
        self.peers.join(cluster);
        let initialized = self.raft.initialize(nodes).await;
        initialized.map_err(|error| match error {
            RaftError::Fatal(fatal) => AdminError::Stopped { why: fatal.to_string() },
            RaftError::APIError(refused) => AdminError::AlreadyMember { why: refused.to_string() },
        })?;
        self.peers.save().await.map_err(|error| AdminError::Stopped { why: error.to_string() })?;
        let mut leadership = self.leadership.clone();
        match tokio::time::timeout(CHANGE_DEADLINE, leadership.wait_for(|now| now.leader.is_some())).await {
            Ok(Ok(_elected)) => Ok(()),
            Ok(Err(_ended)) => Err(AdminError::Stopped { why: self.stop.reason().unwrap_or_default() }),
            Err(_late) => Err(AdminError::Failed {
                why: format!("no leader was elected within {} s; the nodes continue to try", CHANGE_DEADLINE.as_secs()),
            }),
        }
    }

    /// A node that has never been part of a cluster.
    async fn await_pristine(&self, id: u64, address: &str, began: Instant) -> Result<Identified, AdminError> {
        loop {
            match self.identify(id, address).await {
                Ok(found @ Identified { cluster: None, pristine: true, .. }) => return Ok(found),
                Ok(_) => return Err(peer(id, address, "it already belongs to a cluster")),
                Err(error) if began.elapsed() >= BOOTSTRAP_WAIT => return Err(error),
                Err(_not_yet) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Asks who is at an address; it has to be that node.
    async fn identify(&self, id: u64, address: &str) -> Result<Identified, AdminError> {
        let nobody_yet = Member { address: address.to_owned(), ..Member::default() };
        let asked: Result<Identified, CallError> =
            self.peers.call(id, &nobody_yet, Raftward::Identify, &(), IDENTIFY_DEADLINE).await;
        match asked {
            Ok(identified) if identified.id == id => Ok(identified),
            Ok(other) => Err(peer(id, address, &format!("the node at this address is node {}", other.id))),
            Err(error) => Err(peer(id, address, &error.to_string())),
        }
    }

    /// Adds a learner and waits until it has caught up. Adding one that is there waits only.
    pub(crate) async fn add_learner(&self, id: u64, address: String) -> Result<(), AdminError> {
        self.leading()?;
        let cluster = self.peers.me().cluster.unwrap_or(0);
        let identified = self.identify(id, &address).await?;
        if identified.cluster.is_some_and(|other| other != cluster) {
            return Err(peer(id, &address, "it belongs to another cluster"));
        }
        let level = self.feature_level();
        if identified.knows_level < level {
            let why = format!(
                "its version knows feature levels up to {}, but the cluster is at {level}: start it with the version of the other nodes",
                identified.knows_level
            );
            return Err(peer(id, &address, &why));
        }
        let member = Member { address: address.clone(), disk: identified.disk, cluster, level: 0 };
        let (applied, used) = self.replica.membership();
        let present = self.member(id).or_else(|| applied.membership().get_node(&id).cloned());
        match (present, used.get(&id)) {
            (Some(present), _) if Member { level: 0, ..present.clone() } == member => {}
            (None, None) => {
                let used_disk = used.iter().find(|(_, disk)| **disk == identified.disk);
                if let Some((other, _)) = used_disk {
                    return Err(peer(id, &address, &format!("its disk belongs to node {other}")));
                }
                self.change(ChangeMembers::AddNodes(BTreeMap::from([(id, member)]))).await?;
            }
            (Some(_), _) | (None, Some(_)) => return Err(AdminError::IdUsed { id }),
        }
        let target = self.raft.metrics().borrow().last_log_index.unwrap_or(0);
        self.wait(CATCH_UP_DEADLINE, "the learner to catch up", |metrics| {
            let matched = metrics.replication.as_ref().and_then(|replication| replication.get(&id).copied().flatten());
            metrics.replication.is_none() || matched.is_some_and(|matched| matched.index >= target)
        })
        .await?;
        self.leading()
    }

    /// Makes a learner a voter.
    pub(crate) async fn promote(&self, id: u64) -> Result<(), AdminError> {
        self.leading()?;
        let (voters, learners) = self.roles();
        if voters.contains(&id) {
            return Ok(());
        }
        if !learners.contains(&id) {
            return Err(AdminError::NotA { id, role: "learner".to_owned() });
        }
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([id]))).await
    }

    /// Takes a member out; a learner may take its place in the same joint change.
    pub(crate) async fn remove(&self, id: u64, replace_with: Option<u64>) -> Result<(), AdminError> {
        self.leading()?;
        let (voters, learners) = self.roles();
        if let Some(new) = replace_with
            && !learners.contains(&new)
        {
            return Err(AdminError::NotA { id: new, role: "learner".to_owned() });
        }
        if learners.contains(&id) {
            if replace_with.is_some() {
                return Err(AdminError::NotA { id, role: "voter".to_owned() });
            }
            return self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await;
        }
        if !voters.contains(&id) {
            return Err(AdminError::NotA { id, role: "member".to_owned() });
        }
        let rest: BTreeSet<u64> = voters.into_iter().filter(|voter| *voter != id).chain(replace_with).collect();
        if rest.is_empty() {
            return Err(AdminError::LastVoter { id });
        }
        self.change(ChangeMembers::ReplaceAllVoters(rest)).await
    }

    /// Voters and learners, as this node's log has them.
    fn roles(&self) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let membership = metrics.membership_config.membership();
        (membership.voter_ids().collect(), membership.learner_ids().collect())
    }

    /// One change, through joint consensus where voters change. Removed voters do not stay as learners.
    async fn change(&self, change: ChangeMembers<u64, Member>) -> Result<(), AdminError> {
        tracing::info!(?change, "changing the membership");
        match tokio::time::timeout(CHANGE_DEADLINE, self.raft.change_membership(change, false)).await {
            Ok(Ok(_changed)) => Ok(()),
            Ok(Err(RaftError::Fatal(fatal))) => Err(AdminError::Stopped { why: fatal.to_string() }),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => Err(self.not_leader()),
            Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(refused)))) => {
                Err(AdminError::Failed { why: refused.to_string() })
            }
            Err(_late) => Err(AdminError::Failed { why: format!("no quorum within {} s", CHANGE_DEADLINE.as_secs()) }),
        }
    }

    async fn wait(
        &self,
        limit: Duration,
        what: &str,
        done: impl Fn(&Metrics) -> bool + Send,
    ) -> Result<(), AdminError> {
        let mut metrics = self.raft.metrics();
        let waited = tokio::select! {
            waited = tokio::time::timeout(limit, metrics.wait_for(|metrics| done(metrics))) => waited.map(|met| met.is_ok()),
            why = self.stop.stopped() => return Err(AdminError::Stopped { why }),
        };
        match waited {
            Ok(true) => Ok(()),
            Ok(false) => Err(AdminError::Stopped { why: "consensus has ended".to_owned() }),
            Err(_late) => Err(AdminError::Failed { why: format!("waited {} s for {what}", limit.as_secs()) }),
        }
    }

    fn running(&self) -> Result<(), AdminError> {
        self.stop.reason().map_or(Ok(()), |why| Err(AdminError::Stopped { why }))
    }

    fn leading(&self) -> Result<(), AdminError> {
        self.running()?;
        if self.is_leader() { Ok(()) } else { Err(self.not_leader()) }
    }

    fn not_leader(&self) -> AdminError {
        AdminError::NotLeader { leader: self.other_leader().map(|(id, member)| (id, member.address)) }
    }
}

fn peer(id: u64, address: &str, why: &str) -> AdminError {
    AdminError::Peer { id, address: address.to_owned(), why: why.to_owned() }
}
