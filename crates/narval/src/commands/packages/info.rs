//! `narval info`: what a package is, and what installing it takes.

use std::collections::BTreeSet;

use narval_install::{Closure, Destination, Wanted};
use narval_nix::PackageName;
use serde_json::{Value, json};

use crate::args::channels::{Lookup, Meant, NameArgs};
use crate::args::client::{ClientArgs, human_bytes};
use crate::args::names::package_json;
use crate::args::paths::or_elsewhere;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;

/// Show a package: version, licence, outputs, sizes, path, caches
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval info ripgrep
  narval info nodejs@22 --json

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 unknown or not in any cache,
4 verification failed, 5 network.")]
pub struct Args {
    /// Name of a package, such as git or nodejs@22
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Runs `narval info`.
///
/// # Errors
/// If the name is unknown, may mean several paths, or no cache has its path.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let mut lookup = Lookup::new(&destination, &args.client, &args.names);
    lookup.is_silent = true;
    let known = known(args, &destination, &mut lookup);
    if known.is_err()
        && let Some(package) = lookup.package(&args.name)
    {
        // Which path it is, the error says, or that there is none.
        match args.client.output.json {
            true => json::event("package", package_json(&package)),
            false => show(&package_json(&package), &[]),
        }
    }
    let (mut fields, rows) = known?;
    match args.client.output.json {
        true => json::summary(fields.take()),
        false => show(&fields, &rows),
    }
    Ok(())
}

/// What is known of a package once its path is: for `--json`, and what a person reads below the fields of the package.
type Known = (Value, [(&'static str, String); 5]);

fn known(args: &Args, destination: &Destination, lookup: &mut Lookup<'_>) -> Result<Known, Failure> {
    let meant = lookup.meant(std::slice::from_ref(&args.name))?;
    let wanted: Vec<Wanted> = meant.iter().map(|one| one.wanted.clone()).collect();
    let (client, options) = (args.client.caches.client()?, args.client.caches.options(None, false)?);
    let closure = Closure::find(destination, &options, &client, &wanted);
    let closure = closure
        .map_err(|error| lookup.explained(&error, &meant).unwrap_or_else(|| or_elsewhere(error, destination)))?;
    let installed = wanted.iter().map(|one| destination.find(one)).collect::<Result<Vec<_>, _>>()?;
    let size: u64 = closure.nodes.values().map(|node| node.info.nar_size).sum();
    let mut download = 0;
    for (path, node) in &closure.nodes {
        // Without a size in the narinfo, the file has at most about that of the NAR.
        if !destination.is_valid(path)? {
            download += node.file_size.unwrap_or(node.info.nar_size);
        }
    }
    let mut fields = fields(&meant, &closure);
    fields["paths"] = closure.roots.iter().map(|path| path.base_name()).collect();
    fields["closure"] = json!({"paths": closure.nodes.len(), "size": size});
    fields["download"] = download.into();
    fields["installed"] = installed.iter().all(Option::is_some).into();
    // A path that is installed may be in no cache any more.
    let (_, caches) = lookup.caches()?;
    let caches: BTreeSet<String> =
        wanted.iter().filter_map(|one| Some(caches.find(one).ok()?.cache.url().to_string())).collect();
    fields["caches"] = caches.iter().cloned().collect();
    let paths: Vec<_> = closure.roots.iter().map(|path| path.base_name()).collect();
    let rows = [
        ("path", paths.join(" ")),
        ("cache", if caches.is_empty() { "none".to_owned() } else { Vec::from_iter(caches).join(" ") }),
        ("on disk", format!("{} in {} paths", human_bytes(size), closure.nodes.len())),
        ("to fetch", human_bytes(download)),
        ("installed", if fields["installed"] == true { "yes" } else { "no" }.to_owned()),
    ];
    Ok((fields, rows))
}

/// Prints what a channel says about a package, and more rows.
fn show(fields: &Value, more: &[(&'static str, String)]) {
    let text = |key: &str| match &fields[key] {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    };
    let own = [
        ("name", text("attribute")),
        ("version", text("version")),
        ("description", text("description")),
        ("homepage", text("homepage")),
        ("licence", text("licence")),
        ("outputs", text("outputs")),
        ("program", text("program")),
    ];
    for (label, value) in own.iter().chain(more).filter(|(_, value)| !value.is_empty()) {
        out!("{label:<12} {value}");
    }
}

/// What the channel says, or, for a path of a cache, its name.
fn fields(meant: &[Meant], closure: &Closure) -> Value {
    if let Some(package) = meant.iter().find_map(|one| one.package.as_ref()) {
        return package_json(package);
    }
    let name = closure.roots.first().map(|path| path.name().to_owned()).unwrap_or_default();
    let PackageName { package, version, output } = PackageName::of(&name);
    json!({"attribute": name, "package": package, "version": version, "outputs": [output]})
}
