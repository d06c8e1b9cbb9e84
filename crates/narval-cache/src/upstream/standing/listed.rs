//! The lists of store paths that an upstream is said to have, such as a channel's `store-paths.xz`.
//!
//! They are a filter that knows presences alone: what is in a release is there, so of upstreams with the same `priority` this one is asked for
//! it first. Everything else is asked for as without a list, so a wrong list costs time and nothing else.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use narval_client::{Client, Request, Url, clock};
use narval_codec::decode::Decoder;
use narval_nix::presence::{Filter, PATHS_MAX, key};
use narval_nix::{Compression, HashPart, StoreDir};
use parking_lot::Mutex;

/// After which time the lists are fetched again: channels advance about once a day.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(6 * 3600);
/// The same after a failure. The former lists are used meanwhile.
const LOAD_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// The largest file: some ten times that of a channel.
const FILE_LEN_MAX: u64 = 32 << 20;
/// The longest line: a store path is shorter.
const LINE_LEN_MAX: u64 = 4096;

/// What an upstream is said to have.
#[derive(Default)]
pub(in crate::upstream) struct Listed {
    urls: Vec<Url>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    filter: Option<Filter>,
    is_loading: bool,
    load_at: Option<Instant>,
}

impl Listed {
    /// Lists at these addresses.
    pub(in crate::upstream) fn at(urls: Vec<Url>) -> Self {
        Self { urls, state: Mutex::default() }
    }

    /// Whether a list has a path, as far as they are known; one in 256 other paths seems to be in them, too. `load` is called once in a while.
    pub(in crate::upstream) fn has(&self, hash_part: &HashPart, load: impl FnOnce()) -> bool {
        if self.urls.is_empty() {
            return false;
        }
        let mut state = self.state.lock();
        let has = state.filter.as_ref().is_some_and(|filter| filter.contains(key(hash_part)));
        if !state.is_loading && state.load_at.is_none_or(|at| clock::instant() >= at) {
            state.is_loading = true;
            drop(state);
            load();
        }
        has
    }

    /// Fetches the lists.
    pub(in crate::upstream) fn load(&self, client: &Client, store_dir: &StoreDir) {
        let filter = self.fetch(client, store_dir);
        let filter =
            filter.inspect_err(|error| tracing::warn!("upstreams: a list of store paths is not used: {error}")).ok();
        self.loaded(filter);
    }

    /// Takes the lists that were fetched; `None`: they cannot be fetched now.
    pub(in crate::upstream) fn loaded(&self, filter: Option<Filter>) {
        let mut state = self.state.lock();
        state.is_loading = false;
        let again_after = if filter.is_some() { LOOK_AGAIN_AFTER } else { LOAD_AGAIN_AFTER };
        state.load_at = Some(clock::instant() + again_after);
        if filter.is_some() {
            state.filter = filter;
        }
    }

    fn fetch(&self, client: &Client, store_dir: &StoreDir) -> Result<Filter, String> {
        let mut keys = Vec::new();
        for url in &self.urls {
            let file =
                client.small_answer(&Request::get(url), FILE_LEN_MAX).map_err(|error| format!("{url}: {error}"))?;
            let file = file.ok_or_else(|| format!("{url} does not exist"))?;
            read(&url.to_string(), &file, store_dir, &mut keys).map_err(|error| format!("{url}: {error}"))?;
        }
        Filter::build(keys).map_err(|error| error.to_string())
    }
}

/// Adds the keys of the paths in a list, one a line, compressed as its name says.
fn read(name: &str, file: &[u8], store_dir: &StoreDir, keys: &mut Vec<u64>) -> Result<(), String> {
    let compressions = [Compression::Xz, Compression::Zstd, Compression::Brotli, Compression::Bzip2];
    let compression = compressions.into_iter().find(|one| name.ends_with(one.file_extension()));
    let decoder =
        Decoder::new(&compression.unwrap_or(Compression::None), file, 1).map_err(|error| error.to_string())?;
    let (mut source, mut line, mut number) = (BufReader::new(decoder), Vec::new(), 0_u64);
    loop {
        line.clear();
        let read =
            source.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        if read == 0 {
            return Ok(());
        }
        number += 1;
        // Lines without a path count: there is no other limit on what a small file becomes.
        if number > PATHS_MAX as u64 || keys.len() >= PATHS_MAX {
            return Err(format!("it has more than {PATHS_MAX} lines"));
        }
        let path = line.strip_suffix(b"\n").unwrap_or(&line);
        if !path.is_empty() {
            let path = store_dir.parse_bytes(path).map_err(|error| format!("line {number}: {error}"))?;
            keys.push(key(&path.hash_part()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_its_name_says_and_within_limits() {
        let text = b"/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-hello-2.12\n\n";
        let all = |name: &str, file: &[u8]| {
            let mut keys = Vec::new();
            read(name, file, &StoreDir::default(), &mut keys).map(|()| keys)
        };
        let plain = all("store-paths", text).unwrap();
        assert_eq!(plain, [key(&HashPart::parse(b"00bgd045z0d4icpbc2yyz4gx48ak44la").unwrap())]);
        assert_eq!(all("store-paths.zst", &zstd::encode_all(&text[..], 1).unwrap()).unwrap(), plain);
        assert!(all("store-paths.xz", text).is_err());
        assert!(all("store-paths", b"/etc/passwd\n").unwrap_err().starts_with("line 1: "));
        all("store-paths", &[b'a'; 1 << 20]).unwrap_err();
        let endless = zstd::encode_all(std::io::repeat(b'\n').take(PATHS_MAX as u64 + 1), 1).unwrap();
        assert_eq!(all("store-paths.zst", &endless).unwrap_err(), format!("it has more than {PATHS_MAX} lines"));
    }
}
