//! `narval info`: what a package is, and what installing it takes.

use narval_install::{Closure, Wanted};
use narval_nix::PackageName;
use serde_json::{Value, json};

use crate::Failure;
use crate::args::channels::{Lookup, Meant, NameArgs, package_json};
use crate::args::client::{ClientArgs, human_bytes};
use crate::args::paths::or_elsewhere;
use crate::ui::json;
use crate::ui::output::out;

/// Show a package: version, licence, outputs, sizes and store path
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
    let meant = lookup.meant(std::slice::from_ref(&args.name))?;
    let wanted: Vec<Wanted> = meant.iter().map(|one| one.wanted.clone()).collect();
    let (client, options) = (args.client.caches.client()?, args.client.caches.options(None, false)?);
    let closure = Closure::find(&destination, &options, &client, &wanted);
    let closure = closure
        .map_err(|error| lookup.explained(&error, &meant).unwrap_or_else(|| or_elsewhere(error, &destination)))?;
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
    if args.client.output.json {
        json::summary(fields);
        return Ok(());
    }
    let text = |key: &str| match &fields[key] {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    };
    for (label, value) in [
        ("name", text("attribute")),
        ("version", text("version")),
        ("description", text("description")),
        ("homepage", text("homepage")),
        ("licence", text("licence")),
        ("outputs", text("outputs")),
        ("program", text("program")),
        ("path", text("paths")),
        ("on disk", format!("{} in {} paths", human_bytes(size), closure.nodes.len())),
        ("to fetch", human_bytes(download)),
        ("installed", if fields["installed"] == true { "yes" } else { "no" }.to_owned()),
    ] {
        if !value.is_empty() {
            out!("{label:<12} {value}");
        }
    }
    Ok(())
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
