//! The resolved outputs of content-addressed derivations: build traces (Nix 2.35 and later) and realisations (before).
//!
//! Format: Nix `libstore/realisation.cc`. Both are JSON in `.doi` files of a binary cache.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::hash::{Algorithm, Encoding, Hash, HashError, Sha256};
use crate::signing::signature::{KeyTextError, Signature};
use crate::store_path::{StorePath, StorePathError, StorePathName};

/// The maximum size of a `.doi` file, in bytes.
pub const REALISATION_LEN_MAX: usize = 1024 * 1024;

/// Why a build trace or realisation was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RealisationError {
    /// Longer than [`REALISATION_LEN_MAX`].
    #[error("the realisation has more than {REALISATION_LEN_MAX} bytes")]
    TooLong,
    /// Not valid JSON of this format; the error gives the line and column.
    #[error("invalid realisation: {0}")]
    Json(String),
    /// A store path or output name is invalid.
    #[error("invalid realisation: {0}")]
    Path(#[from] StorePathError),
    /// A signature is malformed.
    #[error("invalid signature of a realisation: {0}")]
    Signature(#[from] KeyTextError),
    /// The hash in an id is malformed.
    #[error("invalid hash in the id of a realisation: {0}")]
    Hash(#[from] HashError),
    /// An id has no separator.
    #[error("expected '<derivation>^<output>' or '<hash>!<output>'")]
    Id,
}

/// An output of a derivation, identified by the derivation's path: `<base name>^<output>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildTraceKey {
    /// The derivation.
    pub drv_path: StorePath,
    /// The output.
    pub output_name: StorePathName,
}

impl BuildTraceKey {
    /// Its path in a binary cache, relative to the cache's URL.
    pub fn cache_path(&self) -> String {
        format!("build-trace-v2/{}/{}.doi", self.drv_path, self.output_name)
    }
}

impl fmt::Display for BuildTraceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}^{}", self.drv_path, self.output_name)
    }
}

impl FromStr for BuildTraceKey {
    type Err = RealisationError;

    fn from_str(text: &str) -> Result<Self, RealisationError> {
        let (drv_path, output_name) = text.split_once('^').ok_or(RealisationError::Id)?;
        Ok(Self { drv_path: drv_path.parse()?, output_name: output_name.parse()? })
    }
}

/// The store path that an output resolved to: the contents of `build-trace-v2/<derivation>/<output>.doi`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildTrace {
    /// The path.
    pub out_path: StorePath,
    /// Signatures of [`BuildTrace::signed_text`].
    pub signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BuildTraceJson {
    out_path: String,
    #[serde(default)]
    signatures: Vec<SignatureJson>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignatureJson {
    key_name: String,
    sig: String,
}

impl BuildTrace {
    /// Parses the JSON. Unknown keys are ignored.
    pub fn parse(json: &[u8]) -> Result<Self, RealisationError> {
        let json: BuildTraceJson = parse_json(json)?;
        let signature = |signature: SignatureJson| format!("{}:{}", signature.key_name, signature.sig).parse();
        Ok(Self {
            out_path: json.out_path.parse()?,
            signatures: json.signatures.into_iter().map(signature).collect::<Result<_, KeyTextError>>()?,
        })
    }

    /// The JSON as Nix writes it: keys sorted, no white space.
    pub fn to_json(&self) -> String {
        let signature = |signature: &Signature| SignatureJson {
            key_name: signature.key_name().to_owned(),
            sig: signature.to_base64(),
        };
        to_json(&BuildTraceJson {
            out_path: self.out_path.to_string(),
            signatures: self.signatures.iter().map(signature).collect(),
        })
    }

    /// The text that signatures sign.
    pub fn signed_text(&self, key: &BuildTraceKey) -> String {
        // Store paths and output names have no characters that JSON would escape.
        format!(
            r#"{{"key":{{"drvPath":"{}","outputName":"{}"}},"value":{{"outPath":"{}"}}}}"#,
            key.drv_path, key.output_name, self.out_path
        )
    }
}

/// An output of a derivation, identified by the derivation's hash: `sha256:<hex>!<output>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DrvOutput {
    /// The hash of the derivation modulo its inputs.
    pub drv_hash: Sha256,
    /// The output.
    pub output_name: StorePathName,
}

