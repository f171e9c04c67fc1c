//! The auth interceptor: who calls. Every service is behind [`admit`].
//!
//! Today it admits everyone as `anonymous`. TLS identities and tokens are checked here when they come, and nowhere else: handlers
//! read the [`Caller`] and never look at metadata themselves.

use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name under which the call is logged and judged.
    pub(crate) name: String,
}

impl Caller {
    fn anonymous() -> Self {
        Caller { name: "anonymous".to_owned() }
    }
}

/// A service behind the auth interceptor.
pub(crate) type Guarded<S> = InterceptedService<S, fn(Request<()>) -> Result<Request<()>, Status>>;

/// Lets a call in, or refuses it before any handler sees it.
fn admit(mut request: Request<()>) -> Result<Request<()>, Status> {
    request.extensions_mut().insert(Caller::anonymous());
    Ok(request)
}

/// Puts `service` behind the auth interceptor.
pub(crate) fn guard<S>(service: S) -> Guarded<S> {
    InterceptedService::new(service, admit)
}
