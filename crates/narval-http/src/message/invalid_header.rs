use std::panic::Location;

use http::{HeaderName, HeaderValue};

/// A header field that a handler or middleware tried to set from a string that is not a field name or value
/// (RFC 9110 section 5). The response is a 500 instead.
#[derive(Debug, thiserror::Error)]
#[error("invalid header field{} set at {place}: {error}", .name.as_ref().map(|name| format!(" {name}")).unwrap_or_default())]
pub struct InvalidHeader {
    name: Option<HeaderName>,
    error: http::Error,
    place: &'static Location<'static>,
    /// Fields and a body that are set after the invalid one are discarded: they belong to the response that it replaces.
    pub(super) is_ignoring_changes: bool,
}

/// Converts a name and a value to a field line.
///
/// # Errors
/// The name or the value breaks the rules.
#[track_caller]
pub(super) fn header_field<N, V>(name: N, value: V) -> Result<(HeaderName, HeaderValue), InvalidHeader>
where
    N: TryInto<HeaderName, Error: Into<http::Error>>,
    V: TryInto<HeaderValue, Error: Into<http::Error>>,
{
    let place = Location::caller();
    let failed = |name, error| InvalidHeader { name, error, place, is_ignoring_changes: true };
    let name = name.try_into().map_err(|error| failed(None, error.into()))?;
    match value.try_into() {
        Ok(value) => Ok((name, value)),
        Err(error) => Err(failed(Some(name), error.into())),
    }
}
