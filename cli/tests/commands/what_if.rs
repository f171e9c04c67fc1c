//! What-if through the real binary: a quota edit and a drain are asked about, then made, and what happens is what was answered.

use crate::common::Dev;
use crate::waiting::wait_for;
use serde_json::Value;

const BEFORE: &str = "batch: {}\nserving: {}\n";
const AFTER: &str = "serving: {guarantee: {h100: 4}}\n";
const TOO_MUCH: &str = "serving: {guarantee: {h100: 100}}\n";

const URGENT: &str =
    "tenant: batch\npriority-class: production\ngpus: 4\ndevice-class: large\ntime: 1h\ncommand: [sleep, '600']\n";

/// Ids of the jobs of a list of the answer.
fn ids(answer: &Value, list: &str) -> Vec<String> {
    let lines = answer[list].as_array().unwrap_or_else(|| panic!("no {list}: {answer}"));
    lines.iter().map(|line| line["job"].to_string()).collect()
}

fn ask(dev: &Dev, args: &[&str]) -> Value {
    let said = dev.run(&[&["what-if", "-o", "json"], args].concat());
    assert_eq!(said.code, 0, "{args:?}: {}", said.err);
    said.json()
}

#[test]
fn what_is_answered_about_a_quota_and_a_drain_is_what_happens() {
    let dev = Dev::start(&["--nodes", "2", "--gpus-per-node", "4"]);
    let tree = dev.file("before.yaml", BEFORE);
    wait_for("the tree", || dev.run(&["tenants", "apply", "-f", &tree]).code == 0);
    let end = dev.path("end").display().to_string();
    let submit = |tenant: &str, more: &[&str], script: &str| {
        let size = ["submit", "--tenant", tenant, "--gpus", "4", "--preempt-grace", "2s"];
        dev.ok(&[&size[..], more, &["--", "sh", "-c", script]].concat())
    };
    let stays = submit("batch", &["--priority", "1"], "exec sleep 600");
    let gives = submit("batch", &[], "exec sleep 600");
    dev.until(&stays, &["running"]);
    dev.until(&gives, &["running"]);
    let gains = submit("serving", &["--time", "1h"], &format!("while [ ! -f {end} ]; do sleep 0.2; done"));
    dev.until(&gains, &["pending"]);

    // What the fleet refuses is refused in the same words, and nothing is changed by asking.
    let too_much = dev.file("too-much.yaml", TOO_MUCH);
    for (asked, made) in [
        (&["what-if", "--drain", "nowhere"][..], &["drain", "nowhere"][..]),
        (&["what-if", "--tenants", &too_much], &["tenants", "apply", "-f", &too_much]),
    ] {
        let (asked, made) = (dev.run(asked), dev.run(made));
        assert_eq!((asked.code, &asked.err), (made.code, &made.err));
        assert_ne!(asked.code, 0);
    }
    dev.refused(&["what-if"], 2, &["--tenants", "--drain"]);

    // The quota: who is evicted for whom.
    let after = dev.file("after.yaml", AFTER);
    let answer = ask(&dev, &["--tenants", &after]);
    assert_eq!(
        (ids(&answer, "evicted"), ids(&answer, "gains")),
        (vec![gives.clone()], vec![gains.clone()]),
        "{answer}"
    );
    assert_eq!(answer["evicted"][0]["for_job"], gains.as_str());
    let table = dev.ok(&["what-if", "--tenants", &after]);
    for word in ["what if: tenants serving as in the file", "assumed: jobs run to their time limits", "EVICTED", "h100"]
    {
        assert!(table.contains(word), "{word:?} is missing:\n{table}");
    }
    assert_eq!(dev.state(&gains), "pending", "nothing is changed");
    dev.ok(&["tenants", "apply", "-f", &after]);
    dev.until(&gains, &["running"]);
    dev.until(&gives, &["pending"]);
    assert_eq!(dev.state(&stays), "running");

    // The drain, asked of a saved copy: what would have started when the other job ends does not.
    let node = dev.run(&["job", &gains, "-o", "json"]).json()["ran_on"][0]["node"].as_str().expect("a node").to_owned();
    let saved = dev.path("now.state").display().to_string();
    assert!(dev.ok(&["state", "save", &saved]).contains("objects of revision"));
    let answer = ask(&dev, &["--state", &saved, "--drain", &node]);
    assert_eq!(
        (ids(&answer, "loses"), ids(&answer, "waiting")),
        (vec![gives.clone()], vec![gives.clone()]),
        "{answer}"
    );
    assert_eq!(answer["loses"][0]["before"]["state"], "starts");
    assert_eq!(answer["evicted"], Value::Array(Vec::new()));
    dev.ok(&["drain", &node]);
    std::fs::write(&end, "").expect("a file");
    dev.until(&gains, &["completed"]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(dev.state(&gives), "pending");
    dev.ok(&["undrain", &node]);
    dev.until(&gives, &["running"]);

    // Classes and another rule for places are asked about as they would be applied.
    let devices = dev.file("devices.yaml", "name: large\nselector: device.memory_mib >= 40000\n");
    let priorities = dev.file("priorities.yaml", "name: production\npriority: 1000\npreempts: [default]\n");
    let urgent = dev.file("urgent.yaml", URGENT);
    let classes = ["--device-classes", &devices, "--priority-classes", &priorities, "--placement", "best-fit"];
    let answer = ask(&dev, &[&classes[..], &["--jobs", &urgent, "--run-times", "predicted"]].concat());
    assert_eq!(answer["gains"][0]["before"]["state"], "refused", "{answer}");
    assert_eq!(answer["gains"][0]["after"]["state"], "starts", "{answer}");
    let basis = answer["basis"][0].as_str().expect("words");
    assert!(basis.starts_with("no run time can be predicted"), "{basis}");
    let unknown = dev.file("unknown.yaml", "name: production\npreempts: [nobody]\npriority: 5\n");
    dev.refused(&["what-if", "--priority-classes", &unknown], 2, &["preempts", "nobody"]);

    let number = dev.file("number.yaml", &URGENT.replace("'600'", "600"));
    dev.refused(&["what-if", "--jobs", &number], 2, &["number.yaml: command: is not text or a list of texts"]);

    let cut = dev.path("cut.state");
    let whole = std::fs::read(&saved).expect("the copy");
    std::fs::write(&cut, &whole[..whole.len() - 3]).expect("a file");
    dev.refused(&["what-if", "--state", &cut.display().to_string(), "--drain", &node], 2, &["not a whole copy"]);
}
