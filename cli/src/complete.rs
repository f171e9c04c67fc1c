//! Completion of values in a shell: names and ids are asked of the cluster when TAB is pressed; what the command line itself knows is
//! known here.
//!
//! What must stay true: a shell waits a second at most; when nobody answers, it gets nothing, and nothing is printed.

use crate::args::{Cli, Global, Seconds};
use crate::commands::completions::VARIABLE;
use crate::commands::{self, Context, now_ms};
use crate::view::job::{JobView, PHASES};
use clap::{Arg, Command, CommandFactory, Parser};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::CompleteEnv;
use muster_model::{GpuModel, NumaPolicy, TopologyLevel, WorkloadClass};
use muster_proto::v1;
use std::ffi::OsStr;

/// A shell that waits longer seems to hang.
const ASKED_S_MAX: u64 = 1;
/// The newest jobs; nobody reads more in a shell.
const JOBS_MAX: usize = 100;

/// Answers a shell that asks; false when none does.
///
/// # Errors
/// When the shell is not known, or the output is closed.
pub fn answer() -> Result<bool, clap::Error> {
    let folder = std::env::current_dir().ok();
    CompleteEnv::with_factory(command).var(VARIABLE).try_complete(std::env::args_os(), folder.as_deref())
}

/// The command line, with what completes its values.
fn command() -> Command {
    with_completers(Cli::command(), "")
}

fn with_completers(command: Command, above: &str) -> Command {
    let name = command.get_name().to_owned();
    let command = command.mut_args(|arg| match Value::of(above, &name, &arg) {
        Some(value) => arg.add(ArgValueCompleter::new(move |current: &OsStr| value.candidates(current))),
        None => arg,
    });
    command.mut_subcommands(|below| with_completers(below, &name))
}

/// What stands in a place of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Job,
    LiveJob,
    Tenant,
    Node,
    Cell,
    Pool,
    DeviceClass,
    PriorityClass,
    Window(&'static str),
    Model,
    Level,
    /// Of tasks that are kept apart.
    SpreadLevel,
    Class,
    Numa,
    State,
}

impl Value {
    /// What an argument takes: by the name of its command and of the one above.
    fn of(above: &str, command: &str, arg: &Arg) -> Option<Value> {
        match (above, command, arg.get_id().as_str()) {
            (_, "job" | "logs" | "explain", "id") => Some(Value::Job),
            (_, "cancel" | "wait", "ids") => Some(Value::LiveJob),
            (_, "submit" | "jobs", "tenant")
            | ("tenants", "delete" | "move", "path")
            | (_, "usage" | "tree", "under") => Some(Value::Tenant),
            ("tenants", "list", "under") => Some(Value::Tenant),
            (_, "gpus" | "clear-gpu", "node") | (_, "drain" | "undrain" | "remove-node", "nodes") => Some(Value::Node),
            (_, "nodes" | "plan", "cell") => Some(Value::Cell),
            (_, "nodes" | "submit" | "moves", "pool") | ("pools", "delete", "name") => Some(Value::Pool),
            (_, "submit", "device_class") | ("device-classes", "delete", "name") => Some(Value::DeviceClass),
            (_, "submit", "priority_class") | ("priority-classes", "delete", "name") => Some(Value::PriorityClass),
            (_, "submit", "reservation") | ("reservations", "delete", "name") => Some(Value::Window("reservation")),
            ("maintenance", "delete", "name") => Some(Value::Window("maintenance")),
            ("reservations", "create", "tenant") => Some(Value::Tenant),
            ("reservations" | "maintenance", "create", "nodes") => Some(Value::Node),
            ("reservations" | "maintenance", "create", "cell") => Some(Value::Cell),
            ("reservations" | "maintenance", "create", "pool") => Some(Value::Pool),
            ("reservations", "create", "model") => Some(Value::Model),
            (_, "submit" | "dev", "model") => Some(Value::Model),
            (_, "submit", "topology" | "prefer") => Some(Value::Level),
            (_, "submit", "spread" | "prefer_spread") => Some(Value::SpreadLevel),
            (_, "submit", "class") => Some(Value::Class),
            (_, "submit", "numa") => Some(Value::Numa),
            (_, "jobs", "state") => Some(Value::State),
            _ => None,
        }
    }

