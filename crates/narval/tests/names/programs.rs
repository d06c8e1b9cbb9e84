//! `narval which-package --all`: the list of programs in a channel's archive of expressions.

use std::io::Read;

use rusqlite::Connection;

use crate::place::{Place, path};

/// An archive with these files.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, contents) in files {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
        header[148..156].fill(b' ');
        (header[156], header[257]) = (b'0', b'u');
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        tar.extend(header);
        tar.extend(*contents);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.extend([0; 1024]);
    tar
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    liblzma::read::XzEncoder::new(bytes, 1).read_to_end(&mut packed).unwrap();
    packed
}

/// A database that these statements make.
fn database(place: &Place, statements: &str) -> Vec<u8> {
    let file = place.home().join("programs.sqlite");
    drop(std::fs::remove_file(&file));
    Connection::open(&file).unwrap().execute_batch(statements).unwrap();
    std::fs::read(file).unwrap()
}

const TABLE: &str = "CREATE TABLE Programs (name TEXT NOT NULL, system TEXT NOT NULL, package TEXT NOT NULL, PRIMARY KEY (name, system, package));";

fn publish(place: &Place, release: &str, packed: Vec<u8>) {
    place.publish(release);
    place.site.lock().unwrap().files.insert(format!("/releases/{release}/nixexprs.tar.xz"), packed);
    place.lead_to(release);
    place.done(&["update"]);
}

#[test]
fn all_programs_are_found_once_their_list_was_fetched() {
    let place = Place::new();
    let rows = "INSERT INTO Programs VALUES ('xxd','x86_64-linux','vim'), ('xxd','aarch64-linux','hello'), ('vi','x86_64-linux','vim');";
    let list = database(&place, &format!("{TABLE}{rows}"));
    let long = vec![b'x'; 100_000];
    let tar = archive(&[
        ("nixos-1/default.nix", &long),
        ("nixos-1/a/programs.sqlite", b"not this"),
        ("nixos-1/programs.sqlite", &list),
    ]);
    publish(&place, "two", xz(&tar));
    place.asked();
    let message = place.fails(3, &["which-package", "xxd"]);
    assert!(message.contains("no package whose main program is 'xxd'; --all fetches the list"), "{message}");
    assert!(place.done(&["which-package", "vi"]).starts_with("vim  9.1"));
    assert!(!place.asked().iter().any(|target| target.contains("nixexprs")), "only when asked");
    assert!(place.done(&["which-package", "--all", "xxd"]).starts_with("vim  9.1"));
    assert!(place.asked().iter().any(|target| target == "/releases/two/nixexprs.tar.xz"));
    // It is there now, each package once, and for the system.
    assert_eq!(place.done(&["which-package", "vi"]).lines().count(), 1);
    assert!(place.done(&["which-package", "xxd", "--system", "aarch64-linux"]).starts_with("hello"));
    assert!(place.done(&["which-package", "--all", "--offline", "xxd"]).starts_with("vim"));
    assert_eq!(place.asked(), Vec::<String>::new());
    let message = place.fails(3, &["which-package", "nothing"]);
    assert!(message.contains("no package with a program 'nothing'") && !message.contains("--all"), "{message}");
    // A release without it: that is remembered, too.
    publish(&place, "three", xz(&archive(&[("nixpkgs-1/default.nix", b"")])));
    let message = place.fails(3, &["which-package", "--all", "xxd"]);
    assert!(message.contains("has no list of all programs"), "{message}");
    place.asked();
    place.fails(3, &["which-package", "--all", "xxd"]);
    assert_eq!(place.asked(), Vec::<String>::new());
    assert!(place.done(&["install", "hello"]).contains(&path('0', "hello-2.12")));
}

/// Each of these ends with one line, and leaves nothing behind.
#[test]
fn a_torn_or_hostile_list_of_programs_is_refused() {
    let place = Place::new();
    let whole = |list: &[u8]| archive(&[("n/programs.sqlite", list)]);
    let view = "CREATE TABLE t (x); CREATE VIEW Programs AS WITH RECURSIVE r(n) AS (SELECT 'a' UNION ALL SELECT n FROM r) SELECT n AS name, n AS system, n AS package FROM r;";
    let generated = "CREATE TABLE Programs (x, name AS (hex(zeroblob(100000000))), system AS ('a'), package AS ('b')); INSERT INTO Programs VALUES (1);";
    let row =
        |name: &str| database(&place, &format!("{TABLE} INSERT INTO Programs VALUES ('{name}','x86_64-linux','vim');"));
    let good = row("a");
    let mut wrong_sum = whole(&good);
    wrong_sum[0] = b'm';
    let mut huge = whole(b"");
    huge[124..135].copy_from_slice(b"77777777777");
    huge[148..156].fill(b' ');
    let sum: u64 = huge[..512].iter().map(|byte| u64::from(*byte)).sum();
    huge[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    for (at, (tar, message)) in [
        (
            whole(b"not a database, but long enough to be taken for one by somebody who does not look"),
            "is not a database",
        ),
        (whole(&good[..good.len() / 2]), "programs.sqlite is not valid"),
        (whole(&database(&place, view)), "no plain table 'Programs'"),
        (whole(&database(&place, generated)), "no plain table 'Programs'"),
        (whole(&database(&place, "CREATE TABLE Other (name);")), "no plain table 'Programs'"),
        (whole(&row("../../etc/passwd")), "a name has a '/'"),
        (whole(&row("a\u{1b}[2J")), "a control character"),
        (wrong_sum, "a header is wrong"),
        (huge, "it has more than 2147483648 bytes"),
        (whole(&good)[..700].to_vec(), "it ends too early"),
        (b"short".to_vec(), "it ends too early"),
    ]
    .into_iter()
    .enumerate()
    {
        publish(&place, &format!("bad-{at}"), xz(&tar));
        let all = place.fails(1, &["which-package", "--all", "xxd"]);
        assert!(all.contains(message) && all.lines().count() == 1 && !all.contains('\u{1b}'), "{message}: {all}");
        let left = place.names().iter().filter(|file| file.to_string_lossy().contains("narval-tmp")).count();
        assert!(left == 0 && !place.names().iter().any(|file| file.extension().is_some_and(|end| end == "programs")));
    }
    let mut packed = xz(&archive(&[("n/programs.sqlite", &good)]));
    packed.truncate(packed.len() / 2);
    publish(&place, "torn", packed);
    let message = place.fails(1, &["which-package", "--all", "xxd"]);
    assert_eq!(message.lines().count(), 1, "{message}");
}
