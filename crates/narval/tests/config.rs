//! The configuration file: what is said of errors, what `narval config check` prints, and what SIGHUP does to a running server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use std::{fs, thread};

use narval::config::ServeConfig;
use narval_keep::CacheSettings;
use support::{NARVAL, Server, Store};

fn errors(text: &str) -> String {
    ServeConfig::parse("a.toml", text).unwrap_err().to_string()
}

/// Each message, as it is printed.
#[test]
fn an_error_names_its_line_the_key_the_value_and_what_is_allowed() {
    let cases = [
        ("prioritty = 3", "a.toml:1: unknown key 'prioritty'; did you mean 'priority'?"),
        ("\n\nsign_keys = 'a'", "a.toml:3: unknown key 'sign_keys'; did you mean 'sign-keys'?"),
        ("[acces-log]\nfile = '-'", "a.toml:1: unknown key 'acces-log'; did you mean 'access-log'?"),
        (
            "[limits]\nqueues = 3\n\n[tls]\ncertificate = [{ cert = 'a', key = 'b', oscp = 'c' }]",
            "a.toml:2: unknown key 'limits.queues'; did you mean 'limits.queue'?\n\
             a.toml:5: unknown key 'tls.certificate.oscp'; did you mean 'tls.certificate.ocsp'?",
        ),
        ("priority = 'high'", "a.toml:1: priority = 'high': give a whole number from 0 to 4294967295"),
        ("priority = -1", "a.toml:1: priority = -1: give a whole number from 0 to 4294967295"),
        ("verify-nars = 1", "a.toml:1: verify-nars = 1: give true or false"),
        (
            "listen = [\n  ':5000',\n  ':http',\n]",
            "a.toml:3: listen = ':http': 'http' is not a port (0 to 65535): give HOST:PORT, :PORT, [IPV6]:PORT or the path of \
             a unix socket",
        ),
        (
            "listen = 5000",
            "a.toml:1: listen = 5000: give HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket in quotes",
        ),
        (
            "limits.stall-timeout = '1 hour'",
            "a.toml:1: limits.stall-timeout = '1 hour': give a time from \"100ms\" to \"1d\", with ms, s, m, h, d or w as its unit",
        ),
        ("[nar-cache]\nlevel = 20", "a.toml:2: nar-cache.level = 20: give a whole number from 1 to 19"),
        (
            "[nar-cache]\nsize = '10X'",
            "a.toml:2: nar-cache.size = '10X': give a number of bytes, or a string with K, M, G or T, such as \"10G\"",
        ),
        (
            "[access-log]\nformat = 'apache'",
            "a.toml:2: access-log.format = 'apache': give one of \"combined\", \"real-ip\", \"verbose\", \"json\", \"logfmt\"",
        ),
        (
            "trusted-proxies = ['10.0.0.0/40']",
            "a.toml:1: trusted-proxies = '10.0.0.0/40': '10.0.0.0/40' is not a proxy: give an IP address, a network such as 10.0.0.0/8, or 'unix'",
        ),
        ("[[tls.certificate]]\ncert = 'a.pem'", "a.toml:1: tls.certificate: key 'key' is missing"),
        (
            "[tls]\ncertificate = 'a.pem'",
            "a.toml:2: tls.certificate = 'a.pem': give tables, each below a line [[tls.certificate]]",
        ),
        ("limits = 3", "a.toml:1: limits = 3: give a table"),
        ("store = ''", "a.toml:1: store = '': give a text in quotes"),
    ];
    for (text, want) in cases {
        assert_eq!(errors(text), want, "{text}");
    }
    let unknown = errors("frobnicate = true");
    assert!(
        unknown.starts_with("a.toml:1: unknown key 'frobnicate'; known here: listen, store, data, cache-dir, "),
        "{unknown}"
    );
}

