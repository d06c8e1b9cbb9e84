//! The formats against real Nix, the newest and an old one: what it writes we read, what we write it reads, and what it
//! refuses we refuse. Needs `nix`, `nix-store`, `nix-old` and `nix-old-store` on PATH.

// clippy.toml allows these in test functions, not in what test functions call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use narval_nix::hash::{Algorithm, Encoding, Hash};
use narval_nix::nar::{Decoder, Encoder, Event, wire};
use narval_nix::path_info::ContentsCheck;
use narval_nix::{
    Compression, ContentAddress, Listing, NarInfo, PathInfo, PublicKey, SecretKey, Sha256, Signature, StoreDir,
    TrustedKeys, derivation,
};
use tempfile::TempDir;

/// Runs Nix commands on a store of their own.
struct Nix {
    dir: TempDir,
}

impl Nix {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn output(&self, program: &str, arguments: &[&str], stdin: &[u8]) -> Output {
        let mut child = Command::new(program)
            .args(arguments)
            .env("HOME", self.dir.path())
            .env("NIX_REMOTE", self.dir.path().join("root"))
            .env("NIX_CONFIG", "experimental-features = nix-command ca-derivations\nsandbox = false\nsubstituters =")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error} (these tests need real Nix on PATH)"));
        // A command that refuses its input closes the pipe before the end.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        child.wait_with_output().unwrap()
    }

    /// What a command that must succeed prints.
    fn run_on(&self, program: &str, arguments: &[&str], stdin: &[u8]) -> Vec<u8> {
        let output = self.output(program, arguments, stdin);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
        output.stdout
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Vec<u8> {
        self.run_on(program, arguments, b"")
    }

    fn text(&self, program: &str, arguments: &[&str]) -> String {
        String::from_utf8(self.run(program, arguments)).unwrap().trim_end().to_owned()
    }
}

