//! `narval names`: indexes of names with exact paths, for whoever has Nix and a cache.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use clap::Subcommand;
use narval_files::TemporaryFile;
use narval_install::Progress;
use narval_install::names::prepare_exact;
use narval_names::{Builder, NamesError, read_evaluation};
use narval_push::{Target, push};

use crate::args::push::PushArgs;
use crate::ui::failure::Failure;
use crate::ui::output::note;
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::{Display, PUSH};
use crate::ui::signals;

/// Publish which store paths names have, from an evaluation
///
/// The files of a channel leave 6 % of the names open. Whoever has Nix can evaluate them, and clients of the cache that has the result decide all names.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an index of names from an evaluation
    ///
    /// Reads what 'nix-env -qaP --json --out-path --meta' or 'nix-eval-jobs --meta' print, for one system or for several.
    #[command(after_help = "\
Examples:
  nix-env -f '<nixpkgs>' -qaP --json --out-path --meta > x86_64-linux.json
  narval names build x86_64-linux.json --out names
  narval names publish names --to https://cache.example.org --token-file token")]
    Build {
        /// Evaluations, as JSON [default: standard input]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// File to write the index to
        #[arg(long, short, value_name = "FILE")]
        out: PathBuf,
    },
    /// Push an index of names to caches; their clients use it
    ///
    /// The index is a store path, which the cache signs, keeps and sends as any other. Clients use the newest one that a key they trust has signed; 'narval
    /// pin' keeps it from being collected.
    #[command(after_help = "\
Examples:
  narval names publish names --to https://cache.example.org --token-file token
  narval names publish names --to https://cache.example.org --sign-key cache.sec")]
    Publish {
        /// Index, as 'narval names build' has made it
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        to: PushArgs,
    },
}

/// Runs `narval names`.
///
/// # Errors
/// An evaluation cannot be read, or an index cannot be written or pushed.
pub fn run(args: Args) -> Result<(), Failure> {
    OUTPUT.start_log();
    match args.command {
        Command::Build { files, out } => build(&files, &out),
        Command::Publish { file, to } => publish(&file, &to),
    }
}

const OUTPUT: OutputArgs = OutputArgs { quiet: false, json: false };

fn build(files: &[PathBuf], out: &Path) -> Result<(), Failure> {
    let (mut builder, mut count) = (Builder::default(), 0);
    if files.is_empty() {
        let read = read_evaluation(io::stdin().lock(), &mut builder);
        count += read.map_err(|error| Failure::runtime(format!("standard input: {error}")))?;
    }
    for file in files {
        let opened = File::open(file).map_err(|error| Failure::of_file(&file.display().to_string(), &error))?;
        let read = read_evaluation(BufReader::new(opened), &mut builder);
        count += read.map_err(|error| Failure::runtime(format!("{}: {error}", file.display())))?;
    }
    let made = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    builder.set("made", &made.as_secs().to_string());
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = || -> Result<(), NamesError> {
        let temporary = TemporaryFile::create(folder, ".narval-tmp-", 0o644)?;
        let mut buffered = io::BufWriter::new(temporary.file());
        builder.write(&mut buffered)?;
        buffered.flush()?;
        drop(buffered);
        Ok(temporary.persist(out)?)
    };
    written().map_err(|error| Failure::runtime(format!("cannot write '{}': {error}", out.display())))?;
    note!("{count} attributes with their paths in {}", out.display());
    Ok(())
}

fn publish(file: &Path, to: &PushArgs) -> Result<(), Failure> {
    let (urls, client, options) = (to.urls()?, to.client()?, to.how.options()?);
    let scratch = tempfile::tempdir().map_err(|error| Failure::runtime(format!("cannot create a folder: {error}")))?;
    let (from, info) = prepare_exact(file, scratch.path())?;
    let progress = Arc::new(Progress::default());
    signals::interrupt_on_signal(&progress);
    for url in &urls {
        let display = Display::start(&progress, OUTPUT, PUSH);
        let target = Target::open(url, &client, from.store_dir());
        let pushed = target.and_then(|target| push(&from, vec![info.clone()], &target, &options, &progress));
        display.finish();
        let pushed = pushed?;
        match pushed.unsigned {
            0 => note!("{} has {}: its clients use these names", pushed.to, info.path),
            _ => {
                return Err(Failure::Coded(
                    4,
                    format!(
                        "{} has {}, but has not signed it: clients do not use it. Give a token that may have it sign, or --sign-key",
                        pushed.to, info.path
                    ),
                ));
            }
        }
    }
    Ok(())
}
