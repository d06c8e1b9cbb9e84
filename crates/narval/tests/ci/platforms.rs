//! One line in a job of each platform: its variables, its identity token with the claims that it has, and its summary.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::platform::Platform;
use crate::ports::free_port;
use crate::runner::{Job, Runner, has, made_output, on_github};
use crate::support::NARVAL;

/// Claims that a rule asks for, and the same of somebody else.
type Claims = &'static [(&'static str, &'static str, &'static str)];

/// A platform, the claims of its jobs, and what is in the output of one.
const PLATFORMS: [(&str, Claims, &str); 9] = [
    (
        "github",
        &[
            ("repository", "our-org/app", "stranger/app"),
            ("repository_owner_id", "17", "18"),
            ("ref", "refs/heads/main", "refs/pull/1/merge"),
        ],
        "",
    ),
    ("forgejo", &[("repository", "our-org/app", "stranger/app"), ("repository_id", "5", "6")], ""),
    ("gitea", &[("repository_id", "5", "6")], ""),
    (
        "gitlab",
        &[("project_id", "5", "6"), ("namespace_id", "7", "8"), ("ref_protected", "true", "false")],
        "section_start:",
    ),
    ("buildkite", &[("organization_id", "5", "6"), ("pipeline_id", "7", "8")], ""),
    ("circleci", &[("oidc.circleci.com/project-id", "5", "6")], ""),
    ("kubernetes", &[("sub", "system:serviceaccount:ci:builder", "system:serviceaccount:other:builder")], ""),
    ("jenkins", &[("sub", "https://jenkins/job/app/", "https://jenkins/job/other/")], ""),
    ("command", &[("sub", "builder", "stranger")], ""),
];

/// The organisation of CircleCI, which is the audience of its tokens.
const ORGANIZATION: &str = "0a1b2c3d-0000-4000-8000-000000000000";

/// The options and variables of a job.
fn setting(name: &str, runner: &Runner, platform: &Platform, token: String) -> (Vec<String>, Vec<(String, String)>) {
    let file = runner.path(&format!("{name}.jwt"));
    std::fs::write(&file, &token).unwrap();
    let set =
        |all: &[(&str, &str)]| all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let actions = |mark: &str| -> Vec<(String, String)> {
        let of_runner = on_github(platform, token.clone()).into_iter().filter(|(name, _)| *name != "GITHUB_ACTIONS");
        of_runner.map(|(name, value)| (name.to_owned(), value)).chain([(mark.to_owned(), "true".to_owned())]).collect()
    };
    match name {
        "github" => (Vec::new(), actions("GITHUB_ACTIONS")),
        "forgejo" => (Vec::new(), actions("FORGEJO_ACTIONS")),
        "gitea" => (Vec::new(), actions("GITEA_ACTIONS")),
        "gitlab" => (Vec::new(), set(&[("GITLAB_CI", "true"), ("NARVAL_ID_TOKEN", &token)])),
        "jenkins" => (Vec::new(), set(&[("JENKINS_URL", "https://jenkins/"), ("NARVAL_ID_TOKEN", &token)])),
        "circleci" => (Vec::new(), set(&[("CIRCLECI", "true"), ("CIRCLE_OIDC_TOKEN_V2", &token)])),
        "kubernetes" => (Vec::new(), set(&[("NARVAL_ID_TOKEN_FILE", file.to_str().unwrap())])),
        "command" => (vec!["--identity".to_owned(), format!("command:cat {}", file.display())], Vec::new()),
        "buildkite" => {
            let bin = runner.path("bin");
            std::fs::create_dir_all(&bin).unwrap();
            let script = format!(
                "#!/bin/sh\ncase \"$1 $2\" in\n'oidc request-token') [ \"$3\" = --audience ] && echo \"$4\" > {0}/audience && cat {1} ;;\n\
                 'annotate --style') cat >> {0}/annotation ;;\n*) exit 1 ;;\nesac\n",
                bin.display(),
                file.display()
            );
            std::fs::write(bin.join("buildkite-agent"), script).unwrap();
            std::fs::set_permissions(bin.join("buildkite-agent"), Permissions::from_mode(0o755)).unwrap();
            let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
            (Vec::new(), set(&[("BUILDKITE", "true"), ("PATH", &path)]))
        }
        other => panic!("{other}"),
    }
}

