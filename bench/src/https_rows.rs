//! HTTPS: handshakes, and the sets of static files over keep-alive connections.

use crate::Result;
use crate::client::Request;
use crate::handshakes::Handshakes;
use crate::load::Load;
use crate::rows::{Placement, Row, Run};
use crate::static_rows::FileSets;

/// Handshakes of one sample.
const HANDSHAKES: usize = 2_000;
const CLIENTS: usize = 8;
const MEDIUM_REQUESTS: usize = 4_000;
const SMALL_REQUESTS: usize = 20_000;
const LARGE_REQUESTS: usize = 100;

/// Measures all rows of HTTPS, with only one in `one_of` requests (and at least one pass).
///
/// # Errors
/// If a server answers incorrectly.
pub fn run(run: &mut Run<'_>, sets: &FileSets, one_of: usize) -> Result<()> {
    for (name, version) in [("TLS 1.3", &rustls::version::TLS13), ("TLS 1.2", &rustls::version::TLS12)] {
        for (kind, resumed) in [("full", false), ("resumed", true)] {
            let handshakes = Handshakes { version, resumed, count: HANDSHAKES / one_of, clients: CLIENTS };
            run.handshakes(&format!("{name}, {kind} handshakes, {CLIENTS} clients"), handshakes)?;
        }
    }
    let large = ["/large.bin".to_owned()];
    let rows: [(&str, &[String], usize, &[usize]); 3] = [
        ("200 files, mean 125 KB", &sets.medium, MEDIUM_REQUESTS, &[1, 100]),
        ("200 files, 1 to 4 KB", &sets.small, SMALL_REQUESTS, &[1, 100]),
        ("one file, 5.7 MB", &large, LARGE_REQUESTS, &[1, 16]),
    ];
    for (what, targets, requests, connections) in rows {
        for &connections in connections {
            let load = Load { connections, passes: (requests / targets.len() / one_of).max(1), close: false };
            let requests = Box::new(move |server: &crate::server::Server, _| {
                targets.iter().map(|target| Request::get(&server.base, target, "", 200)).collect()
            });
            let title = format!("HTTPS, {what}, {connections} connections, keep-alive");
            run.row(&Row { title, load, placement: Placement::Apart, warm: true, requests })?;
        }
    }
    Ok(())
}
