//! Secrets of tenants, as far as the state machine holds them.

use muster_control_core::{Command, Done, Entry, Reject, State, execute};
use muster_model::identity::{Sealed, Secret};
use muster_model::request::TaskRequest;
use muster_model::tenant_edit::TenantEdit;
use muster_model::{DeviceRequest, JobId, JobSpec, TenantId, ValidJobSpec};

const NOW_MS: u64 = 1_000_000;

fn done(state: &mut State, command: Command) -> Result<Done, Reject> {
    let executed = execute(state, &Entry { now_ms: NOW_MS, commands: vec![command] });
    state.check().expect("a whole state");
    executed.decided.into_iter().next().expect("one answer")
}

fn cluster() -> State {
    let mut state = State::new(1);
    state.meta.feature_level = 5;
    let edit = |path: &str| TenantEdit { path: path.to_owned(), ..TenantEdit::default() };
    let edits = ["red", "red/a", "blue"].map(edit).to_vec();
    done(&mut state, Command::EditTenants { edits, prune: false, half_life_s: None }).expect("tenants");
    state
}

fn id(state: &State, path: &str) -> TenantId {
    state.index().tenant_ids[path]
}

fn put(state: &State, at: &str, name: &str, bytes: usize) -> Command {
    let sealed = Sealed { key: [1; 8], nonce: [2; 12], text: vec![3; bytes] };
    Command::PutSecret { at: at.to_owned(), tenant: id(state, at), name: name.to_owned(), sealed }
}

fn delete(at: &str, name: &str) -> Command {
    Command::DeleteSecret { at: at.to_owned(), name: name.to_owned() }
}

fn submit(state: &mut State, number: u64, tenant: &str, secret: &str) -> Result<JobId, Reject> {
    let request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 1_000, memory_mib: 64 };
    let mut spec = JobSpec::usual(tenant, request, &["true"]);
    spec.secret_env.insert("TOKEN".to_owned(), secret.to_owned());
    let specs: Vec<ValidJobSpec> = vec![spec.validate().expect("a valid job")];
    let (request_id, payload_hash) = (format!("request-{number}"), number);
    let command = Command::Submit { request_id, issued_ms: NOW_MS, payload_hash, specs, ended: Vec::new() };
    match done(state, command)? {
        Done::Submitted { first, .. } => Ok(first),
        other => panic!("a submission was answered {other:?}"),
    }
}

fn why(answer: Result<impl std::fmt::Debug, Reject>) -> String {
    answer.expect_err("it is refused").to_string()
}

#[test]
fn a_job_names_secrets_of_its_own_tenant_alone() {
    let mut state = cluster();
    let of_red = put(&state, "red", "key", 20);
    done(&mut state, of_red).expect("a secret");
    submit(&mut state, 1, "red", "key").expect("its own");
    // Neither those beside it nor those below it: whoever runs a job can print what it gets.
    for (number, tenant) in [(2, "blue"), (3, "red/a")] {
        let refused = why(submit(&mut state, number, tenant, "key"));
        assert!(refused.contains(&format!("which tenant {tenant} does not have")), "{refused}");
    }
    let refused = why(submit(&mut state, 4, "red", "kei"));
    assert!(refused.contains("use one of key"), "{refused}");
}

#[test]
fn no_live_job_names_a_secret_that_is_gone() {
    let mut state = cluster();
    let of_red = put(&state, "red", "key", 20);
    done(&mut state, of_red).expect("a secret");
    let job = submit(&mut state, 1, "red", "key").expect("a job");
    assert!(why(done(&mut state, delete("red", "key"))).contains(&format!("job {job} uses it")));
    done(&mut state, Command::Cancel { job }).expect("it is cancelled");
    done(&mut state, delete("red", "key")).expect("nobody uses it");
    assert!(state.secrets.is_empty());
    assert!(why(done(&mut state, delete("red", "key"))).contains("secret key does not exist"));
}

#[test]
fn secrets_go_with_their_tenant_and_stay_with_it_when_it_moves() {
    let mut state = cluster();
    for at in ["red/a", "blue"] {
        let command = put(&state, at, "key", 20);
        done(&mut state, command).expect("a secret");
    }
    let sealed_for_red_a = put(&state, "red/a", "key", 20);
    let moved = id(&state, "red/a");
    done(&mut state, Command::MoveTenant { path: "red/a".to_owned(), to: "blue/a".to_owned() }).expect("it moves");
    assert!(state.secrets.contains_key(&Secret::id_of(moved, "key")));
    submit(&mut state, 1, "blue/a", "key").expect("its own, wherever it is");
    // What was sealed for a tenant is not taken for another that has its path by now.
    let edits = vec![TenantEdit { path: "red/a".to_owned(), ..TenantEdit::default() }];
    done(&mut state, Command::EditTenants { edits, prune: false, half_life_s: None }).expect("another red/a");
    assert!(why(done(&mut state, sealed_for_red_a)).contains("tenant red/a does not exist"));
    done(&mut state, Command::Cancel { job: JobId(1) }).expect("it is cancelled");
    done(&mut state, Command::DeleteTenant { path: "blue/a".to_owned() }).expect("it goes");
    let left: Vec<TenantId> = state.secrets.values().map(|secret| secret.tenant).collect();
    assert_eq!(left, [id(&state, "blue")]);
}

#[test]
fn secrets_are_bounded_in_size_and_number() {
    let mut state = cluster();
    let most = put(&state, "red", "key", 4_096 + 16);
    done(&mut state, most).expect("4 KiB with a tag");
    let more = put(&state, "red", "key", 4_096 + 17);
    assert!(why(done(&mut state, more)).contains("has 4097 bytes"));
    let odd = put(&state, "red", "a/b", 20);
    assert!(why(done(&mut state, odd)).contains("name"));
    for number in 1..64 {
        let command = put(&state, "red", &format!("key-{number}"), 20);
        done(&mut state, command).expect("there is room");
    }
    let full = put(&state, "red", "one-more", 20);
    assert!(why(done(&mut state, full)).contains("secrets of tenant red"));
    // One that is there gets another value, and other tenants have room of their own.
    for command in [put(&state, "red", "key-1", 30), put(&state, "blue", "key", 20)] {
        done(&mut state, command).expect("it is taken");
    }
    state.meta.feature_level = 4;
    let early = put(&state, "blue", "key", 20);
    assert!(why(done(&mut state, early)).contains("feature level 5"));
}
