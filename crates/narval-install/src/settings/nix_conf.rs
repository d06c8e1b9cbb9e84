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
/// The same, if a line end was added before the block.
const LAST_ADDED: &str = "# end of narval use (the line before it had no end)";
/// What the block of the near cache has in place of an address.
const NEAR: &str = "--near";

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
        let mut places = places(text)?.into_iter().filter(|place| place.url == self.url);
        if let Some(first) = places.next() {
            // From the last one backwards: earlier positions stay valid.
            places.rev().for_each(|place| changed.replace_range(place.bytes, ""));
            changed.replace_range(first.bytes.clone(), &first.last_line(&block));
            return Ok(changed);
        }
        Ok(append(changed, &block))
    }

    /// Returns the text without the block for this address; the same text if there is none.
    ///
    /// # Errors
    /// [`NixConfError::Unfinished`].
    pub fn take_from(text: &str, url: &str) -> Result<String, NixConfError> {
        let mut changed = text.to_owned();
        let places = places(text)?;
        places.into_iter().rev().filter(|place| place.url == url).for_each(|place| {
            let added = usize::from(place.added_line_end);
            changed.replace_range(place.bytes.start - added..place.bytes.end, "");
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
        check(std::iter::once(&self.url).chain(&self.public_keys))?;
        if let Some(bad) = self.netrc_file.as_ref().filter(|text| text.contains(is_bad)) {
            return Err(NixConfError::Character(bad.clone()));
        }
        // Nix joins the words of a value with one blank each.
        if let Some(bad) = self.netrc_file.as_ref().filter(|file| file.contains("  ") || file.trim() != *file) {
            return Err(NixConfError::Character(bad.clone()));
        }
        Ok(format!("{FIRST}{}\n{}{LAST}\n", self.url, self.lines()))
    }
}

/// The settings in `nix.conf` for a near cache: it is asked in place of what was set before, and nothing else changes. The block comes last,
/// because later lines would add to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearBlock {
    /// The address of the near cache, and those of caches that only Nix itself can ask.
    pub caches: Vec<String>,
}

impl NearBlock {
    /// Returns the text with this block at its end.
    ///
    /// # Errors
    /// As [`CacheBlock::put_into`].
    pub fn put_into(&self, text: &str) -> Result<String, NixConfError> {
        check(self.caches.iter())?;
        let block = format!("{FIRST}{NEAR}\nsubstituters = {}\n{LAST}\n", self.caches.join(" "));
        Ok(append(Self::take_from(text)?, &block))
    }

    /// Returns the text without the block.
    ///
    /// # Errors
    /// [`NixConfError::Unfinished`].
    pub fn take_from(text: &str) -> Result<String, NixConfError> {
        CacheBlock::take_from(text, NEAR)
    }

    /// Whether there is such a block.
    ///
    /// # Errors
    /// [`NixConfError::Unfinished`].
    pub fn is_in(text: &str) -> Result<bool, NixConfError> {
        Ok(places(text)?.iter().any(|place| place.url == NEAR))
    }
}

fn is_bad(character: char) -> bool {
    character == '#' || character.is_control()
}

/// Checks that each value is one word.
fn check<'a>(mut values: impl Iterator<Item = &'a String>) -> Result<(), NixConfError> {
    let bad = |text: &&String| text.is_empty() || text.contains(char::is_whitespace) || text.contains(is_bad);
    values.find(bad).map_or(Ok(()), |bad| Err(NixConfError::Character(bad.clone())))
}

/// Adds a block at the end.
fn append(mut text: String, block: &str) -> String {
    if text.is_empty() || text.ends_with('\n') {
        return text + block;
    }
    text.push('\n');
    text + &block.replace(&format!("{LAST}\n"), &format!("{LAST_ADDED}\n"))
}

struct Place<'a> {
    url: &'a str,
    /// Including the comments before and after it.
    bytes: Range<usize>,
    /// Whether the line end before it belongs to it.
    added_line_end: bool,
}

impl Place<'_> {
    /// This block, with the last line of the one at this place.
    fn last_line(&self, block: &str) -> String {
        let last = if self.added_line_end { LAST_ADDED } else { LAST };
        block.replace(&format!("{LAST}\n"), &format!("{last}\n"))
    }
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
            (Some((_, start, url)), None) if content == LAST || content == LAST_ADDED => {
                let added_line_end = content == LAST_ADDED && start > 0;
                found.push(Place { url, bytes: start..at + line.len(), added_line_end });
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
    fn a_near_cache_comes_last_and_replaces_what_was_set() {
        let near = NearBlock { caches: vec!["http://127.0.0.1:5037".into(), "ssh://builder".into()] };
        let with = near.put_into(OWN).unwrap();
        let lines = "substituters = http://127.0.0.1:5037 ssh://builder\n";
        assert_eq!(with, format!("{OWN}# narval use --near\n{lines}# end of narval use\n"));
        let later = block("http://c").put_into(&with).unwrap();
        let again = near.put_into(&later).unwrap();
        assert!(again.ends_with(&with[OWN.len()..]) && NearBlock::is_in(&again).unwrap());
        assert_eq!(NearBlock::take_from(&with).unwrap(), OWN);
        let spaced = NearBlock { caches: vec!["http://a b".into()] };
        assert!(spaced.put_into(OWN).is_err());
    }

    #[test]
    fn the_last_line_need_not_end() {
        let with = block("http://c").put_into("cores = 4").unwrap();
        assert!(with.starts_with("cores = 4\n# narval use"));
        assert_eq!(block("http://c").put_into(&with).unwrap(), with);
        assert_eq!(CacheBlock::take_from(&with, "http://c").unwrap(), "cores = 4", "byte for byte");
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
