//! nginx over prepared files: the peer in every run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::{Server, free_port};
use crate::tls::Certificate;
use crate::{Context, Result};

/// Length of the body of `/hello`, which nginx sends from memory.
pub const HELLO_BYTES: usize = 600;

/// Starts nginx with one worker. Each folder is given with its request path prefix, which begins and ends with a
/// slash.
///
/// # Errors
/// If nginx is not installed, or does not start.
pub fn start(folders: &[(&str, &Path)], work: &Path) -> Result<Server> {
    start_with(folders, work, None)
}

/// Like [`start`], over HTTPS; `ktls` enables kernel TLS.
///
/// # Errors
/// As [`start`].
pub fn start_https(folders: &[(&str, &Path)], work: &Path, certificate: &Certificate, ktls: bool) -> Result<Server> {
    let mut server = start_with(folders, work, Some(Tls { certificate, ktls, http2: false }))?;
    server.base.secure = true;
    Ok(server)
}

/// Like [`start`], over HTTPS with HTTP/2.
///
/// # Errors
/// As [`start`].
pub fn start_http2(folders: &[(&str, &Path)], work: &Path, certificate: &Certificate) -> Result<Server> {
    let mut server = start_with(folders, work, Some(Tls { certificate, ktls: false, http2: true }))?;
    server.base.secure = true;
    Ok(server)
}

#[derive(Clone, Copy)]
struct Tls<'a> {
    certificate: &'a Certificate,
    ktls: bool,
    http2: bool,
}

fn start_with(folders: &[(&str, &Path)], work: &Path, tls: Option<Tls<'_>>) -> Result<Server> {
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

/// The arguments of an nginx whose DAV module stores PUT bodies in a folder and serves them from there. The module
/// writes a body to a temporary file and renames it. It verifies nothing and syncs nothing.
///
/// # Errors
/// If the configuration cannot be written.
pub fn dav_arguments(data: &Path, work: &Path, port: u16) -> Result<Vec<OsString>> {
    let work = fs::canonicalize(work).context(|| format!("cannot use {}", work.display()))?;
    let data = work.join(data.file_name().unwrap_or_default());
    fs::create_dir_all(&data).context(|| format!("cannot make {}", data.display()))?;
    let configuration = work.join("nginx.conf");
    fs::write(&configuration, dav_text(&data, &work, port))
        .context(|| format!("cannot write {}", configuration.display()))?;
    let log = work.join("nginx-error.log").into_os_string();
    Ok(vec!["-p".into(), work.into_os_string(), "-c".into(), configuration.into_os_string(), "-e".into(), log])
}

fn dav_text(data: &Path, work: &Path, port: u16) -> String {
    let (data, work) = (data.display(), work.display());
    let user = user();
    format!(
        "{user} worker_processes 1; daemon off; pid {work}/nginx.pid; error_log {work}/nginx-error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; default_type application/octet-stream;
  keepalive_requests 1000000000; keepalive_timeout 600s;
  client_body_temp_path {work}/nginx-body; client_max_body_size 0; client_body_buffer_size 128k;
  proxy_temp_path {work}/nginx-tmp; fastcgi_temp_path {work}/nginx-tmp; uwsgi_temp_path {work}/nginx-tmp;
  scgi_temp_path {work}/nginx-tmp;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ root {data}; dav_methods PUT; create_full_put_path on; }}
  }}
}}
"
    )
}

/// A worker of an nginx started by root would switch to a user that may not read the folders.
fn user() -> &'static str {
    if rustix::process::geteuid().is_root() { "user root;" } else { "" }
}

/// Debian installs it in a folder that is not on an ordinary user's PATH.
pub(crate) fn program() -> PathBuf {
    let sbin = PathBuf::from("/usr/sbin/nginx");
    if sbin.exists() { sbin } else { PathBuf::from("nginx") }
}

/// Tuned as nginx's documentation advises for static files: every optimization that is correct for
/// files that do not change.
fn text(folders: &[(&str, &Path)], work: &Path, port: u16, tls: Option<Tls<'_>>) -> String {
    let work = work.display();
    let user = user();
    let locations =
        folders.iter().map(|(prefix, folder)| format!("    location {prefix} {{ alias {}/; }}\n", folder.display()));
    let locations = locations.collect::<String>();
    // Session tickets are on by default, as in narval. TLS 1.3 has to be enabled explicitly.
    let tls = tls.map_or(String::new(), |Tls { certificate, ktls, http2 }| {
        let ktls = if ktls { "ssl_conf_command Options KTLS;" } else { "" };
        let http2 = if http2 { " http2" } else { "" };
        let (cert, key) = (certificate.cert.display(), certificate.key.display());
        format!(" ssl{http2}; ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate {cert}; ssl_certificate_key {key}; {ktls}")
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
