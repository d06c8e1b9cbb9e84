//! `docs/architecture.md` names files and folders that exist, and all locks of the server; folders and files stay small.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// All files and folders of the crates as the page writes them: the crate, then the path below its `src`. Folders end in `/`.
fn places() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut places = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let entry = entry.unwrap();
        collect(&entry.path().join("src"), &format!("/{}/", entry.file_name().to_str().unwrap()), &mut places);
    }
    places
}

fn collect(folder: &Path, name: &str, places: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let place = format!("{name}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{place}/"), places);
            places.push(format!("{place}/"));
        } else {
            places.push(place);
        }
    }
}

/// The files and folders that a page names, in its text and in its pictures.
fn named(page: &str) -> Vec<&str> {
    let words = page.split(|c: char| c.is_whitespace() || "`(),;:|".contains(c)).map(|word| word.trim_matches('.'));
    let is_name = |word: &&str| {
        (word.ends_with(".rs") || word.ends_with('/'))
            && word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_-.".contains(&byte))
    };
    words.filter(is_name).collect()
}

#[test]
fn every_file_and_folder_that_the_page_names_exists() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md")).unwrap();
    let (places, named) = (places(), named(&page));
    assert!(named.len() > 100, "only {} names are found in the page", named.len());
    // A name may leave out the crate and the first folders, which the text around it says.
    let is_there = |name: &str| places.iter().any(|place| place.ends_with(&format!("/{name}")));
    let missing: Vec<_> = named.into_iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "docs/architecture.md names what is not there: {missing:?}");
}

/// A folder has no more files than a newcomer reads the names of.
const FILES_MAX: usize = 14;

/// A file has no more lines than are read in one go.
const LINES_MAX: usize = 600;

#[test]
fn no_folder_and_no_file_outgrows_its_shape() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files: BTreeMap<String, usize> = BTreeMap::new();
    let mut larger = BTreeSet::new();
    for place in places().into_iter().filter(|place| place.ends_with(".rs")) {
        let (name, path) = place[1..].split_once('/').unwrap();
        if fs::read_to_string(crates.join(name).join("src").join(path)).unwrap().lines().count() > LINES_MAX {
            larger.insert(place.clone());
        }
        *files.entry(format!("{}/", place.rsplit_once('/').unwrap().0)).or_default() += 1;
    }
    larger.extend(files.into_iter().filter(|(_, count)| *count > FILES_MAX).map(|(folder, _)| folder));
    assert!(larger.is_empty(), "more than {FILES_MAX} files or {LINES_MAX} lines: {larger:?}");
}

/// The locks of a crate: the file and the name of each field or static variable.
fn locks(folder: &Path, name: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let place = format!("{name}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            locks(&entry.path(), &format!("{place}/"), found);
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for line in code.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
            let is_lock = ["Mutex<", "RwLock<"].iter().any(|lock| line.contains(lock));
            let is_place = line.ends_with(',') || line.starts_with("static ");
            if let Some((field, _)) = line.split_once(": ").filter(|_| is_lock && is_place) {
                found.push(format!(
                    "`{place}` {}",
                    field.trim_start_matches("static ").trim_start_matches("pub(super) ")
                ));
            }
        }
    }
}

/// No lock is held while a body is read or a database is asked, because one slow client would stop all threads that wait for the lock. A new
/// lock is added to the table, which says what it is held over.
#[test]
fn the_page_names_every_lock_of_the_server() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Locks")).expect("a section 'Locks'");
    let row = |line: &str| line.strip_prefix("| `")?.split(" | ").next().map(|cell| format!("`{cell}"));
    let mut named: Vec<_> = section.lines().filter_map(row).collect();
    let mut found = Vec::new();
    locks(&Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("narval-serve/src"), "", &mut found);
    named.sort();
    found.sort();
    assert_eq!(named, found);
}

