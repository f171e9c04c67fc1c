//! Attempts 18 and 19: another tenant's job by its id, by pages, watches and request ids, and jobs in another's name.

use super::{Fleet, SECRET, with_token};
use muster_bench::cluster::small_job;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use std::time::Duration;

/// Attempt 18: why one's own job waits says how much others hold, and neither who nor where.
#[test]
fn attempt_18_an_explanation_names_nothing_of_others() {
    let fleet = Fleet::start();
    let words = ["submit", "--tenant", "beta", "--gpus", "8", "--tasks", "2", "--", "true"];
    let job = fleet.as_tenant("beta", &words).out.trim().to_owned();
    fleet.dev.until(&job, &["pending"]);
    let mine = fleet.as_tenant("beta", &["explain", &job]);
    assert!(mine.out.contains("1 job of another tenant holds 1 GPU on 1 node"), "{}{}", mine.out, mine.err);
    let whole = fleet.dev.ok(&["explain", &job]);
    let named = format!("job {} holds 1 GPU on node-", fleet.victim);
    assert!(whole.contains(&named), "root is told: {whole}");
    let json = fleet.as_tenant("beta", &["explain", &job, "-o", "json"]);
    let list = fleet.as_tenant("beta", &["jobs", "-o", "json"]);
    for said in [&mine.out, &json.out, &list.out] {
        for word in [format!("job {}", fleet.victim), format!("\"{}\"", fleet.victim), "node-".into(), "alpha".into()] {
            assert!(!said.contains(&word), "{word}: {said}");
        }
    }
    fleet.is_well();
}

/// Attempt 18.
#[test]
fn attempt_18_another_tenants_job_is_one_that_never_was() {
    let fleet = Fleet::start();
    let (theirs, nobodys) = (fleet.victim.clone(), "999999".to_owned());
    for words in [
        &["job"][..],
        &["explain"],
        &["logs"],
        &["cancel"],
        &["requeue"],
        &["hold"],
        &["release"],
        &["wait"],
        &["array-limit", "1"],
        &["update", "--priority", "9"],
        &["update", "--time", "1m"],
        &["update", "--tenant", "beta"],
    ] {
        let [said, never] = [&theirs, &nobodys].map(|id| {
            let mut args = words.to_vec();
            // The id stands behind the name of the command, but for the limit.
            args.insert(1, id);
            fleet.as_tenant("beta", &args)
        });
        assert_ne!(said.code, 0, "{words:?}: {}", said.out);
        assert_eq!(
            (said.code, said.out.replace(&theirs, "N"), said.err.replace(&format!("job {theirs}"), "job N")),
            (never.code, never.out.replace(&nobodys, "N"), never.err.replace(&format!("job {nobodys}"), "job N")),
            "{words:?}"
        );
    }
    for words in [
        &["jobs", "--all"][..],
        &["jobs", "--name", SECRET],
        &["tree"],
        &["usage"],
        &["gpus"],
        &["nodes"],
        &["plan"],
        &["audit", "list"],
    ] {
        let said = fleet.as_tenant("beta", &[words, &["-o", "json"]].concat());
        assert!(!said.out.contains(SECRET) && !said.err.contains(SECRET), "{words:?}: {}", said.out);
    }
    // A page that alpha was given, and everything that has changed since the beginning.
    let more = fleet
        .as_tenant("alpha", &["submit", "--tenant", "alpha", "--gpus", "1", "--name", SECRET, "--", "sleep", "600"]);
    assert_eq!(more.code, 0, "{}", more.err);
    let channel = fleet.channel(&fleet.for_people());
    fleet.runtime.block_on(async {
        let mut jobs = JobsClient::new(channel);
        let page = v1::ListJobsRequest { page_size: 1, ..v1::ListJobsRequest::default() };
        let token =
            jobs.list(with_token(&fleet, "alpha", page.clone())).await.expect("a list").into_inner().next_page_token;
        assert!(!token.is_empty(), "there are two");
        let theirs = v1::ListJobsRequest { page_token: token, ..page };
        if let Ok(reply) = jobs.list(with_token(&fleet, "beta", theirs)).await {
            assert_eq!(reply.into_inner().jobs, Vec::new());
        }
        let all = v1::WatchJobsRequest { from_revision: 1, ..v1::WatchJobsRequest::default() };
        let mut events = jobs.watch(with_token(&fleet, "beta", all)).await.expect("a stream").into_inner();
        while let Ok(Ok(Some(event))) = tokio::time::timeout(Duration::from_secs(1), events.message()).await {
            assert!(!matches!(event.event, Some(v1::job_event::Event::Job(_))), "{event:?}");
        }
    });
    fleet.is_well();
    fleet.is_recorded(&["Jobs.Cancel", "service:beta/ci"]);
}

/// Attempt 19.
#[test]
fn attempt_19_nobody_submits_as_somebody_else() {
    let fleet = Fleet::start();
    let refused = |words: &[&str], expected: &str| {
        let said = fleet.as_tenant("beta", words);
        assert!(said.code != 0 && said.err.contains(expected), "{words:?}: {}{}", said.out, said.err);
    };
    refused(&["submit", "--tenant", "alpha", "--gpus", "1", "--", "true"], "does not exist");
    let tree = fleet.dev.file("run-as.yaml", "beta: {run-as: 1000}\n");
    refused(&["tenants", "apply", "-f", &tree], "role admin");
    refused(&["tenants", "move", "alpha", "beta"], "");
    refused(&["token", "create", "alpha/x", "--role", "viewer", "--ttl", "1h"], "");
    refused(&["token", "create", "beta/x", "--role", "admin", "--ttl", "1h"], "");
    refused(&["grant", "add", "service:beta/ci", "admin", "beta"], "");
    refused(&["grant", "add", "service:beta/ci", "operator"], "");
    refused(&["access", "open"], "");
    for words in [&["drain", "node-0000"][..], &["remove-node", "node-0000"], &["clear-gpu", "node-0000", "0"]] {
        refused(words, "");
    }
    // Whose job it is, its credential says.
    let said = fleet.as_tenant("beta", &["submit", "--tenant", "beta", "--user", "alice", "--gpus", "1", "--", "true"]);
    let own = said.out.trim().to_owned();
    let job = fleet.as_tenant("beta", &["job", &own, "-o", "json"]).json();
    assert_eq!(job["user"], "beta/ci", "{job}");
    // A request id is its sender's: beta's call is a call of its own.
    let channel = fleet.channel(&fleet.for_people());
    let [of_alpha, of_beta] = ["alpha", "beta"].map(|tenant| {
        let job = small_job(tenant, "mine".to_owned(), &["true"]);
        let call = v1::SubmitRequest {
            request_id: "mine".to_owned(),
            issued_ms: Some(muster_cli::commands::now_ms()),
            jobs: vec![job],
        };
        let request = with_token(&fleet, tenant, call);
        let mut jobs = JobsClient::new(channel.clone());
        fleet.runtime.block_on(async { jobs.submit(request).await }).expect("submitted").into_inner().job_ids
    });
    assert!(of_alpha.len() == 1 && of_beta.len() == 1 && of_alpha != of_beta, "{of_alpha:?} {of_beta:?}");
    fleet.is_well();
    fleet.is_recorded(&["Tenants.Apply", "Auth.Grant", "Fleet.SetDrained"]);
}
