//! `narval ci`: jobs that build with real Nix, a cache of ours that is read and filled, and a platform that tells who a job is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../support/platform.rs"]
mod platform;
mod platforms;
#[path = "../../../narval-s3/tests/ports/mod.rs"]
mod ports;
mod runner;
#[path = "../support/mod.rs"]
mod support;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use platform::{AUDIENCE, Platform};
use runner::{AT_MOST, Job, Runner, has, made_output, on_github, rules};
use support::NARVAL;

#[test]
fn a_job_without_a_secret_fills_the_cache_and_the_next_one_builds_nothing() {
    let (runner, platform) = (Runner::new(), Platform::start());
    let server = runner.cache(&rules(&platform));
    let env = on_github(&platform, platform.token(&[]));
    let script = Runner::build("one two three");
    let first = runner.job(&server.url(), &["--audience", AUDIENCE], &env, &script);
    assert_eq!((first.code, first.number("pushed"), first.number("misses")), (Some(0), 3, 3), "{}", first.said);
    assert!(first.summary["warning"].is_null(), "{}", first.said);
    let built = first.built();
    assert!(built.len() == 3 && built.iter().all(|path| has(&server, path)), "{built:?}");
    assert!(first.summary["built"].as_array().unwrap().iter().all(|one| one["why"] == "not in the cache"));
    let page = std::fs::read_to_string(runner.path("summary.md")).unwrap();
    assert!(page.contains("| pushed | 3 paths") && page.contains("-one` | not in the cache |"), "{page}");
    assert!(!first.said.contains("nv1_") && !page.contains("nv1_"), "a token is nobody's to read");

    // Another machine, with another token.
    runner.forget();
    let env = on_github(&platform, platform.token(&[]));
    let second = runner.job(&server.url(), &["--audience", AUDIENCE], &env, &script);
    assert_eq!((second.code, second.number("hits"), second.number("pushed")), (Some(0), 3, 0), "{}", second.said);
    assert!(second.number("bytes_fetched") > 0 && second.built().is_empty(), "{}", second.said);
}

#[test]
fn the_summary_says_what_building_would_have_taken() {
    let runner = Runner::new();
    let server = runner.cache("");
    let token = runner.token(&["--push", "--pull", "--sign"]);
    let token = ["--token-file", token.to_str().unwrap()];
    let slow = "derivation { name = \"slow\"; system = builtins.currentSystem; builder = \"/bin/sh\"; outputs = [ \"out\" \"doc\" ]; \
                args = [ \"-c\" \"sleep 3; echo a > $out; echo b > $doc\" ]; PATH = builtins.getEnv \"PATH\"; }";
    // One that was built before the job, whose log is older: nothing is known of it.
    let early = made_output(runner.command("sh").args(["-ec", &Runner::build("early")]));
    let delete = format!("nix-store --delete {} >/dev/null", early.trim());
    let script = format!("nix-build -A all --no-out-link -E 'let slow = {slow}; in {{ all = [ slow slow.doc ]; }}'");
    let script = format!("{script}; {}", Runner::build("early quick"));
    let first = runner.job(&server.url(), &token, &[], &format!("{delete}; {script}"));
    assert_eq!((first.code, first.number("pushed"), first.number("fetched")), (Some(0), 4, 0), "{}", first.said);
    assert!(first.summary["seconds_saved"].is_null() && !first.said.contains("narval ci: saved"), "{}", first.said);
    runner.forget();
    let second = runner.job(&server.url(), &token, &[("GITHUB_ACTIONS", "true".to_owned())], &script);
    let of = (second.code, second.number("fetched"), second.number("seconds_saved_known_of"));
    assert_eq!(of, (Some(0), 4, 3), "{}", second.said);
    // The outputs of a derivation are built together.
    assert!((3..6).contains(&second.number("seconds_saved")), "{}", second.said);
    assert!(second.number("bytes_saved") > 4 * 96 && second.said.contains("s of building, known of 3 of 4 paths"));
    let page = std::fs::read_to_string(runner.path("summary.md")).unwrap();
    assert!(page.contains("| saved | "), "{page}");
    let narinfo = server.get(&format!("/{}.narinfo", support::hash_part(early.trim())));
    assert!(narinfo.status == 200 && !narinfo.text().contains("NarvalBuildSeconds"), "{}", narinfo.text());
}

