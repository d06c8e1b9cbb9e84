//! The oldest and the latest Nix: 2.3 itself where the archive has it, and the requests of 2.35, which no archive has yet.

use std::collections::BTreeMap;
use std::process::Command;

use crate::lab::{Lab, Nar};
use crate::support::{NARVAL, Nix, Store, hash_part, stdout, value};

#[test]
fn nix_2_3_pushes_and_pulls() {
    if !Nix::has_oldest() {
        return;
    }
    let lab = Lab::of(Store::made_by(Nix::Oldest));
    let token = lab.token("push,pull");
    let (secret, public) = lab.store.key("oldest-1");
    let parameters = [
        "compression=none".to_owned(),
        "compression=xz".to_owned(),
        "compression=bzip2".to_owned(),
        "compression=br".to_owned(),
        // xz, its default
        String::new(),
        "write-nar-listing=1".to_owned(),
        "parallel-compression=true".to_owned(),
        format!("secret-key={}", secret.display()),
        format!("local-nar-cache={}", lab.store.path("nars").display()),
    ];
    for (number, parameters) in parameters.iter().enumerate() {
        let path = lab.store.add_tree(&format!("tree-{number}"));
        lab.push(Nix::Oldest, &token, parameters, &path).unwrap_or_else(|error| panic!("{parameters}: {error}"));
        let narinfo = lab.get(&format!("/{}.narinfo", hash_part(&path)));
        assert_eq!(narinfo.status, 200, "{parameters}");
        if parameters.contains("secret-key") {
            assert!(value(narinfo.text(), "Sig").unwrap().starts_with(public.split_once(':').unwrap().0));
        }
        for puller in [Nix::Oldest, Nix::Old, Nix::Newest] {
            lab.pull(puller, &path);
        }
        // Again: everything is there.
        lab.push(Nix::Oldest, &token, parameters, &path).unwrap();
    }
    // Its store is read by our client, and what newer ones push is read by it.
    let path = lab.store.add_tree("by-narval");
    let file = lab.store.path("token");
    std::fs::write(&file, &token).unwrap();
    let mut push = Command::new(NARVAL);
    push.args(["push", "--quiet", "--store", &lab.store.uri(), "--to", &lab.server.url(), "--token-file"]).arg(&file);
    stdout(push.arg(&path).env("HOME", lab.store.dir.path()).env_remove("NARVAL_STORE").output().unwrap());
    lab.pull(Nix::Newest, &path);
    let other = lab.store.add_tree("by-the-newest");
    lab.push(Nix::Newest, &token, "compression=xz", &other).unwrap();
    lab.pull(Nix::Oldest, &other);
    // Refusals are errors, and nothing is left of them.
    let refused = lab.store.add_file("refused", "refused");
    let wrong = format!("nv1_{}_{}", "0".repeat(16), "0".repeat(52));
    let read_only = lab.token("pull");
    for (token, status) in [(wrong, "401"), (read_only, "403")] {
        let message = lab.push(Nix::Oldest, &token, "", &refused).unwrap_err();
        assert!(message.contains(status) || message.contains("binary cache"), "{status}: {message}");
        assert_eq!(lab.get(&format!("/{}.narinfo", hash_part(&refused))).status, 404);
    }
}

/// A hash part, from a number.
fn part(number: usize) -> String {
    let digest = narval_nix::Sha256::of(&number.to_le_bytes());
    narval_nix::HashPart::from_digest(digest.as_bytes()[..20].try_into().unwrap()).to_string()
}

/// What `curl` is told to do, request by request; its connections are those of Nix 2.35: HTTP/2, and 125 requests at once.
struct Requests {
    lab: Lab,
    token: String,
    config: String,
    count: usize,
}

impl Requests {
    fn add(&mut self, method: &str, path: &str, body: Option<&[u8]>) {
        if self.count > 0 {
            self.config.push_str("next\n");
        }
        self.count += 1;
        let url = format!("https://{}{path}", self.lab.server.address);
        self.config.push_str(&format!(
            "url = \"{url}\"\noutput = \"/dev/null\"\nhttp2\ninsecure\nuser = \"nix:{}\"\n\
             write-out = \"%{{http_code}} %{{http_version}} %{{num_connects}} {method} {path}\\n\"\n",
            self.token
        ));
        match body {
            Some(body) => {
                let file = self.lab.store.path(&format!("body-{}", self.count));
                std::fs::write(&file, body).unwrap();
                self.config.push_str(&format!("upload-file = \"{}\"\n", file.display()));
            }
            None => self.config.push_str("head\n"),
        }
    }

