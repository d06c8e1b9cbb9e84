//! Parses a narinfo.

use thiserror::Error;

use super::{Form, Key, Line, NARINFO_LEN_MAX, NarInfo, SIGNATURES_MAX, UNKNOWN_DERIVER};
use crate::compression::{Compression, UnknownCompression};
use crate::content_address::{ContentAddress, ContentAddressError};
use crate::hash::{Encoding, Hash, HashError, NarHash};
use crate::signing::signature::{KeyTextError, Signature};
use crate::store_path::{StoreDir, StorePath, StorePathError};

/// Nix's database has signed sizes, and so have file systems.
const NAR_SIZE_TOO_LARGE: u64 = 1 << 63;

/// Why a narinfo was rejected. Line numbers start at 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NarInfoError {
    /// Longer than [`NARINFO_LEN_MAX`].
    #[error("narinfo has more than {NARINFO_LEN_MAX} bytes")]
    TooLong,
    /// Not UTF-8.
    #[error("narinfo is not UTF-8 text")]
    NotText,
    /// The last line has no newline: the text was truncated.
    #[error("narinfo does not end with a newline")]
    NoFinalNewline,
    /// A line that is not `Key: value`.
    #[error("narinfo line {line}: expected 'Key: value', a space after the colon")]
    Shape {
        /// The line.
        line: usize,
    },
    /// A key that may occur once occurs again.
    #[error("narinfo line {line}: duplicate {key}")]
    Duplicate {
        /// The line.
        line: usize,
        /// The key.
        key: &'static str,
    },
    /// A malformed value.
    #[error("narinfo line {line}: {key}: {error}")]
    Value {
        /// The line.
        line: usize,
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        error: ValueError,
    },
    /// A required key is missing.
    #[error("narinfo has no {key}")]
    Missing {
        /// The key.
        key: &'static str,
    },
}

