//! Profiles in AWS's files (`~/.aws/credentials`, `~/.aws/config`).

use std::collections::HashMap;
use std::process::{Command, Stdio};

use narval_client::Client;
use zeroize::Zeroizing;

use super::environment::read;
use super::web_identity::WebIdentity;
use super::{CredentialsError, Environment, Keys, document};

/// The settings of a profile; wiped when dropped, because they contain secrets.
type Settings = HashMap<String, Zeroizing<String>>;

/// The keys of a profile; `None` if it does not exist, or has no keys.
pub(super) fn keys(environment: &Environment, name: &str, client: &Client) -> Result<Option<Keys>, CredentialsError> {
    let Some(profile) = settings(environment, name)? else { return Ok(None) };
    let get = |setting: &str| profile.get(setting).map(|value| value.as_str()).filter(|value| !value.is_empty());
    if let (Some(id), Some(secret)) = (get("aws_access_key_id"), get("aws_secret_access_key")) {
        let token = get("aws_session_token").map(|token| Zeroizing::new(token.to_owned()));
        return Ok(Some(Keys { id: id.to_owned(), secret: Zeroizing::new(secret.to_owned()), token, expires: None }));
    }
    if let (Some(token_file), Some(role)) = (get("web_identity_token_file"), get("role_arn")) {
        let session = get("role_session_name").map(str::to_owned);
        let identity = WebIdentity { token_file: token_file.to_owned(), role: role.to_owned(), session };
        return identity.keys(environment, client).map(Some);
    }
    if let Some(command) = get("credential_process") {
        return run(name, command).map(Some);
    }
    if get("role_arn").or(get("sso_session")).or(get("sso_start_url")).is_some() {
        return Err(CredentialsError::Setting(format!(
            "the profile '{name}' takes on a role or signs on, which only AWS's own tool does; add to another profile: \
             credential_process = aws configure export-credentials --profile {name} --format process"
        )));
    }
    Ok(None)
}

/// Whether there is such a profile.
pub(super) fn exists(environment: &Environment, name: &str) -> Result<bool, CredentialsError> {
    Ok(settings(environment, name)?.is_some())
}

/// The settings of a profile in both files; the credentials file takes precedence.
fn settings(environment: &Environment, name: &str) -> Result<Option<Settings>, CredentialsError> {
    let mut all: Option<Settings> = None;
    for (variable, file, section) in [
        ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", name.to_owned()),
        ("AWS_CONFIG_FILE", ".aws/config", if name == "default" { name.to_owned() } else { format!("profile {name}") }),
    ] {
        let Some(path) = environment.file(variable, file) else { continue };
        let Some(text) = read(&path)? else { continue };
        if let Some(found) = parse(&text, &section) {
            let all = all.get_or_insert_default();
            for (setting, value) in found {
                all.entry(setting).or_insert(value);
            }
        }
    }
    Ok(all)
}

/// The settings of a section; `None` without it. Indented lines belong to the setting above them, and are ignored.
fn parse(text: &str, wanted: &str) -> Option<Settings> {
    let (mut found, mut within) = (None, false);
    for line in text.lines() {
        let bare = line.trim();
        if let Some(section) = bare.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let section = section.split_whitespace().collect::<Vec<_>>().join(" ");
            within = section == wanted || (wanted == "default" && section == "profile default");
            if within {
                found.get_or_insert_with(Settings::new);
            }
        } else if within
            && !bare.starts_with(['#', ';'])
            && !line.starts_with([' ', '\t'])
            && let (Some((setting, value)), Some(found)) = (bare.split_once('='), found.as_mut())
        {
            found.insert(setting.trim().to_ascii_lowercase(), Zeroizing::new(value.trim().to_owned()));
        }
    }
    found
}

/// Runs `credential_process`, as AWS's tools do: with the shell, and with its stderr shown.
fn run(name: &str, command: &str) -> Result<Keys, CredentialsError> {
    let who = format!("the credential_process of the profile '{name}'");
    let mut process = Command::new("sh");
    process.args(["-c", command]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = process.output().map_err(|error| CredentialsError::Setting(format!("{who}: {error}")))?;
    let text = Zeroizing::new(output.stdout);
    if !output.status.success() {
        return Err(CredentialsError::Passing(format!("{who} failed: {}", output.status)));
    }
    document::parse(&who, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_as_people_write_them() {
        let text = "# mine\n[default]\naws_access_key_id=a\n s3 =\n  endpoint = x\n[ profile  build ]\nAWS_Access_Key_ID = b # no comment\n; x = y\n[x]\naws_access_key_id = c";
        let id =
            |section| parse(text, section).map(|found| found.get("aws_access_key_id").unwrap().as_str().to_owned());
        assert_eq!(id("default").as_deref(), Some("a"));
        assert_eq!(id("profile build").as_deref(), Some("b # no comment"));
        assert_eq!(id("build"), None);
        assert!(!parse(text, "default").unwrap().contains_key("endpoint"));
    }
}
