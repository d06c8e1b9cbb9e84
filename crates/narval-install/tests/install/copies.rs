//! Copying from caches that lie, and what goes to whom on the way.

use std::path::Path;
use std::sync::Arc;

use narval_cache::BinaryCaches;
use narval_client::{ClientOptions, Credentials, Netrc, Proxies, Url};
use narval_install::{Error, Wanted, copy_from_caches};
use narval_nix::{Sha256, StoreDir, TrustedKeys};
use narval_push::Target;

use crate::support::{Act, Server, client, file_nar, install_from};

fn copy(server: &Server, path: &str, to: &Path) -> Result<usize, Error> {
    let (urls, store_dir) = ([Url::parse(&server.url).unwrap()], StoreDir::default());
    let caches = BinaryCaches::open(&urls, &client(), &store_dir, TrustedKeys::new(), false)?;
    let to = Target::open(&Url::from_folder(to).unwrap(), &client(), &store_dir)?;
    copy_from_caches(&caches, &[Wanted::parse(path, &store_dir)?], &to)
}

/// All files of a cache folder besides `nix-cache-info`.
fn files(folder: &Path) -> Vec<String> {
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        entries
            .filter(|entry| entry.file_type().unwrap().is_file())
            .map(|entry| entry.file_name().into_string().unwrap())
    };
    let mut names: Vec<_> = names(folder).chain(names(&folder.join("nar")).collect::<Vec<_>>()).collect();
    names.retain(|name| name != "nix-cache-info");
    names.sort();
    names
}

/// No signature covers URL, FileHash and FileSize: changing them must not get another file published.
#[test]
fn a_file_with_another_nar_is_not_published() {
    let (server, to) = (Server::start(), tempfile::tempdir().unwrap());
    let (good, other) = (file_nar(b"good"), file_nar(b"evil"));
    let (hash, other_hash) = (Sha256::of(&good).to_string(), Sha256::of(&other).to_string());
    server.put("/nar/other.nar", other);
    let changes: [Box<dyn Fn(String) -> String>; 3] = [
        Box::new(|text| text.replace("nar/a.nar", "nar/other.nar")),
        Box::new(|text| {
            let text = text.replace("nar/a.nar", "nar/other.nar");
            text.replace(&format!("FileHash: {hash}"), &format!("FileHash: {other_hash}"))
        }),
        Box::new(|text| text.replace("Compression: none", "Compression: zstd")),
    ];
    for change in &changes {
        let path = server.add("a", &good, &[], change);
        let error = copy(&server, &path, to.path()).unwrap_err();
        assert_eq!((error.exit_code(), files(to.path())), (4, Vec::new()), "{error}");
    }
    // What is no NAR is not one either when its hash is right.
    let path = server.add("b", b"this is no archive", &[], |text| text);
    let error = copy(&server, &path, to.path()).unwrap_err();
    assert_eq!((error.exit_code(), files(to.path())), (4, Vec::new()), "{error}");
}

#[test]
fn copied_narinfos_describe_their_files() {
    let (server, to, root) = (Server::start(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let nar = file_nar(b"a");
    let (hash, other) = (Sha256::of(&nar).to_string(), Sha256::of(b"other").to_string());
    let wrong = |text: String| text.replace(&format!("FileHash: {hash}"), &format!("FileHash: {other}"));
    let path = server.add("a", &nar, &[], |text| wrong(text.replace("FileSize: ", "FileSize: 1")));
    assert_eq!(copy(&server, &path, to.path()).unwrap(), 1);
    assert_eq!(copy(&server, &path, to.path()).unwrap(), 0);
    let narinfo = std::fs::read_to_string(to.path().join(format!("{}.narinfo", &path[..32]))).unwrap();
    assert!(narinfo.contains(&format!("FileHash: {hash}\nFileSize: {}\n", nar.len())), "{narinfo}");
    install_from(&[&format!("file://{}", to.path().display())], root.path(), &[&path]).unwrap();
}

#[test]
fn credentials_are_not_sent_to_redirects_or_other_urls() {
    let (guarded, other) = (Server::start(), Server::start());
    let with_user = guarded.url.replace("http://", "http://me:secret@");
    let cache = Url::parse(&with_user).unwrap();
    // The other server has the same host: it is the port that is another.
    let netrc = Netrc::parse("machine 127.0.0.1 login me password secret default login me password secret");
    let mut credentials = Credentials::new(netrc, std::slice::from_ref(&cache));
    credentials.add_header("X-Token: secret").unwrap();
    let options = ClientOptions { credentials, proxies: Proxies::default(), ..ClientOptions::default() };
    let client = Arc::new(narval_s3::client(options));
    let path = guarded.add("a", &file_nar(b"a"), &[], |text| text);
    let narinfo = format!("/{}.narinfo", &path[..32]);
    let location = format!("Location: {}{narinfo}\r\n", other.url);
    guarded.script(&narinfo, &[Act::Status(302, Box::leak(location.into_boxed_str()))]);
    let url = format!("{}/nar/a.nar", other.url.replace("http://", "http://me:secret@"));
    other.add("a", &file_nar(b"a"), &[], |text| text.replace("nar/a.nar", &url));
    let (store_dir, to) = (StoreDir::default(), tempfile::tempdir().unwrap());
    let caches = BinaryCaches::open(&[cache], &client, &store_dir, TrustedKeys::new(), false).unwrap();
    let folder = Target::open(&Url::from_folder(to.path()).unwrap(), &client, &store_dir).unwrap();
    copy_from_caches(&caches, &[Wanted::parse(&path, &store_dir).unwrap()], &folder).unwrap();
    assert!(!guarded.requests().is_empty() && !other.requests().is_empty());
    for head in guarded.requests() {
        assert!(head.contains("\r\nAuthorization: ") && head.contains("\r\nX-Token: secret\r\n"), "{head}");
    }
    for head in other.requests() {
        assert!(!head.contains("Authorization") && !head.contains("X-Token"), "{head}");
    }
}
