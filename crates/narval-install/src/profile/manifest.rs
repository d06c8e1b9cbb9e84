//! What a profile has: `manifest.json` of Nix's version 3 (`profile.cc` `ProfileManifest`), which `nix profile` reads and writes, too.
//!
//! Elements have names. Where a path came from is kept in a field of ours, `narval`, which Nix drops when it writes the file; for the channels of nixpkgs
//! it is in Nix's own fields as well, so that `nix profile upgrade` can use it.

use std::collections::{BTreeMap, BTreeSet};

use narval_nix::{PackageName, StoreDir, StorePath};
use serde_json::{Map, Value, json};

use super::origin::Origin;

/// The file in a generation.
pub(super) const FILE: &str = "manifest.json";
/// The largest manifest that is read, in bytes.
pub(super) const LEN_MAX: u64 = 64 << 20;
/// The version that is written.
const VERSION: u64 = 3;
/// The oldest version that is read: with a list of elements, which have no names.
const VERSION_MIN: u64 = 2;
/// The priority of elements that were installed without one, as in Nix. The lowest number wins.
pub(super) const PRIORITY_DEFAULT: i64 = 5;
/// The field that is ours.
const OURS: &str = "narval";
/// The elements of a profile, by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    elements: BTreeMap<String, Element>,
}

/// Elements by their names, each with those of its paths that are meant.
pub type Chosen = BTreeMap<String, BTreeSet<StorePath>>;

/// What was installed together.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// Its paths: outputs of one package, as a rule.
    pub paths: BTreeSet<StorePath>,
    /// Of two different files of one name, the profile has that of the element with the lowest number.
    pub priority: i64,
    /// Whether the profile shows its files.
    pub active: bool,
    /// Where it came from, if not from a store path.
    pub origin: Option<Origin>,
    /// The paths of its outputs, as far as they are known.
    outputs: BTreeMap<String, StorePath>,
    /// The other fields, which are Nix's.
    others: Map<String, Value>,
}

/// A path to add to a profile.
#[derive(Clone, Debug)]
pub struct Addition {
    /// The path.
    pub path: StorePath,
    /// The name it was found by, and which output of that it is.
    pub origin: Option<(Origin, String)>,
}

impl From<StorePath> for Addition {
    fn from(path: StorePath) -> Self {
        Self { path, origin: None }
    }
}

impl Manifest {
    /// The elements, by their names.
    pub fn elements(&self) -> impl Iterator<Item = (&str, &Element)> {
        self.elements.iter().map(|(name, element)| (&**name, element))
    }

    /// All paths.
    pub fn paths(&self) -> BTreeSet<StorePath> {
        self.elements.values().flat_map(|element| element.paths.iter().cloned()).collect()
    }

