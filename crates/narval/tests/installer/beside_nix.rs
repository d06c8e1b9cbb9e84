//! Profiles where Nix is, too: each of both works on what the other has made. The tests have a `/nix` of their own, in a mount namespace.

use std::fs;
use std::process::Command;

use crate::support::{NARVAL, stdout};

/// What both tests begin with: a `/nix` in this folder, and three programs in its store.
const BEGIN: &str = r#"
set -e
mkdir -p "$root/nix" "$HOME"
mount --bind "$root/nix" /nix || exit 99
export NIX_CONFIG='extra-experimental-features = nix-command flakes'
add() {
    mkdir -p "$HOME/$1/bin"
    printf '#!/bin/sh\necho %s\n' "$1" > "$HOME/$1/bin/${1%-*}"
    chmod +x "$HOME/$1/bin/${1%-*}"
    nix-store --add "$HOME/$1"
}
named() { nix profile list --json --profile "$1" | tr ',{' '\n\n' | sed -n 's/^"\([a-z0-9-]*\)":$/\1/p' | grep -v -x elements | tr '\n' ' '; }
listed() { "$narval" list --profile "$1" | cut -d ' ' -f 1 | tr '\n' ' '; }
is() { [ "$1" = "$2" ] || { echo "'$1' is not '$2'"; exit 98; }; }
hi=$(add hi-1.0) newer=$(add hi-2.0) lo=$(add lo-1.0)
install() { "$narval" install --quiet --store local --offline "$@" > /dev/null; }
"#;

/// Runs a script in a namespace; `None` if that is not possible here.
fn run(script: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    fs::create_dir(folder.path().join("root")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &format!("{BEGIN}{script}")]).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", home).env("root", folder.path().join("root"));
    command.env("narval", NARVAL).env("NARVAL_CHANNEL", "none").env("TMPDIR", folder.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(99) || said.starts_with("unshare:") {
        eprintln!("note: skipped: no folder can be mounted here: {said}");
        return None;
    }
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    Some(stdout(output))
}

#[test]
fn nix_lists_and_changes_what_narval_installed_and_the_other_way_round() {
    let script = r#"
p="$HOME/p"
install --profile "$p" "$hi"
is "$(named "$p")" "hi "
case $(readlink "$p-1-link") in /nix/store/*-profile) ;; *) exit 97 ;; esac
nix profile add --profile "$p" "$lo" 2> /dev/null || nix profile install --profile "$p" "$lo"
is "$(listed "$p")" "hi lo "
is "$("$p/bin/lo")" lo-1.0
# The path of Nix's generation is kept, and so is ours.
nix-store --gc > /dev/null 2>&1
"$narval" gc --store local > /dev/null
is "$("$p/bin/hi")" hi-1.0
newer=$(nix-store --add "$HOME/hi-2.0")
install --profile "$p" "$newer"
is "$(named "$p")" "hi lo "
is "$("$p/bin/hi")" hi-2.0
nix profile remove --profile "$p" hi 2> /dev/null
is "$(listed "$p")" "lo "
"$narval" remove --quiet --store local --profile "$p" lo
is "$(named "$p")" ""
is "$("$narval" history --profile "$p" | cut -d ' ' -f 1 | tr '\n' ' ')" "1 2 3 4 5 "
"$narval" rollback --quiet --profile "$p" --to 2
is "$(named "$p")" "hi lo "
nix profile rollback --profile "$p" 2> /dev/null
is "$(listed "$p")" "hi "
# Nix has nothing to upgrade in what came from a path, and changes nothing.
nix profile upgrade --all --profile "$p" 2> /dev/null
is "$(listed "$p")" "hi "
# Generations that both have made are removed.
"$narval" gc --keep 0 --store local > /dev/null
is "$(ls "$HOME" | grep -c -- -link)" 1
is "$("$p/bin/hi")" hi-1.0
# Nix 2.8 writes version 2, and says that it cannot read another one.
lo=$(nix-store --add "$HOME/lo-1.0")
nix-old profile install --profile "$HOME/old" "$lo" 2> /dev/null
is "$(listed "$HOME/old")" "lo "
install --profile "$HOME/old" "$hi"
is "$(named "$HOME/old")" "hi lo "
nix-old profile list --profile "$HOME/old" 2>&1 | grep -q 'unsupported version 3'
"#;
    run(script);
}

/// `install` is killed before each of its changes: the profile is whole, what it shows is kept, and the next change works.
#[test]
fn a_kill_at_any_step_leaves_a_generation_of_the_store_whole() {
    let script = r#"
strace -f -qq -o /dev/null true 2> /dev/null || exit 99
kills=0
for call in mkdir symlink rename unlink rmdir flock write link; do
    step=1
    while :; do
        p="$HOME/$call-$step/p"
        mkdir "$HOME/$call-$step"
        hi=$(nix-store --add "$HOME/hi-1.0") lo=$(nix-store --add "$HOME/lo-1.0")
        install --profile "$p" "$hi"
        code=0
        strace -f -qq -o /dev/null -e "trace=?$call,?${call}at,?${call}at2" -e "inject=?$call,?${call}at,?${call}at2:signal=KILL:when=$step" \
            "$narval" install --quiet --store local --offline --profile "$p" "$lo" > /dev/null 2>&1 || code=$?
        case $(listed "$p") in "hi " | "hi lo ") ;; *) echo "$call $step: $(listed "$p")"; exit 97 ;; esac
        # Whatever there is of generations is kept whole.
        nix-store --gc > /dev/null 2>&1
        for link in "$p"-*-link; do
            for file in "$link"/bin/*; do "$file" > /dev/null || { echo "$call $step: $file"; exit 96; }; done
        done
        hi=$(nix-store --add "$HOME/hi-1.0") lo=$(nix-store --add "$HOME/lo-1.0")
        install --profile "$p" "$hi" "$lo"
        is "$(named "$p")" "hi lo "
        is "$(ls -a "$HOME/$call-$step" | grep -c tmp)" 0
        rm -rf "$HOME/$call-$step"
        [ $code = 0 ] && break
        kills=$((kills + 1)) step=$((step + 1))
        [ $step -lt 200 ]
    done
done
echo "$kills"
"#;
    if let Some(kills) = run(script) {
        assert!(kills.trim().parse::<usize>().unwrap() > 10, "{kills}");
    }
}
