//! Shows programs in a namespace what the host adds to its store. An overlay remembers that a name did not exist (overlayfs does not expect its layers
//! to change); remounting it drops what it remembers (`reconfigure_super` of the kernel, since 2.6). A process beside the program does that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

/// Time between two remounts: a host that installs changes its store thousands of times a second.
const APART: Duration = Duration::from_millis(10);

/// Time after the last change until the overlay is remounted once more: a lookup that was under way at the first time may have remembered an absence
/// later.
const SETTLED: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What the process beside the program needs.
#[derive(Debug)]
pub struct Follow {
    /// The process that becomes the program.
    pub process: OwnedFd,
    /// Reports changes of the host's store.
    pub changes: OwnedFd,
}

impl Follow {
    /// Prepares it for this process, before it enters its namespace.
    ///
    /// # Errors
    /// The kernel has no pidfds (before 5.3), or all inotify instances of this user are in use.
    pub fn this_process(store_dir: &Path) -> io::Result<Self> {
        let process = pidfd_open(getpid(), PidfdFlags::empty())?;
        let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // A path that is unpacked in place gets its mode last, and loses its lock file after that.
        let flags = WatchFlags::CREATE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&changes, store_dir, flags)?;
        Ok(Self { process, changes })
    }
}

/// Remounts the overlay at `store_dir` in the namespace of `process` after changes, until that process ends. `entered` becomes readable when it is
/// in its namespace, and ends without a byte if it has no overlay.
///
/// # Errors
/// The namespace cannot be entered (before Linux 5.8), or the overlay cannot be remounted.
pub fn follow(process: impl AsFd, changes: impl AsFd, entered: impl AsFd, store_dir: &Path) -> io::Result<()> {
    if rustix::io::read(&entered, &mut [0_u8; 1])? == 0 {
        return Ok(());
    }
    // root makes no user namespace, and nobody can enter the one in which they are.
    setns(&process, CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
        .or_else(|_| setns(&process, CloneFlags::CLONE_NEWNS))?;
    let mut is_settled = true;
    loop {
        let mut handles = [PollFd::new(&changes, PollFlags::IN), PollFd::new(&process, PollFlags::IN)];
        match poll(&mut handles, (!is_settled).then_some(&SETTLED)) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        if !handles[1].revents().is_empty() {
            return Ok(());
        }
        is_settled = handles[0].revents().is_empty();
        let mut buffer = [0_u8; 4096];
        while rustix::io::read(&changes, &mut buffer).is_ok_and(|len| len > 0) {}
        let remount = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, store_dir, None::<&str>, remount, None::<&str>)?;
        sleep(APART);
    }
}
