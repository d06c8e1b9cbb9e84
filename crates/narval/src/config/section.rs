//! Reads the tables of a TOML document key by key, with options of the command line over it. The keys that are read are the allowed ones: all
//! others are errors.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Debug};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, ConfigErrors, Origin};
use super::foreign;
use super::key::{At, Key, KeyInfo};
use super::kind::{Given, Raw};

/// The maximum length of a value in a message, in characters.
const VALUE_SHOWN_MAX: usize = 60;

/// The options that were given, by their names, and their values.
pub(super) type OptionValues = Vec<(&'static str, Vec<OsString>)>;

/// What was read, and of which keys.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The settings.
    pub settings: T,
    /// The keys that have a value, in the order of the tables.
    pub keys: Vec<ReadKey>,
}

/// A key that has a value: its own, or the default.
#[derive(Clone)]
pub struct ReadKey {
    /// Its name with those of its tables.
    pub path: String,
    /// The value as it was given, if it is set.
    pub shown: Option<String>,
    /// The value as a text that differs if the value does.
    value: String,
    needs_restart: bool,
}

/// Without its value, which may have a password in it.
impl Debug for ReadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadKey").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The keys that have another value than at the start, and will only take effect after a restart.
pub fn needs_restart(start: &[ReadKey], now: &[ReadKey]) -> Vec<String> {
    let is_in =
        |all: &[ReadKey], key: &ReadKey| all.iter().any(|one| (&one.path, &one.value) == (&key.path, &key.value));
    let changed = now.iter().filter(|key| !is_in(start, key)).chain(start.iter().filter(|key| !is_in(now, key)));
    let names: BTreeSet<_> = changed.filter(|key| key.needs_restart).map(|key| key.path.clone()).collect();
    names.into_iter().collect()
}

/// A file that is being read. Errors are collected, so that all of them are reported.
pub(super) struct Document<'a> {
    file: Arc<str>,
    text: &'a str,
    /// The base of relative paths.
    folder: PathBuf,
    options: &'a OptionValues,
    errors: RefCell<Vec<ConfigError>>,
    keys: RefCell<Vec<ReadKey>>,
    /// All keys, if that is what is asked for.
    described: Option<RefCell<Vec<KeyInfo>>>,
}

/// All keys of a table, and of the tables in it.
pub(super) fn describe<T: Table>() -> Vec<KeyInfo> {
    static NONE: OptionValues = Vec::new();
    let mut document = Document::new("", "", &NONE);
    document.described = Some(RefCell::default());
    T::read(&document.top(None));
    document.described.map(RefCell::into_inner).unwrap_or_default()
}

impl<'a> Document<'a> {
    pub(super) fn new(file: &str, text: &'a str, options: &'a OptionValues) -> Self {
        let folder = Path::new(file).parent().map(Path::to_path_buf).unwrap_or_default();
        let (errors, keys) = (RefCell::default(), RefCell::default());
        Self { file: file.into(), text, folder, options, errors, keys, described: None }
    }

