//! The session with which commands reach a development cluster: made at its recovery socket, kept in a file of the data folder, and replaced before it ends.
//!
//! What must stay true: the file is nobody else's to read; whoever uses the cluster is named as on this machine.

use super::folder::Folder;
use super::settings::Settings;
use crate::commands::submit::login_name;
use crate::failure::Failure;
use crate::output::note;
use crate::recovery;
use muster_model::Principal;
use std::time::{Duration, Instant};

/// Between two tries while the cluster has no leader yet.
const PAUSE: Duration = Duration::from_millis(50);
/// Sessions last an hour.
const RENEW_EVERY: Duration = Duration::from_secs(1_800);
/// A new cluster raises its feature level in its first seconds. If the level is still lower after this time, some voters are of an older version.
const RISES_WITHIN: Duration = Duration::from_secs(10);
/// What a cluster says whose voters do not know sessions yet.
const OLD: &str = "feature level";

/// The text of a new session, once the cluster has a leader; none where the cluster is older than sessions.
///
/// # Errors
/// When the file cannot be written.
pub async fn begin(folder: &Folder, settings: &Settings) -> Result<Option<String>, Failure> {
    let named = login_name().filter(|name| Principal::check_user(name).is_ok());
    let user = named.unwrap_or_else(|| "dev".to_owned());
    let began = Instant::now();
    loop {
        for id in 1..=settings.voters {
            match recovery::session(&folder.control(id), &user).await {
                Ok(token) => {
                    folder.write_token(&token)?;
                    return Ok(Some(token));
                }
                Err(error) if error.to_string().contains(OLD) && began.elapsed() > RISES_WITHIN => return Ok(None),
                Err(_) => {}
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Makes a new session now and then, for as long as the cluster runs.
pub async fn keep(folder: &Folder, settings: &Settings) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        if let Err(failure) = begin(folder, settings).await {
            note(&format!("muster dev: the session of this machine's user cannot be renewed: {failure}"));
        }
    }
}
