//! `narval use --near`: a near cache of this user, or of this machine, in front of the caches that Nix uses so far.
//!
//! Three files make it: the configuration of `narval serve`, and a socket and a service of systemd. A block in `nix.conf` replaces the caches by the near
//! one, which asks them. `--remove` removes all of it.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use narval_client::{Client, ClientOptions, Netrc, Scheme, Url};
use narval_install::human_bytes;
use narval_install::settings::{NearBlock, Settled, replace};
use narval_nix::{PublicKey, StoreDir};
use narval_store::{Environment, StoreConfig, SubstituterSettings, system_nix_folder};

use super::change::{Change, in_file};
use crate::config::CACHE_NIXOS_ORG_KEY;
use crate::ui::failure::Failure;
use crate::ui::output::note;
use crate::values::folders::user_folder;
use crate::values::size::parse_size;

/// The first line of each file that is made here. Others are not overwritten.
const MADE_HERE: &str = "# Made by 'narval use --near', and removed by 'narval use --near --remove'.\n";
/// What they all begin with, also those of earlier versions.
const MADE_BY: &str = "# Made by 'narval use --near',";
/// The port of the near cache, or one of the next ones if it is taken.
const PORT: u16 = 5037;
const PORTS: u16 = 20;
/// The largest size, without --size: 10 GB, or 5 % of the disk if that is less.
const SIZE: u64 = 10_000_000_000;
const DISK_PART: u64 = 20;
/// The name of the units.
const UNIT: &str = "narval-near";
/// The maximum size of a `nix-cache-info` in bytes.
const CACHE_INFO_LEN_MAX: u64 = 64 * 1024;
/// What Nix asks without any settings.
const CACHE_NIXOS_ORG: &str = "https://cache.nixos.org";

/// The options of a near cache.
#[derive(Debug, clap::Args)]
pub(super) struct NearArgs {
    /// Set up a near cache on this machine, as the only cache that Nix asks: it asks those that are used so far, and keeps what they have
    ///
    /// For root, of the machine; otherwise of this user. Works offline with what was fetched before. With --remove, everything is as it was before.
    #[arg(long)]
    pub(super) near: bool,
    /// Maximum size of the files that it keeps; the least recently used are removed first [default: 10 GB, or 5 % of the disk if that is less]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "near")]
    size: Option<u64>,
    /// Take paths from near caches on this network, and give them: the address of its gateway, the name of an interface, or `any`. Repeatable;
    /// see docs/near.md#neighbours
    #[arg(long, value_name = "NETWORK", requires = "near", conflicts_with = "remove")]
    neighbours_on: Vec<String>,
    /// Only on mains power, not on battery (`ac`), on a network that NetworkManager says is not metered (`unmetered`), or both
    #[arg(long, value_name = "WHEN", value_parser = ["any", "ac", "unmetered", "ac-unmetered"], requires = "neighbours_on")]
    neighbours_only_on: Option<String>,
    /// For root: a near cache of this user, not of the machine
    #[arg(long, requires = "near")]
    user: bool,
    /// Only write the files: you have systemd start narval-near.socket
    #[arg(long, requires = "near")]
    no_start: bool,
    /// Write the files of the machine below this folder, for an image, and start nothing
    #[arg(long, value_name = "DIR", requires = "near", conflicts_with = "user")]
    root: Option<PathBuf>,
}

/// Whose near cache it is, and where its files are.
struct Place {
    is_machine: bool,
    /// Before all paths.
    root: Option<PathBuf>,
    config: PathBuf,
    units: PathBuf,
    data: PathBuf,
    conf: PathBuf,
}

impl Place {
    fn of(args: &NearArgs) -> Result<Self, Failure> {
        let is_machine = args.root.is_some() || (rustix::process::geteuid().is_root() && !args.user);
        if is_machine {
            return Ok(Self {
                is_machine,
                root: args.root.clone(),
                config: "/etc/narval/near.toml".into(),
                units: "/etc/systemd/system".into(),
                data: format!("/var/cache/{UNIT}").into(),
                conf: system_nix_folder().join("nix.conf"),
            });
        }
        let unset = || Failure::usage("HOME is not set: a near cache of a user needs it");
        let config = user_folder("XDG_CONFIG_HOME", ".config").ok_or_else(unset)?;
        Ok(Self {
            is_machine,
            root: None,
            units: config.join("systemd/user"),
            config: config.join("narval/near.toml"),
            data: user_folder("XDG_CACHE_HOME", ".cache").ok_or_else(unset)?.join("narval/near"),
            conf: narval_store::user_nix_conf().ok_or_else(unset)?,
        })
    }

