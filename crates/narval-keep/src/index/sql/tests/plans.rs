//! How the databases carry out the statements: by their indices, whatever is in the tables.

use rusqlite::types::Null;
use rusqlite::{Connection, params_from_iter};

use super::super::nars::{lost, writers};
use super::super::paths::{commit, pins, releases};
use super::super::{audit, caches, jobs, machines, nars, paths, pending, retention, sign_keys, snapshot, tokens, work};
use crate::index::Sqlite;
use crate::index::tx::{Kind, Sql};

/// Rows of each table.
const ROWS: u32 = 20_000;

/// Statements that read a whole table, or all of a cache in it: it is small, or everything in it is wanted.
const WHOLE: [&str; 28] = [
    "caches ALL",
    "jobs TRIM",
    "lost ALL",
    "lost FORGET_OLD",
    "machines COUNT",
    "machines REPLACE",
    "nars FILES",
    "nars GARBAGE",
    "nars USAGE",
    "pins ALL",
    "releases FORGET_FORGOTTEN",
    "releases NAMES",
    "retention END_LEASES",
    "retention END_PINS",
    "sign_keys ALL",
    "sign_keys END",
    "sign_keys FORGET",
    "sign_keys OF",
    "snapshot LEASES",
    "snapshot PATHS",
    "snapshot REFERENCES",
    "snapshot SAVED",
    "snapshot SIZES",
    "tokens ALL",
    "tokens FORGET",
    "work COLLECTED",
    "writers ALL",
    "writers HAVE_ROWS",
];

/// The statements of all modules.
pub(in crate::index) fn statements() -> Vec<(String, &'static Sql)> {
    let modules = [
        ("audit", audit::STATEMENTS),
        ("caches", caches::STATEMENTS),
        ("commit", commit::STATEMENTS),
        ("jobs", jobs::STATEMENTS),
        ("lost", lost::STATEMENTS),
        ("machines", machines::STATEMENTS),
        ("nars", nars::STATEMENTS),
        ("paths", paths::STATEMENTS),
        ("pending", pending::STATEMENTS),
        ("pins", pins::STATEMENTS),
        ("releases", releases::STATEMENTS),
        ("retention", retention::STATEMENTS),
        ("sign_keys", sign_keys::STATEMENTS),
        ("snapshot", snapshot::STATEMENTS),
        ("tokens", tokens::STATEMENTS),
        ("work", work::STATEMENTS),
        ("writers", writers::STATEMENTS),
    ];
    let all = modules.into_iter().flat_map(|(module, all)| all.iter().map(move |one| (module, one)));
    all.map(|(module, (name, sql))| (format!("{module} {name}"), *sql)).collect()
}

/// Whether a statement may read a whole table.
pub(in crate::index) fn may_read_all(name: &str) -> bool {
    WHOLE.contains(&name)
}

/// Rows for the tables that grow, in SQL that both databases know but for `{text}`: 32 characters from `i`.
pub(in crate::index) fn fill() -> String {
    let from = format!(
        "from (with recursive s(i) as (select 1 union all select i + 1 from s where i < {ROWS}) select i from s) s"
    );
    [
        "insert into caches (name, settings, created) values ('main', '{}', 1)".to_owned(),
        format!("insert into caches (name, settings, created) select {{text}}, '', 1 {from}"),
        format!(
            "insert into nars (cache, name, nar_hash, compression, nar_size, file_hash, file_size, found, added, used) \
             select 1, {{text}}, {{bytes}}, 'zstd', 1, {{bytes}}, 1, '', 1, 1 {from}"
        ),
        format!("insert into garbage (cache, name, since) select 1, {{text}}, i {from}"),
        format!("insert into former (cache, file_hash, nar_hash, at) select 1, {{bytes}}, {{bytes}}, i {from}"),
        format!(
            "insert into paths (cache, hash_part, path, nar_hash, file, narinfo, version, added, used) \
             select 1, {{text}}, {{text}}, {{bytes}}, {{text}}, {{bytes}}, 1, 1, i {from}"
        ),
        format!("insert into refs (referrer, reference) select i, {{text}} {from}"),
        format!("insert into leases (cache, hash_part, until) select 1, {{text}}, i {from}"),
        format!("insert into pins (cache, name, hash_part, path, created) select 1, {{text}}, {{text}}, {{text}}, i {from}"),
        format!(
            "insert into releases (cache, name, revision, system, created, pinned, hold, record) \
             select 1, {{text}}, i, {{text}}, i, 0, {{text}}, {{text}} {from}"
        ),
        format!("insert into machines (cache, name, release, seen, token, report) select 1, {{text}}, {{text}}, i, '', '' {from}"),
        format!(
            "insert into jobs (id, cache, kind, options, token, label, state, created, ended, progress, result, owner, fence, until, cancelled) \
             select {{text}}, {{text}}, 'gc', '', '', '', '', i, i, '', '', '', 1, i, 0 {from}"
        ),
        format!("insert into sign_keys (cache, name, secret, created) select i, {{text}}, '', i {from}"),
        format!("insert into pending (cache, name) select 1, {{text}} {from}"),
        format!("insert into writers (cache, seen) select i, i {from}"),
        format!("insert into work (name, owner, fence, until) select {{text}}, '', 1, i {from}"),
        format!("insert into collected (cache, at) select i, i {from}"),
        format!(
            "insert into lost (cache, hash_part, narinfo, file, nar_hash, nar_size, compression, file_hash, file_size, found, at) \
             select i, {{text}}, {{bytes}}, {{text}}, {{bytes}}, 1, 'zstd', {{bytes}}, 1, '', i {from}"
        ),
        format!(
            "insert into tokens (id, hash, label, scopes, caches, created) select {{text}}, {{bytes}}, '', '', '', i {from}"
        ),
    ]
    .join("; ")
}

