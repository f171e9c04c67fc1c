//! `muster backup`: the state in a file, and a new cluster from it.
//!
//! What must stay true: a file takes its name only once it is whole and on the disk; what is not whole is never restored; a folder that is in use is not touched.

use crate::args::backup::{Backup, CreateBackup, RestoreBackup};
use crate::commands::ca;
use crate::failure::Failure;
use crate::output::Out;
use crate::recovery;
use crate::view::backup::{BackupView, RestoredView};
use muster_control_server::backup::{self, Reader, Target};
use muster_runtime::pki::Role;
use muster_runtime::real;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// It has environments of jobs, and hashes of tokens.
const OWNER_ONLY: u32 = 0o600;

/// Runs one of them.
///
/// # Errors
/// What is wrong with the file, the folder or the control node.
pub async fn run(out: &Out, command: &Backup) -> Result<(), Failure> {
    match command {
        Backup::Create(args) => create(out, args).await,
        Backup::Verify { file } => {
            let view = verified(file)?;
            out.show(&view, |_| view.blocks())
        }
        Backup::Restore(args) => restore(out, args).await,
    }
}

async fn create(out: &Out, args: &CreateBackup) -> Result<(), Failure> {
    let part = beside(&args.file);
    let made = written(args, &part).await;
    if made.is_err() {
        // What was written of it is of no use.
        let _ = std::fs::remove_file(&part);
    }
    made?;
    let view = verified(&args.file)?;
    out.show(&view, |_| view.blocks())
}

async fn written(args: &CreateBackup, part: &Path) -> Result<(), Failure> {
    let io = |doing: &str, path: &Path, error| Failure::io(format!("{doing} {}", path.display()), error);
    // One that was left by a backup that was cut off.
    let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(OWNER_ONLY).open(part);
    let mut file = opened.map_err(|error| io("making", part, error))?;
    let take = |bytes: &[u8]| file.write_all(bytes).map_err(anyhow::Error::from);
    recovery::backup(&args.data, args.stale, take).await.map_err(Failure::Role)?;
    file.sync_all().map_err(|error| io("writing", part, error))?;
    verified(part)?;
    std::fs::rename(part, &args.file).map_err(|error| io("naming", &args.file, error))?;
    let folder = args.file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| io("writing", folder, error))
}

/// The name under which a backup is written before it is whole.
fn beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    file.with_file_name(name)
}

fn opened(file: &Path) -> Result<Reader<BufReader<File>>, Failure> {
    let opened = File::open(file).map_err(|error| Failure::io(format!("opening {}", file.display()), error))?;
    Reader::open(BufReader::new(opened)).map_err(|error| refused(file, &error))
}

fn verified(file: &Path) -> Result<BackupView, Failure> {
    let (head, summary) = opened(file)?.verify().map_err(|error| refused(file, &error))?;
    Ok(BackupView::new(file, head, summary))
}

fn refused(file: &Path, error: &impl std::fmt::Display) -> Failure {
    Failure::Refused(format!("{}: {error}", file.display()))
}

async fn restore(out: &Out, args: &RestoreBackup) -> Result<(), Failure> {
    let key_sha256 = args.identity.as_deref().map(|folder| key_of(folder, args.id)).transpose()?;
    // All of it is read once before the folder is made.
    verified(&args.file)?;
    let is_empty = std::fs::read_dir(&args.data).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty {
        let problem = format!("{} is not empty", args.data.display());
        return Err(Failure::field("data", problem, "give a new folder; the old one may still be needed"));
    }
    let from = opened(&args.file)?;
    let host = real::identified_host(format!("control-{}", args.id), &args.data, Duration::ZERO, None);
    let (address, incarnation_above) = (args.advertise.clone(), args.incarnation_above);
    let target = Target { id: args.id, address, key_sha256, incarnation_above };
    let restored = backup::restore(&host, &target, from).await.map_err(|error| refused(&args.file, &error))?;
    let view = RestoredView::new(args, restored);
    out.show(&view, |_| view.blocks())
}

/// The key of control node `id` in a folder.
fn key_of(folder: &Path, id: u64) -> Result<[u8; 32], Failure> {
    match ca::identity(folder)? {
        Some((Role::Control(known), key)) if known == id => Ok(key),
        found => {
            let there = match found {
                Some((role, _)) => format!("{} has the identity of {role:?}", folder.display()),
                None => format!("{} has no identity of a machine", folder.display()),
            };
            Err(Failure::field("identity", there, format!("give the folder that `muster ca control {id}` has made")))
        }
    }
}
