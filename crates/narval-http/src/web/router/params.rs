use std::sync::Arc;

use crate::Request;

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

    /// Names and values, in the order of the path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (&**name, value.as_str()))
    }

    pub(super) fn push(&mut self, name: Arc<str>, value: String) {
        self.pairs.push((name, value));
    }
}

impl Request {
    /// The path parameters of the matching route.
    ///
    /// ```
    /// use narval_http::{Request, Router};
    ///
    /// let object = |request: Request| format!("object {}\n", request.params().get("id").unwrap_or_default());
    /// let app = Router::new().get("/objects/@id", object).build()?;
    /// # Ok::<(), narval_http::RouteError>(())
    /// ```
    pub fn params(&self) -> &PathParams {
        &self.params
    }
}
