//! `/metrics` of caches that take uploads: how full they are, of all of them from one URL, and what a scrape costs.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::{Lab, configured};
use crate::support::{NARVAL, Server, Store, certificate};

/// Until a thread has counted.
const PATIENCE: Duration = Duration::from_secs(120);

fn scrape(server: &Server, path: &str, token: Option<&str>) -> String {
    let field = token.map(|token| format!("Authorization: Bearer {token}"));
    let answer = server.ask("GET", path, &field.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text().to_owned()
}

/// The value of a sample, which is named with its labels.
fn sample(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Scrapes until there is such a sample.
fn counted(server: &Server, token: Option<&str>, name: &str) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = scrape(server, "/metrics", token);
        if sample(&text, name).is_some() {
            return text;
        }
        assert!(Instant::now() < until, "no {name}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn all_caches_come_from_one_url_and_strangers_learn_nothing_of_private_ones() {
    let store = Store::new();
    let (key, _) = store.key("own-1");
    let data = store.path("data");
    let config = format!(
        "data = '{}'\nsign-keys = '{}'\n[[cache]]\nname = 'default'\nquota = '1G'\n[[cache]]\nname = 'team'\npublic = false\nsign-keys = '{}'\n",
        data.display(),
        key.display(),
        key.display()
    );
    let lab = Lab::configured(store, &config);
    let (of_team, of_both) = (lab.token_for("team", "pull,push"), lab.token_for("[dt]e*", "pull"));
    let path = lab.store.add_file("mine", "mine");
    let file = lab.store.path("token");
    std::fs::write(&file, &of_team).unwrap();
    let mut push = Command::new(NARVAL);
    push.args(["push", "--store", &lab.store.uri(), "--to", &format!("{}/team", lab.server.url()), "--token-file"]);
    let pushed =
        push.arg(file).arg(&path).env("HOME", lab.store.dir.path()).env_remove("NARVAL_STORE").output().unwrap();
    assert!(pushed.status.success(), "{pushed:?}");

    // What was pushed since the last count is in the next one.
    let Lab { store, server } = lab;
    server.terminate();
    let server = configured(&store, &config);
    let text = counted(&server, Some(&of_both), "narval_paths_unsigned{cache=\"team\"}");
    assert_eq!(sample(&text, "narval_cache_paths{cache=\"team\"}"), Some(1.0));
    assert_eq!(sample(&text, "narval_paths_unsigned{cache=\"team\"}"), Some(1.0));
    assert_eq!(sample(&text, "narval_paths_unsigned{cache=\"default\"}"), Some(0.0));
    assert!(sample(&text, "narval_cache_bytes{cache=\"team\",kind=\"nar\"}") > Some(0.0), "{text}");
    assert_eq!(
        sample(&text, "narval_cache_limit_bytes{cache=\"default\",kind=\"quota\"}"),
        Some(f64::from(1 << 30)),
        "{text}"
    );
    assert!(sample(&text, "narval_disk_free_bytes{use=\"data\"}") > Some(0.0), "{text}");
    // One family for both.
    assert_eq!(text.matches("# TYPE narval_requests counter").count(), 1);
    let of_one = scrape(&server, "/team/metrics", Some(&of_team));
    assert_eq!(sample(&of_one, "narval_cache_paths{cache=\"team\"}"), Some(1.0));
    assert!(!of_one.contains("cache=\"default\"") && !of_one.contains("narval_http_"), "{of_one}");
    let of_stranger = scrape(&server, "/metrics", None);
    assert!(of_stranger.contains("cache=\"default\"") && !of_stranger.contains("team"), "{of_stranger}");
    let of_team = scrape(&server, "/metrics", Some(&of_team));
    assert!(of_team.contains("narval_cache_paths{cache=\"team\"}"), "{of_team}");
}

#[test]
fn the_end_of_a_certificate_and_of_a_token_are_metrics() {
    let store = Store::new();
    let [cert, key] = certificate(store.dir.path());
    let socket = store.path("socket");
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--listen"]).arg(format!("unix:{}", socket.display()));
    command.arg("--data").arg(store.path("data")).arg("--tls-cert").arg(cert).arg("--tls-key").arg(key);
    let server = Server::start(command, &[]);
    let lab = Lab { store, server };
    let token = lab.token("pull");
    let scraped = Command::new("curl")
        .args(["-sS", "--fail", "--unix-socket"])
        .arg(&socket)
        .args(["-H", &format!("Authorization: Bearer {token}"), "http://x/metrics"])
        .output()
        .unwrap();
    let text = String::from_utf8(scraped.stdout).unwrap();
    // That of rcgen ends in the year 4096.
    let ends = sample(&text, "narval_tls_certificate_not_after_timestamp_seconds{name=\"localhost\"}");
    assert!(ends > Some(4e9), "{text}");
    assert!(text.contains("narval_build_info{version=\""), "{text}");
}

/// A million paths, by default.
#[test]
fn a_scrape_reads_no_path() {
    let store = Store::new();
    let (key, _) = store.key("own-1");
    let config = format!("data = '{}'\nsign-keys = '{}'\n", store.path("data").display(), key.display());
    configured(&store, &config).terminate();
    let fill = "pragma journal_mode = off; insert into paths (cache, hash_part, path, nar_hash, file, narinfo, version, added, used) \
         with recursive s(i) as (select 1 union all select i + 1 from s where i < 1000000) \
         select 1, printf('%032d', i), printf('%032d-x', i), x'00', i || '.nar', cast('StorePath: x' || char(10) || 'Sig: own-' || (i % 2) \
         || ':x' as blob), 1, 1000, 1000 from s";
    let filled = Command::new("sqlite3").arg(store.path("data/index.sqlite")).arg(fill).status().unwrap();
    assert!(filled.success());
    let server = configured(&store, &config);
    let text = counted(&server, None, "narval_cache_paths{cache=\"default\"}");
    assert_eq!(sample(&text, "narval_cache_paths{cache=\"default\"}"), Some(1e6));
    assert_eq!(sample(&text, "narval_paths_unsigned{cache=\"default\"}"), Some(5e5));
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
        // The eleventh and twelfth after the state.
        let numbers = stat.rsplit(") ").next().unwrap().split(' ').skip(1);
        let numbers: Vec<i128> = numbers.map(|number| number.trim().parse().unwrap()).collect();
        u64::try_from(numbers[10] + numbers[11]).unwrap()
    };
    const SCRAPES: u64 = 20;
    let before = ticks();
    (0..SCRAPES).for_each(|_| drop(scrape(&server, "/metrics", None)));
    // A tick is 10 ms.
    let spent = (ticks() - before) * 10;
    println!("{spent} ms of the processor for {SCRAPES} scrapes");
    assert!(spent < SCRAPES * 10, "{spent} ms for {SCRAPES} scrapes");
}
