//! The push protocol of `docs/push-protocol.md`.

use std::fs;
use std::io::Write;
use std::time::Duration;

use narval_nix::Sha256;

use crate::lab::{Lab, Nar};
use crate::support::{Answer, hash_part, noise};

const ONE: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-one";
const TWO: &str = "7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc-two";

fn nar_url(nar: &Nar, extension: &str) -> String {
    format!("/_narval/v1/nar/{}.nar{extension}", nar.hash.to_nix32())
}

/// The narinfo of a path with the lines that its upload was answered with.
fn narinfo(path: &str, uploaded: &Answer, references: &[&str]) -> String {
    format!("StorePath: /nix/store/{path}\n{}References: {}\n", uploaded.text(), references.join(" "))
}

fn commit(lab: &Lab, token: &str, narinfos: &[(&str, String)]) -> Answer {
    let mut body = String::new();
    for (path, text) in narinfos {
        body.push_str(&format!("{} {}\n{text}", hash_part(path), text.len()));
    }
    body.push_str(&format!("end {}\n", narinfos.len()));
    lab.post("/_narval/v1/commit", token, body.as_bytes())
}

#[test]
fn a_closure_takes_one_query_its_nars_and_one_commit() {
    let lab = Lab::new();
    let token = lab.token("push");
    let asked = format!("{}\n{}\n", hash_part(ONE), hash_part(TWO));
    let missing = |lab: &Lab| lab.post("/_narval/v1/missing", &token, asked.as_bytes()).text().to_owned();
    assert_eq!(missing(&lab), format!("{asked}end 2\n"));
    let (one, two) = (Nar::of(b"one"), Nar::of(&noise(1, 300_000)));
    let upload = |nar: &Nar| {
        let compressed = zstd::bulk::compress(&nar.bytes, 1).unwrap();
        let answer = lab.put(&nar_url(nar, ".zst"), &token, &compressed);
        assert_eq!(answer.status, 201, "{}", answer.text());
        assert!(answer.text().contains("Compression: zstd\n"));
        assert!(answer.text().contains(&format!("FileHash: sha256:{}\n", Sha256::of(&compressed).to_nix32())));
        assert!(answer.text().contains(&format!("NarSize: {}\n", nar.bytes.len())));
        // Nothing is sent twice, and the answer is the same.
        let again = lab.expect(&nar_url(nar, ".zst"), &token, 1 << 20);
        assert_eq!((again.status, again.text()), (200, answer.text()));
        let other = lab.expect(&nar_url(nar, ".xz"), &token, 1 << 20);
        assert_eq!((other.status, other.text()), (200, answer.text()), "with another compression");
        answer
    };
    let (one, two) = (upload(&one), upload(&two));
    assert_eq!(missing(&lab), format!("{asked}end 2\n"), "nothing is visible yet");
    // The first refers to the second, which comes later.
    let all = [(ONE, narinfo(ONE, &one, &[TWO])), (TWO, narinfo(TWO, &two, &[]))];
    let answer = commit(&lab, &token, &all);
    let want = format!("{} created\n{} created\nend 2\n", hash_part(ONE), hash_part(TWO));
    assert_eq!((answer.status, answer.text()), (200, &*want));
    assert_eq!(missing(&lab), "end 0\n");
    let again = commit(&lab, &token, &all);
    assert_eq!(again.text(), want.replace("created", "merged"));
    assert_eq!(lab.get(&format!("/{}.narinfo", hash_part(ONE))).status, 200);
}

#[test]
fn a_commit_is_visible_as_a_whole_or_not_at_all() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    let uploaded = lab.put(&nar_url(&nar, ""), &token, &nar.bytes);
    let answer = commit(
        &lab,
        &token,
        &[
            (TWO, narinfo(TWO, &uploaded, &[])),
            (ONE, narinfo(ONE, &uploaded, &["rhmnlzcs8rd6nrjl8r7b2q0ja7fnc4ld-missing"])),
        ],
    );
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(answer.text().contains("-missing"), "{}", answer.text());
    assert_eq!(lab.get(&format!("/{}.narinfo", hash_part(TWO))).status, 404);
    for malformed in ["", "end 1\n", "x 1\ny", &format!("{} 5\nabc", hash_part(ONE))] {
        assert_eq!(lab.post("/_narval/v1/commit", &token, malformed.as_bytes()).status, 400, "{malformed:?}");
    }
    assert_eq!(lab.post("/_narval/v1/missing", &token, b"short\n").status, 400);
}

#[test]
fn a_nar_in_parts_resumes_where_it_was_interrupted() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&noise(1, 500_000));
    let part = |offset: usize, length: usize, last: bool| {
        let query = format!("?offset={offset}{}", if last { "&last=1" } else { "" });
        let body = &nar.bytes[offset..(offset + length).min(nar.bytes.len())];
        lab.put(&format!("{}{query}", nar_url(&nar, "")), &token, body)
    };
    let progress = |token: &str| {
        let answer = lab.send("HEAD", &nar_url(&nar, ""), token, &[], b"");
        (answer.status, answer.field("upload-offset").map(ToOwned::to_owned))
    };
    assert_eq!(progress(&token), (404, None));
    let first = part(0, 200_000, false);
    assert_eq!((first.status, first.field("upload-offset")), (202, Some("200000")));
    assert_eq!(progress(&token), (404, Some("200000".to_owned())));
    assert_eq!(progress(&lab.token("push")), (404, None), "an upload belongs to its token");
    let wrong = part(100_000, 10, false);
    assert_eq!((wrong.status, wrong.field("upload-offset")), (409, Some("200000")));
    assert_eq!(part(200_000, 100_000, false).status, 202);
    let last = part(300_000, usize::MAX / 2, true);
    assert_eq!(last.status, 201, "{}", last.text());
    assert_eq!(progress(&token).0, 200);
    assert_eq!(lab.get(&nar.url()).body, nar.bytes);
    lab.nothing_incoming();
}