/// Rows of the audit log, which SQLite does not have.
pub(in crate::index) fn fill_audit() -> String {
    format!(
        "insert into audit (time, token, label, action, subject, result, detail) \
         select i, '', '', '', '', '', '' from generate_series(1, {ROWS}) i"
    )
}

#[test]
fn sqlite_reads_no_whole_table() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("index.sqlite");
    drop(Sqlite::open(&file).unwrap());
    let connection = Connection::open(&file).unwrap();
    let fill = fill().replace("{text}", "printf('%032d', i)").replace("{bytes}", "cast(printf('%032d', i) as blob)");
    // As it is used, and with all that can be known of the tables.
    let mut found = whole_in_sqlite(&connection);
    connection.execute_batch(&format!("{fill}; analyze")).unwrap();
    found.extend(whole_in_sqlite(&connection));
    assert!(found.is_empty(), "{found:#?}");
}

/// The statements that read a whole table, or all that it has of a cache, and may not.
fn whole_in_sqlite(connection: &Connection) -> Vec<String> {
    let mut found = Vec::new();
    // Its audit log is a file.
    for (name, sql) in statements().into_iter().filter(|(name, _)| !name.starts_with("audit")) {
        let mut statement = connection.prepare(&format!("explain query plan {}", sql.sqlite())).unwrap();
        assert_eq!(statement.parameter_count(), sql.args.len() + sql.rows.len(), "{name}");
        let nulls = vec![Null; statement.parameter_count()];
        let steps = statement.query_map(params_from_iter(nulls), |row| row.get::<_, String>(3)).unwrap();
        let steps: Vec<String> = steps.collect::<Result<_, _>>().unwrap();
        let is_whole = |step: &&String| {
            step.starts_with("SEARCH ") && step.ends_with(" (cache=?)")
                || step.starts_with("SCAN ") && !["SCAN CONSTANT ROW", "SCAN r"].contains(&step.as_str())
        };
        let whole: Vec<&String> = steps.iter().filter(is_whole).collect();
        if !whole.is_empty() && !may_read_all(&name) {
            found.push(format!("{name}: {steps:?}"));
        }
    }
    found
}

/// Parameters that a statement can be explained with, as PostgreSQL reads them in a text.
pub(in crate::index) fn explained(sql: &Sql, has_one_row: bool) -> String {
    let value = |kind: &Kind| match kind {
        Kind::Int => "7::bigint",
        Kind::Text => "'00000000000000000000000000000007'::text",
        Kind::Bytes => "'\\x07'::bytea",
    };
    let single = sql.args.iter().map(|kind| value(kind).to_owned());
    let all = single.chain(
        sql.rows
            .iter()
            .map(|(_, kind)| if has_one_row { value(kind).to_owned() } else { format!("array[{}]", value(kind)) }),
    );
    let text = sql.postgres(has_one_row).to_owned();
    // The greatest number first: `$1` begins `$10`.
    let all: Vec<String> = all.collect();
    all.iter().enumerate().rev().fold(text, |text, (at, value)| text.replace(&format!("${}", at + 1), value))
}
