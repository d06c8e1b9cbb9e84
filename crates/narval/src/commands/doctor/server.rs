//! `narval doctor --server`: checks a binary cache from a client's side.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use narval_cache::{Wanted, published_keys, signature_advice};
use narval_client::{Client, Extra, Head, HttpError, Request, Response, RetryPolicy, Scheme, Url};
use narval_nix::cache_info::CACHE_INFO_LEN_MAX;
use narval_nix::narinfo::NARINFO_LEN_MAX;
use narval_nix::{CacheInfo, NarInfo, PublicKey, TrustedKeys};

use super::finding::Finding;
use crate::args::client::{SourceCacheArgs, human_bytes, parse_cache};
use crate::args::paths::Named;
use crate::ui::failure::Failure;

/// The largest difference of clocks that is not a failure.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(60);
/// A certificate that expires sooner is a failure: it should have been renewed by now.
const CERTIFICATE_LEFT_MIN: Duration = Duration::from_secs(7 * DAY);
const DAY: u64 = 24 * 3600;
/// Requests that are timed for the round trip; the fastest counts.
const ROUND_TRIPS: usize = 5;
/// How much of a NAR is read to measure the speed, and for how long.
const SPEED_BYTES_MAX: u64 = 256 * 1024 * 1024;
const SPEED_TIME_MAX: Duration = Duration::from_secs(5);
/// The hash part of a path that no cache has.
const ABSENT: &str = "00000000000000000000000000000000";
/// The priority of cache.nixos.org.
const PRIORITY_OF_NIXOS: i64 = 40;

/// Checks a server. Without a path, only what needs none is checked.
///
/// # Errors
/// Wrong usage: an address, path or key that cannot be used.
pub(super) fn check(caches: &SourceCacheArgs, server: &str, path: Option<&str>) -> Result<Vec<Finding>, Failure> {
    let (client, url) = reach(caches, server)?;
    let keys = (!caches.no_check_sigs).then(|| caches.keys()).transpose()?;
    let server = Server { client, url, keys };
    let mut findings = server.connection();
    if findings.iter().any(|found| !found.good && found.what == "tls") {
        return Ok(findings);
    }
    let Some(info) = server.cache_info(&mut findings)? else { return Ok(findings) };
    // The path is parsed with the server's store directory.
    let wanted = path.map(|path| Named::parse(path, &info.store_dir)).transpose()?.map(|named| named.wanted);
    findings.push(priority(&info));
    findings.push(server.published(&info));
    findings.push(server.absent()?);
    match wanted {
        Some(wanted) => server.path(&wanted, &info, &mut findings)?,
        None => findings.push(Finding::good(
            "path",
            "not checked: --path gives one whose signature, compression, ranges and speed are tested",
        )),
    }
    findings.push(server.round_trip()?);
    Ok(findings)
}

/// Asks a server only whether it is healthy.
///
/// # Errors
/// Wrong usage: an address that cannot be used.
pub(super) fn health(caches: &SourceCacheArgs, server: &str) -> Result<Finding, Failure> {
    let (client, url) = reach(caches, server)?;
    let url = url.child("health").map_err(Failure::usage)?;
    Ok(Finding::of(
        "health",
        answer(&client, &Request::get(&url), 200, &[]).map(|_| "the server is healthy".to_owned()),
    ))
}

/// The head of an answer with the status that is due, or one of the others that are as good.
///
/// # Errors
/// What happened instead.
fn answer(client: &Client, request: &Request<'_>, due: u16, others: &[u16]) -> Result<Head, String> {
    let url = request.url;
    let Response { head, .. } = client.send(request).map_err(|error| format!("{url}: {error}"))?;
    match head.status == due || others.contains(&head.status) {
        true => Ok(head),
        false => Err(format!("{url}: the server answered {} where {due} is due", head.status)),
    }
}

