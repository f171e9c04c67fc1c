//! The two calls of etcd's API that are measured beside, with their messages written out by hand.

use tonic::transport::Channel;

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutReply {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

/// What a member says of itself.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusReply {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(uint64, tag = "4")]
    leader: u64,
    /// The Raft term that it is in.
    #[prost(uint64, tag = "6")]
    pub term: u64,
}

impl StatusReply {
    /// Whether the member leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leader != 0 && self.header.as_ref().is_some_and(|header| header.member_id == self.leader)
    }
}

async fn call<Q, A>(channel: Channel, path: &'static str, request: Q) -> Result<A, tonic::Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|e| tonic::Status::unavailable(e.to_string()))?;
    let codec = tonic_prost::ProstCodec::<Q, A>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    grpc.unary(tonic::Request::new(request), path, codec).await.map(tonic::Response::into_inner)
}

/// One durable write.
///
/// # Errors
/// What etcd answers.
pub async fn put(channel: Channel, key: Vec<u8>, value: Vec<u8>) -> Result<(), tonic::Status> {
    call::<_, PutReply>(channel, "/etcdserverpb.KV/Put", PutRequest { key, value }).await.map(|_| ())
}

/// What a member says of itself.
///
/// # Errors
/// What etcd answers.
pub async fn status(channel: Channel) -> Result<StatusReply, tonic::Status> {
    call(channel, "/etcdserverpb.Maintenance/Status", StatusRequest {}).await
}
