//! Attempt 14: ports, sockets, pipes and channels of neighbours, the control plane and the agent.

use super::{Cage, perl};

/// Connects to a port of this machine, with a protocol.
fn connect(port: &str, address: &str, protocol: &str) -> String {
    let before = format!("socket(my $s, PF_INET, SOCK_STREAM, {protocol}) or exit 1");
    perl(&before, &format!("connect($s, sockaddr_in({port}, inet_aton(\"{address}\")))"))
}

fn listen(port: &str) -> String {
    perl(
        "socket(my $s, PF_INET, SOCK_STREAM, 0); setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1)",
        &format!("bind($s, sockaddr_in({port}, INADDR_ANY))"),
    )
}

/// On the network of the node, each job has ports that others neither reach nor take.
#[test]
fn attempt_14_ports_sockets_and_channels_of_a_job_are_its_own() {
    let Some(cage) = Cage::start() else { return };
    let serve = "use Socket; socket(S, PF_INET, SOCK_STREAM, 0); setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1); \
                 bind(S, sockaddr_in($ENV{MASTER_PORT}, INADDR_ANY)) or die; listen(S, 9); $| = 1; print \"$ENV{MASTER_PORT} $ENV{MUSTER_PORTS}\\n\"; \
                 while (accept(C, S)) { print C \"rank 0\\n\"; close C }";
    // Rank 1 reaches rank 0 of its own gang.
    let dial = "sleep 0.1; use Socket; for (1..100) { socket(S, PF_INET, SOCK_STREAM, 0); if (connect(S, sockaddr_in($ENV{MASTER_PORT}, inet_aton(\"127.0.0.1\")))) \
                { $| = 1; print scalar <S>; sleep 600 } select(undef, undef, undef, 0.1) } die";
    let script = format!("if [ $RANK = 0 ]; then exec perl -e '{serve}'; else exec perl -e '{dial}'; fi");
    let gang = cage.submit("alpha", &["--tasks", "2"], &script);
    cage.site.until_job(&gang, "running");
    let said = cage
        .site
        .until("rank 0 to listen", || Some(cage.site.said(&["logs", &gang])).filter(|said| said.ends_with('\n')));
    cage.site
        .until("rank 1 to be served", || (cage.site.said(&["logs", &gang, "--rank", "1"]) == "rank 0\n").then_some(()));
    let (port, ports) = said.trim().split_once(' ').expect("a port and its block");
    let (first, last) = ports.split_once('-').expect("a block");
    assert!((20_000..29_500).contains(&port.parse::<u32>().expect("a port")) && port == first, "{said}");
    cage.all_fail(&[
        ("alpha's port", connect(port, "127.0.0.1", "0")),
        ("alpha's port by another address", connect(port, "127.0.0.2", "0")),
        (
            "alpha's port by any address of the node",
            format!("for at in $(hostname -I); do {}; done", connect(port, "$at", "0").replace("exec ", "")),
        ),
        ("alpha's port by another protocol", connect(port, "127.0.0.1", "262")),
        ("a free port of alpha's", listen(last)),
        ("a port of the next job", listen("$ENV{MASTER_PORT} + 16")),
        ("the MPS servers", "ls /run | grep mps || ls /tmp/nvidia-mps".to_owned()),
        ("a channel of an NVLink domain", "ls /dev/nvidia-caps-imex-channels".to_owned()),
        ("cards of the network", "ls /dev/infiniband".to_owned()),
    ]);
    // What is nobody's is reached as before, and its own ports are its own.
    let own = cage.says("beta", &[], &format!("echo $MUSTER_PORTS; {}", listen("$ENV{MASTER_PORT}")));
    assert_ne!(own.trim(), ports, "{own}");
    let endpoint = cage.site.endpoint().rsplit(':').next().expect("a port").to_owned();
    cage.says("beta", &[], &connect(&endpoint, "127.0.0.1", "0"));
    assert_eq!(cage.site.job(&gang)["state"], "running");
}

/// With a network of its own, a task reaches nothing: neither the control plane nor the agent.
#[test]
fn attempt_14_a_private_network_has_nobody_else_in_it() {
    let Some(cage) = Cage::of("name: default\nisolation: full\n", &["--http", "127.0.0.1:0"]) else { return };
    let endpoint = cage.site.endpoint().rsplit(':').next().expect("a port").to_owned();
    let listens = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = listens.local_addr().expect("bound").port().to_string();
    cage.all_fail(&[
        ("the control plane", connect(&endpoint, "127.0.0.1", "0")),
        ("a service of the node", connect(&port, "127.0.0.1", "0")),
        ("a service of another machine", connect("53", "10.0.0.1", "0")),
        (
            "an interface",
            "[ $(ls /sys/class/net | wc -l) != $(ls /sys/class/net | wc -l) ] || grep -v lo: /proc/net/dev | grep :"
                .to_owned(),
        ),
    ]);
    let serve = listen("$ENV{MASTER_PORT}");
    let said = cage.says("beta", &[], &format!("echo $MASTER_ADDR $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME; {serve}"));
    assert_eq!(said, "127.0.0.1 lo lo\n");
    // Ranks of one node have it together; a job that may need several nodes is refused.
    let dial = "use Socket; for (1..100) { socket(S, PF_INET, SOCK_STREAM, 0); exit 0 if connect(S, sockaddr_in($ENV{MASTER_PORT}, inet_aton($ENV{MASTER_ADDR}))); \
                select(undef, undef, undef, 0.1) } exit 1";
    let serve = "use Socket; socket(S, PF_INET, SOCK_STREAM, 0); bind(S, sockaddr_in($ENV{MASTER_PORT}, INADDR_ANY)) or die; listen(S, 9); accept(C, S); exit 0";
    let script = format!("if [ $RANK = 0 ]; then exec perl -e '{serve}'; else exec perl -e '{dial}'; fi");
    let gang = cage.submit("beta", &["--tasks", "2", "--topology", "node"], &script);
    let job = cage.over(&gang);
    assert_eq!(job["state"], "completed", "{job}");
    let refused = cage.site.muster(&["submit", "--tenant", "beta", "--gpus", "1", "--tasks", "2", "--", "true"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("does not allow jobs on several nodes (network: private)"), "{said}");
}
