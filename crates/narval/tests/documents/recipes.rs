//! The recipes of docs/pushing.md, word for word: each command of its code blocks is run by a shell, as a CI platform runs it, with real Nix.
//! What is replaced are the addresses, and the folders of the machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::json;

use crate::page::read;
use crate::platform::Platform;
use crate::support::{NARVAL, Server, hash_part, stdout};

const PAGE: &str = "docs/pushing.md";
/// The address of the cache on the page.
const CACHE: &str = "https://cache.example.org";

/// The first code block after a text.
fn block(after: &str) -> String {
    let page = read(PAGE);
    let (_, rest) = page.split_once(after).unwrap_or_else(|| panic!("docs/pushing.md has no '{after}'"));
    rest.split("```").nth(1).unwrap().split_once('\n').unwrap().1.to_owned()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The scripts of a job of GitHub Actions: what follows `run:`, on the same line or indented below it.
fn github(yaml: &str) -> Vec<String> {
    let mut scripts = Vec::new();
    let mut lines = yaml.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(run) = line.trim_start().trim_start_matches("- ").strip_prefix("run: ") else { continue };
        if run != "|" {
            scripts.push(run.to_owned());
            continue;
        }
        let mut script = String::new();
        while let Some(more) = lines.next_if(|more| more.trim().is_empty() || indent(more) > indent(line)) {
            script.push_str(more.trim_start());
            script.push('\n');
        }
        scripts.push(script);
    }
    scripts
}

/// The scripts of a job of GitLab, in the order in which they run: `before_script` and `script` in one shell, `after_script` in another.
fn gitlab(yaml: &str) -> Vec<String> {
    let (mut main, mut after, mut open) = (String::new(), String::new(), None);
    for line in yaml.lines() {
        if let Some(command) = line.trim_start().strip_prefix("- ") {
            match open {
                Some("before_script" | "script") => main.push_str(&format!("{command}\n")),
                Some("after_script") => after.push_str(&format!("{command}\n")),
                _ => {}
            }
        } else {
            open = line.trim().strip_suffix(':');
        }
    }
    [main, after].into_iter().filter(|script| !script.is_empty()).collect()
}

/// A machine of a CI platform, with a store of its own that Nix builds in, and a project to build.
struct Job {
    dir: tempfile::TempDir,
}

impl Job {
    fn new(name: &str) -> Self {
        let job = Self { dir: tempfile::tempdir().unwrap() };
        for folder in ["etc", "home", "bin", "temp", "project"] {
            std::fs::create_dir(job.path(folder)).unwrap();
        }
        std::os::unix::fs::symlink(NARVAL, job.path("bin/narval")).unwrap();
        let conf = "experimental-features = nix-command flakes\nsandbox = false\nbuild-users-group =\nsubstituters =\n";
        std::fs::write(job.path("etc/nix.conf"), conf).unwrap();
        job.project(name);
        job
    }

    /// Something else to build.
    fn project(&self, name: &str) {
        let system = format!("{}-linux", std::env::consts::ARCH);
        let flake = format!(
            "{{ outputs = _: {{ packages.{system}.default = derivation {{ name = \"{name}\"; system = \"{system}\"; \
             builder = \"/bin/sh\"; args = [ \"-c\" \"echo {name} > $out\" ]; }}; }}; }}\n"
        );
        std::fs::write(self.path("project/flake.nix"), flake).unwrap();
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn store_dir(&self) -> PathBuf {
        self.path("store")
    }

    /// A command in the project's folder, in the environment of a job.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(self.path("project"));
        for name in ["NIX_REMOTE", "NIX_CONFIG", "NIX_USER_CONF_FILES", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "NETRC"] {
            command.env_remove(name);
        }
        for (name, below) in [
            ("NIX_STORE_DIR", "store"),
            ("NIX_STATE_DIR", "var"),
            ("NIX_LOG_DIR", "log"),
            ("NIX_CONF_DIR", "etc"),
            ("HOME", "home"),
            ("RUNNER_TEMP", "temp"),
            ("CI_PROJECT_DIR", "project"),
            ("NARVAL_STATE", "state"),
        ] {
            command.env(name, self.path(below));
        }
        command.env("PATH", format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap()));
        command
    }

    /// Runs a script as GitHub does, with these variables.
    fn run(&self, script: &str, variables: &[(&str, &str)]) -> String {
        let output = self.try_run(script, variables);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{script}\n{said}");
        said
    }

    fn try_run(&self, script: &str, variables: &[(&str, &str)]) -> Output {
        let mut shell = self.command("bash");
        shell.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]);
        shell.envs(variables.iter().copied()).output().unwrap()
    }

    /// What was built last.
    fn result(&self) -> String {
        std::fs::read_link(self.path("project/result")).unwrap().to_str().unwrap().to_owned()
    }
}

