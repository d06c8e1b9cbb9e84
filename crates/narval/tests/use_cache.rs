//! `narval use` changes the files of this user, and real Nix reads them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::{NARVAL, Nix, Running, Server, Store, stdout};

/// A home with a store, a key and a server over it.
struct Home {
    store: Store,
    server: Server,
    public: String,
}

impl Home {
    fn new() -> Self {
        let store = Store::new();
        let (file, public) = store.key("test-1");
        let server = Server::narval(&store, &["--sign-key", file.to_str().unwrap()]);
        std::fs::create_dir(store.path("etc")).unwrap();
        std::fs::write(store.path("etc/nix.conf"), "substituters =\ntrusted-public-keys =\n").unwrap();
        Self { store, server, public }
    }

    fn conf(&self) -> PathBuf {
        self.store.path("config/nix/nix.conf")
    }

    fn env(&self) -> [(String, PathBuf); 3] {
        let env = |name: &str, below: &str| (name.to_owned(), self.store.path(below));
        [env("XDG_CONFIG_HOME", "config"), env("NIX_CONF_DIR", "etc"), env("HOME", "home")]
    }

    fn narval(&self, args: &[&str], input: &str) -> Output {
        let mut command = Command::new(NARVAL);
        command.args(args).envs(self.env()).env_remove("NIX_USER_CONF_FILES").env_remove("NETRC");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A program that refuses its arguments reads nothing.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn use_cache(&self, args: &[&str]) -> Output {
        let url = self.server.url();
        self.narval(&[&["use", &url], args].concat(), "")
    }

    /// What a Nix makes of a setting.
    fn setting(&self, nix: Nix, name: &str) -> String {
        let env = self.env();
        let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let shown = stdout(nix.nix_with(self.store.dir.path(), &env, &["show-config"]));
        let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" ="));
        line.unwrap_or_default().trim().to_owned()
    }
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn mode(path: &PathBuf) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn both_nixes_read_what_was_written_and_undo_removes_it() {
    let home = Home::new();
    std::fs::create_dir_all(home.conf().parent().unwrap()).unwrap();
    let own = "# mine\ncores = 3\nextra-substituters = https://other.example.org\n";
    std::fs::write(home.conf(), own).unwrap();
    std::fs::set_permissions(home.conf(), PermissionsExt::from_mode(0o640)).unwrap();
    let url = home.server.url();
    let shown = stdout(home.use_cache(&["--yes"]));
    assert!(shown.contains(&format!("+ extra-substituters = {url}")), "{shown}");
    assert!(shown.contains("  cores = 3") && !shown.contains("# mine\n-"), "{shown}");
    assert_eq!(mode(&home.conf()), 0o640);
    for nix in Nix::BOTH {
        let listed = home.setting(nix, "substituters");
        assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["https://other.example.org", &url], "{nix:?}");
        assert_eq!(home.setting(nix, "trusted-public-keys"), home.public, "{nix:?}");
        assert_eq!(home.setting(nix, "cores"), "3");
    }
    let written = std::fs::read_to_string(home.conf()).unwrap();
    assert!(written.starts_with(own));
    let again = home.use_cache(&["--yes"]);
    assert!(error(&again).contains("Nothing to change"), "{}", error(&again));
    assert_eq!(std::fs::read_to_string(home.conf()).unwrap(), written);
    stdout(home.use_cache(&["--remove", "--yes"]));
    assert_eq!(std::fs::read_to_string(home.conf()).unwrap(), own);
    // The option's name in earlier versions.
    assert!(error(&home.use_cache(&["--undo", "--yes"])).contains("Nothing to change"));
}

#[test]
fn nix_and_narval_install_from_the_cache_without_further_options() {
    let home = Home::new();
    let path = home.store.add_tree("tree");
    stdout(home.use_cache(&["--yes"]));
    let to = home.store.path("installed");
    let installed = home.narval(&["install", "--store", to.to_str().unwrap(), &path], "");
    assert!(installed.status.success(), "{}", error(&installed));
    assert!(to.join(&path[1..]).join("bin/run").exists());
    let env = home.env();
    let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    for nix in Nix::BOTH {
        let to = home.store.path(&format!("{nix:?}"));
        let args = ["build", "--no-link", "--store", to.to_str().unwrap(), &path];
        let built = nix.nix_with(home.store.dir.path(), &env, &args);
        assert!(built.status.success(), "{}", error(&built));
        assert!(to.join(&path[1..]).join("bin/run").exists());
    }
}