/// The crates that the page's table lets each crate depend on are those of its manifest.
#[test]
fn the_page_names_every_arrow_between_crates() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md")).unwrap();
    let table = page.split("| crate | depends on |\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = |text: &str| -> Vec<String> {
        text.split('`').skip(1).step_by(2).filter(|name| name.starts_with("narval-")).map(str::to_owned).collect()
    };
    let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in table.lines().skip(1) {
        let cells: Vec<_> = row.split('|').collect();
        let mut on: BTreeSet<_> = names(cells[2]).into_iter().collect();
        // "those of `narval-cache`": what that crate depends on.
        if let Some(other) = cells[2].split("those of `").nth(1).and_then(|rest| rest.split('`').next()) {
            on.extend(told[other].clone());
        }
        for name in names(cells[1]) {
            told.insert(name, on.clone());
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(crates).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default().split("\n[").next().unwrap();
        let on = dependencies.lines().filter_map(|line| line.split(['.', ' ']).next());
        let on: BTreeSet<_> = on.filter(|on| on.starts_with("narval-")).map(str::to_owned).collect();
        if name != "narval" {
            found.insert(name, on);
        }
    }
    assert_eq!(told, found);
}

/// A file of a crate, by its path of modules.
type Module = Vec<String>;

/// The modules of a crate, without tests, and the names that each imports for itself, as absolute paths: what it hands on is not its own.
fn imports(source: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let (mut places, mut tests) = (Vec::new(), BTreeSet::new());
    collect(source, "", &mut places);
    let mut texts = BTreeMap::new();
    for place in places.iter().filter(|place| place.ends_with(".rs")) {
        let text = fs::read_to_string(source.join(place)).unwrap();
        let mut module: Module = place.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        module.pop_if(|last| last == "mod" || last == "lib");
        // What only tests have stands at the end of a file, or is a file.
        let mut lines: Vec<_> = text.lines().map(|line| line.split("//").next().unwrap()).collect();
        for at in (0..lines.len()).filter(|at| lines[*at].starts_with("#[cfg(test)]")).collect::<Vec<_>>() {
            let declared = lines[at..].iter().find_map(|line| line.rsplit_once("mod ")?.1.strip_suffix(';'));
            tests.extend(declared.map(|name| [module.clone(), vec![name.to_owned()]].concat()));
        }
        let end = lines.iter().position(|line| line.starts_with("mod tests {"));
        lines.truncate(end.unwrap_or(lines.len()));
        texts.insert(module, lines.iter().map(|line| format!("\n{}", line.trim())).collect::<String>());
    }
    texts.retain(|module, _| !(1..=module.len()).any(|len| tests.contains(&module[..len])));
    let known: BTreeSet<_> = texts.keys().cloned().collect();
    // What the `mod.rs` of a folder hands on is imported from where it is defined. Of the root, nothing is imported.
    let mut handed_on: BTreeMap<Module, Module> = BTreeMap::new();
    for (module, text) in texts.iter().filter(|(module, _)| !module.is_empty()) {
        let uses = text.split("\npub").skip(1).filter_map(|rest| {
            let (visibility, rest) = rest.split_once("use ")?;
            let is_use = visibility.trim().is_empty() || (visibility.starts_with('(') && visibility.ends_with(") "));
            rest.split_once(';').filter(|_| is_use)
        });
        for name in uses.flat_map(|(tree, _)| leaves(tree)).filter_map(|name| absolute(module, &name, &known)) {
            handed_on.insert([&module[..], &name[name.len() - 1..]].concat(), name);
        }
    }
    let defined = |mut name: Module| {
        // A name that is handed on more often is none of ours.
        for _ in 0..8 {
            let Some(len) = (1..=name.len()).find(|len| handed_on.contains_key(&name[..*len])) else { break };
            name = [&handed_on[&name[..len]], &name[len..]].concat();
        }
        name
    };
    let read = |module: &Module, text: &String| {
        let uses = text.split("\nuse ").skip(1).filter_map(|rest| rest.split_once(';'));
        let named = uses.flat_map(|(tree, _)| leaves(tree)).filter_map(|name| absolute(module, &name, &known));
        (module.clone(), named.map(defined).collect())
    };
    texts.iter().map(|(module, text)| read(module, text)).collect()
}

