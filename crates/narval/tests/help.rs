//! What `--help` prints, for every command, on a terminal of 80 columns.
//!
//! After a change that is meant: `NARVAL_UPDATE_HELP=1 cargo test -p narval --test help`, and look at the difference.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::fs;
use std::path::Path;
use std::process::Command;

const COLUMNS: usize = 80;

/// The words of every command, those of commands inside commands included.
fn commands() -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    collect(&narval::cli::definition(), &mut Vec::new(), &mut found);
    found
}

fn collect(definition: &clap::Command, words: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for command in definition.get_subcommands().filter(|command| !command.is_hide_set()) {
        words.push(command.get_name().to_owned());
        found.push(words.clone());
        collect(command, words, found);
        words.pop();
    }
}

fn help(words: &[String]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narval"));
    let output = command.args(words).arg("--help").env("COLUMNS", COLUMNS.to_string()).output().unwrap();
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[test]
fn help_matches_its_snapshot() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    let update = std::env::var_os("NARVAL_UPDATE_HELP").is_some();
    let mut expected: Vec<String> = Vec::new();
    for words in commands() {
        let name = format!("{}.txt", if words.is_empty() { "narval".to_owned() } else { words.join("-") });
        let (text, file) = (help(&words), folder.join(&name));
        expected.push(name);
        if update {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&file, &text).unwrap();
        }
        let before = fs::read_to_string(&file).unwrap_or_default();
        assert!(before == text, "{words:?} --help has changed; it was\n{before}\nand is\n{text}");
    }
    let there = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for name in there {
        assert!(expected.contains(&name), "{name} is of no command");
    }
}

#[test]
fn help_fits_a_terminal_and_shows_an_example() {
    for words in commands() {
        let text = help(&words);
        let long = text.lines().find(|line| line.chars().count() > COLUMNS);
        assert_eq!(long, None, "{words:?}");
        // A command that only holds others has their help.
        let holds_others = text.contains("<COMMAND>") && !words.is_empty();
        assert!(holds_others || text.contains("Example"), "{words:?} shows no example");
    }
}

/// Examples name commands and options that exist.
#[test]
fn examples_are_understood() {
    for words in commands() {
        let text = help(&words).replace("\\\n", " ");
        // Quoting is the shell's.
        for example in text.lines().filter(|line| line.starts_with("  narval ") && !line.contains('\'')) {
            // So is what follows these.
            let example = example.split(['>', '<', '|', '&']).next().unwrap_or_default();
            let parsed = narval::cli::definition().try_get_matches_from(example.split_whitespace());
            assert!(parsed.is_ok(), "{words:?}: {example}: {}", parsed.unwrap_err());
        }
    }
}
