use super::*;

fn read_with(line: &[&str], env: &[(&str, &str)]) -> Result<Command, OptionError> {
    let lookup = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
    parse(line.iter().map(OsString::from), &lookup)
}

fn options(line: &[&str]) -> Options {
    match read_with(line, &[]) {
        Ok(Command::Serve(options)) => *options,
        other => panic!("{line:?} gave {other:?}"),
    }
}

fn error(line: &[&str]) -> String {
    read_with(line, &[]).unwrap_err().to_string()
}

fn port(host: Host, port: u16) -> Vec<Listen> {
    vec![Listen::Tcp { host, port }]
}

fn named(name: &str) -> Host {
    Host::Named(name.to_owned())
}

#[test]
fn without_options_the_defaults_of_the_originals() {
    let got = options(&[]);
    assert_eq!(got.listen, []);
    assert_eq!((got.priority, got.backlog), (30, 1024));
    assert_eq!(got.access_log, AccessLog::default());
    assert!(got.notes.is_empty() && got.tls.is_none() && got.store.is_none());
}

#[test]
fn what_the_nixos_module_passes() {
    let got = options(&["--listen", "0.0.0.0:5000", "--workers", "50"]);
    assert_eq!(got.listen, port(named("0.0.0.0"), 5000));
    assert_eq!(got.notes, ["option --workers 50 means nothing here and is ignored"]);
}

#[test]
fn listen_is_repeatable_in_every_form() {
    let got = options(&["-l", ":1", "--listen=[::1]:2", "-l:3:ssl", "--listen", "/run/s", "-listen", "h:4"]);
    let text: Vec<_> = got.listen.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["*:1", "[::1]:2", "*:3", "/run/s", "h:4"]);
}

#[test]
fn host_and_port() {
    assert_eq!(options(&["--host", "!4", "--port", "81"]).listen, port(Host::AnyV4, 81));
    assert_eq!(options(&["--host", "*6"]).listen, port(Host::Any, 5000));
    assert_eq!(options(&["-o", "::1", "-p", "82"]).listen, port(named("::1"), 82));
    assert_eq!(options(&["-p83"]).listen, port(Host::Any, 83));
    assert_eq!(options(&["-p=84"]).listen, port(Host::Any, 84));
    assert_eq!(options(&["-port", "85"]).listen, port(Host::Any, 85));
}

#[test]
fn a_socket_with_its_backlog() {
    let got = options(&["-S", "/run/s", "--backlog", "7"]);
    assert_eq!((got.listen, got.backlog), (vec![Listen::Unix("/run/s".into())], 7));
    assert_eq!(options(&["--socket=rel"]).listen, [Listen::Unix("rel".into())]);
}

#[test]
fn listen_wins_over_the_older_options_and_says_so() {
    let got = options(&["--port", "1", "--host", "h", "-S", "/s", "--listen", ":2"]);
    assert_eq!(got.listen, port(Host::Any, 2));
    assert_eq!(got.notes.len(), 3);
    assert!(got.notes.iter().all(|note| note.contains("gives way to --listen")));
}

#[test]
fn starman_options_that_mean_nothing_are_noted_once_each() {
    let line = [
        "--preload-app",
        "--workers=5",
        "--max-requests",
        "1000",
        "--disable-proctitle",
        "-E",
        "deployment",
        "-MFoo",
        "-I",
        "lib",
        "-e",
        "1",
        "-a",
        "x.psgi",
        "-r",
        "-R",
        "a,b",
        "-L",
        "Delayed",
        "-s",
        "Starman",
        "--default-middleware",
        "--no-default-middleware",
        "--enable-ssl",
    ];
    let got = options(&line);
    assert_eq!(got.notes.len(), 16, "{:#?}", got.notes);
    assert_eq!(got.listen, []);
}

#[test]
fn unknown_options_take_one_value_as_in_perl() {
    let got =
        options(&["--net_server-foo", "bar", "--foo", "1", "--port", "9", "--baz=2", "--enable-x", "--port", "8"]);
    assert_eq!(got.listen, port(Host::Any, 8));
    assert_eq!(
        got.notes,
        [
            "option --net_server-foo bar is unknown and is ignored",
            "option --foo 1 is unknown and is ignored",
            "option --baz=2 is unknown and is ignored",
            "option --enable-x is unknown and is ignored",
        ]
    );
}

#[test]
fn an_unknown_option_does_not_swallow_an_option() {
    let got = options(&["--foo", "--port", "9", "--bar"]);
    assert_eq!((got.listen, got.notes.len()), (port(Host::Any, 9), 2));
}

#[test]
fn positional_arguments_are_ignored() {
    assert_eq!(options(&["nix-serve.psgi", "-p", "9", "x", "-", "--", "-p", "10"]).listen, port(Host::Any, 9));
}

