//! nginx over prepared files: the peer that is always there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::{Server, free_port};
use crate::tls::Certificate;
use crate::{Context, Result};

/// Body of `/hello`, so many bytes, from nginx's memory.
pub const HELLO_BYTES: usize = 600;

/// Starts nginx, one worker, over these folders: request path prefix (begins and ends with a
/// slash) and folder.
///
/// # Errors
/// When there is no nginx, or it does not start.
pub fn start(folders: &[(&str, &Path)], work: &Path) -> Result<Server> {
    start_with(folders, work, None)
}

/// The same over HTTPS; `ktls` lets the kernel encrypt.
///
/// # Errors
/// As [`start`].
pub fn start_https(folders: &[(&str, &Path)], work: &Path, certificate: &Certificate, ktls: bool) -> Result<Server> {
    let mut server = start_with(folders, work, Some((certificate, ktls)))?;
    server.base.secure = true;
    Ok(server)
}

fn start_with(folders: &[(&str, &Path)], work: &Path, tls: Option<(&Certificate, bool)>) -> Result<Server> {
    let port = free_port()?;
    let work = fs::canonicalize(work).context(|| format!("cannot use {}", work.display()))?;
    let configuration = work.join("nginx.conf");
    fs::write(&configuration, text(folders, &work, port, tls))
        .context(|| format!("cannot write {}", configuration.display()))?;
    let mut command = Command::new(program());
    command.arg("-p").arg(&work).arg("-c").arg(&configuration).arg("-e").arg(work.join("nginx-error.log"));
    let mut server = Server::spawn("nginx", command, port, &work)?;
    server.flat = true;
    Ok(server)
}

/// Debian has it where an ordinary user's PATH does not lead.
fn program() -> PathBuf {
    let sbin = PathBuf::from("/usr/sbin/nginx");
    if sbin.exists() { sbin } else { PathBuf::from("nginx") }
}

/// As its documentation advises for static files: everything that costs nothing in correctness for
/// files that do not change.
fn text(folders: &[(&str, &Path)], work: &Path, port: u16, tls: Option<(&Certificate, bool)>) -> String {
    let work = work.display();
    // started by root, the worker would become a user that may not read the folders
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let locations =
        folders.iter().map(|(prefix, folder)| format!("    location {prefix} {{ alias {}/; }}\n", folder.display()));
    let locations = locations.collect::<String>();
    // Session tickets are on by default, as they are in narval; TLS 1.3 has to be named.
    let tls = tls.map_or(String::new(), |(certificate, ktls)| {
        let ktls = if ktls { "ssl_conf_command Options KTLS;" } else { "" };
        let (cert, key) = (certificate.cert.display(), certificate.key.display());
        format!(" ssl; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {cert}; ssl_certificate_key {key}; {ktls}")
    });
    let listen = if tls.is_empty() { ";" } else { tls.as_str() };
    let hello = "x".repeat(HELLO_BYTES);
    format!(
        "{user} worker_processes 1; daemon off; pid {work}/nginx.pid; error_log {work}/nginx-error.log crit;
worker_rlimit_nofile 65536;
events {{ worker_connections 32768; }}
http {{
  access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; default_type application/octet-stream;
  keepalive_requests 1000000000; keepalive_timeout 600s;
  open_file_cache max=200000 inactive=1h; open_file_cache_valid 1h; open_file_cache_min_uses 1; open_file_cache_errors on;
  client_body_temp_path {work}/nginx-tmp; proxy_temp_path {work}/nginx-tmp; fastcgi_temp_path {work}/nginx-tmp;
  uwsgi_temp_path {work}/nginx-tmp; scgi_temp_path {work}/nginx-tmp;
  server {{
    listen 127.0.0.1:{port} backlog=4096{listen}
    location = /hello {{ return 200 '{hello}'; }}
    location = /nothing {{ return 200 ''; }}
{locations}  }}
}}
"
    )
}
