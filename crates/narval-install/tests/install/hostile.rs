//! Caches that mean harm: refused with a reason, and nothing outside the store touched, nothing left in it.

use crate::support::{Act, Server, file_nar, install_from, names_in};
use narval_install::{CacheError, Error};
use narval_nix::Sha256;
use narval_nix::nar::wire;

/// Installs a path with this NAR, and its narinfo changed; the error, after a look for what was left.
fn refused(nar: &[u8], change: impl Fn(String) -> String) -> Error {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let path = server.add("evil", nar, &[], change);
    let error = install_from(&[&server.url], root.path(), &[&path]).unwrap_err();
    assert_eq!(names_in(root.path()), Vec::<String>::new(), "{error}");
    error
}

/// The inside of a node, from its type on: a regular file or a symlink.
fn file(contents: &[u8]) -> Vec<u8> {
    file_nar(contents)[wire::HEAD.len()..].to_vec()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    let padding = vec![0; bytes.len().next_multiple_of(8) - bytes.len()];
    [&(bytes.len() as u64).to_le_bytes()[..], bytes, &padding].concat()
}

fn symlink(target: &[u8]) -> Vec<u8> {
    [&wire::SYMLINK[..], &text(target), &wire::CLOSE].concat()
}

fn directory(entries: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let mut node = wire::DIRECTORY.to_vec();
    for (name, child) in entries {
        node.extend([&wire::ENTRY[..], &text(name), &wire::NODE, child, &wire::CLOSE].concat());
    }
    [&node[..], &wire::CLOSE].concat()
}

fn nar(node: &[u8]) -> Vec<u8> {
    [&wire::HEAD[..], node].concat()
}

/// The hostile archives of Nix's own tests (`tests/functional/nars.sh`), and the rules of its `archive.cc`.
#[test]
fn every_malformed_nar_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap().as_bytes();
    let deep = (0..70).fold(file(b"x"), |node, _| directory(&[(b"a", node)]));
    let long = (0..20).fold(file(b"x"), |node, _| directory(&[(&[b'a'; 240], node)]));
    let mut padded = nar(&file(b"abc"));
    let at = padded.len() - wire::CLOSE.len() - 1;
    padded[at] = 1;
    let good = nar(&directory(&[(b"a", file(b"1")), (b"b", symlink(b"a"))]));
    let mut cases = vec![
        ("a duplicate name", nar(&directory(&[(b"a", file(b"1")), (b"a", file(b"2"))]))),
        ("a duplicate that goes through a symlink", {
            nar(&directory(&[(b"a", symlink(target)), (b"a", directory(&[(b"pwned", file(b"x"))]))]))
        }),
        ("names in disorder", nar(&directory(&[(b"b", file(b"1")), (b"a", file(b"2"))]))),
        ("dot", nar(&directory(&[(b".", file(b"1"))]))),
        ("dotdot", nar(&directory(&[(b"..", file(b"1"))]))),
        ("a slash", nar(&directory(&[(b"a/b", file(b"1"))]))),
        ("an absolute name", nar(&directory(&[([b"/", target].concat().as_slice(), file(b"1"))]))),
        ("NUL in a name", nar(&directory(&[(b"a\0b", file(b"1"))]))),
        ("an empty name", nar(&directory(&[(b"", file(b"1"))]))),
        ("a name of 256 bytes", nar(&directory(&[(&[b'a'; 256], file(b"1"))]))),
        ("an empty target", nar(&symlink(b""))),
        ("NUL in a target", nar(&symlink(b"a\0b"))),
        ("a target of 4096 bytes", nar(&symlink(&[b'a'; 4096]))),
        ("nodes too deep", nar(&deep)),
        // Nix's own check of the store would end at it.
        ("paths of more than 4095 bytes", nar(&long)),
        ("padding that is not zero", padded),
        ("a length beyond everything", [&wire::HEAD[..], &wire::REGULAR, &u64::MAX.to_le_bytes()].concat()),
        ("bytes after the end", [&good[..], &[0; 8]].concat()),
        ("something that is no NAR", b"hello, this is no archive at all".to_vec()),
    ];
    for cut in (8..good.len()).step_by(40) {
        cases.push(("an archive cut short", good[..cut].to_vec()));
    }
    for (what, nar) in cases {
        let error = refused(&nar, |narinfo| narinfo);
        assert_eq!(error.exit_code(), 4, "{what}: {error}");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "{what} wrote outside");
    }
}

