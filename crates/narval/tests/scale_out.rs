//! The examples in `packaging/scale-out`: their files parse, and narval knows their options.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::path::{Path, PathBuf};
use std::process::Command;

const NARVAL: &str = env!("CARGO_BIN_EXE_narval");

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/scale-out").join(name)
}

/// The command lines of containers in a YAML file, which writes them as JSON.
fn command_lines(file: &str, key: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(example(file)).unwrap();
    let key = format!(" {key}: [");
    let after = text.split(&key).skip(1);
    after.map(|rest| serde_json::from_str(&format!("[{}]", rest.split_once(']').unwrap().0)).unwrap()).collect()
}

#[test]
fn the_options_of_containers_exist() {
    for (file, key) in [("compose.yaml", "command")] {
        let lines = command_lines(file, key);
        assert_eq!(lines.len(), 1, "{file}");
        for line in lines {
            assert!(line.contains(&"s3://example-cache?region=eu-central-1".to_owned()), "{line:?}");
            // An option that does not exist is an error in spite of --help.
            let output = Command::new(NARVAL).args(&line).arg("--help").output().unwrap();
            assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
            let output = Command::new(NARVAL).args(&line).args(["--no-such-option", "--help"]).output().unwrap();
            assert_eq!(output.status.code(), Some(2));
        }
    }
}

