//! Attempt 12: what the kernel would do for a program that asks.

use super::{Cage, perl};

/// Each call by its number on this kind of machine, with arguments that would be good.
#[test]
#[cfg(target_arch = "x86_64")]
fn attempt_12_a_task_becomes_no_other_user_and_reaches_no_part_of_the_kernel_that_it_does_not_need() {
    let Some(cage) = Cage::start() else { return };
    let call = |number: u32, arguments: &str| perl("", &format!("syscall({number}, {arguments}) >= 0"));
    cage.all_fail(&[
        ("root by a program of the host", "su -c true || setpriv --reuid 0 true || sudo -n true".to_owned()),
        ("root by a set-uid file", "cp /bin/sh mine && chmod 4777 mine && [ $(./mine -p -c 'id -u') = 0 ]".to_owned()),
        (
            "another user by a set-uid file in memory",
            "cp /usr/bin/id /dev/shm/mine && chmod 6777 /dev/shm/mine && [ $(/dev/shm/mine -u) != $(id -u) ]"
                .to_owned(),
        ),
        ("root by a call", call(105, "0")),
        ("a user namespace", "unshare -U true".to_owned()),
        ("a user namespace by clone", call(56, "0x10000000 | 17, 0, 0, 0, 0")),
        ("a user namespace by clone3", call(435, "pack(\"Q8\", 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64")),
        ("a mount", "mount -t tmpfs none $HOME".to_owned()),
        ("io_uring", call(425, "8, \"\\0\" x 120")),
        ("BPF", call(321, "0, \"\\0\" x 72, 72")),
        ("keys", call(250, "0, -3, 1")),
        ("a key", call(248, "\"user\", \"name\", \"value\", 5, -3")),
        ("counters of the kernel", call(298, "pack(\"LLQ\", 1, 112, 0) . \"\\0\" x 96, 0, -1, -1, 0")),
        ("page faults", call(323, "0")),
        ("a file by its handle", call(304, "-100, pack(\"LL\", 8, 1) . \"\\0\" x 8, 0")),
        ("the clock", "date -s 2001-01-01".to_owned()),
        ("a module", call(175, "\"x\", 1, \"\"")),
        ("swap", call(167, "\"/tmp/none\", 0")),
        ("the log of the kernel", "dmesg | grep . || cat /dev/kmsg || cat /proc/kmsg".to_owned()),
        ("the host's name", "hostname escaped".to_owned()),
        ("input for the terminal", perl("", "ioctl(STDIN, 0x5412, \"x\")")),
        ("more than its limits", "ulimit -Hn 1000000 && ulimit -Sn 1000000".to_owned()),
    ]);
    // What new programs try first and do without is "not implemented", so that they do.
    let said =
        cage.says("beta", &[], "perl -e 'syscall(425, 8, 0); print $!+0, \" \"; syscall(435, 0, 0); print $!+0'");
    assert_eq!(said, "38 38");
    let said = cage.says(
        "beta",
        &[],
        "id -u; grep -E 'NoNewPrivs|Seccomp:|CapBnd|CapEff' /proc/self/status | tr -d '\\t' | tr '\\n' ' '; ulimit -c",
    );
    assert!(said.contains("NoNewPrivs:1") && said.contains("Seccomp:2") && said.ends_with(" 0\n"), "{said}");
    assert_eq!(said.matches(":0000000000000000").count(), 2, "no capabilities: {said}");
    assert!(
        said.lines().next().is_some_and(|user| user.parse::<u32>().is_ok_and(|user| user >= 2_000_000_000)),
        "{said}"
    );
}