    /// Where a file is written.
    fn file(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    fn unit(&self, kind: &str) -> PathBuf {
        self.file(&self.units.join(format!("{UNIT}.{kind}")))
    }

    /// Has systemd do something.
    fn systemctl(&self, args: &[&str]) -> Result<(), Failure> {
        let user: &[&str] = if self.is_machine { &[] } else { &["--user"] };
        let shown = || format!("systemctl {}", [user, args].concat().join(" "));
        match Command::new("systemctl").args(user).args(args).output() {
            Ok(done) if done.status.success() => Ok(()),
            Ok(done) => {
                let why = String::from_utf8_lossy(&done.stderr).trim().replace('\n', "; ");
                Err(Failure::runtime(format!("{}: {why}", shown())))
            }
            Err(error) => {
                let advice =
                    "without systemd, write the files with --no-start, and have 'narval serve' started otherwise";
                Err(Failure::runtime(format!("{}: {error}; {advice}", shown())))
            }
        }
    }
}

/// Runs `narval use --near`: with `remove`, removes the near cache.
///
/// # Errors
/// If the files cannot be written, the near cache does not start, or the user does not agree.
pub(super) fn run(
    args: &NearArgs,
    remove: bool,
    agreed: impl FnOnce() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let place = Place::of(args)?;
    let (files, mut conf, notes) = if remove { plan_remove(&place)? } else { plan(args, &place)? };
    let changes: Vec<_> = files.iter().chain([&conf]).filter(|change| change.is_one()).collect();
    changes.iter().for_each(|change| change.print());
    notes.iter().for_each(|text| note!("Note: {text}"));
    if changes.is_empty() {
        note!("Nothing to change: the near cache is {}", if remove { "not set up" } else { "set up" });
        return Ok(());
    }
    if !agreed()? {
        note!("Nothing was changed (--dry-run)");
        return Ok(());
    }
    conf.is_changeable()?;
    let starts = !args.no_start && place.root.is_none();
    if remove {
        // Nix must not ask what is going.
        finish(&mut conf)?;
        if starts {
            // Units that were never started cannot be stopped, which is no reason to leave their files.
            if let Err(failure) = place.systemctl(&["disable", "--now", "narval-near.socket", "narval-near.service"]) {
                note!("Note: {failure}");
            }
        }
        for change in &files {
            fs::remove_file(&change.file.path).or_else(unless_gone(&change.file.path))?;
        }
        if starts {
            place.systemctl(&["daemon-reload"])?;
        }
        let data = place.file(&place.data);
        fs::remove_dir_all(&data).or_else(unless_gone(&data))?;
        note!("The near cache is gone, with what it kept");
        return Ok(());
    }
    for change in &files {
        replace(&change.file, &change.after, change.mode)?;
    }
    if starts && let Err(failure) = start(&place, &files) {
        // As before: Nix would ask a cache that does not answer.
        for change in &files {
            match change.file.exists {
                true => fs::write(&change.file.path, &change.file.text).or_else(unless_gone(&change.file.path))?,
                false => fs::remove_file(&change.file.path).or_else(unless_gone(&change.file.path))?,
            }
        }
        return Err(failure);
    }
    finish(&mut conf)?;
    note!("Nix asks the near cache");
    Ok(())
}

fn unless_gone(path: &Path) -> impl FnOnce(std::io::Error) -> Result<(), Failure> {
    move |error| match error.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => Err(Failure::of_file(&path.display().to_string(), &error)),
    }
}

/// Writes `nix.conf`; a file that has nothing but what was written by us goes.
fn finish(conf: &mut Change) -> Result<(), Failure> {
    if !conf.is_one() {
        return Ok(());
    }
    match conf.after.is_empty() {
        true => fs::remove_file(&conf.file.path).or_else(unless_gone(&conf.file.path)),
        false => Ok(replace(&conf.file, &conf.after, conf.mode)?),
    }
}

