//! Hashes as Nix writes them: `sha256:<nix32>`, `sha256:<hex>`, `sha256:<base64>` and SRI `sha256-<base64>`.
//!
//! Format: Nix `libutil/hash.cc`.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::Digest;
use thiserror::Error;

pub mod nix32;

/// The length of the longest digest of any [`Algorithm`], in bytes.
pub const DIGEST_LEN_MAX: usize = 64;

/// The length of the longest hash: `sha512:` and 128 hex digits. Longer input is rejected without being parsed.
pub const HASH_TEXT_LEN_MAX: usize = 7 + 2 * DIGEST_LEN_MAX;

/// A hash algorithm that Nix knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// MD5, 16 bytes.
    Md5,
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
    /// SHA-512, 64 bytes.
    Sha512,
    /// BLAKE3, 32 bytes (experimental in Nix).
    Blake3,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 5] = [Self::Md5, Self::Sha1, Self::Sha256, Self::Sha512, Self::Blake3];

    /// The name, as used in the prefix of a hash.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Blake3 => "blake3",
        }
    }

    /// The length of a digest in bytes.
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Blake3 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Looks up an algorithm by name.
    pub fn from_name(name: &str) -> Result<Self, HashError> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or(HashError::UnknownAlgorithm)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The encoding of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Encoding {
    /// `algo:<nix32>`, as in narinfo files.
    #[default]
    Nix32,
    /// `algo:<lower-case hex>`, as in the Nix database and in Cachix's narinfos.
    Hex,
    /// `algo:<base64>`.
    Base64,
    /// `algo-<base64>`, the format of Subresource Integrity.
    Sri,
}

/// Why a hash was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HashError {
    /// Longer than any hash.
    #[error("a hash has at most {HASH_TEXT_LEN_MAX} characters, found {found}")]
    TooLong {
        /// The number of bytes found.
        found: usize,
    },
    /// The text starts with neither `algo:` nor `algo-`.
    #[error("a hash starts with its algorithm, as in 'sha256:…' or 'sha256-…'")]
    NoAlgorithm,
    /// Not one of [`Algorithm::ALL`].
    #[error("unknown hash algorithm (known: md5, sha1, sha256, sha512, blake3)")]
    UnknownAlgorithm,
    /// A known algorithm that is not allowed here.
    #[error("expected a {expected} hash, found {found}")]
    WrongAlgorithm {
        /// The allowed algorithm.
        expected: Algorithm,
        /// The algorithm found.
        found: Algorithm,
    },
    /// The length of the digest matches none of the three encodings.
    #[error("{found} characters are not the length of a {algorithm} digest in hex, nix32 or base64")]
    Length {
        /// The algorithm of the digest.
        algorithm: Algorithm,
        /// The number of characters found.
        found: usize,
    },
    /// Not hexadecimal.
    #[error("the digest is not valid hex")]
    Hex,
    /// Not nix32.
    #[error("the digest is not valid nix32: {0}")]
    Nix32(#[from] nix32::Nix32Error),
    /// Not padded standard base64.
    #[error("the digest is not valid base64")]
    Base64,
}

/// A digest with its algorithm.
///
/// ```
/// use narval_nix::Hash;
/// let hash: Hash = "sha256:0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73".parse().unwrap();
/// assert_eq!(hash.to_sri(), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash {
    algorithm: Algorithm,
    /// The digest, padded with zeros.
    bytes: [u8; DIGEST_LEN_MAX],
}

impl Hash {
    /// Makes a hash from the bytes of a digest. Returns `None` if the length does not match the algorithm.
    pub fn new(algorithm: Algorithm, digest: &[u8]) -> Option<Self> {
        if digest.len() != algorithm.digest_len() {
            return None;
        }
        let mut bytes = [0; DIGEST_LEN_MAX];
        bytes[..digest.len()].copy_from_slice(digest);
        Some(Self { algorithm, bytes })
    }

