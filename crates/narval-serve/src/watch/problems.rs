//! What is wrong with a cache or with the server: the checks of `/ready`, and the conditions of the alert rules
//! (`packaging/prometheus/narval.rules.yml`), whose sections of the runbook say what to do.

use std::time::Duration;

use super::History;

/// The page of the runbook.
const RUNBOOK: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/runbook.html");

const DAY: u64 = 24 * 60 * 60;
const MINUTE: Duration = Duration::from_secs(60);

/// What may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The alert, which is also the section of the runbook.
    pub(crate) alert: &'static str,
    /// Whether it is critical; otherwise it is a warning.
    pub(crate) is_critical: bool,
    /// What clients see, as the runbook has it.
    pub(crate) clients: &'static str,
}

const fn critical(alert: &'static str, clients: &'static str) -> Kind {
    Kind { alert, is_critical: true, clients }
}

const fn warning(alert: &'static str, clients: &'static str) -> Kind {
    Kind { alert, is_critical: false, clients }
}

const STORE_ERRORS: Kind = critical("NarvalStoreErrors", "500 for paths of the store.");
const ERRORS: Kind = warning("NarvalErrors", "Some requests fail with 5xx; Nix tries them again.");
const OVERLOADED: Kind = warning("NarvalOverloaded", "503 with `Retry-After`; Nix tries again.");
const UNCONNECTED: Kind = warning("NarvalConnectionsRefused", "New connections are closed.");
const SLOW: Kind = warning("NarvalSlow", "Answers begin after a second or more.");
const NO_SPACE: Kind =
    critical("NarvalNoSpace", "Uploads end with 507, or 413 for Nix before 2.33.2. Reading goes on.");
const NOT_TAKEN: Kind = warning("NarvalUploadsRefused", "Some pushes fail.");
const DAMAGED: Kind = critical("NarvalCorruptPaths", "404 for the damaged paths.");
const DAMAGED_NARS: Kind = warning("NarvalNarCacheDamaged", "Nothing: the files are made again.");
const PANICS: Kind = warning("NarvalPanics", "One request failed with 500; the server goes on.");
const THROTTLED: Kind = warning("NarvalLoginsThrottled", "Clients of one address get 429 for wrong tokens.");
const DISK: Kind = warning("NarvalDiskFullSoon", "Nothing yet. When the disk is full, uploads are refused.");
const QUOTA: Kind = warning("NarvalQuotaNearlyFull", "Nothing yet. When the quota is used up, uploads are refused.");
const NOT_COLLECTED: Kind = warning("NarvalNotCollected", "Nothing; the cache grows.");
const UPSTREAM: Kind = warning(
    "NarvalUpstreamDown",
    "404 (503 with `upstream-when-down = \"unavailable\"`) for paths that only the upstream has; what is kept of it is served.",
);
const CERTIFICATE: Kind =
    critical("NarvalCertificateEnds", "Nothing yet. When it has ended, every client refuses the server.");
const TOKEN: Kind = warning("NarvalTokenEnds", "Nothing yet. When it has ended, its owner gets 401.");
const UNSIGNED: Kind =
    warning("NarvalUnsignedPaths", "`lacks a signature by a trusted key` for these paths: nobody can install them.");

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    /// What it is, in words, without a full stop.
    pub(crate) what: String,
    /// Since when, in seconds since 1970: as far as this process knows.
    pub(crate) since: u64,
}

impl Problem {
    /// The address of the runbook's section.
    pub(crate) fn runbook(&self) -> String {
        format!("{RUNBOOK}#{}", self.kind.alert.to_ascii_lowercase())
    }
}

/// What is known of a cache.
#[derive(Debug, Default)]
pub(crate) struct CacheFacts {
    /// Parts that do not work, as `/ready` names them.
    pub(crate) broken: Vec<&'static str>,
    /// Paths without a signature, and all paths.
    pub(crate) unsigned: Option<(u64, u64)>,
    /// Bytes, and how many there may be.
    pub(crate) quota: Option<(u64, u64)>,
    /// When it was last collected, in seconds since 1970.
    pub(crate) collected: Option<u64>,
    /// Upstreams, and whether they respond.
    pub(crate) upstreams: Vec<(String, bool)>,
}

