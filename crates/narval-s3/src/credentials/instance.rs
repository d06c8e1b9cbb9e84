//! The metadata of an EC2 instance (IMDSv2).

use narval_client::{Client, Extra, HttpError, Method, Request, Url};

use super::{CredentialsError, Environment, Keys, document};

/// The service's address on every instance.
const SERVICE: &str = "http://169.254.169.254";
const ROLES: &str = "latest/meta-data/iam/security-credentials/";
/// The requested lifetime of the session with the service: one lookup.
const SESSION_SECONDS: &str = "60";
/// The maximum size of a response.
const ANSWER_LEN_MAX: u64 = 64 * 1024;

/// The keys of this instance's role; `None` if this is not an instance, or one without a role.
pub(super) fn keys(environment: &Environment, client: &Client) -> Result<Option<Keys>, CredentialsError> {
    if environment.get("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let address = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| SERVICE.to_owned());
    let service = Url::parse(&address)
        .map_err(|error| CredentialsError::Setting(format!("AWS_EC2_METADATA_SERVICE_ENDPOINT: {error}")))?;
    let ask = |method: Method, path: &str, field: (&str, &str)| -> Result<Option<Vec<u8>>, HttpError> {
        let url = service.child(path)?;
        let extra = Extra { fields: &[field], is_signed: true, ..Extra::default() };
        client.small_answer(&Request { method, extra, ..Request::get(&url) }, ANSWER_LEN_MAX)
    };
    let session = match ask(Method::Put, "latest/api/token", ("x-aws-ec2-metadata-token-ttl-seconds", SESSION_SECONDS))
    {
        Ok(Some(session)) => String::from_utf8_lossy(&session).trim().to_owned(),
        // No response: this is not an instance.
        Ok(None) | Err(HttpError::Connect { .. } | HttpError::Stalled { .. } | HttpError::Offline) => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    let field = ("x-aws-ec2-metadata-token", session.as_str());
    let Some(roles) = ask(Method::Get, ROLES, field).map_err(|error| failed(&error))? else { return Ok(None) };
    let roles = String::from_utf8_lossy(&roles);
    let Some(role) = roles.lines().map(str::trim).find(|role| !role.is_empty()) else { return Ok(None) };
    match ask(Method::Get, &format!("{ROLES}{role}"), field).map_err(|error| failed(&error))? {
        Some(text) => document::parse("the instance's metadata service", &text).map(Some),
        None => Err(CredentialsError::Passing(format!("the instance's metadata service has no keys for '{role}'"))),
    }
}

fn failed(error: &HttpError) -> CredentialsError {
    CredentialsError::Passing(format!("the instance's metadata service: {error}"))
}
