//! `muster machine`: which machines belong to the cluster, and how others come to.
//!
//! What must stay true: the text of a join token is written to a file for its owner alone, or printed once; a private key never leaves its folder.

use crate::args::machine::{CreateJoinToken, Enrolment, JoinToken, Machine};
use crate::commands::{Context, ca};
use crate::failure::Failure;
use crate::output::Out;
use crate::spec::names::names;
use crate::view::backup::ReviewView;
use crate::view::machine::{JoinTokenView, MachineView, MachinesView, join_tokens};
use muster_enrolment::{EnrolError, JoinFile, enrol, is_enrolled};
use muster_model::Principal;
use muster_model::bounds::{HASH_BYTES, PINS_MAX};
use muster_proto::v1;
use muster_proto::v1::machines_client::MachinesClient;
use muster_runtime::pki::{Role, X509};
use muster_runtime::{Host, real};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For how long `muster machine join` asks control nodes that do not answer.
const ASKS_FOR: Duration = Duration::from_secs(60);
const OWNER_ONLY: u32 = 0o600;

/// Runs one of them.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn run(context: &Context, command: &Machine) -> Result<(), Failure> {
    match command {
        Machine::List => list(context).await,
        Machine::Token(JoinToken::Create(args)) => create(context, args).await,
        Machine::Token(JoinToken::List) => tokens(context).await,
        Machine::Token(JoinToken::Revoke { id }) => {
            let request = v1::RevokeJoinTokenRequest { id: *id };
            let ask = |channel| async move { MachinesClient::new(channel).revoke_join_token(request).await };
            context.client.call("revoke a join token", ask).await?;
            context.out.line(&format!("join token {id} revoked"))
        }
        Machine::Join { name, file, out } => join(&context.out, name, file, out).await,
        Machine::Pin { folders, key, replace } => pin(context, folders, key, *replace).await,
        Machine::Suspend { name, reason } => {
            let request = v1::SuspendRequest { name: name.clone(), reason: reason.clone() };
            let ask = |channel| {
                let request = request.clone();
                async move { MachinesClient::new(channel).suspend(request).await }
            };
            context.client.call("suspend a machine", ask).await?;
            context.out.line(&format!("{name} suspended"))
        }
        Machine::Resume { name } => {
            let request = v1::ResumeRequest { name: name.clone() };
            let ask = |channel| {
                let request = request.clone();
                async move { MachinesClient::new(channel).resume(request).await }
            };
            context.client.call("resume a machine", ask).await?;
            context.out.line(&format!("{name} resumed"))
        }
        Machine::Confirm { names, all: _, gone, dry_run } => {
            let request = v1::ConfirmRequest { names: names.clone(), dry_run: *dry_run, gone: *gone };
            let ask = |channel| {
                let request = request.clone();
                async move { MachinesClient::new(channel).confirm(request).await }
            };
            let view = ReviewView::new(context.client.call("confirm machines", ask).await?, *dry_run);
            context.out.show(&view, |_| view.blocks())
        }
        Machine::Remove { name } => {
            let request = v1::RemoveMachineRequest { name: name.clone() };
            let ask = |channel| {
                let request = request.clone();
                async move { MachinesClient::new(channel).remove(request).await }
            };
            context.client.call("remove a machine", ask).await?;
            context.out.line(&format!("{name} removed"))
        }
        Machine::Enrolment { enrolment } => {
            let (word, told) = match enrolment {
                Enrolment::Optional => ("optional", "enrolment is optional: certificates are enough"),
                Enrolment::Required => {
                    ("required", "enrolment is required: a machine whose key is not pinned is nobody")
                }
            };
            set_enrolment(&context.client, word).await?;
            context.out.line(told)
        }
    }
}

/// Says whether machines have to be enrolled.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn set_enrolment(client: &crate::client::Client, enrolment: &str) -> Result<(), Failure> {
    let request = v1::SetEnrolmentRequest { enrolment: enrolment.to_owned() };
    let ask = |channel| {
        let request = request.clone();
        async move { MachinesClient::new(channel).set_enrolment(request).await }
    };
    client.call("change enrolment", ask).await.map(drop)
}