#[test]
fn a_narinfo_of_another_path_is_refused() {
    let other = "0000000000000000000000000000000a-other";
    let error = refused(&file_nar(b"x"), |narinfo| {
        let (_, rest) = narinfo.split_once('\n').unwrap();
        format!("StorePath: /nix/store/{other}\n{rest}")
    });
    assert!(error.to_string().contains(other), "{error}");
}

#[test]
fn references_that_leave_the_store_are_refused() {
    for reference in ["../../etc/passwd", "/etc/passwd", "0000000000000000000000000000000a-..", "x"] {
        let error =
            refused(&file_nar(b"x"), |narinfo| narinfo.replace("References: ", &format!("References: {reference}")));
        assert_eq!(error.exit_code(), 4, "{reference}: {error}");
    }
}

#[test]
fn wrong_lengths_and_hashes_are_refused() {
    let nar = file_nar(b"hello");
    let size = format!("NarSize: {}", nar.len());
    let other = Sha256::of(b"other").to_string();
    let right = Sha256::of(&nar).to_string();
    type Change<'a> = Box<dyn Fn(String) -> String + 'a>;
    let changes: [(&str, Change<'_>); 4] = [
        ("NarSize", Box::new(|text| text.replace(&size, &format!("NarSize: {}", nar.len() - 8)))),
        ("NarSize", Box::new(|text| text.replace(&size, "NarSize: 4000000"))),
        ("NarHash", Box::new(|text| text.replace(&format!("NarHash: {right}"), &format!("NarHash: {other}")))),
        ("damaged", Box::new(|text| text.replace("Compression: none", "Compression: xz"))),
    ];
    for (what, change) in &changes {
        let error = refused(&nar, change);
        assert_eq!(error.exit_code(), 4, "{what}: {error}");
        assert!(!error.to_string().contains(" is more"), "{error}");
    }
}

/// No order makes such paths valid.
#[test]
fn cycles_are_refused() {
    let names = ["aa", "bb", "cc"].map(|name| format!("{}-{name}", &Sha256::of(name.as_bytes()).to_nix32()[..32]));
    for length in [2, 3] {
        let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
        for at in 0..length {
            let name = names[at].split_once('-').unwrap().1;
            // A path may refer to itself.
            server.add(name, &file_nar(b"x"), &[&names[at], &names[(at + 1) % length]], |narinfo| narinfo);
        }
        let error = install_from(&[&server.url], root.path(), &[&names[0]]).unwrap_err();
        let message = error.to_string();
        assert_eq!(error.exit_code(), 4, "{message}");
        assert!(message.starts_with(&server.url), "{message}");
        assert_eq!(names.iter().filter(|name| message.contains(name.as_str())).count(), 2, "{message}");
    }
}

/// Networks of hotels answer any request with a page.
#[test]
fn pages_in_place_of_files_are_named() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let path = server.add("x", &file_nar(b"x"), &[], |_| "<!DOCTYPE html>\n<html></html>".to_owned());
    let message = install_from(&[&server.url], root.path(), &[&path]).unwrap_err().to_string();
    assert!(message.contains("this is an HTML page; is a login needed?"), "{message}");
    server.put("/nix-cache-info", b"<html>Welcome: a login is needed</html>".to_vec());
    let message = install_from(&[&server.url], root.path(), &[&path]).unwrap_err().to_string();
    assert!(message.ends_with("nix-cache-info: this is an HTML page; is a login needed?"), "{message}");
}

