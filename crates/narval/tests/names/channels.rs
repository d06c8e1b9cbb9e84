//! The files of a channel become an index: conditionally, whole or not at all, and once.

use crate::place::{Place, path};

#[test]
fn a_release_stays_until_the_names_are_updated() {
    let mut place = Place::new();
    assert!(place.done(&["install", "hello"]).contains(&path('0', "hello-2.12")));
    let asked = place.asked();
    assert!(asked.contains(&"/releases/one/packages.json.br".to_owned()), "the redirect is followed: {asked:?}");
    place.add(&path('a', "hello-2.13"), &[("bin/hello", "newer")], &[], None);
    place.package("hello", "hello", "2.13", serde_json::json!({}));
    place.publish("two");
    place.lead_to("two");
    assert!(place.done(&["install", "hello"]).contains(&path('0', "hello-2.12")));
    assert!(!place.asked().iter().any(|target| target.contains("packages.json")));
    let message = place.run(&["update"]);
    assert!(String::from_utf8_lossy(&message.stderr).contains("/releases/two"), "{message:?}");
    assert!(place.done(&["install", "hello"]).contains(&path('a', "hello-2.13")));
    place.asked();
    // The same release again: nothing is read but its revision.
    let same = place.run(&["update"]);
    assert!(String::from_utf8_lossy(&same.stderr).contains("nothing new"), "{same:?}");
    assert!(!place.asked().iter().any(|target| target.contains("packages.json")));
}

#[test]
fn a_channel_that_leads_nowhere_else_is_asked_by_its_tags() {
    let place = Place::new();
    let channel = format!("{}/releases/one", place.url);
    let update = |place: &Place| String::from_utf8(place.run(&["update", "--channel", &channel]).stderr).unwrap();
    assert!(update(&place).contains("names and"));
    place.asked();
    assert!(update(&place).contains("nothing new"));
    let heads = place.site.lock().unwrap().heads.join("\n").to_lowercase();
    assert_eq!(heads.matches("if-none-match").count(), 2, "{heads}");
    let mut place = place;
    place.package("new", "new", "1", serde_json::json!({}));
    place.publish("one");
    assert!(update(&place).contains("names and"));
}

#[test]
fn what_was_resolved_needs_no_network() {
    let place = Place::new();
    let message = place.fails(5, &["install", "--offline", "hello"]);
    assert!(message.contains("offline"), "{message}");
    place.done(&["install", "hello"]);
    place.asked();
    assert!(place.done(&["install", "--offline", "hello"]).contains(&path('0', "hello-2.12")));
    assert_eq!(place.asked(), Vec::<String>::new());
    // Its only path may be for any system: what a cache would tell.
    assert!(place.fails(3, &["install", "--offline", "vim"]).contains("no cache was asked: --offline"));
}

/// Sets back when a channel was asked last.
fn let_pass(place: &Place, days: u64) {
    let is_index = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "names");
    let index = place.names().into_iter().find(is_index).unwrap();
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(days * 86_400);
    std::fs::File::options().append(true).open(index).unwrap().set_modified(then).unwrap();
}

