//! `muster.v1.Fleet`: nodes, cards, cells, pools and device classes.

use super::windows;
use super::{App, moves, paging, plan, redact};
use crate::api::{auth, refusal};
use muster_control_core::authz::{About, Allowed, Ask};
use muster_control_core::quota::{FloorWait, floor_waits};
use muster_control_core::{Command, State};
use muster_model::capacity::{CardUse, NodeUse};
use muster_model::identity::Author;
use muster_model::ids::AllocationId;
use muster_model::node::WithheldSlice;
use muster_model::{
    Allocation, CellId, DeviceClass, Gpu, JobPhase, NodeHealth, NodeId, Pool, PriorityClass, Revision, Rpc, Window,
    WindowKind, WindowSpec,
};
use muster_proto::v1;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct FleetService(pub(crate) App);

impl FleetService {
    /// The id of a node that is named by its name, for a call that only operators may make.
    async fn node_named(&self, author: &Author, rpc: Rpc, name: &str) -> Result<NodeId, Status> {
        if name.is_empty() {
            return Err(refusal::field("node", "is empty", "name the node"));
        }
        let found = self
            .0
            .look(author, Ask { rpc, about: About::Nothing }, v1::Consistency::Linearizable.into(), |state, _, _| {
                state.index().node_ids.get(name).copied()
            })
            .await?;
        found.ok_or_else(|| refusal::not_found("node", name))
    }
}

#[tonic::async_trait]
impl v1::fleet_server::Fleet for FleetService {
    async fn list_nodes(&self, request: Request<v1::ListNodesRequest>) -> Result<Response<v1::ListNodesReply>, Status> {
        let (author, request) = auth::split(request);
        let size = paging::size(request.page_size)?;
        let question = format!("nodes|{}|{}", request.cell, request.pool);
        let after = paging::after(&question, &request.page_token)?;
        let (found, revision) = self
            .0
            .look(&author, reads(Rpc::FleetListNodes), request.consistency, |state, revision, allowed| {
                let page = nodes(state, &request, after, size);
                (page.map(|(views, last)| (redact::nodes(state, allowed.sees(), views), last)), revision)
            })
            .await?;
        let (nodes, last) = found?;
        let next_page_token = last.map(|last| paging::token(&question, &last)).unwrap_or_default();
        Ok(Response::new(v1::ListNodesReply { nodes, next_page_token, revision: revision.0 }))
    }

    async fn list_gpus(&self, request: Request<v1::ListGpusRequest>) -> Result<Response<v1::ListGpusReply>, Status> {
        let (author, request) = auth::split(request);
        let size = paging::size(request.page_size)?;
        let question = format!("gpus|{}", request.node);
        let after = paging::after(&question, &request.page_token)?;
        let (found, revision) = self
            .0
            .look(&author, reads(Rpc::FleetListGpus), request.consistency, |state, revision, allowed| {
                let page = gpus(state, &request, after, size);
                (page.map(|(views, last)| (redact::gpus(state, allowed.sees(), views), last)), revision)
            })
            .await?;
        let (gpus, last) = found?;
        let next_page_token = last.map(|last| paging::token(&question, &last)).unwrap_or_default();
        Ok(Response::new(v1::ListGpusReply { gpus, next_page_token, revision: revision.0 }))
    }

    async fn list_cells(&self, request: Request<v1::ListCellsRequest>) -> Result<Response<v1::ListCellsReply>, Status> {
        let (author, request) = auth::split(request);
        let consistency = request.consistency;
        let (cells, revision) = self
            .0
            .look(&author, reads(Rpc::FleetListCells), consistency, |state, revision, allowed| {
                (redact::cells(allowed.sees(), cells(state)), revision)
            })
            .await?;
        Ok(Response::new(v1::ListCellsReply { cells, revision: revision.0 }))
    }

