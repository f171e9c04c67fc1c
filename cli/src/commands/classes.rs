//! `muster device-classes`.

use crate::args::admin::DeviceClasses;
use crate::client::Client;
use crate::commands::{Context, input};
use crate::failure::Failure;
use crate::output::by_number;
use crate::spec;
use crate::view::classes::{ClassView, table};
use muster_proto::v1;
use muster_proto::v1::fleet_client::FleetClient;

/// Every device class.
///
/// # Errors
/// That the cluster stays away.
pub async fn all_classes(client: &Client, consistency: v1::Consistency) -> Result<Vec<ClassView>, Failure> {
    let request = v1::ListDeviceClassesRequest { consistency: consistency.into() };
    let list = |channel| async move { FleetClient::new(channel).list_device_classes(request).await };
    let reply: v1::ListDeviceClassesReply = client.call("list device classes", list).await?;
    let mut views: Vec<ClassView> = reply.classes.iter().map(ClassView::new).collect();
    views.sort_by(|a, b| by_number(&a.name, &b.name));
    Ok(views)
}

/// Runs one of them.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn run(context: &Context, command: &DeviceClasses) -> Result<(), Failure> {
    match command {
        DeviceClasses::List => {
            let views = all_classes(&context.client, context.consistency).await?;
            context.out.show(&views, |_| table(&views))
        }
        DeviceClasses::Apply { file } => {
            let (text, file_name) = input::read(file)?;
            for class in spec::classes::parse(&text, &file_name)? {
                let put = |channel| {
                    let class = Some(class.clone());
                    async move { FleetClient::new(channel).put_device_class(v1::PutDeviceClassRequest { class }).await }
                };
                context.client.call("put device class", put).await?;
                context.out.line(&format!("device class {} applied", class.name))?;
            }
            Ok(())
        }
        DeviceClasses::Delete { name } => {
            let delete = |channel| {
                let name = name.clone();
                async move { FleetClient::new(channel).delete_device_class(v1::DeleteDeviceClassRequest { name }).await }
            };
            context.client.call("delete device class", delete).await?;
            context.out.line(&format!("device class {name} deleted"))
        }
    }
}
