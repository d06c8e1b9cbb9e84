//! The cost of a server's processes: processor time and memory, from `/proc`; and the processors
//! they are pinned to.

use std::fs;
use std::path::PathBuf;

use rustix::thread::{CpuSet, Pid, sched_setaffinity};

use crate::{Context, Result, failure};

/// This process and all its descendants at this moment.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // a process that has just ended has no stat
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // "pid (name) state ppid"; the name may contain any character
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if let Some(parent) = parent.and_then(|parent| parent.parse::<u32>().ok()) {
            parents.push((parent, child));
        }
    }
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(of, _)| *of == parent).map(|(_, child)| *child));
        next += 1;
    }
    found
}

fn tasks(pid: u32) -> impl Iterator<Item = PathBuf> {
    let folder = fs::read_dir(format!("/proc/{pid}/task"));
    folder.into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Processor time that a server's processes have used so far, from both of the kernel's counters.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime {
    /// `schedstat` of the live threads: exact, but without the threads that have ended.
    exact_ns: u64,
    /// `stat` of the processes: complete, with a resolution of 10 ms.
    complete_ns: u64,
}

impl CpuTime {
    /// The time of this process and all its descendants.
    pub fn of(pid: u32) -> CpuTime {
        let first = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let exact = |task: PathBuf| {
            let text = first(task.join("schedstat"));
            text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
        };
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        let complete = |pid: u32| {
            let text = first(PathBuf::from(format!("/proc/{pid}/stat")));
            // after "pid (name)": state is the first field, utime and stime are the 12th and 13th
            let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
            fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * tick_ns
        };
        let processes = tree(pid);
        CpuTime {
            exact_ns: processes.iter().copied().flat_map(tasks).map(exact).sum(),
            complete_ns: processes.iter().copied().map(complete).sum(),
        }
    }

    /// Nanoseconds since `earlier`: from the exact counter, or from the complete one if threads have ended meanwhile.
    pub fn since(self, earlier: CpuTime) -> u64 {
        let exact = self.exact_ns.saturating_sub(earlier.exact_ns);
        let complete = self.complete_ns.saturating_sub(earlier.complete_ns);
        // the counters differ by the resolution of the complete one; ended threads make a larger difference
        if complete > exact + exact / 4 + 2 * TICK_NS { complete } else { exact }
    }
}

const TICK_NS: u64 = 10_000_000;

/// Resident bytes of the processes now, and the sum of their peaks.
pub fn resident_bytes(pid: u32) -> (u64, u64) {
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    let statuses =
        tree(pid).into_iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default());
    statuses.fold((0, 0), |(now, peak), s| (now + field(&s, "VmRSS:"), peak + field(&s, "VmHWM:")))
}

/// Pins every thread of the processes to these processors.
///
/// # Errors
/// If there is no such processor, or the process belongs to another user.
pub fn pin(pid: u32, processors: &[usize]) -> Result<()> {
    for task in tree(pid).into_iter().flat_map(tasks) {
        let id = task.file_name().and_then(|name| name.to_str()?.parse::<i32>().ok()).and_then(Pid::from_raw);
        if let Err(error) = sched_setaffinity(id, &set(processors))
            && error != rustix::io::Errno::SRCH
        {
            return Err(failure!("cannot put process {pid} on processors {processors:?}: {error}"));
        }
    }
    Ok(())
}

/// Pins this thread, and threads and processes that it starts later, to these processors.
///
/// # Errors
/// If there is no such processor.
pub fn pin_self(processors: &[usize]) -> Result<()> {
    sched_setaffinity(None, &set(processors)).context(|| format!("cannot run on processors {processors:?}"))
}

fn set(processors: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for &processor in processors {
        set.set(processor);
    }
    set
}

/// The process that listens on a TCP port of this machine, found by its socket's inode.
pub fn listening_on(port: u16) -> Option<u32> {
    let inode_of = |line: &str| {
        let fields = line.split_whitespace().collect::<Vec<_>>();
        let (local, state, inode) = (*fields.get(1)?, *fields.get(3)?, *fields.get(9)?);
        let right = state == "0A" && u16::from_str_radix(local.rsplit(':').next()?, 16).ok()? == port;
        right.then(|| format!("socket:[{inode}]"))
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let sockets = tables.iter().flat_map(|table| table.lines().filter_map(inode_of)).collect::<Vec<_>>();
    let holders = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let mut descriptors = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        let holds = descriptors.any(|fd| {
            let link = fs::read_link(fd.path()).unwrap_or_default();
            sockets.iter().any(|socket| link.as_os_str() == socket.as_str())
        });
        holds.then_some(pid)
    });
    // the oldest process: nginx's master, for example, is the parent of its workers
    holders.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_run_is_resident_and_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let pid = std::process::id();
        let before = CpuTime::of(pid);
        let started = std::time::Instant::now();
        while started.elapsed() < std::time::Duration::from_millis(20) {}
        assert!(CpuTime::of(pid).since(before) > 0);
        let (now, peak) = resident_bytes(pid);
        assert!(now > 0 && peak >= now);
        assert_eq!(listening_on(listener.local_addr().unwrap().port()), Some(pid));
    }

    #[test]
    fn a_child_belongs_to_the_tree() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(tree(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