    async fn list_pools(&self, request: Request<v1::ListPoolsRequest>) -> Result<Response<v1::ListPoolsReply>, Status> {
        let (author, request) = auth::split(request);
        let consistency = request.consistency;
        let look =
            |state: &State, revision, _: &Allowed| (state.all_pools().cloned().collect(), floor_waits(state), revision);
        let (mut pools, waits, revision): (Vec<Pool>, BTreeMap<String, FloorWait>, Revision) =
            self.0.look(&author, reads(Rpc::FleetListPools), consistency, look).await?;
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        let wait = |pool: &Pool| {
            let FloorWait { cool_down_s, grace_s, retry_s, stop_s, stagger_s } =
                waits.get(&pool.name).copied().unwrap_or_default();
            v1::FloorWait { pool: pool.name.clone(), cool_down_s, grace_s, stop_s, retry_s, stagger_s }
        };
        let floor_waits = pools.iter().map(wait).collect();
        let pools = pools.iter().map(v1::Pool::from).collect();
        Ok(Response::new(v1::ListPoolsReply { pools, revision: revision.0, floor_waits }))
    }

    async fn put_pool(&self, request: Request<v1::PutPoolRequest>) -> Result<Response<v1::PutPoolReply>, Status> {
        let (author, request) = auth::split(request);
        let wire = request.pool;
        let wire = wire.ok_or_else(|| refusal::field("pool", "is missing", "send the pool"))?;
        let pool = Pool::try_from(wire).map_err(|error| refusal::fields(&[error.under("pool")]))?;
        let (_, revision) = self.0.decide(&author, Command::PutPool(pool)).await?;
        Ok(Response::new(v1::PutPoolReply { revision: revision.0 }))
    }

    async fn delete_pool(&self, request: Request<v1::DeletePoolRequest>) -> Result<Response<v1::PutPoolReply>, Status> {
        let (author, request) = auth::split(request);
        let name = request.name;
        if name.is_empty() {
            return Err(refusal::field("name", "is empty", "name the pool"));
        }
        let (_, revision) = self.0.decide(&author, Command::DeletePool { name }).await?;
        Ok(Response::new(v1::PutPoolReply { revision: revision.0 }))
    }

    async fn list_device_classes(
        &self,
        request: Request<v1::ListDeviceClassesRequest>,
    ) -> Result<Response<v1::ListDeviceClassesReply>, Status> {
        let (author, request) = auth::split(request);
        let consistency = request.consistency;
        let (classes, revision): (Vec<DeviceClass>, Revision) = self
            .0
            .look(&author, reads(Rpc::FleetListDeviceClasses), consistency, |state, revision, allowed| {
                (redact::device_classes(state, allowed.sees()), revision)
            })
            .await?;
        let classes = classes.iter().map(v1::DeviceClass::from).collect();
        Ok(Response::new(v1::ListDeviceClassesReply { classes, revision: revision.0 }))
    }

    async fn put_device_class(
        &self,
        request: Request<v1::PutDeviceClassRequest>,
    ) -> Result<Response<v1::PutDeviceClassReply>, Status> {
        let (author, request) = auth::split(request);
        let wire = request.class;
        let wire = wire.ok_or_else(|| refusal::field("class", "is missing", "send the device class"))?;
        let class = DeviceClass::try_from(wire).map_err(|error| refusal::fields(&[error.under("class")]))?;
        let (_, revision) = self.0.decide(&author, Command::PutDeviceClass(class)).await?;
        Ok(Response::new(v1::PutDeviceClassReply { revision: revision.0 }))
    }

    async fn delete_device_class(
        &self,
        request: Request<v1::DeleteDeviceClassRequest>,
    ) -> Result<Response<v1::PutDeviceClassReply>, Status> {
        let (author, request) = auth::split(request);
        let name = request.name;
        if name.is_empty() {
            return Err(refusal::field("name", "is empty", "name the device class"));
        }
        let (_, revision) = self.0.decide(&author, Command::DeleteDeviceClass { name }).await?;
        Ok(Response::new(v1::PutDeviceClassReply { revision: revision.0 }))
    }

