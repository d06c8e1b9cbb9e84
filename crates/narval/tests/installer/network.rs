//! Credentials, proxies and certificates on the way to a cache.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::lab::Lab;
use crate::support::{NARVAL, Nix, Server, stdout};

/// Serves a folder to those who send a field, and writes down the heads of all requests. Takes targets as proxies get
/// them, too.
fn guarded_server(folder: PathBuf, field: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, heads) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&heads);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (folder, seen) = (folder.clone(), Arc::clone(&seen));
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                loop {
                    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
                    let Some(target) = head.first().and_then(|line| line.split(' ').nth(1)) else { return };
                    let target = target.split_once("://").map_or(target, |(_, rest)| &rest[rest.find('/').unwrap()..]);
                    let file = std::fs::read(folder.join(target.trim_start_matches('/')));
                    let (status, body) = match file {
                        _ if !head.iter().any(|line| line == field) => ("401 Unauthorized", Vec::new()),
                        Ok(body) => ("200 OK", body),
                        Err(_) => ("404 Not Found", Vec::new()),
                    };
                    seen.lock().unwrap().push(head.join("\n"));
                    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
                    if (&stream).write_all(&[head.as_bytes(), &body].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, heads)
}

#[test]
fn credentials_come_from_netrc_or_a_header_and_go_only_to_their_host() {
    let lab = Lab::new();
    // "me:secret"
    let (address, _) = guarded_server(lab.cache(), "Authorization: Basic bWU6c2VjcmV0");
    let (url, root) = (format!("http://{address}"), lab.folder("mine"));
    let message = lab.fails(5, &["install", "--from", &url, "--store", &root, &lab.tree]);
    assert!(message.contains("--netrc-file"), "{message}");
    let netrc = lab.folder("netrc");
    std::fs::write(&netrc, "machine 127.0.0.1 login me password secret\n").unwrap();
    lab.done(&["install", "--quiet", "--netrc-file", &netrc, "--from", &url, "--store", &root, &lab.tree]);
    lab.assert_accepted(&root, &[&lab.tree]);
    let other = lab.folder("other");
    std::fs::write(lab.store.path(".netrc"), "default login me password secret\n").unwrap();
    lab.done(&["install", "--quiet", "--from", &url, "--store", &other, &lab.tree]);
    std::fs::remove_file(lab.store.path(".netrc")).unwrap();

    let (address, _) = guarded_server(lab.cache(), "X-Token: 1");
    let (url, third) = (format!("http://{address}"), lab.folder("third"));
    lab.done(&["install", "--quiet", "--header", "X-Token: 1", "--from", &url, "--store", &third, &lab.tree]);
    lab.assert_accepted(&third, &[&lab.tree]);
}

#[test]
fn a_proxy_from_the_environment_is_used() {
    let lab = Lab::new();
    // "p:q"
    let (address, heads) = guarded_server(lab.cache(), "Proxy-Authorization: Basic cDpx");
    let root = lab.folder("mine");
    let args = ["install", "--quiet", "--from", "http://cache.invalid", "--store", &root, &lab.tree];
    let mut command = lab.command(&args);
    stdout(command.env("http_proxy", format!("http://p:q@{address}")).output().unwrap());
    lab.assert_accepted(&root, &[&lab.tree]);
    let seen = heads.lock().unwrap();
    assert!(seen.iter().all(|head| head.starts_with("GET http://cache.invalid/")), "{seen:?}");
    assert!(seen.iter().any(|head| head.contains("\nHost: cache.invalid")), "{seen:?}");
    let count = seen.len();
    drop(seen);
    // What no_proxy names is asked itself, and nobody listens there.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{closed}");
    let mut command = lab.command(&["install", "--attempts", "1", "--from", &url, "--store", &root, &lab.top]);
    command.env("http_proxy", format!("http://p:q@{address}")).env("no_proxy", "127.0.0.1");
    assert_eq!(command.output().unwrap().status.code(), Some(5));
    assert_eq!(heads.lock().unwrap().len(), count);
}

