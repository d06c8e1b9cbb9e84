//! Redirects (RFC 9110 section 15.4).

use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::message::response::Response;

/// Characters that are encoded in a `Location`, besides those that are not ASCII. `%` is left alone: the location is
/// taken to be encoded already.
const NOT_IN_LOCATION: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`').add(b'{').add(b'|').add(b'}');

impl Response {
    /// 302 Found: the resource is temporarily at `location`.
    ///
    /// ```
    /// use narval_http::Response;
    ///
    /// let old = || Response::redirect("/new place?from=old");
    /// ```
    pub fn redirect(location: &str) -> Self {
        Self::redirect_with(StatusCode::FOUND, location)
    }

    /// 303 See Other: the result of a POST is fetched from `location` with GET.
    pub fn see_other(location: &str) -> Self {
        Self::redirect_with(StatusCode::SEE_OTHER, location)
    }

    /// 308 Permanent Redirect: the resource is now at `location`; the method stays the same.
    pub fn redirect_permanent(location: &str) -> Self {
        Self::redirect_with(StatusCode::PERMANENT_REDIRECT, location)
    }

    /// A redirect with another status. Characters that are not allowed in a URL, line ends included, are
    /// percent-encoded.
    pub fn redirect_with(status: StatusCode, location: &str) -> Self {
        let encoded = utf8_percent_encode(location, NOT_IN_LOCATION).to_string();
        match HeaderValue::try_from(encoded) {
            Ok(location) => Self::new(status).header(LOCATION, location),
            Err(error) => Self::failure(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_encoded() {
        let location = |text| {
            let response = Response::redirect(text);
            assert_eq!(response.status(), StatusCode::FOUND);
            response.header_value(&LOCATION).expect("has one").to_str().expect("ASCII").to_owned()
        };
        assert_eq!(location("/a?b=c#d"), "/a?b=c#d");
        assert_eq!(location("/a b/é%20"), "/a%20b/%C3%A9%20");
        assert_eq!(location("/x\r\nSet-Cookie: a=b"), "/x%0D%0ASet-Cookie:%20a=b");
    }
}