#[test]
fn bombs_end_at_the_size_they_declare() {
    let declared = refused(&file_nar(b"x"), |text| text.replace("NarSize: 120", "NarSize: 10000000000000000"));
    assert_eq!(declared.exit_code(), 6, "by declared size: {declared}");
    let message = declared.to_string();
    assert!(
        message.contains("10000 TB for ") && message.contains(" of http://127.0.0.1:"),
        "path and cache: {message}"
    );
    // A gigabyte of zeros in a few dozen kilobytes, declared as one.
    let mut zeros = zstd_safe::CCtx::create();
    let (input, mut bomb, mut out) = (vec![0; 1 << 20], Vec::new(), vec![0; 1 << 20]);
    for _ in 0..1024 {
        let mut from = zstd_safe::InBuffer::around(&input);
        while from.pos() < input.len() {
            let mut to = zstd_safe::OutBuffer::around(out.as_mut_slice());
            zeros.compress_stream(&mut to, &mut from).unwrap();
            bomb.extend_from_slice(to.as_slice());
        }
    }
    let nar = file_nar(&[0; 1000]);
    let (hash, size) = (Sha256::of(&nar).to_string(), nar.len());
    let ratio = refused(&bomb, |text| {
        let lines = text.lines().map(|line| match line.split_once(": ").unwrap().0 {
            "Compression" => "Compression: zstd".to_owned(),
            "NarHash" => format!("NarHash: {hash}"),
            "NarSize" => format!("NarSize: {size}"),
            _ => line.to_owned(),
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
    assert!(ratio.to_string().contains("NarSize"), "by ratio: {ratio}");
}

/// Installs with signatures checked, and no key to trust.
fn install_checked(server: &Server, root: &std::path::Path, path: &str) -> Result<narval_install::Report, Error> {
    use narval_client::Url;
    use narval_install::{Destination, Options, Progress, Wanted, install};
    let options = Options {
        caches: vec![Url::parse(&server.url).unwrap()],
        keys: narval_nix::TrustedKeys::new(),
        check_signatures: true,
        cores: 1,
        durable: false,
        deltas: Default::default(),
        delta_bases: Vec::new(),
        nar_hashes: std::collections::HashMap::new(),
    };
    let destination = Destination::new(narval_store::StoreConfig::for_root(root).unwrap());
    let wanted = [Wanted::parse(path, destination.store_dir()).unwrap()];
    install(&destination, &options, &crate::support::client(), &wanted, &Progress::default())
}

/// What a name says of a file's contents needs no signature, and is checked against the contents.
#[test]
fn contents_that_are_not_those_of_the_name_are_refused() {
    use narval_nix::{ContentAddress, StoreDir};
    let executable = {
        let len = 5_u64.to_le_bytes();
        [&wire::HEAD[..], &wire::EXECUTABLE, &len, b"right\0\0\0", &wire::CLOSE].concat()
    };
    for method in ["text:", "fixed:"] {
        let ca: ContentAddress = format!("{method}{}", Sha256::of(b"right")).parse().unwrap();
        let name = "named".parse().unwrap();
        let path = ca.store_path(&StoreDir::default(), &name, &std::collections::BTreeSet::new(), false).unwrap();
        let cases = [
            ("as named", file_nar(b"right"), true),
            ("other contents", file_nar(b"wrong"), false),
            ("no file", nar(&directory(&[(b"a", file(b"right"))])), false),
            ("an executable", executable.clone(), false),
        ];
        for (what, nar, good) in cases {
            let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
            let (hash, size) = (Sha256::of(&nar), nar.len());
            let narinfo = format!(
                "StorePath: /nix/store/{path}\nURL: nar/a.nar\nCompression: none\nNarHash: {hash}\nNarSize: {size}\n\
                 References: \nCA: {ca}\n"
            );
            server.put(&format!("/{}.narinfo", path.hash_part()), narinfo.into_bytes());
            server.put("/nar/a.nar", nar);
            match install_checked(&server, root.path(), path.base_name()) {
                Ok(_) => assert!(good, "{method} {what}"),
                Err(error) => {
                    assert!(!good && error.exit_code() == 4, "{method} {what}: {error}");
                    assert_eq!(names_in(root.path()), Vec::<String>::new(), "{error}");
                }
            }
        }
    }
}

#[test]
fn unsigned_paths_are_refused_without_a_download() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let path = server.add("a", &file_nar(b"a"), &[], |narinfo| narinfo);
    let error = install_checked(&server, root.path(), &path).unwrap_err();
    assert!(matches!(error, Error::Cache(CacheError::Untrusted { .. })), "{error}");
    assert_eq!(server.requests_for("/nar/a.nar"), 0);
}

/// No signature covers them, and Nix looks at neither.
#[test]
fn wrong_file_sizes_and_hashes_are_tolerated() {
    let nar = file_nar(b"hello");
    let (right, other) = (Sha256::of(&nar).to_string(), Sha256::of(b"other").to_string());
    for (from, to) in [
        ("FileSize: ".to_owned(), "FileSize: 1".to_owned()),
        (format!("FileSize: {}", nar.len()), "FileSize: 8".to_owned()),
        (format!("FileHash: {right}"), format!("FileHash: {other}")),
    ] {
        let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
        let path = server.add("a", &nar, &[], |text| text.replace(&from, &to));
        install_from(&[&server.url], root.path(), &[&path]).unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!(std::fs::read(root.path().join("nix/store").join(&path)).unwrap(), b"hello");
    }
}

/// A secret of this machine as an unpacked file would be: a NAR.
fn secret() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret.nar");
    std::fs::write(&file, file_nar(b"secret")).unwrap();
    (folder, file)
}

#[test]
fn a_cache_on_the_network_names_no_local_file() {
    let (_folder, file) = secret();
    for url in [format!("file://{}", file.display()), format!("file://localhost{}", file.display())] {
        // Everything else is right: the signed part of the narinfo would be.
        let error = refused(&file_nar(b"secret"), |narinfo| narinfo.replace("nar/evil.nar", &url));
        assert_eq!(error.exit_code(), 4, "{url}: {error}");
        assert!(error.to_string().contains("names a local file"), "{error}");
    }
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let path = server.add("evil", &file_nar(b"secret"), &[], |narinfo| narinfo);
    for scheme in ["file://", "file:", "FILE://", "ftp://localhost"] {
        let location = format!("Location: {scheme}{}\r\n", file.display());
        server.script("/nar/evil.nar", &[Act::Status(302, Box::leak(location.into_boxed_str()))]);
        let error = install_from(&[&server.url], root.path(), &[&path]).unwrap_err();
        assert_eq!(error.exit_code(), 5, "{scheme}: {error}");
        assert_eq!(names_in(root.path()), Vec::<String>::new(), "{error}");
    }
}

/// A cache folder with one path, whose NAR is made by `nar` at the place that `url` names.
fn cache_folder(url: &str, nar: impl Fn(&std::path::Path)) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("nar")).unwrap();
    let contents = file_nar(b"secret");
    let (hash, len) = (Sha256::of(&contents), contents.len());
    let path = "0000000000000000000000000000000a-evil";
    let narinfo = format!(
        "StorePath: /nix/store/{path}\nURL: {url}\nCompression: none\nNarHash: {hash}\nNarSize: {len}\nReferences: \n"
    );
    std::fs::write(folder.path().join("0000000000000000000000000000000a.narinfo"), narinfo).unwrap();
    std::fs::write(folder.path().join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
    nar(&folder.path().join("nar/evil.nar"));
    (folder, path.to_owned())
}

#[test]
fn a_cache_folder_gives_nothing_from_elsewhere() {
    let (outside, file) = secret();
    let from_folder = |folder: &std::path::Path, root: &std::path::Path, path: &str| {
        install_from(&[&format!("file://{}", folder.display())], root, &[path])
    };
    let climbing = format!("nar/{}{}", "../".repeat(20), file.display());
    let escaped = climbing.replace("..", "%2e%2E");
    type Make<'a> = Box<dyn Fn(&std::path::Path) + 'a>;
    let cases: [(&str, Make<'_>); 6] = [
        (&climbing, Box::new(|_| {})),
        (&escaped, Box::new(|_| {})),
        (file.to_str().unwrap(), Box::new(|_| {})),
        (&format!("file://{}", file.display()), Box::new(|_| {})),
        ("nar/evil.nar", Box::new(|nar| std::os::unix::fs::symlink(&file, nar).unwrap())),
        ("nar/evil.nar/secret.nar", Box::new(|nar| std::os::unix::fs::symlink(outside.path(), nar).unwrap())),
    ];
    for (url, make) in cases {
        let (folder, path) = cache_folder(url, make);
        let root = tempfile::tempdir().unwrap();
        let error = from_folder(folder.path(), root.path(), &path).unwrap_err();
        assert!(matches!(error.exit_code(), 4 | 5), "{url}: {error}");
        assert_eq!(names_in(root.path()), Vec::<String>::new(), "{url}: {error}");
    }
    // A symlink that stays below the folder is one way to keep a NAR.
    let (folder, path) = cache_folder("nar/evil.nar", |nar| {
        std::fs::write(nar.with_file_name("kept.nar"), file_nar(b"secret")).unwrap();
        std::os::unix::fs::symlink("kept.nar", nar).unwrap();
    });
    from_folder(folder.path(), tempfile::tempdir().unwrap().path(), &path).unwrap();
}

#[test]
fn a_fifo_in_a_cache_folder_is_an_error_and_not_waited_for() {
    let make_fifo = |path: &std::path::Path| {
        rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    };
    let root = tempfile::tempdir().unwrap();
    let (folder, path) = cache_folder("nar/evil.nar", make_fifo);
    let url = format!("file://{}", folder.path().display());
    let error = install_from(&[&url], root.path(), &[&path]).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    for name in ["0000000000000000000000000000000a.narinfo", "nix-cache-info"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
        make_fifo(&folder.path().join(name));
        let error = install_from(&[&url], root.path(), &[&path]).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}

/// What `..` means after a symlink, the kernel says.
#[test]
fn the_folder_of_a_cache_is_where_the_kernel_finds_it() {
    let (folder, path) = cache_folder("nar/evil.nar", |nar| std::fs::write(nar, file_nar(b"secret")).unwrap());
    let (elsewhere, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(folder.path().join("nar"), elsewhere.path().join("link")).unwrap();
    let url = format!("file://{}/link/..", elsewhere.path().display());
    install_from(&[&url], root.path(), &[&path]).unwrap();
}

/// A narinfo with the right hash part and another name than the reference that led to it, or than what was asked for.
#[test]
fn a_path_of_another_name_is_not_the_one_referred_to() {
    let (server, root) = (Server::start(), tempfile::tempdir().unwrap());
    let foo = server.add("foo", &file_nar(b"dep"), &[], |narinfo| narinfo.replace("-foo", "-bar"));
    let top = server.add("top", &file_nar(b"top"), &[&foo], |narinfo| narinfo);
    let error = install_from(&[&server.url], root.path(), &[&top]).unwrap_err();
    assert!(error.to_string().contains("-bar"), "{error}");
    assert_eq!(error.exit_code(), 4, "{error}");
    let error = install_from(&[&server.url], root.path(), &[&foo]).unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    // By its hash part alone it is what the cache says; but then `top` refers to what is nowhere.
    let error = install_from(&[&server.url], root.path(), &[&foo[..32], &top]).unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    install_from(&[&server.url], tempfile::tempdir().unwrap().path(), &[&foo[..32]]).unwrap();
}
