//! The endpoint that provides keys to a container: ECS, EKS Pod Identity, and compatible ones.

use std::net::IpAddr;

use narval_client::{Client, Extra, Method, Request, Url};

use super::environment::read;
use super::{CredentialsError, Environment, Keys, document};

/// The base of `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`.
const ECS: &str = "http://169.254.170.2";
/// The addresses, besides loopback, that may be queried over plain HTTP: those of ECS and of EKS.
const OVER_HTTP: [&str; 3] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];
/// The maximum size of a response.
const ANSWER_LEN_MAX: u64 = 64 * 1024;

/// The keys of the endpoint that the environment names; `None` if it names none.
pub(super) fn keys(environment: &Environment, client: &Client) -> Result<Option<Keys>, CredentialsError> {
    let relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("{ECS}{path}"));
    let Some(address) = relative.or_else(|| environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")) else {
        return Ok(None);
    };
    let unusable = |reason: &str| CredentialsError::Setting(format!("AWS_CONTAINER_CREDENTIALS_FULL_URI: {reason}"));
    let url = Url::parse(&address).map_err(|error| unusable(&error.to_string()))?;
    let host = &url.origin().host;
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if !(url.scheme() == narval_client::Scheme::Https || is_loopback || OVER_HTTP.contains(&host.as_str())) {
        return Err(unusable("only https://, or a loopback address or one of AWS's container endpoints"));
    }
    let token = match environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        // Read every time: the file is replaced before the token expires.
        Some(file) => read(file.as_ref())?.map(|text| text.trim().to_owned()),
        None => environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
    };
    let field = token.as_deref().map(|token| [("authorization", token)]);
    let extra = Extra { fields: field.as_ref().map_or(&[], |field| field), is_signed: true, ..Extra::default() };
    let request = Request { method: Method::Get, extra, ..Request::get(&url) };
    let answer = client.retrying(&url, || client.small_answer(&request, ANSWER_LEN_MAX));
    let who = "the container's endpoint";
    match answer {
        Ok(Some(text)) => document::parse(who, &text).map(Some),
        Ok(None) => Err(CredentialsError::Passing(format!("{who} refused ({url})"))),
        Err(error) => Err(CredentialsError::Passing(format!("{who} ({url}): {error}"))),
    }
}
