//! A Nix store written without Nix, judged by Nix.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod lab;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::{Lab, Nix, odd_tree, run};
use narval_files::Work;
use narval_nix::{NarHash, PathInfo, StorePath};
use narval_store::{
    Environment, GarbageCollector, GarbageOptions, LeftOut, LocalRoots, LocalStore, LocalStoreError, NarReader,
    Prepared, Store, StoreConfig, Unregistered, find_garbage,
};

/// A store with a small closure, and a place for a copy of it.
struct Source {
    lab: Lab,
    store: Store,
    /// All valid paths, references first.
    infos: Vec<PathInfo>,
    top: StorePath,
}

impl Source {
    fn new(nix: Nix) -> Self {
        let lab = Lab::physical(nix);
        let tree = lab.dir.path().join("tree");
        odd_tree(&tree);
        let tree = lab.add(&tree);
        let middle = lab.build("middle", "mkdir $out; ln -s $1 $out/tree; echo $out > $out/self", &[&tree]);
        let top = lab.build("top", "echo $1 $2 > $out; chmod +x $out", &[&middle, &tree]);
        let store = Store::new(lab.config());
        let mut infos: Vec<PathInfo> =
            store.all_valid_paths().unwrap().iter().map(|path| store.path_info(path).unwrap().unwrap()).collect();
        let mut sorted: Vec<PathInfo> = Vec::new();
        while !infos.is_empty() {
            let ready = |info: &PathInfo| {
                info.references.iter().all(|path| *path == info.path || sorted.iter().any(|done| done.path == *path))
            };
            let next = infos.iter().position(ready).unwrap();
            sorted.push(infos.remove(next));
        }
        Self { lab, store, infos: sorted, top }
    }

    fn nar(&self, path: &StorePath) -> Vec<u8> {
        let mut nar = Vec::new();
        NarReader::open(&self.store.real_path(path)).unwrap().read_to_end(&mut nar).unwrap();
        nar
    }

    /// The URI of a copy: other files, another database, the same logical directory.
    fn copy(&self, name: &str) -> String {
        let dir = self.lab.dir.path().join(name).display().to_string();
        format!("local?store={}&real={dir}/store&state={dir}/state&log={dir}/log", self.store.store_dir())
    }
}

fn config(uri: &str) -> StoreConfig {
    StoreConfig::parse(uri, &Environment::default()).unwrap()
}

fn install(source: &Source, store: &LocalStore) -> usize {
    let mut written = 0;
    for info in &source.infos {
        if let Prepared::Missing(mut incoming) = store.prepare(info).unwrap() {
            source.nar(&info.path).chunks(10_000).for_each(|piece| incoming.write(piece).unwrap());
            incoming.commit().unwrap();
            written += 1;
        }
    }
    store.register(&source.infos).unwrap();
    written
}

fn nix_store(nix: Nix, uri: &str, arguments: &[&str]) -> String {
    run(nix.command("nix-store").arg("--store").arg(uri).args(arguments))
}

#[test]
fn nix_uses_the_store_as_its_own() {
    for nix in Nix::BOTH {
        let source = Source::new(nix);
        let uri = source.copy("copy");
        let store = LocalStore::open(config(&uri)).unwrap();
        assert_eq!(install(&source, &store), source.infos.len());
        assert_eq!(install(&source, &store), 0, "all is there");
        drop(store);
        // What was written is what was read.
        let copy = Store::new(config(&uri));
        for info in &source.infos {
            assert_eq!(copy.path_info(&info.path).unwrap().as_ref(), Some(info));
        }
        for judge in Nix::BOTH {
            nix_store(judge, &uri, &["--verify", "--check-contents"]);
            for info in &source.infos {
                let full = source.lab.full(&info.path);
                for query in ["--references", "--referrers", "--deriver", "--hash", "--size", "--requisites"] {
                    let mine = nix_store(judge, &uri, &["-q", query, &full]);
                    assert_eq!(mine, source.lab.nix_store(&["-q", query, &full]), "{query} {full}");
                }
                if info.path.is_derivation() {
                    let outputs = nix_store(judge, &uri, &["-q", "--outputs", &full]);
                    assert_eq!(outputs, source.lab.nix_store(&["-q", "--outputs", &full]));
                }
            }
            // And it keeps using it.
            let file = source.lab.dir.path().join("more");
            std::fs::write(&file, format!("{judge:?}")).unwrap();
            nix_store(judge, &uri, &["--add", file.to_str().unwrap()]);
        }
        assert_eq!(copy.all_valid_paths().unwrap().len(), source.infos.len() + 2);
    }
}

