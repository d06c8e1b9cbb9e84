//! A recorded push: the requests of one `nix copy --to`, with their bodies in files, so that it can be replayed
//! without Nix and its compression.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Context, Result, failure};

/// The file with the list of requests, in the trace's folder. The bodies are beside it.
const LIST: &str = "trace.json";

/// A request and the recording server's response.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exchange {
    /// `GET`, `HEAD`, `PUT`.
    pub method: String,
    /// Request target, which begins with a slash.
    pub target: String,
    /// The field lines that describe the body or how it is sent: `Content-Type`, `Content-Encoding`, `Expect`.
    pub fields: Vec<(String, String)>,
    /// The status of the response.
    pub status: u16,
    /// The request body's file, in the trace's folder.
    pub body: Option<String>,
    /// Length of the body, in bytes.
    pub body_bytes: u64,
}

impl Exchange {
    /// A request without a body.
    pub fn get(target: &str) -> Exchange {
        let (method, target) = ("GET".to_owned(), target.to_owned());
        Exchange { method, target, fields: Vec::new(), status: 404, body: None, body_bytes: 0 }
    }

    /// Whether this sends a NAR.
    pub fn is_nar(&self) -> bool {
        self.method == "PUT" && self.target.starts_with("/nar/")
    }
}

/// The requests for one store path, in the order in which Nix sent them. The narinfo comes last.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Hash part of the store path.
    pub hash_part: String,
    /// Hash parts of its references that are in the trace, without itself.
    pub references: Vec<String>,
    /// `.ls`, HEAD and PUT of the NAR, PUT of the narinfo: indices into [`Trace::exchanges`].
    pub exchanges: Vec<usize>,
}

/// The NAR of one store path.
#[derive(Debug, Clone)]
pub struct Nar {
    /// Its PUT.
    pub exchange: usize,
    /// The file that was sent.
    pub file: PathBuf,
    /// Its compression, from the narinfo.
    pub compression: String,
    /// The length of the NAR itself, in bytes.
    pub nar_size: u64,
}

/// A recorded push.
#[derive(Debug)]
pub struct Trace {
    /// The folder of the bodies.
    pub folder: PathBuf,
    /// In the order in which they were completed.
    pub exchanges: Vec<Exchange>,
    /// The paths, references first.
    pub units: Vec<Unit>,
    /// The NARs, largest file first.
    pub nars: Vec<Nar>,
}

impl Trace {
    /// Reads a trace that [`Trace::save`] wrote.
    ///
    /// # Errors
    /// If it is incomplete.
    pub fn load(folder: &Path) -> Result<Trace> {
        let list = folder.join(LIST);
        let text = fs::read(&list).context(|| format!("cannot read {}", list.display()))?;
        let exchanges: Vec<Exchange> = serde_json::from_slice(&text).context(|| format!("{}", list.display()))?;
        Trace::of(folder, exchanges)
    }

