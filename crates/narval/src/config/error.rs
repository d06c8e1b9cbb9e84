//! Errors in settings: one line each, with the place of the setting.

use std::fmt;
use std::sync::Arc;

/// Where a setting stands. It is no part of the setting: two are always equal.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Nowhere: it is the default.
    Default,
    /// In a file on this line, starting at 1; 0 if the file as a whole is meant.
    Line(Arc<str>, usize),
    /// On the command line, as the option of this name.
    Option(&'static str),
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Origin {}

impl Origin {
    /// Whether it is an option of the command line.
    pub fn is_option(&self) -> bool {
        matches!(self, Self::Option(_))
    }

    /// The line of the file; 0 for others.
    pub fn line(&self) -> usize {
        if let Self::Line(_, line) = self { *line } else { 0 }
    }

    /// An error about the setting `key` that stands here.
    pub fn error(&self, key: &str, message: impl fmt::Display) -> ConfigError {
        let message = if self.is_option() { message.to_string() } else { format!("{key}: {message}") };
        ConfigError { origin: self.clone(), message }
    }

    /// How to set a key with an option of the same name, where this stands: `data = "DIR"` or `--data DIR`.
    pub fn setting(&self, key: &str, value: &str) -> String {
        if self.is_option() { format!("--{key} {value}") } else { format!("{key} = \"{value}\"") }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Line(file, 0) => f.write_str(file),
            Self::Line(file, line) => write!(f, "{file}:{line}"),
            Self::Option(name) => write!(f, "option --{name}"),
        }
    }
}

/// One error in the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {message}")]
pub struct ConfigError {
    /// The place of the setting.
    pub origin: Origin,
    /// The error, with the key, the value, and what is allowed.
    pub message: String,
}

/// All errors in the settings: those of options, then those of the file in the order of its lines; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    /// One line for each error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}