fn job(runner: &Runner, url: &str, (options, env): (Vec<String>, Vec<(String, String)>), script: &str) -> Job {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let env: Vec<(&str, String)> = env.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    runner.job(url, &options, &env, script)
}

#[test]
fn one_line_in_a_job_of_each_platform_and_a_forks_job_only_reads() {
    let (runner, listen) = (Runner::new(), format!("127.0.0.1:{}", free_port()));
    let url = format!("http://{listen}");
    let platforms: Vec<Platform> = PLATFORMS.iter().map(|_| Platform::start()).collect();
    let rules = PLATFORMS.iter().zip(&platforms).map(|((name, claims, _), platform)| {
        let claims: Vec<String> = claims.iter().map(|(name, value, _)| format!("{name:?} = '{value}'")).collect();
        let audience = if *name == "circleci" { ORGANIZATION } else { &url };
        format!(
            "[[oidc]]\nname = '{name}'\nissuer = 'http://{}'\naudience = '{audience}'\n\n[[oidc.rule]]\nclaims = {{ {} }}\nscopes = ['pull', 'push', 'sign']\n",
            platform.address,
            claims.join(", ")
        )
    });
    let server = runner.cache_in(&listen, "data", &rules.collect::<String>());
    for ((name, claims, says), platform) in PLATFORMS.iter().zip(&platforms) {
        let token = |of_us: bool, audience: &str| {
            let claims = claims.iter().map(|(name, ours, theirs)| (*name, json!(if of_us { ours } else { theirs })));
            platform.token(&claims.chain([("aud", json!(audience))]).collect::<Vec<_>>())
        };
        let audience = if *name == "circleci" { ORGANIZATION } else { &url };
        let (script, both) = (Runner::build(name), Runner::build(&format!("{name} {name}-of-the-fork")));
        runner.forget();
        let first = job(&runner, &url, setting(name, &runner, platform, token(true, audience)), &script);
        assert_eq!(
            (first.code, first.number("pushed"), first.number("misses")),
            (Some(0), 1, 1),
            "{name}: {}",
            first.said
        );
        assert!(first.summary["warning"].is_null() && has(&server, &first.built()[0]), "{name}: {}", first.said);
        assert!(first.said.contains(says), "{name}: {}", first.said);
        runner.forget();
        let second = job(&runner, &url, setting(name, &runner, platform, token(true, audience)), &script);
        assert_eq!(
            (second.code, second.number("hits"), second.built().len()),
            (Some(0), 1, 0),
            "{name}: {}",
            second.said
        );
        // It pulls, and its exit code is its own.
        runner.forget();
        let script = format!("{both}; exit 3");
        let forks = job(&runner, &url, setting(name, &runner, platform, token(false, audience)), &script);
        assert_eq!((forks.code, forks.number("hits")), (Some(3), 1), "{name}: {}", forks.said);
        assert!(forks.summary["pushed"].is_null() && forks.said.contains("only reads"), "{name}: {}", forks.said);
        // Where the platform gives a fork's job nothing to prove who it is.
        runner.forget();
        let (_, mut env) = setting(name, &runner, platform, String::new());
        env.retain(|(name, value)| !name.contains("TOKEN") && name != "BUILDKITE" && !value.is_empty());
        let nobody = job(&runner, &url, (Vec::new(), env), &script);
        assert_eq!((nobody.code, nobody.number("hits")), (Some(3), 1), "{name}: {}", nobody.said);
        assert!(nobody.summary["pushed"].is_null(), "{name}: {}", nobody.said);
    }
    assert_eq!(std::fs::read_to_string(runner.path("bin/audience")).unwrap().trim(), url);
    let annotation = std::fs::read_to_string(runner.path("bin/annotation")).unwrap();
    assert!(annotation.contains("| pushed |"), "{annotation}");
    assert!(std::fs::read_to_string(runner.path("summary.md")).unwrap().contains("| pushed | 1 path"));
}