#[test]
fn a_part_that_trickles_holds_nobody_up() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(&noise(1, 500_000));
    let part = |offset: usize, end: usize, query: &str| {
        lab.put(&format!("{}?offset={offset}{query}", nar_url(&nar, "")), &token, &nar.bytes[offset..end])
    };
    assert_eq!(part(0, 100_000, "").status, 202);
    let mut trickling = lab.server.connect();
    let head = format!(
        "PUT {}?offset=100000 HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: 100000\r\n\r\n",
        nar_url(&nar, "")
    );
    trickling.write_all(head.as_bytes()).unwrap();
    trickling.write_all(&nar.bytes[100_000..180_000]).unwrap();
    // It is written to its file while it arrives.
    let is_written = || {
        let files = fs::read_dir(lab.data_path().join("incoming")).unwrap().flatten();
        files.filter_map(|file| file.metadata().ok()).any(|file| file.len() > 100_000)
    };
    while !is_written() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // More requests at a time than there are workers; each of them would wait for the part.
    let ask = || {
        for _ in 0..10 {
            let answer = lab.send("HEAD", &nar_url(&nar, ""), &token, &[], b"");
            assert_eq!((answer.status, answer.field("upload-offset")), (404, Some("100000")));
        }
    };
    std::thread::scope(|scope| (0..100).for_each(|_| drop(scope.spawn(ask))));
    assert_eq!(lab.get("/health").status, 200);
    // A client that resumes has given the connection up.
    assert_eq!(part(100_000, 200_000, "").field("upload-offset"), Some("200000"));
    let last = part(200_000, nar.bytes.len(), "&last=1");
    assert_eq!(last.status, 201, "{}", last.text());
    drop(trickling);
    assert_eq!(lab.get(&nar.url()).body, nar.bytes);
}

#[test]
fn parts_that_are_wrong_leave_nothing() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nar = Nar::of(b"x");
    let put = |query: &str, body: &[u8]| lab.put(&format!("{}{query}", nar_url(&nar, "")), &token, body).status;
    assert_eq!(put("?offset=0&last=1", &nar.bytes[..50]), 422);
    assert_eq!(put("?offset=0", &nar.bytes[..50]), 202);
    assert_eq!(put("?offset=50&last=1", b"not the rest"), 422);
    for query in ["?offset=x", "?last=1", "?offset=0&other=1"] {
        assert_eq!(put(query, b"x"), 400, "{query}");
    }
    assert_eq!(lab.expect(&format!("{}?offset=0", nar_url(&nar, "")), &token, (32 << 20) + 1).status, 413);
    lab.nothing_incoming();
    assert_eq!(put("?offset=0&last=1", &nar.bytes), 201);
}

#[test]
fn a_nar_of_another_hash_is_not_stored() {
    let lab = Lab::new();
    let token = lab.token("push");
    let (named, sent) = (Nar::of(b"named"), Nar::of(b"sent"));
    let answer = lab.put(&nar_url(&named, ""), &token, &sent.bytes);
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert_eq!(lab.send("HEAD", &sent.url(), "", &[], b"").status, 404);
}

#[test]
fn small_nars_are_sent_in_one_request() {
    let lab = Lab::new();
    let token = lab.token("push");
    let nars = [Nar::of(b"one"), Nar::of(b"two")];
    let body = |nars: &[(&Nar, &[u8])]| {
        let mut body = Vec::new();
        for (nar, file) in nars {
            body.extend_from_slice(format!("{}.nar {}\n", nar.hash.to_nix32(), file.len()).as_bytes());
            body.extend_from_slice(file);
        }
        [&body, format!("end {}\n", nars.len()).as_bytes()].concat()
    };
    let send = |body: &[u8]| lab.post("/_narval/v1/nars", &token, body);
    let answer = send(&body(&[(&nars[0], &nars[0].bytes), (&nars[1], &nars[1].bytes)]));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut wanted = String::new();
    for nar in &nars {
        // The same lines as for a NAR alone.
        let lines = lab.expect(&nar_url(nar, ""), &token, 1 << 20);
        assert_eq!(lines.status, 200);
        wanted.push_str(&format!("{}.nar {}\n{}", nar.hash.to_nix32(), lines.text().len(), lines.text()));
    }
    assert_eq!(answer.text(), format!("{wanted}end 2\n"));
    // What is not what its name says, incomplete, too much, or from somebody else.
    let new = Nar::of(b"new");
    let damaged = send(&body(&[(&new, &nars[0].bytes)]));
    assert!(damaged.status == 422 && damaged.text().contains(&new.hash.to_nix32()), "{}", damaged.text());
    let complete = body(&[(&new, &new.bytes)]);
    assert_eq!(send(&complete[..complete.len() - 1]).status, 400);
    assert_eq!(send(b"x.nar 1\nxend 1\n").status, 400);
    assert_eq!(send(&noise(1, (8 << 20) + 1)).status, 413);
    assert_eq!(lab.post("/_narval/v1/nars", "", &complete).status, 401);
    assert_eq!(send(&complete).status, 200);
    // A cache in a folder gains nothing by it.
    assert!(!lab.get("/nix-cache-info").text().contains("NarvalPushNars"));
}