    /// Writes the list. It is written last, so a folder that has it is a complete trace.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self) -> Result<()> {
        let list = self.folder.join(LIST);
        let text = serde_json::to_vec_pretty(&self.exchanges).context(|| format!("{}", list.display()))?;
        fs::write(&list, text).context(|| format!("cannot write {}", list.display()))
    }

    /// Groups the recorded requests by store path.
    ///
    /// # Errors
    /// If a narinfo names a NAR that was not sent.
    pub fn of(folder: &Path, exchanges: Vec<Exchange>) -> Result<Trace> {
        let of_target = |method: &str, target: &str| {
            exchanges.iter().position(|exchange| exchange.method == method && exchange.target == target)
        };
        let (mut units, mut nars) = (Vec::new(), HashMap::new());
        for (index, exchange) in exchanges.iter().enumerate() {
            let (Some(hash_part), Some(body)) = (put_narinfo(exchange), &exchange.body) else { continue };
            let narinfo = fs::read_to_string(folder.join(body)).context(|| format!("cannot read {body}"))?;
            let field = |name: &str| narinfo_field(&narinfo, name);
            let target = format!("/{}", field("URL").unwrap_or_default());
            let nar = of_target("PUT", &target);
            if let Some((nar, file)) = nar.and_then(|nar| Some((nar, exchanges.get(nar)?.body.as_ref()?))) {
                let nar_size = field("NarSize").and_then(|size| size.parse().ok());
                nars.entry(nar).or_insert(Nar {
                    exchange: nar,
                    file: folder.join(file),
                    compression: field("Compression").unwrap_or("none").to_owned(),
                    nar_size: nar_size.ok_or_else(|| failure!("{}: no NarSize", exchange.target))?,
                });
            }
            let before = [of_target("PUT", &format!("/{hash_part}.ls")), of_target("HEAD", &target), nar];
            let references = field("References").unwrap_or_default().split_whitespace();
            let references = references.filter_map(|name| name.split_once('-')).map(|(hash, _)| hash.to_owned());
            units.push(Unit {
                hash_part: hash_part.to_owned(),
                references: references.filter(|hash| hash != hash_part).collect(),
                exchanges: before.into_iter().flatten().chain([index]).collect(),
            });
        }
        let known = units.iter().map(|unit: &Unit| unit.hash_part.clone()).collect::<HashSet<_>>();
        units.iter_mut().for_each(|unit| unit.references.retain(|reference| known.contains(reference)));
        let mut nars = nars.into_values().collect::<Vec<_>>();
        let length = |nar: &Nar| exchanges.get(nar.exchange).map_or(0, |exchange| exchange.body_bytes);
        nars.sort_by_key(|nar| (std::cmp::Reverse(length(nar)), nar.exchange));
        Ok(Trace { folder: folder.to_owned(), exchanges, units, nars })
    }

    /// Bytes of all bodies that are sent.
    pub fn bytes(&self) -> u64 {
        self.exchanges.iter().map(|exchange| exchange.body_bytes).sum()
    }
}

/// The hash part of the store path whose narinfo is sent.
fn put_narinfo(exchange: &Exchange) -> Option<&str> {
    let hash_part = exchange.target.strip_prefix('/')?.strip_suffix(".narinfo")?;
    (exchange.method == "PUT").then_some(hash_part)
}

fn narinfo_field<'a>(narinfo: &'a str, name: &str) -> Option<&'a str> {
    narinfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_path_is_found_by_its_narinfo() {
        let folder = std::env::temp_dir().join(format!("narval-bench-trace-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let put = |target: &str, body: &str| {
            let name = target.replace('/', "_");
            fs::write(folder.join(&name), body).unwrap();
            let body_bytes = body.len() as u64;
            Exchange { method: "PUT".into(), body: Some(name), body_bytes, ..Exchange::get(target) }
        };
        let exchanges = vec![
            Exchange::get("/nix-cache-info"),
            put("/aaa.ls", "{}"),
            Exchange { method: "HEAD".into(), ..Exchange::get("/nar/1.nar") },
            put("/nar/1.nar", "one"),
            put("/aaa.narinfo", "URL: nar/1.nar\nCompression: none\nNarSize: 3\nReferences: \n"),
            put("/nar/2.nar.xz", "longer"),
            put("/bbb.narinfo", "URL: nar/2.nar.xz\nCompression: xz\nNarSize: 9\nReferences: aaa-a bbb-b\n"),
        ];
        let trace = Trace::of(&folder, exchanges).unwrap();
        trace.save().unwrap();
        let trace = Trace::load(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(
            trace.units.iter().map(|unit| &unit.exchanges[..]).collect::<Vec<_>>(),
            [&[1, 2, 3, 4][..], &[5, 6]]
        );
        assert_eq!(trace.units[1].references, ["aaa"]);
        let nars = trace.nars.iter().map(|nar| (nar.exchange, nar.compression.as_str(), nar.nar_size));
        assert_eq!(nars.collect::<Vec<_>>(), [(5, "xz", 9), (3, "none", 3)]);
    }
}
