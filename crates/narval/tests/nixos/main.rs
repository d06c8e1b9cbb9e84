//! The NixOS modules, the package and the flake of nix/, evaluated by real Nix with the module system of nixpkgs.
//!
//! The library of nixpkgs is looked for in `$NARVAL_NIXPKGS_LIB`, and beside the repository in `shared/lab/nixpkgs.lib`; without it, the
//! tests are skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use narval::config::ServeConfig;
use serde_json::Value;
use support::{NARVAL, NIX_SERVE};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Nix with a store of its own, and the library.
struct Nix {
    folder: tempfile::TempDir,
    lib: PathBuf,
}

impl Nix {
    /// `None`: the library is not here.
    fn new() -> Option<Self> {
        let named = std::env::var_os("NARVAL_NIXPKGS_LIB").map(PathBuf::from);
        let beside = |folder: &Path| Some(folder.join("shared/lab/nixpkgs.lib")).filter(|lib| lib.exists());
        let root = fs::canonicalize(ROOT).unwrap();
        let Some(lib) = named.or_else(|| root.ancestors().find_map(beside)) else {
            eprintln!("note: skipped: no library of nixpkgs here; NARVAL_NIXPKGS_LIB names one");
            return None;
        };
        let nix = Self { folder: tempfile::tempdir().unwrap(), lib };
        let programs = nix.path("package/bin");
        fs::create_dir_all(&programs).unwrap();
        std::os::unix::fs::symlink(NARVAL, programs.join("narval")).unwrap();
        std::os::unix::fs::symlink(NIX_SERVE, programs.join("nix-serve")).unwrap();
        Some(nix)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a program of Nix over an attribute of eval.nix, with a configuration.
    fn try_run(&self, program: &str, args: &[&str], configuration: &str, attribute: &str) -> Output {
        let eval = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nixos/eval.nix");
        let expression = format!(
            "(import {} {{ libPath = {}; package = \"{}\"; configuration = {configuration}; }}).{attribute}",
            eval.display(),
            self.lib.display(),
            self.path("package").display()
        );
        let mut command = Command::new(program);
        command.args(args).args(["-E", &expression]).env("HOME", self.path("home")).env_remove("NIX_PATH");
        for (variable, folder) in [("NIX_STORE_DIR", "store"), ("NIX_STATE_DIR", "var"), ("NIX_LOG_DIR", "log")] {
            command.env(variable, self.path(folder));
        }
        command.env("NIX_REMOTE", "").output().unwrap()
    }

    fn eval(&self, configuration: &str, attribute: &str) -> Value {
        let output = self.try_run(
            "nix-instantiate",
            &["--eval", "--strict", "--json", "--read-write-mode"],
            configuration,
            attribute,
        );
        assert!(output.status.success(), "{configuration}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Why a configuration can't be evaluated.
    fn error(&self, configuration: &str, attribute: &str) -> String {
        let output = self.try_run(
            "nix-instantiate",
            &["--eval", "--strict", "--json", "--read-write-mode"],
            configuration,
            attribute,
        );
        assert!(!output.status.success(), "{configuration}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    /// Builds the configuration file, which `narval config check` reads in the build.
    fn build_file(&self, configuration: &str) -> Result<String, String> {
        let output = self.try_run("nix-build", &["--no-out-link"], configuration, "configFile");
        match output.status.success() {
            true => Ok(fs::read_to_string(String::from_utf8(output.stdout).unwrap().trim()).unwrap()),
            false => Err(String::from_utf8(output.stderr).unwrap()),
        }
    }

    /// The units of a configuration, in files.
    fn units(&self, configuration: &str) -> Vec<(PathBuf, String)> {
        let found = self.eval(configuration, "units");
        let write = |(name, text): (&String, &Value)| {
            let (file, text) = (self.path(name), text.as_str().unwrap().to_owned());
            fs::write(&file, &text).unwrap();
            (file, text)
        };
        found.as_object().unwrap().iter().map(write).collect()
    }
}

fn example(name: &str) -> String {
    format!("{ROOT}/nix/examples/{name}.nix")
}

/// What `serve` is set to.
fn settings(text: &str) -> String {
    format!("{{ services.narval-serve = {{ enable = true; settings = {{ {text} }}; }}; }}")
}

#[test]
fn every_key_of_the_file_is_an_option() {
    let Some(nix) = Nix::new() else { return };
    let options = nix.eval("{ }", "keys");
    let options: BTreeSet<String> =
        options.as_array().unwrap().iter().map(|key| key.as_str().unwrap().to_owned()).collect();
    assert_eq!(options, ServeConfig::keys());
}

/// Each example of nix/examples: nothing is asserted in vain, systemd takes its units, and the server its file.
#[test]
fn the_examples_make_units_that_systemd_accepts() {
    let Some(nix) = Nix::new() else { return };
    for (name, count) in [("nginx", 2), ("https", 2), ("builder", 1)] {
        let example = example(name);
        assert_eq!(nix.eval(&example, "failures"), Value::Array(Vec::new()), "{name}");
        let units = nix.units(&example);
        assert_eq!(units.len(), count, "{name}");
        if Command::new("systemd-analyze").arg("--version").output().is_err() {
            eprintln!("note: skipped in part: systemd-analyze is not installed");
            continue;
        }
        for (file, text) in units.iter().filter(|(file, _)| file.extension().is_some_and(|kind| kind == "service")) {
            // Before systemd 253 there was no such type.
            fs::write(file, text.replace("Type=notify-reload", "Type=notify")).unwrap();
            let mut security = Command::new("systemd-analyze");
            let security = security.args(["security", "--no-pager", "--offline=true", "--threshold=15"]).arg(file);
            let output = security.output().unwrap();
            assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stdout));
        }
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).args(units.iter().map(|(file, _)| file));
        let output = verify.env("SYSTEMD_UNIT_PATH", format!("{}:", nix.folder.path().display())).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !message.contains("narval"), "{name}: {message}");
    }
}

#[test]
fn the_file_has_what_was_set_and_passes_its_check_in_the_build() {
    let Some(nix) = Nix::new() else { return };
    let file = nix.build_file(&example("https")).unwrap();
    // Keys and certificates are those that systemd passes.
    let passed = "/run/credentials/narval-serve.service/";
    let config = ServeConfig::parse("narval.toml", &file).unwrap();
    let keys: Vec<_> = config.sign_keys.iter().map(|at| at.value.to_str().unwrap()).collect();
    assert!(keys.len() == 1 && keys[0].starts_with(passed) && keys[0].ends_with("-cache.sec"), "{file}");
    assert_eq!((config.priority.value, config.upstreams.upstream.len(), config.cache.len()), (20, 1, 1), "{file}");
    assert_eq!(config.cache[0].quota, Some(500 << 30), "{file}");
    assert!(config.tls.certificate[0].key.starts_with(passed), "{file}");
    let systemd = nix.eval(&example("https"), "systemd");
    let service = &systemd["services"]["narval-serve"];
    let credentials: Vec<_> = service["serviceConfig"]["LoadCredential"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_str().unwrap())
        .collect();
    assert_eq!(credentials.len(), 4, "{credentials:?}");
    for credential in credentials {
        let (name, path) = credential.split_once(':').unwrap();
        assert!(path.starts_with("/var/") && file.contains(&format!("\"{passed}{name}\"")), "{credential}: {file}");
    }
    assert_eq!(nix.eval(&example("https"), "ports"), serde_json::json!([443]));

    let managed = settings("data = \"/var/lib/narval\"; managed-sign-keys = [ \"/var/keys/team.sec\" ];");
    let config = ServeConfig::parse("narval.toml", &nix.build_file(&managed).unwrap()).unwrap();
    let key = config.managed_sign_keys[0].value.to_str().unwrap();
    let systemd = nix.eval(&managed, "systemd");
    let credential = systemd["services"]["narval-serve"]["serviceConfig"]["LoadCredential"][0].as_str().unwrap();
    let name = credential.strip_suffix(":/var/keys/team.sec").unwrap();
    assert_eq!(key, format!("{passed}{name}"));

    // Without a setting there is a file, too. A key that the module does not know reaches the server's check.
    assert_eq!(nix.build_file(&settings("")).unwrap(), "");
    let message = nix.build_file(&settings("prioritty = 3;")).unwrap_err();
    assert!(message.contains("unknown key 'prioritty'; did you mean 'priority'?"), "{message}");
    // What is allowed together is the server's to say.
    let message = nix.build_file(&settings("upstream = [ { url = \"https://cache.example.org\"; } ];")).unwrap_err();
    assert!(message.contains("needs its public keys"), "{message}");
}

#[test]
fn invalid_values_are_refused_by_their_types() {
    let Some(nix) = Nix::new() else { return };
    let cases = [
        ("priority = \"low\";", "settings.priority' is not of type"),
        ("priority = -1;", "settings.priority' is not of type"),
        ("nar-cache.level = 20;", "settings.nar-cache.level' is not of type"),
        ("nar-cache.size = \"10 gigabytes\";", "size such as \"10G\""),
        ("limits.stall-timeout = \"1 hour\";", "time such as \"90s\""),
        ("limits.queue = 0;", "settings.limits.queue' is not of type"),
        ("data = \"/srv/cache\";", "folder in /var/lib"),
        ("data = \"/var/lib/narval\"; cache = [ { } ];", "no value defined"),
        ("data = \"/var/lib/narval\"; cache = [ { name = \"Team A\"; } ];", "name of a cache"),
        ("cache = [ { name = \"a\"; trusted-keys = \"abc\"; } ];", "public key, NAME:BASE64"),
        ("access-log.format = \"xml\";", "one of \"combined\", \"real-ip\", \"verbose\", \"json\""),
        // Everybody can read the store.
        ("sign-keys = [ \"${builtins.storeDir}/00bgd045z0d4icpbc2yyz4gx48ak44la-cache.sec\" ];", "sign-keys"),
        ("sign-keys = \"cache.sec\";", "sign-keys"),
    ];
    for (text, want) in cases {
        let message = nix.error(&settings(text), "configFile");
        assert!(message.contains("error:") && message.contains(want), "{text}: {message}");
    }
    let failures = |configuration: &str| nix.eval(configuration, "failures").to_string();
    assert!(failures(&settings("cache = [ { name = \"team\"; } ];")).contains("need a folder"));
    assert!(failures("{ services.narval-watch-store.enable = true; }").contains("at least one cache"));
    let message = nix
        .error("{ services.narval-follow = { enable = true; release = \"web\"; }; }", "systemd.services.narval-follow");
    assert!(message.contains("name of a release, with @"), "{message}");
    let both = "{ services.narval-watch-store = { enable = true; to = [ \"file:///a\" ]; queueOnly = true; existing = true; }; }";
    assert!(failures(both).contains("neither existing nor builtHere"));
    let message = nix.error("{ programs.narval = { enable = true; caches.\"https://a\" = \"x\"; }; }", "nixSettings");
    assert!(message.contains("public key, NAME:BASE64"), "{message}");
}

/// Directives of a section, but not those that differ on purpose.
fn directives(unit: &str) -> BTreeSet<String> {
    let own = ["ExecStart", "ExecReload", "LoadCredential", "Type", "Environment", "EnvironmentFile"];
    let service = unit.split("[Service]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let lines = service.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .filter(|line| !own.contains(&line.split('=').next().unwrap()))
        .map(|line| line.replace("=yes", "=true").replace("=no", "=false"))
        .collect()
}

/// A list of words in one line, or in lines of their own.
fn words(directives: BTreeSet<String>) -> BTreeSet<String> {
    let split = |line: String| {
        let (name, value) = line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap();
        match value.split(' ').map(|word| format!("{name}={word}")).collect::<Vec<_>>() {
            words if name == "RestrictAddressFamilies" => words,
            _ => vec![line],
        }
    };
    directives.into_iter().flat_map(split).collect()
}

#[test]
fn the_units_of_the_modules_and_of_the_packages_are_alike() {
    let Some(nix) = Nix::new() else { return };
    let configuration = "{
        services.narval-serve = { enable = true; settings.data = \"/var/lib/narval\"; };
        services.narval-watch-store = { enable = true; to = [ \"https://cache.example.org\" ]; exclude = [ \"a b%c$d\" ]; };
        services.narval-follow = { enable = true; release = \"@web\"; check = \"grep -q '\\\\s' /f && test 5% = $x\"; on = [ \"Mon 02:00-03:00\" ]; };
    }";
    for (file, text) in nix.units(configuration) {
        let packaged =
            fs::read_to_string(Path::new(ROOT).join("packaging/systemd").join(file.file_name().unwrap())).unwrap();
        if file.extension().is_some_and(|kind| kind == "socket") {
            assert!(text.contains("ListenStream=5000\n") && packaged.contains("ListenStream=5000\n"), "{text}");
            continue;
        }
        assert_eq!(words(directives(&text)), words(directives(&packaged)), "{}", file.display());
        let escaped = r#"--exclude "a b%%c$$d""#;
        assert!(!text.contains("watch-store --to") || text.contains(escaped), "{text}");
        let escaped = "--check \"grep -q '\\\\s' /f && test 5%% = $$x\" --on \"Mon 02:00-03:00\"\n";
        assert!(
            !text.contains("follow @web --profile /nix/var/nix/profiles/system") || text.contains(escaped),
            "{text}"
        );
    }
    // Ports below 1024, without systemd's sockets.
    let configuration = "{ services.narval-serve = {
        enable = true; socketActivation = false; openFirewall = true; settings.listen = [ \":80\" \"[::1]:5000\" \"/run/a:1.sock\" ];
    }; }";
    let text = nix.eval(configuration, "units")["narval-serve.service"].as_str().unwrap().to_owned();
    assert!(
        text.contains("AmbientCapabilities=CAP_NET_BIND_SERVICE\n") && text.contains("PrivateUsers=false\n"),
        "{text}"
    );
    assert!(!text.contains("Requires=narval-serve.socket"), "{text}");
    assert_eq!(nix.eval(configuration, "ports"), serde_json::json!([80, 5000]));
}

#[test]
fn every_value_can_be_read_back_from_the_text() {
    let Some(nix) = Nix::new() else { return };
    let value = r#"{ a = 1; b = -2.5; c = true; d = [ ]; e = [ 1 2 ]; f = "\"\\\n\tü$ {}"; n = null; "x y" = { z = "1"; };
        t = { k = "v"; u = [ { p = 1; q = { r = [ { s = 1; } ]; }; } { p = 2; } ]; w = { }; }; mixed = [ { a = 1; } 2 ]; }"#;
    let text = nix.eval("{ }", &format!("rendered {value}"));
    let file = nix.path("values.toml");
    fs::write(&file, text.as_str().unwrap()).unwrap();
    let script = "import json, sys, tomllib; print(json.dumps(tomllib.load(open(sys.argv[1], 'rb'))))";
    let output = Command::new("python3").args(["-c", script]).arg(&file).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("No module named 'tomllib'") {
        eprintln!("note: skipped: this Python has no TOML reader");
        return;
    }
    assert!(output.status.success(), "{text}: {message}");
    let read: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut want = nix.eval("{ }", &format!("same {value}"));
    want.as_object_mut().unwrap().remove("n");
    assert_eq!(read, want, "{text}");
}

/// The flake's outputs, and a source that is a whole workspace.
#[test]
fn the_package_has_all_that_its_build_needs() {
    let Some(nix) = Nix::new() else { return };
    let flake = nix.eval("{ }", "flake");
    assert_eq!(flake["outputs"], serde_json::json!(["nixosModules", "overlays", "packages"]));
    assert_eq!((flake["overlay"].as_str(), flake["static"].as_str()), (Some("narval"), Some("narval")));
    let package = &flake["package"];
    assert_eq!(package["version"].as_str(), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(package["meta"]["mainProgram"], "narval");
    let source = Path::new(flake["source"].as_str().unwrap());
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--format-version=1", "--no-deps", "--locked", "--offline"]).current_dir(source);
    let output = metadata.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(source.join("packaging/systemd/narval-serve.service").exists() && !source.join("target").exists());
}