#[test]
fn underscores_stand_for_dashes() {
    assert_eq!(options(&["--keepalive_timeout", "3"]).keep_alive, Some(Duration::from_secs(3)));
}

#[test]
fn times() {
    let got = options(&["--timeout", "600", "--read-timeout", "5", "--keepalive-timeout", "1.5"]);
    assert_eq!(got.timeout, Some(Duration::from_secs(600)));
    assert_eq!(got.read_timeout, Some(Duration::from_secs(5)));
    assert_eq!(got.keep_alive, Some(Duration::from_millis(1500)));
    assert_eq!(options(&["--disable-keepalive", "--keepalive-timeout", "9"]).keep_alive, Some(Duration::ZERO));
}

#[test]
fn process_control() {
    let got = options(&["--user", "u", "--group", "g", "--pid", "/p", "--error-log", "/e", "-D"]);
    assert_eq!((got.user.as_deref(), got.group.as_deref()), (Some("u"), Some("g")));
    assert_eq!(got.pid_file, Some("/p".into()));
    assert_eq!(got.error_log, Some("/e".into()));
    assert!(got.daemonize);
}

#[test]
fn access_logs_of_both() {
    let log = |line: &[&str]| options(line).access_log;
    assert_eq!(log(&["--access-log", "/a"]), AccessLog { format: Some(LogFormat::Combined), file: Some("/a".into()) });
    assert_eq!(log(&["--log-format", "default"]).format, Some(LogFormat::Combined));
    assert_eq!(log(&["--log-format", "normal"]).format, Some(LogFormat::Combined));
    assert_eq!(log(&["--log-format=real-ip"]).format, Some(LogFormat::RealIp));
    assert_eq!(log(&["--verbose"]).format, Some(LogFormat::Verbose));
    assert_eq!(log(&["--verbose", "--quiet"]).format, None);
    assert_eq!(log(&["--quiet", "--access-log", "/a"]).format, None);
}

#[test]
fn tls_needs_both_files() {
    let got = options(&["--ssl-cert", "/c", "--ssl-key=/k"]);
    assert_eq!(got.tls, Some(TlsFiles { cert: "/c".into(), key: "/k".into() }));
    assert!(error(&["--ssl-cert", "/c"]).contains("--ssl-key"));
    assert!(error(&["--ssl-key", "/k"]).contains("--ssl-cert"));
}

#[test]
fn a_path_prefix() {
    assert_eq!(options(&["--path", "/cache/"]).prefix.as_deref(), Some("/cache"));
    assert_eq!(options(&["--path", "/"]).prefix, None);
    assert!(error(&["--path", "cache"]).contains("a path such as /cache"));
}

#[test]
fn the_environment() {
    let secret_key_file = |value: &str| match read_with(&["--store", "local"], &[("NIX_SECRET_KEY_FILE", value)]) {
        Ok(Command::Serve(got)) => (got.secret_key_file, got.store),
        other => panic!("{other:?}"),
    };
    assert_eq!(secret_key_file("/key"), (Some("/key".into()), Some("local".to_owned())));
    assert_eq!(secret_key_file("").0, None);
}

#[test]
fn help_and_version() {
    assert_eq!(read_with(&["--port", "1", "-h"], &[]), Ok(Command::Help));
    assert_eq!(read_with(&["--help"], &[]), Ok(Command::Help));
    assert_eq!(read_with(&["--version"], &[]), Ok(Command::Version));
    assert_eq!(read_with(&["-v"], &[]), Ok(Command::Version));
}

#[test]
fn errors_name_option_value_and_what_is_allowed() {
    assert_eq!(error(&["--port", "abc"]), "option --port: 'abc' is not allowed: give a port (0 to 65535)");
    assert_eq!(error(&["-p"]), "option -p: a value is missing: give a port (0 to 65535)");
    assert!(error(&["--listen", ":x"]).starts_with("option --listen: 'x' is not a port"));
    assert!(error(&["--host", "a b"]).starts_with("option --host: 'a b' is not a host"));
    assert!(error(&["--priority", "-1"]).contains("--priority: '-1'"));
    assert!(error(&["--backlog", "0"]).contains("1 to 1048576"));
    assert!(error(&["--timeout", "soon"]).contains("seconds"));
    assert!(error(&["--timeout", "inf"]).contains("seconds"));
    assert!(error(&["--log-format", "json"]).contains("quiet, default, real-ip, verbose or debug"));
    for text in [error(&["--port", "a"]), error(&["--ssl-cert", "x"]), error(&["-S", ""])] {
        assert!(!text.contains('\n'), "{text}");
    }
}