#[test]
fn certificates_of_a_private_authority() {
    let lab = Lab::new();
    let (key, certificate) = (lab.folder("key.pem"), lab.folder("cert.pem"));
    let authority = lab.folder("ca.pem");
    let script = "set -e; new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        openssl req -x509 $new -days 2 -subj '/CN=an authority' -keyout ca.key -out ca.pem
        openssl req $new -subj /CN=localhost -keyout key.pem -out request.pem
        echo 'subjectAltName=IP:127.0.0.1' > names
        openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -set_serial 1 -days 2 -extfile names -out cert.pem";
    stdout(Command::new("sh").args(["-c", script]).current_dir(lab.store.dir.path()).output().unwrap());
    let mut command = Command::new(NARVAL);
    command.args(["static", &lab.folder("cache"), "--listen", "127.0.0.1:0"]);
    command.args(["--tls-cert", &certificate, "--tls-key", &key]);
    let server = Server::start(command, &[]);
    let (url, root) = (format!("https://{}", server.address), lab.folder("mine"));
    let args = ["install", "--attempts", "1", "--from", &url, "--store", &root, &lab.tree];
    let message = lab.fails(5, &args);
    assert!(message.contains("certificate"), "{message}");
    let output = lab.command(&args).env("SSL_CERT_FILE", &authority).output().unwrap();
    stdout(output);
    lab.assert_accepted(&root, &[&lab.tree]);
}

/// What Nix trusts with the same settings and variables is trusted, and nothing else; `SSL_CERT_DIR`, which it ignores, adds to the
/// system's certificates.
#[test]
fn the_same_certificates_as_nix() {
    let lab = Lab::new();
    let script = "set -e; new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
        for name in ca other; do openssl req -x509 $new -days 2 -subj /CN=$name -keyout $name.key -out $name.pem; done
        openssl req $new -subj /CN=localhost -keyout key.pem -out request.pem
        echo 'subjectAltName=IP:127.0.0.1' > names
        openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -set_serial 1 -days 2 -extfile names -out cert.pem
        mkdir folder; cp ca.pem folder";
    stdout(Command::new("sh").args(["-c", script]).current_dir(lab.store.dir.path()).output().unwrap());
    let mut command = Command::new(NARVAL);
    command.args(["static", &lab.folder("cache"), "--listen", "127.0.0.1:0"]);
    command.args(["--tls-cert", &lab.folder("cert.pem"), "--tls-key", &lab.folder("key.pem")]);
    let server = Server::start(command, &[]);
    let (url, good, other) = (format!("https://{}", server.address), lab.folder("ca.pem"), lab.folder("other.pem"));
    let setting = |file: &str| format!("ssl-cert-file = {file}");
    let (good_setting, other_setting) = (setting(&good), setting(&other));
    let none = lab.folder("none.pem");
    let cases: [(&[(&str, &str)], bool); 10] = [
        (&[], false),
        (&[("NIX_CONFIG", &good_setting)], true),
        (&[("NIX_SSL_CERT_FILE", &good)], true),
        (&[("SSL_CERT_FILE", &good)], true),
        (&[("NIX_CONFIG", &other_setting), ("NIX_SSL_CERT_FILE", &good)], false),
        (&[("NIX_CONFIG", &good_setting), ("NIX_SSL_CERT_FILE", &other)], true),
        (&[("NIX_SSL_CERT_FILE", &other), ("SSL_CERT_FILE", &good)], false),
        (&[("NIX_SSL_CERT_FILE", &good), ("SSL_CERT_FILE", &other)], true),
        (&[("SSL_CERT_FILE", &other), ("SSL_CERT_DIR", &lab.folder("folder"))], false),
        (&[("NIX_SSL_CERT_FILE", &none)], false),
    ];
    let install = |number: usize, env: &[(&str, &str)]| {
        let root = lab.folder(&format!("mine-{number}"));
        let mut command = lab.command(&["install", "--from", &url, "--store", &root, &lab.hello]);
        command.envs(env.iter().copied()).output().unwrap()
    };
    for (number, (env, trusted)) in cases.iter().enumerate() {
        let output = install(number, env);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), *trusted, "{env:?}: {message}");
        if env == &[("NIX_SSL_CERT_FILE", none.as_str())] {
            assert!(message.starts_with("narval: NIX_SSL_CERT_FILE="), "{message}");
        }
        let args = ["store", "info", "--store", &url];
        // Nix remembers what it has seen of a cache.
        let home = lab.store.path(&format!("home-{number}"));
        std::fs::create_dir(&home).unwrap();
        let mut nix = Command::new(Nix::Newest.program("nix"));
        nix.args(["--extra-experimental-features", "nix-command"]).args(args).env_clear();
        nix.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", home).envs(env.iter().copied());
        let with_nix = nix.output().unwrap();
        assert_eq!(with_nix.status.success(), *trusted, "nix, {env:?}: {}", String::from_utf8_lossy(&with_nix.stderr));
    }
    stdout(install(cases.len(), &[("SSL_CERT_DIR", &lab.folder("folder"))]));
}

