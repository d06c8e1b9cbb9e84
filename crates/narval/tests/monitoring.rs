//! The alert rules and the dashboard of packaging/, with Debian's `promtool` and `prometheus`, over the metrics of a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../../narval-s3/tests/ports/mod.rs"]
mod ports;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Running, Server, Store};

const PATIENCE: Duration = Duration::from_secs(60);

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

fn is_missing(program: &str) -> bool {
    let missing = Command::new(program).arg("--version").output().is_err();
    if missing {
        eprintln!("note: skipped: {program} is not installed");
    }
    missing
}

fn promtool(args: &[&str]) -> String {
    let output = Command::new("promtool").args(args).current_dir(packaging("prometheus")).output().unwrap();
    let message = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {args:?}: {message}");
    message
}

#[test]
fn the_alert_rules_fire_when_they_should() {
    if is_missing("promtool") {
        return;
    }
    let message = promtool(&["check", "rules", "narval.rules.yml"]);
    let rules = fs::read_to_string(packaging("prometheus/narval.rules.yml")).unwrap();
    let rules = ["- alert:", "- record:"].iter().map(|start| rules.matches(start).count()).sum::<usize>();
    assert!(message.contains(&format!("SUCCESS: {rules} rules found")), "{message}");
    assert!(promtool(&["test", "rules", "narval.rules.test.yml"]).contains("SUCCESS"));
}