/// Starts the socket, and waits until the near cache answers.
fn start(place: &Place, files: &[Change]) -> Result<(), Failure> {
    place.systemctl(&["daemon-reload"])?;
    // One that runs reads its settings.
    place.systemctl(&["try-restart", "narval-near.service"])?;
    place.systemctl(&["enable", "--now", "narval-near.socket"])?;
    let socket = files.iter().find_map(|change| listens(&change.after));
    let address = socket.ok_or_else(|| Failure::runtime("the socket has no address"))?;
    let url = Url::parse(&format!("http://{address}")).map_err(Failure::runtime)?;
    let client = std::sync::Arc::new(Client::new(ClientOptions::default()));
    let journal = if place.is_machine { "journalctl -u narval-near" } else { "journalctl --user -u narval-near" };
    let failed = |why: String| Failure::runtime(format!("the near cache does not answer: {why}; see {journal}"));
    let info = url.child("nix-cache-info").map_err(Failure::runtime)?;
    narval_cache::read_small(&client, &info, CACHE_INFO_LEN_MAX).map(drop).map_err(|error| failed(error.to_string()))
}

/// The address in a socket unit.
fn listens(unit: &str) -> Option<SocketAddr> {
    unit.lines().find_map(|line| line.strip_prefix("ListenStream=")?.parse().ok())
}

type Plan = (Vec<Change>, Change, Vec<String>);

fn change(file: Settled, after: String) -> Change {
    Change { file, after, mode: 0o644, show: str::to_owned }
}

fn made_here(path: &Path) -> Result<Settled, Failure> {
    let file = Settled::read(path)?;
    if file.exists && !file.text.starts_with(MADE_BY) {
        let path = path.display();
        return Err(Failure::usage(format!("'{path}' was not made by 'narval use --near': move it out of the way")));
    }
    Ok(file)
}

fn plan_remove(place: &Place) -> Result<Plan, Failure> {
    let conf = Settled::read(&place.file(&place.conf))?;
    let after = NearBlock::take_from(&conf.text).map_err(|error| in_file(&conf, error))?;
    let mut files = Vec::new();
    for path in [place.file(&place.config), place.unit("socket"), place.unit("service")] {
        let file = made_here(&path)?;
        if file.exists {
            files.push(change(file, String::new()));
        }
    }
    Ok((files, change(conf, after), Vec::new()))
}

fn plan(args: &NearArgs, place: &Place) -> Result<Plan, Failure> {
    let conf = Settled::read(&place.file(&place.conf))?;
    let in_conf = |error| in_file(&conf, error);
    let before = NearBlock::take_from(&conf.text).map_err(in_conf)?;
    let settings = match place.is_machine {
        true => SubstituterSettings::of_text(&conf.path, &before),
        false => SubstituterSettings::of_process_with(&conf.path, &before),
    };
    let mut notes = Vec::new();
    let socket = made_here(&place.unit("socket"))?;
    let address = match listens(&socket.text) {
        Some(address) => address,
        None => free_address()?,
    };
    let behind = Behind::of(&settings, place, &mut notes)?;
    if behind.upstreams.is_empty() {
        return Err(Failure::usage(
            "Nix asks no cache that could be behind a near one: add one with 'narval use URL' first",
        ));
    }
    let caches = std::iter::once(format!("http://{address}")).chain(behind.beside.clone()).collect();
    let after = NearBlock { caches }.put_into(&before).map_err(in_conf)?;
    let size = args.size.map_or_else(|| size_for(&place.file(&place.data)), Ok)?;
    notes.push(format!("it keeps {} at most, in {}", human_bytes(size), place.data.display()));
    if !place.is_machine {
        notes.push("it runs while you are logged in; 'loginctl enable-linger' has it run always".to_owned());
    }
    let config = made_here(&place.file(&place.config))?;
    let service = made_here(&place.unit("service"))?;
    let files = vec![
        change(config, behind.config(args, place, size)?),
        change(socket, socket_unit(address)),
        change(service, service_unit(place, behind.credentials())?),
    ];
    Ok((files, change(conf, after), notes))
}

