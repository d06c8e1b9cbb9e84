//! A cache in `nix.conf`: a block of lines between two comments. Everything else in the file stays as it is.
//!
//! ```text
//! # narval use http://cache:5000
//! extra-substituters = http://cache:5000
//! extra-trusted-public-keys = cache-1:…
//! netrc-file = /home/me/.config/nix/netrc
//! # end of narval use
//! ```
//!
//! Nix combines the lines that start with `extra-` (`libutil/configuration.cc`), so each cache has its own block.

use std::ops::Range;

/// The start of the line before a block; the address of the cache follows.
const FIRST: &str = "# narval use ";
/// The line after a block.
const LAST: &str = "# end of narval use";

/// The settings in `nix.conf` for one cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheBlock {
    /// The address, without blanks.
    pub url: String,
    /// Public keys, `name:base64`.
    pub public_keys: Vec<String>,
    /// A file with credentials, if Nix does not find them by itself.
    pub netrc_file: Option<String>,
}

/// Why a `nix.conf` cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NixConfError {
    /// The end of a block is missing.
    #[error("line {line} starts a block of 'narval use', but no line '{LAST}' ends it: add or remove that line")]
    Unfinished {
        /// The line number, starting at 1.
        line: usize,
    },
    /// A value cannot be written as one word.
    #[error("'{0}' has a blank, a '#' or a control character, which nix.conf cannot contain")]
    Character(String),
}

impl CacheBlock {
    /// Returns the text with this block, in place of the one for the same address, or at the end.
    ///
    /// # Errors
    /// [`NixConfError`]: a block without an end, or a value that the file cannot contain.
    pub fn put_into(&self, text: &str) -> Result<String, NixConfError> {
        let block = self.text()?;
        let mut changed = text.to_owned();
        let mut places = places(text)?.into_iter().filter(|place| place.url == self.url).map(|place| place.bytes);
        if let Some(first) = places.next() {
            // From the last one backwards: earlier positions stay valid.
            places.rev().for_each(|place| changed.replace_range(place, ""));
            changed.replace_range(first, &block);
            return Ok(changed);
        }
        if !changed.is_empty() && !changed.ends_with('\n') {
            changed.push('\n');
        }
        changed.push_str(&block);
        Ok(changed)
    }

    /// Returns the text without the block for this address; the same text if there is none.
    ///
    /// # Errors
    /// [`NixConfError::Unfinished`].
    pub fn take_from(text: &str, url: &str) -> Result<String, NixConfError> {
        let mut changed = text.to_owned();
        let places = places(text)?;
        places.into_iter().rev().filter(|place| place.url == url).for_each(|place| {
            changed.replace_range(place.bytes, "");
        });
        Ok(changed)
    }

    /// The addresses that have a block.
    ///
    /// # Errors
    /// [`NixConfError::Unfinished`].
    pub fn urls_in(text: &str) -> Result<Vec<String>, NixConfError> {
        Ok(places(text)?.into_iter().map(|place| place.url.to_owned()).collect())
    }

    /// The settings as lines, without the comments around them.
    pub fn lines(&self) -> String {
        let mut lines = format!("extra-substituters = {}\n", self.url);
        if !self.public_keys.is_empty() {
            lines.push_str(&format!("extra-trusted-public-keys = {}\n", self.public_keys.join(" ")));
        }
        if let Some(netrc_file) = &self.netrc_file {
            lines.push_str(&format!("netrc-file = {netrc_file}\n"));
        }
        lines
    }

    fn text(&self) -> Result<String, NixConfError> {
        let is_bad = |character: char| character == '#' || character.is_control();
        let blank = |text: &&String| text.is_empty() || text.contains(char::is_whitespace);
        let mut values = std::iter::once(&self.url).chain(&self.public_keys);
        let bad = values.clone().chain(&self.netrc_file).find(|text| text.contains(is_bad));
        if let Some(bad) = bad.or_else(|| values.find(blank)) {
            return Err(NixConfError::Character(bad.clone()));
        }
        // Nix joins the words of a value with one blank each.
        if let Some(bad) = self.netrc_file.as_ref().filter(|file| file.contains("  ") || file.trim() != *file) {
            return Err(NixConfError::Character(bad.clone()));
        }
        Ok(format!("{FIRST}{}\n{}{LAST}\n", self.url, self.lines()))
    }
}

