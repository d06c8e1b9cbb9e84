//! Someone who does what a page says, on a machine where nothing of ours is installed.

use std::collections::HashMap;

use crate::machine::Machine;
use crate::page::{Step, steps};
use crate::support::stdout;
use crate::terminal::{STRICT, Terminal};

/// The names that the pages have for the reader's own machines: this one.
const HOSTS: &str = "cache cache.example.org a.example.org db.example.org";

/// The names that they have for servers of others.
const OTHERS: &str = "cache.nixos.org attic.example.org mycache.cachix.org example.org";

/// What a company, a registry and SSH do for the reader: certificates of an authority that this machine trusts, and copying from the server's home.
const SURROUNDINGS: &str = r#"
cat > /usr/local/bin/scp <<'END'
#!/bin/sh
cp "/root/${1#*:}" "$2"
END
chmod +x /usr/local/bin/scp
[ -e /shared/authority ] || {
mkdir -p /shared/authority && cd /shared/authority
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=authority' -keyout ca.key -out ca.pem 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=server' -keyout privkey.pem -out server.csr 2>/dev/null
for name in $HOSTS $OTHERS; do names=${names:-}${names:+,}DNS:$name; done
printf 'subjectAltName=%s\n' "$names" > names
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -days 30 -extfile names -out server.pem 2>/dev/null
cat server.pem ca.pem > fullchain.pem
}
cat /shared/authority/ca.pem >> /etc/ssl/certs/ca-certificates.crt
ip netns add internet
ip link add lan type veth peer name wan netns internet
ip addr add 192.0.2.1/24 dev lan && ip link set lan up
ip -n internet link set wan up && ip -n internet link set lo up
"#;

/// Packages, for the names that pages have after `…-`.
const PACKAGES: &str = r#"
let
  package = name: needs: derivation {
    inherit name needs;
    system = builtins.currentSystem;
    builder = "/bin/sh";
    PATH = "/bin:/usr/bin";
    program = builtins.head (builtins.split "-" name);
    args = [ "-c" ''
      mkdir -p $out/bin $out/share/doc/$program
      printf '#!/bin/sh\necho "this is %s, which needs %s"\n' "$name" "$needs" > $out/bin/$program
      chmod +x $out/bin/$program
      echo "about $name" > $out/share/doc/$program/README
    '' ];
  };
in rec {
  glibc = package "glibc-2.42" [ ];
  hello = package "hello-2.12" [ glibc ];
  git = package "git-2.47" [ glibc ];
  emacs = package "emacs-29.4" [ glibc ];
  app = package "app" [ hello ];
  secret = package "secret" [ ];
}
"#;

pub(crate) struct Reader {
    pub(crate) machine: Machine,
    terminals: HashMap<String, Terminal>,
    /// The terminal that was used last.
    last: String,
    /// What is on the pages, and what is in its place here.
    places: Vec<(String, String)>,
    logs: tempfile::TempDir,
    /// How many servers of others there are.
    others: usize,
}

impl Reader {
    /// `None`: there can be no such machine here. What is in `shared` outlives the machine: the readers' homes, and what others have.
    pub(crate) fn new(shared: &std::path::Path) -> Option<Self> {
        let machine = Machine::boot(shared)?;
        let hosts = format!("printf '127.0.0.1 localhost {HOSTS}\\n::1 localhost\\n' > /etc/hosts");
        machine.run(&format!("{hosts}; HOSTS='{HOSTS}' OTHERS='{OTHERS}'\n{SURROUNDINGS}"));
        let logs = tempfile::tempdir().unwrap();
        Some(Self { machine, terminals: HashMap::new(), last: String::new(), places: Vec::new(), logs, others: 0 })
    }

    /// Starts a server of somebody else, over HTTPS: Narval with these arguments.
    pub(crate) fn stand_in(&mut self, host: &str, arguments: &str) {
        self.others += 1;
        let address = format!("192.0.2.{}", self.others + 1);
        let narval = "/root/narval/target/release/narval";
        self.machine.run(&format!(
            "ip -n internet addr add {address}/24 dev wan; echo {address} {host} >> /etc/hosts; mkdir -p /shared/{host} && cd /shared/{host}
             [ -e key.sec ] || {narval} key generate {host}-1 --out key.sec > key.pub
             ip netns exec internet setsid {narval} {arguments} --listen {address}:443 --tls-cert /shared/authority/fullchain.pem \
               --tls-key /shared/authority/privkey.pem > log 2>&1 &
             echo $! > pid"
        ));
        self.machine.wait_for(&format!("grep -q 'listening on' /shared/{host}/log"));
    }

