//! A service that says who called it.

use futures::FutureExt;
use futures::future::BoxFuture;
use muster_runtime::{Admission, Channel, Expect, Host, Peer};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::{Service, ServiceExt};

type Request = http::Request<Body>;
type Response = http::Response<Body>;

/// No call takes so long.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Default)]
pub(crate) struct Echo {
    calls: Arc<AtomicUsize>,
}

impl tonic::server::NamedService for Echo {
    const NAME: &'static str = "echo";
}

impl Service<Request> for Echo {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let peer = request.extensions().get::<Peer>().expect("every request carries it");
        let mut answer = http::Response::builder().header("from", &*peer.from);
        if let Some(who) = &peer.identity {
            answer = answer
                .header("who", who.name.to_string())
                .header("spki", who.spki_sha256.to_string())
                .header("expired", who.expired_ms.to_string());
        }
        let answer = answer.body(Body::empty()).expect("a response");
        async move { Ok(answer) }.boxed()
    }
}

impl Echo {
    /// Calls that reached it.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Serves at `listen`; where it is reached.
    pub(crate) async fn serve(&self, host: &Host, listen: &str, admission: Admission) -> String {
        let routes = tonic::service::Routes::new(self.clone());
        let served = host.net.serve(listen, routes, admission, CancellationToken::new()).await;
        served.expect("the address is free").endpoint
    }
}

/// Who the service has seen.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) who: Option<String>,
    pub(crate) spki: Option<String>,
    pub(crate) expired_ms: u64,
    pub(crate) from: String,
}

/// One call over a new connection.
pub(crate) async fn call(host: &Host, endpoint: &str, expect: Expect) -> Result<Answer, String> {
    call_over(host.net.dial(endpoint, expect).expect("an endpoint")).await
}

pub(crate) async fn call_over(channel: Channel) -> Result<Answer, String> {
    let request = http::Request::builder().uri("http://server/echo/call").body(Body::empty()).expect("a request");
    let answer =
        tokio::time::timeout(ANSWER_WITHIN, channel.oneshot(request)).await.map_err(|late| late.to_string())?;
    let answer = answer.map_err(|error| words(&*error.into_inner()))?;
    let header = |name: &str| {
        let value = answer.headers().get(name)?;
        Some(value.to_str().expect("text").to_owned())
    };
    if let Some(status) = tonic::Status::from_header_map(answer.headers()) {
        return Err(status.message().to_owned());
    }
    let expired_ms = header("expired").map_or(0, |text| text.parse().expect("a number"));
    Ok(Answer { who: header("who"), spki: header("spki"), expired_ms, from: header("from").unwrap_or_default() })
}

/// An error with all that led to it.
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}
