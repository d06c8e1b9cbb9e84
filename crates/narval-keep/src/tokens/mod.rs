//! Tokens.

use std::sync::Arc;
use std::time::Duration;

use narval_nix::{Sha256, Sha256Hasher, nix32};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::access::grant::{CachePatterns, Grant, PatternError, Scopes, UnknownScope};
use crate::index::IndexError;
use crate::records::tokens::TokenRecord;
use crate::shared::Shared;

/// The prefix of every token.
pub const TOKEN_PREFIX: &str = "nv1_";

/// Bytes of a token's id.
const ID_LEN: usize = 10;

/// Bytes of a token's secret.
const SECRET_LEN: usize = 32;

/// How long a token is kept after it has expired.
pub const EXCHANGED_FOR: Duration = Duration::from_secs(24 * 3600);

/// The longest label, in bytes.
pub const LABEL_LEN_MAX: usize = 128;

/// The tokens of a data folder.
#[derive(Clone)]
pub struct Tokens {
    shared: Arc<Shared>,
}

/// The properties of a new token.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// Its name in lists and in the audit log.
    pub label: String,
    /// The caches that it applies to.
    pub caches: CachePatterns,
    /// Its scopes.
    pub scopes: Scopes,
    /// When it ends, in seconds since 1970.
    pub expires: Option<u64>,
}

/// What is stored about a token. The token itself is not stored.
#[derive(Debug, Clone)]
pub struct TokenInfo {
    /// Its id, the part between the first two underscores.
    pub id: String,
    /// Its label.
    pub label: String,
    /// The caches that it applies to.
    pub caches: Vec<String>,
    /// Its scopes.
    pub scopes: Scopes,
    /// When it was made, in seconds since 1970, as all times here.
    pub created: u64,
    /// When it ends.
    pub expires: Option<u64>,
    /// When it was last used, to the minute.
    pub last_used: Option<u64>,
    /// When it was revoked.
    pub revoked: Option<u64>,
}

/// An error when tokens are created or looked up.
#[derive(Debug, Error)]
pub enum TokenError {
    /// The index fails.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The label is too long or has control characters.
    #[error("a token's label must have 1 to {LABEL_LEN_MAX} bytes and no control characters")]
    Label,
    /// It would allow nothing.
    #[error(
        "a token must allow something: give at least one of pull, push, sign, pin, delete, replace, report, admin, release:PATTERN, report:PATTERN"
    )]
    NoScope,
    /// The operating system provides no random numbers.
    #[error("the system provides no random numbers: {0}")]
    Random(String),
    /// A stored record cannot be read.
    #[error("token '{id}' in the index cannot be read: {reason}")]
    Record {
        /// Its id.
        id: String,
        /// Why.
        reason: String,
    },
}

impl Tokens {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Creates a token, and returns it; it cannot be shown again.
    ///
    /// # Errors
    /// If it is invalid or cannot be stored.
    pub fn create(&self, new: &NewToken) -> Result<(TokenInfo, Zeroizing<String>), TokenError> {
        let mut id = [0; ID_LEN];
        getrandom::fill(&mut id).map_err(|error| TokenError::Random(error.to_string()))?;
        // Nobody else has this id: it has 80 random bits.
        self.create_with(new, id)?.ok_or_else(|| TokenError::Random("an id was returned twice".to_owned()))
    }

    /// Creates a token in exchange for something that may be exchanged once. Returns `None` if it was exchanged before, at any server of the
    /// cache. This is remembered for [`EXCHANGED_FOR`] after the token has expired.
    ///
    /// # Errors
    /// See [`create`](Self::create).
    pub fn create_once(
        &self,
        new: &NewToken,
        exchanged: &[&str],
    ) -> Result<Option<(TokenInfo, Zeroizing<String>)>, TokenError> {
        self.create_with(new, id_of_exchanged(exchanged))
    }

    /// The id of the token that [`create_once`](Self::create_once) creates in exchange for this.
    pub fn id_of_exchanged(exchanged: &[&str]) -> String {
        nix32::encode(&id_of_exchanged(exchanged))
    }

    fn create_with(
        &self,
        new: &NewToken,
        id: [u8; ID_LEN],
    ) -> Result<Option<(TokenInfo, Zeroizing<String>)>, TokenError> {
        if new.label.is_empty() || new.label.len() > LABEL_LEN_MAX || new.label.chars().any(char::is_control) {
            return Err(TokenError::Label);
        }
        if new.scopes.is_empty() {
            return Err(TokenError::NoScope);
        }
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        getrandom::fill(secret.as_mut_slice()).map_err(|error| TokenError::Random(error.to_string()))?;
        let id = nix32::encode(&id);
        let secret = Zeroizing::new(nix32::encode(secret.as_slice()));
        let text = Zeroizing::new(format!("{TOKEN_PREFIX}{id}_{}", secret.as_str()));
        let record = TokenRecord {
            id,
            hash: *Sha256::of(text.as_bytes()).as_bytes(),
            label: new.label.clone(),
            scopes: new.scopes.to_string(),
            caches: new.caches.texts().join(" "),
            created: self.shared.index.now(),
            expires: new.expires,
            last_used: None,
            revoked: None,
        };
        if !self.shared.index.add_token(record.clone())? {
            return Ok(None);
        }
        Ok(Some((info(record)?, text)))
    }

