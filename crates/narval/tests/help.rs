//! What `--help` prints, for every command, on a terminal of 80 columns; and the reference in `docs/reference`, which is made from it and from the
//! types of the configuration file.
//!
//! After a change that is meant: `NARVAL_UPDATE_HELP=1 cargo test -p narval --test help`, and look at the difference.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

use std::fs;
use std::path::Path;
use std::process::Command;

use narval::config::{KeyInfo, ServeConfig};

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
    help_of(env!("CARGO_BIN_EXE_narval"), words)
}

fn help_of(program: &str, words: &[String]) -> String {
    let output = Command::new(program).args(words).arg("--help").env("COLUMNS", COLUMNS.to_string()).output().unwrap();
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

/// Compares a file with its generated text, or writes it.
fn page_is(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    if std::env::var_os("NARVAL_UPDATE_HELP").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
    }
    let before = fs::read_to_string(&file).unwrap_or_default();
    assert!(before == text, "{name} is out of date: see the first lines of tests/help.rs");
}

#[test]
fn the_reference_of_commands_is_current() {
    let mut text = "# All commands\n\nWhat `--help` prints, for every command. This page is generated.\n".to_owned();
    for words in commands() {
        let name = [&["narval".to_owned()], words.as_slice()].concat().join(" ");
        // Commands inside commands are below these.
        let level = if words.len() > 1 { "###" } else { "##" };
        text += &format!("\n{level} {name}\n\n```text\n{}```\n", help(&words));
    }
    text += &format!("\n## nix-serve\n\n```text\n{}```\n", help_of(env!("CARGO_BIN_EXE_nix-serve"), &[]));
    page_is("docs/reference/cli.md", &text);
}

/// What a key is about, in one paragraph.
fn meaning(key: &KeyInfo) -> String {
    key.paragraphs().iter().map(|paragraph| paragraph.trim_end_matches('.')).collect::<Vec<_>>().join(". ")
}

#[test]
fn the_reference_of_the_configuration_file_is_current() {
    let mut text = "# Keys of the configuration file\n\nAll keys of the [configuration file](../configuration.md). *Reload* says when a changed value takes \
                    effect: `yes` on SIGHUP, `restart` after a restart. This page is generated from the tables in `crates/narval/src/config/`.\n\n\
                    | key | meaning | accepts | default | option | reload |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for key in ServeConfig::reference().iter().filter(|key| !key.is_table()) {
        let linked = |word: &str| {
            let Some(at) = word.find("docs/") else { return word.to_owned() };
            let (before, page) = (&word[..at], &word[at + "docs/".len()..]);
            let (page, after) = page.split_at(page.trim_end_matches(&[')', ',', ';', '.'][..]).len());
            format!("{before}[{}](../{page}){after}", page.split('#').next().unwrap())
        };
        let meaning = meaning(key).split(' ').map(linked).collect::<Vec<_>>().join(" ");
        let default = match (key.default, key.otherwise) {
            (Some(default), _) => format!("`{default}`"),
            (None, words) => words.unwrap_or(if key.is_required { "" } else { "none" }).to_owned(),
        };
        let option = key.option.map(|option| format!("`--{}`", option.name)).unwrap_or_default();
        let reload = if key.needs_restart { "restart" } else { "yes" };
        text += &format!("| `{}` | {meaning} | {} | {default} | {option} | {reload} |\n", key.path, key.accepts);
    }
    page_is("docs/reference/configuration.md", &text);
}

