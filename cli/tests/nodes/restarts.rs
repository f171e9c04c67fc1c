//! Jobs that are stopped and started again, and jobs that are changed, with real tasks: what they are sent, what they save, and what
//! their next attempt finds.

use crate::site::Site;
use std::time::Duration;

/// Adds the numbers from 1 to 100. It waits at 30 in its first attempt; on SIGUSR1 it saves its work, says so, and fails.
const ADDS: &str = r#"
state=$SHARED/state; step=0; sum=0
[ -f "$state" ] && read -r step sum < "$state"
echo "restart $MUSTER_RESTART_COUNT at step $step, note '$MUSTER_CHECKPOINT_NOTE'"
save() { echo "$step $sum" > "$state.new"; mv "$state.new" "$state"; "$MUSTER" checkpoint "step $step"; }
trap 'save; exit 9' USR1
while [ "$step" -lt 100 ]; do
  step=$((step + 1)); sum=$((sum + step))
  while [ "$step" = 30 ] && [ "$MUSTER_RESTART_COUNT" = 0 ]; do touch "$SHARED/at-30"; sleep 0.1; done
done
echo "$sum" > "$SHARED/result"
"#;

#[test]
fn a_requeued_job_saves_its_work_on_its_signal_and_ends_with_the_right_result() {
    let site = Site::start();
    let _agent = site.agent("agent", &["--data", "data"]);
    let variables =
        [format!("SHARED={}", site.path("").display()), format!("MUSTER={}", site.program_for_tasks().display())];
    let words = ["--gpus", "1", "--preempt-signal", "usr1", "--preempt-grace", "60s", "--checkpoint-size", "1Mi"];
    let words = [&words[..], &["--env", &variables[0], "--env", &variables[1], "--", "sh", "-c", ADDS]].concat();
    let id = site.submit(&words);
    site.until("step 30", || site.path("at-30").exists().then_some(()));
    let submitted = site.job(&id)["submitted"].clone();
    site.said(&["requeue", &id]);
    let job = site.until_job(&id, "completed");
    assert_eq!(std::fs::read_to_string(site.path("result")).expect("a result"), "5050\n");
    assert_eq!((&job["attempt"], &job["failures"]), (&2.into(), &0.into()), "exit code 9 is no failure: {job:#}");
    assert_eq!((&job["submitted"], &job["preemptions"]), (&submitted, &0.into()), "it keeps its age");
    assert_eq!(job["checkpoint_note"], "step 30");
    assert!(job["checkpoint"].is_string(), "{job:#}");
    assert_eq!(job["attempts"][0]["reason"], "requeued on request");
    assert_eq!(site.said(&["logs", &id]).trim(), "restart 1 at step 30, note 'step 30'");
    let said = site.said(&["job", &id]);
    assert!(said.contains("(step 30)") && said.contains("SIGUSR1, then 1:00 to stop"), "{said}");
}

#[test]
fn a_job_that_asks_for_itself_to_be_requeued_is_whatever_it_exits_with() {
    let site = Site::start();
    let _agent = site.agent("agent", &["--data", "data"]);
    let endpoint = format!("MUSTER_ENDPOINTS={}", site.endpoint());
    let program = format!("MUSTER={}", site.program_for_tasks().display());
    let script = "if [ $MUSTER_RESTART_COUNT = 0 ]; then trap '' TERM; $MUSTER requeue $MUSTER_JOB_ID; exit 3; fi";
    let id = site.submit(&["--gpus", "1", "--env", &endpoint, "--env", &program, "--", "sh", "-c", script]);
    let job = site.until_job(&id, "completed");
    assert_eq!((&job["attempt"], &job["failures"]), (&2.into(), &0.into()), "{job:#}");
}

#[test]
fn a_time_limit_that_is_lowered_reaches_the_task_and_a_pending_job_can_be_changed() {
    let site = Site::start();
    std::fs::write(site.path("tenants.yaml"), "research: {}\nresearch/nlp: {}\n").expect("a file");
    site.said(&["tenants", "apply", "-f", "tenants.yaml"]);
    std::fs::write(site.path("node.yaml"), "name: n1\nmodel: h100\ngpus: 1\n").expect("a file");
    let _agent = site.agent("agent", &["--data", "data", "--spec", "node.yaml"]);
    let running = site.submit(&["--gpus", "1", "--time", "1h", "--", "sleep", "1000"]);
    site.until_job(&running, "running");
    let pending = site.submit(&["--gpus", "1", "--", "true"]);
    site.said(&["update", &pending, "--tenant", "research/nlp", "--priority", "-7", "--name", "later", "--time", "2h"]);
    let job = site.job(&pending);
    assert_eq!((&job["tenant"], &job["name"]), (&"research/nlp".into(), &"later".into()));
    assert_eq!((&job["priority"], &job["time_limit_s"]), (&(-7).into(), &7_200.into()));
    let refused = |words: &[&str], why: &str| {
        let output = site.muster(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "muster {words:?}: {said}");
    };
    refused(&["update", &running, "--tenant", "research/nlp"], "tenant: cannot change: job 1 is running");
    refused(&["update", &pending, "--tenant", "nobody"], "tenant: \"nobody\" does not exist");
    refused(&["update", &pending, "--priority", "1000001"], "priority: is 1000001; use -1,000,000 to 1,000,000");
    refused(&["update", &pending], "required");
    std::thread::sleep(Duration::from_millis(1_100));
    site.said(&["update", &running, "--time", "1s"]);
    site.until_job(&running, "timeout");
    site.until_job(&pending, "completed");
    refused(&["requeue", &pending], "completed");
}
