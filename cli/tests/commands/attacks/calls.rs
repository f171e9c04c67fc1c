//! Attempts 15, 20 and 25: calls from inside a task, calls that are not as a client makes them, and credentials that do not hold.

use super::{Fleet, SECRET};
use crate::common::{Said, alone};
use http::Request;
use tonic::Code;
use tonic::body::Body;
use tower::{Service, ServiceExt};

/// What is answered to a call of `path` with these headers.
fn code(fleet: &Fleet, path: &str, headers: &[(&str, &str)]) -> (Code, String) {
    let mut channel = fleet.channel(&fleet.for_people());
    let uri = format!("http://muster{path}");
    let mut request = Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    // One message without content.
    let request = request.body(Body::new(axum::body::Body::from(vec![0; 5]))).expect("a request");
    fleet.runtime.block_on(async {
        let answer = channel.ready().await.expect("a connection").call(request).await.expect("an answer");
        let status = answer.headers().get("grpc-status").and_then(|code| code.to_str().ok()).map(str::to_owned);
        let http = answer.status().as_u16();
        let body = axum::body::to_bytes(axum::body::Body::new(answer.into_body()), 1 << 20).await.unwrap_or_default();
        // A refusal has its status among the headers.
        let number: i32 = status.map_or(if http == 200 { 0 } else { 2 }, |text| text.parse().expect("a number"));
        (Code::from(number), String::from_utf8_lossy(&body).into_owned())
    })
}

/// Attempt 20.
#[test]
fn attempt_20_a_call_that_no_client_makes_is_refused() {
    let fleet = Fleet::start();
    let token = std::fs::read_to_string(fleet.token("beta")).expect("a token");
    let bearer = format!("Bearer {}", token.trim());
    let good = ("authorization", bearer.as_str());
    let list = "/muster.v1.Jobs/List";
    assert_eq!(code(&fleet, list, &[good]).0, Code::Ok, "as it is meant");
    for (path, headers) in [
        ("/muster.v1.Jobs/Nothing", vec![good]),
        ("/muster.v1.Nothing/List", vec![good]),
        ("//muster.v1.Jobs/List", vec![good]),
        ("/muster.v1.Jobs//List", vec![good]),
        ("/muster.v1.Jobs/List/", vec![good]),
        ("/muster.v1.jobs/list", vec![good]),
        ("/muster.v1.Jobs/%4cist", vec![good]),
        ("/grpc.health.v1.Health/../../muster.v1.Jobs/List", vec![]),
        (list, vec![]),
        (list, vec![good, good]),
        (list, vec![good, ("authorization", "Bearer x")]),
        (list, vec![("authorization", token.trim())]),
        (list, vec![("authorization", "Basic cm9vdDpyb290")]),
        (
            list,
            vec![
                ("muster-passed-on", "user:root"),
                ("muster-principal", "user:root"),
                ("x-forwarded-for", "127.0.0.1"),
            ],
        ),
        // What only machines may, at the endpoint for people.
        ("/muster.v1.Peer/Forward", vec![good]),
        ("/muster.v1.Peer/AppendEntries", vec![]),
        ("/muster.v1.Shards/Watch", vec![good]),
        ("/muster.v1.Agents/Session", vec![]),
        ("/muster.v1.Admin/Bootstrap", vec![good]),
    ] {
        let (got, text) = code(&fleet, path, &headers);
        assert!(got != Code::Ok && !text.contains(SECRET), "{path} {headers:?}: {got:?} {text}");
    }
    fleet.is_well();
    fleet.is_recorded(&["two authorization headers", "no credentials were sent"]);
}

