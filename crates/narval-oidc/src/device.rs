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

use crate::error::DeviceError;
use crate::fetch::{ask, client, discovery};
use crate::issuer::{address, is_here, is_safe};
use crate::limits::{ANSWER_LEN_MAX, CODE_LEN_MAX, INTERVAL_MAX, SHOWN_LEN_MAX, SIGN_IN_TIME_MAX, TOKEN_LEN_MAX};
use crate::token::{identity_token, short};

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
    /// Whether they ask for leave to sign in again without the person (OpenID Connect Core 1.0, section 11).
    pub fn is_renewable(&self) -> bool {
        self.scope.split(' ').any(|scope| scope == "offline_access")
    }

    /// As servers answer it.
    pub fn to_json(&self) -> Value {
        json!({"issuer": self.issuer, "client_id": self.client_id, "scope": self.scope})
    }

    /// Reads the answer of a server; `None` if it is none.
    pub fn parse(answer: &[u8]) -> Option<Self> {
        Self::from_json(&serde_json::from_slice(answer).ok()?)
    }

    /// The same, of what [`to_json`](Self::to_json) made.
    pub fn from_json(answer: &Value) -> Option<Self> {
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
    at: Issuer,
    token_url: Url,
    how: SignIn,
    device_code: Zeroizing<String>,
    interval: Duration,
    until: Instant,
    code: DeviceCode,
}

/// A person who has signed in. Nothing of it is verified here.
pub struct SignedIn {
    /// Their identity token.
    pub identity: Zeroizing<String>,
    /// What gets another one without them, if `offline_access` was asked for and the issuer gives it ([`renew`]).
    pub refresh: Option<Zeroizing<String>>,
}

/// An issuer that is asked, and its discovery document.
struct Issuer {
    client: Arc<Client>,
    url: Url,
    document: Value,
    /// Only a server on this machine may name an issuer on this machine.
    may_be_here: bool,
}

impl Issuer {
    fn of(by: &Url, issuer: &str) -> Result<Self, DeviceError> {
        let url = address(issuer).map_err(|error| DeviceError::Issuer(error.to_string()))?;
        let may_be_here = is_here(by);
        if is_here(&url) && !may_be_here {
            return Err(DeviceError::Issuer(format!("{by} names '{url}', an issuer on this machine")));
        }
        let client = client();
        let document = discovery(&client, &url, issuer).map_err(DeviceError::Issuer)?;
        Ok(Self { client, url, document, may_be_here })
    }

    fn allows(&self, url: &Url) -> bool {
        is_safe(url) && (self.may_be_here || !is_here(url))
    }

    fn endpoint(&self, name: &str) -> Result<Url, DeviceError> {
        let named = self.document.get(name).and_then(Value::as_str).and_then(|named| Url::parse(named).ok());
        named.filter(|named| self.allows(named)).ok_or_else(|| {
            let url = &self.url;
            DeviceError::Issuer(format!(
                "{url}: its discovery document has no usable {name}; does it allow the device flow?"
            ))
        })
    }

    fn ask(&self, url: &Url, form: &[(&str, &str)]) -> Result<(u16, Value), String> {
        ask(&self.client, url, Some(form), ANSWER_LEN_MAX)
    }
}

/// Gets another identity token for somebody who has signed in before (RFC 6749, section 6). The issuer may give another refresh token, and refuse the one of
/// before from then on. `by` and `how` are what they signed in with, and not what the server says now: it could name an issuer of its own.
///
/// # Errors
/// The issuer cannot be asked, or does not let them in any more.
pub fn renew(by: &Url, how: &SignIn, refresh: &str) -> Result<SignedIn, DeviceError> {
    let at = Issuer::of(by, &how.issuer)?;
    let form = [("grant_type", "refresh_token"), ("refresh_token", refresh), ("client_id", &*how.client_id)];
    match at.ask(&at.endpoint("token_endpoint")?, &form).map_err(DeviceError::Issuer)? {
        (200, answer) => signed_in(how, &answer),
        (status, answer) => Err(refused(status, &answer)),
    }
}