    /// The paths that are shown, and their priorities.
    pub(super) fn shown(&self) -> BTreeMap<&StorePath, i64> {
        let active = self.elements.values().filter(|element| element.active);
        active.flat_map(|element| element.paths.iter().map(|path| (path, element.priority))).collect()
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Why it cannot be understood.
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let mut json: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let version = json["version"].as_u64().unwrap_or(0);
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(format!("its version is {version}; {VERSION_MIN} to {VERSION} are known"));
        }
        let mut manifest = Self::default();
        match json["elements"].take() {
            Value::Object(elements) => {
                for (name, element) in elements {
                    let element = Element::read(element).map_err(|error| format!("element '{name}': {error}"))?;
                    manifest.elements.insert(name, element);
                }
            }
            Value::Array(elements) => {
                for element in elements {
                    manifest.insert(Element::read(element)?);
                }
            }
            _ => return Err("it has no elements".to_owned()),
        }
        Ok(manifest)
    }

    /// The file.
    pub(super) fn written(&self, store_dir: &StoreDir) -> String {
        let elements: Map<_, _> =
            self.elements.iter().map(|(name, element)| (name.clone(), element.written(store_dir))).collect();
        json!({"version": VERSION, "elements": elements}).to_string()
    }

    /// The manifest of paths of which no more is known than their priorities.
    pub(super) fn of_paths(paths: impl IntoIterator<Item = (StorePath, i64)>) -> Self {
        let mut manifest = Self::default();
        for (path, priority) in paths {
            manifest.insert(Element { priority, ..Element::of(path) });
        }
        manifest
    }

    /// Adds an element under a name of its own, as Nix does where two have the same (`hello-1`).
    fn insert(&mut self, element: Element) {
        let wanted = element.own_name();
        let numbered = (1..).map(|number| format!("{wanted}-{number}"));
        let is_free = |name: &String| !self.elements.contains_key(name);
        let name = std::iter::once(wanted.clone()).chain(numbered).find(is_free).unwrap_or(wanted);
        self.elements.insert(name, element);
    }

    /// Adds paths. One that is new replaces the same output of its element, and other versions of the same package and output, but nothing that has
    /// another name than its release. Returns what was replaced.
    pub(super) fn add(&mut self, added: &[Addition], priority: Option<i64>) -> Vec<(StorePath, StorePath)> {
        let before = self.paths();
        let is_added = |path: &StorePath| added.iter().any(|one| one.path == *path);
        let mut replaced = Vec::new();
        for one in added {
            let mut holder = self.holder(|element| element.paths.contains(&one.path) && !element.is_apart_from(one));
            if let Some((origin, output)) = &one.origin
                && let Some(same) = self.holder(|element| element.origin.as_ref().is_some_and(|of| of.is_same(origin)))
            {
                if let Some(element) = self.elements.get_mut(&same)
                    && let Some(old) = element.outputs.get(output).filter(|old| !is_added(old)).cloned()
                {
                    element.drop_path(&old);
                    replaced.push((old, one.path.clone()));
                }
                holder = holder.or(Some(same));
            }
            if !before.contains(&one.path) {
                for (name, element) in self.elements.iter_mut().filter(|(_, element)| !element.is_apart_from(one)) {
                    let is_older = |path: &&StorePath| !is_added(path) && is_other_version(path, &one.path);
                    for old in element.paths.iter().filter(is_older).cloned().collect::<Vec<_>>() {
                        element.drop_path(&old);
                        replaced.push((old, one.path.clone()));
                        holder.get_or_insert_with(|| name.clone());
                    }
                }
            }
            let (name, mut element) = match holder.and_then(|name| self.elements.remove_entry(&name)) {
                Some((name, element)) => (Some(name), element),
                None => (None, Element::of(one.path.clone())),
            };
            let attribute = |element: &Element| element.origin.as_ref().map(|origin| origin.attribute.clone());
            let before = attribute(&element);
            element.add(one);
            element.priority = priority.unwrap_or(element.priority);
            // What another attribute takes the place of has its name.
            match name.filter(|_| one.origin.is_none() || before == attribute(&element)) {
                Some(name) => drop(self.elements.insert(name, element)),
                None => self.insert(element),
            }
        }
        self.elements.retain(|_, element| !element.paths.is_empty());
        replaced
    }

    fn holder(&self, is_it: impl Fn(&Element) -> bool) -> Option<String> {
        self.elements.iter().find(|(_, element)| is_it(element)).map(|(name, _)| name.clone())
    }

    /// What a name means: what was installed by this name or attribute; otherwise the element of this name, and paths by their name or that of their
    /// package. `is_meant` selects further paths.
    pub(super) fn named(&self, name: &str, is_meant: impl Fn(&StorePath) -> bool) -> Chosen {
        let was_installed_by = |element: &Element| {
            element.origin.as_ref().is_some_and(|origin| origin.name == name || origin.attribute == name)
        };
        // Two elements may have one path, or paths of one package: the name of one of them does not mean the other.
        let is_installed = |(key, element): (&String, &Element)| {
            was_installed_by(element) || (key == name && element.origin.is_some())
        };
        let is_apart = self.elements.iter().any(is_installed);
        let is_path = |path: &StorePath| {
            let names = [path.base_name(), path.name(), PackageName::of(path.name()).package];
            is_meant(path) || (!is_apart && names.contains(&name))
        };
        let of_element = |(key, element): (&String, &Element)| {
            let is_element = key == name || was_installed_by(element);
            let paths = element.paths.iter().filter(|path| is_element || is_path(path)).cloned();
            (key.clone(), paths.collect::<BTreeSet<_>>())
        };
        self.elements.iter().map(of_element).filter(|(_, paths)| !paths.is_empty()).collect()
    }

    /// Removes paths of elements. Another element may still have them.
    pub(super) fn remove(&mut self, chosen: &Chosen) {
        for (name, paths) in chosen {
            if let Some(element) = self.elements.get_mut(name) {
                paths.iter().for_each(|path| element.drop_path(path));
            }
        }
        self.elements.retain(|_, element| !element.paths.is_empty());
    }

    /// Takes from an earlier manifest where paths came from, if Nix has dropped it since.
    pub(super) fn recall(&mut self, earlier: &Self) {
        for (name, element) in &mut self.elements {
            let known =
                earlier.elements.get(name).filter(|known| known.paths == element.paths && !known.outputs.is_empty());
            if let Some(known) = known.filter(|_| element.outputs.is_empty()) {
                (element.origin, element.outputs) = (known.origin.clone(), known.outputs.clone());
            }
        }
    }

    /// Whether Nix has written this: there are elements from somewhere else than store paths, of which the outputs are not known.
    pub(super) fn has_forgotten(&self) -> bool {
        self.elements.values().any(|element| element.outputs.is_empty())
    }
}

