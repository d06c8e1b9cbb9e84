//! One request, and its response.

use std::time::SystemTime;

use super::body::Body;
use crate::message::head::Head;
use crate::url::Url;

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Fetches a file.
    Get,
    /// Asks whether a file exists.
    Head,
    /// Sends a body and reads the response.
    Post,
    /// Stores a file.
    Put,
    /// Removes a file.
    Delete,
    /// Changes a part of something.
    Patch,
}

impl Method {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Patch => "PATCH",
        }
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// The target.
    pub url: &'a Url,
    /// The body sent; empty for none.
    pub body: &'a [u8],
    /// The offset of the first requested byte.
    pub from: u64,
    /// With `from`: the entity tag that the file must still have.
    pub if_range: Option<&'a str>,
    /// Whether the response may have a content coding.
    pub accepts_coding: bool,
    /// The value of `Accept-Encoding` if the caller decodes the response itself.
    pub own_codings: Option<&'a str>,
    /// Additional fields and parameters.
    pub extra: Extra<'a>,
}

impl<'a> Request<'a> {
    /// A plain GET of the bytes as they are stored.
    pub const fn get(url: &'a Url) -> Self {
        Self {
            method: Method::Get,
            url,
            body: &[],
            from: 0,
            if_range: None,
            accepts_coding: false,
            own_codings: None,
            extra: Extra { fields: &[], query: &[], is_signed: false, valid: None },
        }
    }
}

/// Additional fields and parameters of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// Field lines in order, with names in lower case.
    pub fields: &'a [(&'a str, &'a str)],
    /// Query parameters of a request to a bucket, in order, not encoded.
    pub query: &'a [(&'a str, &'a str)],
    /// Whether the URL contains a signature, so that no credentials are sent.
    pub is_signed: bool,
    /// When a bucket accepts the request; by default for a time that the signer chooses.
    pub valid: Option<Valid>,
}

/// For how long a signature is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valid {
    /// The beginning. It is not after the moment of signing.
    pub from: SystemTime,
    /// Seconds from the beginning.
    pub seconds: u32,
}

/// A response: its head, and its unread body.
pub struct Response {
    /// Status and fields.
    pub head: Head,
    /// The body.
    pub body: Body,
}