    async fn list_priority_classes(
        &self,
        request: Request<v1::ListPriorityClassesRequest>,
    ) -> Result<Response<v1::ListPriorityClassesReply>, Status> {
        let (author, request) = auth::split(request);
        let consistency = request.consistency;
        let (classes, revision): (Vec<PriorityClass>, Revision) = self
            .0
            .look(&author, reads(Rpc::FleetListPriorityClasses), consistency, |state, revision, allowed| {
                (redact::priority_classes(state, allowed.sees()), revision)
            })
            .await?;
        let classes = classes.iter().map(v1::PriorityClass::from).collect();
        Ok(Response::new(v1::ListPriorityClassesReply { classes, revision: revision.0 }))
    }

    async fn put_priority_class(
        &self,
        request: Request<v1::PutPriorityClassRequest>,
    ) -> Result<Response<v1::PutPriorityClassReply>, Status> {
        let (author, request) = auth::split(request);
        let wire = request.class;
        let wire = wire.ok_or_else(|| refusal::field("class", "is missing", "send the priority class"))?;
        let (_, revision) = self.0.decide(&author, Command::PutPriorityClass(wire.into())).await?;
        Ok(Response::new(v1::PutPriorityClassReply { revision: revision.0 }))
    }

    async fn delete_priority_class(
        &self,
        request: Request<v1::DeletePriorityClassRequest>,
    ) -> Result<Response<v1::PutPriorityClassReply>, Status> {
        let (author, request) = auth::split(request);
        let name = request.name;
        if name.is_empty() {
            return Err(refusal::field("name", "is empty", "name the priority class"));
        }
        let (_, revision) = self.0.decide(&author, Command::DeletePriorityClass { name }).await?;
        Ok(Response::new(v1::PutPriorityClassReply { revision: revision.0 }))
    }

