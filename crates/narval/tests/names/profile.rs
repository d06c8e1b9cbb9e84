//! The user's own profile: what was installed by its name, and where that came from.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::place::{GLIBC, Place, path};
use crate::support::stdout;

/// `narval` with the user's own store and profile.
fn own(place: &Place, args: &[&str]) -> Command {
    let mut command = place.command(args);
    command.env_remove("NARVAL_STORE").stdin(Stdio::null());
    command
}

fn done(place: &Place, args: &[&str]) -> String {
    stdout(own(place, args).output().unwrap())
}

fn said(place: &Place, args: &[&str]) -> String {
    let output = own(place, args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The element of this name, as `narval list` has it.
fn element(place: &Place, name: &str) -> Value {
    let listed = done(place, &["list", "--json"]);
    let lines = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.into_iter().find(|line| line["name"] == name).unwrap_or_default()
}

fn names(place: &Place) -> Vec<String> {
    done(place, &["list"]).lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn names_are_installed_upgraded_and_removed_in_the_users_own_profile() {
    let mut place = Place::new();
    let shown = said(&place, &["install", "hello", "vim"]);
    assert!(shown.contains("env --shell sh") && shown.contains("'narval env --add' adds it"), "{shown}");
    let profile = place.home().join(".local/state/narval/profile");
    assert!(profile.join("bin/hello").exists() && profile.join("bin/vi").exists());
    // Another output is added, and where it all came from is known.
    done(&place, &["install", "vim^out,man"]);
    assert!(profile.join("bin/vi").exists() && profile.join("share/man/man1/vim.1").exists());
    let vim = element(&place, "vim");
    assert_eq!(vim["paths"], serde_json::json!([path('3', "vim-9.1"), path('4', "vim-9.1-man")]));
    assert_eq!((vim["version"].as_str(), vim["attribute"].as_str()), (Some("9.1"), Some("vim")), "{vim}");
    assert_eq!(vim["channel"], format!("{}/channel", place.url));
    assert!(vim["release"].as_str().unwrap().contains("/releases/one"), "{vim}");
    // The choice that a name needed is remembered.
    done(&place, &["install", &format!("git={}", "2".repeat(32))]);
    assert_eq!(element(&place, "git")["choice"], path('2', "git-2.51.0"));
    assert!(said(&place, &["upgrade"]).contains("nothing newer"));

    // The channel has another release: 'update' fetches it, and 'upgrade' shows what changes before it changes.
    let deriver = path('b', "vim-9.2.drv");
    place.add(&path('a', "hello-2.13"), &[("bin/hello", "#!/bin/sh\necho newer\n")], &[GLIBC], None);
    place.add(&path('b', "vim-9.2"), &[("bin/vi", "#!/bin/sh\necho vim\n")], &[GLIBC], Some(&deriver));
    place.add(&path('c', "vim-9.2-man"), &[("share/man/man1/vim.1", "new manual")], &[], Some(&deriver));
    place.package("hello", "hello", "2.13", serde_json::json!({"mainProgram": "hello"}));
    place.set("vim", "9.2");
    place.publish("two");
    place.lead_to("two");
    done(&place, &["update"]);
    let planned = done(&place, &["upgrade", "--dry-run"]);
    for change in ["hello  2.12 → 2.13", "vim  9.1 → 9.2", "vim (man)  9.1 → 9.2"] {
        assert!(planned.contains(change), "{planned}");
    }
    assert_eq!(element(&place, "vim")["version"], "9.1");
    done(&place, &["upgrade", "vim"]);
    assert_eq!(element(&place, "vim")["paths"], serde_json::json!([path('b', "vim-9.2"), path('c', "vim-9.2-man")]));
    assert_eq!(element(&place, "hello")["version"], "2.12");
    assert!(said(&place, &["upgrade"]).contains("to download"));
    assert_eq!(element(&place, "hello")["version"], "2.13");
    assert_eq!(names(&place), ["git", "hello", "vim"]);
    let history = done(&place, &["history"]);
    assert!(history.lines().last().unwrap().contains("(current)  -hello-2.12  +hello-2.13"), "{history}");

    // One family: the same names, and the profile need not be named.
    let unknown = own(&place, &["remove", "emacs"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(3));
    done(&place, &["remove", "vim", "git"]);
    assert_eq!(names(&place), ["hello"]);
    done(&place, &["rollback"]);
    assert_eq!(names(&place), ["git", "hello", "vim"]);
    // A store in a folder has nothing to do with it.
    place.done(&["install", "hello"]);
    assert_eq!(names(&place), ["git", "hello", "vim"]);
    done(&place, &["install", "--no-profile", "hello"]);
    assert_eq!(names(&place), ["git", "hello", "vim"]);
}

/// In another release, no path has the hash that was chosen: what told it from the others decides, or nothing.
#[test]
fn a_choice_holds_in_the_next_release_by_what_told_it_from_the_others() {
    let mut place = Place::new();
    // The minimal one refers to hello, for the story's sake.
    done(&place, &["install", &format!("git={}", "2".repeat(32))]);
    let mut release = |name: &str, version: &str, paths: &[(char, &[&str])]| {
        place.set("git", version);
        place.set("gitMinimal", version);
        place.packages_named("gitMinimal", "git", version);
        for (digit, references) in paths {
            let base = path(*digit, &format!("git-{version}"));
            place.add(&base, &[("bin/git", &format!("#!/bin/sh\necho {digit}\n"))], references, None);
        }
        place.publish(name);
        place.lead_to(name);
        done(&place, &["update"]);
        let output = own(&place, &["upgrade", "git", "--no-build-records"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), element(&place, "git"))
    };
    let hello = path('0', "hello-2.12");
    let (code, shown, git) = release("two", "2.52.0", &[('a', &[GLIBC]), ('b', &[GLIBC, &hello])]);
    assert_eq!((code, git["paths"].clone()), (Some(0), serde_json::json!([path('b', "git-2.52.0")])), "{shown}");
    assert_eq!(git["choice"], path('b', "git-2.52.0"));
    // Two have it, or none: it is asked, and nothing changes.
    let (code, shown, git) = release("three", "2.53.0", &[('c', &[GLIBC, &hello]), ('d', &[GLIBC, &hello])]);
    assert_eq!(code, Some(3), "{shown}");
    assert!(shown.contains(&path('c', "git-2.53.0")) && shown.contains(&path('d', "git-2.53.0")), "{shown}");
    assert_eq!(git["version"], "2.52.0");
    let (code, shown, git) = release("four", "2.54.0", &[('f', &[GLIBC]), ('g', &[GLIBC])]);
    assert_eq!((code, git["version"].as_str()), (Some(3), Some("2.52.0")), "{shown}");
}

/// The line is added once, to the file of the shell, and shells that read it find what is in the profile.
#[test]
fn a_line_in_the_file_of_a_shell_finds_programs_and_manuals() {
    let place = Place::new();
    done(&place, &["install", "hello", "vim^out,man"]);
    let profile = place.home().join(".local/state/narval/profile");
    for (shell, file) in
        [("sh", ".profile"), ("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", ".config/fish/conf.d/narval.fish")]
    {
        let file = place.home().join(file);
        if shell == "bash" {
            // Without a line break at its end.
            std::fs::write(&file, "alias a=b").unwrap();
        }
        for round in 0..2 {
            let said = done(&place, &["env", "--add", "--shell", shell]);
            assert!(said.contains(if round == 0 { "has the line now" } else { "has the line already" }), "{said}");
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.matches("env --shell").count(), 1, "{text}");
        let mut command = Command::new(shell);
        let script = match shell {
            "fish" => {
                format!(
                    "source {0}; source {0}; echo $PATH[1]; string join : $MANPATH; string join : $XDG_DATA_DIRS; \
                     count (string match -- '*{1}/fish/vendor_completions.d' $fish_complete_path)",
                    file.display(),
                    profile.join("share").display()
                )
            }
            _ => format!(
                ". {0}; . {0}; echo \"${{PATH%%:*}}\"; echo \"$MANPATH\"; echo \"$XDG_DATA_DIRS\"",
                file.display()
            ),
        };
        command.args(["-c", &script]).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", place.home());
        let Ok(output) = command.output() else {
            eprintln!("note: not tried: no {shell} here");
            continue;
        };
        let shown = stdout(output);
        // fish looks for completions where XDG_DATA_DIRS said it when it started.
        let shown = if shell == "fish" { shown.trim().strip_suffix("\n1").unwrap() } else { shown.trim() };
        let (bin, share) = (profile.join("bin"), profile.join("share"));
        let expected =
            format!("{}\n{}/man:\n{}:/usr/local/share:/usr/share", bin.display(), share.display(), share.display());
        assert_eq!(shown, expected, "{shell}");
    }
    assert_eq!(
        done(&place, &["env", "--shell", "sh", "--profile", "/a b/it's"]).matches(r"'/a b/it'\''s/bin'").count(),
        2
    );
}

/// Where the store is not at `/nix/store`, nobody outside of its namespace finds what links there.
#[test]
fn links_into_the_store_lead_to_manuals_and_programs_of_a_profile() {
    let mut place = Place::new();
    let (vim, manual) = (path('3', "vim-9.1"), path('4', "vim-9.1-man"));
    let files = [
        ("bin/editor", &*format!("link to /nix/store/{vim}/bin/vi")),
        ("share/man", &*format!("link to /nix/store/{manual}/share/man")),
        ("share/applications/vim.desktop", &*format!("link to /nix/store/{manual}/share/man/man1/vim.1")),
        ("share/doc", "here"),
    ];
    place.add(&path('a', "joined-1"), &files, &[&vim, &manual], None);
    place.package("joined", "joined", "1", serde_json::json!({}));
    place.publish("one");
    done(&place, &["install", "joined"]);
    let profile = place.home().join(".local/state/narval/profile");
    for (file, contents) in [("man/man1/vim.1", "manual"), ("applications/vim.desktop", "manual"), ("doc", "here")] {
        assert_eq!(std::fs::read_to_string(profile.join("share").join(file)).unwrap(), contents, "{file}");
    }
    assert!(std::fs::read_to_string(profile.join("bin/editor")).unwrap().starts_with("#!/bin/sh"));
    // The same is the same generation.
    done(&place, &["install", "joined"]);
    assert_eq!(std::fs::read_link(profile).unwrap().to_str(), Some("profile-1-link"));
}

/// On a system without certificates of authorities, programs get those of the package `cacert`: from a launcher, in a shell, and by the line of a shell.
#[test]
fn certificates_are_those_of_the_system_or_else_of_the_profile() {
    let mut place = Place::new();
    let roots = path('a', "cacert-1");
    place.add(&roots, &[("etc/ssl/certs/ca-bundle.crt", "roots")], &[], None);
    place.add(
        &path('b', "tls-1"),
        &[("bin/tls", "#!/bin/sh\necho \"$NIX_SSL_CERT_FILE $SSL_CERT_FILE\"\n")],
        &[GLIBC],
        None,
    );
    for package in ["cacert", "tls"] {
        place.package(package, package, "1", serde_json::json!({}));
    }
    place.publish("one");
    let bare = |what: &str, variables: &[(&str, &str)]| {
        let script =
            format!("set -e; for at in /etc/ssl /etc/pki; do [ ! -d $at ] || mount -t tmpfs none $at; done; {what}");
        let command = own(&place, &["--version"]);
        let narval = command.get_program().to_owned();
        let variables = variables.iter().copied().chain([("NARVAL", narval.to_str().unwrap())]);
        let mut inside = Command::new("unshare");
        inside.args(["--user", "--map-root-user", "--mount", "/bin/sh", "-c", &script]).env_clear();
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).envs(variables);
        inside.output().unwrap()
    };
    if !bare("true", &[]).status.success() {
        eprintln!("note: skipped: namespaces are refused here");
        return;
    }
    let advice = |name: &str| {
        let output = bare(&format!("$NARVAL install {name}"), &[]);
        String::from_utf8(output.stderr).unwrap().contains("'narval install cacert' has some")
    };
    assert!(advice("tls") && !advice("cacert"));
    let inside = format!("/nix/store/{roots}/etc/ssl/certs/ca-bundle.crt");
    let profile = place.home().join(".local/state/narval/profile");
    let launcher = profile.join("bin/tls").display().to_string();
    for started in [&*launcher, "$NARVAL shell --quiet cacert tls -- tls"] {
        assert_eq!(stdout(bare(started, &[])).trim(), format!("{inside} {inside}"), "{started}");
    }
    assert_eq!(stdout(bare(&launcher, &[("SSL_CERT_FILE", "/own")])).trim(), format!("{inside} /own"));
    let by_line = stdout(bare("eval \"$($NARVAL env --shell sh)\"; echo $SSL_CERT_FILE", &[]));
    assert_eq!(by_line.trim(), profile.join("etc/ssl/certs/ca-bundle.crt").display().to_string());
    // The system's are what its administrator wants.
    assert_eq!(stdout(bare(&format!("touch /etc/ssl/cert.pem; {launcher}"), &[])).trim(), "");
}
