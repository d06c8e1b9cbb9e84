use bytes::Bytes;

use crate::http1::head::ParsedHead;
use crate::message::request::RequestBody;

/// A request for a worker.
pub(crate) struct Request {
    pub(crate) bytes: Bytes,
    pub(crate) head: Box<ParsedHead>,
    pub(crate) body: Option<Box<RequestBody>>,
}
