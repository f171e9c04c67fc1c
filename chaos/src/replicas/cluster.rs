//! The voters of a run: starting, crashing, asking and observing them.

use crate::history::{Answer, History};
use crate::nemesis::Fleet;
use crate::observe::Observer;
use futures::FutureExt;
use futures::future::{BoxFuture, LocalBoxFuture};
use futures::stream::BoxStream;
use muster_control_core::{Command, Decided};
use muster_control_server::consensus::PeerServices;
use muster_control_server::{Consensus, ConsensusConfig, PlantedBug};
use muster_model::ids::{JobId, Revision};
use muster_runtime::sim::SimWorld;
use muster_runtime::{Admission, Host};
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// How the voters of a run are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// How many the cluster begins with; their ids begin with 1.
    pub(super) voters: u64,
    pub(super) snapshot_every: u64,
    pub(super) planted: Option<PlantedBug>,
    /// The round trip between voters that they are told of, in milliseconds; 0 where they share a machine room.
    pub(super) round_trip_ms: u64,
}

impl Settings {
    /// Three voters in one machine room.
    pub(super) const USUAL: Settings = Settings { voters: 3, snapshot_every: 10_000, planted: None, round_trip_ms: 0 };

    fn config(&self, id: u64, endpoint: &str) -> ConsensusConfig {
        ConsensusConfig::new(id, endpoint).far(self.round_trip_ms)
    }
}

fn name_of(id: u64) -> String {
    format!("control-{id}")
}

fn endpoint_of(id: u64) -> String {
    format!("control-{id}:7000")
}

/// How long one change of the membership may take before the leader is looked for again.
const CHANGE_MAX: Duration = Duration::from_secs(20);

struct Voter {
    host: Host,
    observer: Observer,
}

pub(super) struct Cluster {
    world: SimWorld,
    settings: Settings,
    history: RefCell<History>,
    /// Who is meant to vote; a replaced node is not started any more.
    roster: RefCell<Vec<u64>>,
    up: RefCell<BTreeMap<String, Voter>>,
}

/// There are no sessions and no leases here.
struct NoServices;

impl PeerServices for NoServices {
    fn renew_leases(&self, _: Vec<u8>) -> BoxFuture<'static, Result<Vec<u8>, Status>> {
        futures::future::ready(Err(Status::unimplemented("no leases here"))).boxed()
    }

    fn logs(&self, _: Vec<u8>) -> BoxFuture<'static, Result<BoxStream<'static, Result<Vec<u8>, Status>>, Status>> {
        futures::future::ready(Err(Status::unimplemented("no sessions here"))).boxed()
    }
}

impl Cluster {
    pub(super) fn new(world: SimWorld, settings: Settings) -> Self {
        Cluster {
            world,
            settings,
            history: RefCell::default(),
            roster: RefCell::new((1..=settings.voters).collect()),
            up: RefCell::default(),
        }
    }

    pub(super) fn world(&self) -> &SimWorld {
        &self.world
    }