#[test]
fn a_store_root_for_nix() {
    let lab = Lab::new(Nix::New);
    let tree = lab.dir.path().join("tree");
    odd_tree(&tree);
    let path = lab.add(&tree);
    let info = Store::new(lab.config()).path_info(&path).unwrap().unwrap();
    let root = lab.dir.path().join("mine");
    let store = LocalStore::open(StoreConfig::for_root(&root).unwrap()).unwrap();
    match store.prepare(&info).unwrap() {
        Prepared::Missing(mut incoming) => {
            let mut nar = NarReader::open(&lab.config().real_store_dir.join(path.base_name())).unwrap();
            std::io::copy(&mut nar, &mut Writer(&mut incoming)).unwrap();
            incoming.commit().unwrap();
        }
        other => panic!("{other:?}"),
    }
    store.register(std::slice::from_ref(&info)).unwrap();
    drop(store);
    for judge in Nix::BOTH {
        nix_store(judge, root.to_str().unwrap(), &["--verify", "--check-contents"]);
        assert_eq!(
            nix_store(judge, root.to_str().unwrap(), &["-q", "--hash", &lab.full(&path)]),
            format!("sha256:{}", info.nar_hash.to_nix32())
        );
    }
}

struct Writer<'a, 'b>(&'a mut narval_store::Incoming<'b>);

impl std::io::Write for Writer<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes).map(|()| bytes.len()).map_err(std::io::Error::other)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn wrong_contents_leave_nothing() {
    let source = Source::new(Nix::New);
    let uri = source.copy("copy");
    let store = LocalStore::open(config(&uri)).unwrap();
    let info = source.infos[0].clone();
    let nar = source.nar(&info.path);
    let attempts: [(&str, PathInfo, &[u8]); 4] = [
        ("hash", PathInfo { nar_hash: NarHash::of(b""), ..info.clone() }, &nar),
        ("truncated", info.clone(), &nar[..nar.len() - 8]),
        ("smaller than declared", PathInfo { nar_size: info.nar_size + 8, ..info.clone() }, &nar),
        ("larger than declared", PathInfo { nar_size: info.nar_size - 8, ..info.clone() }, &nar),
    ];
    for (what, info, nar) in attempts {
        let Prepared::Missing(mut incoming) = store.prepare(&info).unwrap() else { panic!("{what}") };
        let outcome = incoming.write(nar).and_then(|()| incoming.commit().map(drop));
        assert!(matches!(outcome, Err(LocalStoreError::Hash { .. } | LocalStoreError::Unpack { .. })), "{what}");
        assert_eq!(names(&store.config().real_store_dir), [".links"], "{what}");
    }
    let refused = store.register(std::slice::from_ref(&info));
    assert!(matches!(refused, Err(LocalStoreError::Missing { .. })));
    // A part of a closure is no closure.
    install(&source, &LocalStore::open(config(&source.copy("whole"))).unwrap());
    let top = source.infos.iter().find(|info| info.path == source.top).unwrap();
    let Prepared::Missing(mut incoming) = store.prepare(top).unwrap() else { panic!("it is not there") };
    incoming.write(&source.nar(&top.path)).unwrap();
    incoming.commit().unwrap();
    assert!(matches!(store.register(std::slice::from_ref(top)), Err(LocalStoreError::Reference { .. })));
    assert!(!store.database().is_valid(&top.path).unwrap());
    // It is there, though, and is not asked for again; broken, it is.
    assert!(matches!(store.prepare(top).unwrap(), Prepared::Present));
    let real = store.real_path(&top.path);
    std::fs::remove_file(&real).unwrap();
    std::fs::write(&real, "broken").unwrap();
    assert!(matches!(store.prepare(top).unwrap(), Prepared::Missing(_)));
}

#[test]
fn cycles_are_refused() {
    let source = Source::new(Nix::New);
    let store = LocalStore::open(config(&source.copy("copy"))).unwrap();
    let mut infos = source.infos.clone();
    install(&source, &store);
    let last = infos.len() - 1;
    let first = infos[0].path.clone();
    let (a, b) = (infos[last].path.clone(), first);
    infos[0].references.insert(a);
    infos[last].references.insert(b);
    assert!(matches!(store.register(&infos), Err(LocalStoreError::Cycle { .. })));
}