#[test]
fn the_job_of_a_fork_reads_and_does_not_push() {
    let (runner, platform) = (Runner::new(), Platform::start());
    let server = runner.cache(&rules(&platform));
    let script = Runner::build("shared");
    let env = on_github(&platform, platform.token(&[]));
    assert_eq!(runner.job(&server.url(), &["--audience", AUDIENCE], &env, &script).code, Some(0));
    let of_fork = on_github(&platform, platform.token(&[("repository", serde_json::json!("stranger/app"))]));
    let without = vec![("GITHUB_ACTIONS", "true".to_owned())];
    for env in [of_fork, without] {
        runner.forget();
        let script = format!("{}; exit 7", Runner::build("shared own"));
        let job = runner.job(&server.url(), &["--audience", AUDIENCE], &env, &script);
        assert_eq!((job.code, job.number("hits")), (Some(7), 1), "the code of the command\n{}", job.said);
        assert!(job.summary["pushed"].is_null() && job.said.contains("only reads"), "{}", job.said);
    }
}

#[test]
fn a_cache_that_is_away_costs_the_deadline_at_most() {
    let runner = Runner::new();
    let server = runner.cache("");
    let token = runner.token(&["--push", "--pull"]);
    let token = ["--token-file", token.to_str().unwrap()];
    let url = server.url();
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs = format!("http://{}", silent.local_addr().unwrap());
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pid = server.pid();
    for (number, (to, before, after)) in [
        (format!("http://{closed}"), String::new(), String::new()),
        (hangs, String::new(), String::new()),
        // At the end, in the middle.
        (url.clone(), String::new(), format!("kill -STOP {pid}")),
        (url.clone(), format!("kill -STOP {pid}"), String::new()),
        (url, format!("kill -CONT {pid}; kill -KILL {pid}; sleep 0.2"), String::new()),
    ]
    .into_iter()
    .enumerate()
    {
        let _ = Command::new("kill").args(["-CONT", &pid.to_string()]).status();
        runner.forget();
        let script = format!("{before}\n{}\n{after}\nexit 5", Runner::build(&format!("away-{number}")));
        let job = runner.job(&to, &token, &[], &script);
        assert_eq!(job.code, Some(5), "{number}: {}", job.said);
        assert!(job.took < AT_MOST, "{number}: {:?}\n{}", job.took, job.said);
        assert!(job.summary["warning"].is_string(), "{number}: {}", job.said);
        // The wait at the start is a part of the deadline.
        let waited = job.summary["waited_seconds"].as_f64().unwrap();
        assert!(number > 1 || waited < 4.0, "{number}: {waited}\n{}", job.said);
    }
    drop(silent);
}

#[test]
fn a_job_that_is_cancelled_leaves_what_is_finished() {
    let runner = Runner::new();
    let server = runner.cache("");
    let token = runner.token(&["--push", "--pull"]);
    let mut command = runner.command(NARVAL);
    let script = format!("{{ {}; touch built; exec sleep 60; }} >/dev/null 2>&1 & wait", Runner::build("finished"));
    command.args(["ci", "--json", "--to", &server.url(), "--token-file"]).arg(token);
    command.args(["--", "/bin/sh", "-ec", &format!("trap 'exit 9' TERM; {script}")]);
    let job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + AT_MOST;
    while !runner.path("built").exists() {
        assert!(Instant::now() < until, "nothing is built");
        std::thread::sleep(Duration::from_millis(20));
    }
    let begun = Instant::now();
    assert!(Command::new("kill").args(["-TERM", &job.id().to_string()]).status().unwrap().success());
    let job = Job::of(&job.wait_with_output().unwrap(), begun.elapsed());
    assert_eq!(job.code, Some(9), "{}", job.said);
    let built = job.built();
    assert!(built.len() == 1 && has(&server, &built[0]), "{}", job.said);
}