/// What is known of the server.
#[derive(Debug, Default)]
pub(crate) struct ServerFacts {
    /// What file systems are used for, and in how many seconds they will be full at the rate of the last hours.
    pub(crate) disks: Vec<(String, Option<u64>)>,
    /// When certificates end, in seconds since 1970, by their names.
    pub(crate) certificates: Vec<(String, u64)>,
    /// The same for tokens, by their ids.
    pub(crate) tokens: Vec<(String, u64)>,
}

/// What is wrong, before it is known since when: what tells it from others of its kind, and the words.
type Found = (Kind, String, String);

/// What is wrong with a cache, the worst first.
pub(crate) fn of_cache(now: u64, facts: &CacheFacts, history: &History) -> Vec<Problem> {
    let mut found: Vec<Found> = Vec::new();
    let mut add = |kind: Kind, subject: &str, what: String| found.push((kind, subject.to_owned(), what));
    for part in &facts.broken {
        match *part {
            "store" => add(STORE_ERRORS, part, "The store cannot be read".into()),
            "uploads" => add(NO_SPACE, part, "Nothing can be written: no upload is taken".into()),
            other => add(ERRORS, part, format!("The {other} cannot be read")),
        }
    }
    let (minutes5, minutes15, hour) = (history.last(5 * MINUTE), history.last(15 * MINUTE), history.last(60 * MINUTE));
    if minutes5.store_errors > 0 && !facts.broken.contains(&"store") {
        add(STORE_ERRORS, "store", "The store could not be read in the last five minutes".into());
    }
    if u64::from(minutes5.failed) * 100 > u64::from(minutes5.requests()) {
        let (failed, all) = (minutes5.failed, minutes5.requests());
        add(ERRORS, "rate", format!("{failed} of the last {all} requests failed"));
    }
    if history.usual_p99(10 * MINUTE).is_some_and(|micros| micros > 1_000_000) {
        add(SLOW, "", "Answers take more than a second to begin".into());
    }
    if minutes15.no_room > 0 && !facts.broken.contains(&"uploads") {
        add(NO_SPACE, "uploads", format!("{} refused: the disk or the quota is full", uploads(minutes15.no_room)));
    }
    let others = u64::from(minutes15.not_taken.saturating_sub(minutes15.no_room));
    let all = u64::from(minutes15.not_taken) + u64::from(minutes15.taken);
    if others * 10 > all {
        add(NOT_TAKEN, "", format!("Refused {others} of the last {all} uploads"));
    }
    if hour.damaged > 0 {
        add(DAMAGED, "", "Paths of the store are damaged".into());
    }
    if hour.damaged_nars > 0 {
        add(DAMAGED_NARS, "", "Files of the NAR cache have changed on the disk".into());
    }
    if minutes5.throttled > 0 {
        add(THROTTLED, "", "Somebody sends many wrong tokens".into());
    }
    if let Some((bytes, quota)) = facts.quota.filter(|(bytes, quota)| u128::from(*bytes) * 10 > u128::from(*quota) * 9)
    {
        let percent = u128::from(bytes) * 100 / u128::from(quota).max(1);
        add(QUOTA, "", format!("{percent} % of the quota is used"));
    }
    if let Some(collected) = facts.collected.filter(|collected| now.saturating_sub(*collected) > 3 * 60 * 60) {
        let hours = now.saturating_sub(collected) / 3600;
        add(NOT_COLLECTED, "", format!("The last complete collection was {hours} hours ago"));
    }
    for (url, _) in facts.upstreams.iter().filter(|(_, is_up)| !is_up) {
        add(UPSTREAM, url, format!("The upstream {url} does not answer"));
    }
    if let Some((unsigned, paths)) = facts.unsigned.filter(|(unsigned, _)| *unsigned > 0) {
        let are = if unsigned == 1 { "is" } else { "are" };
        add(UNSIGNED, "", format!("{unsigned} of {paths} path{} {are} not signed", if paths == 1 { "" } else { "s" }));
    }
    since(found, history)
}