/// A narinfo with a genuine signature of cache.nixos.org.
const GENUINE: &str = "StorePath: /nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools-1.60_p20170221182432
URL: nar/0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6.nar.xz
Compression: xz
NarHash: sha256:0lxjvvpr59c2mdram7ympy5ay741f180kv3349hvfc3f8nrmbqf6
NarSize: 464152
References: 7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-glibc-2.27
Sig: cache.nixos.org-1:sn5s/RrqEI+YG6/PjwdbPjcAC7rcta7sJU4mFOawGvJBLsWkyLtBrT2EuFt/LJjWkTZ+ZWOI9NTtjo/woMdvAg==
";

/// `trusted-public-keys` replaces the key of cache.nixos.org, as in Nix; `extra-trusted-public-keys` does not.
#[test]
fn the_key_of_cache_nixos_org_can_be_withdrawn() {
    let lab = Lab::new();
    let cache = lab.store.path("genuine");
    std::fs::create_dir(&cache).unwrap();
    std::fs::write(cache.join("00bgd045z0d4icpbc2yyz4gx48ak44la.narinfo"), GENUINE).unwrap();
    let (url, root, other) = (format!("file://{}", cache.display()), lab.folder("mine"), lab.store.key("other-1").1);
    let usual = "cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=";
    // It is accepted if only its reference is missing.
    let (accepted, untrusted) = (3, 4);
    for (config, code) in [
        (String::new(), accepted),
        (format!("extra-trusted-public-keys = {other}"), accepted),
        (format!("trusted-public-keys = {other} {usual}"), accepted),
        (format!("trusted-public-keys = {other}"), untrusted),
        ("trusted-public-keys =".to_owned(), untrusted),
    ] {
        let args = ["install", "--dry-run", "--from", &url, "--store", &root, "00bgd045z0d4icpbc2yyz4gx48ak44la"];
        // Not the settings of this machine.
        let command = &mut lab.command(&args);
        let output = command.env("NIX_CONFIG", &config).env("NIX_CONF_DIR", lab.folder("none")).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{config}: {message}");
    }
}

/// A certificate that its owner has signed, as `openssl req -x509` makes it: marked as an authority's.
#[test]
fn a_self_signed_certificate_that_is_listed_is_trusted() {
    let lab = Lab::new();
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x \
        -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem";
    stdout(Command::new("sh").args(["-c", script]).current_dir(lab.store.dir.path()).output().unwrap());
    let (key, certificate, root) = (lab.folder("key.pem"), lab.folder("cert.pem"), lab.folder("mine"));
    let mut command = Command::new(NARVAL);
    command.args(["static", &lab.folder("cache"), "--listen", "127.0.0.1:0"]);
    command.args(["--tls-cert", &certificate, "--tls-key", &key]);
    let server = Server::start(command, &[]);
    let url = format!("https://{}", server.address);
    let args = ["install", "--quiet", "--attempts", "1", "--from", &url, "--store", &root, &lab.tree];
    lab.fails(5, &args);
    stdout(lab.command(&args).env("NIX_SSL_CERT_FILE", &certificate).output().unwrap());
    lab.assert_accepted(&root, &[&lab.tree]);
    // Its name is another one.
    let url = url.replace("127.0.0.1", "localhost");
    let args = ["install", "--attempts", "1", "--from", &url, "--store", &lab.folder("other"), &lab.tree];
    assert_eq!(lab.command(&args).env("NIX_SSL_CERT_FILE", &certificate).output().unwrap().status.code(), Some(5));
}

