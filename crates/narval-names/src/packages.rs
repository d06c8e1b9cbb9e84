//! `packages.json`, streamed: the entry of one attribute is held at a time.

use std::cell::Cell;
use std::fmt;
use std::io::{BufReader, Read};

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::bounded::Bounded;
use crate::bounded::{ATTRIBUTE_LEN_MAX, ENTRY_LEN_MAX, OUTPUTS_MAX, PACKAGES_LEN_MAX};
use crate::builder::Builder;
use crate::error::NamesError;
use crate::package::{Package, Problem, line};

/// How much is read at once. The limit of an entry is checked per buffer.
const BUFFER_LEN: usize = 64 * 1024;
/// The most licences, and known vulnerabilities, of a package.
const LIST_MAX: usize = 32;

/// Reads a channel's `packages.json`, decompressed: of the version 2, as a number or as a text, with the attributes before or after it.
///
/// # Errors
/// If it cannot be read, is not what it should be, or exceeds a limit.
pub fn read_packages(source: impl Read, builder: &mut Builder) -> Result<(), NamesError> {
    read_packages_within(source, PACKAGES_LEN_MAX, builder)
}

fn read_packages_within(source: impl Read, limit: u64, builder: &mut Builder) -> Result<(), NamesError> {
    let what = "packages.json";
    let (exists, read) =
        read_json(source, (what, limit), |deserializer, entry| Top { builder, entry }.deserialize(deserializer));
    let source = match read {
        Ok(()) if exists => return Ok(()),
        Ok(()) => serde_json::Error::custom("it has no packages"),
        Err(source) => source,
    };
    Err(NamesError::Json { what, source })
}

/// Reads one JSON value with limits. Returns also what the value returned, or its default.
pub(crate) fn read_json<T: Default>(
    source: impl Read,
    (what, limit): (&'static str, u64),
    read: impl FnOnce(
        &mut serde_json::Deserializer<serde_json::de::IoRead<BufReader<Bounded<'_, &mut dyn Read>>>>,
        &Cell<u64>,
    ) -> Result<T, serde_json::Error>,
) -> (T, Result<(), serde_json::Error>) {
    let mut source = source;
    let entry = Cell::new(entry_budget());
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
        let mut exists = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "packages" => {
                    exists = true;
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
        Ok(exists)
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
    description: Loose,
    homepage: Loose,
    license: Licences,
    main_program: Loose,
    position: Loose,
    outputs_to_install: Loose,
    broken: Loose,
    insecure: Loose,
    unfree: Loose,
    available: Loose,
    unsupported: Loose,
    known_vulnerabilities: Loose,
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

/// A field that should be a text, a list of texts or a flag, and is something else in some packages. Read without a detour: half of the entries have such.
#[derive(Debug, Default)]
enum Loose {
    Text(String),
    Several(Vec<String>),
    Flag(bool),
    #[default]
    Other,
}

impl Loose {
    /// A text, or the first of a list.
    fn first(self) -> String {
        match self {
            Self::Text(text) => line(&text),
            Self::Several(texts) => texts.first().map(|text| line(text)).unwrap_or_default(),
            Self::Flag(_) | Self::Other => String::new(),
        }
    }

    fn all(self) -> Vec<String> {
        match self {
            Self::Several(texts) => texts.iter().map(|text| line(text)).collect(),
            _ => Vec::new(),
        }
    }

    const fn is(&self, flag: bool) -> bool {
        matches!(self, Self::Flag(is) if *is == flag)
    }
}

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor)
    }
}

struct LooseVisitor;