#[test]
fn settings_of_the_cache_that_is_written() {
    let key = "cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=";
    let text = format!(
        "[[cache]]\nname = 'default'\ntrusted-keys = '{key}'\nretention = '30d'\nmax-size = '1G'\nquota = '2G'\nmax-nar-size = '3M'\nrecompress = 'zstd'"
    );
    let config = ServeConfig::parse("a.toml", &text).unwrap();
    let mut settings = CacheSettings { strict_references: true, ..CacheSettings::default() };
    config.cache[0].apply(&mut settings);
    assert_eq!((settings.retention_days, settings.size_max, settings.quota), (Some(30), Some(1 << 30), Some(2 << 30)));
    assert_eq!((settings.trusted_keys[0].to_string().as_str(), settings.nar_size_max), (key, 3 << 20));
    assert!(settings.recompress);
    assert!(settings.required_keys.is_empty() && settings.strict_references, "left out, so left as it was");
    let config =
        ServeConfig::parse("a.toml", "[[cache]]\nname = 'default'\nretention = 'never'\ntrusted-keys = []").unwrap();
    config.cache[0].apply(&mut settings);
    assert!(settings.retention_days.is_none() && settings.trusted_keys.is_empty());
    for (text, want) in [
        (
            "[[cache]]\nretention = 90",
            "a.toml:1: cache: key 'name' is missing\na.toml:2: cache.retention = 90: give a number of days",
        ),
        (
            "[[cache]]\nname = 'nar'",
            "a.toml:2: cache.name = 'nar': '/nar' is a path of the cache at '/': choose another name",
        ),
        (
            "[[cache]]\nname = 'x.narinfo'",
            "a.toml:2: cache.name = 'x.narinfo': '/x.narinfo' is a path of the cache at '/'",
        ),
        (
            "[[cache]]\nname = '_narval'",
            "a.toml:2: cache.name = '_narval': a cache name must have 1 to 64 characters of a-z",
        ),
        ("[[cache]]\nname = 'a/b'", "a.toml:2: cache.name = 'a/b': a cache name must have 1 to 64 characters of a-z"),
        ("[[cache]]\nname = 'a'\n[[cache]]\nname = 'a'", "a.toml:3: cache: the name 'a' is used twice"),
        (
            "[[cache]]\nname = 'a'\nhost = 'x'\n[[cache]]\nname = 'b'\nhost = ['y', 'X']",
            "a.toml:6: cache.host = \"x\": another cache has this host already",
        ),
        (
            "[[cache]]\nname = 'a'\nhost = 'http://x:80'",
            "a.toml:3: cache.host = 'http://x:80': give a host name without a port, such as \"team.example.org\"",
        ),
        (
            "[[cache]]\nname = 'a'\nhost-only = true",
            "a.toml:1: cache.host-only: the cache 'a' has no 'host', so it could not be reached",
        ),
        (
            "[[cache]]\nname = 'default'\nhost = 'x'\nhost-only = true",
            "a.toml:1: cache.host-only: the cache 'default' is at '/'",
        ),
        (
            "[[cache]]\nname = 'a'\nupstreams = 'x'",
            "a.toml:3: unknown key 'cache.upstreams'; did you mean 'cache.upstream'?",
        ),
        (
            "[[cache]]\nname = 'a'\n[[cache.upstream]]\nkey = 'x'",
            "a.toml:3: cache.upstream: key 'url' is missing\na.toml:4: unknown key 'cache.upstream.key'",
        ),
        ("[[cache]]\nname = 'default'\nretention = '0d'", "a.toml:3: cache.retention = '0d': give a number of days"),
        (
            "[[cache]]\nname = 'default'\nrecompress = 'gzip'",
            "a.toml:3: cache.recompress = 'gzip': give \"zstd\" or \"never\"",
        ),
        ("[[cache]]\nname = 'default'\nrequired-keys = 'x'", "a.toml:3: cache.required-keys = 'x': "),
    ] {
        assert!(errors(text).starts_with(want), "{}", errors(text));
    }
}

