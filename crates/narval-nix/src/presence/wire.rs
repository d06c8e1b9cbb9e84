//! Snapshots and changes as files: lines of text that are signed, an empty line, and a body whose hash they have.
//!
//! ```text
//! NarvalPresence: snapshot-v1            NarvalPresence: changes-v1
//! StoreDir: /nix/store                   StoreDir: /nix/store
//! Instance: 5ac0b1d7e3f00912             Instance: 5ac0b1d7e3f00912
//! Sequence: 1234                         Sequence: 1300
//!                                        Since: 1234
//!                                        Nonce: 8a41c05e2f7719d3b60e94d7a1c2385f
//! Body: 1042 sha256:0ip26j2h…            Body: 528 sha256:1b8m03r6…
//! Sig: cache.example.org-1:…             Sig: cache.example.org-1:…
//! ```

use std::fmt::Write;

use thiserror::Error;

use super::filter::{FILTER_LEN_MAX, Filter, FilterError};
use crate::hash::{NarHash, Sha256};
use crate::signing::keys::{SecretKey, SignError, TrustedKeys};
use crate::signing::signature::Signature;
use crate::store_path::StoreDir;

/// The most keys in one answer.
pub const CHANGES_MAX: usize = 1 << 16;
/// The longest head, in bytes.
pub const HEAD_LEN_MAX: usize = 16 * 1024;
/// The most signatures.
const SIGNATURES_MAX: usize = 16;
const KEY_LEN: usize = 8;
const SNAPSHOT: &str = "snapshot-v1";
const CHANGES: &str = "changes-v1";

/// Why a snapshot or changes were rejected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PresenceError {
    /// The head is too long, or has no end.
    #[error("the presence filter has no head, or one of more than {HEAD_LEN_MAX} bytes")]
    Head,
    /// A line is missing, or wrong.
    #[error("the presence filter has no valid line '{0}'")]
    Line(&'static str),
    /// The paths are in another store directory.
    #[error("the presence filter is of another store directory")]
    StoreDir,
    /// No trusted key has signed it.
    #[error("the presence filter is not signed by a trusted key")]
    Untrusted,
    /// The body is not the one that was signed.
    #[error("the body of the presence filter has another length or hash than its head says")]
    Body,
    /// The body is no filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// A filter of all paths that a cache had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Which history the sequence is of. A cache that was restored has another one.
    pub instance: u64,
    /// How far the history is in the filter.
    pub sequence: u64,
    /// The paths.
    pub filter: Filter,
}

/// The paths that a cache got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// See [`Snapshot::instance`].
    pub instance: u64,
    /// After which point of the history they came.
    pub since: u64,
    /// How far the history is in them.
    pub sequence: u64,
    /// The number that the client sent: an earlier answer does not have it.
    pub nonce: u128,
    /// The keys of the paths.
    pub keys: Vec<u64>,
}

impl Snapshot {
    /// The file, signed.
    ///
    /// # Errors
    /// A key does not sign.
    pub fn render<'a>(
        &self,
        store_dir: &StoreDir,
        keys: impl IntoIterator<Item = &'a SecretKey>,
    ) -> Result<Vec<u8>, SignError> {
        let Self { instance, sequence, filter } = self;
        render(SNAPSHOT, store_dir, &[(*instance, *sequence)], None, &filter.encode(), keys)
    }

    /// Parses a file. With `trusted`, one of these keys must have signed it.
    ///
    /// # Errors
    /// It is none, or not trusted.
    pub fn parse(file: &[u8], store_dir: &StoreDir, trusted: Option<&TrustedKeys>) -> Result<Self, PresenceError> {
        let mut lines = Lines::new(file, SNAPSHOT, store_dir)?;
        let (instance, sequence) = lines.at()?;
        let body = lines.body(FILTER_LEN_MAX, trusted)?;
        Ok(Self { instance, sequence, filter: Filter::decode(body)? })
    }
}

impl Changes {
    /// The file, signed.
    ///
    /// # Errors
    /// A key does not sign.
    pub fn render<'a>(
        &self,
        store_dir: &StoreDir,
        keys: impl IntoIterator<Item = &'a SecretKey>,
    ) -> Result<Vec<u8>, SignError> {
        let Self { instance, since, sequence, nonce, keys: changed } = self;
        let body: Vec<u8> = changed.iter().flat_map(|key| key.to_be_bytes()).collect();
        render(CHANGES, store_dir, &[(*instance, *sequence)], Some((*since, *nonce)), &body, keys)
    }

    /// Parses a file. With `trusted`, one of these keys must have signed it.
    ///
    /// # Errors
    /// It is none, or not trusted.
    pub fn parse(file: &[u8], store_dir: &StoreDir, trusted: Option<&TrustedKeys>) -> Result<Self, PresenceError> {
        let mut lines = Lines::new(file, CHANGES, store_dir)?;
        let (instance, sequence) = lines.at()?;
        let since = decimal(lines.value("Since")?, "Since")?;
        let nonce = hexadecimal(lines.value("Nonce")?, 32, "Nonce")?;
        let (keys, rest) = lines.body(CHANGES_MAX * KEY_LEN, trusted)?.as_chunks::<KEY_LEN>();
        if !rest.is_empty() {
            return Err(PresenceError::Body);
        }
        let keys = keys.iter().map(|key| u64::from_be_bytes(*key)).collect();
        Ok(Self { instance, since, sequence, nonce, keys })
    }
}

