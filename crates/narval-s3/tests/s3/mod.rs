//! Real object stores for tests, each started on a free port of this machine and ended when dropped: versitygw, and
//! SeaweedFS where it is installed (`tools/setup-s3`).

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

pub mod proxy;

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use narval_client::{Client, ClientOptions, Extra, HttpError, Method, Payload, Proxies, RetryPolicy, Upload, Url};
use narval_s3::BucketSigner;
use narval_s3::credentials::Environment;

use super::ports::free_port;

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(120);

pub const KEY: &str = "test-key";
pub const SECRET: &str = "test-secret-key";

/// A running object store with a folder of its own.
pub struct S3Server {
    pub name: &'static str,
    pub port: u16,
    child: Child,
    folder: tempfile::TempDir,
    command: Box<Start>,
}

/// The command that starts a server with this folder, port and log.
type Start = dyn Fn(&Path, u16, File) -> Command + Send + Sync;

/// The server of this process, as long as somebody uses it.
static SHARED: Mutex<Weak<S3Server>> = Mutex::new(Weak::new());

impl S3Server {
    /// The versitygw that tests of this process share; `None`, and a note, if it is not installed.
    pub fn shared() -> Option<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::versitygw()?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    /// The folder with the files of versitygw's objects.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// One of each kind that is installed. Says so where one is not.
    pub fn all() -> Vec<Self> {
        let servers: Vec<Self> = [Self::versitygw(), Self::seaweedfs()].into_iter().flatten().collect();
        if servers.is_empty() {
            eprintln!("note: skipped: there is no object store here; tools/setup-s3 installs versitygw");
        }
        servers
    }

    /// The one that starts fastest, or SeaweedFS if `NARVAL_TEST_S3` says so.
    pub fn chosen() -> Option<Self> {
        match std::env::var("NARVAL_TEST_S3").as_deref() {
            Ok("seaweedfs") => Self::seaweedfs(),
            _ => Self::versitygw(),
        }
    }

    /// The one that starts fastest; `None`, and a note, if it is not installed.
    pub fn versitygw() -> Option<Self> {
        let Some(program) = find("versitygw") else {
            eprintln!("note: skipped for versitygw: it is not installed; tools/setup-s3 does it");
            return None;
        };
        Some(Self::start("versitygw", move |folder, port, log| {
            let (root, side) = (folder.join("root"), folder.join("side"));
            fs::create_dir_all(&root).unwrap();
            fs::create_dir_all(&side).unwrap();
            let mut command = Command::new(&program);
            command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
            command.args(["--port", &format!("127.0.0.1:{port}"), "--keep-alive", "-q", "posix", "--sidecar"]);
            command.arg(side).arg(root).stdout(log.try_clone().unwrap()).stderr(log);
            command
        }))
    }

