use std::sync::Arc;

/// The path parameters of a route, percent-decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathParams {
    pairs: Vec<(Arc<str>, String)>,
}

impl PathParams {
    /// The value of `@name`; the first if there are several.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(have, _)| *have == name).map(|(_, value)| value)
    }

    /// Names and values, in the order of the path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (&**name, value.as_str()))
    }

    pub(crate) fn push(&mut self, name: Arc<str>, value: String) {
        self.pairs.push((name, value));
    }
}