    /// All tokens, including revoked ones, the oldest first.
    ///
    /// # Errors
    /// When the index fails.
    pub fn list(&self) -> Result<Vec<TokenInfo>, TokenError> {
        // Their last uses, too.
        self.shared.record();
        self.shared.index.tokens()?.into_iter().map(info).collect()
    }

    /// Changes what a token allows, for every process that serves this folder. Returns `false` if there is none with this id, or it was revoked.
    ///
    /// # Errors
    /// When the index fails, or the token would allow nothing.
    pub fn change(&self, id: &str, caches: &CachePatterns, scopes: &Scopes) -> Result<bool, TokenError> {
        if scopes.is_empty() {
            return Err(TokenError::NoScope);
        }
        Ok(self.shared.index.change_token(id, &caches.texts().join(" "), &scopes.to_string())?)
    }

    /// Revokes a token: from now on, every process that serves this folder rejects it. Returns `false` if there is none
    /// with this id.
    ///
    /// # Errors
    /// When the index fails.
    pub fn revoke(&self, id: &str) -> Result<bool, TokenError> {
        Ok(self.shared.index.revoke_token(id, self.shared.index.now())?)
    }

    /// What a token allows; `None` if it is unknown, expired or revoked. Nothing is cached between calls.
    ///
    /// # Errors
    /// When the index fails.
    pub fn verify(&self, presented: &[u8]) -> Result<Option<Grant>, TokenError> {
        let Some(id) = id_of(presented) else { return Ok(None) };
        let record = self.shared.index.token(id)?;
        // Also for an unknown token, so that the time does not reveal that it is unknown.
        let hash = Sha256::of(presented);
        let known = record.as_ref().map_or([0; 32], |record| record.hash);
        let is_same = equal(&known, hash.as_bytes());
        let Some(record) = record.filter(|_| is_same) else { return Ok(None) };
        self.grant_of(record)
    }

    /// What a token that was verified before allows now; `None` if it has expired or was revoked.
    ///
    /// # Errors
    /// When the index fails.
    pub fn verify_again(&self, grant: &Grant) -> Result<Option<Grant>, TokenError> {
        self.shared.index.token(&grant.token)?.map_or(Ok(None), |record| self.grant_of(record))
    }

    fn grant_of(&self, record: TokenRecord) -> Result<Option<Grant>, TokenError> {
        let now = self.shared.index.now();
        if record.revoked.is_some() || record.expires.is_some_and(|expires| expires <= now) {
            return Ok(None);
        }
        self.shared.tokens_used.note(&record.id, now);
        let unreadable = |reason: String| TokenError::Record { id: record.id.clone(), reason };
        let caches: Vec<&str> = record.caches.split(' ').filter(|text| !text.is_empty()).collect();
        Ok(Some(Grant {
            caches: CachePatterns::new(&caches).map_err(|error: PatternError| unreadable(error.to_string()))?,
            scopes: record.scopes.parse().map_err(|error: UnknownScope| unreadable(error.to_string()))?,
            token: record.id,
            label: record.label,
            expires: record.expires,
            peer: None,
        }))
    }
}

/// A token's id says what it was exchanged for, and an id is used once.
fn id_of_exchanged(exchanged: &[&str]) -> [u8; ID_LEN] {
    let mut hasher = Sha256Hasher::new();
    for part in exchanged {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let digest = hasher.finish();
    let mut id = [0; ID_LEN];
    id.iter_mut().zip(digest.as_bytes()).for_each(|(to, from)| *to = *from);
    id
}

/// The id in a token with the right format.
fn id_of(presented: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(presented).ok()?.strip_prefix(TOKEN_PREFIX)?;
    let (id, secret) = text.split_once('_')?;
    let is_digits = |text: &str| text.bytes().all(nix32::is_digit);
    let legal = id.len() == nix32::encoded_len(ID_LEN) && secret.len() == nix32::encoded_len(SECRET_LEN);
    (legal && is_digits(id) && is_digits(secret)).then_some(id)
}

/// Compares in constant time.
fn equal(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let difference = one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other));
    std::hint::black_box(difference) == 0
}

fn info(record: TokenRecord) -> Result<TokenInfo, TokenError> {
    let scopes = record
        .scopes
        .parse()
        .map_err(|error: UnknownScope| TokenError::Record { id: record.id.clone(), reason: error.to_string() })?;
    Ok(TokenInfo {
        id: record.id,
        label: record.label,
        caches: record.caches.split(' ').map(ToOwned::to_owned).collect(),
        scopes,
        created: record.created,
        expires: record.expires,
        last_used: record.last_used,
        revoked: record.revoked,
    })
}
