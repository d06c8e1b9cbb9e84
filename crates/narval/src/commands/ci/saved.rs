//! What a job had from the cache, and what that saved.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use narval_client::{Client, ClientOptions, Request, Url};
use narval_nix::narinfo::NARINFO_LEN_MAX;
use narval_nix::{HashPart, NarInfo, StoreDir, StorePath};
use serde_json::Value;

use crate::ui::failure::Failure;

/// The most lines of the log that are read: two for each path.
const LINES_MAX: usize = 2_000_000;

/// What the job's Nix asked of the cache.
#[derive(Default)]
pub(super) struct CacheUse {
    /// Paths that it has.
    pub(super) there: BTreeSet<HashPart>,
    /// Paths that it does not have.
    pub(super) absent: BTreeSet<HashPart>,
    /// The NARs that it has fetched, as narinfos name them.
    fetched: BTreeSet<String>,
    pub(super) nars: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

impl CacheUse {
    /// Reads the log of the server that stood between. A line that is none of its own is skipped.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn read(log: &Path) -> Result<Self, Failure> {
        let mut cache_use = Self::default();
        let failed = |error: std::io::Error| Failure::of_file(&log.display().to_string(), &error);
        let file = match File::open(log) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(cache_use),
            file => file.map_err(failed)?,
        };
        for line in BufReader::new(file).lines().take(LINES_MAX) {
            cache_use.add(&line.map_err(failed)?);
        }
        Ok(cache_use)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let entry: Value = serde_json::from_str(line).ok()?;
        let target = entry.get("request")?.as_str()?.strip_prefix("GET /")?.split([' ', '?']).next()?;
        // Below the name of the cache.
        let (_, target) = target.split_once('/')?;
        let status = entry.get("status")?.as_u64()?;
        if let Some(part) = target.strip_suffix(".narinfo") {
            let part = HashPart::parse(part.as_bytes()).ok()?;
            if status == 200 {
                self.absent.remove(&part);
                self.there.insert(part);
            } else if status == 404 && !self.there.contains(&part) {
                self.absent.insert(part);
            }
        } else if target.starts_with("nar/") && status == 200 && entry.get("aborted")?.as_bool() == Some(false) {
            self.fetched.insert(target.to_owned());
            self.nars += 1;
            self.bytes += entry.get("bytes")?.as_u64()?;
            self.seconds += entry.get("seconds")?.as_f64()?;
        }
        Some(())
    }
}

/// What it would have taken to build the paths that the job has fetched. The cache knows it of those that a job like this one has built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Saved {
    /// Paths that were fetched.
    pub(super) paths: usize,
    /// Of these, those whose build time is known.
    pub(super) known: usize,
    /// The build times of their derivations, one after the other.
    pub(super) seconds: u64,
    /// The bytes of the NARs of all that were fetched.
    pub(super) bytes: u64,
}

impl Saved {
    /// Reads the narinfos of what was fetched, from the server that stood between, for at most this long. A narinfo that cannot be read counts for nothing.
    pub(super) fn of(cache_use: &CacheUse, near: &str, store_dir: &StoreDir, patience: Duration) -> Self {
        let (begun, mut saved, mut derivations) = (Instant::now(), Self::default(), HashSet::new());
        let client = Client::new(ClientOptions { stall_timeout: patience, ..ClientOptions::default() });
        for part in &cache_use.there {
            if cache_use.fetched.is_empty() || begun.elapsed() >= patience {
                break;
            }
            if let Some(info) =
                narinfo(&client, near, part, store_dir).filter(|info| cache_use.fetched.contains(&info.url))
            {
                saved.add(&info, &mut derivations);
            }
        }
        saved
    }

    /// The build times, if at least one is known.
    pub(super) fn seconds_known(&self) -> Option<u64> {
        (self.known > 0).then_some(self.seconds)
    }

    /// The outputs of a derivation were built together.
    fn add(&mut self, info: &NarInfo, derivations: &mut HashSet<StorePath>) {
        self.paths += 1;
        self.bytes = self.bytes.saturating_add(info.nar_size);
        if let (Some(seconds), Some(derivation)) = (info.build_seconds(), &info.deriver) {
            self.known += 1;
            if derivations.insert(derivation.clone()) {
                self.seconds = self.seconds.saturating_add(seconds);
            }
        }
    }
}

fn narinfo(client: &Client, near: &str, part: &HashPart, store_dir: &StoreDir) -> Option<NarInfo> {
    let url = Url::parse(&format!("{near}/{part}.narinfo")).ok()?;
    let answer = client.send_once(&Request::get(&url)).ok().filter(|answer| answer.head.status == 200)?;
    NarInfo::parse(&answer.body.read_all(NARINFO_LEN_MAX as u64).ok()?, store_dir).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_log_says_what_was_there() {
        let (one, other) = ("0".repeat(32), "1".repeat(32));
        let mut cache_use = CacheUse::default();
        let line = |request: &str, status: u16| {
            json!({"request": request, "status": status, "bytes": 10, "seconds": 0.5, "aborted": false}).to_string()
        };
        for (request, status) in [
            (format!("GET /name/{one}.narinfo HTTP/1.1"), 404),
            (format!("GET /name/{one}.narinfo HTTP/1.1"), 200),
            (format!("GET /name/{other}.narinfo HTTP/1.1"), 404),
            (format!("HEAD /name/{other}.narinfo HTTP/1.1"), 200),
            ("GET /name/nar/x.nar.zst HTTP/1.1".to_owned(), 200),
            ("GET /name/nar/x.nar.zst HTTP/1.1".to_owned(), 404),
            ("GET /name/nix-cache-info HTTP/1.1".to_owned(), 200),
        ] {
            cache_use.add(&line(&request, status));
        }
        cache_use.add("no JSON");
        assert_eq!((cache_use.there.len(), cache_use.absent.len(), cache_use.nars, cache_use.bytes), (1, 1, 1, 10));
    }

    #[test]
    fn a_derivation_is_counted_once() {
        let info = |name: &str, deriver: &str, seconds: &str| {
            let text = format!(
                "StorePath: /nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-{name}\nURL: a\nNarHash: sha256:0ip26j2h11n1kgkz36rl4akv694yz65hr72q4kv4b3lxcbi65b3p\n\
                 NarSize: 100\n{deriver}{seconds}"
            );
            NarInfo::parse(text.as_bytes(), &StoreDir::default()).unwrap()
        };
        let (mut saved, mut derivations) = (Saved::default(), HashSet::new());
        let of = "Deriver: 00bgd045z0d4icpbc2yyz4gx48ak44la-a.drv\n";
        let other = "Deriver: 00bgd045z0d4icpbc2yyz4gx48ak44la-b.drv\n";
        for (name, deriver, seconds) in [
            ("a", of, "NarvalBuildSeconds: 30\n"),
            ("a-dev", of, "NarvalBuildSeconds: 30\n"),
            ("b", other, "NarvalBuildSeconds: 5\n"),
            ("c", other, ""),
            ("d", "", "NarvalBuildSeconds: 9\n"),
        ] {
            saved.add(&info(name, deriver, seconds), &mut derivations);
        }
        assert_eq!(saved, Saved { paths: 5, known: 3, seconds: 35, bytes: 500 });
    }
}
