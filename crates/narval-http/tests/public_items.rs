//! The public items of the library, compared with the checked-in list: whoever changes what programs rely on sees it in the change.
//!
//! `NARVAL_UPDATE_ITEMS=1 cargo test -p narval-http --test public_items` writes the list. It is made from the sources: what compilers of
//! the nightly channel know better (`cargo public-api`) is not to be had with the stable one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Attribute, Fields, Generics, ImplItem, Item, ItemImpl, ItemUse, TraitItem, Type, UseTree, Visibility};

type Names = Vec<String>;

/// The modules of the crate, by path.
#[derive(Default)]
struct Modules(BTreeMap<Names, Vec<Item>>);

impl Modules {
    fn of_crate() -> Self {
        let mut modules = Self::default();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        modules.read(Vec::new(), &source.join("lib.rs"), &source);
        modules
    }

    /// Reads a file; the modules that it declares are in `folder`.
    fn read(&mut self, path: Names, file: &Path, folder: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let items = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).items;
        self.add(path, items, folder);
    }

    fn add(&mut self, path: Names, items: Vec<Item>, folder: &Path) {
        let items: Vec<Item> = items.into_iter().filter(|item| is_compiled(attributes(item))).collect();
        for item in &items {
            let Item::Mod(module) = item else { continue };
            let name = module.ident.to_string();
            let (inner, inner_folder) = (joined(&path, &name), folder.join(&name));
            match &module.content {
                Some((_, items)) => self.add(inner, items.clone(), &inner_folder),
                None => {
                    let files: [PathBuf; 2] = [folder.join(format!("{name}.rs")), inner_folder.join("mod.rs")];
                    let file = files.into_iter().find(|file| file.exists()).expect("the file of a module");
                    self.read(inner, &file, &inner_folder);
                }
            }
        }
        self.0.insert(path, items);
    }

    /// The module that a path of `use` in `module` begins with; `None` if it is another crate.
    fn start(&self, module: &Names, first: &str) -> Option<Names> {
        match first {
            "crate" => Some(Vec::new()),
            "self" => Some(module.clone()),
            "super" => Some(module[..module.len() - 1].to_vec()),
            name => Some(joined(module, name)).filter(|path| self.0.contains_key(path)),
        }
    }
}

/// The list of public items.
struct Listing<'m> {
    modules: &'m Modules,
    lines: BTreeSet<String>,
    /// Public types and traits by their name in the sources.
    types: BTreeMap<String, String>,
}

impl Listing<'_> {
    fn module(&mut self, path: &Names, public: &Names) {
        for item in self.modules.0[path].iter().filter(|item| !is_hidden(attributes(item))) {
            match item {
                Item::Use(tree) if is_public(&tree.vis) => self.uses(path, public, tree),
                Item::Mod(module) if is_public(&module.vis) => {
                    let name = module.ident.to_string();
                    self.lines.insert(format!("mod {}", joined(public, &name).join("::")));
                    self.module(&joined(path, &name), &joined(public, &name));
                }
                Item::Macro(definition) if definition.attrs.iter().any(|attr| attr.path().is_ident("macro_export")) => {
                    self.lines.insert(format!("macro {}!", definition.ident.as_ref().expect("a name")));
                }
                item => self.item(item, public, None),
            }
        }
    }

    fn uses(&mut self, module: &Names, public: &Names, tree: &ItemUse) {
        let mut leaves = Vec::new();
        flatten(&tree.tree, &mut Vec::new(), &mut leaves);
        for (path, name) in leaves {
            let Some(mut target) = self.modules.start(module, &path[0]) else {
                self.lines.insert(format!("use {} = {}", joined(public, &name).join("::"), path.join("::")));
                continue;
            };
            target.extend_from_slice(&path[1..]);
            if self.modules.0.contains_key(&target) {
                self.lines.insert(format!("mod {}", joined(public, &name).join("::")));
                self.module(&target, &joined(public, &name));
                continue;
            }
            let ident = target.pop().expect("a name");
            for item in &self.modules.0[&target] {
                match item {
                    // It is from elsewhere itself.
                    Item::Use(inner) => {
                        let mut inner_leaves = Vec::new();
                        flatten(&inner.tree, &mut Vec::new(), &mut inner_leaves);
                        if inner_leaves.iter().any(|(_, inner_name)| *inner_name == ident) {
                            self.uses(&target, public, inner);
                        }
                    }
                    item if name_of(item).is_some_and(|have| have == ident) => self.item(item, public, Some(&name)),
                    _ => {}
                }
            }
        }
    }

    /// An item that is public, or re-exported under a name.
    fn item(&mut self, item: &Item, public: &Names, name: Option<&str>) {
        let Some(own) = name_of(item) else { return };
        let path = joined(public, name.unwrap_or(&own)).join("::");
        let mut add = |line: String| self.lines.extend([line]);
        match item {
            Item::Struct(item) if is_public(&item.vis) => {
                add(format!("struct {path}{}{}", text(&generics(&item.generics)), derives(&item.attrs)));
                fields(&path, &item.fields, true, &mut add);
            }
            Item::Enum(item) if is_public(&item.vis) => {
                add(format!("enum {path}{}{}", text(&generics(&item.generics)), derives(&item.attrs)));
                for variant in &item.variants {
                    let variant_path = format!("{path}::{}", variant.ident);
                    add(format!("variant {variant_path}"));
                    fields(&variant_path, &variant.fields, false, &mut add);
                }
            }
            Item::Trait(item) if is_public(&item.vis) => {
                add(format!("trait {path}{}: {}", text(&generics(&item.generics)), text(&item.supertraits)));
                for inner in &item.items {
                    match inner {
                        TraitItem::Fn(function) => {
                            let kind = if function.default.is_some() { "provided" } else { "required" };
                            add(format!("{path}: {kind} {}", text(&function.sig)));
                        }
                        inner => add(format!("{path}: {}", text(inner))),
                    }
                }
            }
            Item::Fn(item) if is_public(&item.vis) => return add(format!("{path}: {}", text(&item.sig))),
            Item::Const(item) if is_public(&item.vis) => return add(format!("const {path}: {}", text(&item.ty))),
            Item::Type(item) if is_public(&item.vis) => return add(format!("type {path} = {}", text(&item.ty))),
            _ => return,
        }
        self.types.insert(own, path);
    }

    /// Methods and traits of public types.
    fn implementation(&mut self, item: &ItemImpl) {
        let Some(own) = type_name(&item.self_ty) else { return };
        let header = |of: &str| format!("impl{} {of}{}", text(&item.generics), text(&item.generics.where_clause));
        if let Some((_, of, _)) = &item.trait_ {
            let is_ours = of.segments.last().is_some_and(|last| self.types.contains_key(&last.ident.to_string()));
            if self.types.contains_key(&own) || is_ours {
                self.lines.insert(header(&format!("{} for {}", text(of), text(&item.self_ty))));
            }
            return;
        }
        let Some(path) = self.types.get(&own).cloned() else { return };
        for inner in item.items.iter().filter(|inner| !is_hidden(inner_attributes(inner))) {
            match inner {
                ImplItem::Fn(function) if is_public(&function.vis) => {
                    self.lines.insert(format!("{path}: {}", text(&function.sig)));
                }
                ImplItem::Const(constant) if is_public(&constant.vis) => {
                    self.lines.insert(format!("{path}: const {}: {}", constant.ident, text(&constant.ty)));
                }
                _ => {}
            }
        }
    }
}

