//! Attempts 7, 8 and 9: devices of the host and of neighbours, and the configuration of MIG. The double of NVIDIA's driver has no devices behind their numbers: the kernel says
//! "no such device" of those that a task may open, and "not permitted" of those that it may not.

use super::Cage;

const NO_DEVICE: &str = "No such device or address";

/// Attempt 7.
#[test]
fn attempt_07_a_task_opens_and_makes_no_device_but_its_own() {
    let Some(cage) = Cage::start() else { return };
    let victim = cage.victim();
    let device = cage.site.path("device");
    let number = nix::sys::stat::makedev(1, 1);
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
    nix::sys::stat::mknod(&device, nix::sys::stat::SFlag::S_IFCHR, mode, number).expect("root makes devices");
    std::fs::set_permissions(&device, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("its own");
    let device = device.display().to_string();
    cage.all_fail(&[
        ("a device that lies in a folder", format!("head -c 1 {device} || cat {device}")),
        ("the same for writing", format!("echo x > {device}")),
        (
            "a card that it makes",
            "mknod card c 195 0 || mknod /tmp/card c 195 0 || mknod /dev/shm/card c 195 0".to_owned(),
        ),
        ("a disk that it makes", "mknod disk b 254 0 || mknod /tmp/disk b 254 0".to_owned()),
        (
            "devices behind other roots",
            "cat /proc/*/root/dev/mem || ls /proc/1/root/dev/ || head -c 1 /proc/1/root/dev/vda".to_owned(),
        ),
        (
            "memory, messages and disks",
            "head -c 1 /dev/mem || head -c 1 /dev/kmsg || head -c 1 /dev/vda || head -c 1 /dev/sda".to_owned(),
        ),
        ("another device file system", "mount -t devtmpfs none /tmp".to_owned()),
        ("a console", "echo x > /dev/console || echo x > /dev/tty0 || echo x > /dev/ttyS0".to_owned()),
        ("its list", "echo 'a *:* rwm' > /sys/fs/cgroup/devices/devices.allow".to_owned()),
    ]);
    let seen = cage.says("beta", &[], "ls /dev | tr '\\n' ' '");
    assert_eq!(seen, "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ");
    victim.is_well(&cage);
}

/// Attempt 8: what a task says of devices in its environment is no permission.
#[test]
fn attempt_08_variables_open_no_other_card() {
    let Some(cage) = Cage::of("name: default\nisolation: full\nnetwork: host\n", &["--gpus", "double"]) else { return };
    let refused = cage.site.muster(&[
        "submit",
        "--tenant",
        "beta",
        "--gpus",
        "1",
        "--env",
        "CUDA_VISIBLE_DEVICES=all",
        "--",
        "true",
    ]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("CUDA_VISIBLE_DEVICES"), "Muster sets it");
    let held = cage.submit("alpha", &[], "exec sleep 600");
    cage.site.until_job(&held, "running");
    let all = [
        "--env",
        "NVIDIA_VISIBLE_DEVICES=all",
        "--env",
        "NVIDIA_DRIVER_CAPABILITIES=all",
        "--env",
        "GPU_DEVICE_ORDINAL=0",
    ];
    let script = "export LC_ALL=C CUDA_VISIBLE_DEVICES=all; ls /dev | grep nvidia | tr '\\n' ' '; echo; \
                  for at in /dev/nvidia*; do { : < $at; } 2>&1 | sed 's/.*: //'; done; \
                  for minor in 0 1 2 3 4 5 6 7 254; do mknod n$minor c 195 $minor 2>/dev/null && echo made; done; \
                  cat $(ls -d /proc/driver/nvidia/params 2>/dev/null) < /dev/null";
    let said = cage.says("beta", &all, script);
    let mut lines = said.lines();
    let own: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let cards: Vec<&&str> =
        own.iter().filter(|name| name.trim_start_matches("nvidia").parse::<u32>().is_ok()).collect();
    assert_eq!(cards.len(), 1, "its own card alone: {said}");
    assert!(own.contains(&"nvidiactl") && own.contains(&"nvidia-uvm"), "{said}");
    assert!(!said.contains("made"), "{said}");
    assert_eq!(lines.filter(|line| *line == NO_DEVICE).count(), own.len(), "it may open what is there: {said}");
}

/// Attempt 9.
#[test]
fn attempt_09_a_slice_configures_and_watches_no_mig() {
    let Some(cage) = Cage::of("name: default\nisolation: full\nnetwork: host\n", &["--gpus", "double"]) else { return };
    let slice = |tenant: &str, script: &str| {
        let id = cage.site.submit_as(tenant, &["--mig", "1g.10gb", "--", "sh", "-c", script]);
        cage.site.until(&format!("job {id}"), || {
            let state = cage.site.job(&id)["state"].clone();
            (state == "running" || state == "completed").then_some(())
        });
        id
    };
    let held = slice("alpha", "ls /dev/nvidia-caps; exec sleep 600");
    let own = cage.site.until("alpha's capabilities", || {
        let said = cage.site.said(&["logs", &held]);
        (said.lines().count() == 2).then_some(said)
    });
    let script = "export LC_ALL=C; ls /dev/nvidia-caps; for at in /dev/nvidia-caps/*; do { : < $at; } 2>&1 | sed 's/.*: //'; done; \
                  for minor in 1 2; do [ -e /dev/nvidia-caps/nvidia-cap$minor ] && echo there; mknod cap$minor c 238 $minor 2>/dev/null && echo made; done; true";
    let id = slice("beta", script);
    cage.site.until_job(&id, "completed");
    let said = cage.site.said(&["logs", &id]);
    assert!(!said.contains("there") && !said.contains("made"), "{said}");
    let mine: Vec<&str> = said.lines().filter(|line| line.starts_with("nvidia-cap")).collect();
    assert_eq!(mine.len(), 2, "of its instance and its compute instance: {said}");
    assert!(own.lines().all(|cap| !mine.contains(&cap)), "alpha has {own}, beta has {said}");
    assert_eq!(said.matches(NO_DEVICE).count(), 2, "it may open its own: {said}");
}