#[test]
fn the_configuration_file_is_valid() {
    let text = std::fs::read_to_string(example("serve.toml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("cache.sec");
    let made = Command::new(NARVAL).args(["key", "generate", "cache-1", "--out"]).arg(&key).output().unwrap();
    assert!(made.status.success());
    let real = "/run/credentials/narval-serve.service/key_cache.sec";
    assert!(text.contains(real) && text.contains("/var/cache/narval/node"));
    let text = text.replace(real, key.to_str().unwrap());
    let text = text.replace("/var/cache/narval/node", folder.path().join("node").to_str().unwrap());
    let file = folder.path().join("serve.toml");
    std::fs::write(&file, text).unwrap();
    let output = Command::new(NARVAL).args(["config", "check"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_yaml_files_parse() {
    let program = "import sys, yaml\nfor file in sys.argv[1:]:\n  print(len(list(yaml.safe_load_all(open(file)))))";
    let mut python = Command::new("python3");
    python.args(["-c", program]).arg(example("compose.yaml"));
    let Ok(output) = python.output() else {
        eprintln!("note: skipped: there is no Python here");
        return;
    };
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if message.contains("No module named") {
        eprintln!("note: skipped: Python has no module yaml");
        return;
    }
    assert!(output.status.success(), "{message}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n");
}

/// A program of `tools/setup-kubernetes`, or one that is installed.
fn tool(name: &str, below: &str) -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools").join(below);
    let found = [built, name.into()].into_iter().find(|path| Command::new(path).arg("--help").output().is_ok());
    if found.is_none() {
        eprintln!("note: skipped: {name} is not installed (tools/setup-kubernetes)");
    }
    found
}

/// The plain manifests: those of one server, and those of several.
fn manifests() -> [(&'static str, PathBuf); 2] {
    ["single", "cluster"].map(|name| (name, example(&format!("../kubernetes/{name}.yaml"))))
}

#[test]
fn the_manifests_are_what_the_chart_makes() {
    if tool("helm", "helm").is_some() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/render-kubernetes");
        let output = Command::new(script).arg("--check").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn the_manifests_fit_the_schemas_of_kubernetes() {
    let Some(validate) = tool("kubernetes-validate", "kubernetes/bin/kubernetes-validate") else { return };
    for (name, file) in manifests() {
        let output = Command::new(&validate).arg("--strict").arg(file).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Everything that values can switch, in a few combinations.
const VALUES: [(&str, &str); 3] = [
    ("values.yaml", "{}"),
    (
        "values.yaml",
        r#"{image: {repository: registry.example.org/narval, digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"},
        imagePullSecrets: [{name: registry}], secrets: {environment: narval, keys: ""}, networkPolicy: {enabled: false}, service: {type: LoadBalancer, port: 443},
        serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/narval"}}, storage: {size: 1Ti, className: fast}}"#,
    ),
    (
        "values-cluster.yaml",
        r#"{replicas: 7, env: [], resources: {}, podAnnotations: {a: "1"}, nodeSelector: {disk: local}, podDisruptionBudget: {maxUnavailable: 2},
        tolerations: [{key: disk, operator: Equal, value: local, effect: NoSchedule}], terminationGracePeriodSeconds: 5,
        networkPolicy: {from: [{namespaceSelector: {matchLabels: {ci: "yes"}}}], ports: [{protocol: TCP, port: 9000}]}}"#,
    ),
];

#[test]
fn the_chart_is_right_for_other_values() {
    let Some(helm) = tool("helm", "helm") else { return };
    let (folder, chart) = (tempfile::tempdir().unwrap(), example("../helm/narval"));
    let validate = tool("kubernetes-validate", "kubernetes/bin/kubernetes-validate");
    for (number, (base, values)) in VALUES.iter().enumerate() {
        let file = folder.path().join(format!("{number}.yaml"));
        std::fs::write(&file, values).unwrap();
        let run = |args: &[&str]| {
            let mut command = Command::new(&helm);
            command.args(args).arg(&chart).arg("-f").arg(chart.join(base)).arg("-f").arg(&file);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{args:?}, {number}: {}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        run(&["lint", "--strict"]);
        // Helm that was built from its module takes an old Kubernetes for granted.
        std::fs::write(file.with_extension("made"), run(&["template", "--kube-version", "1.30.0", "narval"])).unwrap();
        let Some(validate) = &validate else { continue };
        let output = Command::new(validate).arg("--strict").arg(file.with_extension("made")).output().unwrap();
        assert!(output.status.success(), "{number}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_manifests_are_safe_and_their_configuration_is_valid() {
    for (name, file) in manifests() {
        let text = std::fs::read_to_string(file).unwrap();
        for part in [
            "runAsNonRoot: true",
            "readOnlyRootFilesystem: true",
            "allowPrivilegeEscalation: false",
            "capabilities: {drop: [ALL]}",
            "automountServiceAccountToken: false",
            "livenessProbe:",
            "readinessProbe:",
            "startupProbe:",
            "kind: PodDisruptionBudget",
            "kind: NetworkPolicy",
            "secretName: narval-keys",
        ] {
            assert!(text.contains(part), "{name}: {part}");
        }
        assert!(!text.contains("kind: Secret") && !text.contains("{{"), "{name}");
        let config = text.split("narval.toml: |\n").nth(1).unwrap().lines();
        let config: Vec<_> = config.map_while(|line| line.strip_prefix("    ")).collect();
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("cache.sec");
        let made = Command::new(NARVAL).args(["key", "generate", "cache-1", "--out"]).arg(&key).output().unwrap();
        assert!(made.status.success());
        let config = config.join("\n").replace("/run/narval/keys/cache.sec", key.to_str().unwrap());
        let config = config.replace("/var/lib/narval", folder.path().join("data").to_str().unwrap());
        let checked = folder.path().join("narval.toml");
        std::fs::write(&checked, config).unwrap();
        let output = Command::new(NARVAL).args(["config", "check"]).arg(&checked).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The balancer of the compose file, with addresses of this machine.
#[test]
fn nginx_accepts_the_balancer() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(example("nginx.conf")).unwrap();
    let text = text
        .replace("node-1:", "127.0.0.1:")
        .replace("node-2:", "127.0.0.2:")
        .replace("listen 80", "listen 127.0.0.1:0");
    let root = folder.path().display();
    let whole = format!("pid {root}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{text}\n}}\n");
    let file = folder.path().join("nginx.conf");
    std::fs::write(&file, whole.replace("listen 127.0.0.1:0", &format!("listen unix:{root}/socket"))).unwrap();
    let nginx = ["/usr/sbin/nginx", "nginx"].into_iter().find_map(|program| {
        Command::new(program).arg("-t").arg("-q").arg("-p").arg(folder.path()).arg("-c").arg(&file).output().ok()
    });
    let Some(output) = nginx else {
        eprintln!("note: skipped: there is no nginx here");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The drop-in belongs to the packaged unit.
#[test]
fn systemd_accepts_the_drop_in() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("note: skipped: there is no systemd-analyze here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(example("../systemd/narval-serve.service")).unwrap();
    let unit = unit.replace("/usr/bin/narval", NARVAL).replace("narval-serve.socket", "");
    std::fs::write(folder.path().join("narval-serve.service"), unit).unwrap();
    let drop_in = folder.path().join("narval-serve.service.d");
    std::fs::create_dir(&drop_in).unwrap();
    std::fs::copy(example("narval-serve.conf"), drop_in.join("scale-out.conf")).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(folder.path().join("narval-serve.service"));
    let output = verify.env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display())).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let ours: Vec<&str> = message.lines().filter(|line| line.contains("scale-out.conf")).collect();
    assert!(output.status.success() && ours.is_empty(), "{message}");
}