    /// Sends them all; how many were answered with each status, and how many connections that took.
    fn send(&mut self) -> (BTreeMap<u16, usize>, usize) {
        let file = self.lab.store.path("requests");
        std::fs::write(&file, std::mem::take(&mut self.config)).unwrap();
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--parallel", "--parallel-max", "125", "--max-time", "120", "-K"]).arg(&file);
        let message = stdout(curl.output().unwrap());
        let (mut statuses, mut connections) = (BTreeMap::new(), 0);
        for line in message.lines() {
            let mut words = line.split(' ');
            *statuses.entry(words.next().unwrap().parse().unwrap()).or_insert(0) += 1;
            assert_eq!(words.next(), Some("2"), "{line}");
            connections += words.next().unwrap().parse::<usize>().unwrap();
        }
        assert_eq!(message.lines().count(), std::mem::take(&mut self.count), "{message}");
        (statuses, connections)
    }
}

/// Nix 2.35 uploads all NARs first, the largest first and without regard to references, then narinfos in the order of their references, and
/// realisations under their new name; 125 requests at once on one connection.
#[test]
fn nix_2_35_uploads_nars_first_and_125_at_once_over_http_2() {
    const LEVELS: usize = 5;
    const WIDE: usize = 25;
    // Until it knows that the server takes more, libcurl sends 100 requests on a connection; each of the others gets its own.
    const CONNECTIONS_MAX: usize = 1 + 25;
    let (lab, _) = Lab::over_tls(&[]);
    let token = lab.token("push");
    let mut requests = Requests { lab, token, config: String::new(), count: 0 };
    let nars: Vec<_> =
        (0..LEVELS * WIDE).map(|number| Nar::of(&number.to_le_bytes().repeat(1 + number * 300))).collect();
    let of = |count: usize, status: u16| BTreeMap::from([(status, count)]);
    for nar in &nars {
        requests.add("HEAD", &nar.url(), None);
    }
    let (statuses, connections) = requests.send();
    assert_eq!(statuses, of(nars.len(), 404));
    assert!(connections <= CONNECTIONS_MAX, "{connections} connections");
    for nar in nars.iter().rev() {
        requests.add("PUT", &nar.url(), Some(&nar.bytes));
    }
    let (statuses, connections) = requests.send();
    assert_eq!(statuses, of(nars.len(), 201), "{}", requests.lab.server.log());
    assert!(connections <= CONNECTIONS_MAX, "{connections} connections");
    let name = |number: usize| format!("{}-x", part(number));
    for level in 0..LEVELS {
        for (number, nar) in nars.iter().enumerate().skip(level * WIDE).take(WIDE) {
            // Each refers to itself and to all of the level before.
            let below = (level.saturating_sub(1) * WIDE..level * WIDE).map(name);
            let references: Vec<_> = below.chain([name(number)]).collect();
            let references: Vec<_> = references.iter().map(String::as_str).collect();
            let narinfo = nar.narinfo(&name(number), &references);
            requests.add("PUT", &format!("/{}.narinfo", part(number)), Some(narinfo.as_bytes()));
        }
        assert_eq!(requests.send().0, of(WIDE, 201), "{}", requests.lab.server.log());
    }
    // Realisations: a folder for each derivation.
    let trace = |number: usize| format!("/build-trace-v2/{}-x.drv/out.doi", part(number));
    let realisation = |number: usize| format!("{{\"outPath\":\"{}\",\"signatures\":[]}}", name(number));
    for number in 0..WIDE {
        requests.add("PUT", &trace(number), Some(realisation(number).as_bytes()));
    }
    assert_eq!(requests.send().0, of(WIDE, 201));
    // The same copy again: NARs are asked for, and nothing is sent.
    for nar in &nars {
        requests.add("HEAD", &nar.url(), None);
    }
    assert_eq!(requests.send().0, of(nars.len(), 200));
    let lab = requests.lab;
    let get = |path: &str| {
        let url = format!("https://{}{path}", lab.server.address);
        let output = Command::new("curl").args(["-skf", &url]).output().unwrap();
        assert!(output.status.success(), "{path}");
        output.stdout
    };
    for (number, nar) in nars.iter().enumerate() {
        assert!(get(&nar.url()) == nar.bytes);
        assert!(String::from_utf8(get(&format!("/{}.narinfo", part(number)))).unwrap().contains(&name(number)));
    }
    assert_eq!(get(&trace(3)), realisation(3).into_bytes());
}