/// An address at which nobody listens.
fn free_address() -> Result<SocketAddr, Failure> {
    let mut ports = PORT..PORT + PORTS;
    let free = ports.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?.local_addr().ok());
    free.ok_or_else(|| Failure::runtime(format!("no port from {PORT} to {} of 127.0.0.1 is free", PORT + PORTS - 1)))
}

/// The size without --size.
fn size_for(data: &Path) -> Result<u64, Failure> {
    let there = data.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let disk =
        rustix::fs::statvfs(there).map_err(|error| Failure::of_file(&there.display().to_string(), &error.into()))?;
    Ok(SIZE.min(disk.f_blocks.saturating_mul(disk.f_frsize) / DISK_PART))
}

/// What is behind a near cache.
struct Behind {
    upstreams: Vec<Upstream>,
    /// Caches that Nix goes on asking itself.
    beside: Vec<String>,
    keys: Vec<PublicKey>,
    netrc: PathBuf,
}

struct Upstream {
    url: String,
    priority: Option<i64>,
    has_login: bool,
}

impl Behind {
    fn of(settings: &SubstituterSettings, place: &Place, notes: &mut Vec<String>) -> Result<Self, Failure> {
        let default = settings.substituters.is_none().then(|| CACHE_NIXOS_ORG.to_owned());
        let key = settings.trusted_public_keys.is_none().then(|| CACHE_NIXOS_ORG_KEY.to_owned());
        let keys = key.iter().chain(settings.public_keys());
        let wrong = |key: &String, error| Failure::usage(format!("trusted public key '{key}': {error}"));
        let keys: Vec<PublicKey> =
            keys.map(|key| key.parse().map_err(|error| wrong(key, error))).collect::<Result<_, _>>()?;
        let netrc = settings.netrc_file.clone().unwrap_or_else(|| system_nix_folder().join("netrc"));
        let logins = Netrc::load(None, Some(&netrc)).unwrap_or_default();
        let (mut upstreams, mut beside): (Vec<Upstream>, Vec<String>) = Default::default();
        for cache in default.iter().chain(settings.caches()) {
            match Upstream::of(cache, &logins) {
                Ok(upstream) if upstream.has_login && !place.is_machine => {
                    beside.push(cache.clone());
                    notes.push(format!(
                        "{cache} needs a login: Nix goes on asking it itself, because other users of this machine can read the near cache"
                    ));
                }
                Ok(upstream) if upstreams.iter().any(|other| other.url == upstream.url) => {}
                Ok(upstream) => upstreams.push(upstream),
                Err(why) => {
                    beside.push(cache.clone());
                    notes.push(format!("{cache} {why}: Nix goes on asking it itself"));
                }
            }
        }
        Ok(Self { upstreams, beside, keys, netrc })
    }

    /// The file with logins, if one is needed.
    fn credentials(&self) -> Option<&Path> {
        self.upstreams.iter().any(|upstream| upstream.has_login).then_some(&self.netrc)
    }

    /// The configuration of `narval serve`.
    fn config(&self, args: &NearArgs, place: &Place, size: u64) -> Result<String, Failure> {
        let store = StoreConfig::from_environment(&Environment::of_process()).map_err(Failure::usage)?.store_dir;
        if store != StoreDir::default() {
            return Err(Failure::usage(format!(
                "a near cache is for the store {}, and yours is {store}",
                StoreDir::default()
            )));
        }
        let keys = self.keys.iter().map(|key| quoted(&key.to_string())).collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "{MADE_HERE}# All keys are in docs/configuration.md. What is changed here is lost when 'narval use --near' is run again.\n\
             data = {}\nupstream-size = {size}\n",
            quoted(&place.data.display().to_string()),
        );
        if !args.neighbours_on.is_empty() {
            let on = args.neighbours_on.iter().map(|network| quoted(network)).collect::<Vec<_>>().join(", ");
            text.push_str(&format!("neighbours = true\nneighbours-on = [{on}]\n"));
        }
        if let Some(power) = &args.neighbours_only_on {
            text.push_str(&format!("neighbours-only-on = {}\n", quoted(power)));
        }
        for Upstream { url, priority, has_login } in &self.upstreams {
            text.push_str(&format!("\n[[upstream]]\nurl = {}\nkeys = [{keys}]\n", quoted(url)));
            if let Some(priority) = priority {
                text.push_str(&format!("priority = {priority}\n"));
            }
            if *has_login {
                // A file of root, which systemd shows to the service.
                text.push_str(&format!("netrc-file = \"/run/credentials/{UNIT}.service/netrc\"\n"));
            }
        }
        Ok(text)
    }
}

