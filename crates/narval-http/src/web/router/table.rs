//! The handler built by a router.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::header::{ALLOW, LOCATION};
use http::{HeaderValue, Method, StatusCode};

use super::errors::Errors;
use super::pattern::{Capture, Pattern};
use crate::http1::ProtoError;
use crate::http1::head_parts::HeadRef;
use crate::http1::path::percent_decode_text;
use crate::message::handler::Handler;
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::request::path_params::PathParams;
use crate::message::response::Response;
use crate::web::middleware::{Middleware, Next};

/// A route.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) pattern: Pattern,
    pub(super) text: String,
    pub(super) handler: Box<dyn Handler>,
    /// The middlewares of the routers that this route was nested in, outermost first.
    pub(super) layers: Vec<Arc<dyn Middleware>>,
    pub(super) inline: bool,
}

/// Where a router answers for paths that have no route.
pub(super) struct Scope {
    pub(super) prefix: String,
    /// All paths below the prefix.
    pub(super) below: Vec<Pattern>,
    pub(super) layers: Vec<Arc<dyn Middleware>>,
    pub(super) not_found: Option<Box<dyn Handler>>,
}

impl Scope {
    pub(super) fn new(prefix: String, layers: Vec<Arc<dyn Middleware>>, not_found: Option<Box<dyn Handler>>) -> Self {
        // A prefix that ends with `**` matches all paths below it already.
        let below =
            [prefix.clone(), format!("{prefix}/**")].iter().filter_map(|text| Pattern::parse(text).ok()).collect();
        Self { prefix, below, layers, not_found }
    }
}

/// The handler built by a [`Router`](crate::Router).
pub struct RoutingTable {
    pub(super) layers: Vec<Arc<dyn Middleware>>,
    pub(super) errors: Option<Errors>,
    pub(super) dispatch: Dispatch,
}

impl Handler for RoutingTable {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        if !self.dispatch.any_inline {
            return None;
        }
        Next::new(&self.layers, &self.dispatch).inline(head)
    }

    fn handle(&self, request: Request) -> Response {
        Next::new(&self.layers, &self.dispatch).run(request)
    }

    fn rejected(&self, reject: Reject) -> Response {
        let plain = Response::failure(reject);
        match &self.errors {
            Some(errors) => errors.respond(None, plain),
            None => plain,
        }
    }
}

impl fmt::Debug for RoutingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.dispatch.routes.iter().map(|route| format!("{} {}", route.method, route.text));
        f.debug_list().entries(routes).finish()
    }
}

/// The handler inside the outermost router's middlewares.
pub(super) struct Dispatch {
    /// The most precise first.
    pub(super) routes: Vec<Route>,
    pub(super) any_inline: bool,
    /// Who answers for paths without a route: the innermost router first, at last the outermost, which answers for all.
    pub(super) scopes: Vec<Scope>,
    pub(super) redirects_slashes: bool,
}