#[test]
fn names_of_an_age_are_asked_for_again_and_it_is_said_how_old_they_are() {
    let mut place = Place::new();
    place.done(&["install", "hello"]);
    place.add(&path('a', "hello-2.13"), &[("bin/hello", "newer")], &[], None);
    place.package("hello", "hello", "2.13", serde_json::json!({}));
    place.publish("two");
    place.lead_to("two");
    let_pass(&place, 3);
    place.asked();
    // Without the setting, and offline with it, names stay.
    for args in [&["install", "hello"][..], &["install", "--offline", "--names-age", "1d", "hello"]] {
        let message = place.run(args);
        let message = String::from_utf8_lossy(&message.stderr);
        assert!(message.contains("channel of 3 days ago") && message.contains("hello-2.12"), "{message}");
    }
    assert!(!place.asked().iter().any(|target| target.ends_with("git-revision")));
    assert!(place.done(&["install", "--names-age", "4d", "hello"]).contains("hello-2.12"));
    assert!(place.done(&["install", "--names-age", "1d", "hello"]).contains("hello-2.13"));
    // The same release: one conditional question, and then none for another day.
    let_pass(&place, 3);
    place.asked();
    for _ in 0..2 {
        let message = place.run(&["install", "--names-age", "1d", "hello"]);
        assert!(String::from_utf8_lossy(&message.stderr).contains("channel of just now"), "{message:?}");
    }
    let asked = place.asked();
    assert!(!asked.iter().any(|target| target.ends_with("packages.json.br")), "{asked:?}");
    assert_eq!(asked.iter().filter(|target| *target == "/channel/git-revision").count(), 1, "{asked:?}");
    // A channel that has nothing to read any more.
    place.lead_to("nowhere");
    let_pass(&place, 3);
    let message = place.run(&["install", "--names-age", "1d", "hello"]);
    assert!(String::from_utf8_lossy(&message.stderr).contains("stay those of 3 days ago"), "{message:?}");
    assert!(message.status.success());
}