/// The description of the API, and the page that is made of it.
#[test]
fn the_description_of_the_api_is_current() {
    let api = narval_serve::openapi();
    page_is("docs/reference/openapi.json", &format!("{}\n", serde_json::to_string_pretty(&api).unwrap()));
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut page = "# Requests of the API\n\nWhat [the API for administration](../api.md) answers, in words; [openapi.json](openapi.json) says the same to programs. This page is \
                    generated from the table in `crates/narval-serve/src/api/`.\n\n| request | rights | what it does | body | answer |\n|---|---|---|---|---|\n"
        .to_owned();
    let schema = |content: &serde_json::Value| {
        let name = text(&content["application/json"]["schema"]["$ref"]);
        name.rsplit('/').next().filter(|name| !name.is_empty()).map(|name| format!("`{name}`")).unwrap_or_default()
    };
    for (path, methods) in api["paths"].as_object().unwrap() {
        let below = path.strip_prefix("/_narval/api/v1").unwrap();
        for (method, operation) in methods.as_object().unwrap() {
            let query =
                operation["parameters"].as_array().unwrap().iter().filter(|parameter| parameter["in"] == "query");
            let query: Vec<String> = query
                .map(|parameter| format!("`{}`: {}", text(&parameter["name"]), text(&parameter["description"])))
                .collect();
            let query = if query.is_empty() { String::new() } else { format!(". {}", query.join(". ")) };
            let answer =
                operation["responses"].as_object().unwrap().iter().find(|(status, _)| status.starts_with('2')).unwrap();
            let status = if operation["responses"]["201"].is_object() { "201" } else { answer.0 };
            page += &format!(
                "| `{} {}` | {} | {}{query} | {} | {status} {} |\n",
                method.to_uppercase(),
                if below.is_empty() { "/" } else { below },
                text(&operation["x-rights"]),
                text(&operation["summary"]),
                schema(&operation["requestBody"]["content"]),
                schema(&answer.1["content"])
            );
        }
    }
    page += "\nA field with `?` may be absent or `null`.\n\n| object | fields |\n|---|---|\n";
    for (name, object) in api["components"]["schemas"].as_object().unwrap() {
        let required: Vec<&str> =
            object["required"].as_array().into_iter().flatten().filter_map(|name| name.as_str()).collect();
        let fields = object["properties"].as_object().into_iter().flatten();
        let fields: Vec<String> = fields
            .map(|(field, of)| {
                format!("`{field}{}` {}", if required.contains(&&**field) { "" } else { "?" }, kind_of(of))
            })
            .collect();
        let fields = if fields.is_empty() { "any".to_owned() } else { fields.join(", ") };
        page += &format!("| `{name}` | {fields} |\n");
    }
    page_is("docs/reference/api.md", &page);
}

fn kind_of(of: &serde_json::Value) -> String {
    let kind = of["type"].as_str().or_else(|| of["type"][0].as_str()).unwrap_or_default();
    let named =
        of["$ref"].as_str().or_else(|| of["oneOf"][0]["$ref"].as_str()).and_then(|name| name.rsplit('/').next());
    match (kind, named) {
        ("array", _) => format!("[{}]", kind_of(&of["items"])),
        (_, Some(name)) => name.to_owned(),
        (kind, None) => kind.to_owned(),
    }
}

/// The options of the NixOS module: the keys in the table with this path.
fn options_of_nix(keys: &[KeyInfo], table: &str, indent: usize) -> String {
    let mut text = String::new();
    for key in keys {
        let Some(name) = key.path.strip_prefix(table).filter(|name| !name.contains('.')) else { continue };
        let quoted = meaning(key).replace('\\', "\\\\").replace('"', "\\\"").replace("${", "\\${");
        let (space, list) =
            (" ".repeat(indent), if key.is_list { format!("(oneOrMore {})", key.nix) } else { key.nix.clone() });
        text += &match (key.is_table(), key.is_required) {
            (true, _) => {
                let inside = options_of_nix(keys, &format!("{}.", key.path), indent + 2);
                format!("{space}{name} = {} \"{quoted}.\" {{\n{inside}{space}}};\n", key.nix)
            }
            (false, true) => format!("{space}{name} = required {list} \"{quoted}.\";\n"),
            (false, false) => format!("{space}{name} = key {list} \"{quoted}.\";\n"),
        };
    }
    text
}

#[test]
fn the_options_of_the_nixos_module_are_current() {
    let options = options_of_nix(&ServeConfig::reference(), "", 2);
    let text = format!(
        "# The keys of the configuration file of `narval serve`, for settings.nix. Generated from the tables in crates/narval/src/config/ by\n\
         # `NARVAL_UPDATE_HELP=1 cargo test -p narval --test help`.\nkinds: with kinds; {{\n{options}}}\n"
    );
    page_is("nix/keys.nix", &text);
}

/// The codes that are named by `--help` are those of one table.
#[test]
fn exit_codes_are_those_of_the_table() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/installing.md")).unwrap();
    let table = page.split("| exit code | |").nth(1).unwrap().split("\n\n").next().unwrap();
    let codes = table.lines().filter_map(|row| row.strip_prefix("| ")?.split(" |").next());
    let codes: Vec<&str> = codes.flat_map(|codes| codes.split(", ")).collect();
    assert_eq!(codes, ["0", "1", "2", "3", "4", "5", "6", "7", "126", "127", "130"]);
    let mut naming = 0;
    for words in commands() {
        let text = help(&words);
        let Some(named) = text.split("Exit codes: ").nth(1) else { continue };
        naming += 1;
        for one in named.split('.').next().unwrap().split(',') {
            let code = one.trim().split(' ').next().unwrap();
            assert!(codes.contains(&code), "{words:?}: '{code}' is not in the table");
        }
    }
    assert!(naming >= 3, "install, push and remove name theirs");
}