/// The matching route, or why there is none.
enum Found<'r> {
    Route(&'r Route, PathParams),
    /// Routes with other methods: `Allow`, and the first of them.
    OtherMethods(HeaderValue, &'r Route),
    Nothing(Option<&'r Scope>),
}

impl Handler for Dispatch {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        match self.find(head) {
            Ok(Found::Route(route, _)) if route.inline => Next::new(&route.layers, &*route.handler).inline(head),
            _ => None,
        }
    }

    fn handle(&self, mut request: Request) -> Response {
        match self.find(&request.head()) {
            Ok(Found::Route(route, params)) => {
                request.params = params;
                Next::new(&route.layers, &*route.handler).run(request)
            }
            Ok(Found::OtherMethods(allow, route)) if *request.method() == Method::OPTIONS => {
                let answer = move |_: Request| Response::new(StatusCode::NO_CONTENT).header(ALLOW, allow.clone());
                Next::new(&route.layers, &answer).run(request)
            }
            Ok(Found::OtherMethods(allow, route)) => {
                let answer = move |_: Request| {
                    Reject::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed").header(ALLOW, allow.clone())
                };
                Next::new(&route.layers, &answer).run(request)
            }
            Ok(Found::Nothing(scope)) => {
                let layers = scope.map_or(&[][..], |scope| &scope.layers);
                match (self.other_slash(&request.head()), scope.and_then(|scope| scope.not_found.as_deref())) {
                    (Some(target), _) => {
                        let redirect = move |_: Request| {
                            Response::new(StatusCode::PERMANENT_REDIRECT).header(LOCATION, target.clone())
                        };
                        Next::new(layers, &redirect).run(request)
                    }
                    (None, Some(handler)) => Next::new(layers, handler).run(request),
                    (None, None) => Next::new(layers, &default_not_found).run(request),
                }
            }
            Err(error) => Response::failure(error),
        }
    }
}

fn default_not_found(_: Request) -> Reject {
    Reject::new(StatusCode::NOT_FOUND, "not found")
}

impl Dispatch {
    fn find(&self, head: &HeadRef<'_>) -> Result<Found<'_>, ProtoError> {
        self.find_path(head, head.path())
    }

    fn find_path(&self, head: &HeadRef<'_>, path: &str) -> Result<Found<'_>, ProtoError> {
        let Some(path) = path.strip_prefix('/') else {
            return Ok(self.find_asterisk(head));
        };
        let segments = path.split('/').map(percent_decode_text).collect::<Result<Vec<_>, _>>()?;
        let mut captures = Vec::new();
        let mut get_for_head = None;
        let mut others: Vec<&Route> = Vec::new();
        for route in &self.routes {
            if !route.pattern.matches(&segments, &mut captures) {
                continue;
            }
            if route.method == *head.method() {
                return Ok(Found::Route(route, params(&captures, &segments)));
            }
            if get_for_head.is_none() && *head.method() == Method::HEAD && route.method == Method::GET {
                get_for_head = Some((route, params(&captures, &segments)));
            }
            others.push(route);
        }
        Ok(match (get_for_head, others.first()) {
            (Some((route, params)), _) => Found::Route(route, params),
            (None, Some(first)) => Found::OtherMethods(allow(others.iter().map(|route| &route.method)), first),
            (None, None) => {
                let contains = |pattern: &Pattern| pattern.matches(&segments, &mut Vec::new());
                Found::Nothing(self.scopes.iter().find(|scope| scope.below.iter().any(contains)))
            }
        })
    }

    /// Where a request leads that has a slash too much at its end, or one too little.
    fn other_slash(&self, head: &HeadRef<'_>) -> Option<String> {
        if !self.redirects_slashes {
            return None;
        }
        let path = head.path();
        let other = path.strip_suffix('/').map_or_else(|| format!("{path}/"), str::to_owned);
        // A path that starts with two slashes would be another host.
        let is_path = other.starts_with('/') && !other.starts_with("//");
        let leads_somewhere = matches!(self.find_path(head, &other), Ok(Found::Route(..)));
        let query = head.query().map_or_else(String::new, |query| format!("?{query}"));
        (is_path && leads_somewhere).then(|| other + &query)
    }

    /// `OPTIONS *` is about the server as a whole (RFC 9110 section 9.3.7).
    fn find_asterisk(&self, head: &HeadRef<'_>) -> Found<'_> {
        match self.routes.first() {
            Some(first) if *head.method() == Method::OPTIONS => {
                Found::OtherMethods(allow(self.routes.iter().map(|route| &route.method)), first)
            }
            _ => Found::Nothing(self.scopes.last()),
        }
    }
}

fn params(captures: &[Capture<'_>], segments: &[Cow<'_, str>]) -> PathParams {
    let mut params = PathParams::default();
    for capture in captures {
        let taken = segments.get(capture.segments.clone()).unwrap_or_default();
        params.push(Arc::clone(capture.name), taken.join("/"));
    }
    params
}

/// The value of `Allow` for routes with these methods.
fn allow<'a>(methods: impl Iterator<Item = &'a Method>) -> HeaderValue {
    let mut names: Vec<&str> = Vec::new();
    for method in methods {
        let implied = (*method == Method::GET).then_some("HEAD");
        for name in [method.as_str()].into_iter().chain(implied) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if !names.contains(&"OPTIONS") {
        names.push("OPTIONS");
    }
    // Methods are tokens, which are always valid in a field value.
    HeaderValue::try_from(names.join(", ")).unwrap_or(HeaderValue::from_static("OPTIONS"))
}