#[test]
fn invalid_toml_is_an_error_with_its_line() {
    for (text, line) in [("priority = 3\npriority = 4", 2), ("a = 1\nb = \n", 2), ("[limits\n", 1), ("\"open", 1)] {
        let message = errors(text);
        assert!(message.starts_with(&format!("a.toml:{line}: ")), "{text}: {message}");
        assert!(message.lines().all(|line| line.starts_with("a.toml:")), "{text}: {message}");
    }
}

/// Addresses of databases may have passwords in them.
#[test]
fn a_password_of_a_database_is_not_shown() {
    for value in
        ["'postgres://u:secret@h:port/d'", "'host=h password=secret'", "['secret']", "'postgres://u:secret@h/d"]
    {
        let message = errors(&format!("data = 'd'\ndatabase = {value}\n"));
        assert!(message.starts_with("a.toml:2: ") && !message.contains("secret"), "{message}");
    }
}

#[test]
fn values_arrive() {
    let text = "
        listen = ':80'
        trusted-proxies = ['10.0.0.0/8', 'unix']
        proxy-protocol = true
        store = 'daemon'
        sign-keys = ['a.sec', '/b.sec']
        priority = 0x10
        verify-nars = true
        tls = { ktls = 'auto', client-ca = 'ca.pem', certificate = [{ cert = 'c', key = 'k' }] }
        access-log = { file = '-', format = 'json' }
        [nar-cache]
        enabled = false
        size = '1G'
        [limits]
        connections = 7
        connections-per-address = 3
        queue = 9
        backlog = 11
        head-timeout = '2s'
        keep-alive-timeout = 5
        stall-timeout = '250ms'
        output-memory = '1M'
        narinfo-memory = 4096
        decode-memory = '1G'
    ";
    let config = ServeConfig::parse("/etc/narval/a.toml", text).unwrap();
    let keys: Vec<_> = config.sign_keys.iter().map(|at| (at.value.to_str().unwrap(), at.origin.line())).collect();
    assert_eq!(keys, [("/etc/narval/a.sec", 6), ("/b.sec", 6)]);
    let proxies: Vec<_> = config.proxies.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!((proxies.join(" ").as_str(), config.proxies.proxy_protocol.value), ("10.0.0.0/8 unix", true));
    assert_eq!(config.listen[0].to_string(), "*:80");
    assert_eq!((config.priority.value, config.verify_nars), (16, true));
    assert_eq!(config.tls.certificate[0].key, Path::new("/etc/narval/k"));
    assert_eq!(config.access_log.file.unwrap().value, Path::new("-"));
    assert_eq!((config.nar_cache.store.enabled, config.nar_cache.store.size), (false, 1 << 30));
    let limits = config.limits.of_engine();
    assert_eq!((limits.connections_max, limits.connections_per_ip_max, limits.queue_max), (7, Some(3), 9));
    assert_eq!((limits.backlog, limits.head_timeout), (11, Duration::from_secs(2)));
    assert_eq!(limits.keep_alive_timeout, Duration::from_secs(5));
    assert_eq!(limits.write_stall_timeout, Duration::from_millis(250));
    assert_eq!((limits.output_memory_max, config.limits.narinfo_memory), (1 << 20, 4096));
    assert_eq!(config.limits.decode_memory, 1 << 30);
}

/// Each key can be set in the file, and the example of the page is a file; what the engine does without a setting is what is said.
#[test]
fn the_example_of_the_page_is_a_file_and_the_defaults_are_those_of_the_engine() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md")).unwrap();
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    ServeConfig::parse("example.toml", example).unwrap();
    let (ours, engine) = (ServeConfig::parse("", "").unwrap().limits, narval_http::Limits::default());
    let of_engine = narval_http::Limits { write_stall_timeout: ours.stall_timeout, ..engine };
    assert_eq!(format!("{:?}", ours.of_engine()), format!("{of_engine:?}"));
}

