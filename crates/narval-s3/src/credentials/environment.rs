//! The environment in which credentials are searched.

use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::{CredentialsError, Keys};

/// The maximum size of a file.
const FILE_LEN_MAX: u64 = 1024 * 1024;

type Lookup = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Environment variables: those of this process, or given ones.
pub struct Environment(Lookup);

impl Environment {
    /// The environment of this process.
    pub fn of_process() -> Self {
        Self(Box::new(|name| std::env::var(name).ok()))
    }

    /// Only these variables.
    pub fn of(variables: Vec<(String, String)>) -> Self {
        Self(Box::new(move |name| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())))
    }

    /// A variable that is set, and not empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.0(name).filter(|value| !value.trim().is_empty())
    }

    /// The file that a variable names, or one below the home folder.
    pub(super) fn file(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let named = self.get(variable).map(PathBuf::from);
        named.or_else(|| self.get("HOME").map(|home| Path::new(&home).join(below_home)))
    }

    /// The access key in the environment itself.
    pub(super) fn keys(&self) -> Option<Keys> {
        let (id, secret) = (self.get("AWS_ACCESS_KEY_ID")?, self.get("AWS_SECRET_ACCESS_KEY")?);
        let token = self.get("AWS_SESSION_TOKEN").map(Zeroizing::new);
        Some(Keys { id: id.trim().to_owned(), secret: Zeroizing::new(secret.trim().to_owned()), token, expires: None })
    }
}

/// Reads a small text file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Zeroizing<String>>, CredentialsError> {
    let fail =
        |error: &dyn std::fmt::Display| CredentialsError::Setting(format!("cannot read '{}': {error}", path.display()));
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > FILE_LEN_MAX => Err(fail(&"it is too large")),
        Ok(_) => std::fs::read_to_string(path).map(|text| Some(Zeroizing::new(text))).map_err(|error| fail(&error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fail(&error)),
    }
}