#[test]
fn a_damaged_path_is_replaced() {
    let source = Source::new(Nix::New);
    let uri = source.copy("copy");
    let store = LocalStore::open(config(&uri)).unwrap();
    install(&source, &store);
    let info = source.infos.iter().find(|info| info.path == source.top).unwrap();
    let real = store.real_path(&info.path);
    std::fs::remove_file(&real).unwrap();
    std::fs::write(&real, "broken").unwrap();
    let mut incoming = store.prepare_repair(info).unwrap();
    incoming.write(&source.nar(&info.path)).unwrap();
    incoming.commit().unwrap();
    drop(store);
    nix_store(Nix::New, &uri, &["--verify", "--check-contents"]);
    let left = names(&config(&uri).real_store_dir);
    assert!(left.iter().all(|name| !name.contains("-narval-tmp-") && !name.ends_with(".lock")), "{left:?}");
}

/// Points the link to the path, and registers it as a root.
fn add_root(store: &LocalStore, link: &Path, path: &StorePath) {
    // There may be none yet.
    let _ = std::fs::remove_file(link);
    std::os::unix::fs::symlink(store.config().store_dir.display(path).to_string(), link).unwrap();
    store.add_indirect_root(link).unwrap();
}

#[test]
fn garbage() {
    let source = Source::new(Nix::New);
    let uri = source.copy("copy");
    let store = LocalStore::open(config(&uri)).unwrap();
    install(&source, &store);
    let middle = source.infos.iter().find(|info| info.path.name() == "middle").unwrap().path.clone();
    let link = source.lab.dir.path().join("result");
    add_root(&store, &link, &middle);
    let roots = store.roots().unwrap();
    assert!(roots.iter().any(|root| root.source == link && root.path == middle), "{roots:?}");
    // An unregistered path.
    std::fs::write(store.config().real_store_dir.join("00000000000000000000000000000000-x"), "x").unwrap();
    drop(store);
    let dead: Vec<String> = nix_store_dead(&uri);
    let dry = find_garbage(&config(&uri), &GarbageOptions::default(), Work::unwatched()).unwrap();
    let mut mine: Vec<String> = dry.paths.iter().map(|path| source.lab.full(path)).collect();
    mine.extend(dry.leftovers.iter().map(|name| format!("{}/{name}", source.store.store_dir())));
    mine.sort();
    assert_eq!(mine, dead, "the same as Nix finds");
    assert_eq!(dry.leftovers.len(), 1);

    let collector = GarbageCollector::open(config(&uri)).unwrap();
    let refused = collector
        .collect(&GarbageOptions { only: Some(vec![middle.clone()]), ..GarbageOptions::default() }, Work::unwatched());
    assert!(matches!(refused, Err(LocalStoreError::Alive { .. })));
    let interrupted = Work::new();
    interrupted.stop();
    let done = collector.collect(&GarbageOptions::default(), &interrupted).unwrap();
    assert_eq!((done.is_stopped, done.paths.len(), done.kept), (true, 0, dry.kept + dry.paths.len()));
    let done = collector.collect(&GarbageOptions::default(), Work::unwatched()).unwrap();
    assert_eq!((&done.paths, &done.leftovers, done.kept), (&dry.paths, &dry.leftovers, dry.kept));
    assert!(done.bytes_freed > 0 && done.not_removed.is_empty());
    assert_eq!(done.bytes_freed, dry.bytes_freed);
    assert!(collector.store().database().is_valid(&middle).unwrap());
    drop(collector);
    nix_store(Nix::New, &uri, &["--verify", "--check-contents"]);
    std::fs::remove_file(&link).unwrap();
    let collector = GarbageCollector::open(config(&uri)).unwrap();
    collector.collect(&GarbageOptions::default(), Work::unwatched()).unwrap();
    assert_eq!(names(&collector.store().config().real_store_dir), [".links"]);
}

fn nix_store_dead(uri: &str) -> Vec<String> {
    let dead = nix_store(Nix::New, uri, &["--gc", "--print-dead"]);
    let mut dead: Vec<String> = dead.lines().map(str::to_owned).collect();
    dead.sort();
    dead
}