/// An option is a key over the file: it is read like one, and named if it is wrong, together with all that is wrong in the file.
#[test]
fn options_are_keys_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    let refused = |text: &str, args: &[&str]| {
        fs::write(&file, text).unwrap();
        let output = Command::new(NARVAL).args(["serve", "--config"]).arg(&file).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap().replace(&file.display().to_string(), "a.toml")
    };
    let known = ServeConfig::parse("", "frob-nicate = 1").unwrap_err().to_string();
    let known = known.split("known here: ").nth(1).unwrap();
    let options = ["--cache-size", "2X", "--priority", "9", "--nar-cache-level", "20"];
    assert_eq!(
        refused("priority = 'x'\nfrob-nicate = 1\n", &options),
        format!(
            "narval: option --cache-size: '2X': give a number of bytes, or a string with K, M, G or T, such as \"10G\"\n\
             narval: option --nar-cache-level: '20': give a whole number from 1 to 19\n\
             narval: a.toml:1: priority = 'x': give a whole number from 0 to 4294967295\n\
             narval: a.toml:2: unknown key 'frob-nicate'; known here: {known}\n"
        )
    );
    // Options of tables: the first values are the first table, and so on.
    let half = refused("", &["--tls-cert", "a", "--tls-key", "b", "--tls-cert", "c"]);
    assert_eq!(half, "narval: option --tls-cert: give one --tls-key for each\n");
    // Those of `[[upstream]]` make no `[[cache]]`, which has such a table, too.
    let cache = refused("[[cache]]\nname = 'a'\nhost-only = true\n", &["--upstream", "https://cache.nixos.org"]);
    assert!(cache.starts_with("narval: a.toml:1: cache.host-only: the cache 'a' has no 'host'"), "{cache}");
    let secret = refused("data = 'd'\n", &["--database", "host=h password=secret"]);
    assert!(secret.starts_with("narval: option --database: '…': ") && !secret.contains("secret"), "{secret}");
    // What contradicts each other is named where it stands.
    for (text, args, says) in [
        (
            "[access-log]\n[tls]\nclient-ca = 'ca'\n",
            &["--proxy-protocol"][..],
            [
                "option --proxy-protocol: needs trusted-proxies, which send it",
                "a.toml:3: tls.client-ca: needs a certificate: give a [[tls.certificate]]",
            ],
        ),
        (
            "redirect = 'on'\n",
            &["--private"],
            [
                "option --private: needs a data folder for the tokens that readers need: give --data DIR",
                "a.toml:1: redirect: needs --data in a bucket (s3://…)",
            ],
        ),
    ] {
        assert_eq!(refused(text, args), says.map(|line| format!("narval: {line}\n")).concat());
    }
}

fn check(file: &Path) -> Output {
    Command::new(NARVAL).args(["config", "check"]).arg(file).output().unwrap()
}

/// From the table that the pages about replacing another server have.
#[test]
fn keys_of_other_servers_are_answered_with_ours() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    for (program, key, here) in narval::config::FOREIGN {
        fs::write(&file, format!("{key} = 'x'\n")).unwrap();
        let output_text = String::from_utf8(check(&file).stderr).unwrap();
        assert!(output_text.contains(&format!("{program}'s '{key}' is '{here}' here")), "{output_text}");
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/replacing-{program}.md"));
        let page = fs::read_to_string(page).unwrap();
        let names = |cell: &str, word: &str| {
            let words =
                cell.split('`').skip(1).step_by(2).flat_map(|code| code.split(&[' ', '=', ',', '[', ']', '"'][..]));
            words.map(str::trim).any(|one| one == word)
        };
        let plain = here.trim_matches(&['[', ']'][..]);
        let has = |row: &str| {
            let (theirs, ours) = row[1..].split_once(" | ").unwrap_or_default();
            names(theirs, key) && (ours.contains(here) || names(ours, plain))
        };
        assert!(
            page.lines().filter(|line| line.starts_with("| ")).any(has),
            "{key}: {here} is not in the page of {program}"
        );
    }
}