impl Upstream {
    /// A cache of `nix.conf`.
    ///
    /// # Errors
    /// Why a near cache cannot ask it.
    fn of(cache: &str, logins: &Netrc) -> Result<Self, &'static str> {
        let url = Url::parse(cache).map_err(|_| "is not a binary cache that Narval can ask")?;
        if url.scheme() == Scheme::S3 {
            return Ok(Self { url: cache.to_owned(), priority: None, has_login: false });
        }
        let (address, query) = cache.split_once('?').unwrap_or((cache, ""));
        let mut priority = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("priority", number)) => priority = number.parse().ok().filter(|number| *number >= 0),
                Some(("want-mass-query", _)) => {}
                _ => return Err("has parameters that hold for Nix alone"),
            }
        }
        let has_login = url.userinfo().is_some() || logins.login(&url.origin().host).is_some();
        Ok(Self { url: address.trim_end_matches('/').to_owned(), priority, has_login })
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn socket_unit(address: SocketAddr) -> String {
    format!(
        "{MADE_HERE}[Unit]\nDescription=Socket of the near cache of Narval\nDocumentation=man:narval-use(1)\n\n[Socket]\nListenStream={address}\n\
         Backlog=4096\nNoDelay=yes\n\n[Install]\nWantedBy=sockets.target\n"
    )
}

fn service_unit(place: &Place, credentials: Option<&Path>) -> Result<String, Failure> {
    let command = [program()?, "serve".into(), "--config".into(), place.config.clone()];
    let command = command.iter().map(|word| word_of(word)).collect::<Result<Vec<_>, _>>()?.join(" ");
    let mut unit = format!(
        "{MADE_HERE}[Unit]\nDescription=Near cache of Narval, in front of binary caches for Nix\nDocumentation=man:narval-use(1)\n\n[Service]\n\
         Type=notify\nExecStart={command}\nExecReload=/bin/kill -HUP $MAINPID\nRestart=on-failure\nTimeoutStopSec=90\nUMask=0077\n\
         NoNewPrivileges=yes\n"
    );
    if place.is_machine {
        unit.push_str(&format!(
            "DynamicUser=yes\nUser={UNIT}\nCacheDirectory={UNIT}\nCacheDirectoryMode=0700\nLimitNOFILE=65536\n\
             CapabilityBoundingSet=\nLockPersonality=yes\nMemoryDenyWriteExecute=yes\nPrivateDevices=yes\n\
             ProtectClock=yes\nProtectControlGroups=yes\nProtectHome=yes\nProtectKernelLogs=yes\nProtectKernelModules=yes\n\
             ProtectKernelTunables=yes\nProtectSystem=strict\nRestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK\n\
             RestrictNamespaces=yes\nRestrictRealtime=yes\nRestrictSUIDSGID=yes\nSystemCallArchitectures=native\n"
        ));
        if let Some(netrc) = credentials {
            unit.push_str(&format!("LoadCredential=netrc:{}\n", word_of(netrc)?));
        }
    }
    Ok(unit)
}

/// This program, by the name under which a newer one takes its place.
fn program() -> Result<PathBuf, Failure> {
    let ours = std::env::current_exe().map_err(|error| Failure::runtime(format!("this program: {error}")))?;
    let is_ours = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == ours);
    let listed = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&listed).map(|folder| folder.join("narval")).find(is_ours);
    Ok(found.filter(|path| path.is_absolute()).unwrap_or(ours))
}

/// A word of `ExecStart=`.
fn word_of(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.contains(|c: char| c.is_control() || matches!(c, '"' | '\\' | '\'')));
    let text = text.ok_or_else(|| {
        Failure::usage(format!("'{}' has characters that a unit of systemd cannot contain", path.display()))
    })?;
    let text = text.replace('%', "%%").replace('$', "$$");
    Ok(if text.contains(' ') { format!("\"{text}\"") } else { text })
}
