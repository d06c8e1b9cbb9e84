//! People sign in with the issuer of their organisation from a terminal: the device flow (RFC 8628). They enter a code in a browser, on whichever machine,
//! and this program gets an identity token.
//!
//! The cache says which issuer, and the issuer says where its parts are. Neither is trusted with more than that: every answer has a greatest length and a
//! deadline, nothing is sent without TLS except within this machine, no redirect is followed, and what is shown is printable.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use narval_client::{Client, Url};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::error::DeviceError;
use super::fetch::{ask, client, discovery};
use super::issuer::{address, is_here, is_safe};
use super::token::{identity_token, short};
use super::{ANSWER_LEN_MAX, CODE_LEN_MAX, INTERVAL_MAX, SHOWN_LEN_MAX, SIGN_IN_TIME_MAX, TOKEN_LEN_MAX};

/// RFC 8628, section 3.4.
const DEVICE_CODE: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// How long to wait between two questions if the issuer does not say it (section 3.2), and how much longer after `slow_down` (section 3.5).
const INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time between two questions.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// How people sign in to a server: what it says to everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignIn {
    /// The issuer.
    pub issuer: String,
    /// The id of a public client there. Its identity tokens have it as their audience.
    pub client_id: String,
    /// What is asked for, separated by blanks; `openid` is one of them.
    pub scope: String,
}

impl SignIn {
    /// As servers answer it.
    pub fn to_json(&self) -> Value {
        json!({"issuer": self.issuer, "client_id": self.client_id, "scope": self.scope})
    }

    /// Reads the answer of a server; `None` if it is none.
    pub fn parse(answer: &[u8]) -> Option<Self> {
        let answer: Value = serde_json::from_slice(answer).ok()?;
        let text = |name: &str| printable(answer.get(name)?.as_str()?, SHOWN_LEN_MAX).map(ToOwned::to_owned);
        Some(Self { issuer: text("issuer")?, client_id: text("client_id")?, scope: text("scope")? })
    }
}

/// What a person needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCode {
    /// Where to enter the code.
    pub address: String,
    /// The same with the code in it, if the issuer has such an address.
    pub complete: Option<String>,
    /// The code.
    pub code: String,
    /// How long it is valid.
    pub valid_for: Duration,
}

/// A person who is signing in.
pub struct Device {
    client: Arc<Client>,
    token_url: Url,
    client_id: String,
    device_code: Zeroizing<String>,
    interval: Duration,
    until: Instant,
    code: DeviceCode,
}