    async fn list_windows(
        &self,
        request: Request<v1::ListWindowsRequest>,
    ) -> Result<Response<v1::ListWindowsReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::ListWindowsRequest { kind, consistency } = request;
        let kind = match kind.as_str() {
            "" => None,
            word => {
                Some(word.parse::<WindowKind>().map_err(|word| refusal::field("kind", word.problem(), &word.fix()))?)
            }
        };
        let (windows, revision) = self
            .0
            .look(&author, reads(Rpc::FleetListWindows), consistency, |state, revision, allowed| {
                (redact::windows(state, allowed.sees(), windows::views(state, kind)), revision)
            })
            .await?;
        Ok(Response::new(v1::ListWindowsReply { windows, revision: revision.0 }))
    }

    async fn put_window(&self, request: Request<v1::PutWindowRequest>) -> Result<Response<v1::PutWindowReply>, Status> {
        let (author, request) = auth::split(request);
        let wire = request.window;
        let wire = wire.ok_or_else(|| refusal::field("window", "is missing", "send the window"))?;
        let spec = WindowSpec::try_from(wire).map_err(|error| refusal::fields(&[error.under("window")]))?;
        let (name, kind) = (spec.name.clone(), spec.kind);
        let (_, revision) = self.0.decide(&author, Command::PutWindow(spec)).await?;
        tracing::info!(name, %kind, %revision, "window made");
        Ok(Response::new(v1::PutWindowReply { revision: revision.0 }))
    }

    async fn delete_window(
        &self,
        request: Request<v1::DeleteWindowRequest>,
    ) -> Result<Response<v1::PutWindowReply>, Status> {
        let (author, request) = auth::split(request);
        let name = request.name;
        if name.is_empty() {
            return Err(refusal::field("name", "is empty", "name the window"));
        }
        let (_, revision) = self.0.decide(&author, Command::DeleteWindow { name }).await?;
        Ok(Response::new(v1::PutWindowReply { revision: revision.0 }))
    }

    async fn set_drained(
        &self,
        request: Request<v1::SetDrainedRequest>,
    ) -> Result<Response<v1::SetDrainedReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::SetDrainedRequest { node: name, drained, reason, by_ms, force } = request;
        let node = self.node_named(&author, Rpc::FleetSetDrained, &name).await?;
        let command = match by_ms {
            None => Command::SetDrained { node, drained, reason: reason.clone(), force },
            Some(_) if !drained => {
                return Err(refusal::field("by_ms", "is set, but drained is not", "leave it out, or drain the node"));
            }
            Some(by_ms) => Command::PutWindow(windows::drain(&name, by_ms, &reason)),
        };
        let (_, revision) = self.0.decide(&author, command).await?;
        tracing::info!(node = name, drained, reason, ?by_ms, %revision, "drain changed");
        let by = |state: &State| state.nodes.get(&node).map(|node| node.notes.drained_by.clone());
        let still_drained_by = match drained {
            true => BTreeMap::new(),
            false => self.0.consensus.read(|state, _| by(state)).unwrap_or_default(),
        };
        Ok(Response::new(v1::SetDrainedReply { revision: revision.0, still_drained_by }))
    }

    async fn remove_node(
        &self,
        request: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeReply>, Status> {
        let (author, request) = auth::split(request);
        let name = request.node;
        let node = self.node_named(&author, Rpc::FleetRemoveNode, &name).await?;
        let (_, revision) = self.0.decide(&author, Command::RemoveNode { node }).await?;
        tracing::info!(node = name, %revision, "node removed");
        Ok(Response::new(v1::RemoveNodeReply { revision: revision.0 }))
    }

    async fn clear_gpu(&self, request: Request<v1::ClearGpuRequest>) -> Result<Response<v1::ClearGpuReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::ClearGpuRequest { node: name, gpu, reason } = request;
        let node = self.node_named(&author, Rpc::FleetClearGpu, &name).await?;
        let gpu = u16::try_from(gpu)
            .map_err(|_| refusal::field("gpu", format!("is {gpu}"), "use an index that `muster gpus` shows"))?;
        let (_, revision) = self.0.decide(&author, Command::ClearGpu { node, gpu, reason: reason.clone() }).await?;
        tracing::info!(node = name, gpu, reason, %revision, "GPU cleared by an operator");
        Ok(Response::new(v1::ClearGpuReply { revision: revision.0 }))
    }

    async fn list_moves(&self, request: Request<v1::ListMovesRequest>) -> Result<Response<v1::ListMovesReply>, Status> {
        let (author, request) = auth::split(request);
        moves::list(&self.0, &author, &request).await.map(Response::new)
    }

    async fn plan_moves(&self, request: Request<v1::PlanMovesRequest>) -> Result<Response<v1::PlanMovesReply>, Status> {
        let (author, request) = auth::split(request);
        plan::plan_moves(&self.0, &author, &request).await.map(Response::new)
    }
}

/// A call that reads of the fleet what the caller may see.
fn reads(rpc: Rpc) -> Ask<'static> {
    Ask { rpc, about: About::Nothing }
}

type Page<T> = Result<(Vec<T>, Option<String>), Status>;

fn bad_token() -> Status {
    refusal::field("page_token", "is not a token", "use next_page_token of the last reply, or leave it empty")
}

fn nodes(state: &State, request: &v1::ListNodesRequest, after: Option<String>, size: usize) -> Page<v1::NodeView> {
    let cell = match request.cell.as_str() {
        "" => None,
        name => Some(*state.index().cell_ids.get(name).ok_or_else(|| refusal::not_found("cell", name))?),
    };
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let (mut views, mut last) = (Vec::new(), None);
    for (name, id) in state.index().node_ids.range::<String, _>((from, Bound::Unbounded)) {
        let Some(there) = state.capacity().nodes().get(id) else { continue };
        let node = &there.node;
        let wanted =
            cell.is_none_or(|cell| node.cell == cell) && (request.pool.is_empty() || node.spec.pool == request.pool);
        if !wanted {
            continue;
        }
        if views.len() == size {
            return Ok((views, last));
        }
        views.push(node_view(state, there));
        last = Some(name.clone());
    }
    Ok((views, None))
}

