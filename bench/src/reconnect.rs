//! Every agent of a fleet at once at the port of a control node that has come back: TLS with both certificates, each from an address of its own.
//!
//! The endpoint is the product's own, with its bounds on handshakes and waiting connections; the agents come again as real ones do, and each is through
//! when the endpoint has accepted it and speaks HTTP/2. Both sides share this machine's processors, so the figure is what both spend together.

use crate::process;
use crate::table::{Row, Table, percentile};
use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use muster_runtime::pki::{Admit, LocalAuthorities, NotAdmitted, PeerIdentity, Role};
use muster_runtime::{Admission, Chance, real};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

/// What opens an HTTP/2 connection: the preface, and empty settings.
const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// As agents wait between two tries: half to all of a wait that doubles from the first to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// One try.
const TRY_WITHIN: Duration = Duration::from_secs(5);

/// Lets in every machine of the cluster.
struct Everybody;

impl Admit for Everybody {
    fn admit(&self, _: &PeerIdentity, _: &str) -> Result<(), NotAdmitted> {
        Ok(())
    }
}

/// Measures, and gives the table.
///
/// # Errors
/// When a port, a certificate or an agent fails.
pub async fn run(agents: u32) -> Result<Vec<Table>> {
    let folder = tempfile::tempdir().context("a folder")?;
    let host = real::host("control-1", folder.path());
    let authorities = LocalAuthorities::new(host.pki.clone(), "bench", [1], host.clock.wall_ms())?;
    host.net.set_credentials(Some(authorities.machine(Role::Control(1))?))?;
    let stop = CancellationToken::new();
    let routes = tonic::service::Routes::default();
    let serving = host.net.serve("127.0.0.1:0", routes, Admission::mutual(Arc::new(Everybody)), stop.clone()).await?;
    let to: SocketAddr = serving.endpoint.parse().context("the address")?;
    let mut configs = Vec::new();
    for agent in 0..agents {
        let credentials = authorities.machine(Role::Node(format!("gpu-{agent:05}")))?;
        configs.push(real::tls_settings(&credentials, &host.certificate_clock)?.1);
    }
    let own = i32::try_from(std::process::id())?;
    let before_kib = process::Used::of(own)?.rss_kib;
    let began = Instant::now();
    let all = configs.into_iter().zip(0_u32..).map(|(config, agent)| {
        let chance = host.chance.clone();
        tokio::spawn(async move { come(config, agent, to, &chance, began).await })
    });
    let mut came = Vec::new();
    for agent in join_all(all).await {
        came.push(agent??);
    }
    let took = began.elapsed();
    let grown = process::Used::of(own)?.rss_kib.saturating_sub(before_kib) * 1_024;
    let mut times: Vec<u64> = came.iter().map(|one| one.after.as_nanos() as u64).collect();
    times.sort_unstable();
    let tries: u32 = came.iter().map(|one| one.tries).sum();
    stop.cancel();
    let at = |part: f64| format!("{:.2?}", Duration::from_nanos(percentile(&times, part)));
    let rows = vec![
        Row::new(
            format!("{agents} agents at once: all are through after"),
            format!("{took:.2?}"),
            "-",
            "disconnect grace: 10 min",
        ),
        Row::new("an agent is through after, p50 / p99", format!("{} / {}", at(0.5), at(0.99)), "-", "-"),
        Row::new("connections a second", format!("{:.0}", f64::from(agents) / took.as_secs_f64()), "-", "-"),
        Row::new("tries of an agent, mean", format!("{:.2}", f64::from(tries) / f64::from(agents.max(1))), "-", "-"),
        Row::new(
            "memory of a connection, both sides",
            format!("{:.1} KiB", grown as f64 / 1_024.0 / f64::from(agents.max(1))),
            "-",
            "-",
        ),
    ];
    drop(came);
    host.tasks.abort_all();
    Ok(vec![Table::new("Agents that reconnect at once, TLS with both certificates (both sides on this machine)", rows)])
}

/// An agent that is through.
struct Came {
    after: Duration,
    tries: u32,
    /// Held until all are.
    _connection: tokio_rustls::client::TlsStream<tokio::net::TcpStream>,
}

async fn come(config: Arc<ClientConfig>, agent: u32, to: SocketAddr, chance: &Chance, began: Instant) -> Result<Came> {
    let from = SocketAddr::from((Ipv4Addr::from(Ipv4Addr::new(127, 1, 0, 1).to_bits() + agent), 0));
    let (mut pause, mut tries) = (BACKOFF.0, 0);
    loop {
        tries += 1;
        if let Ok(Ok(connection)) = tokio::time::timeout(TRY_WITHIN, once(&config, from, to)).await {
            return Ok(Came { after: began.elapsed(), tries, _connection: connection });
        }
        ensure!(tries < 1_000, "agent {agent} does not come through");
        let full_ms = u64::try_from(pause.as_millis())?;
        tokio::time::sleep(Duration::from_millis(chance.between(full_ms / 2, full_ms + 1))).await;
        pause = (pause * 2).min(BACKOFF.1);
    }
}

async fn once(
    config: &Arc<ClientConfig>,
    from: SocketAddr,
    to: SocketAddr,
) -> Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(from)?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("control-1")?;
    let mut stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
    stream.write_all(OPENING).await?;
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).await?;
    ensure!(answer[3] == 4, "settings were expected first");
    Ok(stream)
}
