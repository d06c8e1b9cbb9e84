//! `narval env`: what a shell needs to find what a profile has.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use narval_install::Profile;
use narval_install::run::{CERTIFICATE_VARIABLES, CERTIFICATES, has_certificates, is_at_home};
use narval_store::StoreConfig;
use serde_json::json;

use crate::args::client::LockArgs;
use crate::args::profile::{ProfileArgs, default_profile};
use crate::commands::running::enter::try_to_enter;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out};
use crate::ui::output_args::OutputArgs;
use crate::values::folders::user_folder;

/// What precedes the line in the file of a shell.
const COMMENT: &str = "# Programs, manual pages and completions of the profile of narval";

/// Print the settings of a shell for a profile
///
/// Prints commands that set PATH, XDG_DATA_DIRS and MANPATH; and NIX_SSL_CERT_FILE and SSL_CERT_FILE if the system has no certificates of authorities and
/// the profile has (package cacert). With --add, a line that runs this is added to the file that new shells read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  eval \"$(narval env)\"\n  narval env --shell fish | source\n  narval env --add")]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Shell [default: by $SHELL]
    #[arg(long, value_enum)]
    shell: Option<Shell>,
    /// Add one line to the file that new shells read, unless it is there
    #[arg(long)]
    add: bool,
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A family of shells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    /// POSIX
    Sh,
    Bash,
    Zsh,
    Fish,
}

/// Runs `narval env`.
///
/// # Errors
/// The file of the shell cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let profile = args.profile.open(args.lock.timeout())?;
    let shell = args.shell.unwrap_or_else(Shell::of_user);
    if !args.add {
        let settings = shell.settings(profile.link());
        if args.output.json {
            json::summary(json!({"profile": profile.link(), "settings": settings}));
        } else {
            out!("{}", settings.trim_end());
        }
        return Ok(());
    }
    let file = shell.file()?;
    let is_new = add_line(&file, &shell.line(&profile)?)?;
    if args.output.json {
        json::summary(json!({"file": file, "added": is_new}));
    } else if !args.output.quiet {
        let state = if is_new { "has the line now: new shells find" } else { "has the line already: shells find" };
        out!("{} {state} what {} has", file.display(), profile.link().display());
    }
    Ok(())
}

/// Says how programs of a profile are found, if they are not yet. On a terminal, asks whether to add the line.
/// Also says if they cannot be started, or have no certificates.
pub(super) fn offer(profile: &Profile, config: &StoreConfig) -> Result<(), Failure> {
    let bin = profile.link().join("bin");
    let is_on_path = std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|one| one == bin));
    if is_on_path || !bin.is_dir() {
        return Ok(());
    }
    if !is_at_home(config)
        && let Err(why) = try_to_enter(config.store_dir.as_str())
    {
        note!("its programs cannot be started here: {why}");
    }
    if !has_certificates() && !profile.link().join(CERTIFICATES).exists() {
        note!(
            "this system has no certificates of authorities, which https needs: 'narval install cacert' has some for programs"
        );
    }
    let shell = Shell::of_user();
    let (Ok(line), Ok(file)) = (shell.line(profile), shell.file()) else { return Ok(()) };
    if fs::read_to_string(&file).is_ok_and(|text| text.lines().any(|one| one == line)) {
        note!("new shells find its programs; in this one, they are in {}", bin.display());
        return Ok(());
    }
    note!("its programs are in {}. New shells find them with this line in {}:\n{line}", bin.display(), file.display());
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        note!("'narval env --add' adds it");
        return Ok(());
    }
    eprint!("Add it? [y/N] ");
    let mut answer = String::new();
    let read = io::stderr().flush().and_then(|()| io::stdin().lock().read_line(&mut answer));
    if read.is_ok() && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        add_line(&file, &line)?;
    }
    Ok(())
}

/// Appends a line to a file, unless it has it. Returns whether it is new.
fn add_line(file: &Path, line: &str) -> Result<bool, Failure> {
    let failed = |error: io::Error| Failure::of_file(&file.display().to_string(), &error);
    let text = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        text => text.map_err(failed)?,
    };
    if text.split(|byte| *byte == b'\n').any(|one| one == line.as_bytes()) {
        return Ok(false);
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let end = if text.is_empty() || text.ends_with(b"\n") { "" } else { "\n" };
    // One write: a shell that starts meanwhile reads all of it or nothing.
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.and_then(|mut file| file.write_all(format!("{end}{COMMENT}\n{line}\n").as_bytes())).map_err(failed)?;
    Ok(true)
}