impl Element {
    fn of(path: StorePath) -> Self {
        Self {
            paths: [path].into(),
            priority: PRIORITY_DEFAULT,
            active: true,
            origin: None,
            outputs: BTreeMap::new(),
            others: Map::new(),
        }
    }

    /// The name that a new element gets.
    fn own_name(&self) -> String {
        let of_path = |path: &StorePath| match PackageName::of(path.name()) {
            PackageName { package, output: "", .. } => package.to_owned(),
            PackageName { package, output, .. } => format!("{package}-{output}"),
        };
        let attribute = self.origin.as_ref().map(|origin| origin.attribute.trim_start_matches('@').to_owned());
        attribute.unwrap_or_else(|| self.paths.first().map(of_path).unwrap_or_default())
    }

    fn add(&mut self, one: &Addition) {
        let is_new = self.paths.insert(one.path.clone());
        self.active = true;
        match &one.origin {
            Some((origin, output)) => {
                // Nix's fields are made anew from ours.
                self.others.clear();
                let before = self.origin.take().filter(|before| before.is_same(origin));
                if before.is_none() {
                    self.outputs.clear();
                }
                let is_default = origin.is_default && before.as_ref().is_none_or(|before| before.is_default);
                let mut chosen = origin.clone();
                // What was not decided anew was decided before.
                if let (None, Some(before)) = (&chosen.choice, before) {
                    (chosen.choice, chosen.distinction) = (before.choice, before.distinction);
                }
                self.origin = Some(Origin { is_default, ..chosen });
                self.outputs.insert(output.clone(), one.path.clone());
            }
            // What the user names by its path is not what a channel or a flake has.
            None if is_new => {
                self.origin = None;
                self.outputs.clear();
                self.others.clear();
            }
            None => {}
        }
    }

    fn drop_path(&mut self, path: &StorePath) {
        self.paths.remove(path);
        self.outputs.retain(|_, output| output != path);
    }

    /// Whether one of the two is a release, and the other has a name that is not this release: neither takes the place of the other, whatever their paths are.
    fn is_apart_from(&self, one: &Addition) -> bool {
        let Some((own, (other, _))) = self.origin.as_ref().zip(one.origin.as_ref()) else { return false };
        (own.is_release() || other.is_release()) && !own.is_same(other)
    }

    /// Whether it came from a release of a cache.
    pub fn is_released(&self) -> bool {
        self.origin.as_ref().is_some_and(Origin::is_release)
    }

    /// The name to look up again, with the outputs that are there.
    pub fn selector(&self) -> Option<String> {
        let origin = self.origin.as_ref()?;
        let outputs: Vec<&str> = self.outputs.keys().map(String::as_str).collect();
        Some(match outputs.is_empty() || origin.is_default {
            true => origin.name.clone(),
            false => format!("{}^{}", origin.name, outputs.join(",")),
        })
    }