#[test]
fn steps_that_are_separate() {
    let runner = Runner::new();
    let server = runner.cache("");
    let token = runner.token(&["--push", "--pull"]);
    let ci = |args: &[&str]| {
        let mut command = runner.command(NARVAL);
        command.env("GITHUB_ENV", runner.path("env")).env("RUNNER_TEMP", runner.dir.path()).args(["ci"]).args(args);
        command.output().unwrap()
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let start = ["start", "--to", &server.url(), "--token-file", token.to_str().unwrap()];
    let started = ci(&start);
    assert!(started.status.success(), "{}", said(&started));
    let again = ci(&start);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    // The next step has what the runner reads from the file.
    let env = std::fs::read_to_string(runner.path("env")).unwrap();
    let (name, rest) = env.split_once("<<").unwrap();
    let (end, rest) = rest.split_once('\n').unwrap();
    let config = rest.split_once(&format!("\n{end}")).unwrap().0;
    assert!(name == "NIX_CONFIG" && config.contains("extra-substituters = http://127.0.0.1:"), "{env}");
    // Others on this machine do not know the name of what is served there.
    let (near, secret) = config.split_once("http://").unwrap().1.lines().next().unwrap().rsplit_once('/').unwrap();
    assert!(secret.len() == 32);
    for path in ["nix-cache-info", "metrics", "ready", "health", "", "_narval/v1/paths?q=a", "default/nix-cache-info"] {
        let asked = Command::new("curl").args(["-s", "-w", "%{http_code}", &format!("http://{near}/{path}")]).output();
        let said = String::from_utf8(asked.unwrap().stdout).unwrap();
        assert!(!said.contains(secret), "{path}: {said}");
        assert!(!said.ends_with("200") || ["ready", "health"].contains(&path), "{path}: {said}");
    }
    let step = runner.command("/bin/sh").env("NIX_CONFIG", config).args(["-ec", &Runner::build("in-a-step")]).output();
    assert!(step.as_ref().unwrap().status.success(), "{}", said(&step.unwrap()));
    let ended = ci(&["end", "--json"]);
    let job = Job::of(&ended, Duration::ZERO);
    assert_eq!((job.code, job.number("pushed"), job.number("misses")), (Some(0), 1, 1), "{}", job.said);
    assert!(has(&server, &job.built()[0]) && !runner.path("narval-ci").exists());
    let nothing = ci(&["end"]);
    assert!(nothing.status.success() && said(&nothing).contains("no job was started"), "{}", said(&nothing));
}

#[test]
fn what_the_other_caches_have_is_not_pushed() {
    let runner = Runner::new();
    let other = runner.cache("");
    let token = runner.token(&["--push", "--pull", "--sign"]);
    let token = ["--token-file", token.to_str().unwrap()];
    let script = Runner::build("common");
    assert_eq!(runner.job(&other.url(), &token, &[], &script).number("pushed"), 1);
    // The same machine builds it again, since its Nix does not ask; and its settings name the other cache.
    let key = std::fs::read_to_string(runner.path("key")).unwrap();
    assert!(key.starts_with("ci-1:"));
    let public = made_output(Command::new(NARVAL).args(["key", "public"]).arg(runner.path("key")));
    let config = format!(
        "sandbox = false\nbuild-users-group =\nsubstitute = false\nsubstituters = {}\ntrusted-public-keys = {}",
        other.url(),
        public.trim()
    );
    let makes = |data: &str| {
        let server = runner.cache_in("127.0.0.1:0", data, "");
        let mut create = Command::new(NARVAL);
        let args = ["token", "create", "--push", "--pull", "--sign", "ci", "--out"];
        let file = runner.path(&format!("{data}.token"));
        made_output(create.args(args).arg(&file).arg("--data").arg(runner.path(data)));
        (server, file.to_str().unwrap().to_owned())
    };
    let names = |job: &Job| -> Vec<String> {
        let would = job.summary["would_push"].as_array().unwrap_or_else(|| panic!("{}", job.said));
        would.iter().map(|one| one["path"].as_str().unwrap().split_once('-').unwrap().1.to_owned()).collect()
    };
    for (number, (option, pushed)) in
        [(&[][..], 1), (&["--all"], 2), (&["--all", "--exclude", "/^com/"], 1)].iter().enumerate()
    {
        let (server, token) = makes(&format!("target-{number}"));
        for dry in [true, false] {
            runner.forget();
            let dry_run: &[&str] = if dry { &["--dry-run"] } else { &[] };
            let options = [option, dry_run, &["--no-compression", "--token-file", &token]].concat();
            let config = config.clone();
            let job = runner.job(&server.url(), &options, &[("NIX_CONFIG", config)], &Runner::build("common alone"));
            let expected = if dry { 0 } else { *pushed };
            assert_eq!((job.code, job.number("pushed")), (Some(0), expected), "{option:?}: {}", job.said);
            if dry {
                let all = ["alone", "common"].map(str::to_owned);
                let mut names = names(&job);
                names.sort();
                assert!(names.len() == *pushed as usize && names.iter().all(|name| all.contains(name)), "{names:?}");
            }
        }
    }
    // A folder may be read without the others.
    let target = format!("file://{}", runner.path("target").display());
    runner.forget();
    let job = runner.job(&target, &[], &[("NIX_CONFIG", config)], &Runner::build("common alone"));
    assert_eq!((job.code, job.number("pushed")), (Some(0), 2), "{}", job.said);
    // One that says nothing is not waited for, for each path.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "sandbox = false\nbuild-users-group =\nsubstitute = false\nsubstituters = http://{}\n",
        silent.local_addr().unwrap()
    );
    runner.forget();
    std::fs::remove_dir_all(runner.path("target")).unwrap();
    let names: Vec<_> = (0..30).map(|number| format!("many-{number}")).collect();
    let options = ["--deadline", "15s"];
    let job = runner.job(&target, &options, &[("NIX_CONFIG", config)], &Runner::build(&names.join(" ")));
    assert_eq!((job.code, job.number("pushed")), (Some(0), 30), "{}", job.said);
}