#[test]
fn a_token_goes_into_a_netrc_that_nix_reads_and_nobody_else() {
    let home = Home::new();
    let url = home.server.url();
    let netrc = home.store.path("config/nix/netrc");
    let used = home.narval(&["use", &url, "--yes", "--token-file", "-"], "nv1_id_secret\n");
    let shown = stdout(used);
    assert!(!shown.contains("secret"), "{shown}");
    assert_eq!(std::fs::read_to_string(&netrc).unwrap(), "machine 127.0.0.1 login narval password nv1_id_secret\n");
    assert_eq!(mode(&netrc), 0o600);
    for nix in Nix::BOTH {
        assert_eq!(home.setting(nix, "netrc-file"), netrc.to_str().unwrap(), "{nix:?}");
    }
    assert!(error(&home.use_cache(&["--yes"])).contains("Nothing to change"), "the token stays");
    // Another cache of the same host has the same entry, which goes with the last of them.
    let other = Server::narval(&home.store, &[]);
    let token = home.store.path("token");
    std::fs::write(&token, "nv1_id_newer").unwrap();
    std::fs::write(&netrc, "machine a login b password c\nmachine 127.0.0.1 login narval password nv1_id_secret\n")
        .unwrap();
    let args = ["use", &other.url(), "--yes", "--token-file", token.to_str().unwrap()];
    let shown = stdout(home.narval(&args, ""));
    assert!(shown.contains("- machine 127.0.0.1 login narval password …\n+ machine 127.0.0.1"), "{shown}");
    stdout(home.use_cache(&["--remove", "--yes"]));
    assert!(std::fs::read_to_string(&netrc).unwrap().contains("nv1_id_newer"));
    for nix in Nix::BOTH {
        assert_eq!(home.setting(nix, "netrc-file"), netrc.to_str().unwrap(), "{nix:?}");
    }
    stdout(home.narval(&["use", &other.url(), "--remove", "--yes"], ""));
    assert_eq!(std::fs::read_to_string(&netrc).unwrap(), "machine a login b password c\n");
    assert!(!std::fs::read_to_string(home.conf()).unwrap().contains("netrc-file"));
}

#[test]
fn a_netrc_that_is_set_already_gets_the_token() {
    let home = Home::new();
    let netrc = home.store.path("my-netrc");
    std::fs::write(&netrc, "machine a login b password c").unwrap();
    std::fs::write(home.store.path("etc/nix.conf"), format!("netrc-file = {}\n", netrc.display())).unwrap();
    let url = home.server.url();
    stdout(home.narval(&["use", &url, "--yes", "--token-file", "-"], "t"));
    assert_eq!(
        std::fs::read_to_string(&netrc).unwrap(),
        "machine a login b password c\nmachine 127.0.0.1 login narval password t\n"
    );
    assert_eq!(mode(&netrc), 0o600);
    assert!(!std::fs::read_to_string(home.conf()).unwrap().contains("netrc-file"));
}

#[test]
fn nothing_is_changed_without_consent_or_for_an_invalid_cache() {
    let home = Home::new();
    let unasked = home.use_cache(&[]);
    assert_eq!(unasked.status.code(), Some(2));
    assert!(error(&unasked).contains("--yes"), "{}", error(&unasked));
    assert!(String::from_utf8_lossy(&unasked.stdout).contains("+ extra-substituters"));
    assert!(home.use_cache(&["--dry-run"]).status.success());
    let cases: [(&[&str], i32); 6] = [
        (&["use", "http://127.0.0.1:1", "--yes"], 5),
        (&["use", &format!("{}/none", home.server.url()), "--yes"], 3),
        (&["use", &home.server.url(), "--yes", "--public-key", "nonsense"], 2),
        (&["use", "http://me:secret@127.0.0.1:1", "--yes"], 2),
        (&["use", &home.server.url(), "--yes", "--token-file", "/nonexistent"], 2),
        (&["use", "ssh://host", "--yes"], 2),
    ];
    for (args, code) in cases {
        let output = home.narval(args, "");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", error(&output));
        assert!(!error(&output).contains("secret"));
    }
    assert!(!home.store.path("config").exists());
}

#[test]
fn a_file_that_home_manager_made_is_left_alone() {
    let home = Home::new();
    std::fs::create_dir_all(home.conf().parent().unwrap()).unwrap();
    let managed = "/nix/store/00000000000000000000000000000000-home-manager-files/nix.conf";
    std::os::unix::fs::symlink(managed, home.conf()).unwrap();
    let refused = home.use_cache(&["--yes"]);
    assert_eq!(refused.status.code(), Some(2), "{}", error(&refused));
    assert!(error(&refused).contains("Home Manager"), "{}", error(&refused));
    assert!(home.conf().is_symlink());
}

