//! A machine that follows a release: each new revision is installed, switched to and checked, and what worked before is gone back to if it does not.
//!
//! ```text
//!             a newer revision                switch and check succeed, and the cache can be reached
//!   good ──▶ fetched, valid, durable ──▶ trying ──▶ good
//!                                          │ a command fails, the network is gone, the program is killed or stopped
//!                                          └──▶ the old link, the old switch command ──▶ good, as before
//! ```
//!
//! The state (`state.rs`) says which of them it is. It is written before the profile's link is moved, and every move is one rename: at any moment, the
//! link leads to a path that is complete. Whoever starts and finds an attempt under way goes back, because nobody knows how far it came.

mod command;
mod links;
mod state;
mod window;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use narval_client::Client;
use narval_nix::StorePath;
use narval_nix::release::{ReleaseSystem, ReleasedPath, Selector};
use narval_store::lock_file;

use self::command::{Ended, Run};
use self::links::Links;
pub use self::state::{Failed, Running};
use self::state::{FollowState, Interrupted};
pub use self::window::Window;
use crate::install;
use crate::install::plan;
use crate::options::Options;
use crate::releases::FoundRelease;
use narval_cache::Wanted;
use narval_client::clock::now;
use narval_push::watch::Stop;
use narval_transfer::{Destination, Error};

/// How long another process with the same profile is waited for: one that is stopping takes a moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// How often a release may be interrupted, until it is not tried any more: it may be what ends this program, or the machine.
const INTERRUPTIONS_MAX: u32 = 3;
/// How often the switch command of the good generation is run when it fails.
const BACK_ATTEMPTS: u32 = 3;
/// Time between two runs of a command that may fail for a while.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How a machine follows.
pub struct FollowOptions {
    /// The release.
    pub selector: Selector,
    /// The system whose paths are used.
    pub system: ReleaseSystem,
    /// The profile.
    pub profile: PathBuf,
    /// The command that switches to a path, run in it.
    pub switch: Option<String>,
    /// How long it may take.
    pub switch_timeout: Duration,
    /// The command that says whether the machine works, run in the path until it succeeds.
    pub check: Option<String>,
    /// How long it may fail, or run.
    pub check_timeout: Duration,
    /// How long the cache may be out of reach after the switch.
    pub network_timeout: Duration,
    /// Whether a release that failed is tried again, once.
    pub retry: bool,
}

/// The result of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Round {
    /// The newest release runs.
    Unchanged,
    /// The newest release is not tried, because it failed before.
    Refused(Failed),
    /// The path of the new release runs already.
    Same(Running),
    /// The new release runs.
    Switched {
        /// What ran before.
        from: Option<Running>,
        /// What runs now.
        to: Running,
    },
    /// The new release failed, and what ran before runs again.
    WentBack(Failed),
    /// A round that is only shown would install this many paths, with so many bytes to download, and switch.
    InstallItem {
        /// The revision.
        revision: u64,
        /// The path.
        path: StorePath,
        /// How many paths are missing.
        missing: usize,
        /// In bytes.
        download: u64,
    },
}

/// Finds the newest release.
pub type Find<'a> = dyn Fn(Patience) -> Result<FoundRelease, Error> + 'a;

/// How long an answer of the caches is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// As long as that of any request: what fails is tried again.
    Usual,
    /// One attempt: [`FollowOptions::network_timeout`] is over before a server that is away would have been waited for.
    Once,
}

/// Is told what is tried, and what runs.
type OnTrying<'a> = dyn Fn(&Running, Option<&Running>) + 'a;

/// One machine. No other process follows with its profile while this lives.
pub struct Follower<'a> {
    options: FollowOptions,
    destination: &'a Destination,
    links: Links,
    state: FollowState,
    state_file: PathBuf,
    /// Whether the state could not be written: the disk may be full.
    is_unsaved: bool,
    stop: Stop,
    is_switching: Arc<AtomicBool>,
    on_trying: Option<Box<OnTrying<'a>>>,
    _lock: std::fs::File,
}