    pub(super) fn history(&self) -> RefMut<'_, History> {
        self.history.borrow_mut()
    }

    pub(super) fn take_history(&self) -> History {
        self.history.take()
    }

    fn consensus(&self, voter: usize) -> Option<(Host, Consensus)> {
        let up = self.up.borrow();
        up.get(&name_of(self.roster.borrow()[voter]))
            .map(|voter| (voter.host.clone(), voter.observer.consensus().clone()))
    }

    /// Makes the empty voters a cluster, and waits for a leader.
    pub(super) async fn bootstrap(&self) -> Result<(), String> {
        let members: BTreeMap<u64, String> = self.roster.borrow().iter().map(|id| (*id, endpoint_of(*id))).collect();
        let (_, first) = self.consensus(0).ok_or("the first voter did not start")?;
        first.bootstrap(members).await.map_err(|error| format!("bootstrap: {error}"))?;
        for _ in 0..100 {
            if first.leader().is_some() {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Err("no leader within 10 s of the bootstrap".to_owned())
    }

    /// Proposes through a voter, in its own tasks; `None` when it is down, crashes meanwhile, or has no answer in time.
    pub(super) async fn propose(
        &self,
        voter: usize,
        commands: Vec<Command>,
        within: Duration,
    ) -> Option<Result<(Revision, Decided), String>> {
        let (host, consensus) = self.consensus(voter)?;
        let call = host.spawn(async move { consensus.propose(commands).await });
        let answer = timeout(within, call).await.ok()?.ok()?;
        self.world.note(format_args!("answer of {}: {answer:?}", host.name));
        Some(answer.map(|proposed| (proposed.revision, proposed.decided)).map_err(|error| error.to_string()))
    }

    /// Reads a job through a voter, linearizably; `None` when no answer came in time.
    pub(super) async fn get(&self, voter: usize, job: JobId, within: Duration) -> Option<(Revision, Answer)> {
        let (host, consensus) = self.consensus(voter)?;
        let call = host.spawn(async move {
            consensus.read_index().await.ok()?;
            let (live, revision) = consensus.read(|state, revision| (state.jobs.contains_key(&job), revision));
            if live {
                return Some((revision, Answer::Live));
            }
            let ended = consensus.finished_job(job).ok()?.is_some();
            Some((revision, if ended { Answer::Ended } else { Answer::Absent }))
        });
        timeout(within, call).await.ok()?.ok()?
    }

    /// Starts a voter for the first time.
    pub(super) async fn start_voter(&self, voter: usize) {
        let name = self.name(voter);
        self.start(&name).await;
    }

    /// The highest term that any voter knows.
    pub(super) fn term(&self) -> u64 {
        self.up.borrow().values().map(|voter| voter.observer.consensus().status().term).max().unwrap_or(0)
    }

    /// The name of a voter.
    pub(super) fn name(&self, voter: usize) -> String {
        name_of(self.roster.borrow()[voter])
    }

    /// Takes down what was published, and the whole states when asked to.
    pub(super) fn drain(&self, sample: bool) {
        let mut history = self.history.borrow_mut();
        history.wall_ms = self.world.wall_ms();
        for voter in self.up.borrow_mut().values_mut() {
            if sample {
                voter.observer.sample(&mut history);
            } else {
                voter.observer.drain(&mut history);
            }
        }
    }

    pub(super) fn applied(&self) -> Vec<Revision> {
        self.up.borrow().values().map(|voter| voter.observer.applied()).collect()
    }

    /// Whether all voters are up and have applied the same.
    pub(super) fn keeps_up(&self) -> bool {
        let applied = self.applied();
        applied.len() == self.roster.borrow().len() && applied.iter().all(|revision| *revision == applied[0])
    }

    pub(super) fn wall_ms(&self) -> u64 {
        self.world.wall_ms()
    }

    /// Loses one voter for good, disk and all, and puts a new node with a new id in its place.
    pub(super) async fn replace(&self, voter: usize) {
        let (old, new) = {
            let mut roster = self.roster.borrow_mut();
            let new = roster.iter().max().map_or(1, |id| id + 1);
            (std::mem::replace(&mut roster[voter], new), new)
        };
        self.world.note(format_args!("replace {old} by {new}"));
        self.crash(&name_of(old)).await;
        self.world.wipe(&name_of(old));
        self.start(&name_of(new)).await;
        while !self.is_replaced(old, new) {
            let leading = self
                .up
                .borrow()
                .values()
                .find(|voter| voter.observer.consensus().is_leader())
                .map(|voter| (voter.host.clone(), voter.observer.consensus().clone()));
            if let Some((host, leader)) = leading {
                let change = host.spawn(async move {
                    let status = leader.status();
                    let votes = status.members.iter().any(|member| member.id == new && member.voter);
                    if !votes {
                        leader.add_learner(new, endpoint_of(new)).await?;
                    }
                    leader.remove(old, (!votes).then_some(new)).await
                });
                let changed = timeout(CHANGE_MAX, change).await;
                self.world.note(format_args!("replaced {old} by {new}: {changed:?}"));
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Whether a leader's log has the new one as a voter and the old one not at all.
    fn is_replaced(&self, old: u64, new: u64) -> bool {
        self.up.borrow().values().any(|voter| {
            let consensus = voter.observer.consensus();
            let members = consensus.status().members;
            consensus.is_leader()
                && members.iter().any(|member| member.id == new && member.voter)
                && !members.iter().any(|member| member.id == old)
        })
    }

    /// Where each voter stands, for a report.
    pub(super) fn describe(&self) -> String {
        self.up
            .borrow()
            .values()
            .map(|voter| format!("{:?}", voter.observer.consensus().status()))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

impl Fleet for Cluster {
    fn voters(&self) -> Vec<String> {
        self.roster.borrow().iter().map(|id| name_of(*id)).collect()
    }

    fn others(&self) -> Vec<String> {
        Vec::new()
    }

    fn bystanders(&self) -> Vec<String> {
        Vec::new()
    }

    fn crash<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, ()> {
        async move {
            let voter = self.up.borrow_mut().remove(name);
            if let Some(mut voter) = voter {
                let mut history = self.history.borrow_mut();
                history.wall_ms = self.world.wall_ms();
                voter.observer.drain(&mut history);
            }
            self.world.crash(name).await;
        }
        .boxed_local()
    }

    fn start<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, ()> {
        async move {
            let known = self.roster.borrow().iter().copied().find(|id| name_of(*id) == name);
            // Nobody starts a node that was replaced meanwhile.
            let Some(id) = known else { return };
            let (host, endpoint) = (self.world.boot(name), endpoint_of(id));
            let config = ConsensusConfig {
                snapshot_every_entries: self.settings.snapshot_every,
                keep_entries: 10,
                planted: self.settings.planted,
                ..self.settings.config(id, &endpoint)
            };
            // Opened in the host's own tasks: whatever consensus spawns belongs to the host, and dies with it.
            let opening = host.spawn({
                let host = host.clone();
                async move {
                    let consensus = Consensus::open(host.clone(), config).await?;
                    let routes = tonic::service::Routes::new(consensus.peer_service(Arc::new(NoServices)));
                    let serving = host.net.serve(&endpoint, routes, Admission::plain(), CancellationToken::new()).await;
                    serving.expect("a voter's port is free when it starts");
                    Ok::<_, muster_control_server::consensus::OpenError>(consensus)
                }
            });
            match opening.await {
                Ok(Ok(consensus)) => {
                    let observer = Observer::attach(&mut self.history.borrow_mut(), (name.to_owned(), 0), consensus);
                    self.up.borrow_mut().insert(name.to_owned(), Voter { host, observer });
                }
                // Whoever broke its disk starts it again.
                Ok(Err(_)) if self.world.is_disk_failing(name) => self.world.crash(name).await,
                Ok(Err(error)) => panic!("{name} does not start: {error}"),
                // Crashed while it started; whoever crashed it starts it again.
                Err(_) => {}
            }
        }
        .boxed_local()
    }

    fn leader(&self) -> Option<String> {
        let up = self.up.borrow();
        up.iter().find(|(_, voter)| voter.observer.consensus().is_leader()).map(|(name, _)| name.clone())
    }
}