    /// Those that begin with what is typed.
    fn candidates(self, current: &OsStr) -> Vec<CompletionCandidate> {
        let typed = current.to_string_lossy();
        let found = self.known().or_else(|| self.asked()).unwrap_or_default();
        let begun = found.into_iter().filter(|(value, _)| value.starts_with(typed.as_ref()));
        let shown = |(value, help): (String, String)| {
            CompletionCandidate::new(value).help((!help.is_empty()).then(|| help.into()))
        };
        begun.map(shown).collect()
    }

    /// Values that every cluster has.
    fn known(self) -> Option<Vec<(String, String)>> {
        fn plain(words: impl IntoIterator<Item = impl ToString>) -> Option<Vec<(String, String)>> {
            Some(words.into_iter().map(|word| (word.to_string(), String::new())).collect())
        }
        match self {
            Value::Model => plain(GpuModel::ALL),
            Value::Level => plain(TopologyLevel::ALL),
            Value::SpreadLevel => plain(TopologyLevel::ALL.into_iter().filter(|level| *level != TopologyLevel::Island)),
            Value::Class => plain(WorkloadClass::ALL),
            Value::Numa => plain(NumaPolicy::ALL),
            Value::State => plain(PHASES.iter().map(|(_, word)| word)),
            _ => None,
        }
    }

    /// Values that this cluster has.
    fn asked(self) -> Option<Vec<(String, String)>> {
        // The global options of the line that is being typed are not known here; the environment and the configuration file are.
        let global = Cli::try_parse_from(["muster", "cells"]).ok()?.global;
        let global = Global { timeout: Some(Seconds(ASKED_S_MAX)), stale: true, ..global };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(async { self.names(&Context::new(&global).ok()?).await })
    }

    async fn names(self, context: &Context) -> Option<Vec<(String, String)>> {
        let (client, consistency) = (&context.client, context.consistency);
        let found = match self {
            Value::Job | Value::LiveJob => return jobs(context, self == Value::LiveJob).await,
            Value::Tenant => {
                let tenants = commands::tenants::all_tenants(client, "", consistency, false).await.ok()?;
                tenants.into_iter().filter_map(|tenant| Some((tenant.spec?.path, String::new()))).collect()
            }
            Value::Node => {
                let nodes = commands::fleet::all_nodes(client, "", "", consistency).await.ok()?;
                let shown = |node: v1::NodeView| Some((node.node?.spec?.name, String::new()));
                nodes.into_iter().filter_map(shown).collect()
            }
            Value::Cell => {
                let cells = commands::fleet::all_cells(client, consistency).await.ok()?;
                cells.into_iter().map(|cell| (cell.name, String::new())).collect()
            }
            Value::Pool => {
                let pools = commands::fleet::all_pools(client, consistency).await.ok()?;
                pools.into_iter().map(|pool| (pool.name, String::new())).collect()
            }
            Value::PriorityClass => {
                let classes = commands::priority_classes::all_classes(client, consistency).await.ok()?;
                classes.into_iter().map(|class| (class.name, format!("priority {}", class.priority))).collect()
            }
            Value::Window(kind) => {
                let windows = commands::windows::all_windows(client, kind, consistency).await.ok()?;
                windows.into_iter().map(|window| (window.name, window.start)).collect()
            }
            Value::DeviceClass => {
                let classes = commands::classes::all_classes(client, consistency).await.ok()?;
                classes.into_iter().map(|class| (class.name, class.selector)).collect()
            }
            _ => Vec::new(),
        };
        Some(found)
    }
}

/// The newest jobs, each with what a person knows it by.
async fn jobs(context: &Context, live: bool) -> Option<Vec<(String, String)>> {
    let phases = if live { Vec::new() } else { PHASES.iter().map(|(phase, _)| (*phase).into()).collect() };
    let consistency = context.consistency.into();
    let request = v1::ListJobsRequest { phases, consistency, newest_first: true, ..v1::ListJobsRequest::default() };
    let found = commands::jobs::list(&context.client, request, JOBS_MAX).await.ok()?;
    let shown = |job: &v1::Job| {
        let view = JobView::new(job, now_ms());
        (view.id.to_string(), format!("{}, {}, {}", view.name, view.tenant, view.state))
    };
    Some(found.jobs.iter().map(shown).collect())
}
