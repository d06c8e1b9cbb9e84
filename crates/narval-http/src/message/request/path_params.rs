use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use http::StatusCode;

use crate::message::reject::Reject;

/// The path parameters of a route, percent-decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathParams {
    pairs: Vec<(Arc<str>, String)>,
}

impl PathParams {
    /// The value of `@name`; the first if there are several.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(have, _)| *have == name).map(|(_, value)| value)
    }

    /// The value of `@name` as a number, or whatever else it parses to.
    ///
    /// ```
    /// use narval_http::{Reject, Request, Router, StatusCode, test};
    ///
    /// fn item(request: Request) -> Result<String, Reject> {
    ///     let id: u64 = request.params().parse("id")?;
    ///     Ok(format!("item {id}"))
    /// }
    ///
    /// let app = test::client(Router::new().get("/items/@id", item).build()?);
    /// assert_eq!(app.get("/items/7").send().text(), "item 7");
    /// let refused = app.get("/items/seven").send();
    /// assert_eq!((refused.status(), refused.text()), (StatusCode::NOT_FOUND, "id: invalid digit found in string\n".into()));
    /// # Ok::<(), narval_http::RouteError>(())
    /// ```
    ///
    /// # Errors
    /// 404 with the name and the reason, if it does not parse or the route has no such parameter;
    /// [`Reject::with_status`] makes it another status.
    pub fn parse<T>(&self, name: &str) -> Result<T, Reject>
    where
        T: FromStr<Err: Display>,
    {
        let wrong = |reason: &dyn Display| Reject::new(StatusCode::NOT_FOUND, format!("{name}: {reason}"));
        let value = self.get(name).ok_or_else(|| wrong(&"the path has no such parameter"))?;
        value.parse().map_err(|error| wrong(&error))
    }

    /// Names and values, in the order of the path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (&**name, value.as_str()))
    }

    pub(crate) fn push(&mut self, name: Arc<str>, value: String) {
        self.pairs.push((name, value));
    }
}
