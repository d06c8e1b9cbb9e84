//! A real PostgreSQL for tests: started with a folder of its own, on a socket in it and a free port, and ended when the last test
//! that uses it ends. It also ends if the test process is killed: a shell beside it waits for the end of a pipe that only that
//! process has.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::ports::free_port;

/// How long a server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a program until it ends, or until the pipe at its standard input is closed.
const GUARD: &str = r#"exec 3<&0
"$@" </dev/null 3<&- & server=$!
(cat <&3 >/dev/null; kill -INT "$server") & guard=$!
wait "$server"; status=$?
kill "$guard" 2>/dev/null
exit "$status""#;

/// A running server.
pub struct PostgresServer {
    pub port: u16,
    folder: tempfile::TempDir,
    programs: PathBuf,
    child: Mutex<Option<Child>>,
    databases: AtomicU32,
}

/// pgbouncer in front of a server, in transaction mode with few connections.
pub struct Pooler {
    port: u16,
    child: Child,
    _folder: tempfile::TempDir,
}

impl Pooler {
    /// Starts one; `None`, and a note, where pgbouncer is not installed.
    pub fn new(server: &PostgresServer) -> Option<Self> {
        let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/pgbouncer");
        let own = std::env::var_os("PGBOUNCER").map(PathBuf::from);
        let programs = [own, Some("/usr/sbin/pgbouncer".into()), Some(unpacked.join("usr/sbin/pgbouncer"))];
        let Some(program) = programs.into_iter().flatten().find(|program| program.is_file()) else {
            eprintln!("note: skipped: there is no pgbouncer here; 'tools/test packages' gets it");
            return None;
        };
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={} port={} user=narval\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 500\n\
             logfile = {}\n",
            server.folder.path().display(),
            server.port,
            folder.path().join("log").display()
        );
        fs::write(&config, text).unwrap();
        // It does not run as root, and must read and write there.
        if let Some((user, group)) = user() {
            chown(folder.path(), Some(user), Some(group)).unwrap();
            chown(&config, Some(user), Some(group)).unwrap();
        }
        let mut command = server.guarded("sh");
        let libraries = unpacked.join("usr/lib/x86_64-linux-gnu");
        let own = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        command.args(["-c", "exec \"$0\" \"$@\""]).arg(program).arg("-q").arg(config);
        command.env("LD_LIBRARY_PATH", format!("{}:{own}", libraries.display()));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let said = || fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "pgbouncer does not start: {}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(Self { port, child, _folder: folder })
    }

    /// The address of a database by way of the pooler.
    pub fn through(&self, address: &str) -> String {
        let (server, rest) = address.split_once("/d").unwrap();
        let (host, _) = server.rsplit_once(':').unwrap();
        format!("{host}:{}/d{rest}", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // The guard ends it, and then itself.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The server of this process, as long as somebody uses it.
static SHARED: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());

impl PostgresServer {
    /// The server that tests of this process share; `None`, and a note, where PostgreSQL is not installed.
    pub fn shared() -> Option<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::new()?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    /// A server of one's own, to be stopped and started.
    pub fn new() -> Option<Self> {
        let Some(programs) = programs() else {
            eprintln!("note: skipped: there is no PostgreSQL here; the package 'postgresql' has it");
            return None;
        };
        let server = Self::in_folder(programs);
        let made = server
            .command("initdb")
            .args(["-A", "trust", "-U", "narval", "--no-sync", "-E", "UTF8", "--locale=C", "-D"])
            .arg(server.folder.path().join("data"))
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        server.start();
        Some(server)
    }

    /// One that is not running, with a folder that is empty.
    fn in_folder(programs: PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if let Some((user, group)) = user() {
            chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        Self { port: free_port(), folder, programs, child: Mutex::new(None), databases: AtomicU32::new(0) }
    }

    /// A program of PostgreSQL, as a user that is not root: the server refuses that one.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        if let Some((user, group)) = user() {
            command.uid(user).gid(group);
        }
        command
    }

    /// As [`PostgresServer::command`], for a program that ends when this process does.
    fn guarded(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.current_dir(self.folder.path()).stdin(Stdio::piped());
        if let Some((user, group)) = user() {
            command.uid(user).gid(group);
        }
        let program = Some(self.programs.join(program)).filter(|file| file.is_file()).unwrap_or_else(|| program.into());
        command.args(["-c", GUARD, "guard"]).arg(program);
        command
    }

    /// Starts the server, and waits until it answers.
    pub fn start(&self) {
        let folder = self.folder.path();
        let log = File::options().append(true).create(true).open(folder.join("log")).unwrap();
        let mut command = self.guarded("postgres");
        command.arg("-D").arg(folder.join("data")).arg("-k").arg(folder).arg("-h").arg("127.0.0.1");
        command.args(["-p", &self.port.to_string(), "-F", "-c", "max_connections=200", "-c", "shared_buffers=32MB"]);
        let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let until = Instant::now() + PATIENCE;
        while self.sql("postgres", "select 1").is_err() {
            let ended = child.try_wait().unwrap();
            let said = || fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < until, "postgres does not start: {ended:?} {}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
        *self.child.lock().unwrap() = Some(child);
    }

    /// Stops the server: its connections are closed.
    pub fn stop(&self) {
        let Some(mut child) = self.child.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let server = self.server();
        drop(child.stdin.take());
        let until = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                server.map(|server| kill_process(server, Signal::KILL));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server at once: what it has not written is lost.
    pub fn crash(&self) {
        kill_process(self.server().unwrap(), Signal::QUIT).unwrap();
        self.stop();
    }

    /// The server's process.
    fn server(&self) -> Option<Pid> {
        let pid = fs::read_to_string(self.folder.path().join("data/postmaster.pid")).ok()?;
        Pid::from_raw(pid.lines().next()?.trim().parse().ok()?)
    }

    /// Stops all processes of the server for some time: connections stay, and nothing answers.
    pub fn freeze(&self, frozen: bool) {
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        for pid in self.processes() {
            kill_process(pid, signal).unwrap();
        }
    }

    /// The server and its children.
    fn processes(&self) -> Vec<Pid> {
        let server = self.server().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", server.as_raw_nonzero());
        let children = fs::read_to_string(children).unwrap();
        let children = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().unwrap()));
        std::iter::once(server).chain(children).collect()
    }

    /// Has the server offer TLS with this certificate and key from its next start on, and ask for a password.
    pub fn require_tls(&self, certificate: &Path, key: &Path, password: &str) {
        let data = self.folder.path().join("data");
        self.sql("postgres", &format!("alter user narval password '{password}'")).unwrap();
        for (from, to) in [(certificate, "server.crt"), (key, "server.key")] {
            let to = data.join(to);
            fs::write(&to, fs::read(from).unwrap()).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
            if let Some((user, group)) = user() {
                chown(&to, Some(user), Some(group)).unwrap();
            }
        }
        let config = data.join("postgresql.conf");
        fs::write(&config, fs::read_to_string(&config).unwrap() + "ssl = on\n").unwrap();
        fs::write(data.join("pg_hba.conf"), "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")
            .unwrap();
    }

    /// Makes an empty database: its address.
    pub fn database(&self) -> String {
        let name = format!("d{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("create database {name}")).unwrap();
        self.url(&name)
    }

    /// The address of a database.
    pub fn url(&self, name: &str) -> String {
        format!("postgres://narval@127.0.0.1:{}/{name}?sslmode=disable", self.port)
    }

    /// What `psql` says to a statement.
    pub fn sql(&self, database: &str, statement: &str) -> Result<String, String> {
        let mut psql = self.command("psql");
        psql.arg("-h").arg(self.folder.path()).args(["-p", &self.port.to_string(), "-U", "narval", "-d", database]);
        let said = psql.args(["-XAtqc", statement]).output().unwrap();
        match said.status.success() {
            true => Ok(String::from_utf8(said.stdout).unwrap().trim_end().to_owned()),
            false => Err(String::from_utf8_lossy(&said.stderr).into_owned()),
        }
    }
}

/// Failovers.
impl PostgresServer {
    /// A standby of this server, which follows it without being waited for.
    pub fn standby(&self) -> Self {
        let standby = Self::in_folder(self.programs.clone());
        let mut copy = standby.command("pg_basebackup");
        copy.arg("-h").arg(self.folder.path()).args(["-p", &self.port.to_string(), "-U", "narval"]);
        copy.args(["--checkpoint=fast", "--no-sync", "-R", "-D"]).arg(standby.folder.path().join("data"));
        let made = copy.output().unwrap();
        assert!(made.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&made.stderr));
        standby.start();
        standby
    }

    /// Waits until a standby has everything that is committed here.
    pub fn wait_for(&self, standby: &Self) {
        let written = self.sql("postgres", "select pg_current_wal_lsn()").unwrap();
        let is_there = format!("select pg_last_wal_replay_lsn() >= '{written}'::pg_lsn");
        let until = Instant::now() + PATIENCE;
        while standby.sql("postgres", &is_there).unwrap() != "t" {
            assert!(Instant::now() < until, "the standby does not follow");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// This standby receives nothing any more.
    pub fn cut_off(&self) {
        self.sql("postgres", "alter system set primary_conninfo = ''").unwrap();
        self.sql("postgres", "select pg_reload_conf()").unwrap();
        let until = Instant::now() + PATIENCE;
        while self.sql("postgres", "select count(*) from pg_stat_wal_receiver").unwrap() != "0" {
            assert!(Instant::now() < until, "the standby still receives");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// This standby becomes the primary.
    pub fn promote(&self) {
        assert_eq!(self.sql("postgres", "select pg_promote()").unwrap(), "t");
    }
}

/// What servers have asked of a database.
#[derive(Debug, Default)]
pub struct Asked {
    /// The statements of each transaction with several.
    pub transactions: Vec<Vec<String>>,
    /// Single statements.
    pub statements: Vec<String>,
}

impl PostgresServer {
    /// From now on, all statements are logged.
    pub fn log_statements(&self) {
        for set in ["log_statement = 'all'", "log_line_prefix = '%p '"] {
            self.sql("postgres", &format!("alter system set {set}")).unwrap();
        }
        self.sql("postgres", "select pg_reload_conf()").unwrap();
        let until = Instant::now() + PATIENCE;
        while self.sql("postgres", "show log_statement").unwrap() != "all" {
            assert!(Instant::now() < until, "postgres does not log statements");
        }
    }

    /// The length of the log.
    pub fn log_len(&self) -> u64 {
        fs::metadata(self.folder.path().join("log")).unwrap().len()
    }

    /// What was asked since the log had this length, but for what servers ask by themselves: about changes by others, and when they note uses
    /// and the audit log.
    pub fn asked_since(&self, from: u64) -> Asked {
        let log = fs::read(self.folder.path().join("log")).unwrap();
        let log = String::from_utf8_lossy(&log[usize::try_from(from).unwrap()..]).into_owned();
        let (mut asked, mut open) = (Asked::default(), std::collections::HashMap::new());
        for line in log.lines() {
            let Some((process, rest)) = line.split_once(" LOG:  ") else { continue };
            let text =
                rest.strip_prefix("statement: ").or_else(|| Some(rest.split_once("execute ")?.1.split_once(": ")?.1));
            let Some(text) = text.filter(|text| !text.starts_with("SET ")) else { continue };
            if text.starts_with("begin") {
                open.insert(process.to_owned(), Vec::new());
            } else if text == "commit" || text == "rollback" {
                asked.transactions.extend(open.remove(process));
            } else if let Some(statements) = open.get_mut(process) {
                statements.push(text.to_owned());
            } else {
                asked.statements.push(text.to_owned());
            }
        }
        let by_itself = [
            "narval.changes",
            "narval.audit",
            "set last_used",
            "set used = u.time",
            "p.kind = 'file' and p.name = u.name",
            "from narval.pending where id >",
        ];
        let is_own = |text: &String| by_itself.iter().any(|known| text.contains(known));
        asked.statements.retain(|text| !is_own(text));
        asked.transactions.retain(|all| !all.is_empty() && !all.iter().all(is_own));
        asked
    }

    /// What `docs/scale-out.md` backs up of a database.
    pub fn dump(&self, database: &str) -> Vec<u8> {
        let mut dump = self.command("pg_dump");
        dump.arg("-h").arg(self.folder.path()).args(["-p", &self.port.to_string(), "-U", "narval", "-d", database]);
        let said = dump.args(["--schema=narval", "--exclude-table-data=narval.changes"]).output().unwrap();
        assert!(said.status.success(), "pg_dump: {}", String::from_utf8_lossy(&said.stderr));
        said.stdout
    }

    /// Restores a dump into an empty database.
    pub fn restore(&self, database: &str, dump: &[u8]) {
        use std::io::Write;

        let mut psql = self.command("psql");
        psql.arg("-h").arg(self.folder.path()).args(["-p", &self.port.to_string(), "-U", "narval", "-d", database]);
        psql.args(["-Xq", "-v", "ON_ERROR_STOP=1", "--single-transaction"]).stdin(Stdio::piped());
        let mut child = psql.stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(dump).unwrap();
        assert!(child.wait().unwrap().success(), "psql does not restore the dump");
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.child.lock().is_ok_and(|child| child.is_some()) {
            self.stop();
        }
    }
}

/// The folder with PostgreSQL's programs: Debian keeps them out of the path.
fn programs() -> Option<PathBuf> {
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<PathBuf> = debian.map(|entry| entry.path().join("bin")).collect();
    debian.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    debian.into_iter().rev().chain(std::env::split_paths(&path)).find(|folder| has_programs(folder))
}

fn has_programs(folder: &Path) -> bool {
    ["initdb", "postgres", "psql"].iter().all(|program| folder.join(program).is_file())
}

/// The user and the group to be in place of root, if this is root: Debian's, else nobody.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of = |name: &str| {
        let mut fields = users.lines().map(|line| line.split(':')).find(|line| line.clone().next() == Some(name))?;
        Some((fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    of("postgres").or_else(|| of("nobody"))
}