    fn top<'b>(&'b self, table: Option<&'b DeTable<'b>>) -> Section<'b> {
        let (path, heading, known) = (String::new(), Cell::default(), RefCell::default());
        let (item, is_one_of_many, takes_options) = (None, false, true);
        let origin = Origin::Default;
        Section { document: self, path, table, origin, item, is_one_of_many, takes_options, heading, known }
    }

    /// Parses the text, and reads its top-level table. Fails if there are any errors.
    pub(super) fn read<T: Table>(self) -> Result<Loaded<T>, ConfigErrors> {
        let (table, wrong) = DeTable::parse_recoverable(self.text);
        for error in &wrong {
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            self.error(self.origin(error.span().map_or(0, |span| span.start)), message);
        }
        // A partially parsed table would cause errors twice.
        let settings = wrong.is_empty().then(|| self.top(Some(table.get_ref())).read()).flatten();
        let mut errors = self.errors.take();
        errors.sort_by_key(|error| error.origin.line());
        match settings {
            Some(settings) if errors.is_empty() => Ok(Loaded { settings, keys: self.keys.take() }),
            _ => Err(ConfigErrors(errors)),
        }
    }

    fn error(&self, origin: Origin, message: String) {
        self.errors.borrow_mut().push(ConfigError { origin, message });
    }

    /// The text of a value in the file, for a message.
    fn shown(&self, span: Range<usize>) -> String {
        shortened(self.text.get(span).unwrap_or_default())
    }

    fn origin(&self, at: usize) -> Origin {
        Origin::Line(self.file.clone(), 1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count())
    }

    /// The values of a key's option.
    fn option(&self, key: &KeyInfo) -> Option<&'a (&'static str, Vec<OsString>)> {
        let name = key.option?.name;
        self.options.iter().find(|(given, _)| *given == name)
    }
}

/// A text, shortened to one line for a message.
fn shortened(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(VALUE_SHOWN_MAX).collect();
    if text.chars().nth(VALUE_SHOWN_MAX).is_some() {
        line.push('…');
    }
    line
}

/// A value for a message.
fn shown(text: &str, key: &KeyInfo) -> String {
    if key.is_secret { "…".to_owned() } else { shortened(text) }
}

/// A table of the file, with what options say instead. `table!` defines them.
pub trait Table: Sized {
    /// Reads it; `None` if a key that it needs is missing or wrong, which is reported.
    fn read(section: &Section<'_>) -> Option<Self>;
}

/// A table of the document, with options over it; empty if there are none, and the document does not have it.
pub struct Section<'a> {
    document: &'a Document<'a>,
    /// Ends with a dot, unless it is the top-level table: `limits.`.
    path: String,
    table: Option<&'a DeTable<'a>>,
    origin: Origin,
    /// Which of the tables that options make.
    item: Option<usize>,
    is_one_of_many: bool,
    takes_options: bool,
    /// The heading of its options.
    heading: Cell<Option<&'static str>>,
    /// The keys that were read.
    known: RefCell<Vec<String>>,
}

impl<'a> Section<'a> {
    /// Where it stands.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Reads keys whose options have this heading.
    pub(super) fn under<R>(&self, heading: Option<&'static str>, read: impl FnOnce(&Self) -> R) -> R {
        let before = self.heading.replace(heading.or(self.heading.get()));
        let read = read(self);
        self.heading.set(before);
        read
    }

    /// Adds a key to those that are described.
    pub(super) fn describe(&self, name: &str, info: impl FnOnce() -> KeyInfo) {
        let Some(all) = &self.document.described else { return };
        let mut info = KeyInfo { path: format!("{}{name}", self.path), heading: self.heading.get(), ..info() };
        info.repeats |= self.is_one_of_many;
        info.option = info.option.filter(|_| self.takes_options);
        all.borrow_mut().push(info);
    }

