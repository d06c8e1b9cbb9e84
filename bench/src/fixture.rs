//! The fixture: a closure and some special paths in a real store, and the same paths as flat files.
//!
//! Everything is made once, by real Nix, and kept in the work folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::echo::Sizes;
use crate::{Context, Result, failure};

const LARGE_FILE_BYTES: usize = 10_000_000;
const TREE_FILES: usize = 30_000;
const TREE_FILES_IN_FOLDER: usize = 100;
/// A tree is new to a server only once, so each repetition needs its own.
const TREES: usize = 5;
const HASH_PART_CHARS: usize = 32;
const KEY_NAME: &str = "narval-bench-1";

/// The store paths of a run, as hash parts, and the folder of their flat files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fixture {
    /// The closure's top-level path.
    pub top: String,
    /// The store that holds it, in the syntax of `nix --store`; `None` for the system's own.
    pub store: Option<String>,
    /// The closure, in the order of `nix-store -qR`.
    pub closure: Vec<String>,
    /// A path that is one empty file.
    pub empty: String,
    /// A path that is one file of 10 MB that does not compress.
    pub large: String,
    /// Paths of 30,000 small files each, all different.
    pub trees: Vec<String>,
    /// Public key of the flat caches' signatures.
    pub public_key: String,
    #[serde(skip)]
    work: PathBuf,
}

impl Fixture {
    /// Opens the fixture in the work folder, or creates it.
    ///
    /// # Errors
    /// If Nix is not installed, or the path is not in the store.
    pub fn prepare(work: &Path, top: &str, store: Option<&str>) -> Result<Fixture> {
        fs::create_dir_all(work).context(|| format!("cannot make {}", work.display()))?;
        let work = fs::canonicalize(work).context(|| format!("cannot use {}", work.display()))?;
        let kept = work.join("fixture.json");
        let known = fs::read(&kept).ok().and_then(|text| serde_json::from_slice::<Fixture>(&text).ok());
        if let Some(known) = known.filter(|known| known.top == top && known.store.as_deref() == store) {
            let fixture = Fixture { work: work.clone(), ..known };
            if fixture.nix_store(&["--check-validity"], &fixture.all()).is_ok() {
                return Ok(fixture);
            }
        }
        let mut fixture = Fixture {
            top: top.to_owned(),
            store: store.map(str::to_owned),
            closure: Vec::new(),
            empty: String::new(),
            large: String::new(),
            trees: Vec::new(),
            public_key: String::new(),
            work,
        };
        let closure = fixture.nix_store(&["--query", "--requisites"], &[top.to_owned()])?;
        fixture.closure = closure.lines().map(str::to_owned).collect();
        fixture.add_odd_paths()?;
        fixture.make_key()?;
        let text = serde_json::to_vec_pretty(&fixture).context(|| "fixture.json".to_owned())?;
        fs::write(&kept, text).context(|| format!("cannot write {}", kept.display()))?;
        Ok(fixture)
    }

    fn all(&self) -> Vec<String> {
        let odd = [&self.empty, &self.large].into_iter().chain(&self.trees);
        self.closure.iter().chain(odd).cloned().collect()
    }

    fn add_odd_paths(&mut self) -> Result<()> {
        eprintln!("adding the odd paths to the store");
        let sources = self.work.join("sources");
        let make = |name: &str, fill: &dyn Fn(&Path) -> std::io::Result<()>| -> Result<PathBuf> {
            let path = sources.join(name);
            if !path.exists() {
                let part = sources.join(format!(".{name}"));
                fs::create_dir_all(&sources).context(|| format!("cannot make {}", sources.display()))?;
                fill(&part)
                    .and_then(|()| fs::rename(&part, &path))
                    .context(|| format!("cannot make {}", path.display()))?;
            }
            Ok(path)
        };
        let empty = make("narval-bench-empty", &|path| fs::write(path, b""))?;
        let large = make("narval-bench-10mb", &|path| fs::write(path, noise(1, LARGE_FILE_BYTES)))?;
        self.empty = self.add(&empty)?;
        self.large = self.add(&large)?;
        for tree in 0..TREES {
            let path = make(&format!("narval-bench-tree-{tree}"), &|path| small_files(path, tree as u64))?;
            self.trees.push(self.add(&path)?);
        }
        Ok(())
    }

    /// Adds a file or folder to the store, with a GC root.
    fn add(&self, source: &Path) -> Result<String> {
        let path = self.nix_store(&["--add"], &[source.display().to_string()])?.trim().to_owned();
        let name = source.file_name().unwrap_or_default();
        let root = self.work.join("roots").join(name).display().to_string();
        self.nix_store(&["--add-root", &root, "--realise"], std::slice::from_ref(&path))?;
        Ok(path)
    }

    fn make_key(&mut self) -> Result<()> {
        let secret = self.work.join("secret.key");
        if !secret.exists() {
            let key = nix(&["key", "generate-secret", "--key-name", KEY_NAME])?;
            fs::write(&secret, key).context(|| format!("cannot write {}", secret.display()))?;
        }
        let secret = fs::read_to_string(&secret).context(|| format!("cannot read {}", secret.display()))?;
        let public = output(command("nix", &["key", "convert-secret-to-public"]), Some(&secret))?;
        self.public_key = public.trim().to_owned();
        Ok(())
    }

