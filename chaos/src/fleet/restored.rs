//! All control nodes are lost with their disks, and the fleet goes on from a backup that is older than what its agents run.
//!
//! What must stay true of a run: a rank never runs in two places and no attempt is started twice, by the nodes' own record, though the control plane has
//! forgotten what it told them; and once an operator has confirmed all machines, everything that the backup knows and everything that is submitted then ends.

use super::client::{ANSWER_MAX, Client};
use super::enroller;
use super::servers::{CLIENTS, NODES, SHARDS, Servers, VOTERS};
use crate::nemesis::{Fleet, Rage, rage};
use crate::{Outcome, laws};
use muster_control_server::Consensus;
use muster_control_server::backup::{self, Backup, Reader, Target};
use muster_proto::v1;
use muster_proto::v1::machines_client::MachinesClient;
use muster_runtime::pki::{Credentials, Role};
use muster_runtime::sim::{LinkQuality, SimWorld};
use muster_runtime::{Chance, Transport};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// From the restore until all is confirmed and has ended: as long as after other faults.
const HEALING_MAX: Duration = Duration::from_secs(480);
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Runs seed `seed`.
#[must_use]
pub fn run_seed(seed: u64, trace: bool) -> Outcome {
    muster_runtime::sim::run(seed, move |world| async move {
        if trace {
            world.keep_trace();
        }
        let chance = world.chance().clone();
        let servers = Servers::new(world.clone(), 10_000, None, None);
        let clients: Vec<Client> = CLIENTS.iter().map(|name| Client::new(&servers, name, &chance)).collect();
        let healed = act(&world, &servers, &clients, &chance).await;
        let runs = servers.runs();
        let mut history = std::mem::take(&mut *servers.history());
        history.runs = runs;
        let mut violations = laws::check_runs(&history);
        if let Err(what) = healed {
            violations.push(laws::Violation { law: "healing", what });
        }
        Outcome::of(&world, violations, &history)
    })
}

async fn act(world: &SimWorld, servers: &Servers, clients: &[Client], chance: &Chance) -> Result<(), String> {
    for host in servers.voters() {
        servers.start(&host).await;
    }
    servers.bootstrap().await?;
    for host in servers.others() {
        servers.start(&host).await;
    }
    timeout(Duration::from_secs(60), clients[0].apply_tenants()).await.map_err(|_| "tenants could not be applied")?;
    load(world, servers, clients, chance, chance.between(4_000, 20_000)).await;
    let backup = servers.backup(chance).await?;
    load(world, servers, clients, chance, chance.between(10, 20_000)).await;

    for host in servers.voters() {
        servers.crash(&host).await;
        world.wipe(&host);
    }
    world.note(format_args!("the control nodes are lost"));
    disturb_agents(servers, chance).await;
    // Some runs find the tasks fenced already.
    sleep(Duration::from_millis(chance.between(10, if chance.between(0, 3) == 0 { 60_000 } else { 6_000 }))).await;
    // The clock of the only control node is the cluster's time: an operator sets it right first.
    world.skew_wall(VOTERS[0].1, 0);
    servers.restore(&backup).await?;
    world.note(format_args!("restored"));
    let by = Instant::now() + HEALING_MAX;
    let healing = async {
        let confirming = confirm(servers, &clients[1], chance, by);
        tokio::join!(confirming, disturb_agents(servers, chance)).0?;
        // What is submitted now is kept.
        let end = Instant::now() + Duration::from_secs(5);
        clients[2].submit_until(servers, end, by).await;
        while Instant::now() < by {
            match servers.unrest_after_restore() {
                None => return Ok(()),
                Some(_) => sleep(LOOK_AGAIN).await,
            }
        }
        Err(format!("not at rest {HEALING_MAX:?} after the restore: {:?}", servers.unrest_after_restore()))
    };
    // Copies of keys have suspended machines, and machines that have lost their folder have keys that nobody has pinned.
    tokio::select! {
        biased;
        healed = healing => healed,
        () = enroller::operate(&clients[0], servers, Instant::now()) => Ok(()),
    }
}

/// Submissions and faults for a while.
async fn load(world: &SimWorld, servers: &Servers, clients: &[Client], chance: &Chance, ms: u64) {
    let end = Instant::now() + Duration::from_millis(ms);
    let how = Rage { rest_ms_max: 6_000, fault_ms_max: 2_000, isolation_ms_max: 4_000 };
    let submitting = futures::future::join_all(clients.iter().map(|client| client.submit_until(servers, end, end)));
    tokio::join!(rage(world, servers, chance, how, end), submitting);
    world.set_links(LinkQuality::GOOD);
}

/// Agents are killed, and some lose their folders, while nobody or somebody who knows less tells them what to run.
async fn disturb_agents(servers: &Servers, chance: &Chance) {
    for number in 0..NODES {
        if chance.between(0, 4) > 0 {
            continue;
        }
        let node = format!("node-{number}");
        servers.crash(&node).await;
        if chance.between(0, 4) == 0 {
            servers.lose_folder(&node);
        }
        sleep(Duration::from_millis(chance.between(10, 3_000))).await;
        servers.start(&node).await;
    }
}