fn fields(path: &str, fields: &Fields, must_be_public: bool, add: &mut impl FnMut(String)) {
    for (at, field) in fields.iter().enumerate().filter(|(_, field)| !must_be_public || is_public(&field.vis)) {
        let name = field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string);
        add(format!("field {path}.{name}: {}", text(&field.ty)));
    }
}

/// Each name that a `use` brings in: where it is, and what it is called.
fn flatten(tree: &UseTree, path: &mut Names, leaves: &mut Vec<(Names, String)>) {
    match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            flatten(&inner.tree, path, leaves);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|inner| flatten(inner, path, leaves)),
        UseTree::Name(name) => leaves.push((joined(path, &name.ident.to_string()), name.ident.to_string())),
        UseTree::Rename(name) => leaves.push((joined(path, &name.ident.to_string()), name.rename.to_string())),
        UseTree::Glob(_) => leaves.push((joined(path, "*"), "*".to_owned())),
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Struct(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Const(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// The name of the type that an implementation is for.
fn type_name(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        Type::Reference(reference) => type_name(&reference.elem),
        _ => Some(text(of)),
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        _ => &[],
    }
}

fn inner_attributes(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Const(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether it is compiled with the default features.
fn is_compiled(attributes: &[Attribute]) -> bool {
    let is_for_others = |line: &str| {
        ["(test)", "(not(", "(any(test", "(loom)"].iter().any(|cfg| line.starts_with(&format!("#[cfg{cfg}")))
    };
    !attributes.iter().any(|attribute| is_for_others(&text(attribute)))
}

/// Whether it is not promised.
fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| text(attribute) == "#[doc(hidden)]")
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn generics(generics: &Generics) -> Generics {
    Generics { where_clause: None, ..generics.clone() }
}

fn derives(attributes: &[Attribute]) -> String {
    let of = attributes.iter().filter(|attribute| {
        ["derive", "non_exhaustive", "must_use"].iter().any(|name| attribute.path().is_ident(name))
    });
    of.map(|attribute| format!(" {}", text(attribute))).collect()
}

/// The source, with the spaces that a reader expects.
fn text(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string().replace('\n', " ");
    for (spaced, plain) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" <", "<"),
        (" >", ">"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" [", "["),
        ("[ ", "["),
        (" ]", "]"),
        (" ,", ","),
        (" : ", ": "),
        ("& ", "&"),
        (" ;", ";"),
        ("# [", "#["),
        ("->", " -> "),
        ("  ", " "),
        ("  ", " "),
        (",)", ")"),
        (",>", ">"),
        // Only the function itself sees it.
        ("(mut self", "(self"),
        ("'a[", "'a ["),
        ("_,[", "_, ["),
        ("=(", "= ("),
    ] {
        text = text.replace(spaced, plain);
    }
    text.trim().to_owned()
}

fn joined(path: &[String], name: &str) -> Names {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

#[test]
fn public_items_are_those_of_the_list() {
    let modules = Modules::of_crate();
    let mut listing = Listing { modules: &modules, lines: BTreeSet::new(), types: BTreeMap::new() };
    listing.module(&Vec::new(), &Vec::new());
    for item in modules.0.values().flatten() {
        if let Item::Impl(item) = item {
            listing.implementation(item);
        }
    }
    assert!(listing.lines.len() > 300, "only {} items are found", listing.lines.len());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/public_items.txt");
    if std::env::var_os("NARVAL_UPDATE_ITEMS").is_some() {
        let text: String = listing.lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&file, text).expect("written");
    }
    let list = fs::read_to_string(&file).expect("the list");
    let listed: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    let gone: Vec<_> = listed.difference(&listing.lines).collect();
    let new: Vec<_> = listing.lines.difference(&listed).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "gone: {gone:#?}\nnew: {new:#?}\nIf that is meant: NARVAL_UPDATE_ITEMS=1 cargo test -p narval-http --test public_items, and a line in \
         CHANGELOG.md"
    );
}
