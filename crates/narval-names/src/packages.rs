//! `packages.json`, streamed: the entry of one attribute is held at a time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufReader, Read};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::bounded::Bounded;
use crate::package::line;
use crate::{ATTRIBUTE_LEN_MAX, Builder, ENTRY_LEN_MAX, NamesError, OUTPUTS_MAX, PACKAGES_LEN_MAX, Package, Problem};

/// How much is read at once. The limit of an entry is checked per buffer.
const BUFFER_LEN: usize = 64 * 1024;
/// The most licences, and known vulnerabilities, of a package.
const LIST_MAX: usize = 32;

/// Reads a channel's `packages.json`, decompressed: of the version 2, as a number or as a text, with the attributes before or after it.
///
/// # Errors
/// If it cannot be read, is not what it should be, or exceeds a limit.
pub fn read_packages(source: impl Read, builder: &mut Builder) -> Result<(), NamesError> {
    let what = "packages.json";
    let (is_there, read) =
        read_json(source, what, |deserializer, entry| Top { builder, entry }.deserialize(deserializer));
    let source = match read {
        Ok(()) if is_there => return Ok(()),
        Ok(()) => serde_json::Error::custom("it has no packages"),
        Err(source) => source,
    };
    Err(NamesError::Json { what, source })
}

/// Reads one JSON value with limits. Returns also what the value returned, or its default.
pub(crate) fn read_json<T: Default>(
    source: impl Read,
    what: &'static str,
    read: impl FnOnce(
        &mut serde_json::Deserializer<serde_json::de::IoRead<BufReader<Bounded<'_, &mut dyn Read>>>>,
        &Cell<u64>,
    ) -> Result<T, serde_json::Error>,
) -> (T, Result<(), serde_json::Error>) {
    let mut source = source;
    let entry = Cell::new(entry_budget());
    let limit = PACKAGES_LEN_MAX;
    let bounded = Bounded { reader: &mut source as &mut dyn Read, what, left: limit, limit, entry: &entry };
    let mut deserializer = serde_json::Deserializer::from_reader(BufReader::with_capacity(BUFFER_LEN, bounded));
    match read(&mut deserializer, &entry) {
        Ok(value) => (value, deserializer.end()),
        Err(error) => (T::default(), Err(error)),
    }
}

/// What may be read before an entry ends: a buffer may have the beginning of the next one.
pub(crate) const fn entry_budget() -> u64 {
    ENTRY_LEN_MAX + 2 * BUFFER_LEN as u64
}

/// The whole file. Its value is whether it has packages.
struct Top<'a> {
    builder: &'a mut Builder,
    entry: &'a Cell<u64>,
}

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with 'packages'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut is_there = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "packages" => {
                    is_there = true;
                    let take = |attribute: &str, entry: Entry| self.builder.add_package(&entry.package(attribute)?);
                    map.next_value_seed(Entries { take, entry: self.entry })?;
                }
                "version" => match map.next_value::<Version>()? {
                    Version::Number(2) => {}
                    Version::Text(text) if text == "2" => {}
                    _ => return Err(A::Error::custom("its version is not 2, the one that is known")),
                },
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(is_there)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Version {
    Number(u64),
    Text(String),
}

/// An object of attributes and their entries, passed on one by one.
pub(crate) struct Entries<'a, F> {
    pub(crate) take: F,
    pub(crate) entry: &'a Cell<u64>,
}

impl<'de, F: FnMut(&str, Entry) -> Result<(), NamesError>> DeserializeSeed<'de> for Entries<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(&str, Entry) -> Result<(), NamesError>> Visitor<'de> for Entries<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of attributes")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(attribute) = map.next_key::<String>()? {
            let entry = map.next_value::<Entry>()?;
            (self.take)(&attribute, entry).map_err(A::Error::custom)?;
            self.entry.set(entry_budget());
        }
        Ok(())
    }
}

/// One attribute, as `packages.json` and `nix-env --json` write it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Entry {
    pub(crate) name: Option<String>,
    pname: Option<String>,
    version: Option<String>,
    pub(crate) system: Option<String>,
    output_name: Option<String>,
    pub(crate) outputs: Outputs,
    pub(crate) meta: Option<Meta>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Meta {
    description: Option<Text>,
    homepage: Option<Text>,
    license: Option<Licences>,
    main_program: Option<Text>,
    position: Option<Text>,
    outputs_to_install: Option<Texts>,
    broken: Option<Flag>,
    insecure: Option<Flag>,
    unfree: Option<Flag>,
    available: Option<Flag>,
    unsupported: Option<Flag>,
    known_vulnerabilities: Option<Texts>,
}

/// The outputs in order, with their paths if the file has them.
#[derive(Debug, Default)]
pub(crate) struct Outputs(pub(crate) Vec<(String, Option<String>)>);