/// A client for one server, which does not retry: a failure is to be seen, not waited for.
fn reach(caches: &SourceCacheArgs, server: &str) -> Result<(Arc<Client>, Url), Failure> {
    let url = parse_cache(server)?;
    if !matches!(url.scheme(), Scheme::Http | Scheme::Https) {
        return Err(Failure::usage(format!("option --server '{server}': must be an http:// or https:// URL")));
    }
    let mut options = caches.requests.options(std::slice::from_ref(&url))?;
    options.retry = RetryPolicy { attempts: 1, ..options.retry };
    options.offline = caches.offline;
    Ok((Arc::new(narval_s3::client(options)), url))
}

struct Server {
    client: Arc<Client>,
    url: Url,
    /// The trusted keys; `None` for `--no-check-sigs`.
    keys: Option<TrustedKeys>,
}

impl Server {
    fn child(&self, path: &str) -> Result<Url, Failure> {
        self.url.child(path).map_err(Failure::usage)
    }

    /// The TLS handshake, and what it negotiates.
    fn connection(&self) -> Vec<Finding> {
        if self.url.scheme() == Scheme::Http {
            return vec![
                Finding::good("tls", "none: the address is http://"),
                Finding::good("http/2", "no: it needs https://"),
            ];
        }
        let probe = match self.client.probe_tls(self.url.origin()) {
            Ok(probe) => probe,
            Err(error) => return vec![Finding::bad("tls", error.to_string())],
        };
        let chain = format!("{}, a verified chain of {}", probe.version, probe.certificates);
        let left = probe.valid_until.map(|until| until.duration_since(SystemTime::now()).unwrap_or_default());
        let tls = match left {
            None => Finding::good("tls", chain),
            Some(left) if left < CERTIFICATE_LEFT_MIN => {
                Finding::bad("tls", format!("{chain}, which expires in {} days: renew it", left.as_secs() / DAY))
            }
            Some(left) => Finding::good("tls", format!("{chain}, {} days left", left.as_secs() / DAY)),
        };
        let http2 = match probe.protocol.as_deref() {
            Some("h2") => "yes",
            _ => "no: the server only speaks HTTP/1.1",
        };
        vec![tls, Finding::good("http/2", http2)]
    }

    /// `nix-cache-info`, and the clock of its response. `None` if there is no use in further checks.
    fn cache_info(&self, findings: &mut Vec<Finding>) -> Result<Option<CacheInfo>, Failure> {
        const WHAT: &str = "cache info";
        let url = self.child("nix-cache-info")?;
        let Response { head, body } = match self.client.send(&Request::get(&url)) {
            Ok(response) => response,
            Err(error) => {
                findings.push(Finding::bad(WHAT, error.to_string()));
                return Ok(None);
            }
        };
        findings.push(clock(head.date(), SystemTime::now()));
        let read = match head.status {
            200 => body.read_all(CACHE_INFO_LEN_MAX as u64),
            401 | 403 => {
                let text = format!("{url}: {}: give the token with --netrc-file or --header", head.status);
                findings.push(Finding::bad(WHAT, text));
                return Ok(None);
            }
            status => {
                findings.push(Finding::bad(WHAT, format!("{url}: the server answered {status}; is it a cache?")));
                return Ok(None);
            }
        };
        let parsed = read.map_err(|error| error.to_string());
        match parsed.and_then(|text| CacheInfo::parse(&text).map_err(|error| error.to_string())) {
            Ok(info) => {
                let mass = if info.want_mass_query { "may" } else { "may not" };
                let text = format!("for {}; clients {mass} ask for many paths at once", info.store_dir);
                findings.push(Finding::good(WHAT, text));
                Ok(Some(info))
            }
            Err(error) => {
                findings.push(Finding::bad(WHAT, error));
                Ok(None)
            }
        }
    }

    /// Whether this client trusts one of the keys that the server publishes.
    fn published(&self, info: &CacheInfo) -> Finding {
        const WHAT: &str = "keys";
        let published = match published_keys(info) {
            Ok(published) => published,
            Err(error) => return Finding::bad(WHAT, format!("the server publishes an invalid key: {error}")),
        };
        let names = published.iter().map(PublicKey::name).collect::<Vec<_>>().join(", ");
        let Some(keys) = &self.keys else {
            return Finding::good(WHAT, "not checked: --no-check-sigs");
        };
        if published.is_empty() {
            return Finding::good(WHAT, "the server publishes none");
        }
        if published.iter().any(|key| keys.contains(key)) {
            return Finding::good(WHAT, format!("{names}, trusted here"));
        }
        let same_name = published.iter().any(|key| keys.has_name(key.name()));
        let why = if same_name { "another key of that name is trusted here" } else { "not trusted here" };
        let url = &self.url;
        Finding::bad(WHAT, format!("{names}, {why}: 'narval use {url}', or --trusted-public-key"))
    }

