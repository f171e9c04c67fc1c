//! What an experiment needs of this machine, found out by doing it.
//!
//! What must stay true: the answer for a lacking tool names the tool and what it is for, so that a reader of the table can install it.

use crate::disk;
use crate::tools::{faketime_library, run};
use anyhow::{Context, Result};

/// Something an experiment needs of the machine, beside root and namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// Rules that drop packets.
    Iptables,
    /// A queue that holds a link to a bandwidth.
    Shaping,
    /// ext4 on a loop device.
    Loop,
    /// Errors and delays of system calls.
    Strace,
    /// A wall clock of one process's own.
    Faketime,
}

impl Need {
    /// Whether it is there; otherwise what lacks.
    pub(crate) fn check(self) -> Result<(), String> {
        let tried = match self {
            Need::Iptables => run(
                "iptables",
                &[
                    "-w",
                    "-A",
                    "INPUT",
                    "-s",
                    "192.0.2.1",
                    "-m",
                    "statistic",
                    "--mode",
                    "random",
                    "--probability",
                    "0.5",
                    "-j",
                    "DROP",
                ],
            ),
            Need::Shaping => try_shaping(),
            Need::Loop => disk::try_one(),
            Need::Strace => run("strace", &["-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO", "true"]),
            Need::Faketime => faketime_library().map(|_| ()).context("libfaketime is not installed"),
        };
        tried.map_err(|error| format!("{}: {error:#}", self.what()))
    }

    fn what(self) -> &'static str {
        match self {
            Need::Iptables => "cannot make packet loss or partitions (package iptables)",
            Need::Shaping => "cannot make slow links (package iproute2, kernel with sch_tbf)",
            Need::Loop => "cannot make separate disks (package e2fsprogs, loop devices)",
            Need::Strace => "cannot inject disk errors (package strace, permission to trace)",
            Need::Faketime => "cannot set wrong clocks (package faketime)",
        }
    }
}

fn try_shaping() -> Result<()> {
    run("ip", &["link", "add", "try0", "type", "veth", "peer", "name", "try1"])?;
    let tried = run(
        "tc",
        &["qdisc", "add", "dev", "try0", "root", "tbf", "rate", "100mbit", "burst", "64kb", "latency", "50ms"],
    );
    run("ip", &["link", "del", "try0"])?;
    tried
}
