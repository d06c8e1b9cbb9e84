use std::num::NonZero;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use narval_codec::delta::delta_header;
use narval_codec::encode::is_delta_of;
use narval_files::temporary_name;
use narval_http::files::delta_ending;
use narval_nix::Sha256;

use super::delta::find_deltas;
use super::files::compressible;
use super::place::TEMPORARY;
use super::*;

const ALL: [Coding; 3] = [Coding::Zstd, Coding::Brotli, Coding::Gzip];

fn site(root: &Path, into: Option<&Path>) -> Site {
    Site {
        root: root.into(),
        into: into.map(Into::into),
        codings: ALL.to_vec(),
        threads: NonZero::new(2).unwrap(),
        previous: Vec::new(),
    }
}

fn made(site: &Site) -> Summary {
    compress(site, Work::unwatched()).unwrap()
}

fn decoded(path: &Path, coding: Coding) -> Vec<u8> {
    let file = File::open(path).unwrap();
    let mut out = Vec::new();
    match coding {
        Coding::Zstd => zstd::stream::copy_decode(file, &mut out).unwrap(),
        Coding::Brotli => drop(brotli::Decompressor::new(file, 4096).read_to_end(&mut out).unwrap()),
        _ => drop(flate2::read::GzDecoder::new(file).read_to_end(&mut out).unwrap()),
    }
    out
}

#[test]
fn encodings_are_made_once_and_only_where_smaller() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let text = "all work and no play ".repeat(1000);
    fs::create_dir(root.join("sub")).unwrap();
    fs::write(root.join("sub/a.html"), &text).unwrap();
    fs::write(root.join("tiny.html"), "tiny").unwrap();
    fs::write(root.join("photo.png"), &text).unwrap();
    let mut random = Vec::new();
    File::open("/dev/urandom").unwrap().take(2000).read_to_end(&mut random).unwrap();
    fs::write(root.join("random.txt"), &random).unwrap();
    let work = Work::new();
    let summary = compress(&site(root, None), &work).unwrap();
    assert_eq!((work.done().step.count, work.done().count), (2, 2));
    assert_eq!((summary.made, summary.larger), (3, 3));
    for (coding, ending) in ALL.into_iter().zip([".zst", ".br", ".gz"]) {
        let made = root.join(format!("sub/a.html{ending}"));
        assert_eq!(decoded(&made, coding), text.as_bytes());
        let times = [&made, &root.join("sub/a.html")].map(|path| fs::metadata(path).unwrap().modified().unwrap());
        assert_eq!(times[0], times[1]);
        assert!(!root.join(format!("random.txt{ending}")).exists());
    }
    let again = made(&site(root, None));
    assert_eq!((again.made, again.fresh), (0, 3));
    // Nothing but files and their encodings.
    assert_eq!(fs::read_dir(root.join("sub")).unwrap().count(), 4);
}

/// Locks are of an open file, so that threads are to each other what processes are.
#[test]
fn several_at_once_in_one_folder_and_after_a_killed_one() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let text = |number: usize| format!("a{number} {{ color: red }}\n").repeat(300);
    let paths: Vec<_> = (0..4).map(|number| root.join(format!("{number}.css"))).collect();
    for round in 0..5 {
        for (number, path) in paths.iter().enumerate() {
            fs::write(path, text(number + round)).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(round as u64);
            File::open(path).unwrap().set_modified(time).unwrap();
            // Not writable by its owner.
            let left = root.join(temporary_name(TEMPORARY));
            fs::write(&left, text(number)).unwrap();
            fs::set_permissions(&left, fs::Permissions::from_mode(0o444)).unwrap();
        }
        std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(|| made(&site(root, None))));
            for thread in threads {
                assert_eq!(thread.join().unwrap().files, 4);
            }
        });
        for (number, path) in paths.iter().enumerate() {
            for coding in ALL {
                let encoding = with_ending(path, sidecar_ending(coding).unwrap());
                assert_eq!(decoded(&encoding, coding), text(number + round).as_bytes(), "{}", encoding.display());
            }
        }
        assert_eq!(fs::read_dir(root).unwrap().count(), 4 * paths.len());
    }
}

/// What another process removes while the folder is read is none of the site's files.
#[test]
fn files_that_vanish_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::write(root.join("a.css"), "a { color: red }\n".repeat(100)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let names: Vec<_> = (0..50).map(|number| root.join(format!("{number}.css.br.tmp"))).collect();
                names.iter().for_each(|name| fs::write(name, "").unwrap());
                names.iter().for_each(|name| fs::remove_file(name).unwrap());
            }
        });
        let collected = (0..2000).try_for_each(|_| {
            assert_eq!(compressible(root)?.len(), 1);
            Ok::<_, io::Error>(())
        });
        is_over.store(true, Ordering::Relaxed);
        collected.unwrap();
    });
}

