//! `narval verify`: what it finds, advises and returns.

use crate::lab::Lab;

/// What is not in the store is not verified.
#[test]
fn what_is_not_there() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    let output_text = lab.fails(3, &["verify", "--store", &root]);
    assert!(output_text.contains("there is no store at"), "{output_text}");
    lab.install(&root, &[&lab.hello]);
    let output_text = lab.fails(3, &["verify", "--store", &root, &lab.hello, &lab.top]);
    assert!(output_text.contains(&format!("not in the store: {}", &lab.top["/nix/store/".len()..])), "{output_text}");
    assert!(!output_text.contains("hello"), "{output_text}");
    let output_text = lab.fails(3, &["verify", "--store", &root, "00000000000000000000000000000000"]);
    assert!(output_text.contains("not in the store: 00000000000000000000000000000000"), "{output_text}");
}

/// Each kind of fault is counted, and has its own advice.
#[test]
fn faults_by_kind() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    // Named by their contents: these need no signature.
    lab.install(&root, &[&lab.hello, &lab.top]);
    assert_eq!(lab.done(&["verify", "--store", &root]), "3 paths checked, 0 faulty, 0 repaired");
    let database = rusqlite::Connection::open(format!("{root}/nix/var/nix/db/db.sqlite")).unwrap();
    database.execute("update ValidPaths set ca = null", ()).unwrap();
    drop(database);
    let output_text = lab.fails(4, &["verify", "--store", &root]);
    assert!(output_text.contains("3 paths are faulty: 3 without a trusted signature; "), "{output_text}");
    assert!(output_text.contains("--trusted-public-key") && !output_text.contains("--repair"), "{output_text}");
    lab.done(&["verify", "--no-check-sigs", "--store", &root]);

    std::fs::remove_dir_all(format!("{root}{}", lab.hello)).unwrap();
    std::fs::write(format!("{root}{}/more", lab.tree), "").unwrap();
    let output_text = lab.fails(4, &["verify", "--store", &root]);
    let counts = "3 paths are faulty: 1 with changed files, 1 without files, 1 without a trusted signature; ";
    assert!(
        output_text.contains(counts)
            && output_text.contains("--repair")
            && output_text.contains("--trusted-public-key"),
        "{output_text}"
    );
    let output_text = lab.fails(4, &["verify", "--no-check-sigs", "--store", &root]);
    let counts = "2 paths are faulty: 1 with changed files, 1 without files; ";
    assert!(
        output_text.contains(counts) && output_text.contains("--repair") && !output_text.contains("--trusted"),
        "{output_text}"
    );
    let url = lab.cache_url();
    let repair = ["verify", "--no-check-sigs", "--repair", "--from", &url, "--store", &root];
    assert!(lab.done(&repair).ends_with("3 paths checked, 2 faulty, 2 repaired"));
    let output_text = lab.fails(4, &["verify", "--repair", "--from", &url, "--store", &root]);
    assert!(output_text.contains("3 paths are faulty: 3 without a trusted signature; "), "{output_text}");
}

/// `--json` ends with a summary, or with the error.
#[test]
fn json_has_an_end() {
    let lab = Lab::new();
    let root = lab.folder("mine");
    let last = |code: i32, args: &[&str]| -> serde_json::Value {
        let output = lab.run(&[args, &["--json", "--store", &root]].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        let objects: Vec<serde_json::Value> =
            output.stdout.split(|byte| *byte == b'\n').flat_map(serde_json::from_slice).collect();
        assert!(objects.iter().all(|object| object["v"] == 1), "{objects:?}");
        objects.last().unwrap().clone()
    };
    for command in [&["verify"][..], &["gc", "--dry-run"]] {
        let error = last(3, command);
        assert!(error["type"] == "error" && error["code"] == 3, "{error}");
        assert!(error["message"].as_str().unwrap().contains("there is no store at"), "{error}");
    }
    lab.install(&root, &[&lab.hello]);
    let well = last(0, &["verify"]);
    assert_eq!(well, serde_json::json!({"v": 1, "type": "summary", "checked": 1, "faulty": 0, "repaired": 0}));
    std::fs::remove_dir_all(format!("{root}{}", lab.hello)).unwrap();
    let faulty = last(4, &["verify"]);
    assert!(faulty["type"] == "error" && faulty["message"].as_str().unwrap().contains("1 without files"), "{faulty}");
    let collected = last(0, &["gc"]);
    assert!(collected["type"] == "summary" && collected["paths"].as_array().unwrap().len() == 1, "{collected}");
}