/// A tree with something of everything.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("empty")).unwrap();
    for size in [0, 1, 7, 8, 9, 1000, 100_000] {
        fs::write(root.join(format!("file-{size}")), vec![b'x'; size]).unwrap();
    }
    fs::write(root.join("run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("../there/nowhere", root.join("link")).unwrap();
    symlink("t".repeat(4095), root.join("long-link")).unwrap();
    fs::write(root.join("n".repeat(255)), "long").unwrap();
    for name in [&b"A"[..], b"a", b"a.", b"a-b", b".hidden", b"a b\n", b"\xc3\xa4", b"~"] {
        fs::create_dir_all(root.join("names").join(OsStr::from_bytes(name))).unwrap();
    }
    fs::create_dir_all(root.join("d/".repeat(40))).unwrap();
}

/// Decodes, and encodes what came out.
fn recode(nar: &[u8]) -> Vec<u8> {
    let (mut decoder, mut encoder) = (Decoder::with_nar_size(nar.len() as u64), Encoder::new());
    let (mut rest, mut out) = (nar, Vec::new());
    while let (used, Some(event)) = decoder.next(rest).unwrap() {
        encoder.push(event, &mut out).unwrap();
        rest = &rest[used..];
    }
    decoder.finish().unwrap();
    encoder.finish().unwrap();
    out
}

fn decodes(nar: &[u8]) -> bool {
    let (mut decoder, mut rest) = (Decoder::new(), nar);
    loop {
        match decoder.next(rest) {
            Ok((used, Some(_))) => rest = &rest[used..],
            Ok((_, None)) => return decoder.finish().is_ok(),
            Err(_) => return false,
        }
    }
}

fn strings(strings: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    strings.iter().for_each(|string| wire::push_str(&mut out, string));
    out
}

const HEAD: [&[u8]; 3] = [b"nix-archive-1", b"(", b"type"];

/// A directory of empty files with these names, in this order.
fn directory_of(names: &[&[u8]]) -> Vec<u8> {
    let mut all = HEAD.to_vec();
    all.push(b"directory");
    for name in names {
        all.extend([
            &b"entry"[..],
            b"(",
            b"name",
            name,
            b"node",
            b"(",
            b"type",
            b"regular",
            b"contents",
            b"",
            b")",
            b")",
        ]);
    }
    all.push(b")");
    strings(&all)
}

fn nested(depth: usize) -> Vec<u8> {
    let mut all = HEAD.to_vec();
    (1..depth).for_each(|_| all.extend([&b"directory"[..], b"entry", b"(", b"name", b"d", b"node", b"(", b"type"]));
    all.extend([&b"symlink"[..], b"target", b"t", b")"]);
    (1..depth).for_each(|_| all.extend([&b")"[..], b")"]));
    strings(&all)
}

#[test]
fn dumps_of_nix_decode_and_encode_to_the_same_bytes() {
    let nix = Nix::new();
    make_tree(&nix.dir.path().join("tree"));
    for (store, name) in
        [("nix-store", "tree"), ("nix-old-store", "tree"), ("nix-store", "tree/run"), ("nix-store", "tree/link")]
    {
        let path = nix.path(name);
        let nar = nix.run(store, &["--dump", &path]);
        assert!(recode(&nar) == nar, "{store} {name}");
        let hash = nix.text("nix", &["hash", "path", "--type", "sha256", "--base32", &path]);
        assert_eq!(Sha256::of(&nar).to_nix32(), hash);
    }
}

#[test]
fn names_that_are_not_utf8_are_kept() {
    let nix = Nix::new();
    let tree = nix.dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for name in [&b"\xff\xfe"[..], b"\x80"] {
        fs::write(tree.join(OsStr::from_bytes(name)), "").unwrap();
    }
    let nar = nix.run("nix-store", &["--dump", tree.to_str().unwrap()]);
    assert!(recode(&nar) == nar);
    // There is no listing of it, neither by Nix nor by us.
    fs::write(nix.path("nar"), &nar).unwrap();
    assert!(!nix.output("nix", &["nar", "ls", "--json", "--recursive", &nix.path("nar"), "/"], b"").status.success());
    assert!(Listing::of_nar(&nar).unwrap().to_json().is_err());
}

#[test]
fn nix_restores_what_we_encode() {
    let nix = Nix::new();
    make_tree(&nix.dir.path().join("tree"));
    let nar = recode(&nix.run("nix-store", &["--dump", &nix.path("tree")]));
    for store in ["nix-store", "nix-old-store"] {
        let restored = nix.path(store);
        nix.run_on(store, &["--restore", &restored], &nar);
        assert!(nix.run("nix-store", &["--dump", &restored]) == nar);
    }
}

#[test]
fn hostile_nars_are_refused_by_nix_and_by_us() {
    let nix = Nix::new();
    let of = |tail: &[&[u8]]| strings(&[&HEAD[..], tail].concat());
    let mut padding = of(&[b"regular", b"contents", b"abc", b")"]);
    padding[56 + 40 + 4] = 1;
    let mut length = of(&[b"regular", b"contents", b"abc", b")"]);
    length[56 + 32 + 7] = 0xff;
    let hostile = [
        directory_of(&[b"a", b"a"]),
        directory_of(&[b"b", b"a"]),
        directory_of(&[b""]),
        directory_of(&[b"."]),
        directory_of(&[b".."]),
        directory_of(&[b"a/b"]),
        directory_of(&[b"a\0b"]),
        directory_of(&[&[b'n'; 256]]),
        nested(65),
        of(&[b"regular", b"executable", b"1", b"contents", b"", b")"]),
        of(&[b"regular", b"contents", b"", b"executable", b"", b")"]),
        of(&[b"symlink", b"target", b"", b")"]),
        of(&[b"symlink", b"target", b"a\0b", b")"]),
        of(&[b"symlink", b"target", &[b't'; 4096], b")"]),
        of(&[b"fifo", b")"]),
        of(&[b"directory", b"entry", b"(", b"node", b"(", b"type", b"directory", b")", b"name", b"a", b")", b")"]),
        strings(&[b"nix-archive-2", b"(", b"type", b"directory", b")"]),
        padding,
        length,
        Vec::new(),
    ];
    for (index, nar) in hostile.iter().enumerate() {
        let target = nix.path(&format!("hostile-{index}"));
        let output = nix.output("nix-store", &["--restore", &target], nar);
        assert!(!output.status.success(), "Nix takes hostile NAR {index}");
        assert!(!decodes(nar), "we take hostile NAR {index}");
    }
    let at_the_limits = [
        nested(64),
        directory_of(&[&[b'n'; 255]]),
        of(&[b"symlink", b"target", &[b't'; 4095], b")"]),
        directory_of(&[b"...", b".a", b"A", b"a", b"\xff"]),
    ];
    for (index, nar) in at_the_limits.iter().enumerate() {
        nix.run_on("nix-store", &["--restore", &nix.path(&format!("good-{index}"))], nar);
        assert!(decodes(nar), "{index}");
    }
}

#[test]
fn hashes_convert_as_nix_converts_them() {
    let nix = Nix::new();
    for (algorithm, seed) in
        [(Algorithm::Md5, 1_u8), (Algorithm::Sha1, 2), (Algorithm::Sha256, 3), (Algorithm::Sha512, 255)]
    {
        let digest: Vec<u8> = (0..algorithm.digest_len() as u8).map(|byte| byte.wrapping_mul(seed ^ 0x5a)).collect();
        let hash = Hash::new(algorithm, &digest).unwrap();
        for (format, ours) in [
            ("nix32", hash.to_nix32()),
            ("base16", hash.to_hex()),
            ("base64", hash.to_base64()),
            ("sri", hash.to_sri()),
        ] {
            let theirs = nix.text("nix", &["hash", "convert", "--to", format, &hash.render(Encoding::Hex)]);
            assert_eq!(ours, theirs);
        }
    }
}

#[test]
fn keys_go_both_ways() {
    let nix = Nix::new();
    let file = nix.text("nix", &["key", "generate-secret", "--key-name", "test-1"]);
    let secret = SecretKey::parse_file(&file).unwrap();
    assert_eq!(secret.to_file_text().unwrap().as_str(), file);
    for secret in [secret, SecretKey::generate("own-1").unwrap()] {
        let text = secret.to_file_text().unwrap();
        let public = nix.run_on("nix", &["key", "convert-secret-to-public"], text.as_bytes());
        assert_eq!(secret.public_key().to_string().as_bytes(), public.trim_ascii_end());
    }
}

#[test]
fn signatures_narinfos_and_listings_are_those_of_nix() {
    let nix = Nix::new();
    let store_dir = StoreDir::default();
    fs::write(nix.path("key"), nix.text("nix", &["key", "generate-secret", "--key-name", "test-1"])).unwrap();
    let secret = SecretKey::parse_file(&fs::read_to_string(nix.path("key")).unwrap()).unwrap();
    make_tree(&nix.dir.path().join("tree"));
    let full_path = nix.text("nix-store", &["--add", &nix.path("tree")]);
    nix.run("nix", &["store", "sign", "--key-file", &nix.path("key"), &full_path]);
    let cache = format!("file://{}?compression=none&write-nar-listing=1", nix.path("cache"));
    nix.run("nix", &["copy", "--to", &cache, &full_path]);

    let path = store_dir.parse(&full_path).unwrap();
    let read = |extension| fs::read(nix.path(&format!("cache/{}.{extension}", path.hash_part()))).unwrap();
    let text = read("narinfo");
    let info = NarInfo::parse(&text, &store_dir).unwrap();
    assert_eq!(info.render(&store_dir).as_bytes(), text);
    assert_eq!(info.path, path);
    // Ed25519 is deterministic: our signature is Nix's, to the byte.
    assert_eq!(info.signatures, [secret.sign(info.fingerprint(&store_dir).as_bytes()).unwrap()]);
    assert_eq!(info.path_info(0).check_by_contents(&store_dir), Some(ContentsCheck::Nar));

    let nar = fs::read(nix.path("cache").to_owned() + "/" + &info.url).unwrap();
    assert_eq!((Sha256::of(&nar), nar.len() as u64), (info.nar_hash, info.nar_size));
    let listing = Listing::of_nar(&nar).unwrap();
    let json = read("ls");
    assert_eq!(listing.to_json().unwrap().as_bytes(), json);
    assert_eq!(Listing::parse(&json), Ok(listing));
    let cache_info = fs::read(nix.path("cache/nix-cache-info")).unwrap();
    assert_eq!(narval_nix::CacheInfo::parse(&cache_info).unwrap().store_dir, store_dir);
}

/// Writes a binary cache of one NAR, with a reference of the path to itself, and returns the full path.
fn write_cache(dir: &Path, secret: &SecretKey) -> String {
    let store_dir = StoreDir::default();
    let mut nar = Vec::new();
    let mut encoder = Encoder::new();
    for event in [
        Event::Directory,
        Event::Entry { name: b"hello" },
        Event::Regular { executable: true, size: 6 },
        Event::Contents(b"hello\n"),
        Event::EndRegular,
        Event::EndDirectory,
    ] {
        encoder.push(event, &mut nar).unwrap();
    }
    let path = "00bgd045z0d4icpbc2yyz4gx48ak44la-hello".parse().unwrap();
    let mut info = PathInfo {
        references: BTreeSet::from([narval_nix::StorePath::clone(&path)]),
        path,
        nar_hash: Sha256::of(&nar),
        nar_size: nar.len() as u64,
        deriver: None,
        registration_time: 0,
        ultimate: false,
        signatures: vec![],
        ca: None,
    };
    info.signatures = vec![
        Signature::new("other-1", [1; 64]).unwrap(),
        secret.sign(info.fingerprint(&store_dir).as_bytes()).unwrap(),
    ];
    let mut narinfo = NarInfo::new(&info, "hello.nar", Compression::None);
    assert!(narinfo.add_unknown("PartialClosure", "1"));
    fs::create_dir(dir).unwrap();
    fs::write(dir.join(format!("{}.narinfo", info.path.hash_part())), narinfo.render(&store_dir)).unwrap();
    fs::write(dir.join("hello.nar"), &nar).unwrap();
    let cache_info = narval_nix::CacheInfo { want_mass_query: true, priority: Some(30), ..Default::default() };
    fs::write(dir.join("nix-cache-info"), cache_info.to_string()).unwrap();
    store_dir.display(&info.path).to_string()
}

#[test]
fn nix_copies_from_a_cache_that_we_wrote_and_signed() {
    for program in ["nix", "nix-old"] {
        let nix = Nix::new();
        let secret = SecretKey::generate("own-1").unwrap();
        let full_path = write_cache(&nix.dir.path().join("cache"), &secret);
        let from = format!("file://{}", nix.path("cache"));
        let copy = |key: PublicKey| {
            let key = key.to_string();
            nix.output(program, &["copy", "--option", "trusted-public-keys", &key, "--from", &from, &full_path], b"")
        };
        assert!(!copy(SecretKey::generate("own-1").unwrap().public_key()).status.success(), "{program}: another key");
        let output = copy(secret.public_key());
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        let copied = nix.path(&format!("root{full_path}/hello"));
        assert_eq!(fs::read(copied).unwrap(), b"hello\n");
    }
}

#[test]
fn content_addresses_name_the_paths_of_nix() {
    let nix = Nix::new();
    let store_dir = StoreDir::default();
    make_tree(&nix.dir.path().join("tree"));
    let (tree, file) = (nix.path("tree"), nix.path("tree/run"));
    let (text_file, drv) = (
        "builtins.toFile \"text\" \"hello\"",
        "(derivation { name = \"d\"; system = \"s\"; builder = builtins.toFile \"b\" \"\"; }).drvPath",
    );
    let eval = |expression| {
        nix.text("nix-instantiate", &["--eval", "--read-write-mode", "--expr", expression]).trim_matches('"').to_owned()
    };
    for full_path in [
        nix.text("nix-store", &["--add", &tree]),
        nix.text("nix-store", &["--add-fixed", "sha256", &file]),
        nix.text("nix-store", &["--add-fixed", "sha1", &file]),
        nix.text("nix-store", &["--add-fixed", "md5", "--recursive", &tree]),
        nix.text("nix-store", &["--add-fixed", "sha512", "--recursive", &tree]),
        eval(text_file),
        eval(drv),
    ] {
        let json = nix.run("nix", &["path-info", "--json", &full_path]);
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let info = &json[&full_path];
        let ca: ContentAddress = info["ca"].as_str().unwrap_or_else(|| panic!("{json}")).parse().unwrap();
        let references = info["references"].as_array().unwrap().iter();
        let references: BTreeSet<_> = references.map(|path| store_dir.parse(path.as_str().unwrap()).unwrap()).collect();
        let path = store_dir.parse(&full_path).unwrap();
        assert!(ca.names(&store_dir, &path, &references), "{full_path} {ca}");
        assert_eq!(info["ca"], ca.to_string());
    }
}

#[test]
fn outputs_of_a_derivation() {
    let nix = Nix::new();
    let expression =
        "derivation { name = \"a\"; system = \"s\"; builder = \"b\\n\\\"\"; outputs = [ \"out\" \"dev\" ]; }";
    let drv = nix.text("nix-instantiate", &["--expr", expression]);
    let drv = drv.split('!').next().unwrap();
    let text = fs::read(nix.path(&format!("root{drv}"))).unwrap();
    let store_dir = StoreDir::default();
    let outputs = derivation::parse_outputs(&text, &store_dir).unwrap();
    let full = |output: &derivation::DerivationOutput| store_dir.display(output.path.as_ref().unwrap()).to_string();
    let mut ours: Vec<String> = outputs.iter().map(full).collect();
    let theirs = nix.text("nix-store", &["--query", "--outputs", drv]);
    let mut theirs: Vec<&str> = theirs.lines().collect();
    ours.sort();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}

#[test]
fn trusted_keys_of_a_nix_configuration() {
    let nix = Nix::new();
    let secret = nix.text("nix", &["key", "generate-secret", "--key-name", "a-1"]);
    let key = SecretKey::parse_file(&secret).unwrap();
    let trusted = TrustedKeys::parse_list(&format!(
        "cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY= {}",
        key.public_key()
    ));
    assert!(trusted.unwrap().find_valid(b"x", [&key.sign(b"x").unwrap()]).is_some());
}