fn node_view(state: &State, there: &NodeUse) -> v1::NodeView {
    let node = there.node.id;
    let tasks: usize = state
        .index()
        .allocations_on(node)
        .filter_map(|id| state.allocations.get(&id))
        .map(|held| held.ranks_on(node).filter(|rank| !held.task_states[rank.0 as usize].is_over()).count())
        .sum();
    let in_maintenance = |window: &Window| window.open && window.kind == WindowKind::Maintenance;
    let takes_work = there.node.accepts_work() && !state.windows_on(node).any(in_maintenance);
    let free = |amount: i64| if takes_work { amount } else { 0 };
    v1::NodeView {
        node: Some(v1::Node::from(&*there.node)),
        gpus_free: if takes_work { there.free_cards() as u32 } else { 0 },
        cpu_free_milli: free(there.cpu_free_milli),
        memory_free_mib: free(there.memory_free_mib),
        tasks: tasks as u32,
        windows: state.windows_on(node).map(windows::on_node).collect(),
    }
}

/// Why nothing new may be given of a card, or of some slices of it; empty when all of it may.
fn unavailable(there: &NodeUse, gpu: Option<&Gpu>) -> String {
    match (there.node.closed_by(), gpu.and_then(|gpu| gpu.withheld.as_deref())) {
        (Some(word), _) => format!("the node is {word}"),
        (None, Some(why)) => format!("withheld: {why}"),
        (None, None) => gpu.map(withheld_slices).unwrap_or_default(),
    }
}

fn withheld_slices(gpu: &Gpu) -> String {
    let slice = |slice: &WithheldSlice| format!("{} is withheld: {}", slice.place.in_words(gpu.model), slice.reason);
    gpu.withheld_slices.iter().map(slice).collect::<Vec<_>>().join("; ")
}

fn gpus(state: &State, request: &v1::ListGpusRequest, after: Option<String>, size: usize) -> Page<v1::GpuView> {
    let after = match after {
        None => None,
        Some(last) => {
            let (node, index) = last.rsplit_once('.').ok_or_else(bad_token)?;
            Some((node.to_owned(), index.parse::<usize>().map_err(|_| bad_token())?))
        }
    };
    let only = Some(&request.node).filter(|name| !name.is_empty());
    if let Some(name) = only.filter(|name| !state.index().node_ids.contains_key(*name)) {
        return Err(refusal::not_found("node", name));
    }
    let first = only.or(after.as_ref().map(|(node, _)| node));
    let first = first.map_or(Bound::Unbounded, |name| Bound::Included(name.clone()));
    let mut views: Vec<v1::GpuView> = Vec::new();
    let mut last = None;
    for (name, id) in state.index().node_ids.range::<String, _>((first, Bound::Unbounded)) {
        if only.is_some_and(|only| only != name) {
            break;
        }
        let Some(there) = state.capacity().nodes().get(id) else { continue };
        for (index, card) in there.cards.iter().enumerate() {
            let seen = |(node, last): &(String, usize)| (name, index) <= (node, *last);
            if after.as_ref().is_some_and(seen) {
                continue;
            }
            if views.len() == size {
                return Ok((views, last));
            }
            views.push(gpu_view(state, there, index, card));
            last = Some(format!("{name}.{index}"));
        }
    }
    Ok((views, None))
}