#[test]
fn where_nothing_can_be_written_is_named() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("a.css"), "a { color: red }\n".repeat(100)).unwrap();
    let occupied = cache.path().join("file");
    fs::write(&occupied, "").unwrap();
    let site = site(folder.path(), Some(&occupied.join("below")));
    let error = compress(&site, Work::unwatched()).unwrap_err().to_string();
    assert!(error.contains("a.css': cannot make the folder '") && error.contains("file/below'"), "{error}");
}

#[test]
fn a_changed_file_gets_new_encodings_in_the_folder_of_their_own() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let site = site(folder.path(), Some(cache.path()));
    fs::write(folder.path().join("a.css"), "a { color: red }\n".repeat(100)).unwrap();
    made(&site);
    let new = "b { color: blue }\n".repeat(100);
    fs::write(folder.path().join("a.css"), &new).unwrap();
    File::open(folder.path().join("a.css")).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).unwrap();
    assert_eq!(made(&site).made, 3);
    assert_eq!(decoded(&cache.path().join("a.css.br"), Coding::Brotli), new.as_bytes());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn text(seed: u32) -> String {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..2000).map(|_| format!("let v{:x} = {};\n", next(), next())).collect()
}

fn release(root: &Path, previous: &[&Path], into: Option<&Path>) -> Site {
    let previous = previous.iter().map(Into::into).collect();
    Site { codings: vec![Coding::Zstd, Coding::Gzip], previous, ..site(root, into) }
}

fn write(root: &Path, name: &str, content: &str) {
    fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
    fs::write(root.join(name), content).unwrap();
}

fn deltas(root: &Path) -> Vec<String> {
    let found = find_deltas(root).unwrap();
    let mut names: Vec<_> =
        found.into_iter().flat_map(|(of, deltas)| vec![of.to_str().unwrap().to_owned(); deltas.len()]).collect();
    names.sort();
    names
}

#[test]
fn deltas_of_what_changed() {
    let [old, new] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (old, new) = (old.path(), new.path());
    let app = text(1);
    write(old, "js/app.1111.js", &app);
    write(old, "js/app.0000.js", &app[..app.len() / 2]);
    write(new, "js/app.2222.js", &app.replacen("= 1", "= 2", 20));
    for (name, before, after) in
        [("same.css", text(2), text(2)), ("page.html", text(3), text(3) + "more"), ("other.js", text(4), text(5))]
    {
        write(old, name, &before);
        write(new, name, &after);
    }
    write(new, "added.js", &app);
    let summary = made(&release(new, &[old], None));
    assert_eq!(deltas(new), ["js/app.2222.js", "page.html"]);
    assert_eq!(summary.deltas, 2);
    let hash = Sha256::of(app.as_bytes());
    let name = new.join(format!("js/app.2222.js{}", delta_ending(hash.as_bytes())));
    let delta = fs::read(&name).unwrap();
    let content = fs::read(new.join("js/app.2222.js")).unwrap();
    assert!(is_delta_of(&delta, app.as_bytes(), &content).unwrap() && delta.len() < 1000, "{}", delta.len());
    assert!(delta.starts_with(&delta_header(&hash)));
    assert!(is_of_time(&name, fs::metadata(new.join("js/app.2222.js")).unwrap().modified().unwrap()));
    // Nothing is made twice, and nothing is removed where no release is named.
    let again = made(&release(new, &[old], None));
    assert_eq!((again.made, again.deltas), (0, 0));
    made(&release(new, &[], None));
    assert_eq!(deltas(new).len(), 2);
}

#[test]
fn deltas_to_older_contents_are_removed() {
    let [old, new, into] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let (old, new, into) = (old.path(), new.path(), into.path());
    write(old, "a.js", &text(1));
    write(new, "a.js", &(text(1) + "two"));
    let modified = |time: u64| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(time);
        File::open(new.join("a.js")).unwrap().set_modified(time).unwrap();
    };
    modified(1);
    let both = release(new, &[old, new], Some(into));
    made(&both);
    assert_eq!((deltas(into), deltas(new).len()), (vec!["a.js".to_owned()], 0));
    // The same time, as after a reproducible build.
    let three = text(1) + "three";
    write(new, "a.js", &three);
    modified(1);
    assert_eq!(made(&both).deltas, 1);
    let hash = Sha256::of(text(1).as_bytes());
    let delta = fs::read(with_ending(&into.join("a.js"), &delta_ending(hash.as_bytes()))).unwrap();
    assert!(is_delta_of(&delta, text(1).as_bytes(), three.as_bytes()).unwrap());
    // Another time, and no release to make one from.
    write(new, "a.js", &text(7));
    modified(2);
    made(&release(new, &[], Some(into)));
    assert!(deltas(into).is_empty());
}