impl DrvOutput {
    /// Its path in a binary cache, relative to the cache's URL.
    pub fn cache_path(&self) -> String {
        format!("realisations/{self}.doi")
    }
}

impl fmt::Display for DrvOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}!{}", Hash::from(self.drv_hash).render(Encoding::Hex), self.output_name)
    }
}

impl FromStr for DrvOutput {
    type Err = RealisationError;

    fn from_str(text: &str) -> Result<Self, RealisationError> {
        let (hash, output_name) = text.split_once('!').ok_or(RealisationError::Id)?;
        let (algorithm, digest) = hash.split_once(':').ok_or(HashError::NoAlgorithm)?;
        let (hash, _) = Hash::parse_digest(Algorithm::from_name(algorithm)?, digest)?;
        Ok(Self { drv_hash: hash.sha256()?, output_name: output_name.parse()? })
    }
}

/// The store path that an output resolved to, before Nix 2.35: the contents of `realisations/<id>.doi`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Realisation {
    /// The output.
    pub id: DrvOutput,
    /// The path.
    pub out_path: StorePath,
    /// Signatures of [`Realisation::signed_text`].
    pub signatures: Vec<Signature>,
    /// The store paths that the outputs it was built from resolved to.
    pub dependent_realisations: BTreeMap<DrvOutput, StorePath>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RealisationJson {
    // In the order of Nix's JSON library, which sorts by key.
    #[serde(default)]
    dependent_realisations: BTreeMap<String, String>,
    id: String,
    out_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signatures: Option<Vec<String>>,
}

impl Realisation {
    /// Parses the JSON. Unknown keys are ignored.
    pub fn parse(json: &[u8]) -> Result<Self, RealisationError> {
        let json: RealisationJson = parse_json(json)?;
        let signatures = json.signatures.unwrap_or_default();
        let dependents = json.dependent_realisations.iter();
        Ok(Self {
            id: json.id.parse()?,
            out_path: json.out_path.parse()?,
            signatures: signatures.iter().map(|text| text.parse()).collect::<Result<_, KeyTextError>>()?,
            dependent_realisations: dependents
                .map(|(id, path)| Ok((id.parse()?, path.parse()?)))
                .collect::<Result<_, RealisationError>>()?,
        })
    }

    /// The JSON as Nix writes it: keys sorted, no white space.
    pub fn to_json(&self) -> String {
        self.json(Some(self.signatures.iter().map(Signature::to_string).collect()))
    }

    /// The text that signatures sign.
    pub fn signed_text(&self) -> String {
        self.json(None)
    }

    fn json(&self, signatures: Option<Vec<String>>) -> String {
        let dependents = self.dependent_realisations.iter();
        to_json(&RealisationJson {
            dependent_realisations: dependents.map(|(id, path)| (id.to_string(), path.to_string())).collect(),
            id: self.id.to_string(),
            out_path: self.out_path.to_string(),
            signatures,
        })
    }
}

fn parse_json<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, RealisationError> {
    if json.len() > REALISATION_LEN_MAX {
        return Err(RealisationError::TooLong);
    }
    serde_json::from_slice(json).map_err(|error| RealisationError::Json(error.to_string()))
}

