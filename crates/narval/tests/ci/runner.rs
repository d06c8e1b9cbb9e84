//! A machine that runs jobs, and what becomes of them.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::platform::{AUDIENCE, Platform};
use crate::support::{NARVAL, Server, hash_part};

/// More than a job may take beside its command: the deadline of these tests, and a loaded machine.
pub(crate) const AT_MOST: Duration = Duration::from_secs(40);

/// A machine that runs jobs: a store that Nix can build into without a sandbox, which is lost after each job.
pub(crate) struct Runner {
    pub(crate) dir: tempfile::TempDir,
}

/// What a job printed and left.
pub(crate) struct Job {
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
    pub(crate) summary: Value,
    pub(crate) took: Duration,
}

impl Runner {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// As if the next job had another machine.
    pub(crate) fn forget(&self) {
        for below in ["store", "var", "home"] {
            if self.path(below).exists() {
                let unlocked = Command::new("chmod").args(["-R", "u+w"]).arg(self.path(below)).status();
                assert!(unlocked.unwrap().success());
                std::fs::remove_dir_all(self.path(below)).unwrap();
            }
        }
        made_output(self.command("nix-store").arg("--init"));
    }

    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, below) in [
            ("NIX_STORE_DIR", "store"),
            ("NIX_STATE_DIR", "var"),
            ("NIX_LOG_DIR", "log"),
            ("NIX_CONF_DIR", "etc"),
            ("HOME", "home"),
            ("XDG_CACHE_HOME", "home/cache"),
            ("GITHUB_STEP_SUMMARY", "summary.md"),
        ] {
            command.env(name, self.path(below));
        }
        for name in ["NIX_REMOTE", "NARVAL_STORE", "CI", "GITHUB_ACTIONS", "NARVAL_TOKEN_FILE"] {
            command.env_remove(name);
        }
        command
            .env("NIX_CONFIG", "sandbox = false\nbuild-users-group =\nsubstituters =\n")
            .current_dir(self.dir.path());
        command.stdin(Stdio::null());
        command
    }

    /// A shell command that builds paths with these names; each is 1 kB.
    pub(crate) fn build(names: &str) -> String {
        let one = "derivation { inherit name; system = builtins.currentSystem; builder = \"/bin/sh\"; \
                   args = [ \"-c\" \"echo built ${name} > $out; for i in 1 2 3 4 5 6 7 8 9 10; do echo ${name} $i >> $out; done\" ]; }";
        let list: String = names.split(' ').map(|name| format!(" \"{name}\"")).collect();
        format!("nix-build --no-out-link -E 'map (name: {one}) [{list} ]'")
    }

    /// A server with a signing key for the store of this runner, readable by everybody; `more` is in its configuration.
    pub(crate) fn cache(&self, more: &str) -> Server {
        self.cache_in("127.0.0.1:0", "data", more)
    }

    /// The same, at this address, with its data in this folder.
    pub(crate) fn cache_in(&self, listen: &str, data: &str, more: &str) -> Server {
        made_output(self.command("nix-store").arg("--init"));
        let key = self.path("key");
        if !key.exists() {
            let made = Command::new(NARVAL).args(["key", "generate", "ci-1", "--out"]).arg(&key).output().unwrap();
            assert!(made.status.success());
        }
        let config = format!(
            "listen = '{listen}'\ndata = '{data}'\nsign-keys = ['key']\n{more}\n[[cache]]\nname = 'default'\nstore-dir = '{}'\n",
            self.path("store").display()
        );
        std::fs::write(self.path("narval.toml"), config).unwrap();
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--config"]).arg(self.path("narval.toml"));
        Server::start(command, &[("XDG_CACHE_HOME", self.path("cache-home").to_str().unwrap())])
    }

    pub(crate) fn token(&self, scopes: &[&str]) -> PathBuf {
        let file = self.path("token");
        let mut create = Command::new(NARVAL);
        let made =
            made_output(create.args(["token", "create", "--data"]).arg(self.path("data")).args(scopes).arg("ci"));
        std::fs::write(&file, made.lines().find(|line| line.trim().starts_with("nv1_")).unwrap_or(&made)).unwrap();
        file
    }

    /// Runs a job, a command of a shell.
    pub(crate) fn job(&self, to: &str, options: &[&str], env: &[(&str, String)], script: &str) -> Job {
        let mut command = self.command(NARVAL);
        command.args(["ci", "--json", "--to", to]).args(options);
        if !options.contains(&"--deadline") {
            command.args(["--deadline", "4s"]);
        }
        command.args(["--", "/bin/sh", "-ec", script]).envs(env.iter().map(|(name, value)| (name, value)));
        let begun = Instant::now();
        Job::of(&command.output().unwrap(), begun.elapsed())
    }
}

pub(crate) fn made_output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Job {
    pub(crate) fn of(output: &Output, took: Duration) -> Self {
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let summary = printed.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        Self {
            code: output.status.code(),
            said: format!("{printed}{}", String::from_utf8_lossy(&output.stderr)),
            summary,
            took,
        }
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.summary[name].as_u64().unwrap_or_else(|| panic!("{name}: {}\n{}", self.summary, self.said))
    }

    /// What it built, as it says.
    pub(crate) fn built(&self) -> Vec<String> {
        let built = self.summary["built"].as_array().unwrap_or_else(|| panic!("{}\n{}", self.summary, self.said));
        built.iter().map(|one| one["path"].as_str().unwrap().to_owned()).collect()
    }
}

pub(crate) fn has(server: &Server, path: &str) -> bool {
    server.get(&format!("/{}.narinfo", hash_part(path))).status == 200
}

/// A rule that lets the main branch of one repository push.
pub(crate) fn rules(platform: &Platform) -> String {
    format!(
        "[[oidc]]\nname = 'ci'\nissuer = 'http://{}'\naudience = '{AUDIENCE}'\n\n[[oidc.rule]]\nclaims = {{ repository = 'our-org/*', ref = \
         'refs/heads/main' }}\nscopes = ['pull', 'push', 'sign']\n",
        platform.address
    )
}

/// The variables that a job of GitHub's has.
pub(crate) fn on_github(platform: &Platform, token: String) -> Vec<(&'static str, String)> {
    platform.give("the-runners-secret", token);
    vec![
        ("GITHUB_ACTIONS", "true".to_owned()),
        ("ACTIONS_ID_TOKEN_REQUEST_URL", format!("http://{}/token?v=2", platform.address)),
        ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "the-runners-secret".to_owned()),
    ]
}