/// Why an attempt ends without success.
enum Trouble {
    /// The release does not work.
    Failed(String),
    /// The program is stopped.
    Stopped,
    /// It has nothing to do with the release, such as a full disk.
    Other(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// The folder with the state of a profile that follows: `system.follow`. It is created.
///
/// # Errors
/// If it cannot be created, or something else is at the profile's place.
pub fn state_folder(profile: &Path, lock_timeout: Duration) -> Result<PathBuf, Error> {
    Links::at(profile, lock_timeout)?.state_folder()
}

impl<'a> Follower<'a> {
    /// Opens or creates the state of the profile.
    ///
    /// # Errors
    /// If another process follows with this profile, or the profile or its state cannot be used.
    pub fn open(options: FollowOptions, destination: &'a Destination, stop: &Stop) -> Result<Self, Error> {
        let links = Links::at(&options.profile, destination.config().lock_timeout)?;
        let folder = links.state_folder()?;
        let lock = lock_file(&folder.join("lock"), LOCK_PATIENCE).map_err(|error| match Error::from(error) {
            Error::Locked { .. } => Error::NotAllowed(format!(
                "another 'narval follow' has the profile '{}'; stop it first, or give this one its own --profile",
                options.profile.display()
            )),
            error => error,
        })?;
        let state_file = folder.join("state.json");
        let mut state = state::read(&state_file)?;
        let release = options.selector.to_string();
        if state.release != release {
            // What runs, and what was under way, is as it is.
            state = FollowState { release, good: state.good, trying: state.trying, ..FollowState::default() };
        }
        let (stop, is_switching) = (stop.clone(), Arc::default());
        let on_trying = None;
        let is_unsaved = false;
        Ok(Self {
            options,
            destination,
            links,
            state,
            state_file,
            is_unsaved,
            stop,
            is_switching,
            on_trying,
            _lock: lock,
        })
    }

    /// Is told what is tried, and what runs, before each switch.
    pub fn on_trying(&mut self, observer: impl Fn(&Running, Option<&Running>) + 'a) {
        self.on_trying = Some(Box::new(observer));
    }

    /// What runs.
    pub const fn running(&self) -> Option<&Running> {
        self.state.good.as_ref()
    }

    /// The last release that failed, if none was good since.
    pub const fn failed(&self) -> Option<&Failed> {
        self.state.failed.as_ref()
    }

    /// Whether a switch is under way, which has an end: a program that is told to stop should wait for it.
    pub fn is_switching(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_switching)
    }

    /// Goes back if the process or the machine ended in the middle of an attempt. Returns whether it did.
    ///
    /// # Errors
    /// If it cannot go back. Calling it again continues.
    pub fn recover(&mut self) -> Result<bool, Error> {
        if self.is_unsaved {
            self.save()?;
        }
        let Some(trying) = self.state.trying.clone() else {
            self.adopt()?;
            return Ok(false);
        };
        let revision = trying.revision.unwrap_or(0);
        tracing::warn!("switching to revision {revision} was interrupted; going back");
        self.go_back(&trying, &Trouble::Stopped)?;
        Ok(true)
    }

    /// Shows what [`Follower::round`] would do.
    ///
    /// # Errors
    /// If the caches or the store cannot be asked.
    pub fn plan(&self, find: &Find<'_>, (install, client): (&Options, &Arc<Client>)) -> Result<Round, Error> {
        let found = find(Patience::Usual)?;
        let released = self.released(&found)?;
        match self.decide(&found, &released.path) {
            Some(round) => Ok(round),
            None => {
                let report = plan(self.destination, install, client, &[Wanted::Path(released.path.clone())])?;
                Ok(Round::InstallItem {
                    revision: found.release.revision,
                    path: released.path.clone(),
                    missing: report.planned.len(),
                    download: report.planned.iter().map(|one| one.file_size.unwrap_or(one.nar_size)).sum(),
                })
            }
        }
    }

    /// Asks for the newest release, and switches to it if it is new.
    ///
    /// # Errors
    /// If it could not be asked for or installed, and nothing has changed; or if it was interrupted, and what ran before runs again.
    pub fn round(&mut self, find: &Find<'_>, (options, client): (&Options, &Arc<Client>)) -> Result<Round, Error> {
        self.recover()?;
        let found = find(Patience::Usual)?;
        let released = self.released(&found)?.clone();
        if let Some(round) = self.decide(&found, &released.path) {
            if let Round::Same(running) = &round {
                self.accept(running.clone())?;
            }
            return Ok(round);
        }
        let revision = found.release.revision;
        tracing::info!("{} is revision {revision}: {}", self.options.selector, released.path);
        let wanted = [Wanted::Path(released.path.clone())];
        install(self.destination, options, client, &wanted, self.stop.progress())?;
        self.check_contents(&released, revision)?;
        if self.stop.is_stopped() {
            return Err(Error::Interrupted);
        }
        self.options.retry = false;
        let (generation, path) = (self.links.next()?, self.destination.store().real_path(&released.path));
        let trying = Running { generation, path, revision: Some(revision), since: now() };
        if let Some(good) = &self.state.good {
            self.links.keep(self.destination, &good.path)?;
        }
        let before = self.state.clone();
        self.state.trying = Some(trying.clone());
        if let Err(error) = self.save() {
            (self.state, self.is_unsaved) = (before, false);
            return Err(error);
        }
        if let Some(observer) = &self.on_trying {
            observer(&trying, self.state.good.as_ref());
        }
        match self.attempt(&trying, find) {
            Ok(()) => {
                let to = Running { since: now(), ..trying };
                if let Err(error) = self.accept(to.clone()) {
                    // What runs is good. If the program ends before that can be written, the next one goes back.
                    tracing::warn!("{error}; it is tried again in the next round");
                }
                Ok(Round::Switched { from: before.good, to })
            }
            Err(trouble) => {
                self.go_back(&trying, &trouble)?;
                match trouble {
                    Trouble::Failed(why) => Ok(Round::WentBack(Failed { revision, why, at: now() })),
                    Trouble::Stopped => Err(Error::Interrupted),
                    Trouble::Other(error) => Err(error),
                }
            }
        }
    }

    /// Takes the profile as it is, if somebody else has changed it.
    fn adopt(&mut self) -> Result<(), Error> {
        let current = self.links.current()?;
        let is_known = match (&current, &self.state.good) {
            (Some((number, path)), Some(good)) => (*number, path) == (good.generation, &good.path),
            (None, None) => true,
            _ => false,
        };
        if !is_known {
            if let Some(good) = &self.state.good {
                tracing::info!("generation {} is not the profile's current one any more", good.generation);
            }
            self.state.good =
                current.map(|(generation, path)| Running { generation, path, revision: None, since: now() });
            self.save()?;
        }
        Ok(())
    }

    /// What is to be done without an attempt. `None`: the release is to be tried.
    fn decide(&self, found: &FoundRelease, path: &StorePath) -> Option<Round> {
        let revision = found.release.revision;
        let is_decided = self.state.decided == Some(revision);
        if let Some(failed) = self.state.failed.as_ref().filter(|failed| is_decided && failed.revision == revision) {
            return (!self.options.retry).then(|| Round::Refused(failed.clone()));
        }
        let path = self.destination.store().real_path(path);
        match &self.state.good {
            _ if is_decided => Some(Round::Unchanged),
            Some(good) if good.path == path => Some(Round::Same(Running { revision: Some(revision), ..good.clone() })),
            _ => None,
        }
    }

    fn released<'f>(&self, found: &'f FoundRelease) -> Result<&'f ReleasedPath, Error> {
        found.release.main_path(&self.options.system).ok_or_else(|| {
            Error::Unresolved(format!("{} has no path for {}", found.release.selector(), self.options.system))
        })
    }

    /// The cache has signed what the path contains.
    fn check_contents(&self, released: &ReleasedPath, revision: u64) -> Result<(), Error> {
        let info = self.destination.store().path_info(&released.path)?;
        if info.is_some_and(|info| info.nar_hash == released.nar_hash) {
            return Ok(());
        }
        Err(Error::WrongPath(format!(
            "{} in {} has other contents than revision {revision} of {}",
            released.path,
            self.destination.name(),
            self.options.selector
        )))
    }

    fn attempt(&mut self, trying: &Running, find: &Find<'_>) -> Result<(), Trouble> {
        self.links.point_to(self.destination, trying.generation, &trying.path)?;
        if let Some(command) = &self.options.switch {
            self.is_switching.store(true, Ordering::Relaxed);
            match self.run(trying, command, self.options.switch_timeout, Some(&self.stop)) {
                Ended::Well => {}
                Ended::Stopped => return Err(Trouble::Stopped),
                Ended::Badly(why) => return Err(Trouble::Failed(format!("the switch command {why}"))),
            }
        }
        self.is_switching.store(true, Ordering::Relaxed);
        self.check(trying)?;
        self.wait_for_cache(find)
    }

    /// Runs the check command until it succeeds.
    fn check(&self, trying: &Running) -> Result<(), Trouble> {
        let Some(command) = &self.options.check else { return Ok(()) };
        let until = Instant::now() + self.options.check_timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.run(trying, command, left, Some(&self.stop)) {
                Ended::Well => return Ok(()),
                Ended::Stopped => return Err(Trouble::Stopped),
                Ended::Badly(why) if left.is_zero() || Instant::now() + AGAIN_AFTER >= until => {
                    return Err(Trouble::Failed(format!("the check command {why}")));
                }
                Ended::Badly(_) => self.stop.pause(AGAIN_AFTER),
            }
        }
    }

    /// A machine without network can only be mended by going back.
    fn wait_for_cache(&self, find: &Find<'_>) -> Result<(), Trouble> {
        let until = Instant::now() + self.options.network_timeout;
        loop {
            match find(Patience::Once) {
                Err(error) if error.is_network() => {
                    if Instant::now() >= until {
                        let limit = self.options.network_timeout.as_secs_f32();
                        return Err(Trouble::Failed(format!("the cache was out of reach for {limit} s: {error}")));
                    }
                    self.stop.pause(AGAIN_AFTER);
                }
                // It answers, whatever it says.
                _ if self.stop.is_stopped() => return Err(Trouble::Stopped),
                _ => return Ok(()),
            }
            if self.stop.is_stopped() {
                return Err(Trouble::Stopped);
            }
        }
    }

    fn run(&self, running: &Running, command: &str, timeout: Duration, stop: Option<&Stop>) -> Ended {
        let revision = running.revision.map(|revision| revision.to_string()).unwrap_or_default();
        let variables = [
            ("NARVAL_RELEASE", self.options.selector.to_string()),
            ("NARVAL_REVISION", revision),
            ("NARVAL_PATH", running.path.display().to_string()),
            ("NARVAL_PROFILE", self.options.profile.display().to_string()),
        ];
        let ended = Run { command, folder: &running.path, variables: &variables, timeout }.run(stop);
        // The signal that stops this program may have been for the command, too.
        if stop.is_some_and(Stop::is_stopped) && ended != Ended::Well { Ended::Stopped } else { ended }
    }

    /// From now on, this is what is gone back to.
    fn accept(&mut self, running: Running) -> Result<(), Error> {
        self.is_switching.store(false, Ordering::Relaxed);
        self.state.decided = running.revision;
        self.state.good = Some(running);
        (self.state.trying, self.state.failed, self.state.interrupted) = (None, None, None);
        self.save()
    }

    /// Makes the good generation run again. Until that is done, the state says that there is something to go back from.
    fn go_back(&mut self, trying: &Running, trouble: &Trouble) -> Result<(), Error> {
        self.is_switching.store(true, Ordering::Relaxed);
        if let Trouble::Failed(why) = trouble {
            tracing::error!("revision {} failed: {why}", trying.revision.unwrap_or(0));
        }
        let back = match self.state.good.clone() {
            Some(good) => {
                self.links.point_to(self.destination, good.generation, &good.path)?;
                self.links.remove(trying.generation, false)?;
                self.switch_back(&good)
            }
            None => {
                self.links.remove(trying.generation, true)?;
                tracing::warn!("the profile had no generation before: there is none again");
                Ok(())
            }
        };
        self.record(trying, trouble, back.err());
        self.is_switching.store(false, Ordering::Relaxed);
        self.save()
    }

    /// Runs the switch command of what was good. The error is why it failed.
    fn switch_back(&self, good: &Running) -> Result<(), String> {
        let Some(command) = &self.options.switch else { return Ok(()) };
        let mut failed = Ok(());
        for attempt in 0..BACK_ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(AGAIN_AFTER);
            }
            match self.run(good, command, self.options.switch_timeout, None) {
                Ended::Badly(why) => failed = Err(why),
                Ended::Well | Ended::Stopped => {
                    tracing::warn!("generation {} runs again", good.generation);
                    return Ok(());
                }
            }
        }
        failed
    }

    /// Remembers how an attempt has ended.
    fn record(&mut self, trying: &Running, trouble: &Trouble, back: Option<String>) {
        let revision = trying.revision.unwrap_or(0);
        let times =
            self.state.interrupted.as_ref().filter(|known| known.revision == revision).map_or(0, |known| known.times);
        let why = match trouble {
            Trouble::Failed(why) => Some(why.clone()),
            Trouble::Stopped if times + 1 >= INTERRUPTIONS_MAX => {
                Some(format!("it was interrupted {INTERRUPTIONS_MAX} times"))
            }
            Trouble::Stopped => {
                self.state.interrupted = Some(Interrupted { revision, times: times + 1 });
                None
            }
            Trouble::Other(_) => None,
        };
        if let Some(back) = &back {
            tracing::error!("the profile is at the generation before, but its switch command {back}");
        }
        let back = back.map(|back| format!("the switch command of the generation before {back}"));
        let is_decided = why.is_some();
        let whys: Vec<String> = why.into_iter().chain(back).collect();
        if !whys.is_empty() {
            self.state.failed = Some(Failed { revision, why: whys.join("; "), at: now() });
        }
        if is_decided {
            (self.state.decided, self.state.interrupted) = (Some(revision), None);
        }
        self.state.trying = None;
    }

    fn save(&mut self) -> Result<(), Error> {
        self.is_unsaved = true;
        state::write(&self.state_file, &self.state)?;
        self.is_unsaved = false;
        Ok(())
    }
}
