//! Names that are looked for: by words, and by what is near a misspelt one.

use crate::error::NamesError;
use crate::fields::Fields;
use crate::index::Index;
use crate::package::Package;

/// How good a package fits the words, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The attribute or the package has this name.
    Exact,
    /// The attribute or the package begins so.
    Prefix,
    /// A part of the attribute or the package begins with each word.
    Word,
    /// The words are somewhere in the attribute or the name.
    Name,
    /// The words are in the description.
    Description,
}

/// A package that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchHit {
    /// How good it fits.
    pub rank: Rank,
    /// The package.
    pub package: Package,
}

impl Index {
    /// The packages that have all of these words in attribute, name or description; the best first, and of equal ones those that are no members of
    /// a set, then by length and name.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn search(&self, words: &[String], limit: usize) -> Result<(Vec<SearchHit>, bool), NamesError> {
        let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).filter(|word| !word.is_empty()).collect();
        let phrase = words.join("-");
        let mut ranked: Vec<(Rank, usize, usize, String)> = Vec::new();
        self.rows(&mut |attribute, value| {
            let mut fields = Fields(value);
            let (name, pname) = (fields.bytes()?, fields.bytes()?);
            let (_version, _system, _output, description) =
                (fields.bytes()?, fields.bytes()?, fields.bytes()?, fields.bytes()?);
            let lower = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_lowercase();
            let (key, name, pname) = (attribute.to_lowercase(), lower(name), lower(pname));
            let last = key.rsplit('.').next().unwrap_or_default().trim_matches('"');
            let has = |text: &str| words.iter().all(|word| text.contains(word.as_str()));
            let begins = |text: &str| {
                words.iter().all(|word| text.split(['.', '-', '_', '"']).any(|part| part.starts_with(word.as_str())))
            };
            let rank = if [key.as_str(), last, &pname, &name].contains(&phrase.as_str()) {
                Rank::Exact
            } else if [key.as_str(), last, &pname].iter().any(|text| text.starts_with(&phrase)) {
                Rank::Prefix
            } else if begins(&key) || begins(&pname) {
                Rank::Word
            } else if has(&key) || has(&name) {
                Rank::Name
            } else if has(&format!("{key} {name} {}", lower(description))) {
                Rank::Description
            } else {
                return Ok(());
            };
            ranked.push((rank, attribute.matches('.').count(), attribute.len(), attribute.to_owned()));
            Ok(())
        })?;
        ranked.sort_unstable();
        let more = ranked.len() > limit;
        ranked.truncate(limit);
        let mut found = Vec::with_capacity(ranked.len());
        for (rank, _, _, attribute) in ranked {
            found.extend(self.package(&attribute)?.map(|package| SearchHit { rank, package }));
        }
        Ok((found, more))
    }

    /// Attributes whose names are near this one, the nearest first.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn nearest(&self, attribute: &str, limit: usize) -> Result<Vec<String>, NamesError> {
        let wanted = attribute.to_lowercase();
        let far = match wanted.len() {
            0..=2 => 1,
            3..=6 => 2,
            _ => 3,
        };
        let mut near: Vec<(usize, usize, String)> = Vec::new();
        self.rows(&mut |attribute, _| {
            let key = attribute.to_lowercase();
            let mut texts = vec![key.as_str()];
            // A member of a set that was named without it.
            if !wanted.contains('.') {
                texts.extend(key.rsplit('.').next().filter(|last| *last != key));
            }
            let distance = |text: &&str| match text.len().abs_diff(wanted.len()) <= far {
                true => Some(strsim::osa_distance(text, &wanted)),
                false => None,
            };
            let best = texts.iter().filter_map(distance).min().filter(|distance| *distance <= far);
            near.extend(best.map(|best| (best, attribute.matches('.').count(), attribute.to_owned())));
            Ok(())
        })?;
        near.sort_unstable();
        near.truncate(limit);
        Ok(near.into_iter().map(|(_, _, attribute)| attribute).collect())
    }
}
