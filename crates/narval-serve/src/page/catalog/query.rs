//! What is searched for.

/// The maximum length of a query in bytes, and of its words.
const QUERY_LEN_MAX: usize = 256;
const WORDS_MAX: usize = 16;

/// A selection of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::page) enum Filter {
    /// Those that are pinned.
    Pinned,
    /// Those that lack a signature of this server.
    Unsigned,
    /// All, the largest first.
    Largest,
    /// Those that nobody has used for 30 days, the least recently used first.
    Unused,
}

impl Filter {
    /// All of them, as they are in a query, and in words.
    pub(in crate::page) const ALL: [(Self, &str, &str); 4] = [
        (Self::Pinned, "pinned", "pinned"),
        (Self::Unsigned, "unsigned", "unsigned"),
        (Self::Largest, "largest", "largest"),
        (Self::Unused, "unused", "not used for 30 days"),
    ];
}

/// A search query.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::page) struct SearchQuery {
    /// In lower case; all of them must be in the name.
    pub(super) words: Vec<String>,
    /// Only paths of this package: names that are equal up to the version.
    pub(super) package: Option<String>,
    /// Which of them.
    pub(in crate::page) filter: Option<Filter>,
    /// How many results to skip.
    pub(in crate::page) from: usize,
}

impl SearchQuery {
    /// The package whose versions are asked for.
    pub(in crate::page) fn package(&self) -> Option<&str> {
        self.package.as_deref()
    }

    /// A search for these words, which are in lower case.
    pub(in crate::page) fn words(text: &str) -> Self {
        Self { words: text.split_whitespace().map(str::to_owned).collect(), ..Self::default() }
    }

    /// Parses a query such as `q=hello%20world&from=50`. Unknown parameters are ignored.
    pub(in crate::page) fn parse(raw: Option<&str>) -> Self {
        let mut query = Self::default();
        for (key, value) in raw.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "q" => {
                    let value = value.replace('+', " ");
                    let text = percent_encoding::percent_decode_str(&value).decode_utf8_lossy().to_lowercase();
                    let mut text = text.as_str();
                    while text.len() > QUERY_LEN_MAX {
                        text = text
                            .get(..text.len() - 1)
                            .unwrap_or_else(|| text.trim_end_matches(|c: char| !c.is_ascii()));
                    }
                    // A whole store path may be pasted.
                    let text = text.rsplit('/').next().unwrap_or_default();
                    query.words = text.split_whitespace().take(WORDS_MAX).map(str::to_owned).collect();
                }
                "package" => {
                    let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
                    let package = value.get(..value.len().min(QUERY_LEN_MAX)).unwrap_or_default();
                    query.words = vec![package.to_lowercase()];
                    query.package = Some(package.to_owned());
                }
                "filter" => {
                    query.filter = Filter::ALL.iter().find(|(_, name, _)| *name == value).map(|(filter, ..)| *filter);
                }
                "from" => query.from = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        query
    }
}

/// A parameter of a query as it was typed.
pub(in crate::page) fn text_of(query: Option<&str>, key: &str) -> String {
    let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let typed = pairs.find(|(name, _)| *name == key).map_or("", |(_, value)| value).replace('+', " ");
    percent_encoding::percent_decode_str(&typed).decode_utf8_lossy().chars().take(QUERY_LEN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_bounded() {
        let long = "ä".repeat(10_000);
        assert!(SearchQuery::parse(Some(&format!("q={long}"))).words.iter().all(|word| word.len() <= QUERY_LEN_MAX));
        assert_eq!(SearchQuery::parse(Some(&format!("q={}", "a+".repeat(100)))).words.len(), WORDS_MAX);
        assert_eq!(text_of(Some("from=1&q=a+b%26"), "q"), "a b&");
    }
}
