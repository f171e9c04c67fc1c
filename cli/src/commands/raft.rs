//! `muster raft`: what each voter says of itself, and changes of membership.

use crate::args::admin::Raft;
use crate::client::Client;
use crate::commands::Context;
use crate::failure::Failure;
use crate::view::raft::{ClockView, MemberView, PeerView, members_table, table};
use muster_proto::v1;
use muster_proto::v1::admin_client::AdminClient;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A node that does not answer its own status in this time is shown as down.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// A new learner may have to be sent a whole snapshot before the call answers.
const CATCH_UP_MAX: Duration = Duration::from_secs(600);

/// Runs one of them.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn run(context: &Context, command: &Raft) -> Result<(), Failure> {
    let patient = context.client.with_deadline(CATCH_UP_MAX);
    match command.clone() {
        Raft::Status => {
            let peers = status(&context.client).await?;
            context.out.show(&peers, |_| table(&peers))
        }
        Raft::Add { id, address } => {
            let request = v1::AddLearnerRequest { id, address };
            let add = |channel| {
                let request = request.clone();
                async move { AdminClient::new(channel).add_learner(request).await }
            };
            members(context, patient.call("add learner", add).await?)
        }
        Raft::Promote { id } => {
            let promote = |channel| async move { AdminClient::new(channel).promote(v1::PromoteRequest { id }).await };
            members(context, patient.call("promote", promote).await?)
        }
        Raft::Remove { id, replace_with, yes } => {
            let request = v1::RemoveRequest { id, replace_with, accept_lower_tolerance: yes };
            let remove = |channel| async move { AdminClient::new(channel).remove(request).await };
            members(context, patient.call("remove", remove).await.map_err(with_flags)?)
        }
        Raft::ResetClock => {
            let reset = |channel| async move { AdminClient::new(channel).reset_clock(v1::ResetClockRequest {}).await };
            let reply = patient.call("reset clock", reset).await?;
            let view = ClockView { ahead_ms: reply.ahead_ms, corrected: reply.corrected };
            context.out.show(&view, |_| view.blocks())
        }
        Raft::Bootstrap { members: named } => {
            let (_, first) =
                named.first().ok_or_else(|| Failure::Usage("give the voters as ID=HOST:PORT".to_owned()))?;
            members(context, bootstrap(&patient.of(first)?, &named).await?)
        }
    }
}

/// What is refused until it is confirmed, with the flags that do so.
fn with_flags(failure: Failure) -> Failure {
    match failure {
        Failure::Unconfirmed(text) => Failure::Refused(format!("{text} (--replace-with ID, or --yes)")),
        other => other,
    }
}

/// Makes the nodes a new cluster, through the first of them.
///
/// # Errors
/// When one of them was part of a cluster, or is away.
pub async fn bootstrap(client: &Client, voters: &[(u64, String)]) -> Result<v1::MembershipReply, Failure> {
    let member = |(id, address): &(u64, String)| v1::RaftMember {
        id: *id,
        address: address.clone(),
        voter: true,
        ..v1::RaftMember::default()
    };
    let request = v1::BootstrapRequest { members: voters.iter().map(member).collect() };
    let ask = |channel| {
        let request = request.clone();
        async move { AdminClient::new(channel).bootstrap(request).await }
    };
    client.call("bootstrap", ask).await
}

fn members(context: &Context, reply: v1::MembershipReply) -> Result<(), Failure> {
    let views: Vec<MemberView> = reply.members.iter().map(MemberView::new).collect();
    context.out.show(&views, |_| members_table(&views))
}

/// Every member that any endpoint knows of, as it describes itself.
///
/// # Errors
/// When no endpoint answers.
pub async fn status(client: &Client) -> Result<Vec<PeerView>, Failure> {
    let asked: Vec<String> = client.endpoints().map(str::to_owned).collect();
    let mut answers: BTreeMap<String, Result<v1::RaftStatusReply, String>> = BTreeMap::new();
    let mut known: BTreeMap<String, u64> = BTreeMap::new();
    for address in &asked {
        ask_into(client, address, &mut answers, &mut known).await?;
    }
    let answered: BTreeSet<u64> = answers.values().flatten().map(|reply| reply.id).collect();
    // Members that were not among the endpoints. Where machines have an endpoint of their own, it is that one which members know of each other.
    for (address, id) in known.clone() {
        if client.is_secure() && !answered.contains(&id) {
            answers.insert(address, Err("not asked: give its endpoint with --endpoints".to_owned()));
        } else if !client.is_secure() && !answers.contains_key(&address) {
            ask_into(client, &address, &mut answers, &mut known).await?;
        }
    }
    // The leader measures the clocks of the others.
    let leader = answers.values().flatten().find(|reply| reply.state.eq_ignore_ascii_case("leader"));
    let offsets_ms: BTreeMap<u64, i64> = leader
        .iter()
        .flat_map(|reply| &reply.members)
        .filter_map(|member| Some((member.id, member.clock_offset_ms?)))
        .collect();
    let mut by_id: BTreeMap<Option<u64>, PeerView> = BTreeMap::new();
    for (address, answer) in answers {
        let peer = match answer {
            Ok(reply) => PeerView::new(&address, &reply, offsets_ms.get(&reply.id).copied()),
            Err(error) => PeerView::down(known.get(&address).copied(), &address, error),
        };
        by_id.entry(peer.id).or_insert(peer);
    }
    let peers: Vec<PeerView> = by_id.into_values().collect();
    if peers.iter().all(|peer| !peer.error.is_empty()) {
        return Err(Failure::Unavailable {
            what: "raft status".to_owned(),
            why: peers.first().map(|peer| peer.error.clone()).unwrap_or_default(),
            endpoints: asked.join(","),
        });
    }
    Ok(peers)
}

async fn ask_into(
    client: &Client,
    address: &str,
    answers: &mut BTreeMap<String, Result<v1::RaftStatusReply, String>>,
    known: &mut BTreeMap<String, u64>,
) -> Result<(), Failure> {
    let answer = ask(client, address).await?;
    if let Ok(reply) = &answer {
        known.extend(reply.members.iter().map(|member| (member.address.clone(), member.id)));
    }
    answers.insert(address.to_owned(), answer);
    Ok(())
}

/// One node's own status, if it answers in time.
///
/// # Errors
/// When the address is none.
pub async fn ask(client: &Client, address: &str) -> Result<Result<v1::RaftStatusReply, String>, Failure> {
    let mut admin = AdminClient::new(client.connect(address)?);
    Ok(match tokio::time::timeout(ANSWER_MAX, admin.raft_status(v1::RaftStatusRequest {})).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err("no answer".to_owned()),
    })
}
