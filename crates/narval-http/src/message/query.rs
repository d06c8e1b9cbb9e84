//! The query of a request, decoded.

use std::borrow::Cow;

use super::request::Request;
use crate::http1::head_parts::HeadRef;
use crate::http1::path::query_pairs;

impl<'a> HeadRef<'a> {
    /// The name-value pairs of the query, decoded, in order; see [`query_pairs`].
    pub fn query_pairs(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        query_pairs(self.query().unwrap_or_default())
    }
}

impl Request {
    /// The name-value pairs of the query, decoded, in order.
    pub fn query_pairs(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        query_pairs(self.query().unwrap_or_default())
    }

    /// The first value of this name in the query, decoded.
    ///
    /// ```
    /// use narval_http::Request;
    ///
    /// let greet = |request: Request| format!("Hello, {}!\n", request.query_value("name").unwrap_or("world".into()));
    /// ```
    pub fn query_value(&self, name: &str) -> Option<Cow<'_, str>> {
        self.query_pairs().find(|(have, _)| have == name).map(|(_, value)| value)
    }
}
