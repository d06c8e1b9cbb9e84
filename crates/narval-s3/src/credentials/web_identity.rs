//! A web identity: a token in a file, which AWS's Security Token Service exchanges for keys (service accounts of Kubernetes,
//! CI jobs).

use narval_client::{Client, Extra, Method, Payload, Upload, Url};
use url::form_urlencoded::Serializer;
use zeroize::Zeroizing;

use super::document::parse_time;
use super::environment::read;
use super::{CredentialsError, Environment, Keys};
use crate::xml::element;

/// The maximum size of a response.
const ANSWER_LEN_MAX: u64 = 64 * 1024;

/// A role, and the file with the identity token for assuming it.
pub(super) struct WebIdentity {
    pub(super) token_file: String,
    pub(super) role: String,
    pub(super) session: Option<String>,
}

impl WebIdentity {
    /// The web identity in the environment, if any.
    pub(super) fn of(environment: &Environment) -> Result<Option<Self>, CredentialsError> {
        let Some(token_file) = environment.get("AWS_WEB_IDENTITY_TOKEN_FILE") else { return Ok(None) };
        let missing =
            || CredentialsError::Setting("AWS_WEB_IDENTITY_TOKEN_FILE is set, but AWS_ROLE_ARN is not".into());
        let role = environment.get("AWS_ROLE_ARN").ok_or_else(missing)?;
        Ok(Some(Self { token_file, role, session: environment.get("AWS_ROLE_SESSION_NAME") }))
    }

    /// Exchanges the token for keys.
    pub(super) fn keys(&self, environment: &Environment, client: &Client) -> Result<Keys, CredentialsError> {
        let missing = || CredentialsError::Setting(format!("there is no file '{}'", self.token_file));
        let token = read(self.token_file.as_ref())?.ok_or_else(missing)?;
        let url = Url::parse(&endpoint(environment))
            .map_err(|error| CredentialsError::Setting(format!("AWS_ENDPOINT_URL_STS: {error}")))?;
        let mut form = Serializer::new(String::new());
        form.append_pair("Action", "AssumeRoleWithWebIdentity").append_pair("Version", "2011-06-15");
        form.append_pair("RoleArn", &self.role).append_pair("WebIdentityToken", token.trim());
        form.append_pair("RoleSessionName", self.session.as_deref().unwrap_or("narval"));
        let form = Zeroizing::new(form.finish());
        let upload = Upload {
            method: Method::Post,
            url: &url,
            content_type: "application/x-www-form-urlencoded",
            extra: Extra { is_signed: true, ..Extra::default() },
            payload: Payload::Bytes(form.as_bytes()),
            on_sent: &|_| {},
            answer_len_max: ANSWER_LEN_MAX,
        };
        let failed = |reason: String| CredentialsError::Passing(format!("the role '{}' at {url}: {reason}", self.role));
        let answer = client.upload(&upload).map_err(|error| failed(error.to_string()))?;
        let text = Zeroizing::new(String::from_utf8_lossy(&answer.body).into_owned());
        let found = |name| element(&text, name);
        let (Some(id), Some(secret)) = (found("AccessKeyId"), found("SecretAccessKey")) else {
            let reason = found("Message").unwrap_or_else(|| "no reason given".to_owned());
            return Err(failed(format!("it answered {}: {reason}", answer.head.status)));
        };
        let expires = found("Expiration").and_then(|text| parse_time(&text));
        Ok(Keys { id, secret: Zeroizing::new(secret), token: found("SessionToken").map(Zeroizing::new), expires })
    }
}

/// The endpoint of the region, or the given one.
fn endpoint(environment: &Environment) -> String {
    let region = environment.get("AWS_REGION").or_else(|| environment.get("AWS_DEFAULT_REGION"));
    let of_region = || {
        region.map_or_else(
            || "https://sts.amazonaws.com".to_owned(),
            |region| format!("https://sts.{region}.amazonaws.com"),
        )
    };
    environment.get("AWS_ENDPOINT_URL_STS").unwrap_or_else(of_region)
}