    /// The path that one of these outputs takes the place of: that of the same output, or another version of it.
    pub fn replaced_by(&self, path: &StorePath, output: &str) -> Option<&StorePath> {
        self.outputs.get(output).or_else(|| self.paths.iter().find(|old| is_other_version(old, path)))
    }

    /// What Nix calls the flake that it came from.
    pub fn flake(&self) -> Option<&str> {
        self.others.get("originalUrl").and_then(Value::as_str)
    }

    fn read(json: Value) -> Result<Self, String> {
        let Value::Object(mut fields) = json else { return Err("it is no object".to_owned()) };
        let Some(Value::Array(paths)) = fields.remove("storePaths") else {
            return Err("it has no storePaths".to_owned());
        };
        let paths = paths.iter().map(path_of).collect::<Result<_, _>>()?;
        let priority = fields.remove("priority").and_then(|priority| priority.as_i64()).unwrap_or(PRIORITY_DEFAULT);
        let active = fields.remove("active").is_none_or(|active| active != Value::Bool(false));
        let ours = fields.remove(OURS).unwrap_or_default();
        let outputs = ours["outputs"].as_object().into_iter().flatten();
        let outputs = outputs.map(|(name, path)| Ok((name.clone(), path_of(path)?))).collect::<Result<_, String>>()?;
        let origin = Origin::read(&ours).or_else(|| Origin::of_flake(&fields));
        Ok(Self { paths, priority, active, origin, outputs, others: fields })
    }

    fn written(&self, store_dir: &StoreDir) -> Value {
        let full = |path: &StorePath| Value::from(store_dir.display(path).to_string());
        let mut fields = self.others.clone();
        fields.insert("active".to_owned(), self.active.into());
        fields.insert("priority".to_owned(), self.priority.into());
        fields.insert("storePaths".to_owned(), self.paths.iter().map(full).collect());
        // Nix's flake is newer than what an earlier version of this program knew.
        if let Some(origin) = self.origin.as_ref().filter(|_| !self.outputs.is_empty()) {
            let mut ours = origin.written();
            ours["outputs"] = self.outputs.iter().map(|(name, path)| (name.clone(), full(path))).collect();
            fields.insert(OURS.to_owned(), ours);
            let names: Vec<&String> = self.outputs.keys().collect();
            let outputs = if origin.is_default { Value::Null } else { json!(names) };
            fields.extend(
                origin
                    .as_flake()
                    .map(|mut flake| {
                        flake.insert("outputs".to_owned(), outputs);
                        flake
                    })
                    .unwrap_or_default(),
            );
        }
        Value::Object(fields)
    }
}

/// A store path of any store directory.
fn path_of(json: &Value) -> Result<StorePath, String> {
    let base = json.as_str().and_then(|text| text.rsplit('/').next());
    let path = base.and_then(|base| StorePath::parse(base).ok());
    path.ok_or_else(|| format!("{json} is no store path"))
}