/// A cache for the paths of this job's store; `config` is more of its file.
fn serve(job: &Job, config: &str) -> Server {
    let file = job.path("narval.toml");
    let (data, store_dir) = (job.path("data"), job.store_dir());
    let text = config.replace("/var/lib/narval", data.to_str().unwrap());
    let own = format!("\n[[cache]]\nname = 'default'\nstore-dir = '{}'\n", store_dir.display());
    let data = if config.contains("data = ") { String::new() } else { format!("data = '{}'\n", data.display()) };
    std::fs::write(&file, format!("{data}{text}{own}")).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(&file);
    Server::start(command, &[("XDG_CACHE_HOME", job.path("cache").to_str().unwrap())])
}

fn token(job: &Job, scopes: &[&str]) -> String {
    let mut command = Command::new(NARVAL);
    command.args(["token", "create", "ci", "--data"]).arg(job.path("data")).args(scopes);
    stdout(command.output().unwrap())
}

fn is_cached(server: &Server, path: &str) -> bool {
    server.get(&format!("/{}.narinfo", hash_part(path))).status == 200
}

/// "In CI": the first `watch-store --once` records what there is, the second pushes what was built since; then a release is pinned.
#[test]
fn jobs_with_a_secret() {
    let of = |yaml: &str, server: &Server| yaml.replace(CACHE, &server.url());
    for (platform, read) in [("GitHub Actions:", github as fn(&str) -> Vec<String>), ("GitLab, with", gitlab)] {
        let job = Job::new("built-before");
        let server = serve(&job, "");
        job.run("nix build", &[]);
        let before = job.result();
        job.project("built-by-the-job");
        let token = token(&job, &["--push", "--pin"]);
        let yaml = of(&block(platform), &server);
        assert!(yaml.contains(&format!("CACHE: {}", server.url())), "{yaml}");
        let (url, scripts) = (server.url(), read(&yaml));
        let variables = [("CACHE", &*url), ("NARVAL_TOKEN", &*token)];
        assert!(scripts.iter().map(|script| script.matches("narval ").count()).sum::<usize>() == 3, "{scripts:?}");
        for script in &scripts {
            let said = job.run(script, &variables);
            assert!(!said.contains(&token), "{script}: {said}");
        }
        let built = job.result();
        assert_ne!(built, before);
        assert!(is_cached(&server, &built), "{platform} {}", server.log());
        assert!(!is_cached(&server, &before), "{platform}: it was there already");
        // What follows on the page: a release is pinned with curl.
        let pin = block("To keep what a release consists of");
        job.run(&pin, &variables);
        let pins = Command::new(NARVAL).args(["pin", "list", "--data"]).arg(job.path("data")).output().unwrap();
        assert!(stdout(pins).contains(hash_part(&built)));
        // "To push a single result".
        job.project("a-single-result");
        job.run("nix build && narval push ./result --to \"$CACHE\"", &variables);
        assert!(is_cached(&server, &job.result()));
    }
}