fn to_json(value: &impl Serialize) -> String {
    // Serialising strings, lists and maps of strings to memory cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signing::keys::{SecretKey, TrustedKeys};
    use proptest::prelude::*;

    const DRV: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-a.drv";
    const OUT: &str = "7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-a";
    const ID: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855!out";

    fn signature() -> Signature {
        Signature::new("k-1", [7; 64]).unwrap()
    }

    #[test]
    fn build_trace() {
        let key: BuildTraceKey = format!("{DRV}^out").parse().unwrap();
        assert_eq!(key.cache_path(), format!("build-trace-v2/{DRV}/out.doi"));
        let sig = signature().to_base64();
        let json = format!(r#"{{"outPath":"{OUT}","signatures":[{{"keyName":"k-1","sig":"{sig}"}}]}}"#);
        let trace = BuildTrace::parse(json.as_bytes()).unwrap();
        assert_eq!(trace.to_json(), json);
        let text = trace.signed_text(&key);
        assert_eq!(
            text,
            format!(r#"{{"key":{{"drvPath":"{DRV}","outputName":"out"}},"value":{{"outPath":"{OUT}"}}}}"#)
        );
        let secret = SecretKey::generate("k-1").unwrap();
        let trusted = TrustedKeys::from_iter([secret.public_key()]);
        assert!(trusted.find_valid(text.as_bytes(), [&secret.sign(text.as_bytes()).unwrap()]).is_some());
    }

    #[test]
    fn realisation() {
        let sig = signature();
        let json = format!(
            r#"{{"dependentRealisations":{{"{ID}2":"{OUT}"}},"id":"{ID}","outPath":"{OUT}","signatures":["{sig}"]}}"#
        );
        let realisation = Realisation::parse(json.as_bytes()).unwrap();
        assert_eq!(realisation.to_json(), json);
        let signed = json.replace(&format!(r#","signatures":["{sig}"]"#), "");
        assert_eq!(realisation.signed_text(), signed);
        assert_eq!(realisation.id.cache_path(), format!("realisations/{ID}.doi"));
    }

    #[test]
    fn refused() {
        for bad in [
            "",
            "{}",
            "null",
            r#"{"outPath":"../etc"}"#,
            r#"{"outPath":"/nix/store/7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-a"}"#,
            r#"{"outPath":"7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-a","signatures":["k:AAAA"]}"#,
            r#"{"outPath":"7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-a","signatures":[{"keyName":"k","sig":"AAAA"}]}"#,
        ] {
            assert!(BuildTrace::parse(bad.as_bytes()).is_err(), "{bad}");
            assert!(Realisation::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        for bad in ["", "out", "^out", &format!("{DRV}^"), &format!("{DRV}^a/b")] {
            assert!(bad.parse::<BuildTraceKey>().is_err(), "{bad}");
        }
        for bad in ["", "!out", "sha256:00!out", &ID.replace("!out", "!"), &ID.replace("sha256", "sha512")] {
            assert!(bad.parse::<DrvOutput>().is_err(), "{bad}");
        }
        let long = vec![b' '; REALISATION_LEN_MAX + 1];
        assert_eq!(BuildTrace::parse(&long), Err(RealisationError::TooLong));
        let deep = "[".repeat(100_000);
        assert!(matches!(Realisation::parse(deep.as_bytes()), Err(RealisationError::Json(_))));
    }

    proptest! {
        #[test]
        fn round_trips(digest in any::<[u8; 32]>(), name in "[a-z]{1,9}", half in any::<[u8; 32]>(), count in 0..3_usize) {
            let signature = Signature::new(&name, [half, half].concat().try_into().unwrap()).unwrap();
            let output_name: StorePathName = name.parse().unwrap();
            let id = DrvOutput { drv_hash: Sha256::from_bytes(digest), output_name };
            prop_assert_eq!(id.to_string().parse(), Ok(id.clone()));
            let out_path: StorePath = OUT.parse().unwrap();
            let signatures = vec![signature; count];
            let trace = BuildTrace { out_path: out_path.clone(), signatures: signatures.clone() };
            prop_assert_eq!(BuildTrace::parse(trace.to_json().as_bytes()), Ok(trace));
            let dependent_realisations = BTreeMap::from([(id.clone(), out_path.clone())]);
            let realisation = Realisation { id, out_path, signatures, dependent_realisations };
            prop_assert_eq!(Realisation::parse(realisation.to_json().as_bytes()), Ok(realisation));
        }
    }
}
