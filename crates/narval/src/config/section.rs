//! Reads the tables of a TOML document key by key. The requested keys are the allowed ones: all others are errors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, ConfigErrors};
use super::foreign;
use super::values::Kind;

/// The maximum length of a value in a message, in characters.
const VALUE_SHOWN_MAX: usize = 60;

/// A value and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The line of the configuration file, starting at 1.
    pub line: usize,
}

/// A file that is being read. Errors are collected, so that all of them are reported.
pub(super) struct Document<'a> {
    file: &'a str,
    text: &'a str,
    /// The base of relative paths.
    folder: PathBuf,
    errors: RefCell<Vec<(usize, ConfigError)>>,
    /// The names of all requested keys (`limits.queue`), and what each accepts.
    keys: RefCell<BTreeMap<String, String>>,
}

impl<'a> Document<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        let folder = Path::new(file).parent().map(Path::to_path_buf).unwrap_or_default();
        Self { file, text, folder, errors: RefCell::default(), keys: RefCell::default() }
    }

    /// Parses the text, and passes its top-level table to `read`. Fails if there are any errors.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Section<'_>) -> T) -> Result<T, ConfigErrors> {
        let (table, wrong) = DeTable::parse_recoverable(self.text);
        for error in &wrong {
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            self.error(error.span().map_or(0, |span| span.start), message);
        }
        let top =
            Section { document: self, path: String::new(), table: Some(table.get_ref()), known: RefCell::default() };
        // A partially parsed table would cause errors twice.
        let value = wrong.is_empty().then(|| read(&top));
        top.finish();
        let mut errors = self.errors.take();
        errors.sort_by_key(|(at, _)| *at);
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            _ => Err(ConfigErrors(errors.into_iter().map(|(_, error)| error).collect())),
        }
    }

    /// The requested keys, and what each accepts.
    pub(super) fn keys(&self) -> BTreeMap<String, String> {
        self.keys.borrow().clone()
    }

    pub(super) fn error(&self, at: usize, message: String) {
        let error = ConfigError { file: self.file.to_owned(), line: Some(self.line(at)), message };
        self.errors.borrow_mut().push((at, error));
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }

    /// The text of a value in the file, shortened to one line for a message.
    fn shown(&self, span: Range<usize>) -> String {
        let text = self.text.get(span).unwrap_or_default();
        let mut line: String =
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(VALUE_SHOWN_MAX).collect();
        if text.chars().nth(VALUE_SHOWN_MAX).is_some() {
            line.push('…');
        }
        line
    }
}