async fn list(context: &Context) -> Result<(), Failure> {
    let mut enrolment = String::new();
    let list = |channel, page_token| {
        let consistency = context.consistency.into();
        let request = v1::ListMachinesRequest { consistency, page_size: 1_000, page_token };
        async move { MachinesClient::new(channel).list(request).await }
    };
    let parts = |reply: v1::ListMachinesReply| {
        enrolment.clone_from(&reply.enrolment);
        (reply.machines, reply.next_page_token)
    };
    let found = context.client.all_pages("list machines", list, parts).await?;
    let machines: Vec<MachineView> = found.into_iter().map(Into::into).collect();
    let view = MachinesView { enrolment, machines };
    context.out.show(&view, |_| view.blocks())
}

async fn tokens(context: &Context) -> Result<(), Failure> {
    let request = v1::ListJoinTokensRequest { consistency: context.consistency.into() };
    let ask = |channel| async move { MachinesClient::new(channel).list_join_tokens(request).await };
    let reply: v1::ListJoinTokensReply = context.client.call("list join tokens", ask).await?;
    let views: Vec<JoinTokenView> = reply.tokens.into_iter().map(Into::into).collect();
    context.out.show(&views, |_| join_tokens(&views))
}

async fn create(context: &Context, args: &CreateJoinToken) -> Result<(), Failure> {
    let names = names("names", &args.names)?;
    let labels = args.labels.as_deref().map(labels).transpose()?;
    let enrolled = v1::Enrolled {
        cell: args.cell.clone(),
        pool: args.pool.clone(),
        gpus_max: args.gpus_max,
        labels: labels.map(|labels| v1::Labels { labels }),
    };
    let count = names.len();
    let request = v1::CreateJoinTokenRequest {
        role: args.role.clone(),
        names,
        enrolled: Some(enrolled),
        ttl_s: args.ttl.0,
        rejoin: args.rejoin,
    };
    let ask = |channel| {
        let request = request.clone();
        async move { MachinesClient::new(channel).create_join_token(request).await }
    };
    // A call that is repeated makes a second token; the first is known to nobody, and ends at its time.
    let reply: v1::CreateJoinTokenReply = context.client.call("create a join token", ask).await?;
    let endpoints: Vec<String> = context.client.endpoints().map(str::to_owned).collect();
    let unusable = |error| Failure::Refused(format!("the roots that the cluster has sent cannot be used: {error}"));
    let file = JoinFile::new(&X509, reply.token, endpoints, reply.roots).map_err(unusable)?;
    let until = muster_model::utc::show(reply.expires_ms);
    let note = format!("Join token {} for {count} machines of role {}, until {until}.", reply.id, args.role);
    let text = file.text(&note);
    match &args.out {
        None => context.out.line(text.trim_end()),
        Some(path) => {
            let written = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(path);
            let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|error| Failure::io(format!("writing {}", path.display()), error))?;
            let id = reply.id;
            context.out.line(&format!("join token {id} for {count} machines in {}, until {until}", path.display()))
        }
    }
}

fn labels(written: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let written = written.iter().filter(|text| !text.is_empty());
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::field("labels", format!("{text:?} has no '='"), "write KEY=VALUE")),
    };
    written.map(pair).collect()
}

/// Enrols this machine.
///
/// # Errors
/// When the folder has an identity already, the file is none, or the cluster refuses.
pub async fn join(out: &Out, name: &str, file: &Path, to: &Path) -> Result<(), Failure> {
    let role = match name.parse() {
        Ok(Principal::Node(name)) => Role::Node(name),
        Ok(Principal::Shard(name)) => Role::Shard(name),
        _ => return Err(Failure::field("name", format!("is {name:?}"), "write node:NAME or shard:NAME")),
    };
    let host = real::identified_host(name, to, Duration::ZERO, Some(to));
    if is_enrolled(&host).map_err(|error| Failure::Refused(error.to_string()))? {
        let problem = format!("{} has an identity already", to.display());
        return Err(Failure::Refused(format!("{problem}; give another --out, or use that one")));
    }
    join_as(&host, role, file, Some(ASKS_FOR)).await.map_err(|error| Failure::Refused(error.to_string()))?;
    out.line(&format!("{name} is enrolled; its identity is in {}", to.display()))
}