/// An operator who confirms some machines at a time, in any order, until nothing is open.
async fn confirm(servers: &Servers, client: &Client, chance: &Chance, by: Instant) -> Result<(), String> {
    let mut last = String::new();
    while Instant::now() < by {
        let names = match chance.between(0, 4) {
            0 => Vec::new(),
            1 => SHARDS.iter().map(|shard| format!("shard:{shard}")).collect(),
            _ => vec![format!("node:node-{}", chance.between(0, NODES as u64))],
        };
        let _ = ask(servers, client, v1::ConfirmRequest { names, dry_run: false, gone: false }).await;
        client.pause(3_000).await;
        match ask(servers, client, v1::ConfirmRequest { names: Vec::new(), dry_run: true, gone: false }).await {
            Some(review) if review.nodes.is_empty() && review.shards.is_empty() => return Ok(()),
            Some(review) => {
                // It has lost its folder, before the control nodes were lost or after it: here no two hosts have one name.
                if let Some(node) = review.nodes.iter().find(|node| !node.is_back && node.has_rival) {
                    let names = vec![format!("node:{}", node.name)];
                    let _ = ask(servers, client, v1::ConfirmRequest { names, dry_run: false, gone: true }).await;
                }
                last = format!("{:?}, shards {:?}", review.nodes, review.shards);
            }
            None => {}
        }
    }
    Err(format!("not clear {HEALING_MAX:?} after the restore: {last}"))
}

async fn ask(servers: &Servers, client: &Client, request: v1::ConfirmRequest) -> Option<v1::ConfirmReply> {
    let channel = client.host.net.dial(VOTERS[0].2, servers.identities.expect()).ok()?;
    let answer = timeout(ANSWER_MAX, MachinesClient::new(channel).confirm(request)).await;
    Some(answer.ok()?.ok()?.into_inner())
}

impl Servers {
    /// A backup by any control node that is up.
    async fn backup(&self, chance: &Chance) -> Result<Vec<u8>, String> {
        for _ in 0..200 {
            let (_, name, _) = VOTERS[chance.between(0, VOTERS.len() as u64) as usize];
            if let Some(consensus) = self.consensus_of(name)
                && let Some(bytes) = whole(&consensus, self.world.wall_ms()).await
            {
                return Ok(bytes);
            }
            sleep(LOOK_AGAIN).await;
        }
        Err("no control node made a backup".to_owned())
    }

    /// Makes the first control node's folder anew from a backup, and starts it.
    async fn restore(&self, bytes: &[u8]) -> Result<(), String> {
        let (id, name, _) = VOTERS[0];
        let host = self.world.boot(name);
        self.identities.provide(&host, Role::Control(id)).await.map_err(|error| error.to_string())?;
        let key_sha256 = match self.identities.transport() {
            Transport::Plain => None,
            Transport::Mutual | Transport::MutualOrPlain => {
                let own = Credentials::load(&*host.pki, &*host.files).map_err(|error| error.to_string())?;
                own.presented().map(|shown| shown.spki_sha256.0)
            }
        };
        let target = Target { id, address: self.endpoint_of(id), key_sha256, incarnation_above: 0 };
        let reader = Reader::open(std::io::Cursor::new(bytes.to_vec())).map_err(|error| error.to_string())?;
        let restoring = host.spawn({
            let host = host.clone();
            async move { backup::restore(&host, &target, reader).await }
        });
        let restored = restoring.await.map_err(|_| "the restoring host went down")?;
        restored.map_err(|error| format!("restore: {error}"))?;
        self.start_on(host).await;
        Ok(())
    }

    /// What is not yet done, by the state of the only control node and by the agents; nothing when all is at rest.
    fn unrest_after_restore(&self) -> Option<String> {
        let Some(consensus) = self.consensus_of(VOTERS[0].1) else { return Some("no control node".to_owned()) };
        let left = consensus.read(|state, _| {
            let jobs: Vec<String> =
                state.jobs.values().map(|job| format!("job {} {}", job.id, job.phase.word())).collect();
            (jobs, state.allocations.len())
        });
        let busy: Vec<String> = self.agents().into_iter().filter(|agent| !agent.contains("live_tasks: 0")).collect();
        (!left.0.is_empty() || left.1 > 0 || !busy.is_empty()).then(|| format!("{left:?}, {busy:?}"))
    }
}

async fn whole(consensus: &Consensus, wall_ms: u64) -> Option<Vec<u8>> {
    let mut backup = timeout(ANSWER_MAX, Backup::begin(consensus, wall_ms, true)).await.ok()?.ok()?;
    let mut bytes = Vec::new();
    while let Some(part) = backup.part().ok()? {
        bytes.extend(part);
    }
    Some(bytes)
}
