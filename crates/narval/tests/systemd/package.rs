//! The Debian package of tools/build-deb: installed, upgraded, removed and purged by real dpkg, on a machine with a real systemd.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::machine::Machine;
use super::support::NARVAL;

/// Builds the package of the programs of this build.
fn build(folder: &Path, version: &str) -> PathBuf {
    let mut build = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/build-deb"));
    build.arg(Path::new(NARVAL).parent().unwrap()).arg(folder);
    // Compressing a hundred megabytes of debug information is not what is tested.
    build.env("VERSION", version).env("NARVAL_DEB_COMPRESSION", "none").env("SOURCE_DATE_EPOCH", "1700000000");
    let output = build.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// Images of containers leave out what is in there.
const DPKG: &str = "dpkg --path-include='/usr/share/*'";

#[test]
fn dpkg_installs_upgrades_removes_and_purges_the_package() {
    if super::is_missing("dpkg-deb") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (build(folder.path(), "0.0.1"), build(folder.path(), "0.0.2"));
    let again = tempfile::tempdir().unwrap();
    assert!(
        std::fs::read(build(again.path(), "0.0.2")).unwrap() == std::fs::read(&second).unwrap(),
        "the same programs make another package"
    );
    let Some(machine) = Machine::boot(folder.path()) else { return };
    let inside = |package: &Path| format!("/shared/{}", package.file_name().unwrap().to_str().unwrap());

    machine.run(&format!("{DPKG} -i {}", inside(&first)));
    assert_eq!(machine.run("dpkg-query -W -f '${Status} ${Version}' narval"), "install ok installed 0.0.1");
    machine.run("id narval && id narval-push && narval --version && nix-serve --version && narval config check /etc/narval/serve.toml");
    machine.run(
        "test -s /usr/share/man/man1/narval-serve.1.gz && zcat /usr/share/man/man1/narval.1.gz | grep -q 'narval.-serve'",
    );
    machine.run("bash -c '. /usr/share/bash-completion/completions/narval && complete -p narval'");
    assert_eq!(machine.run("stat -c '%a %U' /etc/narval/keys /etc/narval/tokens"), "700 root\n700 root\n");
    assert_eq!(machine.run("dpkg --verify narval"), "");
    // Nothing serves this machine's store before somebody says so.
    let is_active = "systemctl is-active narval-serve.service narval-serve.socket narval-watch-store.service || true";
    assert_eq!(machine.run(is_active), "inactive\ninactive\ninactive\n");

    machine.run(
        "echo 'data = \"/var/lib/narval\"' >> /etc/narval/serve.toml && systemctl enable --now narval-serve.service",
    );
    machine.run("narval key generate a-1 --out /etc/narval/keys/a.sec && curl -sSf http://127.0.0.1:5000/ready");
    let pid = machine.run("systemctl show -P MainPID narval-serve.service");
    machine.run(&format!("{DPKG} -i {}", inside(&second)));
    assert_eq!(machine.run("dpkg-query -W -f '${Status} ${Version}' narval"), "install ok installed 0.0.2");
    machine.run("curl -sSf http://127.0.0.1:5000/ready && grep -q '^data = ' /etc/narval/serve.toml");
    assert_ne!(machine.run("systemctl show -P MainPID narval-serve.service"), pid, "the old program still runs");

    machine.run("dpkg -r narval");
    assert_eq!(machine.run("systemctl is-active narval-serve.service || true").trim(), "inactive");
    machine.run("test -e /etc/narval/serve.toml && test ! -e /usr/bin/narval && test ! -e /etc/systemd/system/multi-user.target.wants/narval-serve.service");
    machine.run("dpkg -P narval");
    machine.run("test ! -e /etc/narval/serve.toml && test ! -e /var/cache/private/narval");
    // A cache and its keys can't be made again.
    machine.run("test -s /var/lib/narval/index.sqlite && test -s /etc/narval/keys/a.sec");
}