/// Files that are small until they are decompressed.
#[test]
fn a_bomb_ends_with_one_line_and_changes_nothing() {
    let place = Place::new();
    place.done(&["update"]);
    let before = place.names();
    let good = br#"{"packages":{},"version":"2"}"#;
    let long = 9 << 20;
    let inside = |begin: &str, filling: u8| [begin.as_bytes(), &vec![filling; long]].concat();
    for (packages, message) in [
        (inside(r#"{"packages":{"#, b' '), "an entry of packages.json is too long"),
        (inside(r#"{"packages":{"a":{"name":""#, b'x'), "an entry of packages.json is too long"),
        (inside(r#"{"other":"#, b'['), "packages.json is not valid"),
        (inside("", b'{'), "packages.json is not valid"),
    ] {
        place.publish_files("bomb", &packages, b"/nix/store/00000000000000000000000000000000-a\n");
        place.lead_to("bomb");
        let all = place.fails(1, &["update"]);
        assert!(all.contains(message) && all.lines().count() == 1, "{message}: {all}");
    }
    for (filling, message) in [(b'\n', "exceeds the limit of 8000000 lines"), (b'/', "of the store paths is not valid")]
    {
        place.publish_files("bomb", good, &vec![filling; long]);
        let all = place.fails(1, &["update"]);
        assert!(all.contains(message) && all.lines().count() == 1, "{message}: {all}");
    }
    assert_eq!(place.names(), before);
    assert!(place.done(&["install", "hello"]).contains(&path('0', "hello-2.12")));
}

/// 10 GB of valid JSON: attributes with long descriptions, of which the index keeps the beginning. The compressed file has some megabytes.
#[test]
fn ten_gigabytes_of_valid_names_end_with_one_line_in_little_memory() {
    use std::io::Write;
    if cfg!(debug_assertions) {
        eprintln!("note: not tried: a gigabyte takes minutes without optimisation");
        return;
    }
    let place = Place::new();
    place.done(&["update"]);
    let before = place.names();
    let long = " ".repeat(900_000);
    let entry = format!(r#""a":{{"name":"a","meta":{{"description":"{long}"}}}},"#);
    let mut brotli = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22);
    brotli.write_all(br#"{"version":"2","packages":{"#).unwrap();
    // From the third time on, what is flushed for an entry is the same.
    let mut ends = Vec::new();
    for _ in 0..4 {
        brotli.write_all(entry.as_bytes()).unwrap();
        brotli.flush().unwrap();
        ends.push(brotli.get_ref().len());
    }
    let mut packed = brotli.get_ref().clone();
    let (third, fourth) = (packed[ends[1]..ends[2]].to_vec(), packed[ends[2]..].to_vec());
    assert_eq!(third, fourth);
    packed.extend(fourth.repeat(10_000_000_000 / entry.len()));
    place.publish_compressed("huge", packed, b"/nix/store/00000000000000000000000000000000-a\n");
    place.lead_to("huge");
    let narval = place.command(&["update"]);
    let mut limited = std::process::Command::new("sh");
    // In kilobytes, of address space.
    limited.args(["-c", "ulimit -v 1500000; exec \"$0\" update --quiet", crate::support::NARVAL]);
    limited.env_clear().envs(narval.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("packages.json exceeds the limit of 1073741824 bytes") && message.lines().count() == 1,
        "{message}"
    );
    assert_eq!(place.names(), before);
    place.lead_to("one");
    assert!(place.done(&["install", "hello"]).contains(&path('0', "hello-2.12")));
}

/// Each of these ends with one line, and the names that were there stay.
#[test]
fn a_torn_or_hostile_channel_changes_nothing() {
    let place = Place::new();
    place.done(&["update"]);
    let before: Vec<_> = place.names();
    let good = br#"{"packages":{},"version":"2"}"#;
    let nested = format!(
        r#"{{"packages":{{"a":{{"name":"a","meta":{{"license":{}{}}}}}}},"version":"2"}}"#,
        "[".repeat(1000),
        "]".repeat(1000)
    );
    let long = format!(
        r#"{{"packages":{{"a":{{"name":"a","meta":{{"description":"{}"}}}}}},"version":"2"}}"#,
        "x".repeat(4 << 20)
    );
    let list = "/nix/store/00000000000000000000000000000000-a\n";
    for (what, packages, paths) in [
        ("packages.json", &br#"{"packages":{"a":{"name":"a""#[..], list),
        ("packages.json", nested.as_bytes(), list),
        ("packages.json", long.as_bytes(), list),
        ("packages.json", br#"{"packages":{"a":{"name":"../a"}},"version":"2"}"#, list),
        ("packages.json", br#"{"packages":{"a\u0007":{"name":"a"}},"version":"2"}"#, list),
        ("packages.json", br#"{"packages":{},"version":"3"}"#, list),
        ("packages.json", br#"{"version":2}"#, list),
        ("line 1 of the store paths", good, "/etc/passwd\n"),
        (
            "line 2 of the store paths",
            good,
            "/nix/store/00000000000000000000000000000000-a\n/nix/store/00000000000000000000000000000000-a/b\n",
        ),
    ] {
        place.publish_files("bad", packages, paths.as_bytes());
        place.lead_to("bad");
        let message = place.fails(1, &["update"]);
        assert!(message.contains(what) && message.lines().count() == 1, "{what}: {message}");
    }
    // Files that end too early.
    for name in ["packages.json.br", "store-paths.xz"] {
        place.publish("torn");
        let key = format!("/releases/torn/{name}");
        let mut site = place.site.lock().unwrap();
        let half = site.files[&key].len() / 2;
        site.files.get_mut(&key).unwrap().truncate(half);
        drop(site);
        place.lead_to("torn");
        let message = place.fails(1, &["update"]);
        assert!(message.lines().count() == 1, "{message}");
    }
    assert_eq!(place.names(), before, "no temporary files are left");
    assert!(place.done(&["install", "hello"]).contains(&path('0', "hello-2.12")));
}

#[test]
fn two_at_once_are_right_and_a_damaged_index_is_made_again() {
    let place = Place::new();
    let children: Vec<_> = (0..4).map(|_| place.command(&["update", "--quiet"]).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let packages = place.asked().iter().filter(|target| target.ends_with("packages.json.br")).count();
    assert_eq!(packages, 1, "the others have waited for the first");
    let index = place.names().into_iter().find(|path| path.extension().is_some_and(|end| end == "names")).unwrap();
    let bytes = std::fs::read(&index).unwrap();
    std::fs::write(&index, &bytes[..bytes.len() / 2]).unwrap();
    assert!(place.done(&["install", "hello"]).contains(&path('0', "hello-2.12")));
}
