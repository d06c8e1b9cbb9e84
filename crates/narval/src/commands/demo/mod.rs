//! `narval demo`: shows everything on one machine, without Nix and without setup.

mod contents;
mod fetch;

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use narval_http::{Listen, ListenAddress, Server, ServerHandle};
use narval_nix::{SecretKey, TrustedKeys};
use narval_serve::{Config, Dialect, Service};
use narval_store::{LocalStore, Store, StoreConfig};

use crate::args::client::human_bytes;
use crate::server;
use crate::ui::failure::Failure;
use crate::ui::log;
use crate::ui::output::note;
use crate::ui::signals::Interrupt;
use contents::Made;
use fetch::Fetched;

/// Make a store, serve it, fetch it back, verify it; needs no Nix
///
/// Makes a temporary Nix store from files of this machine, signs and serves it, fetches everything over HTTP, checks every
/// signature and hash, and prints how fast that was.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  narval demo --keep

Then, with the address and a path that it prints:
  nix copy --no-check-sigs --from http://127.0.0.1:PORT --to ./copy PATH")]
pub struct Args {
    /// Keep serving until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Address to listen on [default: a free port on loopback]
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", hide_default_value = true)]
    listen: SocketAddr,
}

/// Runs `narval demo`.
///
/// # Errors
/// Any failure.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.keep {
        log::start(None)?;
    }
    let interrupt = Interrupt::on_signal();
    demonstrate(&args, &interrupt).map_err(|failure| interrupt.explain(failure))
}

fn demonstrate(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let folder =
        Folder::make().map_err(|error| Failure::runtime(format!("cannot create a temporary folder: {error}")))?;
    let say = |text: String| -> Result<(), Failure> {
        writeln!(io::stdout().lock(), "{text}").map_err(|error| Failure::runtime(format!("cannot write: {error}")))
    };

    let started = Instant::now();
    let made = make_store(&folder, interrupt)?;
    say(describe_made(&made, &folder, started.elapsed()))?;

    let key = SecretKey::generate("narval-demo-1").map_err(Failure::runtime)?;
    let keys: TrustedKeys = [key.public_key()].into_iter().collect();
    say(format!("signing  as {}", key.public_key()))?;
    let handle = serve(&folder, key, args.listen)?;
    let address = match handle.addresses() {
        [ListenAddress::Tcp(address), ..] => *address,
        _ => return Err(Failure::runtime("the server has no address")),
    };
    say(format!("serving  http://{address}\n"))?;

    let root = made.last().map(|made| made.info.path.clone()).ok_or_else(|| Failure::runtime("no path was created"))?;
    let started = Instant::now();
    let fetched = fetch::closure(address, &root, keys, interrupt)?;
    say(describe_fetched(&fetched, started.elapsed()))?;
    if fetched.len() != made.len() {
        return Err(Failure::runtime(format!("{} paths were created, but {} were fetched", made.len(), fetched.len())));
    }
    if args.keep {
        say(format!(
            "\nStill serving; Ctrl-C ends it and removes the store. Open http://{address} in a browser, or try:\n  curl http://{address}/nix-cache-info\n  \
             curl http://{address}/{}.narinfo\n  nix copy --no-check-sigs --from http://{address} --to ./copy \
             /nix/store/{root}",
            root.hash_part()
        ))?;
        let signals = server::CaughtSignals::catch()?;
        return server::run_reloading(
            handle,
            signals,
            server::GRACE,
            None,
            || Ok(server::NOTHING_TO_RELOAD.to_owned()),
        );
    }
    handle.shutdown(Duration::from_secs(1));
    say("\nThe server has ended, and the store is removed. 'narval demo --keep' keeps serving: open its address in a browser.".to_owned())
}

fn make_store(folder: &Folder, interrupt: &Interrupt) -> Result<Vec<Made>, Failure> {
    let scratch = folder.path.join("scratch");
    fs::create_dir(&scratch)
        .map_err(|error| Failure::runtime(format!("cannot create '{}': {error}", scratch.display())))?;
    let store = LocalStore::open(folder.store_config()?).map_err(Failure::runtime)?;
    contents::make(&store, &scratch, interrupt)
}

fn serve(folder: &Folder, key: SecretKey, listen: SocketAddr) -> Result<ServerHandle, Failure> {
    let config = Config { sign_keys: vec![key], ..Config::new(Dialect::Narval) };
    let service = Service::new(config, Store::new(folder.store_config()?)).map_err(Failure::runtime)?;
    let server = Server::builder(service.clone()).listen(Listen::Tcp(listen)).build().map_err(Failure::usage)?;
    let handle = server.spawn().map_err(Failure::runtime)?;
    service.show_engine(handle.counter_source());
    Ok(handle)
}

fn describe_made(made: &[Made], folder: &Folder, time: Duration) -> String {
    let bytes: u64 = made.iter().map(|made| made.info.nar_size).sum();
    let entries: u64 = made.iter().map(|made| made.entries).sum();
    format!(
        "made     {} store paths of {entries} files, {} in {}, in {}",
        made.len(),
        human_bytes(bytes),
        folder.path.join("root").display(),
        seconds(time)
    )
}

fn describe_fetched(fetched: &[Fetched], time: Duration) -> String {
    let mut text = format!("{:>10}  {:>10}  {:>9}  references  path\n", "NAR", "rate", "narinfo");
    for one in fetched {
        let narinfo = &one.narinfo;
        text.push_str(&format!(
            "{:>10}  {:>8}/s  {:>6} µs  {:>10}  {}\n",
            human_bytes(narinfo.nar_size),
            human_bytes(rate(narinfo.nar_size, one.nar_time)),
            one.narinfo_time.as_micros(),
            narinfo.references.len(),
            narinfo.path
        ));
    }
    let bytes: u64 = fetched.iter().map(|one| one.narinfo.nar_size).sum();
    let nars: Duration = fetched.iter().map(|one| one.nar_time).sum();
    text.push_str(&format!(
        "\nfetched  {} narinfos and NARs, {} in {} ({}/s, hashing included)\nverified {} signatures, sizes and hashes: \
         all are right",
        fetched.len(),
        human_bytes(bytes),
        seconds(time),
        human_bytes(rate(bytes, nars)),
        fetched.len()
    ));
    text
}

/// Bytes per second.
fn rate(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// The demo's folder, removed when dropped.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn make() -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("narval-demo-").tempdir()?;
        let this = Self { path: dir.keep() };
        fs::create_dir(this.path.join("root"))?;
        Ok(this)
    }

    fn store_config(&self) -> Result<StoreConfig, Failure> {
        StoreConfig::for_root(&self.path.join("root")).map_err(Failure::runtime)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        unlock(&self.path);
        if let Err(error) = fs::remove_dir_all(&self.path) {
            note!("narval: cannot remove '{}': {error}", self.path.display());
        }
    }
}

/// Store folders are read-only, so their contents could not be removed.
fn unlock(folder: &Path) {
    // A failure shows when the folder cannot be removed.
    let _ = fs::set_permissions(folder, PermissionsExt::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            unlock(&entry.path());
        }
    }
}