#[test]
fn the_summary_has_what_is_effective() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("narval.toml");
    let key = folder.path().join("a.sec");
    let made = Command::new(NARVAL).args(["key", "generate", "cache.example.org-1", "--out"]).arg(key).output();
    assert!(made.unwrap().status.success());
    let text = "data = 'd'\nsign-keys = 'a.sec'\n[[cache]]\nname = 'default'\n[[cache]]\nname = 'team'\n";
    fs::write(&file, text).unwrap();
    let summary = String::from_utf8(check(&file).stdout).unwrap();
    for line in [
        "sign keys: cache.example.org-1",
        "cache 'default': at /, publicly readable, signs with cache.example.org-1 (inherited), 0 upstreams",
        "cache 'team': at /team, publicly readable, signs nothing, 0 upstreams",
    ] {
        assert!(summary.lines().any(|one| one == line), "{line}: {summary}");
    }
    let warnings: Vec<_> = summary.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("'team' takes uploads and signs nothing"), "{summary}");
}

/// The files of the pages, and each kind of secret, on a machine where the service has never run.
#[test]
fn secrets_that_systemd_has_yet_to_provide_are_no_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("serve.toml");
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md")).unwrap();
    let documented = page.split("serve.toml <<'END'\n").nth(1).unwrap().split("END\n").next().unwrap();
    let secret = |name: &str| format!("'/run/credentials/narval-serve.service/key_{name}'");
    let all = format!(
        "data = 'd'\nsign-keys = {}\n[tls]\nclient-ca = {}\n[[tls.certificate]]\ncert = {}\nkey = {}\n[[upstream]]\n\
         url = 'https://old.example.org'\nkeys = ['a:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=']\nnetrc-file = {}\n",
        secret("cache.sec"),
        secret("ca.pem"),
        secret("cert.pem"),
        secret("key.pem"),
        secret("netrc")
    );
    for (text, waiting) in [(documented, 1), (&all, 5)] {
        fs::write(&file, text).unwrap();
        let output = check(&file);
        let output_text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(
            output_text.matches(" is there when the service runs: it is checked then").count(),
            waiting,
            "{output_text}"
        );
    }
    // Other files must be there.
    fs::write(&file, "sign-keys = '/etc/narval-of-nobody/key'\n").unwrap();
    assert_eq!(check(&file).status.code(), Some(2));
}

