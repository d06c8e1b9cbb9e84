//! Profiles where Nix is, too: each of both works on what the other has made. The tests have a `/nix` and a network of their own, in namespaces.

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
    command
        .args(["--user", "--map-root-user", "--mount", "--net", "sh", "-c", &format!("{BEGIN}{script}")])
        .env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", home).env("root", folder.path().join("root"));
    command.env("narval", NARVAL).env("NARVAL_CHANNEL", "none").env("TMPDIR", folder.path());
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(99) || message.starts_with("unshare:") {
        eprintln!("note: skipped: no folder can be mounted here: {message}");
        return None;
    }
    assert!(output.status.success(), "{message}{}", String::from_utf8_lossy(&output.stdout));
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

/// What a channel of nixpkgs was for Narval is a branch of its repository for Nix: `nix profile upgrade` takes that, and `narval` knows afterwards what it is. Both servers
/// are a process on loopback, under the names of the real ones, in a network of the test's own.
#[test]
fn nix_upgrades_what_came_from_a_channel_of_nixpkgs() {
    let script = r#"
command -v python3 openssl ip > /dev/null || exit 99
ip link set lo up || exit 99
cd "$HOME"
printf '127.0.0.1 localhost channels.nixos.org api.github.com github.com\n' > hosts
mount --bind hosts /etc/hosts
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=test \
    -addext 'subjectAltName=DNS:channels.nixos.org,DNS:api.github.com,DNS:github.com' 2> /dev/null || exit 99
export NIX_SSL_CERT_FILE="$HOME/cert.pem" SSL_CERT_FILE="$HOME/cert.pem"
export NIX_CONFIG="$NIX_CONFIG
sandbox = false
build-users-group =
substituters =
flake-registry ="
revision=0123456789012345678901234567890123456789
mkdir "nixpkgs-$revision"
cat > "nixpkgs-$revision/flake.nix" << 'END'
{ outputs = _: { legacyPackages.x86_64-linux.hi = derivation { name = "hi-2.0"; system = "x86_64-linux"; builder = "/bin/sh";
    args = [ "-c" "PATH=/bin:/usr/bin; mkdir -p $out/bin; echo '#!/bin/sh\necho hi-2.0' > $out/bin/hi; chmod +x $out/bin/hi" ]; }; }; }
END
tar czf nixpkgs.tar.gz "nixpkgs-$revision"
mkdir -p channel cache
printf '%s' 'ffffffffffffffffffffffffffffffffffffffff' > channel/git-revision
printf '%s' '{"version":"2","packages":{"hi":{"name":"hi-1.0","pname":"hi","version":"1.0","system":"x86_64-linux","outputName":"out","outputs":{"out":null},"meta":{}}}}' \
    > channel/packages.json.br
printf '%s\n' "$hi" > channel/store-paths.xz
printf 'StoreDir: /nix/store\n' > cache/nix-cache-info
cat > site.py << 'END'
import http.server, json, os, ssl, sys
revision, files = sys.argv[1], {}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_HEAD(self): self.do_GET()
    def do_GET(self):
        host, body = self.headers["Host"].split(":")[0], None
        if host == "channels.nixos.org" and os.path.exists("channel/" + os.path.basename(self.path)):
            body = open("channel/" + os.path.basename(self.path), "rb").read()
        elif host == "api.github.com" and self.path == "/repos/NixOS/nixpkgs/commits/nixos-25.11":
            body = json.dumps({"sha": revision, "commit": {"tree": {"sha": revision}}}).encode()
        elif host == "github.com" and self.path.endswith(revision + ".tar.gz"):
            body = open("nixpkgs.tar.gz", "rb").read()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET": self.wfile.write(body or b"")
site = http.server.ThreadingHTTPServer(("127.0.0.1", 443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert.pem", "key.pem")
site.socket = context.wrap_socket(site.socket, server_side=True)
open("ready", "w").close()
site.serve_forever()
END
python3 site.py "$revision" &
site=$!
trap 'kill $site' EXIT
while [ ! -e ready ]; do kill -0 $site; sleep 0.05; done
"$narval" copy --quiet --store local --to "file://$HOME/cache" "$hi"
p="$HOME/p"
"$narval" install --quiet --store local --no-check-sigs --from "file://$HOME/cache" --channel nixos-25.11 --profile "$p" hi > /dev/null
is "$("$p/bin/hi")" hi-1.0
nix profile list --profile "$p" 2> /dev/null | grep -q 'github:NixOS/nixpkgs/nixos-25.11'
nix profile upgrade --profile "$p" hi
is "$("$p/bin/hi")" hi-2.0
case $("$narval" list --profile "$p") in "hi  2.0  nixos-25.11  "*) ;; *) "$narval" list --profile "$p"; exit 97 ;; esac
is "$("$narval" history --profile "$p" | cut -d ' ' -f 1 | tr '\n' ' ')" "1 2 "
is "$(grep -o "$revision" "$p/manifest.json" | sort -u)" "$revision"
"$narval" rollback --quiet --profile "$p"
is "$("$p/bin/hi")" hi-1.0
"#;
    run(script);
}