/// Whether two paths are the same output of one package.
fn is_other_version(one: &StorePath, other: &StorePath) -> bool {
    let (one, other) = (PackageName::of(one.name()), PackageName::of(other.name()));
    (one.package, one.output) == (other.package, other.output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(digit: char, name: &str) -> StorePath {
        StorePath::parse(&format!("{}-{name}", digit.to_string().repeat(32))).unwrap()
    }

    fn origin(attribute: &str, release: &str) -> Origin {
        Origin {
            name: attribute.to_owned(),
            attribute: attribute.to_owned(),
            system: "x86_64-linux".to_owned(),
            channel: "nixos-25.11".to_owned(),
            release: release.to_owned(),
            revision: "0123456789".repeat(4),
            choice: None,
            distinction: Vec::new(),
            is_default: true,
        }
    }

    fn by_name(path: &StorePath, origin: &Origin, output: &str) -> Addition {
        Addition { path: path.clone(), origin: Some((origin.clone(), output.to_owned())) }
    }

    fn names(manifest: &Manifest) -> Vec<(&str, Vec<&str>)> {
        manifest
            .elements()
            .map(|(name, element)| (name, element.paths.iter().map(StorePath::base_name).collect()))
            .collect()
    }

    #[test]
    fn another_output_adds_and_another_version_replaces() {
        let [git, man, newer, newer_man] = [
            path('0', "git-minimal-2.47.0"),
            path('1', "git-minimal-2.47.0-man"),
            path('2', "git-2.48.0"),
            path('3', "git-2.48.0-man"),
        ];
        let mut manifest = Manifest::default();
        assert!(manifest.add(&[by_name(&git, &origin("git", "one"), "out")], Some(3)).is_empty());
        let asked = Origin { is_default: false, ..origin("git", "one") };
        assert!(manifest.add(&[by_name(&man, &asked, "man")], None).is_empty());
        assert_eq!(names(&manifest), [("git", vec![git.base_name(), man.base_name()])]);
        let (_, element) = manifest.elements().next().unwrap();
        assert_eq!((element.selector().unwrap(), element.priority), ("git^man,out".to_owned(), 3));
        // The attribute has paths of another name in the next release.
        let next = origin("git", "two");
        let additions = [by_name(&newer, &next, "out"), by_name(&newer_man, &next, "man")];
        assert_eq!(manifest.add(&additions, None), [(git, newer.clone()), (man, newer_man.clone())]);
        assert_eq!(names(&manifest), [("git", vec![newer.base_name(), newer_man.base_name()])]);
        assert_eq!(manifest.elements().next().unwrap().1.origin.as_ref().unwrap().release, "two");
        // By a path: the channel does not say any more what it is.
        let own = path('4', "git-2.49.0");
        manifest.add(&[own.clone().into()], None);
        assert_eq!(names(&manifest), [("git", vec![newer_man.base_name(), own.base_name()])]);
        assert_eq!(manifest.elements().next().unwrap().1.origin, None);
    }

    #[test]
    fn a_path_alone_is_an_element_by_the_name_of_its_package() {
        let [one, doc, other] = [path('0', "a-1"), path('1', "a-1-doc"), path('2', "a-2")];
        let mut manifest = Manifest::of_paths([(one.clone(), 5), (doc.clone(), 7)]);
        assert_eq!(names(&manifest), [("a", vec![one.base_name()]), ("a-doc", vec![doc.base_name()])]);
        assert_eq!(manifest.add(&[other.clone().into()], None), [(one.clone(), other.clone())]);
        assert_eq!(names(&manifest), [("a", vec![other.base_name()]), ("a-doc", vec![doc.base_name()])]);
        // Both at once are what the user wants.
        assert_eq!(manifest.add(&[one.clone().into(), other.clone().into()], None), []);
        let named = |manifest: &Manifest, name: &str| manifest.named(name, |_| false);
        let paths = named(&manifest, "a").into_values().flatten().collect::<BTreeSet<_>>();
        assert_eq!(paths, [one.clone(), doc, other].into());
        manifest.remove(&named(&manifest, "a-1"));
        assert_eq!(manifest.paths().len(), 2);
    }

    #[test]
    fn two_releases_are_two_elements_even_if_they_have_one_package_or_one_path() {
        let release = |name: &str, revision: &str| Origin {
            channel: "http://cache/".to_owned(),
            revision: String::new(),
            ..origin(name, revision)
        };
        let [first, second, third] = [path('0', "app-1"), path('1', "app-2"), path('2', "app-3")];
        let mut manifest = Manifest::default();
        manifest.add(&[by_name(&first, &release("@api", "@api@1"), "out")], None);
        assert_eq!(manifest.add(&[by_name(&second, &release("@web", "@web@1"), "out")], None), []);
        // The release that was promoted has the path of the first.
        assert_eq!(manifest.add(&[by_name(&first, &release("@prod", "@prod@1"), "out")], None), []);
        let base = |path: &StorePath| vec![path.base_name().to_owned()];
        let shown = |manifest: &Manifest| {
            let elements = manifest.elements();
            elements
                .map(|(name, element)| {
                    (name.to_owned(), element.paths.iter().map(|path| path.base_name().to_owned()).collect::<Vec<_>>())
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(
            shown(&manifest),
            [("api".into(), base(&first)), ("prod".into(), base(&first)), ("web".into(), base(&second))]
        );
        // Each moves on alone, and is removed alone.
        let moved = manifest.add(&[by_name(&third, &release("@api", "@api@2"), "out")], None);
        assert_eq!(moved, [(first.clone(), third.clone())]);
        assert_eq!(
            shown(&manifest),
            [("api".into(), base(&third)), ("prod".into(), base(&first)), ("web".into(), base(&second))]
        );
        manifest.add(&[by_name(&third, &release("@prod", "@prod@2"), "out")], None);
        let chosen =
            |manifest: &Manifest, name: &str| manifest.named(name, |_| false).into_keys().collect::<Vec<_>>().join(" ");
        assert_eq!(
            ["@api", "api", "prod", "app", "app-3"].map(|name| chosen(&manifest, name)),
            ["api", "api", "prod", "api prod web", "api prod"]
        );
        manifest.remove(&manifest.named("@api", |_| false));
        assert_eq!(shown(&manifest), [("prod".into(), base(&third)), ("web".into(), base(&second))]);
        // What was installed by a name of a channel stays, and what was installed by its path is replaced.
        let mut manifest = Manifest::of_paths([(first.clone(), 5)]);
        assert_eq!(manifest.add(&[by_name(&second, &origin("app", "one"), "out")], None), [(first, second.clone())]);
        assert_eq!(manifest.add(&[by_name(&third, &release("@api", "@api@2"), "out")], None), []);
        assert_eq!(manifest.paths(), [second, third].into());
    }

    #[test]
    fn what_is_written_is_read_and_what_nix_writes_too() {
        let git = path('0', "git-2.47.0");
        let mut manifest = Manifest::default();
        manifest.add(&[by_name(&git, &origin("git", "one"), "out"), path('1', "a-1").into()], None);
        let text = manifest.written(&StoreDir::default());
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["version"], 3);
        assert_eq!(json["elements"]["git"]["attrPath"], "legacyPackages.x86_64-linux.git");
        assert_eq!(json["elements"]["git"]["originalUrl"], "github:NixOS/nixpkgs/nixos-25.11");
        assert_eq!(json["elements"]["a"].get("url"), None);
        let again = Manifest::read(text.as_bytes()).unwrap();
        assert_eq!(again.written(&StoreDir::default()), text);
        // Nix writes it without our field: channel and attribute are still known, and the rest is in the generation before.
        let mut of_nix = json;
        of_nix["elements"]["git"].as_object_mut().unwrap().remove(OURS);
        let mut of_nix = Manifest::read(of_nix.to_string().as_bytes()).unwrap();
        assert!(of_nix.has_forgotten());
        let known = of_nix.elements["git"].origin.clone().unwrap();
        assert_eq!((&*known.attribute, &*known.channel, &*known.release), ("git", "nixos-25.11", ""));
        of_nix.recall(&again);
        assert_eq!(of_nix.elements["git"], again.elements["git"]);
        // Version 2 had a list.
        let second = json!({"version": 2, "elements": [
            {"active": true, "priority": 4, "storePaths": [format!("/nix/store/{git}")]},
            {"active": false, "attrPath": "packages.x86_64-linux.default", "originalUrl": "git+file:///a", "url": "git+file:///a?rev=1",
                "outputs": null, "storePaths": [format!("/nix/store/{}", path('2', "git-2.46.0"))]}]});
        let second = Manifest::read(second.to_string().as_bytes()).unwrap();
        assert_eq!(second.elements.keys().collect::<Vec<_>>(), ["git", "git-1"]);
        assert_eq!(second.shown(), [(&git, 4)].into());
        assert_eq!(second.elements["git-1"].flake(), Some("git+file:///a"));
    }

    #[test]
    fn a_file_that_is_no_manifest_is_one_line() {
        for (text, expected) in [
            ("{", "EOF"),
            ("[]", "its version is 0"),
            ("{\"version\":4,\"elements\":{}}", "its version is 4"),
            ("{\"version\":3}", "no elements"),
            ("{\"version\":3,\"elements\":{\"a\":1}}", "element 'a': it is no object"),
            ("{\"version\":3,\"elements\":{\"a\":{\"storePaths\":[\"../x\"]}}}", "is no store path"),
        ] {
            let error = Manifest::read(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }
}