impl Shell {
    fn of_user() -> Self {
        let shell = std::env::var_os("SHELL").map(PathBuf::from).unwrap_or_default();
        match shell.file_name().and_then(|name| name.to_str()) {
            Some("bash") => Self::Bash,
            Some("zsh") => Self::Zsh,
            Some("fish") => Self::Fish,
            _ => Self::Sh,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sh => "sh",
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }

    /// The file that new shells of a user read.
    fn file(self) -> Result<PathBuf, Failure> {
        let below = |variable, folder| user_folder(variable, folder);
        let file = match self {
            Self::Sh => below("HOME", "").map(|home| home.join(".profile")),
            Self::Bash => below("HOME", "").map(|home| home.join(".bashrc")),
            Self::Zsh => below("ZDOTDIR", "").map(|home| home.join(".zshrc")),
            Self::Fish => below("XDG_CONFIG_HOME", ".config").map(|config| config.join("fish/conf.d/narval.fish")),
        };
        file.ok_or_else(|| Failure::usage("HOME is not set: there is no file of the shell to add a line to"))
    }

    /// The line in this file. It does nothing where the program is not any more.
    fn line(self, profile: &Profile) -> Result<String, Failure> {
        let this = std::env::current_exe().map_err(Failure::runtime)?;
        let this = self.quoted(&this);
        let mut command = format!("{this} env --shell {}", self.name());
        if default_profile().ok().is_none_or(|own| own != profile.link()) {
            command.push_str(&format!(" --profile {}", self.quoted(profile.link())));
        }
        Ok(match self {
            Self::Fish => format!("test -x {this}; and {command} | source"),
            _ => format!("[ -x {this} ] && eval \"$({command})\""),
        })
    }

    /// The commands that set the variables.
    fn settings(self, profile: &Path) -> String {
        let certificates = profile.join(CERTIFICATES);
        let certificates = (certificates.exists() && !has_certificates()).then(|| self.quoted(&certificates));
        let at = |below: &str| self.quoted(&profile.join(below));
        let (bin, share, man) = (at("bin"), at("share"), at("share/man"));
        if self == Self::Fish {
            let mut text = format!(
                "contains -- {bin} $PATH; or set -gx PATH {bin} $PATH\n\
                 set -q XDG_DATA_DIRS; or set -gx XDG_DATA_DIRS /usr/local/share:/usr/share\n\
                 string match -q -- '*:'{share}':*' \":$XDG_DATA_DIRS:\"; or set -gx XDG_DATA_DIRS {share}:\"$XDG_DATA_DIRS\"\n\
                 string match -q -- '*:'{man}':*' \":$MANPATH:\"; or set -gx MANPATH {man}:\"$MANPATH\"\n\
                 contains -- {completions} $fish_complete_path; or set -g fish_complete_path $fish_complete_path[1] {completions} $fish_complete_path[2..-1]\n",
                // fish has looked at XDG_DATA_DIRS before it reads this file. The first folder is the user's own.
                completions = at("share/fish/vendor_completions.d"),
            );
            for variable in CERTIFICATE_VARIABLES {
                let line =
                    certificates.as_ref().map(|file| format!("set -q {variable}; or set -gx {variable} {file}\n"));
                text.push_str(&line.unwrap_or_default());
            }
            return text;
        }
        // An empty element of MANPATH stands for the default ones.
        let mut text = format!(
            "case \":$PATH:\" in *:{bin}:*) ;; *) export PATH={bin}:\"$PATH\" ;; esac\n\
             export XDG_DATA_DIRS=\"${{XDG_DATA_DIRS:-/usr/local/share:/usr/share}}\"\n\
             case \":$XDG_DATA_DIRS:\" in *:{share}:*) ;; *) export XDG_DATA_DIRS={share}:\"$XDG_DATA_DIRS\" ;; esac\n\
             case \":${{MANPATH:-}}:\" in *:{man}:*) ;; *) export MANPATH={man}:\"${{MANPATH:-}}\" ;; esac\n"
        );
        for variable in CERTIFICATE_VARIABLES {
            let line =
                certificates.as_ref().map(|file| format!("[ -n \"${{{variable}:-}}\" ] || export {variable}={file}\n"));
            text.push_str(&line.unwrap_or_default());
        }
        if self == Self::Zsh {
            text.push_str(&format!("fpath=({} $fpath)\n", at("share/zsh/site-functions")));
        }
        text
    }

    /// A path as one word.
    fn quoted(self, path: &Path) -> String {
        let text = path.display().to_string();
        match self {
            Self::Fish => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
            _ => format!("'{}'", text.replace('\'', "'\\''")),
        }
    }
}
