//! Types of values: each parses a TOML value, or returns what is allowed.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use narval_keep::{CacheName, CacheNameError};
use narval_serve::is_reserved_name;
use toml::de::{DeTable, DeValue};

use crate::values::size::parse_size;
use crate::values::time::{parse_time, written};

/// A type of value.
pub(super) struct Kind<T>(Box<Read<T>>);

type Read<T> = dyn Fn(&DeValue<'_>) -> Result<T, String>;

impl<T> Kind<T> {
    fn new(read: impl Fn(&DeValue<'_>) -> Result<T, String> + 'static) -> Self {
        Self(Box::new(read))
    }

    /// Parses a value; the error is what is allowed.
    pub(super) fn read(&self, value: &DeValue<'_>) -> Result<T, String> {
        (self.0)(value)
    }

    /// What is allowed, as an error says it.
    pub(super) fn allowed(&self) -> String {
        // No type accepts a table.
        let said = self.read(&DeValue::Table(DeTable::new())).err().unwrap_or_default();
        said.strip_prefix("give ").unwrap_or(&said).to_owned()
    }
}

impl Kind<bool> {
    pub(super) fn boolean() -> Self {
        Self::new(|value| value.as_bool().ok_or_else(|| "give true or false".to_owned()))
    }
}

impl Kind<String> {
    pub(super) fn text() -> Self {
        Self::new(|value| {
            let text = value.as_str().filter(|text| !text.is_empty());
            text.map(str::to_owned).ok_or_else(|| "give a text in quotes".to_owned())
        })
    }
}

impl Kind<PathBuf> {
    pub(super) fn path() -> Self {
        Self::new(|value| {
            let path = value.as_str().filter(|path| !path.is_empty() && !path.contains('\0'));
            path.map(PathBuf::from).ok_or_else(|| "give a path in quotes".to_owned())
        })
    }
}

impl<T: FromStr<Err: Display> + 'static> Kind<T> {
    /// A parsed string; the error is what is allowed.
    pub(super) fn parsed(allowed: &'static str) -> Self {
        Self::new(move |value| {
            let text = value.as_str().ok_or_else(|| format!("give {allowed} in quotes"))?;
            text.parse().map_err(|error: T::Err| error.to_string())
        })
    }
}

impl<T: TryFrom<i64> + Display + Copy + PartialOrd + 'static> Kind<T> {
    /// A whole number.
    pub(super) fn integer(range: RangeInclusive<T>) -> Self {
        Self::new(move |value| {
            let number = integer(value).and_then(|number| T::try_from(number).ok());
            let number = number.filter(|number| range.contains(number));
            number.ok_or_else(|| format!("give a whole number from {} to {}", range.start(), range.end()))
        })
    }
}

impl Kind<u64> {
    /// A size in bytes: a number, or a string such as `10G`.
    pub(super) fn size() -> Self {
        Self::new(|value| {
            let size = match value.as_str() {
                Some(text) => parse_size(text).ok(),
                None => integer(value).and_then(|bytes| u64::try_from(bytes).ok()),
            };
            size.ok_or_else(|| "give a number of bytes, or a string with K, M, G or T, such as \"10G\"".to_owned())
        })
    }
}

impl Kind<Duration> {
    /// A time: a number of seconds, or a string as [`parse_time`] takes it.
    pub(super) fn duration(range: RangeInclusive<Duration>) -> Self {
        Self::new(move |value| {
            let time = match value.as_str() {
                Some(text) => parse_time(text).ok(),
                None => integer(value).and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs),
            };
            let (least, most) = (written(*range.start()), written(*range.end()));
            time.filter(|time| range.contains(time)).ok_or_else(|| {
                format!("give a time from \"{least}\" to \"{most}\", with ms, s, m, h, d or w as its unit")
            })
        })
    }
}

impl<T: ValueEnum + 'static> Kind<T> {
    /// One of a few words.
    pub(super) fn choice() -> Self {
        Self::new(|value| {
            let found = value.as_str().and_then(|text| T::from_str(text, false).ok());
            found.ok_or_else(|| {
                let names = T::value_variants().iter().filter_map(T::to_possible_value);
                let names: Vec<_> = names.map(|name| format!("\"{}\"", name.get_name())).collect();
                format!("give one of {}", names.join(", "))
            })
        })
    }
}

impl Kind<CacheName> {
    /// The name of a cache: that of the cache at `/`, or one that is valid in a path.
    pub(super) fn cache_name() -> Self {
        Self::new(|value| {
            let text = value.as_str().ok_or_else(|| "give a name in quotes".to_owned())?;
            let name: CacheName = text.parse().map_err(|error: CacheNameError| error.to_string())?;
            if name != CacheName::default() && is_reserved_name(text) {
                return Err(format!("'/{text}' is a path of the cache at '/': choose another name"));
            }
            Ok(name)
        })
    }
}

impl Kind<String> {
    /// A host name in lower case, without a port.
    pub(super) fn host() -> Self {
        Self::new(|value| {
            let is_name = |text: &&str| {
                text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) && text.len() <= 253
            };
            let host = value.as_str().map(|text| text.trim_end_matches('.')).filter(|text| !text.is_empty());
            let host = host.filter(is_name).map(str::to_ascii_lowercase);
            host.ok_or_else(|| "give a host name without a port, such as \"team.example.org\"".to_owned())
        })
    }
}

/// When unused paths are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// After this many days.
    Days(u32),
    /// Never.
    Never,
}

impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let days = text.strip_suffix('d').and_then(|days| days.trim_end().parse().ok()).filter(|days| *days > 0);
        match (text, days) {
            ("never", _) => Ok(Self::Never),
            (_, Some(days)) => Ok(Self::Days(days)),
            _ => Err("give a number of days, such as \"90d\", or \"never\"".to_owned()),
        }
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}
