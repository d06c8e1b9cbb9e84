//! The outputs of a derivation, read from its `.drv` file: the part that the store's database records.
//!
//! Format: Nix `libstore/derivations.cc` (`parseDerivation`), an ATerm:
//! `Derive([("out","/nix/store/…","",""),…],…)`. Only the outputs are read; what follows them is not.

use thiserror::Error;

use crate::store_path::{StoreDir, StorePath, StorePathError, StorePathName};

/// The maximum number of outputs of a derivation.
pub const OUTPUTS_MAX: usize = 4096;

/// The maximum length of a string in the outputs, in bytes: enough for a store directory and a base name.
const STRING_LEN_MAX: usize = 4096;

/// One output of a derivation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivationOutput {
    /// Its name, often `out`.
    pub name: StorePathName,
    /// Its path, or `None` if the path depends on the result of the build.
    pub path: Option<StorePath>,
    /// The method and algorithm of a content-addressed output, such as `r:sha256`. Empty if it is input-addressed.
    pub hash_algorithm: String,
    /// The digest of a fixed output in hex. Empty for other outputs.
    pub hash: String,
}

/// Why the outputs of a derivation cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("invalid derivation at byte {offset}: {fault}")]
pub struct DerivationError {
    /// The offset of the error in bytes.
    pub offset: usize,
    /// What is wrong.
    pub fault: DerivationFault,
}