/// libarchive writes it for Nix; with enough of it for codes of all widths, and for the table to be emptied.
#[test]
fn nars_that_nix_has_compressed_with_compress() {
    let lab = Lab::new();
    let mut state = 1_u32;
    let mut noise = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    let mut contents = Vec::new();
    for round in 0..12_u8 {
        contents.extend((0..20_000).map(|_| b'a' + noise() % (2 + round % 5)));
        contents.extend((0..20_000).map(|_| noise()));
        contents.extend(b"the same again ".iter().cycle().take(5_000));
    }
    let path = lab.store.add_file("noise", &contents);
    let (old, root) = (lab.folder("old"), lab.folder("mine"));
    let to = format!("file://{old}?compression=compress");
    stdout(Nix::Newest.nix(lab.store.dir.path(), &["copy", "--from", &lab.store.uri(), "--to", &to, &path]));
    lab.done(&["install", "--quiet", "--from", &format!("file://{old}"), "--store", &root, &path]);
    assert!(std::fs::read(format!("{root}{path}")).unwrap() == contents);
    // A file that is cut or damaged is an error, wherever it is.
    let nar = std::fs::read_dir(format!("{old}/nar")).unwrap().next().unwrap().unwrap().path();
    let good = std::fs::read(&nar).unwrap();
    for at in [0, 2, 3, 1000, good.len() / 2, good.len() - 20] {
        let mut bad = good.clone();
        bad[at] ^= 0x55;
        for bytes in [&bad[..], &good[..at]] {
            std::fs::write(&nar, bytes).unwrap();
            lab.fails(4, &["install", "--from", &format!("file://{old}"), "--store", &lab.folder("bad"), &path]);
        }
    }
}

#[test]
fn a_dead_cache_is_skipped_with_a_warning() {
    let lab = Lab::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (dead, root) = (format!("http://{}", listener.local_addr().unwrap()), lab.folder("mine"));
    // Waiting for it would take an hour.
    let from = ["--timeout", "3600", "--from", &dead, "--from", &lab.cache_url(), "--store", &root];
    let output = lab.run(&[&["install"], &from[..], &[&lab.tree]].concat());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    stdout(output);
    assert!(message.contains(&dead) && message.contains("continues without it"), "{message}");
    lab.assert_accepted(&root, &[&lab.tree]);
}

/// The only cache is refused: that is the error, and no warning precedes it.
#[test]
fn a_refused_cache_is_reported_once() {
    let lab = Lab::new();
    let other = lab.store.path("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("nix-cache-info"), "StoreDir: /other/store\n").unwrap();
    let (url, root) = (format!("file://{}", other.display()), lab.folder("mine"));
    let message = lab.fails(1, &["install", "--from", &url, "--store", &root, &lab.hello]);
    assert_eq!(message.matches("is a cache for the store /other/store").count(), 1, "{message}");
    // With another one, it is a warning.
    let output = lab.run(&["install", "--from", &url, "--from", &lab.cache_url(), "--store", &root, &lab.hello]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    stdout(output);
    assert_eq!(message.matches("cache skipped").count(), 1, "{message}");
}

/// A server that is connected to, and says nothing.
#[test]
fn a_long_wait_is_mentioned() {
    let lab = Lab::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, root) = (format!("http://{}", listener.local_addr().unwrap()), lab.folder("mine"));
    let args = ["install", "--attempts", "1", "--timeout", "5", "--from", &url, "--store", &root, &lab.hello];
    let message = lab.fails(5, &args);
    assert!(message.contains(&format!("waiting for {url}: no answer yet")), "{message}");
    assert!(message.contains("no data for 5 s while waiting for the answer"), "{message}");
}