/// Collections of every kind in the middle of an unpack, and before what is unpacked is valid.
#[test]
fn collections_keep_what_is_being_added() {
    let source = Source::new(Nix::New);
    let uri = source.copy("copy");
    let collect = || {
        for nix in Nix::BOTH {
            nix_store(nix, &uri, &["--gc"]);
        }
        GarbageCollector::open(config(&uri)).unwrap().collect(&GarbageOptions::default(), Work::unwatched()).unwrap();
    };
    // Each Nix sets the store up for itself, with the whole of it locked.
    collect();
    let store = LocalStore::open(config(&uri)).unwrap();
    for info in &source.infos {
        let Prepared::Missing(mut incoming) = store.prepare(info).unwrap() else { panic!("it is not there") };
        let nar = source.nar(&info.path);
        let (first, rest) = nar.split_at(nar.len() / 2);
        incoming.write(first).unwrap();
        collect();
        incoming.write(rest).unwrap();
        incoming.commit().unwrap();
    }
    collect();
    store.register(&source.infos).unwrap();
    collect();
    assert_eq!(store.database().all_valid_paths().unwrap().len(), source.infos.len());
    drop(store);
    nix_store(Nix::New, &uri, &["--verify", "--check-contents"]);
    collect();
    assert_eq!(names(&config(&uri).real_store_dir), [".links"]);
}

/// A sandboxed builder works in `<derivation>.chroot`, and only the derivation is its root.
#[test]
fn a_root_keeps_every_name_with_its_hash_part() {
    let source = Source::new(Nix::New);
    let uri = source.copy("copy");
    let store = LocalStore::open(config(&uri)).unwrap();
    install(&source, &store);
    let derivation = source.infos.iter().find(|info| info.path.is_derivation()).unwrap().path.clone();
    drop(store);
    let roots = LocalRoots::new(&config(&uri));
    roots.keep([&derivation]).unwrap();
    let chroot = config(&uri).real_store_dir.join(format!("{}.chroot", derivation.base_name()));
    std::fs::create_dir(&chroot).unwrap();
    nix_store(Nix::New, &uri, &["--gc"]);
    let collector = GarbageCollector::open(config(&uri)).unwrap();
    collector.collect(&GarbageOptions::default(), Work::unwatched()).unwrap();
    assert!(chroot.is_dir() && collector.store().database().is_valid(&derivation).unwrap());
    drop(roots);
    collector.collect(&GarbageOptions::default(), Work::unwatched()).unwrap();
    assert!(!chroot.exists());
}

#[test]
fn outputs_and_derivations_are_kept_as_nix_keeps_them() {
    let source = Source::new(Nix::New);
    let uri = source.copy("copy");
    let store = LocalStore::open(config(&uri)).unwrap();
    install(&source, &store);
    let link = source.lab.dir.path().join("result");
    let middle = source.infos.iter().find(|info| info.path.name() == "middle").unwrap();
    for root in [&middle.path, middle.deriver.as_ref().unwrap()] {
        add_root(&store, &link, root);
        for (keep_outputs, keep_derivations) in [(false, true), (true, true), (false, false), (true, false)] {
            let options = GarbageOptions { keep_outputs, drop_derivations: !keep_derivations, ..Default::default() };
            let garbage = find_garbage(&config(&uri), &options, Work::unwatched()).unwrap();
            let mut mine: Vec<String> = garbage.paths.iter().map(|path| source.lab.full(path)).collect();
            mine.sort();
            let (outputs, derivations) = (keep_outputs.to_string(), keep_derivations.to_string());
            let settings = ["--option", "keep-outputs", &outputs, "--option", "keep-derivations", &derivations];
            let dead = nix_store(Nix::New, &uri, &[&["--gc", "--print-dead"][..], &settings].concat());
            let mut dead: Vec<&str> = dead.lines().collect();
            dead.sort_unstable();
            assert_eq!(mine, dead, "{root} {options:?}");
        }
    }
}

/// What took the place of a path between its last byte and its registration is seen; nothing that refers to it is valid.
#[test]
fn an_exchanged_path_is_not_registered() {
    let source = Source::new(Nix::New);
    let store = LocalStore::open(config(&source.copy("copy"))).unwrap();
    for info in &source.infos {
        let Prepared::Missing(mut incoming) = store.prepare(info).unwrap() else { panic!("it is not there") };
        incoming.write(&source.nar(&info.path)).unwrap();
        incoming.commit().unwrap();
    }
    let first = source.infos.iter().find(|info| info.path.name() == "tree").unwrap().clone();
    let real = store.real_path(&first.path);
    run(Command::new("chmod").args(["-R", "u+w"]).arg(&real));
    std::fs::remove_dir_all(&real).unwrap();
    std::fs::create_dir(&real).unwrap();
    assert!(matches!(store.register(&source.infos), Err(LocalStoreError::Changed { path }) if path == first.path));
    let left = store.register_unchanged(&source.infos).unwrap();
    assert_eq!((&left[0].info.path, left[0].why), (&first.path, LeftOut::Changed));
    assert!(left[1..].iter().all(|one| one.why == LeftOut::Reference));
    assert!(left.iter().any(|one| one.info.path == source.top));
    for Unregistered { info, .. } in left {
        assert!(!store.database().is_valid(&info.path).unwrap());
        match store.prepare_to_register(&info).unwrap() {
            Prepared::Missing(mut incoming) => {
                incoming.write(&source.nar(&info.path)).unwrap();
                incoming.commit().unwrap();
            }
            other => assert!(matches!(other, Prepared::Valid), "{other:?}"),
        }
        assert!(store.database().is_valid(&info.path).unwrap());
    }
    drop(store);
    nix_store(Nix::New, &source.copy("copy"), &["--verify", "--check-contents"]);
}