/// What is wrong with a derivation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DerivationFault {
    /// Unexpected input.
    #[error("expected {0:?}")]
    Expected(&'static str),
    /// A string is not terminated, is too long, or is not UTF-8.
    #[error("a string must end, be UTF-8 and have at most {STRING_LEN_MAX} bytes")]
    String,
    /// The name or path of an output is invalid.
    #[error("{0}")]
    Path(#[from] StorePathError),
    /// Two outputs have the same name.
    #[error("duplicate output")]
    Duplicate,
    /// The derivation has no outputs.
    #[error("a derivation has at least one output")]
    None,
    /// More than [`OUTPUTS_MAX`].
    #[error("a derivation has at most {OUTPUTS_MAX} outputs")]
    TooMany,
}

/// Parses the outputs of a derivation, in the order of the file.
///
/// ```
/// use narval_nix::{StoreDir, derivation};
/// let text = r#"Derive([("out","/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-a","","")],[],[],"s","b",[],[])"#;
/// let outputs = derivation::parse_outputs(text.as_bytes(), &StoreDir::default()).unwrap();
/// assert_eq!(outputs[0].name.as_str(), "out");
/// ```
pub fn parse_outputs(text: &[u8], store_dir: &StoreDir) -> Result<Vec<DerivationOutput>, DerivationError> {
    let mut reader = Reader { text, at: 0 };
    // Derivations with dynamic dependencies name their version first.
    if !reader.take("Derive([") {
        reader.expect("DrvWithVersion(")?;
        reader.string()?;
        reader.expect(",[")?;
    }
    let mut outputs: Vec<DerivationOutput> = Vec::new();
    if reader.take("]") {
        return Err(reader.fault(DerivationFault::None));
    }
    loop {
        let offset = reader.at;
        let output = reader.output(store_dir)?;
        let fault = if outputs.iter().any(|other| other.name == output.name) {
            Some(DerivationFault::Duplicate)
        } else {
            (outputs.len() == OUTPUTS_MAX).then_some(DerivationFault::TooMany)
        };
        if let Some(fault) = fault {
            return Err(DerivationError { offset, fault });
        }
        outputs.push(output);
        if !reader.take(",") {
            reader.expect("],[")?;
            return Ok(outputs);
        }
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn fault(&self, fault: impl Into<DerivationFault>) -> DerivationError {
        DerivationError { offset: self.at, fault: fault.into() }
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token.as_bytes());
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &'static str) -> Result<(), DerivationError> {
        if self.take(token) { Ok(()) } else { Err(self.fault(DerivationFault::Expected(token))) }
    }

    /// `("name","path","hash algorithm","hash")`
    fn output(&mut self, store_dir: &StoreDir) -> Result<DerivationOutput, DerivationError> {
        self.expect("(")?;
        let offset = self.at;
        let at_fault = |fault: StorePathError| DerivationError { offset, fault: fault.into() };
        let name = StorePathName::parse(&self.string()?).map_err(at_fault)?;
        self.expect(",")?;
        let path = match self.string()?.as_str() {
            "" => None,
            path => Some(store_dir.parse(path).map_err(at_fault)?),
        };
        self.expect(",")?;
        let hash_algorithm = self.string()?;
        self.expect(",")?;
        let hash = self.string()?;
        self.expect(")")?;
        Ok(DerivationOutput { name, path, hash_algorithm, hash })
    }

    /// A quoted string, with the escapes `\n`, `\r` and `\t`; any other escaped byte stands for itself.
    fn string(&mut self) -> Result<String, DerivationError> {
        self.expect("\"")?;
        let mut bytes = Vec::new();
        let mut rest = self.text[self.at..].iter();
        loop {
            let byte = match rest.next() {
                Some(b'"') => break,
                Some(b'\\') => match rest.next() {
                    Some(b'n') => b'\n',
                    Some(b'r') => b'\r',
                    Some(b't') => b'\t',
                    Some(byte) => *byte,
                    None => return Err(self.fault(DerivationFault::String)),
                },
                Some(byte) => *byte,
                None => return Err(self.fault(DerivationFault::String)),
            };
            if bytes.len() == STRING_LEN_MAX {
                return Err(self.fault(DerivationFault::String));
            }
            bytes.push(byte);
        }
        let text = String::from_utf8(bytes).map_err(|_| self.fault(DerivationFault::String))?;
        self.at = self.text.len() - rest.as_slice().len();
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-a";

    fn parse(text: &str) -> Result<Vec<DerivationOutput>, DerivationError> {
        parse_outputs(text.as_bytes(), &StoreDir::default())
    }

    #[test]
    fn outputs() {
        let text = format!(r#"Derive([("dev","{A}-dev","",""),("out","","r:sha256","")],[],[],"s","b",[],[])"#);
        let outputs = parse(&text).unwrap();
        assert_eq!(outputs.len(), 2);
        assert_eq!(outputs[0].path.as_ref().unwrap().name(), "a-dev");
        assert_eq!((outputs[1].path.as_ref(), outputs[1].hash_algorithm.as_str()), (None, "r:sha256"));
        let versioned = format!(r#"DrvWithVersion("xp-dyn-drv",[("out","{A}","","")],[])"#);
        assert_eq!(parse(&versioned).unwrap()[0].name.as_str(), "out");
    }

    #[test]
    fn escapes() {
        let outputs = parse(r#"Derive([("out","","\"\\\n\t\r\x","")],[]"#).unwrap();
        assert_eq!(outputs[0].hash_algorithm, "\"\\\n\t\rx");
    }

    #[test]
    fn refused() {
        let many: Vec<String> = (0..=OUTPUTS_MAX).map(|index| format!(r#"("o{index}","","","")"#)).collect();
        for (bad, fault) in [
            (String::new(), DerivationFault::Expected("DrvWithVersion(")),
            ("Derive([]".into(), DerivationFault::None),
            (r#"Derive([("out","","","")"#.into(), DerivationFault::Expected("],[")),
            (r#"Derive([("out","#.into(), DerivationFault::Expected("\"")),
            (r#"Derive([("out"#.into(), DerivationFault::String),
            (r#"Derive([("out\"#.into(), DerivationFault::String),
            (format!(r#"Derive([("{}""#, "o".repeat(5000)), DerivationFault::String),
            (r#"Derive([("","","","")],["#.into(), DerivationFault::Path(StorePathError::EmptyName)),
            (r#"Derive([("out","/etc/passwd","","")],["#.into(), DerivationFault::Path(StorePathError::NotInStore)),
            (r#"Derive([("a","","",""),("a","","","")],["#.into(), DerivationFault::Duplicate),
            (format!("Derive([{}],[", many.join(",")), DerivationFault::TooMany),
        ] {
            assert_eq!(parse(&bad).unwrap_err().fault, fault, "{bad:.80}");
        }
        assert!(parse_outputs(b"Derive([(\"\xff\",", &StoreDir::default()).is_err());
    }
}