/// The names in a tree of imports: `a::{b, c::d}` has `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap().trim().to_owned()];
    };
    let (mut depth, mut found, mut one) = (0, Vec::new(), String::new());
    for letter in rest[..rest.rfind('}').unwrap()].chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        match letter {
            ',' if depth == 0 => found.push(std::mem::take(&mut one)),
            _ => one.push(letter),
        }
    }
    found.push(one);
    found
        .iter()
        .filter(|one| !one.trim().is_empty())
        .flat_map(|one| leaves(&format!("{}{}", prefix.trim(), one.trim())))
        .collect()
}

/// The absolute path of a name that a module of the same crate has.
fn absolute(module: &Module, name: &str, known: &BTreeSet<Module>) -> Option<Module> {
    let parts: Vec<_> = name.split("::").map(|part| part.trim().to_owned()).collect();
    let up = parts.iter().take_while(|part| *part == "super").count();
    match parts[0].as_str() {
        "crate" => Some(parts[1..].to_vec()),
        "self" => Some([module, &parts[1..]].concat()),
        "super" => Some([module.get(..module.len().checked_sub(up)?)?, &parts[up..]].concat()),
        first => known.contains(&[&module[..], &[first.to_owned()]].concat()).then(|| [&module[..], &parts].concat()),
    }
}

/// The file that a name belongs to: the longest part of its path names it. The crate's root only hands names on.
fn file_of<'a>(name: &'a [String], imports: &BTreeMap<Module, BTreeSet<Module>>) -> Option<&'a [String]> {
    (1..=name.len()).rev().map(|len| &name[..len]).find(|part| imports.contains_key(*part))
}

/// What the files and the folders of a crate's `src` import of each other.
fn rooms(imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut rooms: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, names) in imports {
        let to = names.iter().filter_map(|name| Some(file_of(name, imports)?[..1].to_vec()));
        rooms.entry(module[..module.len().min(1)].to_vec()).or_default().extend(to);
    }
    rooms
}

/// The files from which one comes back to them by imports.
fn in_circles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let arrows: BTreeMap<_, BTreeSet<_>> = imports
        .iter()
        .map(|(module, names)| {
            (
                &module[..],
                names.iter().filter_map(|name| file_of(name, imports)).filter(|to| *to != &module[..]).collect(),
            )
        })
        .collect();
    let returns = |start: &[String]| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(module) = next.pop() {
            next.extend(arrows[module].iter().filter(|to| seen.insert(**to)));
        }
        seen.contains(start)
    };
    arrows.keys().filter(|module| returns(module)).map(|module| module.to_vec()).collect()
}

#[test]
fn files_and_folders_do_not_import_each_other_in_circles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut circles = BTreeMap::new();
    for entry in fs::read_dir(crates).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name().into_string().unwrap())).unwrap();
        let imports = imports(&path.join("src"));
        assert!(imports.values().any(|names| !names.is_empty()), "no imports are found in {name}");
        // What the root hands out is imported from where it is: a circle through the root would not be seen.
        let of_module = |name: &Module| name.len() != 1 || imports.contains_key(name);
        for (module, names) in &imports {
            let through_root = names.iter().filter(|name| !of_module(name)).collect::<Vec<_>>();
            assert!(through_root.is_empty(), "{name}: {module:?} imports {through_root:?} through the crate's root");
        }
        // Neither do the folders: they have an order, in which each imports what is below it.
        let found: BTreeSet<_> = in_circles(&imports).into_iter().chain(in_circles(&rooms(&imports))).collect();
        if !found.is_empty() {
            circles.insert(name, found);
        }
    }
    assert!(circles.is_empty(), "{circles:#?}");
}

/// What a shard may call of a connection without telling it anything: what it is, what it holds, and its end.
const LOOKED_UP: [&str; 11] = [
    "discard",
    "has_output",
    "idle_since",
    "is_busy",
    "is_idle",
    "memory",
    "output_hint",
    "ready",
    "release",
    "take",
    "wants",
];

