//! The example tree at a hundredth of its size, 500 GPUs for 50,000, with real processes: teams lend and borrow, a team takes back what it is
//! guaranteed, the gang that had borrowed it saves its work and goes on later, and a burst gang is promoted. What each step prints for the
//! tree is compared as a whole.

use crate::common::{Dev, signal};
use crate::referee;
use crate::shared::open_to_all;
use crate::waiting::wait_for;
use serde_json::{Value, json};
use std::io::Read;
use std::time::{Duration, Instant};

const TREE: &str = "\
research:
  guarantee: {h100: 200}
  teams:
    nlp: {guarantee: {h100: 80}, max: {h100: 150}}
    vision: {guarantee: {h100: 120}, max: {h100: 180}}
products:
  guarantee: {h100: 250}
  teams:
    ads: {guarantee: {h100: 150}, max: {h100: 220}}
    search: {guarantee: {h100: 100}, max: {h100: 160}}
";

/// NLP has borrowed what Vision and the root leave idle, Ads too.
const LENT: &str = "\
TENANT    RESOURCE  GUARANTEE  MAX  USED  GUARANTEED  BORROWED  LENT  WAITING
products  h100            250    -   320         250        70     -        -
  ads     h100            150  220   220         150        70     -        -
  search  h100            100  160   100         100         -     -        -
research  h100            200    -   180         180         -    20        -
  nlp     h100             80  150   150          80        70     -        -
  vision  h100            120  180    30          30         -    90        -
";

/// Vision has more of what it is guaranteed, and 40 GPUs of NLP wait.
const TAKEN_BACK: &str = "\
TENANT    RESOURCE  GUARANTEE  MAX  USED  GUARANTEED  BORROWED  LENT  WAITING
products  h100            250    -   320         250        70     -        -
  ads     h100            150  220   220         150        70     -        -
  search  h100            100  160   100         100         -     -        -
research  h100            200    -   180         180         -    20       40
  nlp     h100             80  150   110          80        30     -       40
  vision  h100            120  180    70          70         -    50        -
";

/// The four ranks together add the numbers from 1 to 100. The first attempt waits after 30; on SIGUSR1 each rank waits for `save` and
/// saves its work, rank 0 says so, and all exit with an error. The second attempt waits for `finish` before its end.
const ADDS: &str = r#"
state=$SHARED/state-$RANK; next=$((RANK + 1)); sum=0
[ -f "$state" ] && read -r next sum < "$state"
echo "restart $MUSTER_RESTART_COUNT from $next, note '$MUSTER_CHECKPOINT_NOTE'"
save() { while [ ! -f "$SHARED/save" ]; do sleep 0.2; done; echo "$next $sum" > "$state.new"; mv "$state.new" "$state"; [ "$RANK" = 0 ] && muster checkpoint "from $next"; }
trap 'save; exit 9' USR1
while [ "$next" -le 100 ]; do
  sum=$((sum + next)); next=$((next + WORLD_SIZE))
  while [ "$next" -gt 30 ] && [ "$MUSTER_RESTART_COUNT" = 0 ]; do touch "$SHARED/at-30-$RANK"; sleep 0.2; done
done
while [ ! -f "$SHARED/finish" ]; do sleep 0.2; done
echo "$sum" > "$SHARED/sum-$RANK"
"#;

/// What a victim may take from its signal to its end.
const GRACE: Duration = Duration::from_secs(60);
/// What the other steps of a reclaim may take: the decision, the signal's way to the node, the end and the start.
const STOP_AND_START: Duration = Duration::from_secs(10);

/// Submits a gang; its id.
fn submit(dev: &Dev, tenant: &str, [tasks, gpus]: [&str; 2], more: &[&str], script: &str) -> String {
    let size = ["submit", "--tenant", tenant, "--tasks", tasks, "--gpus", gpus];
    dev.ok(&[&size[..], more, &["--", "sh", "-c", script]].concat())
}

fn job(dev: &Dev, id: &str) -> Value {
    dev.run(&["job", id, "-o", "json"]).json()
}

