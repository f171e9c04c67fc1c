//! `muster priority-classes`.

use crate::args::admin::PriorityClasses;
use crate::client::Client;
use crate::commands::{Context, input};
use crate::failure::Failure;
use crate::output::by_number;
use crate::spec;
use crate::view::priority_classes::{PriorityClassView, table};
use muster_proto::v1;
use muster_proto::v1::fleet_client::FleetClient;

/// Every priority class.
///
/// # Errors
/// That the cluster stays away.
pub async fn all_classes(client: &Client, consistency: v1::Consistency) -> Result<Vec<PriorityClassView>, Failure> {
    let request = v1::ListPriorityClassesRequest { consistency: consistency.into() };
    let list = |channel| async move { FleetClient::new(channel).list_priority_classes(request).await };
    let reply: v1::ListPriorityClassesReply = client.call("list priority classes", list).await?;
    let mut views: Vec<PriorityClassView> = reply.classes.iter().map(PriorityClassView::new).collect();
    views.sort_by(|a, b| by_number(&a.name, &b.name));
    Ok(views)
}

/// Runs one of them.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn run(context: &Context, command: &PriorityClasses) -> Result<(), Failure> {
    match command {
        PriorityClasses::List => {
            let views = all_classes(&context.client, context.consistency).await?;
            context.out.show(&views, |_| table(&views))
        }
        PriorityClasses::Apply { file } => {
            let (text, file_name) = input::read(file)?;
            for class in spec::priority_classes::parse(&text, &file_name)? {
                let put = |channel| {
                    let class = Some(class.clone());
                    async move { FleetClient::new(channel).put_priority_class(v1::PutPriorityClassRequest { class }).await }
                };
                context.client.call("put priority class", put).await?;
                context.out.line(&format!("priority class {} applied", class.name))?;
            }
            Ok(())
        }
        PriorityClasses::Delete { name } => {
            let delete = |channel| {
                let name = name.clone();
                async move { FleetClient::new(channel).delete_priority_class(v1::DeletePriorityClassRequest { name }).await }
            };
            context.client.call("delete priority class", delete).await?;
            context.out.line(&format!("priority class {name} deleted"))
        }
    }
}