/// A private cache: a token, `narval use`, and from then on both Nixes and Narval push and install without further options.
#[test]
fn a_private_cache_from_its_token_to_an_install() {
    let home = Home::new();
    let data = home.store.path("data");
    let (file, public) = home.store.key("private-1");
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--private", "--data"]).arg(&data).arg("--sign-key").arg(&file);
    let server = Server::start(command, &[("XDG_CACHE_HOME", home.store.path("xdg").to_str().unwrap())]);
    let url = server.url();
    let unknown = home.narval(&["use", &url, "--yes"], "");
    let token = stdout(
        home.narval(&["token", "create", "--push", "--pull", "--sign", "--data", data.to_str().unwrap(), "me"], ""),
    );
    let shown = stdout(home.narval(&["use", &url, "--yes", "--token-file", "-"], &token));
    assert!(shown.contains(&public) && !shown.contains(&token), "{shown}");
    assert_eq!(unknown.status.code(), Some(5), "{}", error(&unknown));
    assert!(error(&unknown).contains("--token-file"), "{}", error(&unknown));
    let env = home.env();
    let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    let from = home.store.uri();
    for nix in Nix::BOTH {
        let path = home.store.add_file(&format!("by-{nix:?}"), format!("pushed by {nix:?}"));
        let args = ["copy", "--from", &from, "--to", &url, "--no-check-sigs", &path];
        let pushed = nix.nix_with(home.store.dir.path(), &env, &args);
        assert!(pushed.status.success(), "{nix:?}: {}", error(&pushed));
        let to = home.store.path(&format!("installed-{nix:?}"));
        let built =
            nix.nix_with(home.store.dir.path(), &env, &["build", "--no-link", "--store", to.to_str().unwrap(), &path]);
        assert!(built.status.success(), "{nix:?}: {}", error(&built));
        assert!(to.join(&path[1..]).exists());
    }
    let path = home.store.add_tree("tree");
    let pushed = home.narval(&["push", "--store", &from, "--to", &url, &path], "");
    assert!(pushed.status.success(), "{}", error(&pushed));
    let to = home.store.path("installed");
    let installed = home.narval(&["install", "--store", to.to_str().unwrap(), &path], "");
    assert!(installed.status.success(), "{}", error(&installed));
    assert!(to.join(&path[1..]).join("bin/run").exists());
}

/// The daemon of either Nix, which trusts root alone, and its socket. The old one does not tell whom it trusts.
fn daemon(home: &Home, nix: Nix) -> (Running, PathBuf) {
    let socket = home.store.path(&format!("{nix:?}.socket"));
    let daemon = nix.daemon(home.store.dir.path(), &socket, &home.store.uri(), "trusted-users = root");
    (daemon, socket)
}

/// The user whom the daemon does not trust; only root can become another one.
const NOBODY: u32 = 65534;

