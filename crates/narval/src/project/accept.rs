//! What a project asks for beyond what its user has: caches, keys, a channel elsewhere.
//!
//! A key that a project names could sign anything, and a cache or channel is a server that learns who asks it. So these are used once the user has
//! accepted them for this project, as Nix asks about `nixConfig` of a flake (`flake/config.cc`). What was accepted is remembered, in the user's own
//! folder, until the project asks for something else.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::DirBuilderExt;

use narval_install::settings::{Settled, replace};

use super::Project;
use crate::args::client::ClientArgs;
use crate::ui::failure::Failure;
use crate::ui::output::note;

/// The file with what was accepted, a line each.
const ACCEPTED: &str = "accepted";

/// The options of a client, with the caches and keys of a project, if these are accepted.
///
/// # Errors
/// They are not.
pub(crate) fn with_caches(
    project: &Project,
    client: &ClientArgs,
    channel: Option<&str>,
    accept: bool,
) -> Result<ClientArgs, Failure> {
    let (urls, keys) = (client.caches.urls()?, client.caches.keys()?);
    let mut with = client.clone();
    let mut requests = Vec::new();
    for cache in project.file.caches.iter().map(|cache| &cache.value).filter(|cache| !urls.contains(cache)) {
        if with.caches.from.is_empty() {
            with.caches.from = urls.iter().map(ToString::to_string).collect();
        }
        with.caches.from.push(cache.to_string());
        requests.push(format!("use the cache {cache}"));
    }
    for key in project.file.public_keys.iter().map(|key| &key.value).filter(|key| !keys.contains(key)) {
        with.caches.trusted_public_key.push(key.to_string());
        requests.push(format!("trust the key {key}"));
    }
    // A short name is one of the channels of nixpkgs.
    requests
        .extend(channel.filter(|channel| channel.contains('/')).map(|channel| format!("use the channel {channel}")));
    if requests.is_empty() {
        return Ok(with);
    }
    if !client.caches.requests.header.is_empty() && with.caches.from.len() > client.caches.from.len() {
        return Err(project.says("--header would be sent to its caches, too: give those caches with --from"));
    }
    let folder = project.state()?;
    let file = Settled::read(&folder.join(ACCEPTED))?;
    let known: Vec<&str> = file.text.lines().collect();
    requests.retain(|line| !known.contains(&line.as_str()));
    if requests.is_empty() {
        return Ok(with);
    }
    if !accept && !ask(project, &requests)? {
        return Err(project.says(format!(
            "it wants to {}. Nothing of that was done; --accept-project accepts it",
            requests.join(", ")
        )));
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| Failure::of_file(&folder.display().to_string(), &error))?;
    let lines: String = requests.iter().map(|line| format!("{line}\n")).collect();
    replace(&file, &format!("{}{lines}", file.text), 0o600)?;
    // For people who look into the folder.
    drop(fs::write(folder.join("project"), format!("{}\n", project.folder().display())));
    Ok(with)
}

/// Asks on a terminal.
fn ask(project: &Project, requests: &[String]) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(false);
    }
    note!("{} wants to", project.folder().display());
    requests.iter().for_each(|line| note!("  {line}"));
    eprint!("A key can sign anything. Accept this for the project? [y/N] ");
    let mut answer = String::new();
    let read = io::stderr().flush().and_then(|()| io::stdin().lock().read_line(&mut answer));
    read.map_err(Failure::runtime)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