#[test]
fn config_check_prints_a_summary_or_the_lines_that_are_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("narval.toml");
    let key =
        Command::new(NARVAL).args(["key", "generate", "test-1", "--out"]).arg(folder.path().join("a.sec")).output();
    assert!(key.unwrap().status.success());
    fs::write(&file, "listen = ':7000'\nsign-keys = 'a.sec'\n[limits]\nstall-timeout = '90s'\n").unwrap();
    let output = check(&file);
    let summary = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), output.stderr.is_empty()), (Some(0), true), "{summary}");
    assert!(summary.contains("listen: *:7000\n") && summary.contains("limits: stall-timeout 90s\n"), "{summary}");

    fs::write(&file, "sign-keys = [\n 'a.sec',\n 'b.sec']\n[[tls.certificate]]\ncert = 'c.pem'\nkey = 'c.key'\n")
        .unwrap();
    let output = check(&file);
    let output_text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{output_text}");
    let at = |line: usize| format!("narval: {}:{line}: ", file.display());
    let lines: Vec<_> = output_text.lines().collect();
    assert_eq!(lines.len(), 2, "{output_text}");
    assert!(lines[0].starts_with(&(at(3) + "sign-keys: cannot read secret key ")), "{output_text}");
    assert!(lines[1].starts_with(&(at(4) + "tls.certificate: ")), "{output_text}");

    // On another machine there are no such files.
    let output = Command::new(NARVAL).args(["config", "check", "--no-files"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));

    // What a server would refuse to start with.
    let text = "data = 'd'\n[[cache]]\nname = 'team'\nsign-keys = 'b.sec'\n[[cache.upstream]]\nurl = 'https://cache.example.org'\n";
    fs::write(&file, text).unwrap();
    let output_text = String::from_utf8(check(&file).stderr).unwrap();
    let lines: Vec<_> = output_text.lines().collect();
    assert_eq!(lines.len(), 2, "{output_text}");
    assert!(lines[0].starts_with(&(at(4) + "sign-keys: cannot read secret key ")), "{output_text}");
    assert!(
        lines[1].starts_with(&(at(5) + "upstream: 'https://cache.example.org' needs its public keys")),
        "{output_text}"
    );
    // Authorities of clients: of no use without a certificate, and a file that is none.
    fs::write(&file, "[tls]\nclient-ca = 'a.sec'\n").unwrap();
    let output_text = String::from_utf8(check(&file).stderr).unwrap();
    assert_eq!(output_text, at(2) + "tls.client-ca: needs a certificate: give a [[tls.certificate]]\n");
    support::certificate(folder.path());
    let text = "[tls]\nclient-ca = 'a.sec'\ncertificate = [{ cert = 'cert.pem', key = 'key.pem' }]\n";
    fs::write(&file, text).unwrap();
    let output_text = String::from_utf8(check(&file).stderr).unwrap();
    assert!(output_text.starts_with(&(at(2) + "tls.client-ca: client certificate authority ")), "{output_text}");
    assert_eq!(output_text.lines().count(), 1, "{output_text}");
    fs::write(&file, text.replace("a.sec", "cert.pem")).unwrap();
    assert_eq!(check(&file).status.code(), Some(0));
    // Credentials of an upstream: a file that is not there, or has none for it, and nothing else.
    let upstream = "data = 'd'\n[[upstream]]\nurl = 'https://cache.nixos.org'\nnetrc-file = 'netrc'\n";
    fs::write(&file, upstream).unwrap();
    let netrc = folder.path().join("netrc");
    for (entries, wrong) in [
        (None, format!("{}: No such file or directory", netrc.display())),
        (Some(""), format!("'{}' has no entry for 'cache.nixos.org'", netrc.display())),
        (
            Some("machine other.example login a password b"),
            "has no entry for 'cache.nixos.org': add 'machine ".to_owned(),
        ),
        (Some("machine cache.nixos.org login me"), "the entry for 'cache.nixos.org' in ".to_owned()),
        (Some("machine cache.nixos.org login me password x"), String::new()),
        (Some("default login me password x"), String::new()),
    ] {
        if let Some(entries) = entries {
            fs::write(&netrc, entries).unwrap();
        }
        let output = check(&file);
        let output_text = String::from_utf8(output.stderr).unwrap();
        if wrong.is_empty() {
            assert_eq!((output.status.code(), output_text.as_str()), (Some(0), ""), "{entries:?}");
        } else {
            assert_eq!((output.status.code(), output_text.lines().count()), (Some(2), 1), "{entries:?}: {output_text}");
            assert!(
                output_text.starts_with(&(at(4) + "upstream.netrc-file: ")) && output_text.contains(&wrong),
                "{entries:?}: {output_text}"
            );
        }
    }
    fs::write(&netrc, [0xff, 0xfe]).unwrap();
    let output_text = String::from_utf8(check(&file).stderr).unwrap();
    assert!(
        output_text.starts_with(&(at(4) + "upstream.netrc-file: ")) && output_text.contains("UTF-8"),
        "{output_text}"
    );
    let text = "data = 'd'\npublic = false\n[[cache]]\nname = 'team'\nhost = 'Team.example.org'\nsign-keys = 'a.sec'\n";
    fs::write(&file, text).unwrap();
    let summary = String::from_utf8(check(&file).stdout).unwrap();
    let line = "cache 'team': at /team and team.example.org, readable only with a token (inherited), signs with test-1, 0 upstreams\n";
    assert!(summary.contains(line), "{summary}");
    let output = check(&folder.path().join("nowhere.toml"));
    assert_eq!(output.status.code(), Some(2));
    let output_text = String::from_utf8(output.stderr).unwrap();
    assert!(output_text.contains("nowhere.toml: cannot read the configuration: No such file"), "{output_text}");
}

