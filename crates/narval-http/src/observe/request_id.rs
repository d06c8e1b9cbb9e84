//! The id of a request: in the access log, in the events of its handler, and wherever a handler passes it on.

use std::cell::RefCell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::http1::head_parts::HeadRef;

/// The maximum length of an id from a proxy.
const GIVEN_LEN_MAX: usize = 64;
/// The field in which proxies pass ids on.
const FIELD: &str = "x-request-id";
/// The increment of a Weyl sequence: odd, so all 2⁶⁴ values come before the first one repeats.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

thread_local! {
    static CURRENT: RefCell<Option<RequestId>> = const { RefCell::new(None) };
}

/// The id of a request, for logs: 16 hexadecimal digits, or what a trusted proxy has sent as `X-Request-Id` (up to 64
/// letters, digits, `.`, `_` and `-`).
///
/// ```
/// use narval_http::{Request, RequestId, Response, StatusCode};
///
/// fn page(request: Request) -> Response {
///     // A log line of the handler can find it without the request.
///     assert!(RequestId::current().is_none_or(|id| id == *request.id()));
///     Response::text(StatusCode::OK, format!("request {}\n", request.id()))
/// }
/// # let _: &dyn narval_http::Handler = &page;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Made(u64),
    Given(Arc<str>),
}

impl RequestId {
    /// The id of requests that arrived over no connection.
    pub(crate) const NONE: Self = Self(Kind::Made(0));

    /// The id of the request that this thread is working on: while a handler runs, and while the body of its response is
    /// produced.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Makes this the thread's current id until the result is dropped.
    pub(crate) fn enter(self) -> Entered {
        Entered(CURRENT.replace(Some(self)))
    }

    fn given(value: &[u8]) -> Option<Self> {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        let is_id = (1..=GIVEN_LEN_MAX).contains(&value.len()) && value.iter().all(is_plain);
        is_id.then(|| Self(Kind::Given(String::from_utf8_lossy(value).into())))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Made(number) => write!(f, "{number:016x}"),
            Kind::Given(id) => f.write_str(id),
        }
    }
}

/// Restores the thread's previous id.
pub(crate) struct Entered(Option<RequestId>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Generates the ids of one shard. It starts at a random number of 64 bits, so ids of different shards and servers do not
/// collide in practice.
#[derive(Debug)]
pub(crate) struct RequestIds {
    last: u64,
    from_proxy: bool,
}

impl RequestIds {
    /// With `from_proxy`, ids that clients send are used.
    pub(crate) fn new(from_proxy: bool) -> Self {
        Self { last: RandomState::new().hash_one(STEP), from_proxy }
    }

    /// The id of the next request.
    #[inline]
    pub(crate) fn next(&mut self, head: &HeadRef<'_>) -> RequestId {
        let given = self.from_proxy.then(|| head.header_bytes(FIELD).and_then(RequestId::given)).flatten();
        given.unwrap_or_else(|| {
            self.last = self.last.wrapping_add(STEP);
            RequestId(Kind::Made(self.last))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::request::Request;
    use bytes::Bytes;

    fn request(fields: &str) -> Request {
        Request::parse(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"), Bytes::new()).unwrap()
    }

    #[test]
    fn ids_differ_and_have_one_length() {
        let (mut one, mut two) = (RequestIds::new(false), RequestIds::new(false));
        let request = request("X-Request-Id: given\r\n");
        let mut ids: Vec<_> = (0..1000)
            .flat_map(|_| [one.next(&request.head()), two.next(&request.head())])
            .map(|id| id.to_string())
            .collect();
        assert!(ids.iter().all(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())), "{ids:?}");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 2000);
    }

    #[test]
    fn only_plain_ids_of_a_proxy_are_taken() {
        let mut ids = RequestIds::new(true);
        let mut id = |fields: &str| ids.next(&request(fields).head()).to_string();
        assert_eq!(id("X-Request-ID: 7f.A_b-9\r\n"), "7f.A_b-9");
        assert_eq!(id(&format!("X-Request-Id: {}\r\n", "a".repeat(64))), "a".repeat(64));
        for hostile in ["", "a b", "a\"b", "a=b", "é", &"a".repeat(65)] {
            assert_eq!(id(&format!("X-Request-Id: {hostile}\r\n")).len(), 16, "{hostile}");
        }
    }

    #[test]
    fn ids_nest() {
        assert_eq!(RequestId::current(), None);
        let outer = RequestId(Kind::Made(1)).enter();
        {
            let _inner = RequestId(Kind::Made(2)).enter();
            assert_eq!(RequestId::current(), Some(RequestId(Kind::Made(2))));
        }
        assert_eq!(RequestId::current(), Some(RequestId(Kind::Made(1))));
        drop(outer);
        assert_eq!(RequestId::current(), None);
    }
}