/// Has the issuer forget a refresh token (RFC 7009). `false` if it has no place where this is asked.
///
/// # Errors
/// The issuer cannot be asked, or refuses.
pub fn revoke(by: &Url, how: &SignIn, refresh: &str) -> Result<bool, DeviceError> {
    let at = Issuer::of(by, &how.issuer)?;
    let Ok(url) = at.endpoint("revocation_endpoint") else { return Ok(false) };
    let form = [("token", refresh), ("token_type_hint", "refresh_token"), ("client_id", &*how.client_id)];
    // Its answer has no body.
    match at.ask(&url, &form) {
        Ok((200, _)) => Ok(true),
        Ok((status, answer)) => Err(refused(status, &answer)),
        Err(reason) => Err(DeviceError::Issuer(reason)),
    }
}

fn signed_in(how: &SignIn, answer: &Value) -> Result<SignedIn, DeviceError> {
    let token = |name: &str| answer.get(name).and_then(Value::as_str).and_then(identity_token);
    let refresh = token("refresh_token").filter(|_| how.is_renewable());
    Ok(SignedIn { identity: token("id_token").ok_or(DeviceError::NoIdentity)?, refresh })
}

impl Device {
    /// Asks the issuer for a code. `by`: the server that named the issuer. Only one on this machine may name an issuer on this machine.
    ///
    /// # Errors
    /// The issuer cannot be asked, refuses, or does not say what it must.
    pub fn begin(by: &Url, how: &SignIn) -> Result<Self, DeviceError> {
        let at = Issuer::of(by, &how.issuer)?;
        let (device_url, token_url) = (at.endpoint("device_authorization_endpoint")?, at.endpoint("token_endpoint")?);
        let form = [("client_id", &*how.client_id), ("scope", &*how.scope)];
        let (status, answer) = at.ask(&device_url, &form).map_err(DeviceError::Issuer)?;
        if status != 200 {
            return Err(refused(status, &answer));
        }
        let malformed = |name: &str| DeviceError::Issuer(format!("{device_url}: '{name}' is missing or malformed"));
        let text = |name: &str, len_max| answer.get(name)?.as_str().and_then(|text| printable(text, len_max));
        // Older drafts of the standard have another name for it, and one large issuer still does.
        let shown = text("verification_uri", SHOWN_LEN_MAX).or_else(|| text("verification_url", SHOWN_LEN_MAX));
        let shown = shown.filter(|shown| Url::parse(shown).is_ok_and(|url| at.allows(&url)));
        let complete = text("verification_uri_complete", SHOWN_LEN_MAX);
        let complete = complete.filter(|shown| Url::parse(shown).is_ok_and(|url| at.allows(&url)));
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
            how: how.clone(),
            device_code: device_code.to_owned().into(),
            interval: seconds("interval").unwrap_or(INTERVAL).clamp(INTERVAL_MIN, INTERVAL_MAX),
            until: Instant::now() + valid_for,
            at,
            token_url,
            code,
        })
    }

    /// What to show.
    pub const fn code(&self) -> &DeviceCode {
        &self.code
    }

    /// Waits until the person has signed in.
    ///
    /// # Errors
    /// They did not, or the issuer refuses or does not answer.
    pub fn wait(mut self) -> Result<SignedIn, DeviceError> {
        let mut trouble = None;
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left < self.interval {
                return Err(trouble.map_or(DeviceError::Expired, DeviceError::Issuer));
            }
            sleep(self.interval);
            let form = [
                ("grant_type", DEVICE_CODE),
                ("device_code", &**self.device_code),
                ("client_id", &*self.how.client_id),
            ];
            let (status, answer) = match self.at.ask(&self.token_url, &form) {
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
                return signed_in(&self.how, &answer);
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
