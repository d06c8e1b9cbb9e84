//! Tokens that expire while a server runs, for every kind of request and connection.

use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use narval_keep::{CachePatterns, NewToken};

use crate::lab::{Lab, Nar};
use crate::support::{Answer, NARVAL, Nix, hash_part, stdout};

const PATH: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-test";

/// The time now, in seconds since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// A token that expires in about so many seconds, and when it does.
fn expiring(lab: &Lab, seconds: u64) -> (String, u64) {
    let expires = now().as_secs() + seconds;
    let new = NewToken {
        label: "short".to_owned(),
        caches: CachePatterns::all(),
        scopes: "push,pull".parse().unwrap(),
        expires: Some(expires),
    };
    (lab.data().tokens().create(&new).unwrap().1.to_string(), expires)
}

fn sleep_until(expires: u64) {
    std::thread::sleep(Duration::from_secs(expires).saturating_sub(now()));
}

/// Reads one answer of a connection that stays open.
fn answer(stream: &mut impl Read) -> Answer {
    let (mut raw, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(answer) = Answer::parse(&raw)
            && answer.complete
        {
            return answer;
        }
        let got = stream.read(&mut piece).unwrap();
        assert!(got > 0, "{:?}", String::from_utf8_lossy(&raw));
        raw.extend_from_slice(&piece[..got]);
    }
}

/// A private cache: what is remembered of a token ends with it, on connections that are open, too. What was accepted before is completed.
#[test]
fn a_token_that_expires_stops_working_at_once_and_uploads_under_way_complete() {
    // On a busy machine it may take a while to do what the token still allows. Then it is tried again with more time.
    let is_in_time = [4, 16, 64, 256].into_iter().any(expires_after);
    assert!(is_in_time, "four minutes were not enough for six requests");
}

/// The test with a token for so many seconds. Returns `false` if it expired before it was to.
fn expires_after(seconds: u64) -> bool {
    let lab = Lab::with(&["--private"]);
    let (nar, large) = (Nar::of(b"x"), Nar::of(&vec![7; 3_000_000]));
    let (token, expires) = expiring(&lab, seconds);
    let is_late = || now().as_secs() >= expires;
    let stored = lab.put(&nar.url(), &token, &nar.bytes).status;
    let narinfo = format!("/{}.narinfo", hash_part(PATH));
    let committed = lab.put(&narinfo, &token, nar.narinfo(PATH, &[]).as_bytes()).status;
    let get = format!("GET {narinfo} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {token}\r\n\r\n");
    let mut kept = lab.server.connect();
    let read = [(); 3].map(|()| {
        kept.write_all(get.as_bytes()).unwrap();
        answer(&mut kept).status
    });
    if is_late() {
        return false;
    }
    assert_eq!((stored, committed, read), (201, 201, [200; 3]));
    let mut upload = lab.server.connect();
    let head = format!(
        "PUT {} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        large.url(),
        large.bytes.len()
    );
    upload.write_all(head.as_bytes()).unwrap();
    // It may be refused if the token has expired. Once it has been accepted, it has a file.
    let is_sent = upload.write_all(&large.bytes[..1_000_000]).is_ok();
    let is_accepted = || std::fs::read_dir(lab.data_path().join("incoming")).unwrap().count() > 0;
    while !is_accepted() && !is_late() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let part = format!("/_narval/v1/nar/{}.nar", Nar::of(b"parts").hash.to_nix32());
    let begun = lab.put(&format!("{part}?offset=0"), &token, &Nar::of(b"parts").bytes[..50]).status;
    if is_late() {
        return false;
    }
    assert_eq!((begun, is_sent), (202, true));

    sleep_until(expires);
    kept.write_all(get.as_bytes()).unwrap();
    let refused = answer(&mut kept);
    assert_eq!(refused.status, 401);
    assert!(refused.text().contains("expired"), "{}", refused.text());
    assert_eq!(lab.send("GET", &narinfo, &token, &[], b"").status, 401);
    assert_eq!(lab.send("HEAD", &nar.url(), &token, &[], b"").status, 401);
    assert_eq!(lab.put("/nix-cache-info", &token, b"").status, 401);
    assert_eq!(lab.put(&format!("{part}?offset=50&last=1"), &token, &Nar::of(b"parts").bytes[50..]).status, 401);
    assert_eq!(lab.expect(&Nar::of(b"another").url(), &token, 10 << 20).status, 401);
    // It was accepted when it began.
    upload.write_all(&large.bytes[1_000_000..]).unwrap();
    assert_eq!(answer(&mut upload).status, 201, "{}", lab.server.log());
    // What comes next on the same connection was not.
    upload.write_all(get.as_bytes()).unwrap();
    assert_eq!(answer(&mut upload).status, 401);
    let listed = Command::new(NARVAL).args(["token", "list", "--data"]).arg(lab.data_path()).output().unwrap();
    assert!(stdout(listed).contains("expired"));
    true
}

#[test]
fn clients_are_told_that_their_token_has_expired() {
    let lab = Lab::new();
    let mut create = Command::new(NARVAL);
    create.args(["token", "create", "--push", "--expires", "1s", "short", "--data"]).arg(lab.data_path());
    let token = stdout(create.output().unwrap()).trim().to_owned();
    let expires = now().as_secs() + 2;
    let path = lab.store.add_file("file", "pushed too late");
    sleep_until(expires);
    for nix in Nix::BOTH {
        let message = lab.push(nix, &token, "", &path).unwrap_err();
        // 2.8 takes the 401 for the absence of a cache.
        let is_told =
            ["expired", "401", "does not appear to be a binary cache"].iter().any(|text| message.contains(text));
        assert!(is_told, "{nix:?}: {message}");
    }
    let file = lab.store.path("token");
    std::fs::write(&file, &token).unwrap();
    let mut push = Command::new(NARVAL);
    push.args(["push", "--store", &lab.store.uri(), "--to", &lab.server.url(), "--token-file"]).arg(&file).arg(&path);
    let output = push.env("HOME", lab.store.dir.path()).env_remove("NARVAL_STORE").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{message}");
    assert!(message.contains("expired") && !message.contains(&token), "{message}");
    assert_eq!(lab.get(&format!("/{}.narinfo", hash_part(&path))).status, 404);
}
