//! `muster ca`: roots, issuers and identities of machines, in folders on this machine. Nothing here talks with a cluster.
//!
//! What must stay true: no file is replaced by one for another name, and a renewal keeps the key; keys are readable by their owner alone.

use crate::args::ca::{Ca, Machine};
use crate::commands::now_ms;
use crate::failure::Failure;
use crate::output::Out;
use crate::view::ca::{AuthorityView, FolderView, MachineView};
use muster_runtime::Files;
use muster_runtime::pki::{
    Authority, Credentials, ISSUER_FILE, MACHINE_FILE, MachineName, PkiError, ROOT_FILE, ROOTS_FILE, Role, Roots,
    SECRETS_KEY_FILE, Scheme, Subject, X509, issue, new_root, sign_issuer,
};
use muster_runtime::real;
use ring::rand::SecureRandom;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs one of them.
///
/// # Errors
/// What cannot be read, signed or written.
pub async fn run(out: &Out, command: &Ca) -> Result<(), Failure> {
    match command {
        Ca::Init { cluster, out: to } => init(out, cluster, to).await,
        Ca::Control { id, ca, out: to } => control(out, *id, ca, to).await,
        Ca::Shard(machine) => sign(out, machine, Role::Shard(machine.name.clone())).await,
        Ca::Node(machine) => sign(out, machine, Role::Node(machine.name.clone())).await,
        Ca::Trust { roots, identity, only } => trust(out, roots, identity, *only).await,
        Ca::SecretsKey { out: to } => {
            make_secrets_key(to).await?;
            let at = to.join(SECRETS_KEY_FILE);
            out.line(&format!(
                "{}: copy it to the folder of each control node's identity, and keep a copy",
                at.display()
            ))
        }
        Ca::Show { folder } => {
            let view = shown(&Folder::of(folder))?;
            out.show(&view, |_| view.blocks())
        }
    }
}

/// One folder, with the path for messages.
struct Folder {
    path: PathBuf,
    files: Arc<dyn Files>,
}

impl Folder {
    fn of(path: &Path) -> Self {
        Folder { path: path.to_owned(), files: real::small_files(path) }
    }

