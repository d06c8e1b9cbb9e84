//! Tables, which both databases make from one text.

/// Of [`TABLES`]. An index of another version is refused: the files are the truth, and one is made from them.
pub(super) const VERSION: u32 = 17;

/// Times are seconds since 1970; hash parts are their 32 characters. No table refers to caches, which are never removed: in PostgreSQL, each row that
/// is added would look at the row of its cache, of which each push makes a new version.
pub(super) const TABLES: &str = r#"
create table narval.caches (
  {id}, name {text} unique not null, settings text not null, created bigint not null,
  -- Bytes of NARs in it and of their listings, each counted once.
  bytes bigint not null default 0,
  -- What its releases name, which stays when its files are moved.
  uid text);

-- A stored NAR: a file below its cache's nar/, whose name no other file ever has. `found`: hash parts that the scan found, one after another.
create table narval.nars (
  {id}, cache bigint not null, name {text} not null, nar_hash {bytes} not null, compression text not null, nar_size bigint not null,
  file_hash {bytes} not null, file_size bigint not null, listing_size bigint, found text not null, added bigint not null,
  -- When it was uploaded, or somebody was told that it is here.
  used bigint not null,
  -- Since when no narinfo names it; null while one does.
  orphaned bigint, unique (cache, name));
create index nars_by_hash on narval.nars (nar_hash, cache);
create index nars_by_file on narval.nars (file_hash, cache);
create index nars_orphaned on narval.nars (cache, orphaned) where orphaned is not null;

-- Files below nar/ that have no row any more, and whose bytes are to be removed.
create table narval.garbage (cache bigint not null, name {text} not null, since bigint not null, primary key (cache, name)){rowless};

-- Hashes of files that were uploaded and not stored, because the cache had their NAR in the same compression: clients name them for a while.
create table narval.former (
  cache bigint not null, file_hash {bytes} not null, nar_hash {bytes} not null, at bigint not null, primary key (cache, file_hash)){rowless};
create index former_by_time on narval.former (cache, at);
create index former_by_nar on narval.former (nar_hash, cache);

create table narval.paths (
  {id}, cache bigint not null, hash_part {text} not null, path {text} not null,
  nar_hash {bytes} not null, file {text} not null, narinfo {bytes} not null, listing_size bigint,
  version bigint not null, added bigint not null, used bigint not null, unique (cache, hash_part));
create index paths_by_file on narval.paths (cache, file);

-- A reference names a hash part: it may be a path of an upstream.
create table narval.refs (
  referrer bigint not null references narval.paths (id) on delete cascade, reference {text} not null,
  primary key (referrer, reference)){rowless};
create index refs_by_reference on narval.refs (reference);

create table narval.leases (
  cache bigint not null, hash_part {text} not null, until bigint not null, primary key (cache, hash_part)){rowless};

create table narval.pins (
  {id}, cache bigint not null, name {text} not null, hash_part {text} not null, path {text} not null,
  created bigint not null, until bigint, keep bigint);
create index pins_by_name on narval.pins (cache, name);
create index pins_by_path on narval.pins (cache, hash_part);

-- A release for one system. `hold` names the pins that keep its paths; `record` is empty for the last one of a name that was forgotten.
-- `percent`: the share of machines that it is for. `request`: what the request for it had as its key.
create table narval.releases (
  cache bigint not null, name {text} not null, revision bigint not null, system {text} not null, version text,
  created bigint not null, pinned bigint not null, hold {text} not null, record text not null, percent bigint, request text,
  primary key (cache, name, revision, system)){rowless};
create index releases_by_hold on narval.releases (cache, hold);

-- Machines that follow releases.
create table narval.machines (
  cache bigint not null, name {text} not null, release {text} not null, seen bigint not null, token text not null,
  report text not null, primary key (cache, name, release)){rowless};
create index machines_by_seen on narval.machines (cache, seen);

-- Long work that one server at a time does. A cache has one of a kind that has not ended.
create table narval.jobs (
  id {text} primary key not null, cache {text} not null, kind {text} not null, options text not null, token text not null, label text not null,
  state text not null, created bigint not null, started bigint, ended bigint, progress text not null, result text not null,
  owner text not null, fence bigint not null, until bigint not null, cancelled bigint not null){rowless};
create unique index jobs_open on narval.jobs (cache, kind) where ended is null;
create index jobs_until on narval.jobs (until) where ended is null;
create index jobs_by_cache on narval.jobs (cache, created, id);
create index jobs_ended on narval.jobs (ended);

-- Keys that all servers of a cache sign with.
create table narval.sign_keys (
  cache bigint not null, name {text} not null, secret text not null, created bigint not null, ends bigint,
  primary key (cache, name)){rowless};

create table narval.tokens (
  id {text} primary key not null, hash {bytes} not null, label text not null, scopes text not null, caches text not null,
  created bigint not null, expires bigint, last_used bigint, revoked bigint){rowless};

-- Hash parts of paths whose narinfos a process that is killed may not have written or removed.
create table narval.pending ({id}, cache bigint not null, name {text} not null);
create index pending_by_name on narval.pending (cache, name, id);

-- Processes that may have stored NARs without a row.
create table narval.writers ({id}, cache bigint not null, seen bigint not null);

-- Paths that were removed because their NARs were not there, and those NARs: for a day, in case they are found again.
create table narval.lost (
  cache bigint not null, hash_part {text} not null, narinfo {bytes} not null, file {text} not null,
  nar_hash {bytes} not null, nar_size bigint not null, compression text not null, file_hash {bytes} not null,
  file_size bigint not null, listing_size bigint, found text not null, at bigint not null,
  primary key (cache, hash_part)){rowless};

-- Who has the right to do something, and until when.
create table narval.work (name {text} primary key not null, owner text not null, fence bigint not null, until bigint not null){rowless};
-- When caches were last collected, by whichever process.
create table narval.collected (cache bigint primary key not null, at bigint not null);
"#;

/// Such a text as a database reads it: its own words in place of the marks.
pub(super) fn tables(text: &str, words: [(&str, &str); 4]) -> String {
    words.iter().fold(text.to_owned(), |text, (mark, word)| text.replace(mark, word))
}
