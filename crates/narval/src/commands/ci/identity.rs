//! Who a job is: the token of its CI platform (OpenID Connect), which a cache exchanges for one of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use narval_client::escaped;
use narval_oidc::{TOKEN_LEN_MAX, identity_token, token_of_runner};
use zeroize::Zeroizing;

/// The variable with a platform's token: GitLab's `id_tokens`, Jenkins's plugin, and everything else that can set a variable.
const VARIABLE: &str = "NARVAL_ID_TOKEN";
/// The variable with the path of a file that has it: a projected token of Kubernetes, which is renewed on the disk.
const FILE_VARIABLE: &str = "NARVAL_ID_TOKEN_FILE";
/// The variables of GitHub, Forgejo and Gitea: where a job gets a token, and with what.
const REQUEST: [&str; 2] = ["ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"];
/// That of CircleCI.
const CIRCLE: &str = "CIRCLE_OIDC_TOKEN_V2";

/// Where the token of the platform comes from, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// Whatever is there.
    Auto,
    /// None is used.
    None,
    /// A file, which may be renewed.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// The output of a command of a shell.
    Command(String),
}

impl FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "none" => Ok(Self::None),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("env", name)) if !name.is_empty() => Ok(Self::Variable(name.to_owned())),
            Some(("command", command)) if !command.is_empty() => Ok(Self::Command(command.to_owned())),
            _ => Err("use auto, none, file:PATH, env:NAME or command:COMMAND".to_owned()),
        }
    }
}

/// Where the token comes from.
pub(super) enum Source {
    /// A request to the runner. Each is answered with another token.
    Runner {
        url: String,
        secret: Zeroizing<String>,
    },
    /// A variable: one token, which can be exchanged once.
    Variable(String),
    File(PathBuf),
    Program(Command),
}

impl Identity {
    /// Where the token comes from here; `None` if there is none. `variable` reads the environment.
    pub(super) fn source(&self, audience: &str, variable: impl Fn(&str) -> Option<String>) -> Option<Source> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        match self {
            Self::None => None,
            Self::File(path) => Some(Source::File(path.clone())),
            Self::Variable(name) => set(name).map(|_| Source::Variable(name.clone())),
            Self::Command(command) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", command]);
                Some(Source::Program(shell))
            }
            Self::Auto => {
                let [url, secret] = REQUEST.map(set);
                if let (Some(url), Some(secret)) = (url, secret) {
                    let mark = if url.contains('?') { '&' } else { '?' };
                    return Some(Source::Runner {
                        url: format!("{url}{mark}audience={}", escaped(audience)),
                        secret: secret.into(),
                    });
                }
                if let Some(path) = set(FILE_VARIABLE) {
                    return Some(Source::File(path.into()));
                }
                if let Some(name) = [VARIABLE, CIRCLE].into_iter().find(|name| set(name).is_some()) {
                    return Some(Source::Variable(name.to_owned()));
                }
                (set("BUILDKITE").as_deref() == Some("true")).then(|| {
                    let mut agent = Command::new("buildkite-agent");
                    agent.args(["oidc", "request-token", "--audience", audience]);
                    Source::Program(agent)
                })
            }
        }
    }
}

impl Source {
    /// Whether another token can be had later.
    pub(super) const fn is_renewed(&self) -> bool {
        !matches!(self, Self::Variable(_))
    }

    /// A token of the platform.
    ///
    /// # Errors
    /// Why there is none, in words. They do not contain it.
    pub(super) fn token(&mut self) -> Result<Zeroizing<String>, String> {
        let token = match self {
            Self::Runner { url, secret } => {
                let token = token_of_runner(url, secret);
                token.map_err(|error| format!("identity: the runner gives no token: {error}"))?
            }
            Self::Variable(name) => std::env::var(&*name).map_err(|error| format!("variable {name}: {error}"))?.into(),
            Self::File(path) => read(path)?,
            Self::Program(command) => output_of(command)?,
        };
        identity_token(&token).ok_or_else(|| "the platform's identity token is empty, too long or malformed".to_owned())
    }
}

fn read(path: &Path) -> Result<Zeroizing<String>, String> {
    use std::io::Read;
    let failed = |error: std::io::Error| format!("identity token {}: {error}", path.display());
    let mut text = Zeroizing::new(String::new());
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(TOKEN_LEN_MAX as u64 + 2).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn output_of(command: &mut Command) -> Result<Zeroizing<String>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("identity: cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("identity: {name} ended with {}", output.status));
    }
    String::from_utf8(output.stdout).map(Into::into).map_err(|_| format!("identity: {name} did not print a token"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_known_by_their_variables() {
        let found = |variables: &[(&str, &str)]| {
            let variable =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            match Identity::Auto.source("https://cache.example.org", variable) {
                None => "none".to_owned(),
                Some(Source::Runner { url, .. }) => url,
                Some(Source::Variable(name)) => name,
                Some(Source::File(path)) => path.display().to_string(),
                Some(Source::Program(command)) => format!("{command:?}"),
            }
        };
        assert_eq!(found(&[]), "none");
        // A pull request of a fork has no address to ask.
        assert_eq!(found(&[("GITHUB_ACTIONS", "true"), (REQUEST[0], ""), (REQUEST[1], "")]), "none");
        assert_eq!(
            found(&[(REQUEST[0], "https://runner/t?v=2"), (REQUEST[1], "s")]),
            "https://runner/t?v=2&audience=https%3A%2F%2Fcache.example.org"
        );
        assert_eq!(found(&[(VARIABLE, "jwt"), ("GITLAB_CI", "true")]), VARIABLE);
        assert_eq!(found(&[(CIRCLE, "jwt")]), CIRCLE);
        assert_eq!(found(&[(FILE_VARIABLE, "/run/token"), ("GITLAB_CI", "true")]), "/run/token");
        let buildkite = found(&[("BUILDKITE", "true")]);
        assert!(
            buildkite.contains("buildkite-agent") && buildkite.contains("https://cache.example.org"),
            "{buildkite}"
        );
    }

    #[test]
    fn where_it_comes_from_is_written() {
        assert_eq!("file:/run/token".parse(), Ok(Identity::File("/run/token".into())));
        assert_eq!("env:JWT".parse(), Ok(Identity::Variable("JWT".to_owned())));
        assert_eq!("command:a --b c".parse(), Ok(Identity::Command("a --b c".to_owned())));
        assert!(["github", "file:", "", "auto:x"].iter().all(|text| text.parse::<Identity>().is_err()));
    }
}