/// Why a machine did not join.
#[derive(Debug, thiserror::Error)]
pub enum NotJoined {
    /// The file cannot be read.
    #[error("reading {}: {error}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is no join file.
    #[error("{}: {error}; use the file that `muster machine token create --out` has written", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: muster_enrolment::BadJoinFile,
    },
    /// It was not enrolled.
    #[error(transparent)]
    Enrol(#[from] EnrolError),
}

/// Enrols `host` with the token of a file.
///
/// # Errors
/// [`NotJoined`].
pub async fn join_as(host: &Host, role: Role, file: &Path, asks_for: Option<Duration>) -> Result<(), NotJoined> {
    let text = std::fs::read_to_string(file).map_err(|error| NotJoined::Read { path: file.to_owned(), error })?;
    let file = JoinFile::read(&X509, &text).map_err(|error| NotJoined::File { path: file.to_owned(), error })?;
    Ok(enrol(host, role, &file, asks_for).await?)
}

async fn pin(context: &Context, folders: &[PathBuf], written: &[String], replace: bool) -> Result<(), Failure> {
    let mut keys = Vec::new();
    for text in written {
        keys.push(written_key(text)?);
    }
    for folder in folders {
        keys.push(key_of(folder)?);
    }
    let names: Vec<String> = keys.iter().map(|key| key.name.clone()).collect();
    pin_keys(&context.client, keys, replace).await?;
    context.out.line(&format!("pinned: {}", names.join(", ")))
}

/// Pins keys, however many.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn pin_keys(client: &crate::client::Client, keys: Vec<v1::PinnedKey>, replace: bool) -> Result<(), Failure> {
    for keys in keys.chunks(PINS_MAX) {
        let request = v1::PinRequest { keys: keys.to_vec(), replace };
        let ask = |channel| {
            let request = request.clone();
            async move { MachinesClient::new(channel).pin(request).await }
        };
        client.call("pin keys", ask).await?;
    }
    Ok(())
}

/// The machine of a folder and its key.
///
/// # Errors
/// When the folder has no identity.
pub fn key_of(folder: &Path) -> Result<v1::PinnedKey, Failure> {
    let Some((role, key)) = ca::identity(folder)? else {
        let problem = format!("{} has no identity of a machine", folder.display());
        return Err(Failure::field("folders", problem, "give folders that `muster ca` has made"));
    };
    let name = match role {
        Role::Control(id) => Principal::Member(id),
        Role::Shard(name) => Principal::Shard(name),
        Role::Node(name) => Principal::Node(name),
    };
    Ok(v1::PinnedKey { name: name.to_string(), key_sha256: key.to_vec() })
}

fn written_key(text: &str) -> Result<v1::PinnedKey, Failure> {
    let wrong = |problem: &str| {
        Failure::field("key", format!("{text:?} {problem}"), "write NAME=SHA256 with 64 hexadecimal digits")
    };
    let (name, digits) = text.split_once('=').ok_or_else(|| wrong("has no '='"))?;
    let digits = digits.strip_prefix("sha256:").unwrap_or(digits);
    let byte = |at: usize| digits.get(at * 2..at * 2 + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let key: Option<Vec<u8>> = (0..HASH_BYTES).map(byte).collect();
    let key = key.filter(|_| digits.len() == 2 * HASH_BYTES).ok_or_else(|| wrong("has no SHA-256"))?;
    Ok(v1::PinnedKey { name: name.to_owned(), key_sha256: key })
}