impl<'de> Visitor<'de> for LooseVisitor {
    type Value = Loose;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Loose, E> {
        Ok(Loose::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Loose, E> {
        Ok(Loose::Text(text))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Loose, E> {
        Ok(Loose::Flag(flag))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Loose, A::Error> {
        let mut texts = Vec::new();
        while texts.len() < LIST_MAX
            && let Some(element) = list.next_element()?
        {
            if let Self::Value::Text(text) = element {
                texts.push(text);
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Loose::Several(texts))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loose, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Loose::Other)
    }

    fn visit_unit<E>(self) -> Result<Loose, E> {
        Ok(Loose::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Loose, E> {
        Ok(Loose::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Loose, E> {
        Ok(Loose::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Loose, E> {
        Ok(Loose::Other)
    }
}

/// The names of a package's licences, of which there is one or a list.
#[derive(Debug, Default)]
struct Licences(Vec<String>);

/// A licence that is described.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Licence {
    spdx_id: Loose,
    short_name: Loose,
    full_name: Loose,
}

impl<'de> Deserialize<'de> for Licences {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LicencesVisitor)
    }
}

struct LicencesVisitor;

impl<'de> Visitor<'de> for LicencesVisitor {
    type Value = Licences;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Licences, E> {
        Ok(Licences(vec![line(text)]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Licences, A::Error> {
        let Licence { spdx_id, short_name, full_name } = Licence::deserialize(MapAccessDeserializer::new(map))?;
        let name = [spdx_id, short_name, full_name].into_iter().map(Loose::first).find(|name| !name.is_empty());
        Ok(Licences(Vec::from_iter(name)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Licences, A::Error> {
        let mut names = Vec::new();
        while names.len() < LIST_MAX
            && let Some(Licences(more)) = list.next_element()?
        {
            names.extend(more.into_iter().take(LIST_MAX));
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Licences(names))
    }

    fn visit_unit<E>(self) -> Result<Licences, E> {
        Ok(Licences::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Licences, E> {
        Ok(Licences::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Licences, E> {
        Ok(Licences::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Licences, E> {
        Ok(Licences::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Licences, E> {
        Ok(Licences::default())
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
        let vulnerabilities = meta.known_vulnerabilities.all();
        let (broken, insecure, unfree) = (meta.broken.is(true), meta.insecure.is(true), meta.unfree.is(true));
        // `available` is false for all of these, too.
        let unsupported = meta.unsupported.is(true) || (meta.available.is(false) && !broken && !insecure && !unfree);
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
            to_install: meta.outputs_to_install.all(),
            description: meta.description.first(),
            homepage: meta.homepage.first(),
            licence: line(&meta.license.0.join(", ")),
            program: meta.main_program.first(),
            position: meta.position.first(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Valid attributes without end, and how much of them was read.
    struct Endless {
        entry: Vec<u8>,
        at: usize,
        read: u64,
    }

    impl Read for Endless {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let len = (&self.entry[self.at..]).read(out)?;
            self.at = (self.at + len) % self.entry.len();
            self.read += len as u64;
            Ok(len)
        }
    }

    /// The same with the limit that ships, and compressed, is a test of the program without debug assertions: it reads a gigabyte.
    #[test]
    fn valid_names_without_end_are_read_up_to_the_limit_and_cut() {
        let entry = format!(r#""a":{{"name":"a","meta":{{"description":"{}"}}}},"#, " x".repeat(100_000));
        let mut endless = Endless { entry: entry.into_bytes(), at: 0, read: 0 };
        let mut builder = Builder::default();
        let source = br#"{"version":"2","packages":{"#.chain(&mut endless);
        let message = read_packages_within(source, 4 << 20, &mut builder).unwrap_err().to_string();
        assert!(
            message.contains("packages.json exceeds the limit of 4194304 bytes") && !message.contains('\n'),
            "{message}"
        );
        assert!((20..22).contains(&builder.counts().0), "{:?}", builder.counts());
        assert!(endless.read <= (4 << 20) + BUFFER_LEN as u64, "{}", endless.read);
        // Of each description, the index keeps the beginning.
        let mut written = Vec::new();
        builder.write(&mut written).unwrap();
        assert!(written.len() < 10_000, "{}", written.len());
    }

    #[test]
    fn fields_of_other_kinds_are_read_as_far_as_they_say_something() {
        let package = |meta: &str| {
            let text = format!(r#"{{"name":"a-1","outputs":["out","man"],"meta":{meta}}}"#);
            serde_json::from_str::<Entry>(&text).unwrap().package("a").unwrap()
        };
        let odd = package(
            r#"{"description":null,"homepage":["https://a",1],"license":[{"spdxId":null,"shortName":"mit"},"b",[{"fullName":"c"}],7],
                "mainProgram":{"x":[1]},"position":1.5,"outputsToInstall":["man",null,"none"],"broken":"yes","available":false,
                "knownVulnerabilities":["CVE",3,"other"],"unfree":true}"#,
        );
        assert_eq!(
            (&*odd.description, &*odd.homepage, &*odd.licence, &*odd.program),
            ("", "https://a", "mit, b, c", "")
        );
        assert_eq!(
            (odd.to_install, odd.vulnerabilities),
            (vec!["man".to_owned()], vec!["CVE".to_owned(), "other".to_owned()])
        );
        assert_eq!(odd.problems, [Problem::Insecure, Problem::Unfree]);
        assert_eq!(package("{}").problems, []);
        assert_eq!(package(r#"{"available":false}"#).problems, [Problem::Unsupported]);
        let many = format!(r#"{{"license":[{}"end"]}}"#, r#""a","#.repeat(1000));
        assert_eq!(package(&many).licence.matches('a').count(), LIST_MAX);
    }
}
