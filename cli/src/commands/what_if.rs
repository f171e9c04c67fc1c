//! `muster what-if`: fetches or reads a copy of the state, runs it forward with a change and without, and prints the difference.
//!
//! What must stay true: nothing of the cluster is changed; what the cluster would refuse is refused in the same words.

use crate::args::what_if::WhatIf;
use crate::commands::windows::sorted;
use crate::commands::{Context, input, state, submit, tenants};
use crate::failure::Failure;
use crate::spec;
use crate::spec::job::JobText;
use crate::spec::tenants::TreeFile;
use crate::spec::windows::{Nodes, lies_in};
use crate::view::what_if::WhatIfView;
use muster_model::validate::bounds::TENANTS_PER_APPLY_MAX;
use muster_model::{FieldError, JobSpec, Node, Object, Pool, TopologyLevel, WindowSpec};
use muster_proto::bounded;
use muster_proto::v1;
use muster_twin::fleet::{Fleet, NodeGroup};
use muster_twin::import::Trace;
use muster_twin::shape::{ShapeOptions, Shaper};
use muster_twin::what_if::{Edit, Options, Question, Submission, WhatIfError, ask};
use muster_twin::window::{Window, WindowChoice};
use prost::Message;
use std::path::Path;

/// Thirty days: beyond it no time limit says anything.
const HORIZON_S_MAX: u64 = 30 * 86_400;
const DAY_S: u64 = 86_400;

/// Asks and prints.
///
/// # Errors
/// What the cluster would refuse, or that it stays away.
pub async fn run(context: &Context, args: &WhatIf) -> Result<(), Failure> {
    if args.horizon.0 == 0 || args.horizon.0 > HORIZON_S_MAX {
        return Err(Failure::field("--for", format!("is {} s", args.horizon.0), "use 1 second to 30 days"));
    }
    let jobs = match args.jobs.is_empty() {
        true => None,
        false => Some(submit::written(&args.jobs, JobText::default(), context.config.tenant.as_deref())?),
    };
    let changes = args.tenants.is_some()
        || args.pools.is_some()
        || args.windows.is_some()
        || args.device_classes.is_some()
        || args.priority_classes.is_some()
        || args.placement.is_some()
        || [&args.drain, &args.drain_cell, &args.delete_window].into_iter().any(|names| !names.is_empty())
        || !args.add_nodes.is_empty();
    if !changes && jobs.is_none() && args.trace.is_none() {
        let fix = "name at least one of --tenants, --pools, --device-classes, --priority-classes, --placement, --add-nodes, --drain, --drain-cell, --windows, --delete-window, --jobs and --trace";
        return Err(Failure::Usage(format!("what-if needs a change or a workload: {fix}")));
    }
    let (copy, source) = match &args.state {
        Some(path) => (state::read(path)?, path.display().to_string()),
        None => (state::fetch(context).await?, "the copy".to_owned()),
    };
    let objects = copy.objects(&source)?;
    let (edits, paths) = edits(args, &objects, copy.now_ms)?;
    let mut workload = Vec::new();
    if let Some(jobs) = &jobs {
        workload = submitted(&jobs.specs).map_err(|failure| jobs.refusal(failure))?;
    }
    let written = workload.len();
    workload.extend(of_trace(args, &objects)?);
    let options = Options {
        horizon_ms: args.horizon.0 * 1_000,
        run_times: args.run_times.into(),
        limit_percent: args.limit_use,
        run_time_ms: args.run_time.map(|time| time.0.max(1) * 1_000),
        ..Options::default()
    };
    let question = Question { objects, now_ms: copy.now_ms, edits, workload, options };
    let answer = ask(&question).map_err(|error| match error {
        WhatIfError::Edit { edit, ref reject } => {
            let failure = Failure::from_status("what-if", &muster_control_server::refused(reject));
            match &question.edits[edit] {
                Edit::Tenants { .. } => tenants::in_words_of_tree(failure, &paths),
                _ => failure,
            }
        }
        WhatIfError::Job { index, ref reject } => {
            let failure = of_job(Failure::from_status("what-if", &muster_control_server::refused(reject)), index);
            match &jobs {
                Some(jobs) if index < written => jobs.refusal(failure),
                _ => failure,
            }
        }
        WhatIfError::Law(_) | WhatIfError::Restless { .. } => {
            Failure::Server { what: "what-if".to_owned(), why: error.to_string() }
        }
    })?;
    let view = WhatIfView::new(answer, copy.revision);
    context.out.show(&view, |wide| view.table(args.all || wide))
}

/// Every job was submitted alone: `jobs[0].tasks` is that of the job with this number.
fn of_job(failure: Failure, index: usize) -> Failure {
    let Failure::Invalid(mut faults, left_out) = failure else { return failure };
    for fault in &mut faults {
        if let Some(rest) = fault.field.strip_prefix("jobs[0].") {
            fault.field = format!("jobs[{index}].{rest}");
        }
    }
    Failure::Invalid(faults, left_out)
}