#[test]
fn a_user_whom_the_daemon_does_not_trust_is_told_what_an_administrator_can_do() {
    if stdout(Command::new("id").arg("-u").output().unwrap()) != "0" {
        return;
    }
    for nix in Nix::BOTH {
        let home = Home::new();
        let (_daemon, socket) = daemon(&home, nix);
        std::fs::set_permissions(home.store.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        // It was run in a folder that only root may enter.
        let program = home.store.path("narval");
        support::copy_program(&program);
        let run = |user: u32, args: &[&str]| {
            let mut command = Command::new(&program);
            command.args(args).envs(home.env()).env("NIX_DAEMON_SOCKET_PATH", &socket).uid(user).gid(user);
            command.output().unwrap()
        };
        let url = home.server.url();
        let message = error(&run(NOBODY, &["use", &url, "--yes"]));
        assert!(message.contains(&format!("  extra-substituters = {url}")), "{nix:?}: {message}");
        assert!(message.contains("does not trust you") && message.contains("etc/nix.conf"), "{nix:?}: {message}");
        assert!(!error(&run(0, &["use", &url, "--dry-run"])).contains("trust you"), "{nix:?}: root is trusted");
        let check = |user: u32| {
            let output = run(user, &["doctor", "--offline"]);
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            shown.lines().find(|line| line.contains("nix daemon")).unwrap().to_owned()
        };
        let line = check(NOBODY);
        assert!(line.starts_with("FAIL") && line.contains(&url), "{nix:?}: {line}");
        assert!(check(0).starts_with("ok"), "{nix:?}");
        // With the administrator's lines it is enough.
        let lines = format!("extra-substituters = {url}\nextra-trusted-public-keys = {}\n", home.public);
        std::fs::write(home.store.path("etc/nix.conf"), lines).unwrap();
        let message = error(&run(NOBODY, &["use", &url, "--yes"]));
        assert!(!message.contains("does not trust you"), "{nix:?}: {message}");
        assert!(check(NOBODY).starts_with("ok"), "{nix:?}");
    }
}

/// Two caches of one host, each with a token of its own.
#[test]
fn a_token_that_breaks_another_cache_of_the_host_is_refused() {
    let home = Home::new();
    let data = home.store.path("data");
    let config = home.store.path("serve.toml");
    let text = format!("data = '{}'\npublic = false\n[[cache]]\nname = 'team'\n", data.display());
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(&config);
    let server = Server::start(command, &[]);
    let token = |name: &str, caches: &str| {
        let mut command = Command::new(NARVAL);
        command.args(["token", "create", "--pull", "--push", "--cache", caches, name, "--data"]).arg(&data);
        let file = home.store.path(name);
        std::fs::write(&file, stdout(command.output().unwrap())).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (a, b, both) = (token("a", "team"), token("b", "default"), token("both", "default,team"));
    let (root, team) = (server.url(), format!("{}/team", server.url()));
    let run = |url: &str, args: &[&str]| home.narval(&[&["use", url, "--yes", "--token-file"], args].concat(), "");
    assert!(run(&team, &[&a]).status.success());
    let refused = run(&root, &[&b]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(
        message.contains(&format!("{team} would no longer work")) && message.contains("--cache team,default"),
        "{message}"
    );
    // What was there still works; what is valid for both, too.
    let netrc = std::fs::read_to_string(home.store.path("config/nix/netrc")).unwrap();
    assert!(netrc.contains(std::fs::read_to_string(&a).unwrap().trim()), "{netrc}");
    assert!(run(&root, &[&both]).status.success());
    assert!(run(&root, &[&b, "--replace-token"]).status.success());
    // A refusal names the file and the line of what was refused.
    let wrong = home.store.path("wrong");
    std::fs::write(&wrong, "\nmachine 127.0.0.1 login x password nv1_wrong\n").unwrap();
    let top = home.narval(&["top", "--once", "--netrc-file", wrong.to_str().unwrap(), &root], "");
    let message = String::from_utf8_lossy(&top.stderr).into_owned();
    assert!(
        message.contains(&format!("401: it does not accept the credentials of {}:2", wrong.display())),
        "{message}"
    );
}

/// Starts a near cache as systemd does: by the files that were written, with a socket that it has bound.
fn start_near(home: &Home) -> (Running, String) {
    let unit = |kind: &str| {
        std::fs::read_to_string(home.store.path(&format!("config/systemd/user/narval-near.{kind}"))).unwrap()
    };
    let value = |text: &str, key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
    let address = value(&unit("socket"), "ListenStream=");
    let listener = TcpListener::bind(&address).unwrap();
    let script =
        format!("exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec {}", value(&unit("service"), "ExecStart="));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).envs(home.env()).stdin(Stdio::from(OwnedFd::from(listener)));
    (Running(command.stderr(Stdio::null()).spawn().unwrap()), format!("http://{address}"))
}

/// All files below a folder, with their contents.
fn files(below: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(below).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    found
}

#[test]
fn a_near_cache_has_what_was_fetched_once() {
    for (nix, own) in [(Nix::Newest, Some("cores = 3\nextra-substituters = SERVER")), (Nix::Old, None)] {
        let home = Home::new();
        let path = home.store.add_tree("tree");
        let server = home.server.url();
        std::fs::create_dir_all(home.conf().parent().unwrap()).unwrap();
        if let Some(own) = own {
            std::fs::write(home.conf(), own.replace("SERVER", &server)).unwrap();
            let system = format!("substituters =\ntrusted-public-keys = {}\n", home.public);
            std::fs::write(home.store.path("etc/nix.conf"), system).unwrap();
        } else {
            let system = format!("substituters = {server} ssh://builder\ntrusted-public-keys = {}\n", home.public);
            std::fs::write(home.store.path("etc/nix.conf"), system).unwrap();
        }
        let before = files(&home.store.path("config"));
        let near = ["use", "--near", "--user", "--no-start", "--yes"];
        let cache = home.store.path("cache-home");
        let narval = |args: &[&str]| {
            let mut command = Command::new(NARVAL);
            command.args(args).envs(home.env()).env("XDG_CACHE_HOME", &cache).env_remove("NIX_USER_CONF_FILES");
            command.output().unwrap()
        };
        let used = narval(&near);
        assert!(used.status.success(), "{}", error(&used));
        assert!(error(&narval(&near)).contains("Nothing to change"));
        let (running, url) = start_near(&home);
        let listed = home.setting(nix, "substituters");
        match own {
            Some(_) => assert_eq!(listed, url, "it is the only one"),
            None => assert_eq!(listed, format!("{url} ssh://builder"), "what is no binary cache stays"),
        }
        assert_eq!(home.setting(nix, "trusted-public-keys"), home.public, "trust is what it was");
        let env = home.env();
        let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let fetch = |to: &str| {
            let to = home.store.path(to);
            let to = to.to_str().unwrap();
            // Without a cache of narinfos of Nix's own.
            let args = ["copy", "--from", &url, "--to", to, "--refresh", &path];
            nix.nix_with(home.store.dir.path(), &env, &args)
        };
        stdout(fetch("first"));
        // Nothing but the near cache is left.
        let upstream = home.server.pid().to_string();
        assert!(Command::new("kill").args(["-STOP", &upstream]).status().unwrap().success());
        stdout(fetch("second"));
        assert!(home.store.path("second").join(&path[1..]).join("bin/run").exists());
        assert!(Command::new("kill").args(["-CONT", &upstream]).status().unwrap().success());
        drop(running);
        let undone = narval(&["use", "--near", "--user", "--no-start", "--remove", "--yes"]);
        assert!(undone.status.success(), "{}", error(&undone));
        assert_eq!(files(&home.store.path("config")), before, "byte for byte");
        assert!(!cache.join("narval/near").exists(), "what it kept is gone");
    }
}

#[test]
fn a_near_cache_of_a_machine_is_written_into_an_image() {
    let home = Home::new();
    let root = home.store.path("root");
    std::fs::create_dir_all(root.join("etc/nix")).unwrap();
    std::fs::write(root.join("etc/nix/nix.conf"), "cores = 3").unwrap();
    let before = files(&root);
    let narval = |args: &[&str]| {
        let mut command = Command::new(NARVAL);
        command.args(["use", "--near", "--yes", "--root", root.to_str().unwrap()]).args(args);
        command.env_remove("NIX_CONF_DIR").env("HOME", home.store.path("home")).output().unwrap()
    };
    let used = narval(&["--size", "3G", "--neighbours-on", "192.168.1.1", "--neighbours-only-on", "ac"]);
    assert!(used.status.success(), "{}", error(&used));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let config = read("etc/narval/near.toml");
    assert!(config.contains("upstream-size = 3221225472\n") && config.contains("url = \"https://cache.nixos.org\""));
    assert!(config.contains("neighbours = true\nneighbours-on = [\"192.168.1.1\"]\nneighbours-only-on = \"ac\"\n"));
    assert!(read("etc/nix/nix.conf").starts_with("cores = 3\n# narval use --near\nsubstituters = http://127.0.0.1:50"));
    let checked =
        Command::new(NARVAL).args(["config", "check"]).arg(root.join("etc/narval/near.toml")).output().unwrap();
    assert!(checked.status.success(), "{}", error(&checked));
    let units = ["narval-near.socket", "narval-near.service"].map(|unit| root.join("etc/systemd/system").join(unit));
    if let Ok(verified) = Command::new("systemd-analyze").args(["--man=no", "verify"]).args(&units).output() {
        assert!(verified.status.success(), "{}", error(&verified));
        assert!(!error(&verified).contains("narval-near"), "{}", error(&verified));
    }
    // A file of somebody else is not overwritten.
    std::fs::write(&units[0], "[Socket]\n").unwrap();
    assert!(error(&narval(&["--remove"])).contains("move it out of the way"));
    std::fs::remove_file(&units[0]).unwrap();
    // One that an earlier version made is.
    let made = std::fs::read_to_string(&units[1]).unwrap();
    std::fs::write(&units[1], made.replacen("--remove", "--undo", 1)).unwrap();
    stdout(narval(&["--remove"]));
    assert_eq!(files(&root), before, "byte for byte");
}