/// The value of an input or a variable in a script of the folder `ci`.
type Values<'a> = &'a [(&'a str, &'a str)];

/// The scripts of a composite action, with the variables of their steps.
fn steps(action: &str, inputs: Values<'_>) -> Vec<(String, Vec<(String, String)>)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../ci/{action}/action.yml"));
    let text = std::fs::read_to_string(file).unwrap();
    let steps = text.split("\n    - name: ").skip(1);
    let step = |step: &str| {
        let (head, script) = step.split_once("\n      run: ").unwrap();
        let env = head.lines().filter_map(|line| line.strip_prefix("        ")?.split_once(": ${{ inputs."));
        let value = |name: &str| inputs.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value).to_owned();
        let env = env.map(|(name, rest)| (name.to_owned(), value(rest.trim_end_matches(" }}"))));
        (script.trim_start_matches("|\n").to_owned(), env.collect())
    };
    steps.map(step).collect()
}

/// What a runner downloads: an archive as the releases have, and its checksum.
fn release(runner: &Runner) -> (String, String) {
    let script = format!(
        "mkdir -p narval-0/bin && ln -s {NARVAL} narval-0/bin/narval && tar -czf narval.tar.gz narval-0 && sha256sum narval.tar.gz"
    );
    let sum = made_output(Command::new("sh").current_dir(runner.dir.path()).args(["-ec", &script]));
    let archive = format!("file://{}", runner.path("narval.tar.gz").display());
    (archive, sum.split(' ').next().unwrap().to_owned())
}

#[test]
fn the_actions() {
    let (runner, platform) = (Runner::new(), Platform::start());
    let server = runner.cache(&rules(&platform));
    let (archive, sum) = release(&runner);
    std::fs::create_dir(runner.path("temp")).unwrap();
    let run = |script: &str, env: &[(String, String)]| {
        let added = |name: &str| std::fs::read_to_string(runner.path(name)).unwrap_or_default();
        let mut shell = runner.command("bash");
        shell.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]).envs(env.iter().cloned());
        shell.envs(on_github(&platform, platform.token(&[])));
        let path = format!("{}:{}", added("path").trim(), std::env::var("PATH").unwrap());
        shell.env("PATH", path.trim_start_matches(':')).env("RUNNER_TEMP", runner.path("temp"));
        shell.env("GITHUB_PATH", runner.path("path")).env("GITHUB_ENV", runner.path("env"));
        // As the runner reads it.
        if let Some((name, rest)) = added("env").split_once("<<") {
            let (end, rest) = rest.split_once('\n').unwrap();
            shell.env(name, rest.split_once(&format!("\n{end}")).unwrap().0);
        }
        shell.output().unwrap()
    };
    let said = |output: &Output| String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned();
    let url = server.url();
    let options = format!("--audience {AUDIENCE}");
    let wrong = "0".repeat(64);
    let refused = steps("start", &[("release", &archive), ("sha256", &wrong)]).remove(0);
    let refused = run(&refused.0, &refused.1);
    assert!(!refused.status.success() && said(&refused).contains("FAILED"), "{}", said(&refused));
    let inputs = [("cache", url.as_str()), ("release", &archive), ("sha256", &sum), ("options", &options)];
    let job = steps("start", &inputs).into_iter().chain([(Runner::build("by-the-action"), Vec::new())]);
    let mut last = String::new();
    for (script, env) in job.chain(steps("end", &[("deadline", "30s")])) {
        let output = run(&script, &env);
        assert!(output.status.success(), "{script}\n{}", said(&output));
        last = said(&output);
    }
    assert!(last.contains("pushed 1 path"), "{last}");
    let page = std::fs::read_to_string(runner.path("summary.md")).unwrap();
    let built = page.lines().find_map(|line| line.strip_prefix("| `")).unwrap().split('`').next().unwrap();
    assert!(has(&server, built), "{page}");
}