fn gpu_view(state: &State, there: &NodeUse, index: usize, card: &CardUse) -> v1::GpuView {
    let gpu = there.node.spec.gpus.get(index);
    let pin = gpu.filter(|_| there.is_pinned(index as u16)).and_then(|gpu| {
        let pin = state.capacity().pool_of(&there.node).pinned.get(&gpu.model)?;
        Some(format!("{}, pinned to {}", card.describe(gpu.model), pin.in_words(gpu.model)))
    });
    let unavailable = unavailable(there, gpu);
    let (mode, holders): (&str, Vec<_>) = match card {
        CardUse::Free if !unavailable.is_empty() => ("unavailable", Vec::new()),
        CardUse::Free if pin.is_some() => ("mig", Vec::new()),
        CardUse::Free => ("free", Vec::new()),
        CardUse::Whole(id) => ("whole", vec![*id]),
        CardUse::Mig(instances) => ("mig", instances.iter().filter_map(|(_, id)| *id).collect()),
        CardUse::Mps { shares, .. } => ("mps", shares.iter().map(|share| share.allocation).collect()),
        CardUse::TimeSlice { shares, .. } => ("time-slice", shares.iter().map(|share| share.allocation).collect()),
    };
    let cleaning = cleaning(state, there, index, &holders);
    let mut held = pin.unwrap_or_else(|| gpu.map(|gpu| card.describe(gpu.model)).unwrap_or_default());
    if !cleaning.is_empty() {
        let jobs: Vec<String> = cleaning.iter().map(ToString::to_string).collect();
        held = format!("{held}; being cleaned after job {}", jobs.join(", "));
    }
    let jobs: BTreeSet<u64> =
        holders.iter().filter_map(|id| state.allocations.get(id)).map(|held| held.job.0).collect();
    v1::GpuView {
        node: there.node.spec.name.clone(),
        index: index as u32,
        gpu: gpu.map(v1::Gpu::from),
        mode: mode.to_owned(),
        held,
        jobs: jobs.into_iter().collect(),
        unavailable,
        cleaning: cleaning.into_iter().collect(),
    }
}

/// Jobs whose tasks on this card have ended and left it to be cleaned.
fn cleaning(state: &State, there: &NodeUse, index: usize, holders: &[AllocationId]) -> BTreeSet<u64> {
    let held = holders.iter().filter_map(|id| state.allocations.get(id));
    let is_cleaned = |held: &&Arc<Allocation>| {
        let ranks = held.cleaning.iter().filter_map(|rank| held.tasks.get(rank.0 as usize));
        let mut here = ranks.filter(|task| task.node == there.node.id);
        here.any(|task| task.devices.iter().any(|hold| usize::from(hold.gpu) == index))
    };
    held.filter(is_cleaned).map(|held| held.job.0).collect()
}

fn cells(state: &State) -> Vec<v1::CellView> {
    let mut views: BTreeMap<CellId, v1::CellView> = state
        .cells
        .values()
        .map(|cell| (cell.id, v1::CellView { cell: Some(v1::Cell::from(cell)), ..v1::CellView::default() }))
        .collect();
    for there in state.capacity().nodes().values() {
        let Some(view) = views.get_mut(&there.node.cell) else { continue };
        view.nodes += 1;
        view.gpus += there.node.spec.gpus.len() as u32;
        if there.node.accepts_work() {
            view.nodes_ready += 1;
            view.gpus_free += there.free_cards() as u32;
        } else if there.node.health == NodeHealth::Ready {
            view.nodes_drained += 1;
        } else {
            view.nodes_silent += 1;
        }
    }
    for held in state.allocations.values() {
        let running = state.jobs.get(&held.job).is_some_and(|job| matches!(job.phase, JobPhase::Running(_)));
        if let Some(view) = views.get_mut(&held.cell) {
            view.running += u64::from(running);
        }
    }
    for (id, view) in &mut views {
        view.waiting = state.index().queued_in(Some(*id)).count() as u64;
    }
    let mut views: Vec<v1::CellView> = views.into_values().collect();
    let name = |view: &v1::CellView| view.cell.as_ref().map(|cell| cell.name.clone());
    views.sort_by_key(name);
    views
}