    /// Parses a hash in any [`Encoding`], and returns which one it was.
    pub fn parse(text: &str) -> Result<(Self, Encoding), HashError> {
        if text.len() > HASH_TEXT_LEN_MAX {
            return Err(HashError::TooLong { found: text.len() });
        }
        if let Some((name, digest)) = text.split_once(':') {
            Self::parse_digest(Algorithm::from_name(name)?, digest)
        } else if let Some((name, digest)) = text.split_once('-') {
            let algorithm = Algorithm::from_name(name)?;
            let mut hash = Self { algorithm, bytes: [0; DIGEST_LEN_MAX] };
            decode_base64(digest, hash.digest_mut())?;
            Ok((hash, Encoding::Sri))
        } else {
            Err(HashError::NoAlgorithm)
        }
    }

    /// Parses a digest without a prefix in hex, nix32 or base64. The length determines the encoding.
    pub fn parse_digest(algorithm: Algorithm, digest: &str) -> Result<(Self, Encoding), HashError> {
        let mut hash = Self { algorithm, bytes: [0; DIGEST_LEN_MAX] };
        let len = algorithm.digest_len();
        let found = digest.len();
        let encoding = if found == 2 * len {
            decode_hex(digest.as_bytes(), hash.digest_mut())?;
            Encoding::Hex
        } else if found == nix32::encoded_len(len) {
            nix32::decode_into(digest.as_bytes(), hash.digest_mut())?;
            Encoding::Nix32
        } else if found == base64_len(len) {
            decode_base64(digest, hash.digest_mut())?;
            Encoding::Base64
        } else {
            return Err(HashError::Length { algorithm, found });
        };
        Ok((hash, encoding))
    }

    /// The algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The bytes of the digest.
    pub fn digest(&self) -> &[u8] {
        &self.bytes[..self.algorithm.digest_len()]
    }

    fn digest_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.algorithm.digest_len()]
    }

    /// The hash in the given encoding, with its prefix.
    pub fn render(&self, encoding: Encoding) -> String {
        match encoding {
            Encoding::Nix32 => format!("{}:{}", self.algorithm, nix32::encode(self.digest())),
            Encoding::Hex => format!("{}:{}", self.algorithm, encode_hex(self.digest())),
            Encoding::Base64 => format!("{}:{}", self.algorithm, STANDARD.encode(self.digest())),
            Encoding::Sri => self.to_sri(),
        }
    }

    /// The digest in nix32, without a prefix.
    pub fn to_nix32(&self) -> String {
        nix32::encode(self.digest())
    }

    /// The digest in lower-case hex, without a prefix.
    pub fn to_hex(&self) -> String {
        encode_hex(self.digest())
    }

    /// The digest in base64, without a prefix.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.digest())
    }

    /// `algo-<base64>`.
    pub fn to_sri(&self) -> String {
        format!("{}-{}", self.algorithm, self.to_base64())
    }

    /// Returns the digest if this is a SHA-256 hash, otherwise an error that names the algorithm.
    pub fn sha256(&self) -> Result<Sha256, HashError> {
        match (self.algorithm, self.bytes.first_chunk::<32>()) {
            (Algorithm::Sha256, Some(digest)) => Ok(Sha256(*digest)),
            (found, _) => Err(HashError::WrongAlgorithm { expected: Algorithm::Sha256, found }),
        }
    }
}

impl fmt::Display for Hash {
    /// `algo:<nix32>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Encoding::Nix32))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Hash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        Self::parse(text).map(|(hash, _)| hash)
    }
}

/// A SHA-256 digest, as Nix uses for NARs, files and fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256([u8; 32]);

/// The SHA-256 of an uncompressed NAR.
pub type NarHash = Sha256;

