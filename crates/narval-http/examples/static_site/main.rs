//! Serves the files of a folder: ranges, conditional requests, compressed versions, a 404 page.
//!
//! `cargo run --release -p narval-http --example static_site -- --port 8080 [--folder DIR]`, then open the address that is printed

#[path = "../arguments/mod.rs"]
mod arguments;

use std::error::Error;

use narval_http::files::{CacheRule, Site, SiteOptions};
use narval_http::{Compression, wrap};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments::Arguments::read(&["--folder"])?;
    let folder = arguments.get("--folder").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/static_site/site"));
    let options = SiteOptions {
        listing: true,
        not_found: Some("404.html".to_owned()),
        cache_control: vec![CacheRule::parse("*.css=public, max-age=3600")?],
        ..SiteOptions::default()
    };
    let site = Site::open(folder, options)?;
    arguments.serve(wrap(Compression::default(), site), |builder| builder)
}