/// On each way of `docs/engine.md`, the number of deciding files is that of the files it names, and its calls are those that connections
/// of its protocol have.
#[test]
fn the_ways_through_the_engine_are_as_short_as_the_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap();
    let source = root.join("crates/narval-http/src");
    let page = fs::read_to_string(root.join("docs/engine.md")).unwrap();
    let table = page.split("| way | files | deciding files | calls |\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut ways = Vec::new();
    for row in table.lines().skip(1) {
        let cells: Vec<_> = row.split(" | ").collect();
        let (files, calls) = (quoted(cells[1]), quoted(cells[3]));
        files.iter().for_each(|file| assert!(source.join(file).exists(), "{file} of '{row}'"));
        let files: BTreeSet<_> = files.into_iter().collect();
        assert_eq!(cells[2], files.len().to_string(), "{row}");
        assert!(cells[3].starts_with(&calls.len().to_string()), "{row}");
        ways.push((files.len(), calls));
    }
    let most = [(4, 1), (8, 2), (9, 3), (7, 1)];
    assert_eq!(ways.len(), most.len());
    for ((files, calls), (files_max, calls_max)) in ways.iter().zip(most) {
        assert!(
            *files <= files_max && calls.len() <= calls_max,
            "{files} files decide, and there are the calls {calls:?}"
        );
    }
    for (connection, way) in [("run/http1", 1), ("run/http2/conn", 2), ("ws", 3)] {
        let mut places = Vec::new();
        collect(&source.join(connection), "", &mut places);
        let files = places.iter().filter(|place| place.ends_with(".rs"));
        let texts: String =
            files.map(|place| fs::read_to_string(source.join(connection).join(place)).unwrap()).collect();
        let told = methods(&texts).difference(&LOOKED_UP.map(str::to_owned).into()).cloned().collect::<BTreeSet<_>>();
        assert_eq!(told, ways[way].1.iter().cloned().collect(), "the methods of {connection}");
    }
}

/// Each of the five ways passes through files that exist, none of them twice, and no more than a newcomer can follow.
#[test]
fn the_five_ways_are_as_short_as_the_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap();
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let table = page.split("| way | files | deciding files |\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let (places, most) = (places(), [9, 9, 10, 12, 5]);
    let rows: Vec<_> = table.lines().skip(1).collect();
    assert_eq!(rows.len(), most.len());
    for (row, most) in rows.into_iter().zip(most) {
        let cells: Vec<_> = row.trim_end_matches(" |").rsplitn(3, " | ").collect();
        let files: Vec<_> = cells[1].split('`').skip(1).step_by(2).collect();
        let missing: Vec<_> = files.iter().filter(|file| !places.contains(&format!("/{file}"))).collect();
        assert!(missing.is_empty(), "{row}: {missing:?}");
        assert_eq!(files.iter().collect::<BTreeSet<_>>().len(), files.len(), "{row}: a file stands twice");
        assert_eq!(cells[0], files.len().to_string(), "{row}");
        assert!(files.len() <= most, "{row}: at most {most}");
    }
}

/// The methods of a connection that other parts of the crate may call, without those of tests.
fn methods(text: &str) -> BTreeSet<String> {
    let lines: Vec<_> = text.lines().collect();
    let is_for_tests = |at: usize| at > 0 && lines[at - 1].trim().starts_with("#[cfg(any(test");
    let method = |line: &str| {
        let (name, parameters) = line.trim().strip_prefix("pub(crate) fn ")?.split_once('(')?;
        Some((name.to_owned(), parameters.to_owned()))
    };
    let of_self = |at: usize, parameters: &str| {
        ["&self", "&mut self", "self", "mut self"].iter().any(|this| {
            parameters.starts_with(this) || (parameters.is_empty() && lines[at + 1].trim().starts_with(this))
        })
    };
    let of_connection = |at: usize| {
        let block = lines[..at].iter().rev().find(|line| line.starts_with("impl"));
        block.is_some_and(|block| ["impl Conn {", "impl Stream {"].contains(block))
    };
    let found = (0..lines.len())
        .filter(|at| of_connection(*at) && !is_for_tests(*at))
        .filter_map(|at| Some((at, method(lines[at])?)));
    found.filter(|(at, (_, parameters))| of_self(*at, parameters)).map(|(_, (name, _))| name).collect()
}
