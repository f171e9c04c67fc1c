//! A task with several compute instances in one MIG instance, through the double of NVIDIA's driver.

use crate::common::Dev;
use crate::waiting::wait_for;

#[test]
fn a_task_has_several_compute_instances_in_one_mig_instance() {
    let dev = Dev::start(&["--nodes", "1", "--gpus-per-node", "1", "--gpus", "double"]);
    let submit = |count: &str| {
        let what = ["--mig", "3g.40gb", "--compute-instances", count, "--", "sh", "-c"];
        dev.run(&[&["submit"], &what[..], &["echo $CUDA_VISIBLE_DEVICES; ls /dev/nvidia-caps | wc -l"]].concat())
    };
    let said = submit("2");
    assert!(said.code != 0, "{}", said.out);
    let told = "compute_instances: is 2, and 3 compute slices have no 2 equal parts; use one of 1, 3";
    assert!(said.err.contains(told), "{}", said.err);
    // One after the other: the second needs the instance cut otherwise.
    for (id, count) in [("1", "3"), ("2", "1")] {
        assert_eq!(submit(count).code, 0);
        wait_for("its end", || dev.run(&["job", id, "-o", "json"]).json()["state"] == "completed");
        let said = dev.run(&["logs", id]).out;
        let devices = said.lines().next().unwrap_or_default();
        assert_eq!(devices.split(',').count().to_string(), count, "{said}");
        assert!(devices.split(',').all(|device| device.starts_with("MIG-")), "{said}");
    }
    let shown = dev.run(&["job", "1"]).out;
    assert!(shown.contains("compute instances"), "{shown}");
}