/// `nix build` leaves `./result`.
#[test]
fn a_release_has_the_revision_and_the_page_of_its_job() {
    let (runner, platform) = (Runner::new(), Platform::start());
    let rules = crate::runner::rules(&platform).replace("'sign'", "'sign', 'release:app'");
    let server = runner.cache(&rules);
    let metrics = runner.path("metrics.txt");
    let run = |options: &[&str], script: &str| {
        let env = [
            ("GITHUB_SHA", "0123abc"),
            ("GITHUB_SERVER_URL", "https://github.com"),
            ("GITHUB_REPOSITORY", "our-org/app"),
            ("GITHUB_RUN_ID", "7"),
            ("NARVAL_CI_METRICS", metrics.to_str().unwrap()),
        ];
        let env = env.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let env: Vec<_> = env.chain(on_github(&platform, platform.token(&[]))).collect();
        let options = [&["--audience", crate::platform::AUDIENCE], options].concat();
        runner.job(&server.url(), &options, &env, script)
    };
    let script = Runner::build("app").replace("--no-out-link", "-o result");
    let job = run(&["--release", "app@1.0"], &script);
    assert_eq!((job.code, &job.summary["release"]), (Some(0), &json!("@app@1")), "{}", job.said);
    assert!(job.said.contains("released @app@1"), "{}", job.said);
    let latest: Value = serde_json::from_str(server.get("/releases/app/latest").text()).unwrap();
    assert_eq!(latest["notes"], json!({"git": "0123abc", "url": "https://github.com/our-org/app/actions/runs/7"}));
    assert!(latest.to_string().contains(&job.built()[0]), "{latest}");
    assert!(std::fs::read_to_string(runner.path("summary.md")).unwrap().contains("| released | @app@1 |"));
    let figures = std::fs::read_to_string(&metrics).unwrap();
    assert!(figures.contains("narval_ci_pushed 1\n") && figures.contains("narval_ci_built 1\n"), "{figures}");
    // What the cache has is released all the same; what failed is not.
    runner.forget();
    let again = run(&["--release", "app", "--release-note", "git=other", "--release-path", "result"], &script);
    assert_eq!((&again.summary["release"], again.number("pushed")), (&json!("@app@2"), 0), "{}", again.said);
    let latest: Value = serde_json::from_str(server.get("/releases/app/latest").text()).unwrap();
    assert_eq!(latest["notes"]["git"], json!("other"));
    let failed = run(&["--release", "app"], &format!("{script}; exit 4"));
    assert_eq!((failed.code, &failed.summary["release"]), (Some(4), &Value::Null), "{}", failed.said);
    // It may not: a warning, and the job's own exit code.
    let denied = run(&["--release", "other"], &script);
    assert!(denied.code == Some(0) && denied.summary["release"].is_null(), "{}", denied.said);
    assert!(denied.summary["warning"].as_str().unwrap().contains("no release is recorded"), "{}", denied.said);
}

