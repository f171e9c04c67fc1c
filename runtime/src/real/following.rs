//! Channels that follow the credentials of their host.
//!
//! What must stay true: after the credentials were replaced no call goes over a connection that has shown the earlier ones, which may prove nothing any more;
//! calls that are under way end as they would have.

use super::tls::TrustStore;
use crate::net::CallError;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::transport::Channel;
use tower::{Service, ServiceExt};

type Request = http::Request<tonic::body::Body>;
type Response = http::Response<tonic::body::Body>;

/// See the module.
#[derive(Clone)]
pub(super) struct Following {
    trust: Arc<TrustStore>,
    dial: Arc<dyn Fn() -> Channel + Send + Sync>,
    /// The channel, and the number of the credentials with which it was dialled.
    open: Arc<Mutex<Option<(u64, Channel)>>>,
}

impl Following {
    /// `dial` gives a channel that connects when first used.
    pub(super) fn new(trust: Arc<TrustStore>, dial: impl Fn() -> Channel + Send + Sync + 'static) -> Self {
        Following { trust, dial: Arc::new(dial), open: Arc::default() }
    }

    fn channel(&self) -> Channel {
        let number = self.trust.number();
        let mut open = self.open.lock();
        match &*open {
            Some((of, channel)) if *of == number => channel.clone(),
            _ => {
                let channel = (self.dial)();
                *open = Some((number, channel.clone()));
                channel
            }
        }
    }
}

impl Service<Request> for Following {
    type Response = Response;
    type Error = CallError;
    type Future = BoxFuture<'static, Result<Response, CallError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        // Waited for with the call: until then it is not known which channel it is.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let channel = self.channel();
        async move { channel.oneshot(request).await.map_err(CallError::new) }.boxed()
    }
}