    /// The folder of a flat cache of all paths, with this compression.
    ///
    /// # Errors
    /// When `nix copy` fails.
    pub fn flat(&self, compression: &str) -> Result<PathBuf> {
        self.copy_to(&format!("flat-{compression}"), compression, &self.all())
    }

    /// The folder of a flat cache of the closure alone, so that a client that decompresses every file does no more work than
    /// one that installs the closure.
    ///
    /// # Errors
    /// When `nix copy` fails.
    pub fn flat_closure(&self, compression: &str) -> Result<PathBuf> {
        self.copy_to(&format!("closure-{compression}"), compression, &self.closure)
    }

    /// Runs `nix copy`, unless the folder exists already.
    fn copy_to(&self, folder: &str, compression: &str, paths: &[String]) -> Result<PathBuf> {
        let folder = self.work.join(folder);
        let complete = folder.join(".complete");
        // named by the set of paths, so that another closure in the same work folder is not mistaken for this one
        let set = paths.join("\n");
        if fs::read_to_string(&complete).ok().as_ref() == Some(&set) {
            return Ok(folder);
        }
        if folder.exists() {
            fs::remove_dir_all(&folder).context(|| format!("cannot remove {}", folder.display()))?;
        }
        eprintln!("making {}", folder.display());
        let key = self.work.join("secret.key");
        let url = format!("file://{}?compression={compression}&secret-key={}", folder.display(), key.display());
        let mut arguments = vec!["copy", "--no-check-sigs", "--to", &url];
        if let Some(store) = &self.store {
            arguments.extend(["--from", store]);
        }
        arguments.extend(paths.iter().map(String::as_str));
        nix(&arguments)?;
        fs::write(&complete, set).context(|| format!("cannot write {}", complete.display()))?;
        Ok(folder)
    }

    fn nix_store(&self, arguments: &[&str], paths: &[String]) -> Result<String> {
        let mut all = Vec::from(arguments);
        if let Some(store) = &self.store {
            all.extend(["--store", store]);
        }
        all.extend(paths.iter().map(String::as_str));
        output(command("nix-store", &all), None)
    }
}

/// The hash part of a store path.
///
/// # Errors
/// If this is not a store path.
pub fn hash_part(store_path: &str) -> Result<&str> {
    let name = store_path.rsplit('/').next().unwrap_or_default();
    name.get(..HASH_PART_CHARS).ok_or_else(|| failure!("'{store_path}' is not a store path"))
}

/// The fields of a narinfo. They are not validated: the servers under measurement are trusted.
pub fn fields(narinfo: &str) -> BTreeMap<&str, &str> {
    narinfo.lines().filter_map(|line| line.split_once(": ")).collect()
}

/// Every file of a flat cache with its size, for the echo server.
///
/// # Errors
/// When the folder cannot be read.
pub fn sizes(prefix: &str, folder: &Path, sizes: &mut Sizes) -> Result<()> {
    let doing = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).context(doing)? {
        let entry = entry.context(doing)?;
        let metadata = entry.metadata().context(doing)?;
        let target = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if metadata.is_dir() {
            self::sizes(&format!("{target}/"), &entry.path(), sizes)?;
        } else {
            sizes.insert(target, metadata.len());
        }
    }
    Ok(())
}

fn nix(arguments: &[&str]) -> Result<String> {
    output(command("nix", arguments), None)
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    if program == "nix" {
        command.args(["--extra-experimental-features", "nix-command"]);
    }
    command.args(arguments);
    command
}

fn output(mut command: Command, input: Option<&str>) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let doing = || format!("cannot run {name}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context(doing)?;
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        std::io::Write::write_all(&mut stdin, input.as_bytes()).context(doing)?;
    }
    let output = child.wait_with_output().context(doing)?;
    if output.status.success() {
        return String::from_utf8(output.stdout).context(doing);
    }
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let arguments = command.get_args().map(|a| a.to_string_lossy()).take(6).collect::<Vec<_>>().join(" ");
    Err(failure!("{name} {arguments} …: {error}"))
}

/// Incompressible bytes, the same on every machine (xorshift64).
fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// A tree like a package of source files: sizes from a few hundred bytes to 4 KB.
fn small_files(path: &Path, seed: u64) -> std::io::Result<()> {
    for file in 0..TREE_FILES {
        let folder = path.join(format!("folder-{:03}", file / TREE_FILES_IN_FOLDER));
        if file % TREE_FILES_IN_FOLDER == 0 {
            fs::create_dir_all(&folder)?;
        }
        let number = (seed << 32) + file as u64;
        let size = 200 + usize::from(u16::from_le_bytes([file as u8, (file >> 3) as u8])) % 3900;
        fs::write(folder.join(format!("file-{file:05}.txt")), noise(number + 2, size))?;
    }
    Ok(())
}