/// What is wrong with the server, the worst first.
pub(crate) fn of_server(now: u64, facts: &ServerFacts, history: &History) -> Vec<Problem> {
    let mut found: Vec<Found> = Vec::new();
    let mut add = |kind: Kind, subject: &str, what: String| found.push((kind, subject.to_owned(), what));
    let (minutes5, hour) = (history.last(5 * MINUTE), history.last(60 * MINUTE));
    if minutes5.overloaded > 0 {
        add(OVERLOADED, "", format!("{} requests were turned away: the queue was full", minutes5.overloaded));
    }
    if minutes5.unconnected > 0 {
        add(UNCONNECTED, "", format!("{} connections were refused", minutes5.unconnected));
    }
    if hour.panics > 0 {
        add(PANICS, "", "A request made the server panic".into());
    }
    for (used_for, left) in &facts.disks {
        if let Some(left) = left.filter(|left| *left < DAY) {
            let hours = left / 3600;
            add(DISK, used_for, format!("The disk for '{used_for}' is full in about {hours} hours"));
        }
    }
    for (name, end) in &facts.certificates {
        match end.checked_sub(now) {
            None => add(CERTIFICATE, name, format!("The certificate for {name} has ended")),
            Some(left) if left < 7 * DAY => {
                add(CERTIFICATE, name, format!("The certificate for {name} ends in {}", days(left)));
            }
            Some(_) => {}
        }
    }
    for (id, end) in &facts.tokens {
        if let Some(left) = end.checked_sub(now).filter(|left| (1..7 * DAY).contains(left)) {
            add(TOKEN, id, format!("The token {id} ends in {}", days(left)));
        }
    }
    since(found, history)
}

fn uploads(count: u32) -> String {
    if count == 1 { "One upload was".to_owned() } else { format!("{count} uploads were") }
}

fn days(seconds: u64) -> String {
    match seconds / DAY {
        0 => format!("{} hours", seconds / 3600),
        1 => "a day".to_owned(),
        days => format!("{days} days"),
    }
}

fn since(found: Vec<Found>, history: &History) -> Vec<Problem> {
    let names: Vec<String> = found.iter().map(|(kind, subject, _)| format!("{} {subject}", kind.alert)).collect();
    let since = history.since(&names);
    let with = |((kind, _, what), since): (Found, u64)| Problem { kind, what, since };
    let mut problems: Vec<Problem> = std::iter::zip(found, since).map(with).collect();
    sort(&mut problems);
    problems
}

