//! Names as users write them: `git`, `python3Packages.numpy`, `nodejs@22`, `git^man,doc`, `git=HASH`.

use narval_nix::HashPart;

use crate::bounded::{ATTRIBUTE_LEN_MAX, OUTPUTS_MAX};

/// A text that is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not the name of a package: {reason}")]
pub struct SelectorError {
    text: String,
    reason: &'static str,
}

/// What a user asks for: an attribute, and which of its versions and outputs.
///
/// ```
/// use narval_names::Selector;
/// let selector = Selector::parse("python3Packages.2to3@3^out,dev").unwrap();
/// assert_eq!(selector.attribute, "python3Packages.\"2to3\"");
/// assert_eq!(selector.version.as_deref(), Some("3"));
/// assert_eq!(selector.outputs, ["out", "dev"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The attribute path, quoted as Nix quotes it.
    pub attribute: String,
    /// The version, or the beginning of it: `22` is every 22.x.
    pub version: Option<String>,
    /// The outputs; empty for the default ones, `*` for all.
    pub outputs: Vec<String>,
    /// The path that was chosen among several, by its hash part.
    pub choice: Option<HashPart>,
}

impl Selector {
    /// Parses `ATTRIBUTE[@VERSION][^OUTPUT,…][=HASH]`.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let fail = |reason| SelectorError { text: text.chars().filter(|c| !c.is_control()).take(80).collect(), reason };
        if text.len() > ATTRIBUTE_LEN_MAX {
            return Err(fail("it is too long"));
        }
        if text.chars().any(char::is_control) {
            return Err(fail("it has a control character"));
        }
        let (parts, mut rest) = components(text).ok_or_else(|| fail("a quote is not closed, or a part is empty"))?;
        let mut selector = Self { attribute: joined(&parts), version: None, outputs: Vec::new(), choice: None };
        if let Some(after) = rest.strip_prefix('@') {
            let end = after.find(['^', '=']).unwrap_or(after.len());
            let (version, left) = after.split_at(end);
            if version.is_empty() {
                return Err(fail("no version follows '@'"));
            }
            (selector.version, rest) = (Some(version.to_owned()), left);
        }
        if let Some(after) = rest.strip_prefix('^') {
            let (outputs, left) = after.split_at(after.find('=').unwrap_or(after.len()));
            selector.outputs = outputs.split(',').map(str::to_owned).collect();
            let is_output = |output: &String| {
                output == "*"
                    || (!output.is_empty() && output.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-+".contains(&b)))
            };
            if !selector.outputs.iter().all(is_output) || selector.outputs.len() > OUTPUTS_MAX {
                return Err(fail("outputs follow '^', separated by commas"));
            }
            rest = left;
        }
        if let Some(hash) = rest.strip_prefix('=') {
            let hash = hash.rsplit('/').next().unwrap_or_default().split('-').next().unwrap_or_default();
            selector.choice =
                Some(HashPart::parse(hash.as_bytes()).map_err(|_| fail("a store path or its hash part follows '='"))?);
        } else if !rest.is_empty() {
            return Err(fail("what follows is neither @VERSION, ^OUTPUT nor =HASH"));
        }
        Ok(selector)
    }

    /// Whether a version is the wanted one: the same, or one that continues it with a new component.
    pub fn has_version(&self, version: &str) -> bool {
        match &self.version {
            None => true,
            Some(wanted) => match version.strip_prefix(wanted.as_str()) {
                Some(rest) => rest.is_empty() || rest.starts_with(['.', '-', '_', '+']),
                None => false,
            },
        }
    }

    /// As it was written, without version, outputs and choice.
    pub fn is_plain(&self) -> bool {
        self.version.is_none() && self.outputs.is_empty() && self.choice.is_none()
    }
}

/// The components of an attribute path, and what follows them.
fn components(text: &str) -> Option<(Vec<String>, &str)> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let part;
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"')?;
            part = quoted.get(..end)?.to_owned();
            rest = quoted.get(end + 1..)?;
        } else {
            // A scope such as @angular is a part of the name.
            let from = usize::from(rest.starts_with('@'));
            let end = rest.get(from..)?.find(['.', '@', '^', '=']).map_or(rest.len(), |end| end + from);
            part = rest.get(..end)?.to_owned();
            rest = rest.get(end..)?;
        }
        if part.is_empty() {
            return None;
        }
        parts.push(part);
        match rest.strip_prefix('.') {
            Some(next) => rest = next,
            None => return Some((parts, rest)),
        }
    }
}

/// An attribute path as Nix writes it: what is no identifier is quoted.
pub(crate) fn joined(parts: &[String]) -> String {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_identifier = |part: &str| {
        part.starts_with(is_start) && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_'-".contains(&b))
    };
    let quoted = |part: &String| if is_identifier(part) { part.clone() } else { format!("\"{part}\"") };
    parts.iter().map(quoted).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_versions_outputs_and_choices() {
        let parse = |text: &str| Selector::parse(text).map_err(|error| error.to_string());
        let git = parse("git@2.51^man,doc=00bgd045z0d4icpbc2yyz4gx48ak44la-git-2.51").unwrap();
        assert_eq!((git.attribute.as_str(), git.version.as_deref()), ("git", Some("2.51")));
        assert_eq!(git.outputs, ["man", "doc"]);
        assert_eq!(git.choice.unwrap().as_str(), "00bgd045z0d4icpbc2yyz4gx48ak44la");
        assert_eq!(parse("2bwm").unwrap().attribute, "\"2bwm\"");
        assert_eq!(parse("nodePackages.\"@angular/cli\"@1").unwrap().attribute, "nodePackages.\"@angular/cli\"");
        assert_eq!(parse("nodePackages.@angular/cli").unwrap().attribute, "nodePackages.\"@angular/cli\"");
        for wrong in ["", ".", "a.", "\"a", "a@", "a^", "a^b/c", "a=b", "a\u{7}", &"a".repeat(600)] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_version_is_a_beginning_of_components() {
        let node = Selector::parse("nodejs@22").unwrap();
        assert!(node.has_version("22") && node.has_version("22.11.0"));
        assert!(!node.has_version("2.2") && !node.has_version("220.1"));
    }
}