impl<'de> Deserialize<'de> for Outputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Outputs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outputs: a list of names, or an object of them")
            }

            fn visit_unit<E>(self) -> Result<Outputs, E> {
                Ok(Outputs::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Outputs, A::Error> {
                let mut outputs = Vec::new();
                while let Some(name) = list.next_element::<String>()? {
                    outputs.push((name, None));
                    check_count::<A::Error>(outputs.len())?;
                }
                Ok(Outputs(outputs))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Outputs, A::Error> {
                let mut outputs = Vec::new();
                while let Some((name, path)) = map.next_entry::<String, Option<String>>()? {
                    outputs.push((name, path));
                    check_count::<A::Error>(outputs.len())?;
                }
                Ok(Outputs(outputs))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

fn check_count<E: serde::de::Error>(count: usize) -> Result<(), E> {
    if count <= OUTPUTS_MAX { Ok(()) } else { Err(E::custom(format!("a package has more than {OUTPUTS_MAX} outputs"))) }
}

/// What should be a text, and is a list or something else in some packages: the first text of it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Text {
    One(String),
    Several(Vec<String>),
    Other(IgnoredAny),
}

impl Text {
    fn first(self) -> String {
        match self {
            Self::One(text) => line(&text),
            Self::Several(texts) => texts.first().map(|text| line(text)).unwrap_or_default(),
            Self::Other(_) => String::new(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Texts {
    Several(Vec<String>),
    Other(IgnoredAny),
}

impl Texts {
    fn all(self) -> Vec<String> {
        match self {
            Self::Several(texts) => texts.iter().take(LIST_MAX).map(|text| line(text)).collect(),
            Self::Other(_) => Vec::new(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Flag {
    Is(bool),
    Other(IgnoredAny),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Licences {
    Several(Vec<Licence>),
    One(Licence),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Licence {
    Name(String),
    Object(BTreeMap<String, Text>),
    Other(IgnoredAny),
}

impl Licence {
    fn name(self) -> Option<String> {
        match self {
            Self::Name(name) => Some(line(&name)),
            Self::Object(mut fields) => {
                ["spdxId", "shortName", "fullName"].iter().find_map(|field| fields.remove(*field)).map(Text::first)
            }
            Self::Other(_) => None,
        }
    }
}

impl Entry {
    /// As a package of an index.
    pub(crate) fn package(self, attribute: &str) -> Result<Package, NamesError> {
        check_attribute(attribute)?;
        let invalid = |reason: String| NamesError::Invalid { what: format!("the attribute {attribute}"), reason };
        let name = self.name.unwrap_or_default();
        let texts =
            [Some(&name), self.pname.as_ref(), self.version.as_ref(), self.system.as_ref(), self.output_name.as_ref()];
        let outputs = self.outputs.0.into_iter().map(|(output, _)| output).collect::<Vec<_>>();
        for text in texts.into_iter().flatten().chain(&outputs) {
            if text.len() > ATTRIBUTE_LEN_MAX || text.contains('/') || text.chars().any(char::is_control) {
                return Err(invalid(
                    "its name, version or outputs have a '/', a control character, or are too long".to_owned(),
                ));
            }
        }
        if name.is_empty() {
            return Err(invalid("it has no name".to_owned()));
        }
        let meta = self.meta.unwrap_or_default();
        let is = |flag: &Option<Flag>| matches!(flag, Some(Flag::Is(true)));
        let vulnerabilities = meta.known_vulnerabilities.map(Texts::all).unwrap_or_default();
        let is_unsupported = is(&meta.unsupported) || matches!(meta.available, Some(Flag::Is(false)));
        let (broken, insecure, unfree) = (is(&meta.broken), is(&meta.insecure), is(&meta.unfree));
        // `available` is false for all of these, too.
        let unsupported = is(&meta.unsupported) || (is_unsupported && !broken && !insecure && !unfree);
        let found = [
            (broken, Problem::Broken),
            (insecure || !vulnerabilities.is_empty(), Problem::Insecure),
            (unfree, Problem::Unfree),
            (unsupported, Problem::Unsupported),
        ];
        let output = [self.output_name, outputs.first().cloned()].into_iter().flatten().find(|name| !name.is_empty());
        let output = output.unwrap_or_else(|| "out".to_owned());
        let mut package = Package {
            attribute: attribute.to_owned(),
            pname: self.pname.unwrap_or_default(),
            version: self.version.unwrap_or_default(),
            system: self.system.unwrap_or_default(),
            output,
            outputs,
            to_install: meta.outputs_to_install.map(Texts::all).unwrap_or_default(),
            description: meta.description.map(Text::first).unwrap_or_default(),
            homepage: meta.homepage.map(Text::first).unwrap_or_default(),
            licence: licences(meta.license),
            program: meta.main_program.map(Text::first).unwrap_or_default(),
            position: meta.position.map(Text::first).unwrap_or_default(),
            problems: found.into_iter().filter(|(is, _)| *is).map(|(_, problem)| problem).collect(),
            vulnerabilities,
            name,
        };
        // The default output first; the newer writer has lost the order of the others.
        package.outputs.sort_by_key(|output| *output != package.output);
        if !package.outputs.contains(&package.output) {
            package.outputs.insert(0, package.output.clone());
        }
        package.to_install.retain(|output| package.outputs.contains(output));
        Ok(package)
    }
}

fn licences(licences: Option<Licences>) -> String {
    let all = match licences {
        None => Vec::new(),
        Some(Licences::One(one)) => vec![one],
        Some(Licences::Several(several)) => several,
    };
    line(&all.into_iter().take(LIST_MAX).filter_map(Licence::name).collect::<Vec<_>>().join(", "))
}

/// An attribute path of a file. It may have a `/`, in quotes.
pub(crate) fn check_attribute(attribute: &str) -> Result<(), NamesError> {
    let is_quoted = attribute.contains('"');
    let is_wrong = attribute.is_empty()
        || attribute.len() > ATTRIBUTE_LEN_MAX
        || attribute.chars().any(char::is_control)
        || (attribute.contains('/') && !is_quoted);
    let shown: String = attribute.chars().filter(|c| !c.is_control()).take(80).collect();
    match is_wrong {
        false => Ok(()),
        true => Err(NamesError::Invalid {
            what: format!("the attribute '{shown}'"),
            reason: "it is empty or too long, or has a '/' or a control character".to_owned(),
        }),
    }
}