/// The tree as it is printed, once it is so: a job's end is seen a moment before its devices are free.
fn until_tree(dev: &Dev, expected: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let rows = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    loop {
        let printed = dev.ok(&["tree"]);
        // The tenant that `muster dev` makes has no part in this.
        let told: Vec<&str> = printed.lines().filter(|line| !line.starts_with("dev ")).collect();
        if rows(&told.join("\n")) == rows(expected) {
            return;
        }
        assert!(Instant::now() < deadline, "the tree is\n{printed}\nand should be\n{expected}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// During the grace: both sides say who takes from whom.
fn say_who_takes_from_whom(dev: &Dev, claims: &str, adds: &str) {
    let said = "preempting: it starts when 1 job that is being preempted for it has ended (a floor account of its tenant pays)";
    let told = dev.ok(&["explain", claims]);
    assert!(told.contains(said) && told.contains("starts at the latest (claim): within "), "{told}");
    let told = dev.ok(&["explain", adds]);
    let by = format!(
        "it is being preempted by job {claims} of research/vision (reclaim: the floor of research/vision pays)"
    );
    assert!(told.contains(&by), "{told}");
}

/// After it: what the victim lost, why the team has what it has, and what the owner of a floor waits at most.
fn say_what_it_cost_and_why(dev: &Dev, claims: &str, adds: &str) {
    let told = dev.ok(&["explain", adds]);
    let by = format!(" by job {claims} of research/vision (reclaim: the floor of research/vision pays), and lost 0.");
    assert!(told.contains("preempted: it was preempted at ") && told.contains(&by), "{told}");
    assert!(told.contains("GPU-hours of work since its checkpoint at "), "{told}");
    // Why the team gets what it gets, and what the owner of a floor waits at most: the longest grace of what is borrowed, and the stop.
    let told = dev.ok(&["tenants", "explain", "research/nlp"]);
    assert!(told.contains("waiting: 40 h100 of its pending jobs wait, the oldest since "), "{told}");
    assert!(told.contains("it uses 110 h100 since ") && told.contains("30 h100 of it is burst"), "{told}");
    assert!(
        told.contains("it has 110 h100, more than research/vision with 70 h100: research/vision asks for no more"),
        "{told}"
    );
    let pools: Value = dev.run(&["pools", "list", "-o", "json"]).json();
    assert_eq!((&pools[0]["floor_wait_s"], &pools[0]["longest_grace_s"]), (&json!(40), &json!(30)), "{pools:#}");
    dev.refused(&["tenants", "explain", "research/nobody"], 3, &["research/nobody"]);
}

#[test]
fn the_example_tree_lends_takes_back_and_promotes_and_the_borrowed_gang_ends_with_the_right_result() {
    let dev = Dev::start(&["--nodes", "50", "--gpus-per-node", "10"]);
    let file = dev.file("tree.yaml", TREE);
    // A new cluster reaches the feature level of its voters, and its nodes join, within seconds.
    wait_for("the tree", || dev.run(&["tenants", "apply", "-f", &file]).code == 0);
    std::fs::create_dir(dev.path("shared")).expect("a folder");
    open_to_all(&dev.path("shared"));
    let shared = format!("SHARED={}", dev.path("shared").display());

    // What the guarantees cover: each task takes a node of ten GPUs.
    let sleep = "exec sleep 600";
    let ads = submit(&dev, "products/ads", ["15", "10"], &[], sleep);
    let search = submit(&dev, "products/search", ["10", "10"], &[], sleep);
    let ends = "while [ ! -f \"$SHARED/end-nlp\" ]; do sleep 0.2; done";
    let ending = submit(&dev, "research/nlp", ["4", "10"], &["--env", &shared], ends);
    let staying = submit(&dev, "research/nlp", ["4", "10"], &[], sleep);
    let vision = submit(&dev, "research/vision", ["3", "10"], &[], sleep);
    let covered = [(&ads, "products/ads"), (&search, "products/search"), (&ending, "research/nlp")];
    let covered = [&covered[..], &[(&staying, "research/nlp"), (&vision, "research/vision")]].concat();
    for (id, tenant) in &covered {
        dev.until(id, &["running"]);
        assert_eq!(job(&dev, id)["quota"], format!("guaranteed by {tenant}"));
    }

    // What is idle is lent. The gang that is the cheapest to stop is the one that adds.
    let signal = ["--preempt-signal", "usr1", "--preempt-grace", "60s", "--env", &shared];
    let adds = submit(&dev, "research/nlp", ["4", "10"], &signal, ADDS);
    let small = submit(&dev, "research/nlp", ["3", "10"], &["--restart-cost", "1h"], sleep);
    let large = submit(&dev, "products/ads", ["7", "10"], &["--restart-cost", "1h"], sleep);
    for id in [&adds, &small, &large] {
        dev.until(id, &["running"]);
        assert_eq!(job(&dev, id)["quota"], "burst");
    }
    wait_for("all ranks at 30", || (0..4).all(|rank| dev.path(&format!("shared/at-30-{rank}")).exists()));
    until_tree(&dev, LENT);
    // Everything that is not to change, before a team takes back what is its own.
    let others: Vec<&String> = covered.iter().map(|(id, _)| *id).chain([&small, &large]).collect();
    let held = |id: &str| {
        let job = job(&dev, id);
        [job["allocation"].clone(), job["attempt"].clone(), job["preemptions"].clone(), job["state"].clone()]
    };
    let before: Vec<_> = others.iter().map(|id| held(id)).collect();
    let adds_before = job(&dev, &adds);

    // Vision wants what it is guaranteed: the borrowed gang gets its signal. During its grace it keeps the devices and Vision has the quota.
    let asked = Instant::now();
    let claims = submit(&dev, "research/vision", ["4", "10"], &[], sleep);
    dev.until(&adds, &["completing"]);
    let why = format!("preempted by job {claims} (reclaim)");
    assert_eq!(job(&dev, &adds)["reason"], why);
    say_who_takes_from_whom(&dev, &claims, &adds);
    until_tree(&dev, &TAKEN_BACK.replace("       40\n", "        -\n"));

    // It saves, stops and waits; Vision starts.
    std::fs::write(dev.path("shared/save"), "").expect("a file");
    dev.until(&claims, &["running"]);
    assert!(asked.elapsed() < GRACE + STOP_AND_START, "it started after {:?}", asked.elapsed());
    let claimed = job(&dev, &claims);
    assert_eq!((&claimed["quota"], &claimed["attempt"]), (&json!("guaranteed by research/vision"), &json!(1)));
    let preempted = job(&dev, &adds);
    assert_eq!((&preempted["state"], &preempted["preemptions"]), (&json!("pending"), &json!(1)), "{preempted:#}");
    assert_eq!((&preempted["attempts"][0]["reason"], &preempted["failures"]), (&json!(why), &json!(0)));
    assert_eq!(
        (&preempted["checkpoint_note"], &preempted["submitted"]),
        (&json!("from 33"), &adds_before["submitted"])
    );
    say_what_it_cost_and_why(&dev, &claims, &adds);
    assert_eq!(others.iter().map(|id| held(id)).collect::<Vec<_>>(), before, "nobody else is touched");
    until_tree(&dev, TAKEN_BACK);

    // A guaranteed gang ends: the burst gang is promoted, and the preempted one goes before what came after it.
    let later = submit(&dev, "research/nlp", ["4", "10"], &[], sleep);
    std::fs::write(dev.path("shared/end-nlp"), "").expect("a file");
    dev.until(&ending, &["completed"]);
    dev.until(&adds, &["running"]);
    assert_eq!(dev.state(&later), "pending");
    let (resumed, promoted) = (job(&dev, &adds), job(&dev, &small));
    assert_eq!((&resumed["quota"], &resumed["attempt"]), (&json!("burst"), &json!(2)));
    assert_eq!(promoted["quota"], "guaranteed by research/nlp");
    let history = promoted["quota_history"].as_array().expect("a list");
    let accounts: Vec<_> = history.iter().map(|segment| segment["account"].as_str()).collect();
    assert_eq!(accounts, [None, Some("research/nlp")], "burst first, then promoted: {history:?}");
    let printed = dev.ok(&["job", &small]);
    assert!(
        printed.contains("quota      guaranteed by research/nlp since ")
            && printed.contains("; before: burst (spot) since ")
    );
    let list = dev.ok(&["jobs", "-o", "wide"]);
    let quota = |id: &str| list.lines().find(|line| line.split_whitespace().next() == Some(id)).map(str::to_owned);
    assert!(quota(&small).is_some_and(|line| line.contains("  guaranteed by research/nlp  ")), "{list}");
    assert!(quota(&adds).is_some_and(|line| line.contains("  burst  ")), "{list}");
    until_tree(&dev, TAKEN_BACK);

    // It goes on from its checkpoint and ends with the right result; then the later one starts.
    std::fs::write(dev.path("shared/finish"), "").expect("a file");
    dev.until(&adds, &["completed"]);
    let sum = |rank: u32| -> u64 {
        let text = std::fs::read_to_string(dev.path(&format!("shared/sum-{rank}"))).expect("a sum");
        text.trim().parse().expect("a number")
    };
    assert_eq!((0..4).map(sum).sum::<u64>(), 5_050);
    assert_eq!(dev.ok(&["logs", &adds, "--rank", "0"]), "restart 1 from 33, note 'from 33'");
    assert_eq!(job(&dev, &adds)["reason"], Value::Null, "what completed has no reason");
    dev.until(&later, &["running"]);
    let still = [&ads, &search, &staying, &vision, &small, &large, &claims];
    assert!(
        still.iter().all(|id| held(id)[1..] == [json!(1), json!(0), json!("running")]),
        "none of them ever stopped"
    );
    export(&dev, &[&ending, &adds, &claims, &later]);
}

/// The event log of all this, in whole and from the middle on: it has what was seen above, and the referee accepts it.
fn export(dev: &Dev, [ending, adds, claims, later]: &[&String; 4]) {
    let path = dev.path("fleet.jsonl").display().to_string();
    let said = dev.run(&["events", "export", "--out", &path]);
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{}", said.err);
    assert!(said.err.contains("the log begins with the state at revision "), "{}", said.err);
    let whole = std::fs::read_to_string(&path).expect("the log");
    let lines: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let place = |event: &str, of: &dyn Fn(&Value) -> bool| {
        let found = lines.iter().position(|line| line["event"] == event && of(line));
        found.unwrap_or_else(|| panic!("no {event}:\n{whole}"))
    };
    let is = |line: &Value, job: &str| line["job"].as_u64() == job.parse().ok();
    let order = [
        place("preempt", &|line| is(line, claims) && is(&line["victims"][0], adds)),
        place("release", &|line| line["why"] == "preempted"),
        place("bind", &|line| is(line, claims) && line["account"] == "research/vision"),
        place("promote", &|line| line["account"] == "research/nlp"),
        place("finish", &|line| is(line, ending)),
        place("finish", &|line| is(line, adds)),
        place("bind", &|line| is(line, later)),
    ];
    place("checkpoint", &|line| is(line, adds));
    assert!(place("requeue", &|line| is(line, adds)) > order[1]);
    assert!(order[..3].is_sorted() && order[4..].is_sorted(), "{order:?}:\n{whole}");
    let middle = lines[order[0]]["rev"].to_string();
    let part = dev.ok(&["events", "export", "--since", &middle]) + "\n";
    assert!(part.lines().next().is_some_and(|first| first.contains(&format!("\"since_rev\":{middle},"))), "{part}");
    assert!(part.lines().count() < lines.len() && !part.contains("\"event\":\"preempt\""), "{part}");
    for (log, found) in [&whole, &part].iter().zip(referee::judge(&[whole.clone(), part.clone()]).into_iter().flatten())
    {
        assert!(found.is_empty(), "the referee finds {found:#?}\n{log}");
    }
    follow(dev);
    dev.refused(&["events", "export", "--since", "9999999"], 2, &["--since", "has not been reached"]);
}

/// Who follows sees what happens, and a log that is ended by a signal is whole.
fn follow(dev: &Dev) {
    let path = dev.path("followed.jsonl.gz");
    let file = path.display().to_string();
    let mut follows = dev.command(&["events", "export", "--follow", "--out", &file]).spawn().expect("muster");
    let id = dev.ok(&["submit", "--tenant", "products/search", "--cpus", "1", "--", "true"]);
    dev.until(&id, &["completed"]);
    std::thread::sleep(Duration::from_secs(1));
    signal(&follows, nix::sys::signal::Signal::SIGTERM);
    assert!(follows.wait().expect("its end").success());
    let mut text = String::new();
    let zipped = std::fs::File::open(&path).expect("the log");
    flate2::read::GzDecoder::new(zipped).read_to_string(&mut text).expect("a whole file");
    let last = text.lines().last().unwrap_or_default();
    assert!(
        text.contains(&format!("\"event\":\"finish\",\"job\":{id},")) && last.contains("\"event\":\"end\""),
        "{text}"
    );
    let found = referee::judge(&[text]).unwrap_or_default();
    assert!(found.iter().all(Vec::is_empty), "the referee finds {found:#?}");
}