/// Both refuse a file whose keys would be ignored without a data folder, in the same words.
#[test]
fn config_check_and_serve_refuse_caches_without_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("narval.toml");
    let upstream = "url = 'https://cache.nixos.org'\n";
    let oidc = "issuer = 'https://ci.example.org'\naudience = 'us'\n[[oidc.rule]]\nclaims = { ref = 'main' }\nscopes = 'pull'\n";
    for (text, says) in [
        ("[[cache]]\nname = 'team'\n".to_owned(), "cache: 'team' needs a data folder for its files"),
        (format!("[[upstream]]\n{upstream}"), "upstream: 'https://cache.nixos.org' needs a data folder for its files"),
        (format!("[[oidc]]\n{oidc}"), "oidc: 'https://ci.example.org' needs a data folder for the tokens"),
        ("public = false\n".to_owned(), "public = false: needs a data folder for the tokens that readers need"),
        (
            "database = 'postgres://narval@localhost/narval'\n".to_owned(),
            "database: needs the data folder whose index it has",
        ),
    ] {
        fs::write(&file, format!("listen = '127.0.0.1:0'\n{text}")).unwrap();
        let expected = format!("narval: {}:2: {says}: give data = \"DIR\"\n", file.display());
        let serve = Command::new(NARVAL).args(["serve", "--config"]).arg(&file).output().unwrap();
        for output in [check(&file), serve] {
            assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(2), expected.clone()));
        }
        // As an option of the server, it is not in the file.
        let given = Command::new(NARVAL).args(["config", "check", "--data", "d"]).arg(&file).output().unwrap();
        assert_eq!(given.status.code(), Some(0), "{}", String::from_utf8_lossy(&given.stderr));
    }
}

/// A server with a file beside its store.
fn serve(store: &Store, args: &[&str]) -> Server {
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--config", store.path("narval.toml").to_str().unwrap()]).args(args);
    Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
}

fn hang_up(server: &mut Server) -> String {
    let told = |log: &str| log.matches("SIGHUP: ").count();
    let before = told(&server.log());
    assert!(Command::new("kill").args(["-HUP", &server.pid().to_string()]).status().unwrap().success());
    server.wait_for(|log| {
        (told(log) > before).then(|| log.lines().rfind(|line| line.contains("SIGHUP: ")).unwrap().to_owned())
    })
}

fn priority(server: &Server) -> String {
    let info = server.get("/nix-cache-info");
    info.text().lines().find_map(|line| line.strip_prefix("Priority: ").map(str::to_owned)).unwrap()
}

#[test]
fn a_file_is_served_and_the_command_line_wins() {
    let store = Store::new();
    let file = store.path("narval.toml");
    fs::write(&file, format!("listen = '127.0.0.1:0'\nstore = '{}'\npriority = 11\n", store.uri())).unwrap();
    assert_eq!(priority(&serve(&store, &[])), "11");
    assert_eq!(priority(&serve(&store, &["--priority", "12"])), "12");

    fs::write(&file, "priority = 'x'\nfrob = 1\n").unwrap();
    let output = Command::new(NARVAL).args(["serve", "--config"]).arg(&file).output().unwrap();
    let output_text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{output_text}");
    let lines: Vec<_> = output_text.lines().collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.starts_with("narval: ")), "{output_text}");
    assert!(
        lines[0].contains("narval.toml:1: priority = 'x'") && lines[1].contains("narval.toml:2: unknown key 'frob'")
    );
}