    /// Makes it, for nobody else to look into, where it is not there.
    fn make(&self) -> Result<(), Failure> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.map_err(|error| Failure::io(format!("making {}", self.path.display()), error))
    }

    fn failed(&self, error: &PkiError) -> Failure {
        Failure::Refused(format!("{}: {error}", self.path.display()))
    }

    /// What `read` gives; none where the file is not there.
    fn maybe<T>(&self, read: Result<T, PkiError>) -> Result<Option<T>, Failure> {
        match read {
            Ok(there) => Ok(Some(there)),
            Err(PkiError::Missing { .. }) => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn authority(&self, file: &'static str) -> Result<Option<Authority>, Failure> {
        self.maybe(Authority::load(&X509, &*self.files, file))
    }

    fn machine(&self) -> Result<Option<Credentials>, Failure> {
        self.maybe(Credentials::load(&X509, &*self.files))
    }

    fn roots(&self) -> Result<Option<Roots>, Failure> {
        let read = |file| self.files.read(file).map_err(PkiError::from)?.ok_or(PkiError::Missing { file });
        self.maybe(read(ROOTS_FILE).and_then(|text| Roots::from_pem(&X509, &text)))
    }

    async fn write_roots(&self, roots: &Roots) -> Result<(), Failure> {
        let written = self.files.write(ROOTS_FILE, roots.to_pem().into_bytes()).await;
        written.map_err(|error| self.failed(&error.into()))
    }
}

/// Makes the root and the issuers' certificates of new clusters: for `muster dev` too.
///
/// # Errors
/// When there is a root already, or the name cannot be one.
pub async fn make_root(cluster: &str, to: &Path) -> Result<String, Failure> {
    let folder = Folder::of(to);
    if folder.authority(ROOT_FILE)?.is_some() {
        let problem = format!("{} has a root already", to.display());
        return Err(Failure::Refused(format!("{problem}; give another --out, or use that one")));
    }
    let root = new_root(&X509, cluster, now_ms()).map_err(|error| {
        Failure::field("cluster", error.to_string(), "use 1 to 63 lower-case letters, digits and '-'")
    })?;
    let roots = Roots::new(&X509, vec![root.certificate().clone()]).map_err(|error| folder.failed(&error))?;
    folder.make()?;
    // The key last: once it is there, all of it is.
    folder.write_roots(&roots).await?;
    make_secrets_key(to).await?;
    root.save(&*folder.files, ROOT_FILE).await.map_err(|error| folder.failed(&error))?;
    Ok(roots.fingerprints().join(", "))
}

/// Makes the key that seals the secrets of tenants, in front of those that are in the file already: for `muster dev` too.
///
/// # Errors
/// When the folder cannot be read or written.
pub async fn make_secrets_key(to: &Path) -> Result<(), Failure> {
    let folder = Folder::of(to);
    folder.make()?;
    let kept = folder.files.read(SECRETS_KEY_FILE).map_err(|error| folder.failed(&error.into()))?.unwrap_or_default();
    let mut key = [0; 32];
    let drawn = ring::rand::SystemRandom::new().fill(&mut key);
    drawn.map_err(|_| Failure::Refused("this machine gives no random numbers".to_owned()))?;
    let mut text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push('\n');
    let text = [text.into_bytes(), kept].concat();
    folder.files.write(SECRETS_KEY_FILE, text).await.map_err(|error| folder.failed(&error.into()))
}

/// Every control node has the same keys. One that has some already keeps them.
async fn copy_secrets_key(from: &Folder, to: &Folder) -> Result<(), Failure> {
    let read = |folder: &Folder| folder.files.read(SECRETS_KEY_FILE).map_err(|error| folder.failed(&error.into()));
    match (read(to)?, read(from)?) {
        (None, Some(keys)) => to.files.write(SECRETS_KEY_FILE, keys).await.map_err(|error| to.failed(&error.into())),
        _ => Ok(()),
    }
}

/// Until when the certificate of the machine in this folder is valid, in ms since the Unix epoch; none where there is none.
///
/// # Errors
/// When it cannot be read.
pub fn valid_until_ms(folder: &Path) -> Result<Option<u64>, Failure> {
    let machine = Folder::of(folder).machine()?;
    Ok(machine.and_then(|machine| Some(machine.presented()?.validity.until_ms)))
}

/// Which machine the folder has the identity of, and its key; none where there is none.
///
/// # Errors
/// When it cannot be read.
pub fn identity(folder: &Path) -> Result<Option<(Role, [u8; 32])>, Failure> {
    let machine = Folder::of(folder).machine()?;
    let presented = machine.as_ref().and_then(Credentials::presented);
    Ok(presented.map(|presented| (presented.name.role().clone(), presented.spki_sha256.0)))
}

async fn init(out: &Out, cluster: &str, to: &Path) -> Result<(), Failure> {
    let fingerprint = make_root(cluster, to).await?;
    out.line(&format!("root of cluster {cluster}: {}\nfingerprint: {fingerprint}", to.join(ROOT_FILE).display()))
}

/// Makes or renews the identity of a control node.
///
/// # Errors
/// When the folder of the root has none, or the other folder has another machine's identity.
pub async fn make_control(id: u64, ca: &Path, to: &Path) -> Result<MachineView, Failure> {
    let (ca, folder) = (Folder::of(ca), Folder::of(to));
    let Some(root) = ca.authority(ROOT_FILE)? else {
        let problem = format!("{} has no {ROOT_FILE}", ca.path.display());
        return Err(Failure::field("ca", problem, "give the folder that `muster ca init` has made"));
    };
    let failed = |error: PkiError| folder.failed(&error);
    let cluster = root.stated().subject.cluster().to_owned();
    let name = named(&cluster, Role::Control(id))?;
    let known = folder.machine()?;
    is_same(&folder, known.as_ref(), &name)?;
    folder.make()?;
    let kept = folder.authority(ISSUER_FILE)?;
    let key = kept.map_or_else(|| X509.new_key(), |issuer| Ok(issuer.key().clone())).map_err(failed)?;
    let request = X509.request(&key, &Subject::Issuer { cluster, id }).map_err(failed)?;
    let certificate = sign_issuer(&X509, &root, &request, id, now_ms()).map_err(failed)?;
    copy_secrets_key(&ca, &folder).await?;
    let issuer = Authority::new(&X509, key, certificate).map_err(failed)?;
    issuer.save(&*folder.files, ISSUER_FILE).await.map_err(failed)?;
    let roots = Roots::new(&X509, vec![root.certificate().clone()]).map_err(failed)?;
    signed(&folder, known, &issuer, roots, &name).await
}

async fn control(out: &Out, id: u64, ca: &Path, to: &Path) -> Result<(), Failure> {
    let view = make_control(id, ca, to).await?;
    out.line(&view.made(to))
}

/// Makes or renews the identity of a shard or a node.
///
/// # Errors
/// When the folder of the issuer has none, or the other folder has another machine's identity.
pub async fn make_machine(role: Role, issuer: &Path, to: &Path) -> Result<MachineView, Failure> {
    let (from, folder) = (Folder::of(issuer), Folder::of(to));
    let (Some(issuer), Some(roots)) = (from.authority(ISSUER_FILE)?, from.roots()?) else {
        let problem = format!("{} has no {ISSUER_FILE} and {ROOTS_FILE}", from.path.display());
        return Err(Failure::field("issuer", problem, "give the folder that `muster ca control` has made"));
    };
    let name = named(issuer.stated().subject.cluster(), role)?;
    let known = folder.machine()?;
    is_same(&folder, known.as_ref(), &name)?;
    folder.make()?;
    signed(&folder, known, &issuer, roots, &name).await
}

async fn sign(out: &Out, machine: &Machine, role: Role) -> Result<(), Failure> {
    let view = make_machine(role, &machine.issuer, &machine.out).await?;
    out.line(&view.made(&machine.out))
}

fn named(cluster: &str, role: Role) -> Result<MachineName, Failure> {
    MachineName::new(cluster, role).map_err(|error| {
        Failure::field(
            "name",
            error.to_string(),
            "use letters, digits, '-', '_' and '.'; ids of control nodes begin at 1",
        )
    })
}

fn is_same(folder: &Folder, known: Option<&Credentials>, name: &MachineName) -> Result<(), Failure> {
    match known.and_then(Credentials::name) {
        Some(other) if other != name => Err(Failure::Refused(format!(
            "{} has the identity of {other}; give another --out for {name}",
            folder.path.display()
        ))),
        _ => Ok(()),
    }
}

/// Signs the certificate and writes it, with the roots that the folder trusts already and these.
async fn signed(
    folder: &Folder,
    known: Option<Credentials>,
    issuer: &Authority,
    roots: Roots,
    name: &MachineName,
) -> Result<MachineView, Failure> {
    let failed = |error: PkiError| folder.failed(&error);
    let roots = match folder.roots()? {
        Some(trusted) => trusted.and(&X509, &roots).map_err(failed)?,
        None => roots,
    };
    let key = known.as_ref().and_then(Credentials::key).cloned();
    let renewed = key.is_some();
    let key = key.map_or_else(|| X509.new_key(), Ok).map_err(failed)?;
    let made = issue(&X509, issuer, roots, (name, key), now_ms()).map_err(failed)?;
    made.save(&*folder.files).await.map_err(failed)?;
    MachineView::of(&made, renewed).ok_or_else(|| failed(PkiError::Missing { file: MACHINE_FILE }))
}

async fn trust(out: &Out, file: &Path, identity: &Path, only: bool) -> Result<(), Failure> {
    let folder = Folder::of(identity);
    let text = std::fs::read(file).map_err(|error| Failure::io(format!("reading {}", file.display()), error))?;
    let more = Roots::from_pem(&X509, &text)
        .map_err(|error| Failure::field("roots", format!("{}: {error}", file.display()), "give a roots.pem"))?;
    let Some(machine) = folder.machine()? else {
        let problem = format!("{} has no {MACHINE_FILE}", identity.display());
        return Err(Failure::field("identity", problem, "give the folder of a machine's identity"));
    };
    let failed = |error: PkiError| folder.failed(&error);
    let roots = if only { more } else { machine.roots().and(&X509, &more).map_err(failed)? };
    let trusting = machine.trusting(&X509, roots.clone()).map_err(|error| {
        Failure::Refused(format!(
            "{}: {error}; renew its certificate under one of these roots first",
            identity.display()
        ))
    })?;
    trusting.save(&*folder.files).await.map_err(failed)?;
    out.line(&format!("{} trusts {}", identity.display(), roots.fingerprints().join(", ")))
}

fn shown(folder: &Folder) -> Result<FolderView, Failure> {
    let roots = folder.roots()?;
    let mut authorities = Vec::new();
    for file in [ROOT_FILE, ISSUER_FILE] {
        authorities.extend(folder.authority(file)?.map(|authority| AuthorityView::of(file, &authority)));
    }
    // Without roots there is nothing to check a machine's certificate by.
    let machine = if roots.is_some() { folder.machine()? } else { None };
    let view = FolderView {
        machine: machine.as_ref().and_then(|machine| MachineView::of(machine, false)),
        authorities,
        trusts: roots.map(|roots| roots.fingerprints()).unwrap_or_default(),
    };
    match view.is_empty() {
        false => Ok(view),
        true => Err(Failure::NotFound(format!("{} has no keys or certificates", folder.path.display()))),
    }
}
