//! The jobs of docs/pushing.md, word for word: each command is run by a shell, as a CI platform runs it, with real Nix.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::json;

use crate::page::{address, read};
use crate::pages::with_a_team_cache;
use crate::platform::Platform;
use crate::reader::Reader;
use crate::support::{NARVAL, Nix, Server, hash_part};

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

/// A project that builds a path of this name.
fn flake(name: &str) -> String {
    let system = format!("{}-linux", std::env::consts::ARCH);
    format!(
        "{{ outputs = _: {{ packages.{system}.default = derivation {{ name = \"{name}\"; system = \"{system}\"; \
         builder = \"/bin/sh\"; args = [ \"-c\" \"echo {name} > $out\" ]; }}; }}; }}\n"
    )
}

/// The variables of a job: `NAME: value` in its sections `env` and `variables`.
fn variables(yaml: &str) -> Vec<(String, String)> {
    let pairs = yaml.lines().filter_map(|line| line.trim().split_once(": "));
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    pairs.filter(|(name, _)| is_name(name)).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// What the images of the platforms have, and these jobs use. Narval is not among it.
const TOOLS: &str = "bash sh cat curl sha256sum tar gzip mkdir readlink git nix";

/// A runner: its image, and a project to build.
struct Runner<'a> {
    reader: &'a Reader,
    folder: String,
    /// Folders that jobs have put in front of the path.
    path: RefCell<Vec<String>>,
}

impl<'a> Runner<'a> {
    fn new(reader: &'a Reader, name: &str) -> Self {
        let folder = format!("/shared/{name}");
        reader.machine.run(&format!(
            "mkdir -p {folder}/bin {folder}/home {folder}/temp {folder}/project
            for tool in {TOOLS}; do ln -s $(command -v $tool) {folder}/bin/$tool; done"
        ));
        Self { reader, folder, path: RefCell::new(Vec::new()) }
    }

    fn project(&self, name: &str) {
        self.reader.machine.run(&format!("cat > {}/project/flake.nix <<'END'\n{}END\n", self.folder, flake(name)));
    }

    /// Runs a script as the platforms do, with these variables.
    fn try_run(&self, script: &str, variables: &[(String, String)]) -> Output {
        let folder = &self.folder;
        let path = [self.path.borrow().as_slice(), &[format!("{folder}/bin")]].concat().join(":");
        let mut command = self.reader.machine.command("env");
        command.args(["-i", "-C", &format!("{folder}/project")]).args([
            format!("PATH={path}"),
            format!("HOME={folder}/home"),
            format!("RUNNER_TEMP={folder}/temp"),
            format!("GITHUB_PATH={folder}/github-path"),
            format!("CI_PROJECT_DIR={folder}/project"),
        ]);
        command.args(variables.iter().map(|(name, value)| format!("{name}={value}")));
        let output = command.args(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]).output().unwrap();
        let added = self.reader.machine.run(&format!("cat {folder}/github-path 2>/dev/null || true"));
        *self.path.borrow_mut() = added.lines().map(str::to_owned).collect();
        output
    }

    fn run(&self, script: &str, variables: &[(String, String)]) -> String {
        let output = self.try_run(script, variables);
        let message = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{script}\n{message}");
        message
    }

    /// What was built last.
    fn result(&self) -> String {
        self.reader.machine.run(&format!("readlink {}/project/result", self.folder)).trim().to_owned()
    }
}

/// A release at the address of the repository, with the program of this build; the checksum of its archive.
fn release(reader: &mut Reader) -> String {
    let (address, version) = (address(), env!("CARGO_PKG_VERSION"));
    let (host, path) = address.strip_prefix("https://").unwrap().split_once('/').unwrap();
    let place = format!("/shared/{host}/{path}/releases/download/v{version}");
    reader.machine.run(&format!(
        "mkdir -p {place} /shared/target/static && cd /root/narval
        printf '#!/bin/sh\\nexec /root/narval/target/release/narval \"$@\"\\n' > /shared/target/static/narval
        chmod +x /shared/target/static/narval
        CARGO_TARGET_DIR=/shared/target SOURCE_DATE_EPOCH=1 tools/release --unsigned --out {place} --only archive,sums"
    ));
    reader.stand_in(host, "static .");
    let sums = reader.machine.run(&format!("cat {place}/SHA256SUMS"));
    let archive = format!("narval-{version}-{}-linux.tar.gz", std::env::consts::ARCH);
    let sum = sums.lines().find_map(|line| line.strip_suffix(&format!("  {archive}")));
    sum.unwrap_or_else(|| panic!("{archive} is not in {sums}")).to_owned()
}

