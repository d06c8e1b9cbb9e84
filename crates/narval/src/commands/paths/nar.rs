//! `narval nar`: creates, unpacks, lists and hashes NARs.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use narval_files::{TemporaryFile, is_temporary_name, remove_leftovers};
use narval_nix::listing::{ListingBuilder, Node};
use narval_nix::nar::Decoder;
use narval_nix::{Hash, hash::Encoding};
use narval_store::{NarReader, Unpack, hash_of};

use crate::ui::failure::Failure;
use crate::ui::signals::Interrupt;

/// Bytes of a NAR that are read at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// The start of the temporary name of a NAR that is being written.
const PART: &str = ".narval-part-";

/// Create, unpack, list and hash NARs
///
/// NAR is Nix's archive format: the same files always result in the same bytes.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the NAR of a file or folder
    #[command(after_help = "Example:\n  narval nar dump ./folder --out folder.nar")]
    Dump {
        /// File or folder
        path: PathBuf,
        /// File to write to [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Unpack a NAR
    #[command(after_help = "Example:\n  narval nar restore copy < folder.nar")]
    Restore {
        /// File or folder to create; must not exist
        to: PathBuf,
        /// NAR file [default: standard input]
        nar: Option<PathBuf>,
    },
    /// List the files in a NAR
    #[command(after_help = "Example:\n  narval nar ls folder.nar")]
    Ls {
        /// NAR file [default: standard input]
        nar: Option<PathBuf>,
        /// Print JSON, in the format of a binary cache's .ls files
        #[arg(long)]
        json: bool,
    },
    /// Hash the NAR of a file or folder, as Nix does
    #[command(after_help = "Example:\n  narval nar hash ./folder --format sri")]
    Hash {
        /// File or folder
        path: PathBuf,
        /// Format of the hash
        #[arg(long = "format", alias = "form", value_name = "FORMAT", default_value = "nix32")]
        form: Form,
    },
}

/// The format of a hash.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// sha256:1b8m…, as in narinfos
    Nix32,
    /// sha256:e3b0…
    Hex,
    /// sha256-47DE…=, as in Nix expressions
    Sri,
}

/// Runs `narval nar`.
///
/// # Errors
/// A file cannot be read or written, or is not a NAR.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Dump { path, out } => dump(&path, out.as_deref()),
        Command::Restore { to, nar } => restore(&to, nar.as_deref()),
        Command::Ls { nar, json } => ls(nar.as_deref(), json),
        Command::Hash { path, form } => hash(&path, form),
    }
}

fn dump(path: &Path, out: Option<&Path>) -> Result<(), Failure> {
    let nar = NarReader::open(path).map_err(Failure::usage)?;
    match out {
        None => copy(nar, io::stdout().lock(), "standard output"),
        Some(out) => {
            let shown = format!("'{}'", out.display());
            let usage = |error: io::Error| Failure::of_file(&format!("cannot write {shown}"), &error);
            // Pipes and devices are written directly.
            if fs::metadata(out).is_ok_and(|found| !found.is_file()) {
                return copy(nar, File::create(out).map_err(usage)?, &shown);
            }
            // A file gets its name when it is complete.
            let interrupt = Interrupt::on_signal();
            let folder = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if let Err(error) = remove_leftovers(folder, |name| is_temporary_name(name, PART)) {
                // A folder that is writable but not readable, for example: leftovers there do no harm.
                tracing::debug!("cannot remove leftovers from '{}': {error}", folder.display());
            }
            let file = TemporaryFile::create(folder, PART, 0o666).map_err(usage)?;
            copy(Interruptible(nar, &interrupt), file.file(), &shown).map_err(|it| interrupt.explain(it))?;
            file.persist(out).map_err(|error| failed(&format!("cannot write {shown}"), &error))
        }
    }
}

/// A reader that fails after a signal.
struct Interruptible<'a, R>(R, &'a Interrupt);

impl<R: Read> Read for Interruptible<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1.check()?;
        self.0.read(buffer)
    }
}

fn copy(mut nar: impl Read, mut out: impl Write, shown: &str) -> Result<(), Failure> {
    each_piece(&mut nar, |piece| {
        out.write_all(piece).map_err(|error| failed(&format!("cannot write {shown}"), &error))
    })?;
    out.flush().map_err(|error| failed(&format!("cannot write {shown}"), &error))
}

