//! Secrets of tenants by the commands that people use: they reach the environment of the tasks that name them, and nothing else.

use crate::common::{Dev, Said};
use crate::waiting::wait_for;
use std::io::Write;
use std::process::Stdio;

/// What a task prints of the value of TOKEN without printing it.
const SHOW: &str = "printf %s \"$TOKEN\" | sha256sum | cut -d' ' -f1";

fn sha256(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn put(dev: &Dev, name: &str, value: &str) -> Said {
    let mut child = dev
        .command(&["secret", "put", name, "--tenant", "dev"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("muster");
    child.stdin.take().expect("its input").write_all(value.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends").into()
}

/// The hash of the value that a job of these arguments was given.
fn seen_by(dev: &Dev, args: &[&str]) -> String {
    let job = dev.ok(args).trim().to_owned();
    dev.until(&job, &["completed"]);
    dev.ok(&["logs", &job]).trim().to_owned()
}

#[test]
fn a_secret_reaches_the_tasks_that_name_it_and_nobody_reads_it_back() {
    let dev = Dev::start(&["--nodes", "1"]);
    let said = put(&dev, "registry", "s3cret-of-the-registry\n");
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{}", said.out);
    let flags = ["submit", "--tenant", "dev", "--secret-env", "TOKEN=registry", "--", "sh", "-c", SHOW];
    assert_eq!(seen_by(&dev, &flags), sha256("s3cret-of-the-registry"), "the newline of the file is no part of it");
    let file = format!(
        "tenant: dev\nenv:\n  PLAIN: 1\n  TOKEN: {{secret: registry}}\ncommand: [sh, -c, {}]\n",
        serde_json::to_string(SHOW).expect("text")
    );
    let file = dev.file("job.yaml", &file);
    assert_eq!(seen_by(&dev, &["submit", "-f", &file]), sha256("s3cret-of-the-registry"));

    // What comes later has the new value; what people see has none.
    assert_eq!(put(&dev, "registry", "another").code, 0);
    assert_eq!(seen_by(&dev, &flags), sha256("another"));
    let listed = dev.ok(&["secret", "list", "--tenant", "dev"]);
    assert!(listed.contains("registry") && !listed.contains("another"), "{listed}");
    let job = dev.ok(&["submit", "--tenant", "dev", "--secret-env", "TOKEN=registry", "--", "sleep", "600"]);
    let job = job.trim();
    dev.until(job, &["running"]);
    let shown = dev.ok(&["job", job]);
    assert!(shown.contains("TOKEN from secret registry") && !shown.contains("another"), "{shown}");

    // A job that has not ended has its secrets; nobody asks for one that is not there.
    dev.refused(&["secret", "delete", "registry", "--tenant", "dev"], 5, &["registry", &format!("job {job} uses it")]);
    let unknown = ["submit", "--tenant", "dev", "--secret-env", "TOKEN=registri", "--", "true"];
    dev.refused(&unknown, 2, &["secret_env", "registri", "use one of registry"]);
    dev.ok(&["cancel", job]);
    dev.until(job, &["cancelled"]);
    dev.ok(&["secret", "delete", "registry", "--tenant", "dev"]);
    dev.refused(&["secret", "delete", "registry", "--tenant", "dev"], 3, &["secret registry does not exist"]);
    let listed = dev.ok(&["audit", "list"]);
    assert!(listed.contains("secret registry of dev") && !listed.contains("another"), "{listed}");
}

#[test]
fn secrets_are_made_by_admins_of_the_tenant_and_named_by_its_submitters() {
    let dev = Dev::start(&["--nodes", "1"]);
    let tenants = dev.file("tenants.yaml", "red: {}\nblue: {}\n");
    dev.ok(&["tenants", "apply", "-f", &tenants]);
    let token = |service: &str, role: &str| {
        let text = dev.ok(&["token", "create", service, "--role", role, "--ttl", "1h"]);
        dev.private_file(&format!("{}.token", service.replace('/', "-")), &text)
    };
    let (admin, submitter, foreign) =
        (token("red/admin", "admin"), token("red/ci", "submitter"), token("blue/ci", "admin"));
    let value = dev.file("value", "s3cret");
    let put = ["secret", "put", "key", "--tenant", "red", "--from-file", &value];
    let list = ["secret", "list", "--tenant", "red"];
    assert_eq!(dev.run_with(&submitter, &put).code, 5, "a submitter makes none");
    let denied = dev.run_with(&foreign, &put);
    assert!(denied.code == 3 && denied.err.contains("tenant red does not exist"), "{denied:?}");
    assert_eq!(dev.run_with(&admin, &put).code, 0);
    assert!(dev.run_with(&submitter, &list).out.contains("key"), "a submitter sees names");
    let denied = dev.run_with(&foreign, &list);
    assert!(denied.code == 3 && denied.err.contains("tenant red does not exist"), "{denied:?}");
    // A name is that of the own tenant: another's secret is none.
    let stolen = dev.run_with(&foreign, &["submit", "--tenant", "blue", "--secret-env", "TOKEN=key", "--", "true"]);
    assert!(stolen.code == 2 && stolen.err.contains("which tenant blue does not have"), "{stolen:?}");
    let job =
        dev.run_with(&submitter, &["submit", "--tenant", "red", "--secret-env", "TOKEN=key", "--", "sh", "-c", SHOW]);
    dev.until(job.out.trim(), &["completed"]);
    assert_eq!(dev.ok(&["logs", job.out.trim()]).trim(), sha256("s3cret"));
    // A value has a bound.
    let long = dev.file("long", &"x".repeat(4_097));
    dev.refused(
        &["secret", "put", "key", "--tenant", "red", "--from-file", &long],
        2,
        &["value", "at most 4096 bytes"],
    );
}

#[test]
fn a_task_waits_until_its_secrets_can_be_opened() {
    let dev = Dev::start(&["--nodes", "1"]);
    assert_eq!(put(&dev, "registry", "s3cret").code, 0);
    let key = dev.path("dev/identities/control-1/secrets.key");
    let away = dev.path("secrets.key.away");
    std::fs::rename(&key, &away).expect("moved away");
    let refused = put(&dev, "other", "value");
    assert!(refused.code != 0 && refused.err.contains("has no secrets.key"), "{refused:?}");
    let job = dev.ok(&["submit", "--tenant", "dev", "--secret-env", "TOKEN=registry", "--", "sh", "-c", SHOW]);
    let job = job.trim();
    let log = dev.path("dev/logs/control-1.log");
    wait_for("the control node says that a task waits", || {
        std::fs::read_to_string(&log).unwrap_or_default().contains("a task waits for its secrets")
    });
    assert_eq!(dev.state(job), "starting");
    let said = dev.ok(&["job", job]);
    assert!(said.contains("its tasks wait for their secrets") && said.contains("has no secrets.key"), "{said}");
    std::fs::rename(&away, &key).expect("moved back");
    dev.until(job, &["completed"]);
    assert_eq!(dev.ok(&["logs", job]).trim(), sha256("s3cret"));
}