    /// The values of a key: those of its option, or else those of the file, or else its default. `None`: it has none.
    pub(super) fn values<T: Debug>(&self, name: &str, key: &Key<T>) -> Option<Vec<At<T>>> {
        let of_file = self.find(name).map(|value| {
            let one = |value: &Spanned<DeValue<'_>>| self.of_file(name, value, key);
            let values = match value.get_ref() {
                DeValue::Array(items) if key.info.is_list => items.iter().filter_map(one).collect(),
                _ => one(value).into_iter().collect::<Vec<_>>(),
            };
            (values, self.document.text.get(value.span()).unwrap_or_default().trim_matches(&['"', '\''][..]).to_owned())
        });
        let of_option = self.document.option(&key.info).filter(|_| self.takes_options).and_then(|(option, texts)| {
            let texts = match self.item {
                Some(item) if !key.info.is_list => texts.get(item..=item)?,
                _ => texts,
            };
            let one = |text: &OsString| {
                self.value(name, Given::Text(text), Origin::Option(option), &text.to_string_lossy(), key)
            };
            let shown = texts.iter().map(|text| text.to_string_lossy()).collect::<Vec<_>>().join(", ");
            Some((texts.iter().filter_map(one).collect(), shown))
        });
        let (values, text) = match of_option.or(of_file) {
            Some((values, text)) => (values, Some(text)),
            None => {
                let default = key.info.default?;
                let value = self.value(name, Given::Text(OsStr::new(default)), Origin::Default, default, key);
                (value.into_iter().collect(), None)
            }
        };
        // Secrets have no `Debug` text.
        let value = text.clone().filter(|_| key.info.is_secret);
        let value = value.unwrap_or_else(|| format!("{:?}", values.iter().map(|at| &at.value).collect::<Vec<_>>()));
        let shown = text.map(|text| shown(&text, &key.info));
        let (path, needs_restart) = (format!("{}{name}", self.path), key.info.needs_restart);
        self.document.keys.borrow_mut().push(ReadKey { path, shown, value, needs_restart });
        Some(values)
    }

    fn of_file<T>(&self, name: &str, value: &Spanned<DeValue<'_>>, key: &Key<T>) -> Option<At<T>> {
        let (text, origin) = (self.document.text.get(value.span()), self.document.origin(value.span().start));
        self.value(name, Given::Toml(value.get_ref()), origin, text.unwrap_or_default(), key)
    }

    fn value<T>(&self, name: &str, value: Given<'_>, origin: Origin, text: &str, key: &Key<T>) -> Option<At<T>> {
        let base = if matches!(value, Given::Toml(_)) { self.document.folder.as_path() } else { Path::new("") };
        match key.kind.read(&Raw { value, base }) {
            Ok(value) => Some(At { value, origin }),
            Err(reason) => {
                self.wrong(name, origin, &shown(text, &key.info), &reason);
                None
            }
        }
    }

    /// Reports that a key is missing that the table must have.
    pub(super) fn missing(&self, name: &str, key: &KeyInfo) {
        let message = match (self.item, key.option) {
            (Some(_), Some(option)) => format!("give one --{} for each", option.name),
            (None, _) if self.table.is_some() => {
                format!("{}: key '{name}' is missing", self.path.trim_end_matches('.'))
            }
            _ => return,
        };
        self.document.error(self.origin.clone(), message);
    }

    /// Reads the table with this name; an empty one if the document does not have it.
    pub(super) fn table<T: Table>(&self, name: &str) -> Option<T> {
        let table = self.find(name).and_then(|value| self.as_table(name, value));
        self.child(name, table).read()
    }

    /// Reads each of the tables with this name, `[[name]]`, or those that options make instead.
    pub(super) fn tables<T: Table>(&self, name: &str) -> Vec<T> {
        let one = |table| Section { is_one_of_many: true, ..self.child(name, table) };
        let takes_options = self.takes_options && !self.is_one_of_many;
        if self.document.described.is_some() {
            Section { takes_options, ..one(None) }.read::<T>();
        }
        let tables = match self.find(name).map(|value| (value.get_ref(), value)) {
            None => Vec::new(),
            Some((DeValue::Array(items), _)) => items.iter().filter_map(|item| self.as_table(name, item)).collect(),
            Some((_, value)) => {
                let reason = format!("give tables, each below a line [[{}{name}]]", self.path);
                self.wrong_value(name, value, &reason);
                Vec::new()
            }
        };
        let of_file = |table| Section { takes_options: false, ..one(Some(table)) }.read();
        let of_file = tables.into_iter().filter_map(of_file).collect();
        if !takes_options || self.document.options.is_empty() {
            return of_file;
        }
        // The first value of each option makes the first table, and so on; options with lists are for all.
        let keys = describe::<T>();
        let own = keys.iter().filter(|key| !key.is_list && !key.path.contains('.'));
        let options = own.filter_map(|key| self.document.option(key));
        let Some((option, values)) = options.max_by_key(|(_, values)| values.len()) else { return of_file };
        let of_option = |item| Section { item: Some(item), origin: Origin::Option(option), ..one(None) }.read();
        (0..values.len()).filter_map(of_option).collect()
    }

