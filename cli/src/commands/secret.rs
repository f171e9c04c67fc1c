//! `muster secret`: secrets of tenants.
//!
//! What must stay true: a value is read from a file or from standard input, never from an argument; it is never printed.

use crate::args::secret::Secret;
use crate::commands::Context;
use crate::failure::Failure;
use crate::view::secret::{SecretView, secrets};
use muster_model::bounds::SECRET_BYTES_MAX;
use muster_proto::v1;
use muster_proto::v1::secrets_client::SecretsClient;
use std::io::Read;
use std::path::Path;

/// Runs one of them.
///
/// # Errors
/// What is refused, that the file cannot be read, or that the cluster stays away.
pub async fn run(context: &Context, command: &Secret) -> Result<(), Failure> {
    match command {
        Secret::Put { name, tenant, from_file } => {
            let request = v1::PutSecretRequest { tenant: tenant.clone(), name: name.clone(), value: value(from_file)? };
            let ask = |channel| {
                let request = request.clone();
                async move { SecretsClient::new(channel).put(request).await }
            };
            context.client.call("put a secret", ask).await?;
            context.out.line(&format!("secret {name} of {tenant} has a new value"))
        }
        Secret::List { tenant } => {
            let request = v1::ListSecretsRequest { tenant: tenant.clone(), consistency: context.consistency.into() };
            let ask = |channel| {
                let request = request.clone();
                async move { SecretsClient::new(channel).list(request).await }
            };
            let reply: v1::ListSecretsReply = context.client.call("list secrets", ask).await?;
            let views: Vec<SecretView> = reply.secrets.into_iter().map(Into::into).collect();
            context.out.show(&views, |_| secrets(&views))
        }
        Secret::Delete { name, tenant } => {
            let request = v1::DeleteSecretRequest { tenant: tenant.clone(), name: name.clone() };
            let ask = |channel| {
                let request = request.clone();
                async move { SecretsClient::new(channel).delete(request).await }
            };
            context.client.call("delete a secret", ask).await?;
            context.out.line(&format!("secret {name} of {tenant} is deleted"))
        }
    }
}

fn value(file: &Path) -> Result<String, Failure> {
    let named = file.display();
    let failed = |error| Failure::io(format!("reading {named}"), error);
    let mut text = Vec::new();
    // One byte more than a value may have, and its newline, shows that it has too many.
    let bytes_max = SECRET_BYTES_MAX as u64 + 2;
    match file.as_os_str() == "-" {
        true => std::io::stdin().take(bytes_max).read_to_end(&mut text).map_err(failed)?,
        false => std::fs::File::open(file).map_err(failed)?.take(bytes_max).read_to_end(&mut text).map_err(failed)?,
    };
    let text = String::from_utf8(text)
        .map_err(|_| Failure::field("value", format!("{named} is no text"), "encode it, for instance with base64"))?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}