/// What is wrong with a value in a narinfo.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ValueError {
    /// Not a store path.
    #[error(transparent)]
    StorePath(#[from] StorePathError),
    /// Not a hash.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// Not a signature.
    #[error(transparent)]
    Signature(#[from] KeyTextError),
    /// Not a content address.
    #[error(transparent)]
    ContentAddress(#[from] ContentAddressError),
    /// Not a compression that Nix knows.
    #[error(transparent)]
    Compression(#[from] UnknownCompression),
    /// Not a decimal number below 2^64.
    #[error("not a number")]
    Number,
    /// A size of 0, which is not allowed.
    #[error("is 0")]
    Zero,
    /// A size that neither a file nor a database can have.
    #[error("is larger than 2^63 - 1")]
    TooLarge,
    /// Empty.
    #[error("is empty")]
    Empty,
    /// Contains white space or control characters.
    #[error("contains white space or control characters")]
    Characters,
    /// More signatures than [`SIGNATURES_MAX`].
    #[error("more than {SIGNATURES_MAX} signatures")]
    TooManySignatures,
}

impl NarInfo {
    /// Parses a narinfo of a cache with this store directory.
    ///
    /// Stricter than Nix, which accepts a second `StorePath`, `URL` or `NarHash` and uses the last one: every known key
    /// except `Sig` may occur once. As lenient as Nix where that is harmless: lines with unknown keys may have any
    /// value, and a malformed signature counts as one that no trusted key has made. Such lines are preserved. The text
    /// must be UTF-8.
    pub fn parse(text: &[u8], store_dir: &StoreDir) -> Result<Self, NarInfoError> {
        if text.len() > NARINFO_LEN_MAX {
            return Err(NarInfoError::TooLong);
        }
        let lines = text.strip_suffix(b"\n").ok_or(NarInfoError::NoFinalNewline)?;
        let mut fields = Fields::default();
        for (index, content) in lines.split(|byte| *byte == b'\n').enumerate() {
            fields.line(index + 1, content, store_dir)?;
        }
        fields.finish()
    }
}

#[derive(Default)]
struct Fields {
    path: Option<StorePath>,
    url: Option<String>,
    compression: Option<Compression>,
    file_hash: Option<Hash>,
    file_size: Option<u64>,
    nar_hash: Option<NarHash>,
    nar_size: Option<u64>,
    references: Option<Vec<StorePath>>,
    deriver: Option<StorePath>,
    signatures: Vec<Signature>,
    ca: Option<ContentAddress>,
    form: Form,
}

impl Fields {
    fn line(&mut self, line: usize, content: &[u8], store_dir: &StoreDir) -> Result<(), NarInfoError> {
        let colon = content.iter().position(|byte| *byte == b':').filter(|at| *at > 0);
        let (name, rest) = colon.and_then(|at| content.split_at_checked(at)).ok_or(NarInfoError::Shape { line })?;
        let key = str::from_utf8(name).ok().and_then(Key::from_name);
        let Some(key) = key else {
            if let Ok(content) = str::from_utf8(content) {
                self.form.lines.push(unknown_line(content));
            }
            return Ok(());
        };
        let value = str::from_utf8(rest).map_err(|_| NarInfoError::NotText)?;
        let value = value.strip_prefix(": ").ok_or(NarInfoError::Shape { line })?;
        if key != Key::Sig && self.form.lines.contains(&Line::Known(key)) {
            return Err(NarInfoError::Duplicate { line, key: key.name() });
        }
        match self.take(key, value, store_dir) {
            Ok(()) => self.form.lines.push(Line::Known(key)),
            Err(ValueError::Signature(_)) => self.form.lines.push(unknown_line(&format!("{}: {value}", key.name()))),
            Err(error) => return Err(NarInfoError::Value { line, key: key.name(), error }),
        }
        Ok(())
    }

    fn take(&mut self, key: Key, value: &str, store_dir: &StoreDir) -> Result<(), ValueError> {
        match key {
            Key::StorePath => self.path = Some(store_dir.parse(value)?),
            Key::Url => self.url = Some(url(value)?),
            // A missing or empty line means bzip2.
            Key::Compression if value.is_empty() => {}
            Key::Compression => self.compression = Some(value.parse()?),
            Key::FileHash => {
                let (hash, encoding) = Hash::parse(value)?;
                (self.file_hash, self.form.file_hash_encoding) = (Some(hash), encoding);
            }
            Key::FileSize => self.file_size = Some(number(value)?),
            Key::NarHash => {
                let (hash, encoding): (Hash, Encoding) = Hash::parse(value)?;
                (self.nar_hash, self.form.nar_hash_encoding) = (Some(hash.sha256()?), encoding);
            }
            Key::NarSize => match number(value)? {
                0 => return Err(ValueError::Zero),
                NAR_SIZE_TOO_LARGE.. => return Err(ValueError::TooLarge),
                size => self.nar_size = Some(size),
            },
            Key::References => {
                let references = value.split_ascii_whitespace().map(StorePath::parse);
                self.references = Some(references.collect::<Result<_, _>>()?);
            }
            Key::Deriver if value == UNKNOWN_DERIVER => {}
            Key::Deriver => self.deriver = Some(StorePath::parse(value)?),
            Key::Sig if self.signatures.len() == SIGNATURES_MAX => return Err(ValueError::TooManySignatures),
            Key::Sig => self.signatures.push(value.parse()?),
            Key::Ca => self.ca = Some(value.parse()?),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<NarInfo, NarInfoError> {
        self.form.compression_defaulted = self.compression.is_none();
        Ok(NarInfo {
            path: required(self.path, Key::StorePath)?,
            url: required(self.url, Key::Url)?,
            compression: self.compression.unwrap_or_default(),
            file_hash: self.file_hash,
            file_size: self.file_size,
            nar_hash: required(self.nar_hash, Key::NarHash)?,
            nar_size: required(self.nar_size, Key::NarSize)?,
            omit_empty_references: self.references.is_none(),
            references: self.references.unwrap_or_default(),
            deriver: self.deriver,
            signatures: self.signatures,
            ca: self.ca,
            form: self.form,
        })
    }
}

fn required<T>(value: Option<T>, key: Key) -> Result<T, NarInfoError> {
    value.ok_or(NarInfoError::Missing { key: key.name() })
}

fn url(value: &str) -> Result<String, ValueError> {
    if value.is_empty() {
        return Err(ValueError::Empty);
    }
    if value.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(ValueError::Characters);
    }
    Ok(value.to_owned())
}

fn unknown_line(content: &str) -> Line {
    match content.split_once(": ").filter(|(key, _)| !key.contains(':')) {
        Some((key, value)) => Line::Unknown { key: key.into(), value: value.into() },
        None => Line::Odd(content.into()),
    }
}

/// A decimal number without sign or leading zeros.
fn number(value: &str) -> Result<u64, ValueError> {
    let canonical = value == "0" || !value.starts_with(['0', '+']);
    value.parse().ok().filter(|_| canonical).ok_or(ValueError::Number)
}