struct Place<'a> {
    url: &'a str,
    /// Including the comments before and after it.
    bytes: Range<usize>,
}

/// The blocks in a text.
fn places(text: &str) -> Result<Vec<Place<'_>>, NixConfError> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize, &str)> = None;
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let content = line.trim_end();
        let url = content.strip_prefix(FIRST);
        match (open, url) {
            (Some((line, ..)), Some(_)) => return Err(NixConfError::Unfinished { line }),
            (None, Some(url)) => open = Some((number + 1, at, url.trim())),
            (Some((_, start, url)), None) if content == LAST => {
                found.push(Place { url, bytes: start..at + line.len() });
                open = None;
            }
            _ => {}
        }
        at += line.len();
    }
    match open {
        Some((line, ..)) => Err(NixConfError::Unfinished { line }),
        None => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(url: &str) -> CacheBlock {
        CacheBlock { url: url.into(), public_keys: vec!["c-1:K=".into()], netrc_file: None }
    }

    const OWN: &str = "# mine\r\nsubstituters = https://a # narval use b\n\n  cores=4\n";

    #[test]
    fn the_rest_of_the_file_stays() {
        let with = block("http://c:5000").put_into(OWN).unwrap();
        let expected = "# narval use http://c:5000\nextra-substituters = http://c:5000\n\
                        extra-trusted-public-keys = c-1:K=\n# end of narval use\n";
        assert_eq!(with, format!("{OWN}{expected}"));
        let two = block("http://d").put_into(&with).unwrap();
        assert!(two.starts_with(&with));
        assert_eq!(CacheBlock::urls_in(&two).unwrap(), ["http://c:5000", "http://d"]);
        let later = format!("{two}cores = 3");
        assert_eq!(CacheBlock::take_from(&later, "http://d").unwrap(), format!("{with}cores = 3"));
        assert_eq!(CacheBlock::take_from(&with, "http://c:5000").unwrap(), OWN);
        assert_eq!(CacheBlock::take_from(&with, "http://c").unwrap(), with, "another cache");
    }

    #[test]
    fn again_changes_nothing_and_a_new_key_replaces_the_block_in_its_place() {
        let (one, two) = (block("http://c"), block("http://d"));
        let text = two.put_into(&one.put_into("").unwrap()).unwrap();
        assert_eq!(one.put_into(&text).unwrap(), text);
        let newer = CacheBlock { public_keys: vec!["c-2:L=".into(), "c-3:M=".into()], ..one.clone() };
        assert_eq!(newer.put_into(&text).unwrap(), text.replacen("c-1:K=", "c-2:L= c-3:M=", 1));
        let twice = format!("{text}{}", one.put_into("").unwrap());
        assert_eq!(one.put_into(&twice).unwrap(), text, "a second block for the same cache goes");
    }

    #[test]
    fn the_last_line_need_not_end() {
        assert!(block("http://c").put_into("cores = 4").unwrap().starts_with("cores = 4\n# narval use"));
        let unended = "# narval use http://c\n# end of narval use";
        assert_eq!(CacheBlock::take_from(unended, "http://c").unwrap(), "");
    }

    #[test]
    fn values_that_would_break_the_file_are_refused() {
        let unfinished = Err(NixConfError::Unfinished { line: 2 });
        assert_eq!(block("http://c").put_into("x\n# narval use http://c\n"), unfinished);
        let nested = "x\n# narval use http://c\n# narval use http://d\n# end of narval use\n";
        assert_eq!(CacheBlock::take_from(nested, "http://c"), unfinished);
        for url in ["http://c/#x", "http://c d", "http://c\nsandbox", ""] {
            assert_eq!(block(url).put_into(""), Err(NixConfError::Character(url.into())));
        }
        let netrc = |file: &str| CacheBlock { netrc_file: Some(file.into()), ..block("http://c") }.put_into("");
        assert!(netrc("/home/a b/netrc").is_ok());
        assert!(netrc("/home/a  b/netrc").is_err() && netrc("/home/a\nb").is_err());
    }
}