/// "From CI without a secret": the server's file and both jobs, against an issuer that runs here.
#[test]
fn jobs_without_a_secret() {
    let (hub, lab) = (Platform::start(), Platform::start());
    let job = Job::new("built-without-a-secret");
    // The address of the server is the audience of the tokens; it is known only when the server runs.
    let config = block("configuration file](configuration.md) says which jobs may do what:");
    let config = config.replace("https://token.actions.githubusercontent.com", &format!("http://{}", hub.address));
    let config = config.replace("https://gitlab.com", &format!("http://{}", lab.address));
    let server = serve(&job, &config);
    let url = server.url();
    job.run("nix build", &[]);
    let hub_token = hub.token(&[]);
    hub.give("of-the-runner", hub_token);
    let request = format!("http://{}/token?api-version=2.0", hub.address);
    let script = github(&block("`require-jti = false`.")).remove(0);
    // The audience stays as on the page: it is a name. What is asked is the server here.
    let (query, rest) = script.split_once("audience=").unwrap();
    let script = format!("{query}audience={}", rest.replace(&format!("{CACHE}/"), &format!("{url}/")));
    let script = script.replace(&format!("--to {CACHE}"), &format!("--to {url}"));
    let variables =
        [("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-the-runner"), ("ACTIONS_ID_TOKEN_REQUEST_URL", request.as_str())];
    // A runner without the permission `id-token` has no such secret.
    let refused = job.try_run(&script, &[("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "x"), variables[1]]);
    assert!(!refused.status.success() && !is_cached(&server, &job.result()));
    job.run(&script, &variables);
    assert!(is_cached(&server, &job.result()), "{}", server.log());

    job.project("built-by-the-other-platform");
    job.run("nix build", &[]);
    std::fs::remove_file(job.path("project/token")).unwrap();
    let jwt = |protected: &str| {
        lab.token(&[("project_path", json!("our-group/sub/app")), ("ref_protected", json!(protected))])
    };
    let page = read(PAGE);
    let yaml = page.split("```yaml\n# GitLab\n").nth(1).unwrap().split("```").next().unwrap();
    let script = gitlab(
        &yaml
            .replace(&format!("{CACHE}/"), &format!("{url}/"))
            .replace(&format!("--to {CACHE}"), &format!("--to {url}")),
    );
    let refused = job.try_run(&script[0], &[("NARVAL_JWT", &jwt("false"))]);
    assert!(!refused.status.success() && !is_cached(&server, &job.result()), "its branch is not protected");
    job.run(&script[0], &[("NARVAL_JWT", &jwt("true"))]);
    assert!(is_cached(&server, &job.result()), "{}", server.log());
}

/// "A hook": what is installed as the page says queues what real Nix builds, in milliseconds.
#[test]
fn the_hook_of_the_page() {
    let job = Job::new("built-with-a-hook");
    let server = serve(&job, "");
    let install = block("### A hook").replace("/etc/nix/", &format!("{}/", job.path("etc").display()));
    let install = install.replace("/usr/bin/narval", job.path("bin/narval").to_str().unwrap());
    job.run(&install, &[]);
    let hook = job.path("etc/post-build-hook");
    assert_ne!(std::fs::metadata(&hook).unwrap().permissions().mode() & 0o111, 0);
    job.run("nix build", &[]);
    let queued: Vec<_> = std::fs::read_dir(job.path("state/queue")).unwrap().collect();
    assert_eq!(queued.len(), 1);
    // Processor time, because the machine may be busy; the build waits for it.
    let result = job.result();
    let times = "TIMEFORMAT='%3U %3S'; time for _ in 1 2 3 4 5 6 7 8 9 10; do narval hook; done";
    let said = job.run(times, &[("OUT_PATHS", &result)]);
    let seconds: f64 = said.lines().next_back().unwrap().split(' ').map(|time| time.parse::<f64>().unwrap()).sum();
    assert!(seconds / 10.0 < 0.05, "{} ms of processor time for one hook", seconds * 100.0);
    let token = token(&job, &["--push"]);
    std::fs::write(job.path("token"), token).unwrap();
    let push = format!(
        "narval watch-store --queue-only --once --to {} --token-file {}",
        server.url(),
        job.path("token").display()
    );
    job.run(&push, &[]);
    assert!(is_cached(&server, &result), "{}", server.log());
    assert_eq!(std::fs::read_dir(job.path("state/queue")).unwrap().count(), 0);
}
