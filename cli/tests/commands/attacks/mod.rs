//! What a tenant, a stolen token and a captured machine may try against the control plane, through its ports, as another tenant than the one it is tried against: each
//! attempt fails, and what is tried against is as it was. The numbers are those of docs/SECURITY.md; those against a node are in `tests/nodes/escapes`.

mod calls;
mod jobs;
mod machines;

use crate::common::{Dev, Said};
use muster_runtime::pki::{Role, Roots, X509};
use muster_runtime::real::{self, Dialler};
use muster_runtime::{Channel as MachineChannel, Expect, Transport};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// What alpha keeps for itself: in its environment, its command, its name and its output.
const SECRET: &str = "alphas-secret-4712";

/// An encrypted, closed cluster with a victim, and an attacker of another tenant.
struct Fleet {
    dev: Dev,
    /// Alpha's running job.
    victim: String,
    runtime: tokio::runtime::Runtime,
}

impl Fleet {
    fn start() -> Self {
        let dev = Dev::start(&["--nodes", "2"]);
        let tree = dev.file("tree.yaml", "alpha: {}\nbeta: {}\n");
        dev.ok(&["tenants", "apply", "-f", &tree]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut fleet = Fleet { dev, victim: String::new(), runtime };
        for tenant in ["alpha", "beta"] {
            let made =
                fleet.dev.ok(&["token", "create", &format!("{tenant}/ci"), "--role", "submitter", "--ttl", "1h"]);
            std::fs::write(fleet.token(tenant), made).expect("a token");
            std::fs::set_permissions(fleet.token(tenant), std::fs::Permissions::from_mode(0o600))
                .expect("a private file");
        }
        let script = format!("echo {SECRET}; sleep 600");
        let env = format!("KEY={SECRET}");
        let words =
            ["submit", "--tenant", "alpha", "--gpus", "1", "--name", SECRET, "--env", &env, "--", "sh", "-c", &script];
        fleet.victim = fleet.as_tenant("alpha", &words).out.trim().to_owned();
        fleet.dev.until(&fleet.victim, &["running"]);
        fleet
    }

    fn token(&self, tenant: &str) -> PathBuf {
        self.dev.path(&format!("{tenant}.token"))
    }

    /// Runs a command with the token of a tenant.
    fn as_tenant(&self, tenant: &str, args: &[&str]) -> Said {
        self.dev.command(args).env("MUSTER_TOKEN_FILE", self.token(tenant)).output().expect("muster").into()
    }

    /// The victim runs on, with the output that it had.
    fn is_well(&self) {
        let job = self.dev.run(&["job", &self.victim, "-o", "json"]).json();
        assert_eq!((&job["state"], &job["attempt"]), (&"running".into(), &1.into()), "{job}");
        let said = self.as_tenant("alpha", &["logs", &self.victim]);
        assert_eq!(said.out, format!("{SECRET}\n"), "{}", said.err);
    }

    /// That the audit shows what was refused.
    fn is_recorded(&self, words: &[&str]) {
        let denials = self.dev.ok(&["audit", "denials", "--limit", "1000"]);
        for word in words {
            assert!(denials.contains(word), "{word}: {denials}");
        }
        self.dev.ok(&["audit", "verify"]);
    }

    /// Where people are served.
    fn for_people(&self) -> String {
        self.dev.endpoints().remove(0)
    }

    /// Where machines are.
    fn for_machines(&self) -> String {
        let endpoint = self.for_people();
        let (host, port) = endpoint.rsplit_once(':').expect("a port");
        format!("{host}:{}", port.parse::<u16>().expect("a port") + 5)
    }

    fn roots(&self) -> Roots {
        let text = std::fs::read(self.dev.path("dev/identities/ca/roots.pem")).expect("roots");
        Roots::from_pem(&X509, &text).expect("roots")
    }

    /// A connection of somebody who knows the roots and says nothing of themselves.
    fn channel(&self, endpoint: &str) -> Channel {
        let _on = self.runtime.enter();
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}")).expect("an endpoint");
        Dialler::new(self.roots()).expect("roots").channel(&endpoint.connect_timeout(Duration::from_secs(2)))
    }

    /// A connection to the endpoint for machines, by whoever has stolen this machine's folder.
    fn captured(&self, folder: &str, role: Role) -> MachineChannel {
        let _on = self.runtime.enter();
        let identity = self.dev.path("dev/identities").join(folder);
        let data = self.dev.path("captured");
        let host = real::identified_host("captured", data, Duration::ZERO, Some(&identity));
        host.prepare(Transport::Mutual, &role, None).expect("its own credentials");
        host.net.dial(&self.for_machines(), Expect::Control).expect("an endpoint")
    }
}

/// A request with the token of a tenant.
fn with_token<T>(fleet: &Fleet, tenant: &str, message: T) -> tonic::Request<T> {
    let text = std::fs::read_to_string(fleet.token(tenant)).expect("a token");
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {}", text.trim()).parse().expect("a header"));
    request
}