impl Sha256 {
    /// Makes a hash from the bytes of a digest.
    pub const fn from_bytes(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The bytes of the digest.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Hashes `data`. [`Sha256Hasher`] hashes data that arrives in pieces.
    pub fn of(data: &[u8]) -> Self {
        Self(sha2::Sha256::digest(data).into())
    }

    /// Parses `sha256:…` or `sha256-…` in any [`Encoding`].
    pub fn parse(text: &str) -> Result<Self, HashError> {
        Hash::parse(text)?.0.sha256()
    }

    /// Parses a digest without a prefix in hex, nix32 or base64.
    pub fn parse_digest(digest: &str) -> Result<Self, HashError> {
        Hash::parse_digest(Algorithm::Sha256, digest)?.0.sha256()
    }

    /// Parses exactly 52 nix32 characters, as in NAR URLs.
    pub fn from_nix32(digest: &[u8]) -> Result<Self, nix32::Nix32Error> {
        nix32::decode(digest).map(Self)
    }

    /// The digest in nix32: 52 characters without a prefix.
    pub fn to_nix32(&self) -> String {
        nix32::encode(&self.0)
    }

    /// The digest in lower-case hex: 64 characters without a prefix.
    pub fn to_hex(&self) -> String {
        encode_hex(&self.0)
    }

    /// `sha256-<base64>`.
    pub fn to_sri(&self) -> String {
        Hash::from(*self).to_sri()
    }
}

impl From<Sha256> for Hash {
    fn from(hash: Sha256) -> Self {
        let mut bytes = [0; DIGEST_LEN_MAX];
        bytes[..32].copy_from_slice(&hash.0);
        Self { algorithm: Algorithm::Sha256, bytes }
    }
}

impl fmt::Display for Sha256 {
    /// `sha256:<nix32>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.to_nix32())
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Sha256 {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        Self::parse(text)
    }
}

/// An incremental hasher for every algorithm except BLAKE3.
#[derive(Clone)]
pub struct Hasher(AnyHasher);

#[derive(Clone)]
enum AnyHasher {
    Md5(md5::Md5),
    Sha1(sha1_smol::Sha1),
    Sha256(Sha256Hasher),
    Sha512(sha2::Sha512),
}

impl Hasher {
    /// Starts a hasher. Returns `None` for BLAKE3, which is not supported.
    pub fn new(algorithm: Algorithm) -> Option<Self> {
        Some(Self(match algorithm {
            Algorithm::Md5 => AnyHasher::Md5(md5::Md5::new()),
            Algorithm::Sha1 => AnyHasher::Sha1(sha1_smol::Sha1::new()),
            Algorithm::Sha256 => AnyHasher::Sha256(Sha256Hasher::new()),
            Algorithm::Sha512 => AnyHasher::Sha512(sha2::Sha512::new()),
            Algorithm::Blake3 => return None,
        }))
    }

    /// Adds the next piece.
    pub fn update(&mut self, data: &[u8]) {
        match &mut self.0 {
            AnyHasher::Md5(hasher) => hasher.update(data),
            AnyHasher::Sha1(hasher) => hasher.update(data),
            AnyHasher::Sha256(hasher) => hasher.update(data),
            AnyHasher::Sha512(hasher) => hasher.update(data),
        }
    }

    /// Returns the digest of all pieces.
    pub fn finish(self) -> Hash {
        let (algorithm, mut digest) = (self.algorithm(), [0; DIGEST_LEN_MAX]);
        let mut put = |bytes: &[u8]| {
            // No digest is longer than the longest.
            if let Some(to) = digest.get_mut(..bytes.len()) {
                to.copy_from_slice(bytes);
            }
        };
        match self.0 {
            AnyHasher::Md5(hasher) => put(&hasher.finalize()),
            AnyHasher::Sha1(hasher) => put(&hasher.digest().bytes()),
            AnyHasher::Sha256(hasher) => put(hasher.finish().as_bytes()),
            AnyHasher::Sha512(hasher) => put(&hasher.finalize()),
        }
        Hash { algorithm, bytes: digest }
    }

    const fn algorithm(&self) -> Algorithm {
        match self.0 {
            AnyHasher::Md5(_) => Algorithm::Md5,
            AnyHasher::Sha1(_) => Algorithm::Sha1,
            AnyHasher::Sha256(_) => Algorithm::Sha256,
            AnyHasher::Sha512(_) => Algorithm::Sha512,
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hasher({})", self.algorithm())
    }
}

/// An incremental SHA-256 hasher.
#[derive(Clone, Default)]
pub struct Sha256Hasher(sha2::Sha256);

impl Sha256Hasher {
    /// Starts a hasher.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next piece.
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// Returns the digest of all pieces.
    pub fn finish(self) -> Sha256 {
        Sha256(self.0.finalize().into())
    }
}

impl fmt::Debug for Sha256Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sha256Hasher")
    }
}

