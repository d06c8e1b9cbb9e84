//! Keys as JSON documents, as returned by the container's endpoint, the instance's metadata and `credential_process`.

use std::time::SystemTime;

use jiff::Timestamp;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{CredentialsError, Keys};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    /// `Success` in the instance's metadata.
    code: Option<String>,
    access_key_id: Option<String>,
    secret_access_key: Option<String>,
    #[serde(alias = "SessionToken")]
    token: Option<String>,
    expiration: Option<String>,
}

/// Parses the document of `who`.
pub(super) fn parse(who: &str, text: &[u8]) -> Result<Keys, CredentialsError> {
    let broken = |reason: &str| CredentialsError::Passing(format!("{who} gave out no keys: {reason}"));
    // Never with serde's message: it may quote the document.
    let document: Document = serde_json::from_slice(text).map_err(|_| broken("its answer is not the JSON expected"))?;
    let secret = document.secret_access_key.map(Zeroizing::new);
    let token = document.token.map(Zeroizing::new).filter(|token| !token.is_empty());
    if let Some(code) = document.code.filter(|code| code != "Success") {
        return Err(broken(&code));
    }
    let (Some(id), Some(secret)) = (document.access_key_id, secret) else {
        return Err(broken("AccessKeyId or SecretAccessKey is missing"));
    };
    let expires = document.expiration.map(|text| parse_time(&text).ok_or_else(|| broken("Expiration is not a time")));
    Ok(Keys { id, secret, token, expires: expires.transpose()? })
}

/// A time as AWS writes it (RFC 3339).
pub(super) fn parse_time(text: &str) -> Option<SystemTime> {
    text.trim().parse::<Timestamp>().ok().map(SystemTime::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_all_three_kinds() {
        let instance = br#"{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"i","SecretAccessKey":"s","Token":"t","Expiration":"2030-01-02T03:04:05Z"}"#;
        let process = br#"{"Version":1,"AccessKeyId":"i","SecretAccessKey":"s","SessionToken":"t"}"#;
        let keys = parse("x", instance).unwrap();
        assert_eq!((keys.id.as_str(), keys.secret.as_str(), keys.token.unwrap().as_str()), ("i", "s", "t"));
        assert_eq!(keys.expires, parse_time("2030-01-02T03:04:05+00:00"));
        assert_eq!(parse("x", process).unwrap().token.unwrap().as_str(), "t");
        for (text, message) in [
            (r#"{"Code":"Failed"}"#, "x gave out no keys: Failed"),
            (r#"{"AccessKeyId":"i"}"#, "x gave out no keys: AccessKeyId or SecretAccessKey is missing"),
            ("secret", "x gave out no keys: its answer is not the JSON expected"),
        ] {
            assert_eq!(parse("x", text.as_bytes()).unwrap_err().to_string(), message);
        }
        assert!(!format!("{:?}", parse("x", process).unwrap()).contains("\"s\""));
    }
}
