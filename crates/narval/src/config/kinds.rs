//! Types of values: each reads a value of the file, or the text of an option, or returns what is allowed.

use std::fmt::{Debug, Display};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use narval_keep::{CacheName, CacheNameError};
use narval_serve::is_reserved_name;

use super::key::{Key, KeyInfo};
use super::kind::{Kind, Raw};
use crate::values::size::parse_size;
use crate::values::time::{parse_time, written};

fn key<T>(nix: impl Into<String>, read: impl Fn(&Raw<'_>) -> Result<T, String> + 'static) -> Key<T> {
    Key { kind: Kind::new(read), info: KeyInfo { nix: nix.into(), ..KeyInfo::default() } }
}

pub(crate) fn boolean() -> Key<bool> {
    key("types.bool", |raw| raw.boolean().ok_or_else(|| "give true or false".to_owned()))
}

pub(crate) fn text() -> Key<String> {
    key("types.nonEmptyStr", |raw| {
        let text = raw.text().filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| "give a text in quotes".to_owned())
    })
}

/// A path, relative to the folder of the file.
pub(crate) fn path() -> Key<PathBuf> {
    path_unless(|_| false)
}

/// The same, but some texts are no paths of files.
pub(crate) fn path_unless(is_other: fn(&str) -> bool) -> Key<PathBuf> {
    key("file", move |raw| {
        let path = raw.path().ok_or_else(|| "give a path in quotes".to_owned())?;
        let is_other = path.to_str().is_some_and(is_other);
        Ok(if is_other { path.to_owned() } else { raw.base.join(path) })
    })
}

/// A parsed text; the error is what is allowed.
pub(crate) fn parsed<T: FromStr<Err: Display> + Debug + 'static>(allowed: &'static str) -> Key<T> {
    key("types.str", move |raw| {
        let text = raw.text().ok_or_else(|| format!("give {allowed} in quotes"))?;
        text.parse().map_err(|error: T::Err| error.to_string())
    })
}

/// A whole number.
pub(crate) fn integer<T: TryFrom<i64> + Display + PartialOrd + 'static>(range: RangeInclusive<T>) -> Key<T> {
    key(format!("(types.ints.between {} {})", range.start(), range.end()), move |raw| {
        let number = raw.integer().and_then(|number| T::try_from(number).ok());
        let number = number.filter(|number| range.contains(number));
        number.ok_or_else(|| format!("give a whole number from {} to {}", range.start(), range.end()))
    })
}

/// A size in bytes: a number, or a text such as `10G`.
pub(crate) fn size() -> Key<u64> {
    key("size", |raw| {
        let size = match raw.text() {
            Some(text) => parse_size(text).ok(),
            None => raw.integer().and_then(|bytes| u64::try_from(bytes).ok()),
        };
        size.ok_or_else(|| "give a number of bytes, or a string with K, M, G or T, such as \"10G\"".to_owned())
    })
}

/// A size of at least this many bytes.
pub(crate) fn size_from(least: u64) -> Key<u64> {
    key("size", move |raw| {
        let size = size().kind.read(raw).ok().filter(|size| *size >= least);
        size.ok_or_else(|| format!("give a size of at least \"{}M\"", least >> 20))
    })
}

/// A time: a number of seconds, or a text as [`parse_time`] takes it.
pub(crate) fn duration(range: RangeInclusive<Duration>) -> Key<Duration> {
    key("time", move |raw| {
        let time = match raw.text() {
            Some(text) => parse_time(text).ok(),
            None => raw.integer().and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs),
        };
        let (least, most) = (written(*range.start()), written(*range.end()));
        time.filter(|time| range.contains(time))
            .ok_or_else(|| format!("give a time from \"{least}\" to \"{most}\", with ms, s, m, h, d or w as its unit"))
    })
}

/// One of a few words, each with what it means, in words and as a value.
pub(crate) fn choice<T: Copy + 'static>(words: &'static [(&'static str, &'static str, T)]) -> Key<T> {
    let quoted: Vec<_> = words.iter().map(|(word, ..)| format!("\"{word}\"")).collect();
    let allowed = match quoted.as_slice() {
        [one, other] => format!("give {one} or {other}"),
        _ => format!("give one of {}", quoted.join(", ")),
    };
    let mut key = key(format!("(types.enum [ {} ])", quoted.join(" ")), move |raw| {
        let found = raw.text().and_then(|text| words.iter().find(|(word, ..)| *word == text));
        found.map(|(.., value)| *value).ok_or_else(|| allowed.clone())
    });
    key.info.words = words.iter().map(|(word, meaning, _)| (*word, *meaning)).collect();
    key
}

/// The name of a cache: that of the cache at `/`, or one that is valid in a path.
pub(crate) fn cache_name() -> Key<CacheName> {
    key("cacheName", |raw| {
        let text = raw.text().ok_or_else(|| "give a name in quotes".to_owned())?;
        let name: CacheName = text.parse().map_err(|error: CacheNameError| error.to_string())?;
        if name != CacheName::default() && is_reserved_name(text) {
            return Err(format!("'/{text}' is a path of the cache at '/': choose another name"));
        }
        Ok(name)
    })
}

/// A host name in lower case, without a port.
pub(crate) fn host() -> Key<String> {
    key("host", |raw| {
        let is_name = |text: &&str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) && text.len() <= 253
        };
        let host = raw.text().map(|text| text.trim_end_matches('.')).filter(|text| !text.is_empty());
        let host = host.filter(is_name).map(str::to_ascii_lowercase);
        host.ok_or_else(|| "give a host name without a port, such as \"team.example.org\"".to_owned())
    })
}

/// After how many days unused paths are removed; `None`: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention(pub Option<u32>);

impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let days = text.strip_suffix('d').and_then(|days| days.trim_end().parse().ok()).filter(|days| *days > 0);
        let is_known = text == "never" || days.is_some();
        is_known.then_some(Self(days)).ok_or_else(|| "give a number of days, such as \"90d\", or \"never\"".to_owned())
    }
}
