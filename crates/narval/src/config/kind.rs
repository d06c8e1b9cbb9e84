//! A type of value: it reads what was given, or says what is allowed.

use std::ffi::OsStr;
use std::path::Path;

use toml::de::{DeTable, DeValue};

/// A value as it was given.
pub(super) struct Raw<'a> {
    pub(super) value: Given<'a>,
    /// The base of relative paths.
    pub(super) base: &'a Path,
}

pub(super) enum Given<'a> {
    /// In the file.
    Toml(&'a DeValue<'a>),
    /// As an option, or as a default.
    Text(&'a OsStr),
}

impl Raw<'_> {
    pub(super) fn text(&self) -> Option<&str> {
        match self.value {
            Given::Toml(value) => value.as_str(),
            Given::Text(text) => text.to_str(),
        }
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        match self.value {
            Given::Toml(value) => value.as_bool(),
            Given::Text(text) => text.to_str()?.parse().ok(),
        }
    }

    pub(super) fn integer(&self) -> Option<i64> {
        match self.value {
            Given::Toml(value) => {
                let integer = value.as_integer()?;
                i64::from_str_radix(integer.as_str(), integer.radix()).ok()
            }
            Given::Text(text) => text.to_str()?.parse().ok(),
        }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        let path = match self.value {
            Given::Toml(value) => OsStr::new(value.as_str()?),
            Given::Text(text) => text,
        };
        (!path.is_empty() && !path.as_encoded_bytes().contains(&0)).then_some(Path::new(path))
    }
}

/// A type of value.
pub(super) struct Kind<T>(Box<Read<T>>);

type Read<T> = dyn Fn(&Raw<'_>) -> Result<T, String>;

impl<T> Kind<T> {
    pub(super) fn new(read: impl Fn(&Raw<'_>) -> Result<T, String> + 'static) -> Self {
        Self(Box::new(read))
    }

    /// Reads a value; the error is what is allowed.
    pub(crate) fn read(&self, value: &Raw<'_>) -> Result<T, String> {
        (self.0)(value)
    }

    /// What is allowed, as an error says it.
    pub(crate) fn allowed(&self) -> String {
        // No type accepts a table.
        let table = DeValue::Table(DeTable::new());
        let message = self.read(&Raw { value: Given::Toml(&table), base: Path::new("") }).err().unwrap_or_default();
        message.strip_prefix("give ").unwrap_or(&message).to_owned()
    }
}