/// What is too large to be sent is refused as the control node would refuse it.
fn within_bounds(message: &str, value: &impl Message) -> Result<(), Failure> {
    bounded::check(message, &value.encode_to_vec()).map_err(|error| {
        let text = error.to_string();
        let (field, problem) = text.split_once(": ").unwrap_or((message, &text));
        let (problem, fix) = problem.split_once("; ").unwrap_or((problem, "send less"));
        Failure::field(field, problem, fix)
    })
}

/// The edits in the order in which they are made, and the paths of the tenants that they name.
fn edits(args: &WhatIf, objects: &[Object], now_ms: u64) -> Result<(Vec<Edit>, Vec<String>), Failure> {
    let (mut edits, mut paths) = (Vec::new(), Vec::new());
    edits.extend(args.placement.map(|rule| Edit::Placement(rule.into())));
    if let Some(path) = &args.pools {
        let (text, name) = input::read(path)?;
        for wire in spec::pools::parse(&text, &name)? {
            within_bounds("PutPoolRequest", &v1::PutPoolRequest { pool: Some(wire.clone()) })?;
            let pool = Pool::try_from(wire).map_err(|error| Failure::from(vec![error.under("pool")]))?;
            edits.push(Edit::Pool(pool));
        }
    }
    edits.extend(args.add_nodes.iter().cloned().map(Edit::AddNodes));
    if let Some(path) = &args.tenants {
        let (text, name) = input::read(path)?;
        let tree = spec::tenants::parse(&text, &name)?;
        paths = tree.edits.iter().map(|edit| edit.path.clone()).collect();
        edits.push(tenant_edits(tree, &paths, args.prune)?);
    }
    edits.extend(class_edits(args)?);
    edits.extend(args.delete_window.iter().cloned().map(Edit::DeleteWindow));
    if let Some(path) = &args.windows {
        let (text, name) = input::read(path)?;
        for (wire, nodes) in spec::windows::parse(&text, &name, now_ms)? {
            edits.push(window_edit(wire, &nodes, objects)?);
        }
    }
    let by_ms = args.by.as_deref().map(|by| spec::moment_at("by", by, now_ms)).transpose()?;
    edits.extend(args.drain.iter().cloned().map(|node| match by_ms {
        None => Edit::DrainNode(node),
        Some(by_ms) => Edit::DrainNodeBy { node, by_ms },
    }));
    edits.extend(args.drain_cell.iter().cloned().map(Edit::DrainCell));
    Ok((edits, paths))
}

/// Device classes, then priority classes.
fn class_edits(args: &WhatIf) -> Result<Vec<Edit>, Failure> {
    let mut edits = Vec::new();
    if let Some(path) = &args.device_classes {
        let (text, name) = input::read(path)?;
        for wire in spec::classes::parse(&text, &name)? {
            within_bounds("PutDeviceClassRequest", &v1::PutDeviceClassRequest { class: Some(wire.clone()) })?;
            edits.push(Edit::DeviceClass(wire.try_into().map_err(under_class)?));
        }
    }
    if let Some(path) = &args.priority_classes {
        let (text, name) = input::read(path)?;
        for wire in spec::priority_classes::parse(&text, &name)? {
            within_bounds("PutPriorityClassRequest", &v1::PutPriorityClassRequest { class: Some(wire.clone()) })?;
            edits.push(Edit::PriorityClass(wire.into()));
        }
    }
    Ok(edits)
}

fn under_class(fault: FieldError) -> Failure {
    Failure::from(vec![fault.under("class")])
}

/// A window, on the nodes of the copy that it means.
fn window_edit(mut wire: v1::WindowSpec, nodes: &Nodes, objects: &[Object]) -> Result<Edit, Failure> {
    if !nodes.is_empty() {
        let cell = objects.iter().find_map(|object| match object {
            Object::Cell(cell) if Some(&cell.name) == nodes.cell.as_ref() => Some(cell.id),
            _ => None,
        });
        let is_meant = |node: &Node| {
            let place = &node.spec.place;
            let place = place.spanning_island().unwrap_or_else(|| place.domain(TopologyLevel::Leaf));
            (nodes.cell.is_none() || Some(node.cell) == cell)
                && nodes.pool.as_ref().is_none_or(|pool| *pool == node.spec.pool)
                && nodes.place.as_ref().is_none_or(|part| lies_in(&place, part))
        };
        let named = objects.iter().filter_map(|object| match object {
            Object::Node(node) if is_meant(node) => Some(node.spec.name.clone()),
            _ => None,
        });
        wire.nodes.extend(named);
        wire.nodes = sorted(wire.nodes, "name nodes, or a cell, pool or place that has some")?;
    }
    within_bounds("PutWindowRequest", &v1::PutWindowRequest { window: Some(wire.clone()) })?;
    WindowSpec::try_from(wire).map(Edit::Window).map_err(|fault| Failure::from(vec![fault.under("window")]))
}

