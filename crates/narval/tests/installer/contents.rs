//! Paths named by their contents: every kind that Nix takes without a signature, and content addresses that are not true.

use std::path::{Path, PathBuf};

use narval_nix::Sha256;

use crate::lab::Lab;
use crate::support::{Nix, hash_part, stdout};

/// Nix with all kinds of content addresses switched on.
fn nix(lab: &Lab, args: &[&str]) -> String {
    let features = ["--extra-experimental-features", "git-hashing"];
    stdout(Nix::Newest.nix(lab.store.dir.path(), &[args, &features].concat()))
}

/// A path that refers to itself, as Nix rewrites it to be named by its contents; in the cache.
fn path_with_self_reference(lab: &Lab, by: Nix, base: &str) -> String {
    let (by_hand, store) = (lab.store.path(&format!("by-hand-{base}")), lab.folder(&format!("input-{base}")));
    let contents = format!("/nix/store/{base} and again /nix/store/{base}");
    std::fs::create_dir_all(by_hand.join("nar")).unwrap();
    std::fs::write(by_hand.join("self"), contents).unwrap();
    let nar = Nix::Newest.nix_store(lab.store.dir.path(), &["--dump", by_hand.join("self").to_str().unwrap()]).stdout;
    let narinfo = format!(
        "StorePath: /nix/store/{base}\nURL: nar/self.nar\nCompression: none\nNarHash: {}\nNarSize: {}\nReferences: {base}\n",
        Sha256::of(&nar),
        nar.len()
    );
    std::fs::write(by_hand.join("nar/self.nar"), nar).unwrap();
    std::fs::write(by_hand.join(format!("{}.narinfo", &base[..32])), narinfo).unwrap();
    let from = format!("file://{}", by_hand.display());
    lab.done(&["install", "--quiet", "--no-check-sigs", "--from", &from, "--store", &store, base]);
    let path = format!("/nix/store/{base}");
    let features = ["--extra-experimental-features", "nix-command ca-derivations"];
    let (to, rewrite) = (lab.store.uri(), ["store", "make-content-addressed", "--json", "--store", &store, &path]);
    let made = stdout(by.nix(lab.store.dir.path(), &[&rewrite[..], &["--to", &to], &features].concat()));
    let (_, made) = made.split_once(&format!("\"{path}\":\"")).unwrap();
    made.split('"').next().unwrap().to_owned()
}