/// "In CI": on runners that have no Narval. The first `watch-store --once` records what there is, the second pushes what was built since; then a release is
/// pinned, and clients install what was pushed.
#[test]
fn jobs_with_a_secret() {
    let shared = tempfile::tempdir().unwrap();
    let Some(mut reader) = with_a_team_cache(shared.path()) else { return };
    let sum = release(&mut reader);
    let page = read(PAGE);
    reader.follow(page.split("\n## In CI\n").nth(1).unwrap().split("\n```yaml\n").next().unwrap());
    let token = reader.machine.run("cat ~/github.token").trim().to_owned();
    let key = reader.key(CACHE);
    for (platform, read) in [("GitHub Actions:", github as fn(&str) -> Vec<String>), ("GitLab, with", gitlab)] {
        let yaml = block(platform).replace("x86_64", std::env::consts::ARCH);
        let mut variables = variables(&yaml);
        variables.retain(|(name, _)| name != "NARVAL_TOKEN");
        variables.push(("NARVAL_TOKEN".to_owned(), token.clone()));
        let with_sum = |sum: &str| {
            let with = variables.iter().map(|(name, value)| match &**name {
                "SHA256" => (name.clone(), sum.to_owned()),
                _ => (name.clone(), value.clone()),
            });
            with.collect::<Vec<_>>()
        };
        let variables = with_sum(&sum);
        assert!(variables.iter().any(|(name, value)| name == "CACHE" && value == CACHE), "{yaml}");
        let scripts = read(&yaml);
        let kind = platform.split([' ', ',']).next().unwrap();
        // An archive that somebody has changed is not even unpacked.
        let careful = Runner::new(&reader, &format!("careful-{kind}"));
        careful.project("never-built");
        let refused = careful.try_run(&scripts[0], &with_sum(&"0".repeat(64)));
        assert!(
            !refused.status.success() && String::from_utf8_lossy(&refused.stdout).contains("FAILED"),
            "{refused:?}"
        );

        let runner = Runner::new(&reader, kind);
        runner.project(&format!("built-before-{kind}"));
        runner.run("nix build", &[]);
        let before = runner.result();
        runner.project(&format!("built-by-the-job-{kind}"));
        for script in &scripts {
            let message = runner.run(script, &variables);
            assert!(!message.contains(&token), "{script}: {message}");
        }
        let built = runner.result();
        assert_ne!(built, before);
        reader.installs(CACHE, &key, &built);
        let of_before = format!("curl -sSf {CACHE}/{}.narinfo", hash_part(&before));
        assert!(!reader.machine.try_run(&of_before).status.success(), "{platform}: it was there already");
        // What follows on the page is in the script of the job, whose shell has the program in its path.
        let path = format!("{0}/project/.narval/bin", runner.folder);
        reader.machine.run(&format!("echo {path} >> {}/github-path", runner.folder));
        runner.run("true", &[]);
        runner.run(&block("To keep what a release consists of"), &variables);
        assert!(reader.machine.run("narval pin list").contains(hash_part(&built)));
        // "To push a single result".
        runner.project(&format!("a-single-result-{kind}"));
        runner.run("nix build && narval push ./result --to \"$CACHE\"", &variables);
        reader.installs(CACHE, &key, &runner.result());
    }
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
        std::fs::write(self.path("project/flake.nix"), flake(name)).unwrap();
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
        let message = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{script}\n{message}");
        message
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

/// A cache for the paths of this job's store; `config` is its file on the page.
fn serve(job: &Job, config: &str) -> Server {
    let file = job.path("narval.toml");
    let (data, store_dir) = (job.path("data"), job.store_dir());
    let text = config.replace("/var/lib/narval", data.to_str().unwrap());
    let own = format!("\n[[cache]]\nname = 'default'\nstore-dir = '{}'\n", store_dir.display());
    let key = job.path("cache.sec");
    job.run(&format!("narval key generate cache-1 --out {} > ../cache.pub", key.display()), &[]);
    std::fs::write(&file, format!("sign-keys = '{}'\n{text}{own}", key.display())).unwrap();
    let mut command = Command::new(NARVAL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(&file);
    Server::start(command, &[("XDG_CACHE_HOME", job.path("cache").to_str().unwrap())])
}

/// Has Nix install what was built last into an empty store, where only the cache's key is trusted.
fn installs(job: &Job, server: &Server) {
    let (from, result) = (server.url(), job.result());
    let (to, key) = (tempfile::tempdir().unwrap(), std::fs::read_to_string(job.path("cache.pub")).unwrap());
    let mut copy = job.command(Nix::Newest.program("nix"));
    copy.args(["copy", "--refresh", "--from", &from, "--to"]).arg(to.path()).args([
        &result,
        "--option",
        "require-sigs",
        "true",
    ]);
    let output = copy.args(["--option", "trusted-public-keys", key.trim()]).output().unwrap();
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stderr), server.log());
}

fn is_cached(server: &Server, path: &str) -> bool {
    server.get(&format!("/{}.narinfo", hash_part(path))).status == 200
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
    let hub_token = hub.token(&[]);
    hub.give("of-the-runner", hub_token);
    let request = format!("http://{}/token?api-version=2.0", hub.address);
    // The audience is the address on the page. What is asked is the server here.
    let here = |script: &str| script.replace(&format!("--to {CACHE}"), &format!("--audience {CACHE} --to {url}"));
    let script = here(&github(&block("`require-jti = false`.")).remove(0));
    let variables =
        [("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-the-runner"), ("ACTIONS_ID_TOKEN_REQUEST_URL", request.as_str())];
    // A runner without the permission `id-token` has neither.
    let message = job.run(&script, &[]);
    assert!(message.contains("only reads") && !is_cached(&server, &job.result()), "{message}");
    job.project("built-by-a-job-with-an-identity");
    job.run(&script, &variables);
    installs(&job, &server);

    let jwt = |protected: &str| {
        lab.token(&[("project_path", json!("our-group/sub/app")), ("ref_protected", json!(protected))])
    };
    let page = read(PAGE);
    let yaml = page.split("```yaml\n# GitLab\n").nth(1).unwrap().split("```").next().unwrap();
    let script = here(&gitlab(yaml)[0]);
    job.project("built-on-a-branch");
    let message = job.run(&script, &[("NARVAL_ID_TOKEN", &jwt("false"))]);
    assert!(!is_cached(&server, &job.result()), "its branch is not protected: {message}");
    job.project("built-by-the-other-platform");
    job.run(&script, &[("NARVAL_ID_TOKEN", &jwt("true"))]);
    installs(&job, &server);
}