/// The scripts of the workflow run as its runner runs them: in order, each with what those before it have added.
#[test]
fn the_workflow_of_forgejo() {
    let (runner, platform) = (Runner::new(), Platform::start());
    let server = runner.cache(&rules(&platform));
    let (archive, sum) = release(&runner);
    std::fs::create_dir(runner.path("temp")).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/forgejo/build.yml");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("\nenable-openid-connect: true\n"));
    let scripts: Vec<_> =
        text.split("\n        run: |\n").skip(1).map(|rest| rest.split("\n      - ").next().unwrap()).collect();
    assert_eq!(scripts.len(), 2, "{text}");
    let run = |name: &str, env: &[(&str, String)]| {
        let mut last = String::new();
        for script in &scripts {
            let script = script
                .replace("nix build .#app", &Runner::build(name))
                .replace("narval ci ", &format!("narval ci --audience {AUDIENCE} "));
            let added = std::fs::read_to_string(runner.path("path")).unwrap_or_default();
            let mut shell = runner.command("bash");
            shell.args(["-eo", "pipefail", "-c", &script]).envs(env.iter().map(|(name, value)| (name, value)));
            shell.env("PATH", format!("{}:{}", added.trim(), std::env::var("PATH").unwrap()).trim_start_matches(':'));
            shell.env("FORGEJO_ACTIONS", "true").env("RUNNER_TEMP", runner.path("temp"));
            shell.env("GITHUB_PATH", runner.path("path")).env("CACHE", server.url());
            shell.env("RELEASE", &archive).env("SHA256", &sum);
            let output = shell.output().unwrap();
            last = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{script}\n{last}");
        }
        last
    };
    let said = run("by-forgejo", &on_github(&platform, platform.token(&[])));
    assert!(said.contains("pushed 1 path"), "{said}");
    std::fs::remove_file(runner.path("path")).unwrap();
    let said = run("of-a-fork", &[]);
    assert!(said.contains("only reads"), "{said}");
}

#[test]
fn the_component_of_gitlab() {
    let (runner, platform) = (Runner::new(), Platform::start());
    let server = runner.cache(&rules(&platform));
    let (archive, sum) = release(&runner);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/gitlab/template.yml");
    let text = std::fs::read_to_string(file).unwrap();
    let before: Vec<_> =
        text.split("before_script:").nth(1).unwrap().lines().filter_map(|l| l.trim().strip_prefix("- ")).collect();
    let job = format!("narval ci --to \"$NARVAL_CACHE\" --audience {AUDIENCE} -- {}", Runner::build("by-gitlab"));
    let mut shell = runner.command("bash");
    shell.args(["-eo", "pipefail", "-c", &format!("{}\n{job}", before.join("\n"))]).env("GITLAB_CI", "true");
    shell.env("NARVAL_CACHE", server.url()).env("NARVAL_RELEASE", archive).env("NARVAL_SHA256", sum);
    shell.env("CI_PROJECT_DIR", runner.dir.path()).env("NARVAL_ID_TOKEN", platform.token(&[]));
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("section_start:") && said.contains("pushed 1 path"), "{said}");
}

#[test]
fn wrong_usage() {
    let run = |args: &[&str]| Command::new(NARVAL).arg("ci").args(args).output().unwrap();
    for (args, says) in [
        (&["--to", "https://cache"][..], "what to run after --"),
        (&["--", "true"][..], "--to URL"),
        (&["start", "--to", "https://cache", "--", "true"][..], "run no command"),
        (&["--to", "https://cache", "--identity", "github", "--", "true"][..], "file:PATH"),
    ] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(says), "{args:?}: {said}");
    }
    let missing =
        run(&["--no-push", "--identity", "none", "--to", "file:///nonexistent", "--", "/nonexistent/program"]);
    assert_eq!(missing.status.code(), Some(127), "{}", String::from_utf8_lossy(&missing.stderr));
}

/// The folder of a temporary name must be this user's.
#[test]
fn a_folder_of_somebody_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("state");
    std::os::unix::fs::symlink("/tmp", &link).unwrap();
    let state = |path: &Path| path.to_str().unwrap().to_owned();
    let output =
        Command::new(NARVAL).args(["ci", "start", "--to", "https://cache", "--state", &state(&link)]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("not a folder of this user"), "{said}");
}