    /// SeaweedFS, where it is installed.
    pub fn seaweedfs() -> Option<Self> {
        let Some(program) = find("weed") else {
            eprintln!("note: skipped for SeaweedFS: it is not installed; 'tools/setup-s3 --seaweedfs' does it");
            return None;
        };
        Some(Self::start("seaweedfs", move |folder, port, log| {
            let users = folder.join("s3.json");
            let access = format!(r#"{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}"#);
            let user = format!(r#"{{"name":"t","credentials":[{access}],"actions":["Admin","Read","List","Write"]}}"#);
            fs::write(&users, format!(r#"{{"identities":[{user}]}}"#)).unwrap();
            let mut command = Command::new(&program);
            // Without these it listens to everybody, and reports to its makers.
            command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3"]);
            command.args(["-s3.ip.bind=127.0.0.1", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
            command.args([format!("-dir={}", folder.display()), format!("-s3.port={port}")]);
            for option in ["-master.port", "-volume.port", "-filer.port"] {
                command.arg(format!("{option}={}", free_port()));
            }
            command.arg(format!("-s3.config={}", users.display())).stdout(log.try_clone().unwrap()).stderr(log);
            command
        }))
    }

    fn start(name: &'static str, command: impl Fn(&Path, u16, File) -> Command + Send + Sync + 'static) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let log = File::create(folder.path().join("log")).unwrap();
        let child = command(folder.path(), port, log).stdin(Stdio::null()).spawn().unwrap();
        let mut server = Self { name, port, child, folder, command: Box::new(command) };
        server.wait();
        server
    }

    fn wait(&mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.answers() {
            let ended = self.child.try_wait().unwrap();
            let said = || fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let name = self.name;
            assert!(ended.is_none() && Instant::now() < until, "{name} does not start: {ended:?} {}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends the server; its objects stay.
    pub fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after [`S3Server::stop`].
    pub fn start_again(&mut self) {
        let log = File::options().append(true).open(self.folder.path().join("log")).unwrap();
        self.child = (self.command)(self.folder.path(), self.port, log).stdin(Stdio::null()).spawn().unwrap();
        self.wait();
    }

    /// Whether it can make a bucket.
    fn answers(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok() && self.try_bucket("probe-bucket")
    }

    fn try_bucket(&self, bucket: &str) -> bool {
        let url = Url::parse(&self.url(bucket)).unwrap();
        let upload = bare(Method::Put, &url, Extra::default(), b"");
        match client(&self.environment()).upload(&upload) {
            Ok(answer) => matches!(answer.head.status, 200..=299),
            // It is there already.
            Err(error) => matches!(error, HttpError::Bucket { status: 409, .. }),
        }
    }

    /// Makes a bucket: its address.
    pub fn bucket(&self, bucket: &str) -> String {
        assert!(self.try_bucket(bucket), "{}: cannot make the bucket {bucket}", self.name);
        self.url(bucket)
    }

    /// The address of a bucket.
    pub fn url(&self, bucket: &str) -> String {
        format!("s3://{bucket}?endpoint=127.0.0.1:{}&scheme=http", self.port)
    }

    /// Lets everybody read a bucket: Nix as Debian packages it does not sign.
    pub fn make_public(&self, bucket: &str) {
        let policy = format!(
            r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Principal":"*","Action":["s3:GetObject"],"Resource":["arn:aws:s3:::{bucket}/*"]}}]}}"#
        );
        let url = Url::parse(&self.url(bucket)).unwrap();
        let extra = Extra { query: &[("policy", "")], ..Extra::default() };
        let answer = client(&self.environment()).upload(&bare(Method::Put, &url, extra, policy.as_bytes())).unwrap();
        assert!(matches!(answer.head.status, 200..=299), "{}: {answer:?}", self.name);
    }

    /// The address of a bucket through a proxy.
    pub fn url_through(&self, bucket: &str, proxy: &proxy::Proxy) -> String {
        self.url(bucket).replace(&self.port.to_string(), &proxy.port.to_string())
    }

    /// The variables with the credentials for it.
    pub fn environment(&self) -> Vec<(String, String)> {
        let set = [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)];
        set.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that finds its credentials in these variables.
pub fn client(environment: &[(String, String)]) -> Arc<Client> {
    Arc::new(narval_s3::client(ClientOptions {
        proxies: Proxies::default(),
        retry: RetryPolicy { attempts: 2, overload_base: Duration::from_millis(100), ..RetryPolicy::default() },
        buckets: Some(Arc::new(BucketSigner::new(Environment::of(environment.to_vec())))),
        ..ClientOptions::default()
    }))
}

/// A request with a body.
pub fn bare<'a>(method: Method, url: &'a Url, extra: Extra<'a>, body: &'a [u8]) -> Upload<'a> {
    let (content_type, payload) = ("application/octet-stream", Payload::Bytes(body));
    Upload { method, url, content_type, extra, payload, on_sent: &|_| {}, answer_len_max: 1024 * 1024 }
}

/// A program that `tools/setup-s3` installs, or that is in the path.
fn find(program: &str) -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools").join(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(ours).chain(std::env::split_paths(&path).map(|folder| folder.join(program)));
    all.into_iter().find(|file| file.is_file())
}
