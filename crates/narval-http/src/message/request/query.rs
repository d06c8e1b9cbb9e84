//! The query of a request, decoded.

use std::borrow::Cow;

use http::StatusCode;
use serde::de::DeserializeOwned;

use crate::http1::head_parts::HeadRef;
use crate::http1::path::query_pairs;
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::request::form_values;

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

    /// The query as a struct with a field for each name. A field that is an `Option`, or has `#[serde(default)]`, may be
    /// missing. For names that occur more than once, there is [`query_pairs`](Self::query_pairs).
    ///
    /// ```
    /// use narval_http::{Json, Reject, Request, Router, test};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Page {
    ///     limit: usize,
    ///     from: Option<String>,
    /// }
    ///
    /// fn list(request: Request) -> Result<String, Reject> {
    ///     let page: Page = request.query_as()?;
    ///     Ok(format!("{} notes from {}", page.limit, page.from.as_deref().unwrap_or("the start")))
    /// }
    ///
    /// let app = test::client(Router::new().get("/notes", list).build()?);
    /// assert_eq!(app.get("/notes?limit=3").send().text(), "3 notes from the start");
    /// assert_eq!(app.get("/notes?limit=x").send().text(), "limit: invalid digit found in string\n");
    /// # Ok::<(), narval_http::RouteError>(())
    /// ```
    ///
    /// # Errors
    /// 400 with the name and the reason.
    pub fn query_as<T: DeserializeOwned>(&self) -> Result<T, Reject> {
        let wrong = |reason| Reject::new(StatusCode::BAD_REQUEST, reason);
        form_values::parse(self.query().unwrap_or_default()).map_err(wrong)
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
