//! A control plane of one state machine without consensus: the real decisions, served by any number of hosts.
//!
//! It keeps the history of every revision, expires leases as the leader does, and can be told to leave calls unanswered.

use futures::StreamExt;
use futures::stream::BoxStream;
use muster_control_core::{Command, Done, Entry, LeasedBinding, Reject, State, execute};
use muster_model::node::NodeSpec;
use muster_model::request::TaskRequest;
use muster_model::tenant::TenantSpec;
use muster_model::*;
use muster_proto::convert::{change_to_wire, object_to_wire};
use muster_proto::v1;
use muster_proto::v1::shards_server::{Shards, ShardsServer};
use muster_runtime::{Admission, Host};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use v1::proposal_result::Result as Answer;

pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The state, and how it came to be.
pub(crate) struct Plane {
    pub(crate) state: State,
    pub(crate) revision: u64,
    history: Vec<Arc<Vec<Change>>>,
    leases: BTreeMap<CellId, (Epoch, Instant)>,
    /// Every binding that was committed, under which epoch of which cell.
    pub(crate) bound: Vec<(CellId, Epoch, JobId)>,
    /// Every refusal of a proposal.
    pub(crate) refused: Vec<Reject>,
    next_request: u64,
}

#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) plane: Arc<Mutex<Plane>>,
    revision: watch::Sender<u64>,
    /// Proposals are never answered.
    pub(crate) mute_proposals: Arc<AtomicBool>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let plane = Plane {
            state: State::new(1),
            revision: 0,
            history: Vec::new(),
            leases: BTreeMap::new(),
            bound: Vec::new(),
            refused: Vec::new(),
            next_request: 0,
        };
        Cluster { plane: Arc::new(Mutex::new(plane)), revision: watch::channel(0).0, mute_proposals: Arc::default() }
    }

    /// Serves at `name:1`, and expires leases like a leader.
    pub(crate) async fn serve(&self, host: &Host) {
        let server = Server { cluster: self.clone() };
        let routes = tonic::service::Routes::new(ShardsServer::new(server));
        let serving = host
            .net
            .serve("0.0.0.0:1", routes, Admission::plain(), CancellationToken::new())
            .await
            .expect("the port is free");
        drop(serving);
        let cluster = self.clone();
        host.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                cluster.expire();
            }
        });
    }

    pub(crate) fn decide(&self, commands: Vec<Command>) -> Vec<Result<Done, Reject>> {
        let mut plane = self.plane.lock();
        plane.revision += 1;
        let now_ms = plane.revision * 10;
        let executed = execute(&mut plane.state, &Entry { now_ms, commands });
        plane.history.push(Arc::new(executed.changes));
        self.revision.send_replace(plane.revision);
        executed.decided
    }

    fn expire(&self) {
        let now = Instant::now();
        let over: Vec<(CellId, Epoch)> = {
            let mut plane = self.plane.lock();
            let over: Vec<_> = plane
                .leases
                .iter()
                .filter(|(_, (_, until))| *until < now)
                .map(|(cell, (epoch, _))| (*cell, *epoch))
                .collect();
            for (cell, _) in &over {
                plane.leases.remove(cell);
            }
            over
        };
        for (cell, epoch) in over {
            self.decide(vec![Command::ExpireCell { cell, epoch }]);
        }
    }

    /// A tenant and `nodes` nodes of `gpus` H100 in each of the cells.
    pub(crate) fn fill(&self, cells: &[&str], nodes: u32, gpus: u16) {
        let mut commands = vec![Command::ApplyTenants { tenants: vec![TenantSpec::usual("org")] }];
        for cell in cells {
            commands.extend((0..nodes).map(|n| Command::JoinNode {
                spec: node(cell, n, gpus),
                usage_incarnation: None,
                agent: 1,
            }));
        }
        assert!(self.decide(commands).iter().all(Result::is_ok));
    }

    /// Submits jobs of `gpus` cards on one task each.
    pub(crate) fn submit(&self, count: usize, gpus: u32) -> Vec<JobId> {
        self.submit_all(vec![self.spec(gpus).validate().expect("valid"); count])
    }

    /// Submits what was accepted by the rules of another time.
    pub(crate) fn submit_accepted(&self, spec: ValidJobSpec) {
        self.submit_all(vec![spec]);
    }

    pub(crate) fn spec(&self, gpus: u32) -> JobSpec {
        let devices = DeviceRequest::Whole { count: gpus, models: vec![GpuModel::H100] };
        let request = TaskRequest { devices, cpu_milli: 100, memory_mib: 10 };
        JobSpec { grace_s: 1, disconnect_grace_s: 10, ..JobSpec::usual("org", request, &["true"]) }
    }

    fn submit_all(&self, specs: Vec<ValidJobSpec>) -> Vec<JobId> {
        let request = {
            let mut plane = self.plane.lock();
            plane.next_request += 1;
            plane.next_request
        };
        let issued_ms = self.plane.lock().state.meta.now_ms;
        let command = Command::Submit {
            request_id: format!("r{request}"),
            issued_ms,
            payload_hash: request,
            specs,
            ended: Vec::new(),
        };
        match &self.decide(vec![command])[0] {
            Ok(Done::Submitted { first, count }) => (0..u64::from(*count)).map(|n| JobId(first.0 + n)).collect(),
            other => panic!("not accepted: {other:?}"),
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.plane.lock().state.allocations.len()
    }

    pub(crate) fn holders(&self) -> BTreeMap<String, String> {
        let plane = self.plane.lock();
        let held = plane.state.cells.values().filter_map(|cell| Some((cell.name.clone(), cell.holder.clone()?)));
        held.collect()
    }

    /// Waits until `there` or panics after `wait_max`.
    pub(crate) async fn until(&self, what: &str, wait_max: Duration, there: impl Fn(&Self) -> bool) {
        let end = Instant::now() + wait_max;
        while !there(self) {
            assert!(
                Instant::now() < end,
                "{what}: not within {wait_max:?}; holders {:?}, running {}",
                self.holders(),
                self.running()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn node(cell: &str, number: u32, gpus: u16) -> NodeSpec {
    let name = format!("{cell}-{number}");
    let gpus = Gpu::usual_cards(&name, gpus.into(), GpuModel::H100);
    NodeSpec { cell: cell.to_owned(), ..NodeSpec::usual(&name, gpus) }
}

struct Server {
    cluster: Cluster,
}

#[tonic::async_trait]
impl Shards for Server {
    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireReply>, Status> {
        let v1::AcquireRequest { cell, shard } = request.into_inner();
        let cell = CellId(cell);
        match self.cluster.decide(vec![Command::AcquireCell { cell, shard }]).pop() {
            Some(Ok(Done::Acquired { epoch, .. })) => {
                let mut plane = self.cluster.plane.lock();
                plane.leases.insert(cell, (epoch, Instant::now() + LEASE));
                let (lease_ms, revision) = (LEASE.as_millis() as u64, plane.revision);
                Ok(Response::new(v1::AcquireReply { epoch: epoch.0, lease_ms, revision }))
            }
            other => Err(Status::failed_precondition(format!("{other:?}"))),
        }
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewReply>, Status> {
        let mut plane = self.cluster.plane.lock();
        let mut lost_cells = Vec::new();
        for held in request.into_inner().leases {
            match plane.leases.get_mut(&CellId(held.cell)) {
                Some((epoch, until)) if *epoch == Epoch(held.epoch) => *until = Instant::now() + LEASE,
                _ => lost_cells.push(held.cell),
            }
        }
        Ok(Response::new(v1::RenewReply { lost_cells, lease_ms: LEASE.as_millis() as u64 }))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseReply>, Status> {
        let lease = request.into_inner().lease.unwrap_or_default();
        let (cell, epoch) = (CellId(lease.cell), Epoch(lease.epoch));
        self.cluster.plane.lock().leases.remove(&cell);
        self.cluster.decide(vec![Command::ExpireCell { cell, epoch }]);
        Ok(Response::new(v1::ReleaseReply {}))
    }

    type WatchStream = BoxStream<'static, Result<v1::WatchEvent, Status>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let cluster = self.cluster.clone();
        let from = request.into_inner().from_revision;
        let mut first = Vec::new();
        let mut at = from;
        if from == 0 {
            // In parts of three objects, so that shards are tested on snapshots in parts.
            let plane = cluster.plane.lock();
            at = plane.revision;
            let changes: Vec<_> = plane.state.objects().filter_map(|object| object_to_wire(&object)).collect();
            let parts = changes.chunks(3).map(|part| (true, part.to_vec()));
            for (more, changes) in parts.chain([(false, Vec::new())]) {
                first.push(Ok(v1::WatchEvent { revision: at, snapshot: true, more, changes, now_ms: at * 10 }));
            }
        }
        let follow = Follow { cluster: self.cluster.clone(), news: self.cluster.revision.subscribe(), at };
        let rest = futures::stream::unfold(follow, Follow::next);
        Ok(Response::new(futures::stream::iter(first).chain(rest).boxed()))
    }

    async fn propose(&self, request: Request<v1::ProposeRequest>) -> Result<Response<v1::ProposeReply>, Status> {
        if self.cluster.mute_proposals.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let v1::ProposeRequest { cell, epoch, proposals } = request.into_inner();
        let (cell, epoch) = (CellId(cell), Epoch(epoch));
        let jobs: Vec<Command> = proposals.into_iter().map(|proposal| command(cell, epoch, proposal)).collect();
        let decided = self.cluster.decide(jobs.clone());
        let mut plane = self.cluster.plane.lock();
        for (command, decided) in jobs.iter().zip(&decided) {
            match (command, decided) {
                (Command::Bind(binding), Ok(_)) => plane.bound.push((cell, epoch, binding.job)),
                (_, Err(reject)) => plane.refused.push(reject.clone()),
                _ => {}
            }
        }
        let results = decided.into_iter().map(|decided| v1::ProposalResult { result: Some(answer(decided)) }).collect();
        Ok(Response::new(v1::ProposeReply { results, revision: plane.revision }))
    }
}

fn command(cell: CellId, epoch: Epoch, proposal: v1::Proposal) -> Command {
    match proposal.kind.expect("a proposal has a kind") {
        v1::proposal::Kind::Bind(bind) => {
            Command::Bind(LeasedBinding::under(cell, epoch, bind.try_into().expect("understood")))
        }
        v1::proposal::Kind::Preempt(preempt) => Command::Preempt {
            binding: LeasedBinding::under(
                cell,
                epoch,
                preempt.bind.expect("a binding").try_into().expect("understood"),
            ),
            victims: preempt.victims.into_iter().map(AllocationId).collect(),
        },
        v1::proposal::Kind::Grow(bind) => {
            Command::Grow(LeasedBinding::under(cell, epoch, bind.try_into().expect("understood")))
        }
        v1::proposal::Kind::Shrink(shrink) => Command::Shrink {
            binding: LeasedBinding::under(cell, epoch, shrink.bind.expect("a binding").try_into().expect("understood")),
            parts: shrink.parts.into_iter().map(AllocationId).collect(),
        },
        v1::proposal::Kind::RecordBypass(bypass) => {
            Command::RecordBypass { cell, epoch, job: JobId(bypass.job), cards: bypass.cards }
        }
        v1::proposal::Kind::Reserve(reserve) => {
            Command::Reserve { cell, epoch, job: JobId(reserve.job), reserved: reserve.reserved.map(Into::into) }
        }
        v1::proposal::Kind::Move(planned) => Command::Move {
            binding: LeasedBinding::under(
                cell,
                epoch,
                planned.bind.expect("a binding").try_into().expect("understood"),
            ),
            moves: planned.moves.into_iter().map(|one| one.try_into().expect("understood")).collect(),
        },
        v1::proposal::Kind::HandOver(hand) => Command::HandOver { cell, epoch, job: JobId(hand.job) },
    }
}

fn answer(decided: Result<Done, Reject>) -> Answer {
    use v1::rejection::Kind;
    let kind = match &decided {
        Ok(Done::Bound { allocation }) => return Answer::Allocation(allocation.0),
        Ok(Done::HandedOver { to }) => return Answer::HandedToCell(to.0),
        Ok(Done::Ok) => return Answer::Reserved(v1::Reserved {}),
        Ok(_) => Kind::Other,
        Err(Reject::StaleEpoch { .. } | Reject::Held { .. }) => Kind::StaleEpoch,
        Err(Reject::NowhereElse { .. }) => Kind::NowhereElse,
        Err(Reject::NotWaiting { .. } | Reject::NotFound { .. }) => Kind::NotWaiting,
        Err(Reject::DoesNotFit { .. }) => Kind::DoesNotFit,
        Err(Reject::WrongShape { .. }) => Kind::WrongShape,
        Err(_) => Kind::Other,
    };
    Answer::Rejection(v1::Rejection { kind: kind.into(), text: format!("{decided:?}") })
}

/// A watch after its snapshot.
struct Follow {
    cluster: Cluster,
    news: watch::Receiver<u64>,
    at: u64,
}

impl Follow {
    async fn next(mut self) -> Option<(Result<v1::WatchEvent, Status>, Self)> {
        let at = self.at;
        let newer = self.news.wait_for(|revision| *revision > at);
        let newer = tokio::time::timeout(Duration::from_millis(150), newer).await.map(|newer| newer.is_ok());
        match newer {
            Ok(true) => {}
            Ok(false) => return None,
            Err(_quiet) => return Some((Ok(v1::WatchEvent { revision: at, ..Default::default() }), self)),
        }
        self.at += 1;
        let changes = self.cluster.plane.lock().history[at as usize].clone();
        let changes = changes.iter().filter_map(change_to_wire).collect();
        let event = v1::WatchEvent { revision: self.at, snapshot: false, more: false, changes, now_ms: self.at * 10 };
        Some((Ok(event), self))
    }
}
