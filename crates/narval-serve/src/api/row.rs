//! A row of the table.

use narval_http::Method;
use narval_keep::Scope;

use super::call::{ApiAnswer, ApiCall};
use crate::error::ServeError;

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Everybody.
    Nothing,
    /// The bearer of any valid token.
    Token,
    /// Whose token has this scope, and is for the cache of the path.
    Scope(Scope),
    /// Who administers all caches, and so the one of the path.
    All,
    /// Whose token may record releases of the path's name in its cache.
    Release,
    /// Who administers a cache: what they see and change is limited to those.
    SomeAdmin,
}

/// A parameter of a query: its name, its type, and what it means.
pub(super) type Parameter = (&'static str, &'static str, &'static str);

/// A method of a path.
pub(super) struct Row {
    pub(super) method: Method,
    /// Below [`API_PATH`](crate::routes::table::API_PATH); parts in braces are names.
    pub(super) path: &'static str,
    pub(super) needs: Needs,
    pub(super) run: fn(&ApiCall<'_>) -> Result<ApiAnswer, ServeError>,
    /// What generated clients call it.
    pub(super) id: &'static str,
    pub(super) about: &'static str,
    pub(super) query: &'static [Parameter],
    /// The schema of its body, if it has one.
    pub(super) takes: Option<&'static str>,
    /// The status and the schema of its answer.
    pub(super) gives: (u16, Option<&'static str>),
}
