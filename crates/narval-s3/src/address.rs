//! The location of a bucket: the parameters of an `s3` address.

use narval_client::Url;
use thiserror::Error;

/// Nix's default.
const REGION_DEFAULT: &str = "us-east-1";

/// Where the bucket's name is in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressingStyle {
    /// In the path: `https://endpoint/bucket/key`.
    Path,
    /// In the host: `https://bucket.endpoint/key`.
    VirtualHost,
}

/// Which of the requests that store something have the SHA-256 of their bodies; the others have `Content-MD5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checksums {
    /// None.
    Off,
    /// Those for whole objects, unless the store refuses it.
    Whole,
    /// Those for whole objects and for parts of objects.
    On,
}

/// A bucket, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BucketAddress {
    /// Its name.
    pub bucket: String,
    /// `region=`, which is part of signatures [default: us-east-1].
    pub region: String,
    /// `endpoint=` with its scheme; by default AWS's for the region.
    pub endpoint: String,
    /// `addressing-style=auto|path|virtual`.
    pub style: AddressingStyle,
    /// `checksums=off|whole|on` [default: whole].
    pub checksums: Checksums,
    /// `profile=`: only use the credentials of this profile in AWS's files.
    pub profile: Option<String>,
}

/// Why an address does not name a bucket.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BucketError {
    /// The name of the bucket is invalid.
    #[error("'{0}' is not a bucket name: use 3 to 63 lower-case letters, digits, '.' and '-'")]
    Name(String),
    /// A parameter has an invalid value.
    #[error("the parameter {name}={value} of the bucket's address: {allowed}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

impl BucketAddress {
    /// Parses an `s3` address.
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn of(url: &Url) -> Result<Self, BucketError> {
        let (bucket, _) = url.bucket_and_key();
        check_name(bucket)?;
        let given = |name: &str| url.query_value(name).filter(|value| !value.is_empty());
        let region = given("region").unwrap_or_else(|| REGION_DEFAULT.to_owned());
        if !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
            let allowed = "letters, digits and '-', such as eu-central-1";
            return Err(BucketError::Parameter { name: "region", value: region, allowed });
        }
        let scheme = match given("scheme") {
            None => "https".to_owned(),
            Some(scheme) if matches!(scheme.as_str(), "http" | "https") => scheme,
            Some(value) => {
                return Err(BucketError::Parameter { name: "scheme", value, allowed: "http or https" });
            }
        };
        let own_endpoint = given("endpoint");
        let style = match given("addressing-style").as_deref() {
            // Wildcard certificates do not match names with further dots.
            None | Some("auto") if own_endpoint.is_some() || bucket.contains('.') => AddressingStyle::Path,
            None | Some("auto" | "virtual") => AddressingStyle::VirtualHost,
            Some("path") => AddressingStyle::Path,
            Some(value) => {
                let (value, allowed) = (value.to_owned(), "auto, path or virtual");
                return Err(BucketError::Parameter { name: "addressing-style", value, allowed });
            }
        };
        let checksums = match given("checksums").as_deref() {
            None | Some("whole") => Checksums::Whole,
            Some("off") => Checksums::Off,
            Some("on") => Checksums::On,
            Some(value) => {
                let (value, allowed) = (value.to_owned(), "off, whole or on");
                return Err(BucketError::Parameter { name: "checksums", value, allowed });
            }
        };
        let endpoint = match own_endpoint {
            Some(endpoint) => check_endpoint(endpoint, &scheme)?,
            None => {
                format!("{scheme}://s3.{region}.amazonaws.com{}", if region.starts_with("cn-") { ".cn" } else { "" })
            }
        };
        Ok(Self { bucket: bucket.to_owned(), region, endpoint, style, checksums, profile: given("profile") })
    }
}

/// Checks AWS's rules. Very old buckets may also have upper case and `_`.
fn check_name(bucket: &str) -> Result<(), BucketError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let valid = (3..=255).contains(&bucket.len()) && bucket.bytes().all(plain) && !bucket.contains("..");
    if valid { Ok(()) } else { Err(BucketError::Name(bucket.to_owned())) }
}

fn check_endpoint(endpoint: String, scheme: &str) -> Result<String, BucketError> {
    let full = if endpoint.contains("://") { endpoint.clone() } else { format!("{scheme}://{endpoint}") };
    match url::Url::parse(&full) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none() => Ok(full),
        _ => {
            let allowed = "a host, or an http:// or https:// address";
            Err(BucketError::Parameter { name: "endpoint", value: endpoint, allowed })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Result<BucketAddress, BucketError> {
        BucketAddress::of(&Url::parse(url).unwrap())
    }

    #[test]
    fn parameters_are_those_of_nix() {
        for (url, endpoint, style) in [
            ("s3://cache", "https://s3.us-east-1.amazonaws.com", AddressingStyle::VirtualHost),
            ("s3://cache?region=eu-west-3", "https://s3.eu-west-3.amazonaws.com", AddressingStyle::VirtualHost),
            ("s3://cache?region=cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn", AddressingStyle::VirtualHost),
            ("s3://a.cache", "https://s3.us-east-1.amazonaws.com", AddressingStyle::Path),
            ("s3://cache?endpoint=s3.lan:9000", "https://s3.lan:9000", AddressingStyle::Path),
            ("s3://cache?endpoint=s3.lan&scheme=http", "http://s3.lan", AddressingStyle::Path),
            ("s3://cache?endpoint=http://s3.lan&scheme=https", "http://s3.lan", AddressingStyle::Path),
            ("s3://cache?endpoint=s3.lan&addressing-style=virtual", "https://s3.lan", AddressingStyle::VirtualHost),
            ("s3://cache?addressing-style=path", "https://s3.us-east-1.amazonaws.com", AddressingStyle::Path),
        ] {
            let found = place(url).unwrap();
            assert_eq!((found.endpoint.as_str(), found.style), (endpoint, style), "{url}");
        }
        assert_eq!(place("s3://cache?profile=build").unwrap().profile.as_deref(), Some("build"));
    }

    #[test]
    fn invalid_values_are_refused_with_the_allowed_ones() {
        for (url, message) in [
            ("s3://ab", "'ab' is not a bucket name"),
            ("s3://cache?scheme=ftp", "scheme=ftp of the bucket's address: http or https"),
            ("s3://cache?addressing-style=x", "addressing-style=x of the bucket's address: auto, path or virtual"),
            ("s3://cache?checksums=md5", "checksums=md5 of the bucket's address: off, whole or on"),
            ("s3://cache?endpoint=ftp://h", "endpoint=ftp://h of the bucket's address"),
            ("s3://cache?region=a/b", "region=a/b of the bucket's address"),
        ] {
            let error = place(url).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
