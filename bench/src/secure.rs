//! What TLS costs: handshakes, memory of a connection, and messages, with the settings of the seam and without a network.
//!
//! Both sides run on one thread, so a figure is what both processors together spend. The anchors are those of the trial that the design
//! of the security was based on.

use crate::process;
use crate::table::{Row, Table, percentile};
use anyhow::{Context, Result, ensure};
use muster_runtime::pki::{LocalAuthorities, Role};
use muster_runtime::real;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes under way between the two sides: more than any flight of a handshake, and than a large message.
const WIRE_BYTES: usize = 64 << 10;
/// Rounds in which figures are taken; the middle one counts.
const ROUNDS: usize = 9;
/// Messages of a round.
const MESSAGES: u32 = 2_000;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Handshakes of each kind in a round.
    pub handshakes: u32,
    /// Connections that are held at once.
    pub connections: u32,
}

/// Two sides that have met.
struct Pair {
    client: ClientConnection,
    server: ServerConnection,
}

struct Sides {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// Measures, and gives the table.
///
/// # Errors
/// When a handshake fails, or is of another kind than it should be.
pub fn run(options: Options) -> Result<Vec<Table>> {
    let folder = std::env::temp_dir().join(format!("muster-bench-secure-{}", std::process::id()));
    // Nothing is written there.
    let host = real::host("bench", folder);
    let authorities = LocalAuthorities::new(host.pki.clone(), "bench", [1], host.clock.wall_ms())?;
    let credentials = authorities.machine(Role::Control(1))?;
    let sides = || -> Result<Sides> {
        let (server, client) = real::tls_settings(&credentials, &host.certificate_clock)?;
        Ok(Sides { server, client })
    };

    let full = handshakes(options.handshakes, HandshakeKind::Full, || {
        let (server, client) = real::tls_settings(&credentials, &host.certificate_clock)?;
        Ok(Sides { server, client })
    })?;
    let reused = sides()?;
    meet(&reused)?;
    let resumed = handshakes(options.handshakes, HandshakeKind::Resumed, || {
        Ok(Sides { server: Arc::clone(&reused.server), client: Arc::clone(&reused.client) })
    })?;
    let bytes = memory(&reused, options.connections)?;
    let mut pair = meet(&reused)?;
    let (small, large) = (messages(&mut pair, 256)?, messages(&mut pair, 16 << 10)?);
    let per_s = |time: Duration| format!("{time:.1?} ({:.0}/s)", 1.0 / time.as_secs_f64());
    let rows = vec![
        Row::new("full handshake, both certificates, both sides", per_s(full), "trial: 1.0-1.2 ms", "no more"),
        Row::new("resumed handshake, both sides", per_s(resumed), "trial: 0.27 ms", "no more"),
        Row::new(
            format!("memory of a connection, one side of {}", options.connections),
            format!("{:.1} KiB", bytes as f64 / 1_024.0),
            "trial: 8.5 KiB",
            "no more",
        ),
        Row::new("seal and open 256 B", format!("{small:.2?}"), "trial: 0.6 us", "no more"),
        Row::new("seal and open 16 KiB", format!("{large:.2?}"), "trial: 10 us", "no more"),
    ];
    Ok(vec![Table::new("What TLS 1.3 with both certificates costs (one thread, no network)", rows)])
}

/// The middle of several rounds.
fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let nanos: Vec<u64> = times.iter().map(|time| time.as_nanos() as u64).collect();
    Duration::from_nanos(percentile(&nanos, 0.5))
}

fn handshakes(count: u32, kind: HandshakeKind, sides: impl Fn() -> Result<Sides>) -> Result<Duration> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut spent = Duration::ZERO;
        for _ in 0..count {
            let sides = sides()?;
            let began = Instant::now();
            let pair = meet(&sides)?;
            spent += began.elapsed();
            ensure!(pair.server.handshake_kind() == Some(kind), "a handshake was not {kind:?}");
            ensure!(pair.server.peer_certificates().is_some_and(|chain| chain.len() == 2), "no certificate was shown");
        }
        rounds.push(spent / count.max(1));
    }
    Ok(middle(rounds))
}

fn meet(sides: &Sides) -> Result<Pair> {
    let name = ServerName::try_from("bench").context("a name")?;
    let mut client = ClientConnection::new(Arc::clone(&sides.client), name)?;
    let mut server = ServerConnection::new(Arc::clone(&sides.server))?;
    let mut wire = Vec::with_capacity(WIRE_BYTES);
    while client.wants_write() || server.wants_write() {
        while client.wants_write() {
            client.write_tls(&mut wire)?;
        }
        take(&mut server, &mut wire)?;
        while server.wants_write() {
            server.write_tls(&mut wire)?;
        }
        take_client(&mut client, &mut wire)?;
    }
    ensure!(!client.is_handshaking() && !server.is_handshaking(), "the handshake has not ended");
    Ok(Pair { client, server })
}

fn take(server: &mut ServerConnection, wire: &mut Vec<u8>) -> Result<()> {
    let mut rest = wire.as_slice();
    while !rest.is_empty() {
        server.read_tls(&mut rest)?;
        server.process_new_packets()?;
    }
    wire.clear();
    Ok(())
}

fn take_client(client: &mut ClientConnection, wire: &mut Vec<u8>) -> Result<()> {
    let mut rest = wire.as_slice();
    while !rest.is_empty() {
        client.read_tls(&mut rest)?;
        client.process_new_packets()?;
    }
    wire.clear();
    Ok(())
}

/// Bytes of one side of a connection: what the process grows by while many are held, halved.
fn memory(sides: &Sides, connections: u32) -> Result<u64> {
    // What the first ones set up for all is not theirs.
    let warm: Vec<Pair> = (0..64).map(|_| meet(sides)).collect::<Result<_>>()?;
    let own = i32::try_from(std::process::id())?;
    let before = process::Used::of(own)?.rss_kib;
    let held: Vec<Pair> = (0..connections).map(|_| meet(sides)).collect::<Result<_>>()?;
    let grown = process::Used::of(own)?.rss_kib.saturating_sub(before) * 1_024;
    drop((warm, held));
    Ok(grown / u64::from(connections.max(1)) / 2)
}

/// Seals and opens a message of so many bytes.
fn messages(pair: &mut Pair, bytes: usize) -> Result<Duration> {
    let message = vec![7; bytes];
    let mut opened = vec![0; bytes];
    let mut wire = Vec::with_capacity(WIRE_BYTES);
    let mut rounds = Vec::new();
    let client = &mut pair.client;
    client.set_buffer_limit(None);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..MESSAGES {
            client.writer().write_all(&message)?;
            while client.wants_write() {
                client.write_tls(&mut wire)?;
            }
            let mut rest = wire.as_slice();
            let mut got = 0;
            while !rest.is_empty() {
                pair.server.read_tls(&mut rest)?;
                pair.server.process_new_packets()?;
                while got < bytes {
                    match pair.server.reader().read(&mut opened[got..]) {
                        Ok(more) => got += more,
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            ensure!(got == bytes, "{got} of {bytes} bytes came");
            wire.clear();
        }
        rounds.push(began.elapsed() / MESSAGES);
    }
    Ok(middle(rounds))
}