#[test]
fn two_installs_at_once() {
    let source = Source::new(Nix::New);
    let uri = source.copy("copy");
    let written: usize = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| install(&source, &LocalStore::open(config(&uri)).unwrap()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(written, source.infos.len(), "each path is written once");
    nix_store(Nix::New, &uri, &["--verify", "--check-contents"]);
}

/// The child of [`killed_at_any_moment`]; alone it does nothing.
#[test]
fn installs_until_killed() {
    let Some(from) = std::env::var_os("NARVAL_TEST_FROM") else { return };
    let to = std::env::var("NARVAL_TEST_TO").unwrap();
    let source = Store::new(config(from.to_str().unwrap()));
    let infos: Vec<PathInfo> =
        source.all_valid_paths().unwrap().iter().map(|path| source.path_info(path).unwrap().unwrap()).collect();
    let store = LocalStore::open(config(&to)).unwrap();
    store.remove_leftovers().unwrap();
    for info in &infos {
        if let Prepared::Missing(mut incoming) = store.prepare(info).unwrap() {
            let mut nar = NarReader::open(&source.real_path(&info.path)).unwrap();
            std::io::copy(&mut nar, &mut Writer(&mut incoming)).unwrap();
            incoming.commit().unwrap();
        }
    }
    store.register(&infos).unwrap();
}

#[test]
fn killed_at_any_moment() {
    let source = Source::new(Nix::New);
    let uri = source.copy("copy");
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "installs_until_killed"])
            .env("NARVAL_TEST_FROM", source.lab.uri())
            .env("NARVAL_TEST_TO", &uri)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let check = || {
        let copy = Store::new(config(&uri));
        let Ok(valid) = copy.all_valid_paths() else { return 0 };
        for path in &valid {
            let info = copy.path_info(path).unwrap().unwrap();
            let mut nar = Vec::new();
            NarReader::open(&copy.real_path(path)).unwrap().read_to_end(&mut nar).unwrap();
            assert_eq!(NarHash::of(&nar), info.nar_hash, "{path} is valid and not whole");
        }
        // All of a closure or nothing.
        assert!(valid.is_empty() || valid.len() == source.infos.len());
        valid.len()
    };
    let mut completed = 0;
    for round in 0..60_u64 {
        let mut child = start();
        std::thread::sleep(Duration::from_micros(round * 1500));
        child.kill().ok();
        child.wait().unwrap();
        if check() > 0 {
            completed += 1;
            for part in ["store", "state"] {
                let dir = source.lab.dir.path().join("copy").join(part);
                run(Command::new("chmod").args(["-R", "u+w"]).arg(&dir));
                std::fs::remove_dir_all(dir).unwrap();
            }
        }
    }
    let mut child = start();
    assert!(child.wait().unwrap().success(), "{completed} completed before");
    assert_eq!(check(), source.infos.len());
    nix_store(Nix::New, &uri, &["--verify", "--check-contents"]);
    assert!(names(&config(&uri).real_store_dir).iter().all(|name| !name.contains("-narval-tmp-")));
}

#[test]
fn what_is_added_has_the_path_that_nix_gives_it() {
    let lab = Lab::new(Nix::New);
    let tree = lab.dir.path().join("tree");
    odd_tree(&tree);
    let expected = lab.add(&tree);
    let root = lab.dir.path().join("mine");
    let store = LocalStore::open(StoreConfig::for_root(&root).unwrap()).unwrap();
    let add = |go_on| store.add(&tree, &"tree".parse().unwrap(), BTreeSet::new(), go_on);
    add(&|| Err(std::io::ErrorKind::Interrupted.into())).unwrap_err();
    for _ in 0..2 {
        let info = add(&|| Ok(())).unwrap();
        assert_eq!(info.path, expected);
        store.register(&[info]).unwrap();
    }
    drop(store);
    nix_store(Nix::New, root.to_str().unwrap(), &["--verify", "--check-contents"]);
}
