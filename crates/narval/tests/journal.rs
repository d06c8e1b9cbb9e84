//! What a service of systemd says: lines with their priority, if the journal records its standard error.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// Where the journal says that it listens, if it is this file.
fn stream(file: &File) -> String {
    let found = file.metadata().unwrap();
    format!("{}:{}", found.dev(), found.ino())
}

#[test]
fn lines_have_their_priority_where_the_journal_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let said = |name: &str, stream_of: fn(&File) -> Option<String>| {
        let file = folder.path().join(name);
        let log = File::create(&file).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_narval"));
        // Nobody listens at this address: a warning, then an error.
        command.args(["follow", "@web", "--once", "--from", "http://127.0.0.1:1", "--attempts", "1", "--profile"]);
        command.arg(folder.path().join("profile")).arg("--store").arg(folder.path().join("store"));
        command.env("HOME", folder.path()).env_remove("JOURNAL_STREAM").env_remove("NARVAL_LOG_FORMAT");
        command.envs(stream_of(&log).map(|stream| ("JOURNAL_STREAM", stream)));
        let status = command.stdout(Stdio::null()).stderr(log).status().unwrap();
        assert_eq!(status.code(), Some(5));
        std::fs::read_to_string(&file).unwrap()
    };
    let journal = said("journal", |log| Some(stream(log)));
    assert!(journal.lines().count() >= 2 && journal.lines().all(|line| line.starts_with("<3>")), "{journal}");
    assert!(journal.lines().last().unwrap().starts_with("<3>narval: "), "{journal}");
    // The variable is inherited by programs whose standard error is another one.
    for (name, stream_of) in [("another", (|_| Some("1:2".to_owned())) as fn(&File) -> _), ("none", |_| None)] {
        let plain = said(name, stream_of);
        assert!(!plain.is_empty() && !plain.contains("<3>"), "{plain}");
    }
}