/// Every family has its type, its help, and the base unit of what it measures as the end of its name and in a line of its own.
#[test]
fn metrics_name_their_units_and_satisfy_promtool() {
    let store = Store::new();
    let server = Server::narval(&store, &["--data", store.path("data").to_str().unwrap()]);
    let answer = server.get("/metrics");
    assert_eq!(answer.field("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    let text = answer.text();
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    let about = |what: &str| -> BTreeMap<&str, &str> {
        text.lines().filter_map(|line| line.strip_prefix(&format!("# {what} "))?.split_once(' ')).collect()
    };
    let (types, units, helps) = (about("TYPE"), about("UNIT"), about("HELP"));
    assert!(types.len() > 40 && types.keys().eq(helps.keys()), "{types:?} {helps:?}");
    for (name, help) in &helps {
        let unit = ["bytes", "seconds"].into_iter().find(|unit| name.ends_with(&format!("_{unit}")));
        assert_eq!(units.get(name).copied(), unit, "{name}");
        let measures = [("Bytes", "bytes"), ("Memory", "bytes"), ("Duration", "seconds"), ("Time ", "seconds")];
        for (word, expected) in measures {
            assert!(!help.starts_with(word) || unit == Some(expected), "{name}: {help}");
        }
        for other in ["_ms", "_us", "_kb", "_mb", "_millis", "_milliseconds", "_percent"] {
            assert!(!name.contains(other), "{name} is in no base unit");
        }
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = names(line).into_iter().next().unwrap();
        let family = |suffix: &str| name.strip_suffix(suffix).and_then(|family| types.get(family));
        let fits = match line.split(['{', ' ']).next().unwrap() {
            name if name.ends_with("_total") => family("_total") == Some(&"counter"),
            name if name.ends_with("_bucket") => family("_bucket") == Some(&"histogram"),
            name => types.get(name) == Some(&"gauge") || family("_sum").or(family("_count")) == Some(&"histogram"),
        };
        assert!(fits, "{line}");
    }
    if is_missing("promtool") {
        return;
    }
    let mut check = Command::new("promtool");
    let mut check = check
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // promtool lints the older text format, where the family of a counter has its sample's name.
    let older = types.iter().filter(|(_, kind)| **kind == "counter").fold(text.to_owned(), |text, (name, _)| {
        let about = |what: &str| (format!("# {what} {name} "), format!("# {what} {name}_total "));
        ["TYPE", "HELP"].map(about).iter().fold(text, |text, (old, new)| text.replace(old, new))
    });
    check.stdin.take().unwrap().write_all(older.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
}

/// The queries of the dashboard, with Grafana's variables replaced.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_slice(&fs::read(packaging("grafana/narval.json")).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    assert!(queries.len() > 30, "{queries:?}");
    let fill = |query: String| {
        query
            .replace("$job", "narval")
            .replace("$instance", ".+")
            .replace("$cache", ".*")
            .replace("$__rate_interval", "1m")
    };
    queries.into_iter().map(fill).collect()
}

/// The names that begin with `narval_` in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("narval_")).map(str::to_owned).collect()
}

#[test]
fn every_metric_that_is_named_is_exported() {
    let store = Store::new();
    let data = store.path("data");
    let run = |args: &[&str]| {
        let output = Command::new(support::NARVAL).args(args).arg("--data").arg(&data).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let key = store.key("own-1").0;
    let key = key.to_str().unwrap();
    // Counted when the server starts: a collection has ended, and a token will.
    let args = ["--data", data.to_str().unwrap(), "--sign-key", key, "--upstream", "http://127.0.0.1:1"];
    let args = [&args[..], &["--upstream-key", "x-1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]].concat();
    let config = store.path("serve.toml");
    fs::write(&config, "[[cache]]\nname = 'default'\nquota = '1G'\n").unwrap();
    let args = [&args[..], &["--config", config.to_str().unwrap()]].concat();
    Server::narval(&store, &args).terminate();
    run(&["cache", "gc"]);
    let token = run(&["token", "create", "--pull", "--expires", "30d", "monitoring"]);
    let server = Server::narval(&store, &args);
    // A status has no counter before it is first sent.
    assert_eq!(server.get("/nix-cache-info").status, 200);
    let field = format!("Authorization: Bearer {}", token.trim());
    let until = Instant::now() + PATIENCE;
    let metrics = loop {
        let metrics = server.ask("GET", "/metrics", &[&field]);
        if metrics.text().contains("narval_cache_paths") {
            break metrics;
        }
        assert!(Instant::now() < until, "{}", metrics.text());
        thread::sleep(Duration::from_millis(50));
    };
    let exported: BTreeSet<String> = metrics
        .text()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| names(line).into_iter().next())
        .collect();
    let rules = fs::read_to_string(packaging("prometheus/narval.rules.yml")).unwrap();
    let named: BTreeSet<String> = names(&rules).into_iter().chain(names(&queries().join(" "))).collect();
    assert!(named.len() > 30, "{named:?}");
    // Its own test has it: this server has no certificate.
    let unknown: Vec<_> = named.difference(&exported).filter(|name| !name.contains("_tls_")).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not in\n{}", metrics.text());
    // The labels that are selected or grouped by.
    for label in ["route=\"narinfo\"", "status=\"507\"", "code=\"", "encoding=\"", "le=\""] {
        assert!(metrics.text().contains(label), "{label}: {}", metrics.text());
    }
}

#[test]
fn every_alert_has_its_section_of_the_runbook() {
    let rules = fs::read_to_string(packaging("prometheus/narval.rules.yml")).unwrap();
    let book = fs::read_to_string(packaging("../docs/runbook.md")).unwrap();
    let after = |text: &str, start: &str| -> Vec<String> {
        text.lines()
            .filter_map(|line| line.trim().strip_prefix(start))
            .map(|rest| rest.trim_matches('"').to_owned())
            .collect()
    };
    let (alerts, mut links) = (after(&rules, "- alert: "), after(&rules, "runbook_url: "));
    // Whose address it is, `documents` looks at.
    links.iter_mut().for_each(|link| drop(link.drain(..link.find("/runbook.html").unwrap())));
    assert!(alerts.len() > 15);
    let expected: Vec<_> = alerts.iter().map(|alert| format!("/runbook.html#{}", alert.to_lowercase())).collect();
    assert_eq!(links, expected);
    assert_eq!(after(&book, "## "), alerts);
    for section in book.split("\n## ").skip(1) {
        assert!(
            section.contains("Clients: ") && section.contains("Relief: ") && section.contains("Afterwards: "),
            "{section}"
        );
        assert_eq!(section.lines().filter(|line| line.starts_with("| `")).count(), 3, "{section}");
    }
}

/// A real Prometheus reads the metrics, loads the rules, and answers every query of the dashboard.
#[test]
fn prometheus_reads_the_metrics_and_answers_the_dashboard() {
    if is_missing("prometheus") || is_missing("promtool") {
        return;
    }
    let store = Store::new();
    let path = store.add_file("file", "contents");
    let server = Server::narval(&store, &[]);
    let port = ports::free_port();
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [ '{}' ]
scrape_configs:
  - job_name: narval
    static_configs: [ {{ targets: [ '{}' ] }} ]\n",
        packaging("prometheus/narval.rules.yml").display(),
        server.address
    );
    fs::write(store.path("prometheus.yml"), config).unwrap();
    let mut prometheus = Command::new("prometheus");
    prometheus.arg(format!("--config.file={}", store.path("prometheus.yml").display()));
    prometheus.arg(format!("--storage.tsdb.path={}", store.path("tsdb").display()));
    prometheus.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let _running = Running(prometheus.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());

    let url = format!("http://127.0.0.1:{port}");
    let query = |query: &str| {
        let output = Command::new("promtool").args(["query", "instant", &url, query]).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let narinfo = format!("/{}.narinfo", support::hash_part(&path));
    let until = Instant::now() + PATIENCE;
    // Until two scrapes have seen requests.
    loop {
        assert_eq!(server.get(&narinfo).status, 200);
        let (_, answer) = query("rate(narval_requests_total{route=\"narinfo\",status=\"200\"}[1m]) > 0");
        if !answer.trim().is_empty() {
            break;
        }
        assert!(Instant::now() < until, "nothing is scraped: {:?}", query("up"));
        thread::sleep(Duration::from_millis(200));
    }
    for text in queries() {
        let (worked, answer) = query(&text);
        // This server has neither a data folder nor upstreams.
        let is_of_store = !["cache_", "paths_unsigned", "gc_", "upstream_", "storage_", "tls_", "token_"]
            .iter()
            .any(|of| text.contains(&format!("narval_{of}")));
        assert!(worked && (!answer.trim().is_empty() || !is_of_store), "{text}: {answer}");
    }
    let (_, firing) = query("ALERTS");
    assert_eq!(firing.trim(), "");
}
