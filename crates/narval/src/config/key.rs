//! One key of a table, written once: what it accepts, its default, its option, and when a change takes effect.

use clap::Arg;

use super::error::Origin;
use super::kind::Kind;

/// A value and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub origin: Origin,
}

/// What is known of a key, or of a table, without any file.
#[derive(Clone, Debug, Default)]
pub struct KeyInfo {
    /// Its name with those of its tables: `limits.queue`.
    pub path: String,
    /// The doc comment of its field.
    pub doc: &'static str,
    /// What it accepts, in words.
    pub accepts: String,
    /// What it is without the key, as it would be written in the file.
    pub default: Option<&'static str>,
    /// What holds without the key, in words.
    pub otherwise: Option<&'static str>,
    /// Its option on the command line.
    pub option: Option<CommandOption>,
    /// Whether a change takes effect at the next start only.
    pub needs_restart: bool,
    /// Its type in the NixOS module; a table has `table` or `tables`.
    pub nix: String,
    /// Whether its table is nothing without it.
    pub is_required: bool,
    /// Whether it has a list of values.
    pub is_list: bool,
    pub(super) is_secret: bool,
    /// Whether its option can be given several times.
    pub(super) repeats: bool,
    pub(super) heading: Option<&'static str>,
    /// The words that it accepts, each with its meaning, if it accepts no others.
    pub(super) words: Vec<(&'static str, &'static str)>,
}

/// The option of a key.
#[derive(Clone, Copy, Debug)]
pub struct CommandOption {
    /// Its name, without hyphens.
    pub name: &'static str,
    /// What stands for its value in its help; `None` if it takes none.
    pub(super) value_name: Option<&'static str>,
    /// The value that it means if it takes none.
    pub(super) means: &'static str,
    /// What else it has: a short name, a variable.
    pub(super) more: fn(Arg) -> Arg,
}

/// A key of which the value is a `T`.
pub(crate) struct Key<T> {
    pub(super) kind: Kind<T>,
    pub(super) info: KeyInfo,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($given:ident: $type:ty),*) => |$info:ident| $set:expr;)*) => {
        impl<T> Key<T> {
            $($(#[$doc])* pub(crate) fn $name(mut self, $($given: $type),*) -> Self {
                let $info = &mut self.info;
                $set;
                self
            })*
        }
    };
}

setters! {
    /// What it is without the key, as it would be written in the file.
    or(text: &'static str) => |info| info.default = Some(text);
    /// What holds without the key, in words.
    or_else(words: &'static str) => |info| info.otherwise = Some(words);
    /// The name of its option, and what stands for the value in its help.
    option(name: &'static str, value: &'static str) => |info|
        info.option = Some(CommandOption { name, value_name: Some(value), means: "", more: |arg| arg });
    /// The name of an option that stands for a value, with its help.
    flag(name: &'static str, means: &'static str, more: fn(Arg) -> Arg) => |info|
        info.option = Some(CommandOption { name, value_name: None, means, more });
    /// What else its option has.
    with(more: fn(Arg) -> Arg) => |info| info.option.iter_mut().for_each(|option| option.more = more);
    /// A change takes effect at the next start only.
    restart() => |info| info.needs_restart = true;
    /// Messages do not show the value.
    secret() => |info| info.is_secret = true;
    /// Its type in the NixOS module, if that of the kind is not strict enough.
    nix(expression: &str) => |info| info.nix = expression.to_owned();
}

impl KeyInfo {
    /// The paragraphs of its text.
    pub fn paragraphs(&self) -> Vec<String> {
        let lines: Vec<_> = self.doc.lines().map(str::trim).collect();
        lines.split(|line| line.is_empty()).filter(|lines| !lines.is_empty()).map(|lines| lines.join(" ")).collect()
    }

    /// Whether it is a table, or several.
    pub fn is_table(&self) -> bool {
        self.nix.starts_with("table")
    }
}