    /// Ends what [`stand_in`](Self::stand_in) has started for a host.
    pub(crate) fn ends(&self, host: &str) {
        self.machine.run(&format!("kill $(cat /shared/{host}/pid)"));
    }

    /// Has a text of the pages stand for another one.
    pub(crate) fn replace(&mut self, on_the_page: &str, here: &str) {
        self.places.push((on_the_page.to_owned(), here.to_owned()));
    }

    /// Installs the program, where the page takes it that this was done.
    pub(crate) fn install(&self) {
        self.machine.run("install -m 755 /root/narval/target/release/narval /usr/bin/narval");
    }

    /// Starts what is in the place of cache.nixos.org, with a key of its own.
    pub(crate) fn cache_nixos_org(&mut self) {
        self.stand_in("cache.nixos.org", "serve --data data --sign-key key.sec");
        let key = self.machine.run("cat /shared/cache.nixos.org/key.pub");
        self.replace("cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=", key.trim());
    }

    /// Builds the packages that the pages name, and `result` in the laptop's home.
    pub(crate) fn build(&mut self) {
        self.prepare("laptop", &format!("cat > default.nix <<'END'\n{PACKAGES}END\nnix-build -A app 2>/dev/null"));
        let paths = self.machine.run("nix-build --no-out-link /shared/laptop/default.nix 2>/dev/null");
        for path in paths.lines() {
            let name = path.strip_prefix("/nix/store/").unwrap();
            self.places.push((format!("…{}", &name[32..]), name.to_owned()));
        }
    }

    /// A path that was built, by its name.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("/nix/store/{}", self.here(&format!("…-{name}")))
    }

    fn here(&self, text: &str) -> String {
        self.places.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Runs commands that no page shows.
    pub(crate) fn prepare(&mut self, terminal: &str, commands: &str) {
        self.act(&Step::Run { terminal: terminal.to_owned(), commands: commands.to_owned() });
    }

    /// Does what a page, or a part of it, says.
    pub(crate) fn follow(&mut self, text: &str) {
        let steps = steps(text);
        assert!(steps.iter().any(|step| matches!(step, Step::Run { .. })), "no commands: {text}");
        steps.iter().for_each(|step| self.act(step));
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Run { terminal, commands } => {
                let commands = self.here(commands);
                if !self.terminals.contains_key(terminal) {
                    let opened = self.open(terminal);
                    self.terminals.insert(terminal.clone(), opened);
                }
                self.terminals.get_mut(terminal).unwrap().run(&commands);
                self.last.clone_from(terminal);
            }
            Step::Write { path, text } => {
                let text = self.here(text);
                self.machine.run(&format!("mkdir -p $(dirname {path}) && cat > {path} <<'END'\n{text}END\n"));
            }
            Step::Prints(text) => self.terminals[&self.last].shows(&self.here(text)),
            Step::Browse(path) => panic!("{path}: there is no browser on this machine"),
            Step::Interrupt => self.terminals["server"].interrupt(),
        }
    }

    /// The terminals `server` and `admin` are the machine's; every other one has a home that outlives it.
    fn open(&self, name: &str) -> Terminal {
        let home = if ["server", "admin"].contains(&name) { "/root".to_owned() } else { format!("/shared/{name}") };
        self.machine.run(&format!("mkdir -p {home}"));
        let inside = self.machine.command("env");
        // Ctrl-C is for what runs in the shell, and not for what leads into the machine.
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", r#"trap '' INT; exec "$@""#, "sh"]).arg(inside.get_program()).args(inside.get_args());
        shell.env_clear().envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.args(["-C", &home]).arg(format!("HOME={home}")).arg("bash").args(STRICT);
        Terminal::open(name, shell, self.logs.path().join(name))
    }

    /// Has Nix install a path from a cache into an empty store, where only this key is trusted.
    pub(crate) fn installs(&self, cache: &str, key: &str, path: &str) {
        let script = format!(
            "dir=$(mktemp -d) && export HOME=$dir && nix --extra-experimental-features nix-command copy --from '{cache}' --to $dir/store \
             --option require-sigs true --option trusted-public-keys '{key}' {path} && ls -d $dir/store{path}"
        );
        self.machine.run(&script);
    }

    /// The key that a cache publishes; no client has to know it before.
    pub(crate) fn key(&self, cache: &str) -> String {
        let info = stdout(self.machine.try_run(&format!("curl -sSf {cache}/nix-cache-info")));
        let key = info.lines().find_map(|line| line.strip_prefix("PublicKey: "));
        key.unwrap_or_else(|| panic!("{cache} publishes no key: {info}")).to_owned()
    }
}