/// The length of `bytes` bytes in padded base64.
const fn base64_len(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

fn encode_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Decodes hex that is exactly twice as long as `out`. Upper case is allowed, as in Nix.
fn decode_hex(text: &[u8], out: &mut [u8]) -> Result<(), HashError> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    for (pair, byte) in text.chunks_exact(2).zip(out) {
        match pair {
            &[high, low] => *byte = digit(high).ok_or(HashError::Hex)? << 4 | digit(low).ok_or(HashError::Hex)?,
            _ => return Err(HashError::Hex),
        }
    }
    Ok(())
}

/// Decodes padded standard base64 of exactly `out.len()` bytes.
pub(crate) fn decode_base64(text: &str, out: &mut [u8]) -> Result<(), HashError> {
    if text.len() != base64_len(out.len()) {
        return Err(HashError::Base64);
    }
    // The decoder requires space for whole groups of three bytes; DIGEST_LEN_MAX rounds up to 66.
    let mut buffer = [0; DIGEST_LEN_MAX + 2];
    match STANDARD.decode_slice(text, &mut buffer) {
        Ok(len) if len == out.len() => {
            out.copy_from_slice(&buffer[..len]);
            Ok(())
        }
        _ => Err(HashError::Base64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_input() {
        let hash = Sha256::of(b"");
        assert_eq!(hash.to_nix32(), "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73");
        assert_eq!(hash.to_hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn every_form_is_the_same_hash() {
        let expected = Hash::from(Sha256::of(b""));
        for encoding in [Encoding::Nix32, Encoding::Hex, Encoding::Base64, Encoding::Sri] {
            assert_eq!(Hash::parse(&expected.render(encoding)), Ok((expected, encoding)));
        }
        let upper = format!("sha256:{}", expected.to_hex().to_uppercase());
        assert_eq!(upper.parse(), Ok(expected));
    }

    #[test]
    fn refused() {
        let digest = "0mdqa9w1p6cmli6976v4wi0sw9r4p5prkj7lzfd1877wk11c9c73";
        assert_eq!(digest.parse::<Hash>(), Err(HashError::NoAlgorithm));
        assert_eq!(format!("sha3:{digest}").parse::<Hash>(), Err(HashError::UnknownAlgorithm));
        assert_eq!(format!("SHA256:{digest}").parse::<Hash>(), Err(HashError::UnknownAlgorithm));
        assert!(matches!(format!("sha1:{digest}").parse::<Hash>(), Err(HashError::Length { .. })));
        assert_eq!("sha256:".parse::<Hash>(), Err(HashError::Length { algorithm: Algorithm::Sha256, found: 0 }));
        assert!(matches!("x".repeat(1000).parse::<Hash>(), Err(HashError::TooLong { .. })));
        assert!(matches!(
            "sha1:0000000000000000000000000000000a".parse::<Sha256>(),
            Err(HashError::WrongAlgorithm { .. })
        ));
        // Bits beyond the digest, and a digest in base64 without padding.
        assert_eq!("sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFV=".parse::<Hash>(), Err(HashError::Base64));
        assert_eq!("sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU".parse::<Hash>(), Err(HashError::Base64));
    }

    #[test]
    fn pieces_hash_as_the_whole() {
        let mut hasher = Sha256Hasher::new();
        hasher.update(b"hello ");
        hasher.update(b"world");
        assert_eq!(hasher.finish(), Sha256::of(b"hello world"));
    }

    fn any_hash() -> impl Strategy<Value = Hash> {
        (proptest::sample::select(&Algorithm::ALL[..]), any::<[u8; 64]>())
            .prop_map(|(algorithm, bytes)| Hash::new(algorithm, &bytes[..algorithm.digest_len()]).unwrap())
    }

    proptest! {
        #[test]
        fn round_trip(hash in any_hash()) {
            for encoding in [Encoding::Nix32, Encoding::Hex, Encoding::Base64, Encoding::Sri] {
                prop_assert_eq!(Hash::parse(&hash.render(encoding)), Ok((hash, encoding)));
            }
        }

        #[test]
        fn garbage_never_panics(text in "\\PC{0,140}") {
            let _ = Hash::parse(&text);
        }
    }
}