fn restore(to: &Path, nar: Option<&Path>) -> Result<(), Failure> {
    let what = format!("cannot unpack to '{}'", to.display());
    let name = to.file_name().ok_or_else(|| Failure::usage(format!("{what}: give a name that does not exist yet")))?;
    let parent = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = File::open(parent).map_err(|error| failed(&what, &error))?;
    let mut unpack = Unpack::begin_writable(parent.as_fd(), name).map_err(|error| failed(&what, &error))?;
    each_piece(&mut open(nar)?, |piece| unpack.write(piece).map_err(|error| failed(&what, &error)))?;
    unpack.finish().map(drop).map_err(|error| failed(&what, &error))
}

fn ls(nar: Option<&Path>, json: bool) -> Result<(), Failure> {
    let bad = |error: &dyn std::fmt::Display| failed("not a NAR", error);
    let (mut decoder, mut builder, mut offset) = (Decoder::new(), ListingBuilder::new(), 0);
    each_piece(&mut open(nar)?, |mut piece| {
        loop {
            let (used, event) = decoder.next(piece).map_err(|error| bad(&error))?;
            offset += used as u64;
            let Some(event) = event else { return Ok(()) };
            builder.push(&event, offset).map_err(|error| bad(&error))?;
            piece = piece.get(used..).unwrap_or_default();
        }
    })?;
    decoder.finish().map_err(|error| bad(&error))?;
    let listing = builder.finish().map_err(|error| bad(&error))?;
    let cannot = |error: io::Error| failed("cannot write the listing", &error);
    let mut out = BufWriter::new(io::stdout().lock());
    if json {
        let text = listing.to_json().map_err(|error| failed("the listing cannot be JSON", &error))?;
        writeln!(out, "{text}").map_err(cannot)?;
    } else {
        list(&listing.root, &mut b".".to_vec(), &mut out).map_err(cannot)?;
    }
    out.flush().map_err(cannot)
}

fn list(node: &Node, path: &mut Vec<u8>, out: &mut impl Write) -> io::Result<()> {
    let (kind, size) = match node {
        Node::Regular { executable: false, size, .. } => ("-r--r--r--", *size),
        Node::Regular { executable: true, size, .. } => ("-r-xr-xr-x", *size),
        Node::Symlink { .. } => ("lrwxrwxrwx", 0),
        Node::Directory(_) => ("dr-xr-xr-x", 0),
    };
    write!(out, "{kind} {size:>12} ")?;
    out.write_all(path)?;
    if let Node::Symlink { target } = node {
        out.write_all(b" -> ")?;
        out.write_all(target)?;
    }
    out.write_all(b"\n")?;
    if let Node::Directory(entries) = node {
        for (name, entry) in entries {
            let length = path.len();
            path.push(b'/');
            path.extend_from_slice(name);
            list(entry, path, out)?;
            path.truncate(length);
        }
    }
    Ok(())
}

fn hash(path: &Path, form: Form) -> Result<(), Failure> {
    let mut nar = NarReader::open(path).map_err(Failure::usage)?;
    let hash = hash_of(&mut nar).map_err(|error| failed("cannot read the NAR", &error))?;
    let encoding = match form {
        Form::Nix32 => Encoding::Nix32,
        Form::Hex => Encoding::Hex,
        Form::Sri => Encoding::Sri,
    };
    let text = Hash::from(hash).render(encoding);
    writeln!(io::stdout().lock(), "{text}").map_err(|error| failed("cannot write the hash", &error))
}

fn open(nar: Option<&Path>) -> Result<Box<dyn Read>, Failure> {
    match nar {
        None => Ok(Box::new(io::stdin().lock())),
        Some(path) => File::open(path)
            .map(|file| Box::new(file) as Box<dyn Read>)
            .map_err(|error| Failure::usage(format!("cannot read '{}': {error}", path.display()))),
    }
}

fn each_piece(
    input: &mut (impl Read + ?Sized),
    mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(got) => take(buffer.get(..got).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("cannot read the NAR", &error)),
        }
    }
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::runtime(format!("{what}: {error}"))
}