/// A user whom the daemon trusts, and who cannot read the database.
#[test]
fn where_the_database_cannot_be_read_a_hook_says_what_is_built() {
    if made_output(Command::new("id").arg("-u")).trim() != "0" {
        eprintln!("note: skipped: only root can start a daemon for another user");
        return;
    }
    let runner = Runner::new();
    let server = runner.cache("");
    let token = runner.token(&["--push", "--pull"]);
    std::fs::set_permissions(runner.dir.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&token, Permissions::from_mode(0o644)).unwrap();
    let (socket, home) = (runner.path("socket"), runner.path("home-of-nobody"));
    std::fs::create_dir(&home).unwrap();
    made_output(Command::new("chown").arg("65534:65534").arg(&home));
    let mut daemon = runner.command("nix-daemon");
    let config = "sandbox = false\nbuild-users-group =\nsubstituters =\ntrusted-users = nobody\n";
    daemon.env("NIX_DAEMON_SOCKET_PATH", &socket).env("NIX_CONFIG", config);
    let _daemon = crate::support::Running(daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let until = Instant::now() + Duration::from_secs(60);
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert!(Instant::now() < until, "the daemon does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::set_permissions(runner.path("var/db"), Permissions::from_mode(0o700)).unwrap();
    let run = |name: &str, options: &[&str]| {
        let mut command = runner.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", NARVAL, "ci", "--json", "--to"]);
        command.arg(server.url()).arg("--token-file").arg(&token).args(options);
        command.args(["--", "/bin/sh", "-ec", &Runner::build(name)]);
        command
            .env("NIX_DAEMON_SOCKET_PATH", &socket)
            .env("NIX_REMOTE", "daemon")
            .env("NIX_CONFIG", "substituters =\n");
        command.env("HOME", &home).env("XDG_CACHE_HOME", home.join("cache")).env("TMPDIR", &home).current_dir(&home);
        command.env_remove("GITHUB_STEP_SUMMARY");
        let job = Job::of(&command.output().unwrap(), Duration::ZERO);
        assert!(job.code == Some(0) && job.said.contains("a post-build hook says what is built"), "{}", job.said);
        job
    };
    let job = run("by-nobody", &[]);
    assert!(job.number("pushed") == 1 && has(&server, &job.built()[0]), "{}", job.said);
    // The hook tells what would be pushed, too.
    let dry = run("only-said", &["--dry-run"]);
    let would = dry.summary["would_push"].as_array().unwrap_or_else(|| panic!("{}", dry.said));
    let path = would.first().and_then(|one| one["path"].as_str()).unwrap_or_else(|| panic!("{}", dry.said));
    assert!(would.len() == 1 && path.ends_with("-only-said") && !has(&server, path), "{}", dry.said);
}

/// The commands of the examples for images run in a shell, with the secret where the builder mounts it.
#[test]
fn the_builds_of_images() {
    let (runner, platform) = (Runner::new(), Platform::start());
    let server = runner.cache(&crate::runner::rules(&platform));
    for (file, mark) in
        [("Dockerfile", "RUN --mount=type=secret,id=narval"), ("Earthfile", "RUN --secret NARVAL_ID_TOKEN=narval")]
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci").join(file);
        let text = std::fs::read_to_string(path).unwrap().replace("\\\n", " ");
        let line = text.lines().map(str::trim).find_map(|line| line.strip_prefix(mark)).unwrap();
        let (narval, command) = line.split_once(" -- ").unwrap();
        assert!(command.starts_with("nix build ") && command.ends_with(" .#app"), "{command}");
        let secret = runner.path("secret");
        std::fs::write(&secret, platform.token(&[])).unwrap();
        let narval = narval.replace("/run/secrets/narval", secret.to_str().unwrap());
        runner.forget();
        let audience = crate::platform::AUDIENCE;
        let job = format!("{narval} --json --audience {audience} -- {}", Runner::build(&file.to_lowercase()));
        let job = job.trim().replacen("narval", NARVAL, 1);
        let mut shell = runner.command("sh");
        shell.args(["-ec", &job]).env("CACHE", server.url());
        if file == "Earthfile" {
            shell.env("NARVAL_ID_TOKEN", platform.token(&[]));
        }
        let job = Job::of(&shell.output().unwrap(), Duration::ZERO);
        assert_eq!((job.code, job.number("pushed")), (Some(0), 1), "{file}: {}", job.said);
        assert!(has(&server, &job.built()[0]), "{file}");
    }
}
