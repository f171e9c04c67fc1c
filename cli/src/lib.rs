//! The `muster` command: every role, the clients' and operators' commands, a cluster on one machine, and the demonstration.
//!
//! What must stay true: results on standard output, the rest on standard error, and both through [`output`] alone; the exit status
//! says what happened ([`failure::exit`]); nothing here decides what the fleet decides.

// `println!` panics when its reader has gone away.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod allocator;
pub mod args;
pub mod audit_export;
pub mod client;
pub mod commands;
pub mod complete;
pub mod config;
pub mod demo;
pub mod dev;
pub mod event_file;
pub mod failure;
pub mod output;
pub mod private_file;
pub mod recovery;
pub mod roles;
pub mod session_file;
pub mod spec;
pub mod units;
pub mod view;
pub mod web;

use args::machine::Machine;
use args::node::NodeCommand;
use args::{Cli, Command, Global};
use clap::Parser;
use commands::Context;
use failure::{Failure, exit};
use output::{Out, note};
use std::process::ExitCode;

/// Parses the command line, runs the command, and says by the exit status how it went.
#[must_use]
pub fn run() -> ExitCode {
    match complete::answer() {
        Ok(false) => {}
        Ok(true) => return ExitCode::from(exit::OK),
        Err(error) => {
            note(&format!("error: {}: {error}", commands::completions::VARIABLE));
            return ExitCode::from(exit::INVALID);
        }
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; the rest is wrong usage. A closed terminal is nobody's concern here.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::INVALID } else { exit::OK });
        }
    };
    match dispatch(&cli) {
        Ok(()) | Err(Failure::ClosedPipe) => ExitCode::from(exit::OK),
        Err(failure) => {
            report(&failure);
            ExitCode::from(failure.code())
        }
    }
}

fn report(failure: &Failure) {
    match failure {
        Failure::Interrupted(text) => note(&format!("interrupted: {text}")),
        Failure::Invalid(..) => failure.to_string().lines().for_each(|line| note(&format!("error: {line}"))),
        other => note(&format!("error: {other}")),
    }
}

fn dispatch(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Completions { shell } => return commands::completions::run(*shell),
        Command::Checkpoint(args) => return commands::checkpoint::run(args.text.as_deref()),
        Command::Control(args) => return roles::control::run(args),
        Command::Shard(args) => return roles::shard::run(args, endpoints(&cli.global)?),
        Command::Node(args) => {
            let out = || Out::new(cli.global.output.unwrap_or_default(), cli.global.color);
            return match &args.instead {
                Some(NodeCommand::Doctor(args)) => roles::doctor::run(args, &out()),
                Some(NodeCommand::Record(args)) => roles::record::run(args, &out()),
                None => roles::node::run(args, endpoints(&cli.global)?),
            };
        }
        Command::Backup(command) => {
            let out = Out::new(cli.global.output.unwrap_or_default(), cli.global.color);
            return runtime()?.block_on(commands::backup::run(&out, command));
        }
        Command::Ca(command) => {
            let out = Out::new(cli.global.output.unwrap_or_default(), cli.global.color);
            return runtime()?.block_on(commands::ca::run(&out, command));
        }
        Command::Machine(Machine::Join { name, file, out: to }) => {
            let out = Out::new(cli.global.output.unwrap_or_default(), cli.global.color);
            return runtime()?.block_on(commands::machine::join(&out, name, file, to));
        }
        Command::Dev(args) => return dev::run(args),
        Command::Demo(args) => return demo::run(args),
        Command::Bench(args) => return commands::bench::run(args),
        _ => {}
    }
    runtime()?.block_on(client_command(&cli.global, &cli.command))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure::io("starting", error))
}

async fn client_command(global: &Global, command: &Command) -> Result<(), Failure> {
    let context = &Context::new(global)?;
    match command {
        Command::Submit(args) => commands::submit::run(context, args).await,
        Command::Jobs(args) => commands::jobs::run(context, args).await,
        Command::Job(args) => commands::job::run(context, args.id).await,
        Command::Logs(args) => commands::logs::run(context, args).await,
        Command::Requeue(args) => commands::requeue::requeue(context, &args.ids).await,
        Command::Update(args) => commands::requeue::update(context, args).await,
        Command::Hold(args) => commands::hold::hold(context, args).await,
        Command::Release(args) => commands::hold::release(context, args).await,
        Command::Cancel(args) => commands::cancel::run(context, args).await,
        Command::ArrayLimit(args) => commands::hold::array_limit(context, args).await,
        Command::Wait(args) => commands::wait::run(context, &args.ids).await,
        Command::Explain(args) => commands::explain::run(context, args.id).await,
        Command::Tenants(command) => commands::tenants::run(context, command).await,
        Command::Tree(args) => commands::tenants::tree(context, args).await,
        Command::Usage(args) => commands::tenants::usage(context, args).await,
        Command::Nodes(args) => commands::fleet::nodes(context, args).await,
        Command::Gpus(args) => commands::fleet::gpus(context, args).await,
        Command::Cells => commands::fleet::cells(context).await,
        Command::Pools(command) => commands::fleet::pools(context, command).await,
        Command::DeviceClasses(command) => commands::classes::run(context, command).await,
        Command::PriorityClasses(command) => commands::priority_classes::run(context, command).await,
        Command::Maintenance(command) => commands::windows::maintenance(context, command).await,
        Command::Reservations(command) => commands::windows::reservations(context, command).await,
        Command::Plan(args) => commands::plan::run(context, args).await,
        Command::Moves(args) => commands::moves::run(context, args).await,
        Command::WhatIf(args) => commands::what_if::run(context, args).await,
        Command::State(command) => commands::state::run(context, command).await,
        Command::Events(command) => commands::events::run(context, command).await,
        Command::Drain(args) => commands::fleet::drain(context, args).await,
        Command::Undrain(args) => commands::fleet::undrain(context, args).await,
        Command::ClearGpu(args) => commands::fleet::clear_gpu(context, args).await,
        Command::RemoveNode(args) => commands::fleet::remove(context, &args.nodes).await,
        Command::Recover(args) => commands::access::recover(context, args).await,
        Command::WhoAmI => commands::access::who_am_i(context).await,
        Command::Login(args) => commands::login::run(context, args).await,
        Command::Logout => commands::access::logout(context).await,
        Command::Sessions(args) => commands::access::sessions(context, args).await,
        Command::Token(command) => commands::access::token(context, command).await,
        Command::Grant(command) => commands::access::grant(context, command).await,
        Command::Access(command) => commands::access::access(context, command).await,
        Command::Audit(command) => commands::audit::run(context, command).await,
        Command::Secret(command) => commands::secret::run(context, command).await,
        Command::Machine(command) => commands::machine::run(context, command).await,
        Command::Raft(command) => commands::raft::run(context, command).await,
        Command::Replay(args) if args.live => commands::replay_live::run(context, args).await,
        Command::Replay(args) => commands::replay::run(&context.out, args),
        Command::Completions { .. }
        | Command::Checkpoint(_)
        | Command::Ca(_)
        | Command::Backup(_)
        | Command::Control(_)
        | Command::Shard(_)
        | Command::Node(_)
        | Command::Dev(_)
        | Command::Bench(_)
        | Command::Demo(_) => Ok(()),
    }
}

fn endpoints(global: &Global) -> Result<Vec<String>, Failure> {
    Ok(commands::endpoints(global, &config::Config::load(global.config.as_deref())?))
}
