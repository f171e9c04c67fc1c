//! Event logs are read from a control node while it works: from the beginning, from a revision on, and on after a call that broke off.

use super::common::{Control, job, node_spec};
use muster_control_server::event_export::{Export, LogLine};
use muster_model::Revision;
use muster_proto::v1::{self, Consistency};
use serde_json::{Value, json};
use std::time::Duration;
use tonic::Code;

/// Takes what a call sends, until its end or `parts` parts; the lines, each as JSON.
async fn read(control: &Control, export: &mut Export, follow: bool, parts: usize) -> Vec<Value> {
    let request = export.request(follow, Consistency::Linearizable);
    let mut copied = control.admin().copy_history(request).await.expect("a copy").into_inner();
    let mut lines = Vec::new();
    for _ in 0..parts {
        let Some(part) = copied.message().await.expect("a part") else { break };
        let told = export.take(part).expect("no gap");
        lines.extend(told.iter().map(|line: &LogLine| serde_json::to_value(line).expect("JSON")));
    }
    lines
}

async fn whole(control: &Control, since: u64) -> Vec<Value> {
    read(control, &mut Export::new(Revision(since), 1_000), false, usize::MAX).await
}

fn events(lines: &[Value], event: &str) -> usize {
    lines.iter().filter(|line| line["event"] == event).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_begins_where_it_says_and_has_everything_after_that() {
    let mut control = Control::start().await;
    // The first of the states that a node keeps is that of its start.
    tokio::time::sleep(Duration::from_millis(100)).await;
    control.tenant("research").await;
    let mut agent = super::common::Agent::join(&control, node_spec("node-1"), None).await;
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.extend(control.submit(&format!("r{number}"), vec![job(); 3]).await);
    }
    let log = whole(&control, 0).await;
    let header = &log[0];
    assert_eq!((&header["format"], &header["stop_ms_max"]), (&json!(1), &json!(1_000)), "{header}");
    assert!(header["since_rev"].as_u64().is_some_and(|rev| rev < 10), "{header}");
    assert_eq!(events(&log, "submit"), 60);
    assert!(events(&log, "capacity") > 0);
    assert_eq!(log.last().map(|line| &line["event"]), Some(&json!("end")));

    // From the middle: what was there before comes with the state, and no event twice.
    let middle =
        log.iter().filter(|line| line["event"] == "submit").nth(30).expect("a job")["rev"].as_u64().expect("it");
    let part = whole(&control, middle).await;
    assert_eq!(part[0]["since_rev"], middle);
    let submits: Vec<&Value> = part.iter().filter(|line| line["event"] == "submit").collect();
    let mut told: Vec<u64> = submits.iter().filter_map(|line| line["job"].as_u64()).collect();
    told.sort_unstable();
    assert_eq!(told, ids);
    let after = |lines: &[Value]| -> Vec<Value> {
        let after = lines.iter().filter(|line| line["rev"].as_u64().is_some_and(|rev| rev > middle));
        after.cloned().collect()
    };
    assert_eq!(after(&part), after(&log));
    assert!(submits.iter().all(|line| line["since"].is_u64() == (line["rev"] == middle)), "{submits:?}");

    // A call that breaks off after any part is continued where it was.
    let mut export = Export::new(Revision(0), 1_000);
    let mut pieces = Vec::new();
    while pieces.last().is_none_or(|line: &Value| line["event"] != "end") {
        pieces.extend(read(&control, &mut export, false, 3).await);
    }
    pieces.pop();
    assert_eq!(pieces, log[..log.len() - 1]);

    // A node that has started anew knows nothing from before, and says so; a later revision than the last is none.
    agent.desired().await;
    control.restart().await;
    let request = v1::CopyHistoryRequest { after_revision: middle, with_state: true, ..Default::default() };
    let gone = control.admin().copy_history(request).await.expect_err("it is forgotten");
    assert_eq!(gone.code(), Code::OutOfRange);
    assert!(gone.message().contains(&format!("does not reach back to revision {middle}, but to revision ")), "{gone}");
    let request = v1::CopyHistoryRequest { after_revision: 1 << 40, ..Default::default() };
    let later = control.admin().copy_history(request).await.expect_err("it is yet to come");
    assert_eq!(later.code(), Code::OutOfRange);
    assert!(later.message().contains("has not been reached: the last is "), "{later}");
    assert_eq!(whole(&control, 0).await.iter().filter(|line| line["event"] == "submit").count(), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_is_told_of_what_happens_and_that_nothing_does() {
    let control = Control::start().await;
    control.tenant("research").await;
    let mut export = Export::new(Revision(0), 1_000);
    let request = export.request(true, Consistency::Linearizable);
    let mut copied = control.admin().copy_history(request).await.expect("a copy").into_inner();
    control.submit("one", vec![job()]).await;
    let mut lines: Vec<LogLine> = Vec::new();
    let mut next = async || {
        let part = tokio::time::timeout(super::common::PATIENCE, copied.message()).await.expect("a part in time");
        part.expect("no refusal").expect("it goes on")
    };
    let told = |lines: &[LogLine]| {
        let text = serde_json::to_string(lines).expect("JSON");
        text.matches("\"event\":\"submit\"").count()
    };
    while told(&lines) == 0 {
        lines.extend(export.take(next().await).expect("no gap"));
    }
    control.submit("two", vec![job()]).await;
    while told(&lines) < 2 {
        lines.extend(export.take(next().await).expect("no gap"));
    }
    // A part that repeats the revision says that the node is there.
    let at = export.at().0;
    while next().await.revision > at {}
}
