//! TCP with TLS does what both networks must do with identities; and what only sockets can be made to do does no harm.

mod transport;

use muster_runtime::{Host, real};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Real {
    folder: PathBuf,
    made: AtomicUsize,
}

impl transport::Fabric for Real {
    fn host(&self, name: &str) -> Host {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        real::host(name, self.folder.join(format!("{name}-{number}")))
    }

    fn listen(&self) -> &'static str {
        "127.0.0.1:0"
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_keeps_the_rules_of_identities() {
    let folder = tempfile::tempdir().expect("a folder");
    transport::check_all(&Real { folder: folder.path().to_owned(), made: AtomicUsize::new(0) }).await;
}