/// The worst first, and of these the oldest.
pub(crate) fn sort(problems: &mut [Problem]) {
    problems.sort_by_key(|problem| (!problem.kind.is_critical, problem.since));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Totals;

    const ALL: [Kind; 18] = [
        STORE_ERRORS,
        ERRORS,
        OVERLOADED,
        UNCONNECTED,
        SLOW,
        NO_SPACE,
        NOT_TAKEN,
        DAMAGED,
        DAMAGED_NARS,
        PANICS,
        THROTTLED,
        DISK,
        QUOTA,
        NOT_COLLECTED,
        UPSTREAM,
        CERTIFICATE,
        TOKEN,
        UNSIGNED,
    ];

    fn names(problems: &[Problem]) -> Vec<&str> {
        problems.iter().map(|problem| problem.kind.alert).collect()
    }

    /// Each alert but those of a server that is down and of loads has a condition here, and the runbook says the same of it.
    #[test]
    fn the_runbook_and_the_alert_rules_have_the_same() {
        // They are not in this crate's package.
        let read = |file: &str| std::fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR")));
        let runbook = read("docs/runbook.md").unwrap();
        let rules = read("packaging/prometheus/narval.rules.yml").unwrap();
        for kind in ALL {
            let severity = if kind.is_critical { "critical" } else { "warning" };
            let section = format!("## {}\n\nSeverity: {severity}. Clients: {}\n", kind.alert, kind.clients);
            assert!(runbook.contains(&section), "{section}");
        }
        let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        let missing: Vec<_> = alerts.filter(|alert| !ALL.iter().any(|kind| kind.alert == *alert)).collect();
        // A server that is down says nothing, and how near the limits are is a matter of minutes, which Prometheus sees.
        let loads = [
            "NarvalWorkersBusy",
            "NarvalConnectionsNearLimit",
            "NarvalQueueWait",
            "NarvalStorageSlow",
            "NarvalDatabaseSlow",
            "NarvalUpstreamSlow",
            "NarvalFewHits",
            "NarvalCollectionOverdue",
        ];
        assert_eq!(missing, [&["NarvalDown"][..], &loads].concat());
        assert!(loads.iter().all(|alert| runbook.contains(&format!("## {alert}\n\nSeverity: "))));
        let url = Problem { kind: DISK, what: String::new(), since: 0 }.runbook();
        assert!(rules.contains(&format!("runbook_url: \"{url}\"")), "{url}");
    }

    #[test]
    fn a_cache_that_is_well_has_no_problems() {
        let history = History::default();
        let facts = CacheFacts {
            unsigned: Some((0, 5)),
            quota: Some((9, 10)),
            collected: Some(1_000_000),
            upstreams: vec![("http://up".into(), true)],
            ..CacheFacts::default()
        };
        history.take(Totals { hits: 1000, absent: 50, failed: 10, taken: 9, not_taken: 1, ..Totals::default() });
        assert_eq!(of_cache(1_000_000 + 3 * 3600, &facts, &history), []);
        let facts = ServerFacts {
            disks: vec![("data".into(), Some(DAY)), ("nar-cache".into(), None)],
            certificates: vec![("x".into(), 107 * DAY)],
            tokens: vec![("over".into(), 99 * DAY), ("later".into(), 107 * DAY)],
        };
        assert_eq!(of_server(100 * DAY, &facts, &History::default()), []);
    }

    #[test]
    fn each_condition_is_a_problem_the_worst_first() {
        let history = History::default();
        let facts = CacheFacts {
            broken: vec!["uploads", "index"],
            unsigned: Some((7, 19)),
            quota: Some((91, 100)),
            collected: Some(0),
            upstreams: vec![("http://one".into(), false), ("http://two".into(), true)],
        };
        let problems = of_cache(4 * 3600, &facts, &history);
        let expected = [
            "NarvalNoSpace",
            "NarvalErrors",
            "NarvalQuotaNearlyFull",
            "NarvalNotCollected",
            "NarvalUpstreamDown",
            "NarvalUnsignedPaths",
        ];
        assert_eq!(names(&problems), expected);
        assert_eq!(problems[5].what, "7 of 19 paths are not signed");
        let totals = Totals {
            hits: 90,
            failed: 2,
            not_taken: 2,
            taken: 10,
            no_room: 1,
            store_errors: 1,
            damaged: 1,
            damaged_nars: 1,
            throttled: 1,
            ..Totals::default()
        };
        history.take(totals);
        let problems = of_cache(0, &CacheFacts::default(), &history);
        let expected = [
            "NarvalStoreErrors",
            "NarvalNoSpace",
            "NarvalCorruptPaths",
            "NarvalErrors",
            "NarvalNarCacheDamaged",
            "NarvalLoginsThrottled",
        ];
        assert_eq!(names(&problems), expected);
        assert_eq!(problems[1].what, "One upload was refused: the disk or the quota is full");
        let server = History::default();
        server.take(Totals { overloaded: 1, unconnected: 2, panics: 1, ..Totals::default() });
        let facts = ServerFacts {
            disks: vec![("data".into(), Some(DAY / 2))],
            certificates: vec![("a".into(), 5), ("b".into(), 2 * DAY)],
            tokens: vec![("c".into(), 2 * DAY)],
        };
        let problems = of_server(100, &facts, &server);
        let expected = [
            "NarvalCertificateEnds",
            "NarvalCertificateEnds",
            "NarvalOverloaded",
            "NarvalConnectionsRefused",
            "NarvalPanics",
            "NarvalDiskFullSoon",
            "NarvalTokenEnds",
        ];
        assert_eq!(names(&problems), expected);
        assert_eq!(problems[1].what, "The certificate for b ends in a day");
    }
}
