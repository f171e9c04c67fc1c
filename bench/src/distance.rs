//! Distance between voters on one machine: a relay in front of each voter, which delays what goes through it by where it comes from.
//!
//! Members of a cluster have one address each, which all others dial, so a relay finds out who dials it: the connection's other end belongs
//! to a process, which is a voter. What must stay true: bytes arrive in order, half a round trip after they were sent, however many there are;
//! a relay whose voter is gone closes what is open. Not imitated: that a connection sends little at first, and that packets are lost.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

/// Bytes of one piece; so many pieces are under way: 16 MB each way of a connection.
const PIECE_BYTES: usize = 16 << 10;
const PIECES: usize = 1_024;
/// A process that dials has its socket at once; its entry in /proc is read again if it is not there yet.
const LOOKS: u32 = 20;
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Which region each process is in.
#[derive(Clone, Debug, Default)]
pub struct Map(Arc<Mutex<BTreeMap<u32, usize>>>);

impl Map {
    /// The process `pid` is in `region`.
    pub fn set(&self, pid: u32, region: usize) {
        self.locked().insert(pid, region);
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, usize>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Where the other end of a connection is.
    fn region_of(&self, other: SocketAddr) -> Option<usize> {
        let inode = inode_of(other)?;
        let known: Vec<(u32, usize)> = self.locked().iter().map(|(pid, region)| (*pid, *region)).collect();
        known.into_iter().find(|(pid, _)| has_socket(*pid, &inode)).map(|(_, region)| region)
    }
}

/// The socket with this local address, as /proc names it.
fn inode_of(local: SocketAddr) -> Option<String> {
    let SocketAddr::V4(local) = local else { return None };
    let address = format!("{:08X}:{:04X}", u32::from_le_bytes(local.ip().octets()), local.port());
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let mut fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.find(|of| of.get(1) == Some(&address.as_str())).and_then(|of| of.get(9).map(|inode| (*inode).to_owned()))
}

fn has_socket(pid: u32, inode: &str) -> bool {
    let wanted = format!("socket:[{inode}]");
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|one| std::fs::read_link(one.path()).is_ok_and(|to| to == Path::new(&wanted)))
}

/// Relays what comes to `listener` to the voter at `to`, in `region`; other regions are `round_trip` away. Runs until it is dropped.
pub async fn relay(listener: TcpListener, to: SocketAddr, region: usize, round_trip: Duration, map: Map) {
    let mut open = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, other)) = accepted {
                let map = map.clone();
                open.spawn(async move {
                    // Whoever dialled sees that it is closed.
                    let _ = one(stream, other, to, region, round_trip, &map).await;
                });
            },
            Some(_ended) = open.join_next(), if !open.is_empty() => {}
        }
    }
}

async fn one(
    from: TcpStream,
    other: SocketAddr,
    to: SocketAddr,
    region: usize,
    round_trip: Duration,
    map: &Map,
) -> Result<()> {
    let mut found = None;
    for _ in 0..LOOKS {
        found = map.region_of(other);
        if found.is_some() {
            break;
        }
        sleep(LOOK_PAUSE).await;
    }
    let there = found.context("a process that is no voter dials a relay")?;
    let one_way = if there == region { Duration::ZERO } else { round_trip / 2 };
    // The handshake is a round trip of its own.
    sleep(one_way * 2).await;
    let to = TcpStream::connect(to).await?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    // Whichever direction ends, both do.
    tokio::select! {
        () = carry(from_read, to_write, one_way) => {}
        () = carry(to_read, from_write, one_way) => {}
    }
    Ok(())
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one_way: Duration) {
    let (sent, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let reads = async move {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            match from.read(&mut piece).await {
                Ok(count) if count > 0 => {
                    piece.truncate(count);
                    if sent.send((Instant::now() + one_way, piece)).await.is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    };
    let writes = async move {
        while let Some((at, piece)) = arriving.recv().await {
            if one_way > Duration::ZERO {
                sleep_until(at).await;
            }
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reads, writes);
}