impl Device {
    /// Asks the issuer for a code. `by`: the server that named the issuer. Only one on this machine may name an issuer on this machine.
    ///
    /// # Errors
    /// The issuer cannot be asked, refuses, or does not say what it must.
    pub fn begin(by: &Url, how: &SignIn) -> Result<Self, DeviceError> {
        let url = address(&how.issuer).map_err(|error| DeviceError::Issuer(error.to_string()))?;
        let is_allowed = |url: &Url| is_safe(url) && (is_here(by) || !is_here(url));
        if !is_allowed(&url) {
            return Err(DeviceError::Issuer(format!("{by} names '{url}', an issuer on this machine")));
        }
        let client = client();
        let document = discovery(&client, &url, &how.issuer).map_err(DeviceError::Issuer)?;
        let endpoint = |name: &str| {
            let named = document.get(name).and_then(Value::as_str).and_then(|named| Url::parse(named).ok());
            named.filter(is_allowed).ok_or_else(|| {
                DeviceError::Issuer(format!(
                    "{url}: its discovery document has no usable {name}; does it allow the device flow?"
                ))
            })
        };
        let (device_url, token_url) = (endpoint("device_authorization_endpoint")?, endpoint("token_endpoint")?);
        let form = [("client_id", &*how.client_id), ("scope", &*how.scope)];
        let (status, answer) = ask(&client, &device_url, Some(&form), ANSWER_LEN_MAX).map_err(DeviceError::Issuer)?;
        if status != 200 {
            return Err(refused(status, &answer));
        }
        let malformed = |name: &str| DeviceError::Issuer(format!("{device_url}: '{name}' is missing or malformed"));
        let text = |name: &str, len_max| answer.get(name)?.as_str().and_then(|text| printable(text, len_max));
        // Older drafts of the standard have another name for it, and one large issuer still does.
        let shown = text("verification_uri", SHOWN_LEN_MAX).or_else(|| text("verification_url", SHOWN_LEN_MAX));
        let shown = shown.filter(|shown| Url::parse(shown).is_ok_and(|url| is_allowed(&url)));
        let complete = text("verification_uri_complete", SHOWN_LEN_MAX);
        let complete = complete.filter(|shown| Url::parse(shown).is_ok_and(|url| is_allowed(&url)));
        let seconds = |name: &str| answer.get(name).and_then(Value::as_u64).map(Duration::from_secs);
        let valid_for = seconds("expires_in").unwrap_or(SIGN_IN_TIME_MAX).min(SIGN_IN_TIME_MAX);
        let device_code = text("device_code", TOKEN_LEN_MAX).ok_or_else(|| malformed("device_code"))?;
        let code = DeviceCode {
            address: shown.ok_or_else(|| malformed("verification_uri"))?.to_owned(),
            complete: complete.map(ToOwned::to_owned),
            code: text("user_code", CODE_LEN_MAX).ok_or_else(|| malformed("user_code"))?.to_owned(),
            valid_for,
        };
        Ok(Self {
            client_id: how.client_id.clone(),
            device_code: device_code.to_owned().into(),
            interval: seconds("interval").unwrap_or(INTERVAL).clamp(INTERVAL_MIN, INTERVAL_MAX),
            until: Instant::now() + valid_for,
            client,
            token_url,
            code,
        })
    }

    /// What to show.
    pub const fn code(&self) -> &DeviceCode {
        &self.code
    }

    /// Waits until the person has signed in: their identity token, which is not verified here.
    ///
    /// # Errors
    /// They did not, or the issuer refuses or does not answer.
    pub fn wait(mut self) -> Result<Zeroizing<String>, DeviceError> {
        let mut trouble = None;
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left < self.interval {
                return Err(trouble.map_or(DeviceError::Expired, DeviceError::Issuer));
            }
            sleep(self.interval);
            let form =
                [("grant_type", DEVICE_CODE), ("device_code", &**self.device_code), ("client_id", &*self.client_id)];
            let (status, answer) = match ask(&self.client, &self.token_url, Some(&form), ANSWER_LEN_MAX) {
                Ok((500.., answer)) => {
                    trouble = Some(refused(500, &answer).to_string());
                    self.slow_down(self.interval);
                    continue;
                }
                Ok(answer) => answer,
                // Section 3.5: more and more rarely.
                Err(reason) => {
                    trouble = Some(reason);
                    self.slow_down(self.interval);
                    continue;
                }
            };
            trouble = None;
            if status == 200 {
                let token = answer.get("id_token").and_then(Value::as_str);
                return token.and_then(identity_token).ok_or(DeviceError::NoIdentity);
            }
            match answer.get("error").and_then(Value::as_str) {
                Some("authorization_pending") => {}
                Some("slow_down") => self.slow_down(INTERVAL),
                Some("access_denied") => return Err(DeviceError::Denied),
                Some("expired_token") => return Err(DeviceError::Expired),
                _ => return Err(refused(status, &answer)),
            }
        }
    }

    fn slow_down(&mut self, by: Duration) {
        self.interval = (self.interval + by).min(INTERVAL_MAX);
    }
}

/// An error of RFC 6749, section 5.2, in ASCII as it says.
fn refused(status: u16, answer: &Value) -> DeviceError {
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(short).filter(|text| text.is_ascii());
    let error = text("error").unwrap_or_else(|| format!("status {status}"));
    DeviceError::Refused(match text("error_description") {
        Some(description) => format!("{error}: {description}"),
        None => error,
    })
}

/// A text that can be shown: neither empty nor long, nor with anything but visible ASCII and blanks.
fn printable(text: &str, len_max: usize) -> Option<&str> {
    let is_printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    (is_printable && (1..=len_max).contains(&text.len())).then_some(text)
}