#[test]
fn a_reload_changes_what_runs_and_a_wrong_file_changes_nothing() {
    let store = Store::new();
    let file = store.path("narval.toml");
    let (log, rotated) = (store.path("access.log"), store.path("access.log.1"));
    let base = format!("listen = '127.0.0.1:0'\nstore = '{}'\naccess-log = {{ file = 'access.log' }}\n", store.uri());
    fs::write(&file, format!("{base}priority = 11\n")).unwrap();
    let mut server = serve(&store, &[]);
    assert_eq!(priority(&server), "11");
    let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default().lines().count();
    while lines(&log) < 1 {
        thread::sleep(Duration::from_millis(5));
    }

    // The same socket answers, and the log goes to a new file.
    fs::write(&file, format!("{base}priority = 12\n")).unwrap();
    fs::rename(&log, &rotated).unwrap();
    assert!(hang_up(&mut server).contains("configuration, keys and certificates reloaded"));
    assert_eq!(priority(&server), "12");
    while lines(&log) < 1 {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(lines(&rotated), 1);

    // One wrong key among right ones.
    fs::write(&file, format!("{base}priority = 13\nverify-nars = 'yes'\n")).unwrap();
    let output_text = hang_up(&mut server);
    assert!(
        output_text.contains("narval.toml:5: verify-nars = 'yes': give true or false; nothing has changed"),
        "{output_text}"
    );
    assert_eq!(priority(&server), "12");
    fs::write(&file, format!("{base}priority = 13\nsign-keys = 'missing.sec'\n")).unwrap();
    let output_text = hang_up(&mut server);
    assert!(output_text.contains("narval.toml:5: sign-keys: cannot read secret key"), "{output_text}");
    assert_eq!(priority(&server), "12");
    fs::remove_file(&file).unwrap();
    assert!(hang_up(&mut server).contains("cannot read the configuration"));
    assert_eq!(priority(&server), "12");

    // What takes effect at the next start only is named, each time.
    for _ in 0..2 {
        fs::write(
            &file,
            format!("{base}priority = 14\ntrusted-proxies = 'unix'\n[limits]\nqueue = 5\nhead-timeout = 10\n"),
        )
        .unwrap();
        let output_text = hang_up(&mut server);
        assert!(
            output_text.ends_with("restart for these keys to take effect: limits.queue, trusted-proxies"),
            "{output_text}"
        );
        assert_eq!(priority(&server), "14");
    }
    assert_eq!(server.terminate(), Some(0));
}

/// A client that takes no more of its NAR holds up the end of a server no longer than is set; by default that is half a minute.
#[test]
fn a_server_ends_when_requests_had_the_time_that_is_set() {
    let store = Store::new();
    let path = store.add_file("large", vec![0; 64 << 20]);
    let base = format!("listen = '127.0.0.1:0'\nstore = '{}'\nlimits.shutdown-grace = '100ms'\n", store.uri());
    fs::write(store.path("narval.toml"), base).unwrap();
    let server = serve(&store, &["--no-nar-cache"]);
    let hash = path.rsplit('/').next().unwrap().split('-').next().unwrap();
    let narinfo = server.get(&format!("/{hash}.narinfo"));
    let url = narinfo.text().lines().find_map(|line| line.strip_prefix("URL: ")).unwrap().to_owned();
    let mut slow = TcpStream::connect(server.address).unwrap();
    slow.write_all(format!("GET /{url} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    slow.read_exact(&mut [0; 1]).unwrap();
    let from = Instant::now();
    server.terminate();
    assert!(from.elapsed() < Duration::from_secs(25), "{:?}", from.elapsed());
}

/// What a server has counted stays when its service is replaced.
#[test]
fn counters_outlive_a_reload() {
    let store = Store::new();
    let base = format!("listen = '127.0.0.1:0'\nstore = '{}'\n", store.uri());
    fs::write(store.path("narval.toml"), format!("{base}priority = 11\n")).unwrap();
    let mut server = serve(&store, &[]);
    let asked = |server: &Server| {
        let metrics = server.get("/metrics");
        let line = metrics.text().lines().find(|line| {
            line.starts_with("narval_requests_total") && line.contains("nix-cache-info") && line.contains("200")
        });
        let count: u64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(metrics.text().contains("narval_http_"), "the engine's counters are there, too: {}", metrics.text());
        count
    };
    (0..3).for_each(|_| drop(priority(&server)));
    assert_eq!(asked(&server), 3);
    fs::write(store.path("narval.toml"), format!("{base}priority = 12\n")).unwrap();
    hang_up(&mut server);
    assert_eq!((priority(&server), asked(&server)), ("12".to_owned(), 4));
}