/// Attempt 25.
#[test]
fn attempt_25_a_credential_that_does_not_hold_opens_nothing() {
    let fleet = Fleet::start();
    let token = std::fs::read_to_string(fleet.token("beta")).expect("a token").trim().to_owned();
    let alphas = std::fs::read_to_string(fleet.token("alpha")).expect("a token").trim().to_owned();
    let list = "/muster.v1.Jobs/List";
    let with = |text: &str| code(&fleet, list, &[("authorization", &format!("Bearer {text}"))]).0;
    assert_eq!(with(&token), Code::Ok);
    // Each part of it, the parts of two together, and what other systems take for a proof.
    let parts = |text: &str| text.split('_').map(str::to_owned).collect::<Vec<_>>();
    let (own, other) = (parts(&token), parts(&alphas));
    let mut forged: Vec<String> = Vec::new();
    for at in 0..own.len() {
        let mut mixed = own.clone();
        mixed[at].clone_from(&other[at]);
        if mixed != own {
            forged.push(mixed.join("_"));
        }
        let mut cut = own.clone();
        cut[at].pop();
        forged.push(cut.join("_"));
    }
    forged.push(token.to_uppercase());
    forged.push(format!("{token} {alphas}"));
    forged.push(String::new());
    // {"alg":"none"}.{"sub":"root","exp":"9999999999"}.
    forged.push("eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290IiwiZXhwIjoiOTk5OTk5OTk5OSJ9.".to_owned());
    for text in forged {
        assert_eq!(with(&text), Code::Unauthenticated, "{text}");
    }
    // Revoked, it is worth nothing from the answer on.
    let tokens = fleet.dev.run(&["token", "list", "-o", "json"]).json();
    let id = tokens
        .as_array()
        .expect("a list")
        .iter()
        .find(|one| one["principal"] == "service:beta/ci")
        .expect("beta's")["id"]
        .to_string();
    fleet.dev.ok(&["token", "revoke", &id]);
    assert_eq!(with(&token), Code::Unauthenticated);
    fleet.is_well();
}

/// Attempt 15.
#[test]
fn attempt_15_a_task_finds_nothing_on_its_node_with_which_it_could_call() {
    let fleet = Fleet::start();
    let folder = fleet.dev.path("dev").display().to_string();
    let script = format!(
        "env | grep -i -e token -e secret -e MUSTER_CONFIG -e MUSTER_ROOTS && echo GOT environment\n\
         for file in {folder}/session.token {folder}/identities/*/machine.pem {folder}/identities/*/*/machine.pem {folder}/identities/ca/root.pem \
             {folder}/control-1/* /proc/*/environ; do cat \"$file\" 2>/dev/null | grep -a -q -e mst_ -e 'PRIVATE KEY' -e MUSTER_CONFIG && echo GOT $file; done\n\
         for to in {} {}; do\n\
           muster --endpoints $to --timeout 2s jobs && echo GOT jobs of $to\n\
           MUSTER_ROOTS_FILE={folder}/identities/ca/roots.pem muster --endpoints $to --timeout 2s jobs && echo GOT jobs of $to, encrypted\n\
         done\n\
         muster recover --data {folder}/control-1 --user root && echo GOT a session\n\
         echo TRIED",
        fleet.for_people(),
        fleet.for_machines()
    );
    let job = fleet
        .as_tenant("beta", &["submit", "--tenant", "beta", "--gpus", "1", "--", "sh", "-c", &script])
        .out
        .trim()
        .to_owned();
    fleet.dev.until(&job, &["completed", "failed"]);
    let said = fleet.as_tenant("beta", &["logs", &job]);
    assert!(said.out.contains("TRIED"), "{}{}", said.out, said.err);
    // An agent of an ordinary user cannot give its tasks another user: then they read what that user may.
    if nix::unistd::geteuid().is_root() {
        assert!(!said.out.contains("GOT"), "{}", said.out);
    }
    fleet.is_well();
    let stranger: Said = alone(&["recover", "--data", &format!("{folder}/nothing")], &fleet.dev.path("nobody"))
        .output()
        .expect("muster")
        .into();
    assert_ne!(stranger.code, 0);
}
