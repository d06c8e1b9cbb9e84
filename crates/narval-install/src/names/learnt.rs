//! What was learnt about one release: which paths names mean, and which systems C libraries are for. It stays true as long as the release exists.
//!
//! A file of lines, to which any process appends. A line that was torn by a crash is skipped.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use narval_nix::StorePath;

/// The most bytes that are read: a few hundred thousand answers.
const LEN_MAX: u64 = 64 * 1024 * 1024;

/// Facts about a release.
#[derive(Debug)]
pub(crate) struct Learnt {
    file: PathBuf,
    answers: HashMap<String, (StorePath, String)>,
    libraries: HashMap<StorePath, Vec<String>>,
}

impl Learnt {
    pub(crate) fn open(file: PathBuf) -> Self {
        let is_small = fs::metadata(&file).is_ok_and(|found| found.len() <= LEN_MAX);
        let text = is_small.then(|| fs::read_to_string(&file).ok()).flatten().unwrap_or_default();
        let mut learnt = Self { file, answers: HashMap::new(), libraries: HashMap::new() };
        for line in text.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["answer", attribute, system, output, path, from, "."] => {
                    if let Ok(path) = StorePath::parse(path) {
                        learnt.answers.insert(key(attribute, system, output), (path, from.to_owned()));
                    }
                }
                ["library", path, systems, "."] => {
                    if let Ok(path) = StorePath::parse(path) {
                        let systems = systems.split(' ').filter(|system| !system.is_empty()).map(str::to_owned);
                        learnt.libraries.insert(path, systems.collect());
                    }
                }
                _ => {}
            }
        }
        learnt
    }

    /// The path of an output, and from where it is known.
    pub(crate) fn answer(&self, attribute: &str, system: &str, output: &str) -> Option<(StorePath, String)> {
        self.answers.get(&key(attribute, system, output)).cloned()
    }

    pub(crate) fn library(&self, path: &StorePath) -> Option<Vec<String>> {
        self.libraries.get(path).cloned()
    }

    pub(crate) fn add_answer(&mut self, attribute: &str, system: &str, output: &str, path: &StorePath, from: &str) {
        self.append(&["answer", attribute, system, output, path.base_name(), from, "."]);
        self.answers.insert(key(attribute, system, output), (path.clone(), from.to_owned()));
    }

    pub(crate) fn add_library(&mut self, path: &StorePath, systems: &[String]) {
        self.append(&["library", path.base_name(), &systems.join(" "), "."]);
        self.libraries.insert(path.clone(), systems.to_vec());
    }

    /// What cannot be remembered is asked again.
    fn append(&self, fields: &[&str]) {
        // One write, so that lines of two processes do not mix. The first line break ends what another one has left torn.
        let line = format!("\n{}\n", fields.join("\t"));
        let opened = OpenOptions::new().append(true).create(true).mode(0o644).open(&self.file);
        if let Err(error) = opened.and_then(|mut file| file.write_all(line.as_bytes())) {
            tracing::debug!(file = %self.file.display(), %error, "cannot be remembered");
        }
    }
}

fn key(attribute: &str, system: &str, output: &str) -> String {
    [attribute, system, output].join("\t")
}
