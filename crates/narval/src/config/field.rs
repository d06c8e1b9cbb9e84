//! Fields of a table: what becomes of a key's value in the struct that is read.

use std::fmt::Debug;

use super::key::{At, Key, KeyInfo};
use super::section::{Section, Table};

/// Defines a table: a struct with one field for each key, which are named alike (`max_size` is `max-size`). The doc comment of a field is
/// also the text of its option in `--help`, of the reference page and of the NixOS module.
macro_rules! table {
    ($(#[doc = $about:literal])* $name:ident { $($(#[doc = $doc:literal])* $field:ident: $type:ty = $key:expr,)* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(rustdoc::broken_intra_doc_links, reason = "what users read has brackets, like `[IPV6]:PORT`")]
        pub struct $name {
            /// Where the table stands.
            pub origin: $crate::config::Origin,
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl $crate::config::Table for $name {
            fn read(section: &$crate::config::Section<'_>) -> Option<Self> {
                // All are read before any is missed: every error is reported.
                $(let $field: Option<$type> = $key.read(section, stringify!($field), concat!($($doc, "\n"),*));)*
                Some(Self { origin: section.origin().clone(), $($field: $field?,)* })
            }
        }
    };
}
pub(crate) use table;

impl<T: Debug> Key<T> {
    /// Reads the key of the field with this name.
    pub(crate) fn read<F: Field<T>>(mut self, section: &Section<'_>, field: &str, doc: &'static str) -> Option<F> {
        self.info.is_list = F::IS_LIST;
        self.info.is_required = F::IS_REQUIRED && self.info.default.is_none();
        let (name, info) = (field.replace('_', "-"), &self.info);
        section.describe(&name, || {
            let list = if F::IS_LIST { ", or a list" } else { "" };
            KeyInfo { doc, accepts: format!("{}{list}", self.kind.allowed()), repeats: F::IS_LIST, ..info.clone() }
        });
        let found = section.values(&name, &self);
        if found.is_none() && self.info.is_required {
            section.missing(&name, &self.info);
        }
        F::of(found)
    }
}

/// What a field makes of the values of its key: it must have one, may have one, or has several. [`At`] keeps their places.
pub(crate) trait Field<T>: Sized {
    const IS_LIST: bool;
    const IS_REQUIRED: bool;
    /// The field; `found` is `None` if the key is not set, and has no default.
    fn of(found: Option<Vec<At<T>>>) -> Option<Self>;
}

macro_rules! fields {
    ($($field:ty: $is_list:literal, $is_required:literal, |$found:ident| $of:expr;)*) => {$(
        impl<T> Field<T> for $field {
            const IS_LIST: bool = $is_list;
            const IS_REQUIRED: bool = $is_required;
            fn of($found: Option<Vec<At<T>>>) -> Option<Self> {
                $of
            }
        }
    )*};
}

fn values<T>(found: Vec<At<T>>) -> Vec<T> {
    found.into_iter().map(|at| at.value).collect()
}

fields! {
    T: false, true, |found| Some(found?.pop()?.value);
    At<T>: false, true, |found| found?.pop();
    Option<T>: false, false, |found| Some(found.and_then(|found| values(found).pop()));
    Option<At<T>>: false, false, |found| Some(found.and_then(|mut found| found.pop()));
    Vec<T>: true, false, |found| Some(found.map(values).unwrap_or_default());
    Vec<At<T>>: true, false, |found| Some(found.unwrap_or_default());
    Option<Vec<T>>: true, false, |found| Some(found.map(values));
    Option<Vec<At<T>>>: true, false, |found| Some(found);
}

/// A field that has keys of its own; with the heading of their options.
pub(crate) enum Nested {
    /// The keys of another struct in the same table.
    Here(Option<&'static str>),
    /// `[key]`, or `[[key]]` if the field is a list.
    Table(Option<&'static str>),
}

impl Nested {
    pub(crate) fn read<F: Tables>(self, section: &Section<'_>, field: &str, doc: &'static str) -> Option<F> {
        match self {
            Self::Here(heading) => section.under(heading, |section| F::read(section, None)),
            Self::Table(heading) => {
                section.under(heading, |section| F::read(section, Some((&field.replace('_', "-"), doc))))
            }
        }
    }
}

/// What a field with keys of its own is: one table, or several.
pub(crate) trait Tables: Sized {
    /// Reads the table with this name, or else this part of the section.
    fn read(section: &Section<'_>, named: Option<(&str, &'static str)>) -> Option<Self>;
}

impl<T: Table> Tables for T {
    fn read(section: &Section<'_>, named: Option<(&str, &'static str)>) -> Option<Self> {
        let Some((name, doc)) = named else { return <T as Table>::read(section) };
        section.describe(name, || KeyInfo { doc, nix: "table".to_owned(), ..KeyInfo::default() });
        section.table(name)
    }
}

impl<T: Table> Tables for Vec<T> {
    fn read(section: &Section<'_>, named: Option<(&str, &'static str)>) -> Option<Self> {
        let (name, doc) = named?;
        section.describe(name, || KeyInfo { doc, nix: "tables".to_owned(), ..KeyInfo::default() });
        Some(section.tables(name))
    }
}

/// A field that is a table with any keys, each with one or more values.
pub(crate) struct AnyKeys<T>(pub(crate) Key<T>);

impl<T: Debug> AnyKeys<T> {
    pub(crate) fn read(self, section: &Section<'_>, field: &str, doc: &'static str) -> Option<Vec<(String, Vec<T>)>> {
        section.describe(field, || {
            let accepts = format!("a table; each value: {}, or a list", self.0.kind.allowed());
            let nix = format!("(types.attrsOf (oneOrMore {}))", self.0.info.nix);
            KeyInfo { doc, accepts, nix, ..KeyInfo::default() }
        });
        Some(section.any_keys(field, &self.0))
    }
}