/// A path of every kind: what it is, and the path.
fn every_kind(lab: &Lab) -> Vec<(String, String)> {
    let uri = lab.store.uri();
    let file = lab.store.path("flat");
    std::fs::write(&file, "flat").unwrap();
    let tree = lab.store.path("folder");
    std::fs::create_dir_all(tree.join("a.b")).unwrap();
    std::fs::create_dir_all(tree.join("a")).unwrap();
    std::fs::write(tree.join("a/x"), "x").unwrap();
    std::fs::write(tree.join("a.b/y"), "y").unwrap();
    std::fs::write(tree.join("a-b"), "z").unwrap();
    std::os::unix::fs::symlink("a/x", tree.join("link")).unwrap();
    std::fs::set_permissions(tree.join("a/x"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut all = Vec::new();
    for algorithm in ["md5", "sha1", "sha256", "sha512"] {
        for (mode, what) in [("flat", &file), ("nar", &tree)] {
            let (name, what) = (format!("{mode}-{algorithm}"), what.to_str().unwrap());
            let args =
                ["store", "add", "--store", &uri, "--mode", mode, "--hash-algo", algorithm, "--name", &name, what];
            all.push((name.clone(), nix(lab, &args)));
        }
    }
    for what in [&tree, &file] {
        let args = ["store", "add", "--store", &uri, "--mode", "git", "--hash-algo", "sha1", what.to_str().unwrap()];
        all.push(("git".to_owned(), nix(lab, &args)));
    }
    all.push(("text".to_owned(), lab.top.clone()));
    // Nix 2.8 takes the hash in another way.
    for (by, base) in
        [(Nix::Newest, "0000000000000000000000000000000a-self"), (Nix::Old, "0000000000000000000000000000000b-old")]
    {
        all.push((format!("self by {by:?}"), path_with_self_reference(lab, by, base)));
    }
    for (_, path) in &all {
        lab.done(&["copy", "--quiet", "--no-compression", "--store", &uri, "--to", &lab.cache_url(), path]);
    }
    all
}

fn narinfo(cache: &Path, path: &str) -> PathBuf {
    cache.join(format!("{}.narinfo", hash_part(path)))
}

#[test]
fn every_kind_that_nix_takes_without_a_signature_is_checked_and_taken() {
    let lab = Lab::new();
    let all = every_kind(&lab);
    let root = lab.folder("taken");
    for (what, path) in &all {
        lab.install(&root, &[path]);
        // Without signatures, Nix calls trusted what is named by its contents.
        let message = nix(&lab, &["store", "verify", "--store", &root, "--sigs-needed", "1", path]);
        assert!(!message.contains("untrusted"), "{what}: {message}");
        lab.done(&["verify", "--quiet", "--store", &root]);
    }
    // The bytes of another path behind the content address of this one.
    let other = std::fs::read_to_string(narinfo(&lab.cache(), &lab.hello)).unwrap();
    let of_nar = |line: &&str| {
        ["URL", "Compression", "FileHash", "FileSize", "NarHash", "NarSize"]
            .iter()
            .any(|key| line.starts_with(&format!("{key}:")))
    };
    for (what, path) in &all {
        let name = narinfo(&lab.cache(), path);
        let text = std::fs::read_to_string(&name).unwrap();
        let lines = text.lines().filter(|line| !of_nar(line)).chain(other.lines().filter(of_nar));
        std::fs::write(&name, lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
        for option in [&[][..], &["--no-check-sigs"]] {
            let (from, to) = (lab.cache_url(), lab.folder("refused"));
            let message = lab.fails(4, &[&["install", "--from", &from, "--store", &to, path], option].concat());
            assert!(message.contains("CA"), "{what}: {message}");
            let to = format!("file://{}", lab.folder("refused-cache"));
            lab.fails(4, &[&["copy", "--from", &from, "--to", &to, path], option].concat());
        }
    }
    let left = std::fs::read_dir(lab.store.path("refused-cache/nar")).unwrap().count();
    assert!(left <= 1, "of the text's reference alone: {left}");
}

/// No signature covers `CA`: a mirror may add any. Nix aborts over one that does not name the path (2.34), and would call
/// a path trusted that is registered with it.
#[test]
fn a_content_address_that_names_another_path_is_not_registered() {
    let lab = Lab::new();
    let (key, public) = lab.store.key("mirror-1");
    let (signed, uri) = (lab.folder("signed"), lab.store.uri());
    let signed_url = format!("file://{signed}");
    lab.done(&[
        "copy",
        "--quiet",
        "--store",
        &uri,
        "--to",
        &signed_url,
        "--sign-key",
        key.to_str().unwrap(),
        &lab.tree,
    ]);
    let other = std::fs::read_to_string(narinfo(&lab.cache(), &lab.hello)).unwrap();
    let other = other.lines().find(|line| line.starts_with("CA: ")).unwrap().to_owned();
    let name = narinfo(Path::new(&signed), &lab.tree);
    let text = std::fs::read_to_string(&name).unwrap();
    let sha1 = format!("CA: fixed:r:sha1:{}", "0".repeat(32));
    let blake3 = format!("CA: fixed:r:blake3:{}", "0".repeat(52));
    for ca in [&other, &sha1, &blake3] {
        let lines = text.lines().map(|line| if line.starts_with("CA: ") { ca.as_str() } else { line });
        std::fs::write(&name, lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
        let unsigned = ["install", "--from", &signed_url, "--store", &lab.folder("never"), &lab.tree];
        let message = lab.fails(4, &unsigned);
        assert!(message.contains("not signed"), "{ca}: {message}");
        let root = lab.folder(&format!("root-{}", Sha256::of(ca.as_bytes()).to_hex()));
        let trusted = ["install", "--quiet", "--trusted-public-key", &public, "--from", &signed_url, "--store", &root];
        lab.done(&[&trusted[..], &[&lab.tree]].concat());
        let copy = lab.folder(&format!("copy-{}", Sha256::of(ca.as_bytes()).to_hex()));
        let args = ["copy", "--from", &root, "--to", &copy, &lab.tree, "--option", "trusted-public-keys", &public];
        nix(&lab, &args);
        let info = nix(&lab, &["path-info", "--json", "--store", &copy, &lab.tree]);
        assert!(info.contains("\"ca\":null"), "{ca}: {info}");
    }
}