    /// A path that the server does not have must be absent, and not an error: Nix gives up on a cache that fails.
    fn absent(&self) -> Result<Finding, Failure> {
        let url = self.child(&format!("{ABSENT}.narinfo"))?;
        let answer = answer(&self.client, &Request::get(&url), 404, &[403, 410]);
        Ok(Finding::of("absent path", answer.map(|head| format!("answered {}", head.status))))
    }

    /// What needs a path: its narinfo, signature and NAR.
    fn path(&self, wanted: &Wanted, info: &CacheInfo, findings: &mut Vec<Finding>) -> Result<(), Failure> {
        const WHAT: &str = "path";
        let url = self.child(&format!("{}.narinfo", wanted.hash_part()))?;
        let narinfo = match self.narinfo(&url, wanted, info) {
            Ok(narinfo) => narinfo,
            Err(why) => {
                findings.push(Finding::bad(WHAT, format!("{url}: {why}")));
                return Ok(());
            }
        };
        findings.push(Finding::good(WHAT, format!("{}, a NAR of {}", narinfo.path, human_bytes(narinfo.nar_size))));
        findings.push(self.signature(&narinfo, info));
        match self.url.child(&narinfo.url) {
            Ok(nar) => findings.extend([self.compression(&narinfo, &nar), self.ranges(&nar), self.speed(&nar)]),
            Err(error) => findings.push(Finding::bad("nar", format!("{url}: its URL: {error}"))),
        }
        Ok(())
    }

    fn narinfo(&self, url: &Url, wanted: &Wanted, info: &CacheInfo) -> Result<NarInfo, String> {
        let text = self.client.metadata_once(url, NARINFO_LEN_MAX as u64).map_err(|error| error.to_string())?;
        let text = text.ok_or("the server does not have it")?;
        let narinfo = NarInfo::parse(&text, &info.store_dir).map_err(|error| error.to_string())?;
        match wanted.is(&narinfo.path) {
            true => Ok(narinfo),
            false => Err(format!("is the narinfo of another path, {}", narinfo.path)),
        }
    }

    fn signature(&self, narinfo: &NarInfo, info: &CacheInfo) -> Finding {
        const WHAT: &str = "signature";
        let Some(keys) = &self.keys else { return Finding::good(WHAT, "not checked: --no-check-sigs") };
        let fingerprint = narinfo.fingerprint(&info.store_dir);
        if let Some(signature) = keys.find_valid(fingerprint.as_bytes(), &narinfo.signatures) {
            return Finding::good(WHAT, format!("by {}, which is trusted here", signature.key_name()));
        }
        let (url, published) = (self.url.to_string(), published_keys(info).unwrap_or_default());
        let advice = signature_advice(&url, &fingerprint, &narinfo.signatures, &published);
        Finding::bad(WHAT, format!("none by a key that is trusted here: {advice}"))
    }

    /// How the NAR is compressed: in the file, or while it is sent.
    fn compression(&self, narinfo: &NarInfo, nar: &Url) -> Finding {
        const WHAT: &str = "compression";
        let stored = narinfo.compression.to_string();
        let size = narinfo.file_size.map(|size| format!(", {}", human_bytes(size))).unwrap_or_default();
        if stored != "none" {
            return Finding::good(WHAT, format!("the NAR is a {stored} file{size}"));
        }
        let answer = answer(&self.client, &Request { accepts_coding: true, ..Request::get(nar) }, 200, &[]);
        let coding = answer.map(|head| match head.field("content-encoding") {
            Some(coding) => format!("{}, while the NAR is sent", coding.escape_debug()),
            None => "none".to_owned(),
        });
        Finding::of(WHAT, coding)
    }

