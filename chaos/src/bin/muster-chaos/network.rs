//! Hosts as network namespaces, joined by a bridge, and what goes wrong between them.
//!
//! What must stay true: rules stand in the namespaces of the hosts and name the other hosts, so clients on the bridge reach every host
//! whatever happens between hosts. Each network has addresses of its own: nothing is remembered from the one before.

use crate::tools::{output, run};
use anyhow::Result;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

static NUMBER: AtomicU8 = AtomicU8::new(0);

/// A bridge with its hosts, numbered from 1. Gone when dropped.
pub(crate) struct Network {
    number: u8,
    hosts: u8,
}

impl Network {
    /// Makes it.
    ///
    /// # Errors
    /// When the kernel refuses any part of it.
    pub(crate) fn new(hosts: u8) -> Result<Network> {
        // 250 networks in one run are enough; then addresses come again.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) % 250;
        let network = Network { number, hosts };
        let bridge = network.bridge();
        run("ip", &["link", "add", &bridge, "type", "bridge"])?;
        run("ip", &["addr", "add", &format!("10.77.{number}.254/24"), "dev", &bridge])?;
        run("ip", &["link", "set", &bridge, "up"])?;
        for host in network.all() {
            let (name, link) = (network.namespace(host), network.link(host));
            run("ip", &["netns", "add", &name])?;
            run("ip", &["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
            run("ip", &["link", "set", &link, "master", &bridge, "up"])?;
            run("ip", &["-n", &name, "addr", "add", &format!("{}/24", network.address(host)), "dev", "eth0"])?;
            run("ip", &["-n", &name, "link", "set", "eth0", "up"])?;
            run("ip", &["-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(network)
    }

    /// The numbers of all hosts.
    pub(crate) fn all(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.hosts
    }

    /// A host's address.
    pub(crate) fn address(&self, host: u8) -> String {
        format!("10.77.{}.{host}", self.number)
    }

    fn namespace(&self, host: u8) -> String {
        format!("n{}h{host}", self.number)
    }

    fn link(&self, host: u8) -> String {
        format!("n{}h{host}", self.number)
    }

    fn bridge(&self) -> String {
        format!("chaos{}", self.number)
    }

    /// A command that runs on a host. The process keeps its number: `nsenter` becomes the program.
    pub(crate) fn on(&self, host: u8) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace(host)));
        command
    }

    fn iptables(&self, host: u8, rule: &[&str]) -> Result<()> {
        let namespace = format!("--net=/run/netns/{}", self.namespace(host));
        let mut arguments = vec![namespace.as_str(), "iptables", "-w"];
        arguments.extend(rule);
        output("nsenter", &arguments).map(|_| ())
    }

    /// Nothing that `from` sends arrives at `to`.
    pub(crate) fn cut_one_way(&self, from: u8, to: u8) -> Result<()> {
        self.iptables(to, &["-A", "INPUT", "-s", &self.address(from), "-j", "DROP"])
    }

    /// Neither hears the other.
    pub(crate) fn cut(&self, a: u8, b: u8) -> Result<()> {
        self.cut_one_way(a, b)?;
        self.cut_one_way(b, a)
    }

    /// Each packet between any two hosts is lost with this probability, in percent.
    pub(crate) fn lose(&self, percent: u32) -> Result<()> {
        let probability = format!("{:.2}", f64::from(percent) / 100.0);
        for to in self.all() {
            for from in self.all().filter(|from| *from != to) {
                let from = self.address(from);
                let rule = [
                    "-A",
                    "INPUT",
                    "-s",
                    &from,
                    "-m",
                    "statistic",
                    "--mode",
                    "random",
                    "--probability",
                    &probability,
                    "-j",
                    "DROP",
                ];
                self.iptables(to, &rule)?;
            }
        }
        Ok(())
    }

    /// Packets of more than so many bytes between any two hosts are lost, as on a path whose largest packet is smaller than its ends believe.
    pub(crate) fn lose_large(&self, bytes: u32) -> Result<()> {
        let lengths = format!("{}:65535", bytes + 1);
        for to in self.all() {
            for from in self.all().filter(|from| *from != to) {
                let from = self.address(from);
                self.iptables(to, &["-A", "INPUT", "-s", &from, "-m", "length", "--length", &lengths, "-j", "DROP"])?;
            }
        }
        Ok(())
    }

    /// Every host sends at most this many Mbit/s, over a queue of 50 ms.
    pub(crate) fn slow_down(&self, mbit_s: u32) -> Result<()> {
        for host in self.all() {
            let (name, rate) = (self.namespace(host), format!("{mbit_s}mbit"));
            run(
                "tc",
                &[
                    "-n", &name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", &rate, "burst", "64kb",
                    "latency", "50ms",
                ],
            )?;
        }
        Ok(())
    }

    /// Every cut and every loss ends. Slow links stay slow.
    pub(crate) fn heal(&self) -> Result<()> {
        self.all().try_for_each(|host| self.iptables(host, &["-F"]))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // What stays in spite of this goes with the run's own namespace.
        for host in self.all() {
            let _ = run("ip", &["link", "del", &self.link(host)]);
            let _ = run("ip", &["netns", "del", &self.namespace(host)]);
        }
        let _ = run("ip", &["link", "del", &self.bridge()]);
    }
}