/// A table of the document; empty if the document does not have it.
pub(super) struct Section<'a> {
    document: &'a Document<'a>,
    /// Ends with a dot, unless it is the top-level table: `limits.`.
    path: String,
    table: Option<&'a DeTable<'a>>,
    /// The requested keys.
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    /// The value of a key, if it is set and valid.
    pub(super) fn get<T>(&self, key: &'static str, kind: &Kind<T>) -> Option<T> {
        self.at(key, kind).map(|at| at.value)
    }

    /// The same with its line.
    pub(super) fn at<T>(&self, key: &'static str, kind: &Kind<T>) -> Option<At<T>> {
        let (value, span) = self.find(key, || kind.allowed())?;
        self.value(key, value, span, kind)
    }

    /// Whether a key is set.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// The values of a key: an array, or a single value.
    pub(super) fn list<T>(&self, key: &'static str, kind: &Kind<T>) -> Vec<At<T>> {
        match self.find(key, || format!("{}, or a list", kind.allowed())) {
            None => Vec::new(),
            Some((DeValue::Array(array), _)) => {
                array.iter().filter_map(|item| self.value(key, item.get_ref(), item.span(), kind)).collect()
            }
            Some((value, span)) => self.value(key, value, span, kind).into_iter().collect(),
        }
    }

    /// A path, relative to the folder of the file.
    pub(super) fn path(&self, key: &'static str) -> Option<At<PathBuf>> {
        self.at(key, &Kind::path()).map(|at| self.absolute(at))
    }

    /// Several paths.
    pub(super) fn paths(&self, key: &'static str) -> Vec<At<PathBuf>> {
        self.list(key, &Kind::path()).into_iter().map(|at| self.absolute(at)).collect()
    }

    /// Resolves a path relative to the folder of the file.
    pub(super) fn absolute(&self, at: At<PathBuf>) -> At<PathBuf> {
        At { value: self.document.folder.join(at.value), line: at.line }
    }

    /// Reads the table with this name; an empty one if the document does not have it.
    pub(super) fn table<T>(&self, key: &'static str, read: impl FnOnce(&Section<'_>) -> T) -> T {
        let table = match self.find_unlisted(key) {
            None => None,
            Some((DeValue::Table(table), _)) => Some(table),
            Some((_, span)) => {
                self.wrong(key, span, "give a table");
                None
            }
        };
        self.section(key, table, read)
    }

    /// Reads each of the tables with this name, `[[key]]`.
    pub(super) fn tables<T>(&self, key: &'static str, read: impl Fn(&Section<'_>, usize) -> T) -> Vec<T> {
        let mut all = Vec::new();
        match self.find_unlisted(key) {
            // Read nevertheless: the requested keys are the allowed ones.
            None => drop(self.section(key, None, |section| read(section, 0))),
            Some((DeValue::Array(array), _)) => {
                for item in array.iter() {
                    let at = item.span().start;
                    match item.get_ref() {
                        DeValue::Table(table) => {
                            all.push(self.section(key, Some(table), |section| read(section, self.document.line(at))));
                        }
                        _ => self.wrong(key, item.span(), "give a table"),
                    }
                }
            }
            Some((_, span)) => self.wrong(key, span, &format!("give tables, each below a line [[{}{key}]]", self.path)),
        }
        all
    }

    /// The values of a table with arbitrary keys: each an array, or a single value.
    pub(super) fn map<T>(&self, key: &'static str, kind: &Kind<T>) -> Vec<(String, Vec<T>)> {
        let table = match self.find(key, || format!("a table; each value: {}, or a list", kind.allowed())) {
            None => return Vec::new(),
            Some((DeValue::Table(table), _)) => table,
            Some((_, span)) => {
                self.wrong(key, span, "give a table");
                return Vec::new();
            }
        };
        let path = format!("{key}.");
        let values = |(name, value): (&toml::Spanned<std::borrow::Cow<'_, str>>, &toml::Spanned<DeValue<'_>>)| {
            let name = name.get_ref().to_string();
            let one = |value: &DeValue<'_>, span| self.value(&format!("{path}{name}"), value, span, kind);
            let values = match value.get_ref() {
                DeValue::Array(array) => array.iter().filter_map(|item| one(item.get_ref(), item.span())).collect(),
                alone => one(alone, value.span()).into_iter().collect::<Vec<_>>(),
            };
            (name, values.into_iter().map(|at| at.value).collect())
        };
        table.iter().map(values).collect()
    }

    /// A required key.
    pub(super) fn required<T>(&self, key: &'static str, line: usize, value: Option<T>) -> Option<T> {
        let given = self.table.is_none_or(|table| table.contains_key(key));
        if !given {
            let name = self.path.trim_end_matches('.');
            let at = self.document.text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
            self.document.error(at, format!("{name}: key '{key}' is missing"));
        }
        value
    }

    fn section<T>(&self, key: &str, table: Option<&DeTable<'_>>, read: impl FnOnce(&Section<'_>) -> T) -> T {
        let path = format!("{}{key}.", self.path);
        let section = Section { document: self.document, path, table, known: RefCell::default() };
        let value = read(&section);
        section.finish();
        value
    }

    fn find(&self, key: &'static str, accepts: impl FnOnce() -> String) -> Option<(&DeValue<'a>, Range<usize>)> {
        self.document.keys.borrow_mut().insert(format!("{}{key}", self.path), accepts());
        self.find_unlisted(key)
    }

    fn find_unlisted(&self, key: &'static str) -> Option<(&DeValue<'a>, Range<usize>)> {
        self.known.borrow_mut().push(key);
        self.table?.get(key).map(|value| (value.get_ref(), value.span()))
    }

    fn value<T>(&self, key: &str, value: &DeValue<'_>, span: Range<usize>, kind: &Kind<T>) -> Option<At<T>> {
        let line = self.document.line(span.start);
        match kind.read(value) {
            Ok(value) => Some(At { value, line }),
            Err(reason) => {
                self.wrong(key, span, &reason);
                None
            }
        }
    }

    fn wrong(&self, key: &str, span: Range<usize>, reason: &str) {
        let at = span.start;
        // The address of a database may have a password in it.
        let shown = if key == "database" { "…".into() } else { self.document.shown(span) };
        self.document.error(at, format!("{}{key} = {shown}: {reason}", self.path));
    }

    /// Reports keys that were not requested.
    fn finish(&self) {
        let known = self.known.borrow();
        if known.is_empty() {
            return;
        }
        for key in self.table.into_iter().flat_map(|table| table.keys()) {
            let name = key.get_ref().as_ref();
            if !known.contains(&name) {
                let foreign = self.path.is_empty().then(|| foreign::hint(name)).flatten();
                let hint = match (foreign, nearest(name, &known)) {
                    (Some(foreign), _) => foreign,
                    (None, Some(near)) => format!("did you mean '{}{near}'?", self.path),
                    (None, None) => format!("known here: {}", known.join(", ")),
                };
                let shown = self.document.shown(key.span());
                self.document.error(key.span().start, format!("unknown key '{}{shown}'; {hint}", self.path));
            }
        }
    }
}

/// The most similar known name.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |other: &str| strsim::damerau_levenshtein(&name.to_lowercase().replace('_', "-"), other);
    let near = known.iter().map(|other| (distance(other), *other)).min()?;
    // About half of it must be the same; otherwise it is another word.
    (near.0 <= 1 + near.1.len().max(name.len()) / 4).then_some(near.1)
}