    /// The values of a table with any keys: each an array, or a single value.
    pub(super) fn any_keys<T>(&self, name: &str, key: &Key<T>) -> Vec<(String, Vec<T>)> {
        let Some((table, _)) = self.find(name).and_then(|value| self.as_table(name, value)) else { return Vec::new() };
        let values = |(own, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let own = own.get_ref().to_string();
            let one = |value: &Spanned<DeValue<'_>>| Some(self.of_file(&format!("{name}.{own}"), value, key)?.value);
            let values = match value.get_ref() {
                DeValue::Array(array) => array.iter().filter_map(one).collect(),
                _ => one(value).into_iter().collect(),
            };
            (own, values)
        };
        table.iter().map(values).collect()
    }

    /// The table with this name, and where it begins.
    fn child<'b>(&'b self, name: &str, table: Option<(&'b DeTable<'b>, usize)>) -> Section<'b> {
        let origin = table.map_or(Origin::Default, |(_, at)| self.document.origin(at));
        let (path, heading) = (format!("{}{name}.", self.path), self.heading.clone());
        let (table, known) = (table.map(|(table, _)| table), RefCell::default());
        Section { path, table, origin, heading, known, ..*self }
    }

    fn read<T: Table>(self) -> Option<T> {
        let read = T::read(&self);
        self.finish();
        read
    }

    fn find(&self, name: &str) -> Option<&Spanned<DeValue<'a>>> {
        self.known.borrow_mut().push(name.to_owned());
        self.table?.get(name)
    }

    fn as_table<'b>(&self, name: &str, value: &'b Spanned<DeValue<'b>>) -> Option<(&'b DeTable<'b>, usize)> {
        let table = value.get_ref().as_table().map(|table| (table, value.span().start));
        if table.is_none() {
            self.wrong_value(name, value, "give a table");
        }
        table
    }

    fn wrong_value(&self, name: &str, value: &Spanned<DeValue<'_>>, reason: &str) {
        self.wrong(name, self.document.origin(value.span().start), &self.document.shown(value.span()), reason);
    }

    fn wrong(&self, name: &str, origin: Origin, shown: &str, reason: &str) {
        let message = match &origin {
            Origin::Option(_) => format!("'{shown}': {reason}"),
            _ => format!("{}{name} = {shown}: {reason}", self.path),
        };
        self.document.error(origin, message);
    }

    /// Reports keys that were not read.
    fn finish(&self) {
        let known = self.known.borrow();
        if known.is_empty() {
            return;
        }
        for key in self.table.into_iter().flat_map(|table| table.keys()) {
            let name = key.get_ref().as_ref();
            if !known.iter().any(|known| known == name) {
                let foreign = self.path.is_empty().then(|| foreign::hint(name)).flatten();
                let hint = match (foreign, nearest(name, &known)) {
                    (Some(foreign), _) => foreign,
                    (None, Some(near)) => format!("did you mean '{}{near}'?", self.path),
                    (None, None) => format!("known here: {}", known.join(", ")),
                };
                let shown = self.document.shown(key.span());
                let at = self.document.origin(key.span().start);
                self.document.error(at, format!("unknown key '{}{shown}'; {hint}", self.path));
            }
        }
    }
}

/// The most similar known name.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let distance = |other: &str| strsim::damerau_levenshtein(&name.to_lowercase().replace('_', "-"), other);
    let near = known.iter().map(|other| (distance(other), other.as_str())).min()?;
    // About half of it must be the same; otherwise it is another word.
    (near.0 <= 1 + near.1.len().max(name.len()) / 4).then_some(near.1)
}