fn render<'a>(
    kind: &str,
    store_dir: &StoreDir,
    at: &[(u64, u64); 1],
    since: Option<(u64, u128)>,
    body: &[u8],
    keys: impl IntoIterator<Item = &'a SecretKey>,
) -> Result<Vec<u8>, SignError> {
    let [(instance, sequence)] = at;
    let mut head =
        format!("NarvalPresence: {kind}\nStoreDir: {store_dir}\nInstance: {instance:016x}\nSequence: {sequence}\n");
    // Writing to a String cannot fail.
    if let Some((since, nonce)) = since {
        let _ = write!(head, "Since: {since}\nNonce: {nonce:032x}\n");
    }
    let _ = writeln!(head, "Body: {} {}", body.len(), Sha256::of(body));
    let signatures = keys.into_iter().take(SIGNATURES_MAX).map(|key| key.sign(head.as_bytes()));
    let signatures: Vec<Signature> = signatures.collect::<Result<_, _>>()?;
    for signature in signatures {
        let _ = writeln!(head, "Sig: {signature}");
    }
    head.push('\n');
    let mut file = head.into_bytes();
    file.extend_from_slice(body);
    Ok(file)
}

/// The lines of a head, one after another.
struct Lines<'a> {
    /// All of it, with the newline of its last line.
    head: &'a str,
    rest: &'a str,
    body: &'a [u8],
}

impl<'a> Lines<'a> {
    fn new(file: &'a [u8], kind: &str, store_dir: &StoreDir) -> Result<Self, PresenceError> {
        let start = file.get(..HEAD_LEN_MAX.min(file.len())).unwrap_or_default();
        let end = start.windows(2).position(|pair| pair == b"\n\n").ok_or(PresenceError::Head)?;
        let (head, body) = file.split_at_checked(end + 1).ok_or(PresenceError::Head)?;
        let head = std::str::from_utf8(head).map_err(|_| PresenceError::Head)?;
        let mut lines = Self { head, rest: head, body: body.get(1..).unwrap_or_default() };
        if lines.value("NarvalPresence")? != kind {
            return Err(PresenceError::Line("NarvalPresence"));
        }
        let of: StoreDir = lines.value("StoreDir")?.parse().map_err(|_| PresenceError::Line("StoreDir"))?;
        if of == *store_dir { Ok(lines) } else { Err(PresenceError::StoreDir) }
    }

    /// The value of the next line, which must have this key.
    fn value(&mut self, key: &'static str) -> Result<&'a str, PresenceError> {
        let (line, rest) = self.rest.split_once('\n').ok_or(PresenceError::Line(key))?;
        let value =
            line.strip_prefix(key).and_then(|value| value.strip_prefix(": ")).ok_or(PresenceError::Line(key))?;
        self.rest = rest;
        Ok(value)
    }

    fn at(&mut self) -> Result<(u64, u64), PresenceError> {
        let instance = hexadecimal(self.value("Instance")?, 16, "Instance")?;
        let instance = u64::try_from(instance).map_err(|_| PresenceError::Line("Instance"))?;
        Ok((instance, decimal(self.value("Sequence")?, "Sequence")?))
    }

    /// The body, once it is known that it was signed and has not changed.
    fn body(mut self, len_max: usize, trusted: Option<&TrustedKeys>) -> Result<&'a [u8], PresenceError> {
        let (len, hash) = self.value("Body")?.split_once(' ').ok_or(PresenceError::Line("Body"))?;
        let hash: NarHash = hash.parse().map_err(|_| PresenceError::Line("Body"))?;
        let signed = self.head.strip_suffix(self.rest).ok_or(PresenceError::Head)?;
        let mut signatures = Vec::new();
        while !self.rest.is_empty() {
            let signature = self.value("Sig")?.parse::<Signature>().map_err(|_| PresenceError::Line("Sig"))?;
            if signatures.len() == SIGNATURES_MAX {
                return Err(PresenceError::Line("Sig"));
            }
            signatures.push(signature);
        }
        if trusted.is_some_and(|trusted| trusted.find_valid(signed.as_bytes(), &signatures).is_none()) {
            return Err(PresenceError::Untrusted);
        }
        if self.body.len() > len_max || decimal(len, "Body")? != self.body.len() as u64 || Sha256::of(self.body) != hash
        {
            return Err(PresenceError::Body);
        }
        Ok(self.body)
    }
}

fn decimal(text: &str, key: &'static str) -> Result<u64, PresenceError> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain).ok_or(PresenceError::Line(key))
}

fn hexadecimal(text: &str, digits: usize, key: &'static str) -> Result<u128, PresenceError> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_plain = text.len() == digits && text.bytes().all(is_digit);
    u128::from_str_radix(text, 16).ok().filter(|_| is_plain).ok_or(PresenceError::Line(key))
}