    /// Without ranges, an interrupted download starts again.
    fn ranges(&self, nar: &Url) -> Finding {
        let extra = Extra { fields: &[("range", "bytes=1-1")], ..Extra::default() };
        let answer = answer(&self.client, &Request { extra, ..Request::get(nar) }, 206, &[200]);
        let text = |head: Head| match head.status {
            206 => "yes: interrupted downloads resume".to_owned(),
            _ => "no: interrupted downloads start again".to_owned(),
        };
        Finding::of("ranges", answer.map(text))
    }

    fn speed(&self, nar: &Url) -> Finding {
        const WHAT: &str = "speed";
        let start = Instant::now();
        match self.download(nar, start) {
            Ok((200, bytes)) => {
                let seconds = start.elapsed().as_secs_f64().max(1e-6);
                let rate = human_bytes((bytes as f64 / seconds) as u64);
                Finding::good(WHAT, format!("{rate}/s ({} in {seconds:.3} s, one connection)", human_bytes(bytes)))
            }
            Ok((status, _)) => Finding::bad(WHAT, format!("{nar}: the server answered {status}")),
            Err(error) => Finding::bad(WHAT, format!("{nar}: {error}")),
        }
    }

    /// Downloads a file, or its beginning: the status, and how much was read.
    fn download(&self, url: &Url, start: Instant) -> Result<(u16, u64), HttpError> {
        let Response { head, mut body } = self.client.send(&Request::get(url))?;
        let mut buffer = vec![0; 256 * 1024];
        while body.received_len() < SPEED_BYTES_MAX && start.elapsed() < SPEED_TIME_MAX {
            if body.read_some(&mut buffer)? == 0 {
                break;
            }
        }
        Ok((head.status, body.received_len()))
    }

    /// The fastest of several requests over one connection.
    fn round_trip(&self) -> Result<Finding, Failure> {
        const WHAT: &str = "round trip";
        let url = self.child("nix-cache-info")?;
        let mut best = Duration::MAX;
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            if let Err(error) = self.client.metadata_once(&url, CACHE_INFO_LEN_MAX as u64) {
                return Ok(Finding::bad(WHAT, error.to_string()));
            }
            best = best.min(start.elapsed());
        }
        Ok(Finding::good(WHAT, format!("{:.1} ms", best.as_secs_f64() * 1e3)))
    }
}

fn priority(info: &CacheInfo) -> Finding {
    // Nix assumes 0 without one.
    let priority = info.priority.unwrap_or_default();
    let order = match priority.cmp(&PRIORITY_OF_NIXOS) {
        std::cmp::Ordering::Less => "before",
        std::cmp::Ordering::Equal => "together with",
        std::cmp::Ordering::Greater => "after",
    };
    Finding::good("priority", format!("{priority}: asked {order} cache.nixos.org ({PRIORITY_OF_NIXOS})"))
}

/// Compares the clocks: credentials and certificates have times.
fn clock(theirs: Option<SystemTime>, ours: SystemTime) -> Finding {
    const WHAT: &str = "clock";
    let Some(theirs) = theirs else { return Finding::good(WHAT, "not checked: the response has no Date") };
    let (difference, direction) = match theirs.duration_since(ours) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(error) => (error.duration(), "behind"),
    };
    let text = format!("the server's is {} s {direction} ours", difference.as_secs());
    Finding { what: WHAT, good: difference <= CLOCK_DIFFERENCE_MAX, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_may_differ_by_a_minute() {
        let ours = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let good = |difference: i64| {
            let theirs = SystemTime::UNIX_EPOCH + Duration::from_secs((1_000_000 + difference).unsigned_abs());
            clock(Some(theirs), ours)
        };
        assert!([-60, -1, 0, 60].iter().all(|difference| good(*difference).good));
        assert!([-61, 61, 86_400].iter().all(|difference| !good(*difference).good));
        assert_eq!(good(-61).text, "the server's is 61 s behind ours");
        assert!(clock(None, ours).good);
    }
}