fn tenant_edits(tree: TreeFile, paths: &[String], prune: bool) -> Result<Edit, Failure> {
    let TreeFile { edits: wire, half_life_s } = tree;
    if wire.len() > TENANTS_PER_APPLY_MAX {
        let problem = format!("has {} tenants", wire.len());
        return Err(Failure::field("edits", problem, "send 1 to 10,000 tenants in one call"));
    }
    let request = v1::ApplyTenantsRequest { edits: wire.clone(), prune, ..Default::default() };
    within_bounds("ApplyTenantsRequest", &request).map_err(|failure| tenants::in_words_of_tree(failure, paths))?;
    let (mut edits, mut faults) = (Vec::new(), Vec::new());
    for (index, edit) in wire.into_iter().enumerate() {
        match edit.try_into() {
            Ok(edit) => edits.push(edit),
            Err(fault) => faults.push(FieldError::under(fault, &format!("edits[{index}]"))),
        }
    }
    if faults.is_empty() {
        return Ok(Edit::Tenants { edits, prune, half_life_s });
    }
    Err(tenants::in_words_of_tree(Failure::from(faults), paths))
}

/// Jobs that are submitted at once.
fn submitted(wire: &[v1::JobSpec]) -> Result<Vec<Submission>, Failure> {
    within_bounds("SubmitRequest", &v1::SubmitRequest { jobs: wire.to_vec(), ..Default::default() })?;
    let (mut workload, mut faults) = (Vec::new(), Vec::new());
    for (index, job) in wire.iter().enumerate() {
        let checked = JobSpec::try_from(job.clone()).map_err(|fault| vec![fault]).and_then(JobSpec::validate);
        match checked {
            Ok(spec) => workload.push(Submission { after_ms: 0, spec, work_ms: None }),
            Err(wrong) => faults.extend(wrong.into_iter().map(|fault| fault.under(&format!("jobs[{index}]")))),
        }
    }
    if faults.is_empty() { Ok(workload) } else { Err(Failure::from(faults)) }
}

/// The jobs of the trace that are submitted before the horizon.
fn of_trace(args: &WhatIf, objects: &[Object]) -> Result<Vec<Submission>, Failure> {
    let (Some(path), Some(format), Some(under)) = (&args.trace, args.format, &args.under) else {
        return Ok(Vec::new());
    };
    let trace = read_trace(path, format)?;
    let days = u32::try_from(args.horizon.0.div_ceil(DAY_S)).unwrap_or(u32::MAX);
    let empty = || Failure::Usage("the trace has no job in that time; change --from-day or --for".to_owned());
    let choice = WindowChoice::Days { from: args.from_day, days };
    let window = Window::choose(&trace.jobs, choice).ok_or_else(empty)?;
    let (_, jobs) = window.cut(&trace.jobs);
    let shaper = Shaper::new(&fleet(objects), ShapeOptions::default());
    let mut workload = Vec::new();
    for mut job in jobs {
        let after_s = job.submit_s.saturating_sub(window.from_s);
        if after_s > args.horizon.0 {
            continue;
        }
        job.tenant = under.clone();
        let work_ms = Some(job.duration_s.max(1) * 1_000);
        let shaped = shaper.shape(&job, vec!["-".to_owned()]).map_err(Failure::from)?;
        workload.push(Submission { after_ms: after_s * 1_000, spec: shaped.spec, work_ms });
    }
    if workload.is_empty() { Err(empty()) } else { Ok(workload) }
}

fn read_trace(path: &Path, format: muster_twin::import::Format) -> Result<Trace, Failure> {
    let name = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::NotFound(format!("file {name} does not exist")),
        _ => Failure::io(format!("reading {name}"), error),
    })?;
    let mut trace = Trace::default();
    trace.add(format, file, &name).map_err(|error| Failure::Usage(format!("--trace {name}: {error}")))?;
    Ok(trace)
}

/// The nodes of the copy, so that gangs of the trace are split as they need.
fn fleet(objects: &[Object]) -> Fleet {
    let mut groups: Vec<NodeGroup> = Vec::new();
    for object in objects {
        let Object::Node(node) = object else { continue };
        let Some(model) = node.spec.gpus.first().map(|gpu| gpu.model) else { continue };
        let gpus = node.spec.gpus.len() as u32;
        match groups.iter_mut().find(|group| group.model == model && group.gpus == gpus) {
            Some(group) => group.nodes += 1,
            None => groups.push(NodeGroup::of(1, gpus, model)),
        }
    }
    Fleet { name: "the copy".to_owned(), groups }
}
