//! Connections to a server of the database, and whether something stands between.

use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::super::failed::{Failed, describe};
use super::super::sql::{get, query_opt};

/// What is asked first. A standby answers, too, and what it says is old.
const FIRST: &str = "select current_setting('transaction_read_only') = 'on', inet_client_port()";

/// Connects, on a runtime that moves the bytes while somebody waits for an answer. Returns whether the server sees the port of this end: then no
/// pooler or proxy is between, which may hand out a session to others after each transaction.
pub(super) async fn connect(host: &Config, mut tls: MakeRustlsConnect) -> Result<(Client, bool), Failed> {
    let (client, port) = match reach(host).await? {
        Some((stream, name)) => {
            let port = stream.local_addr()?.port();
            let tls =
                MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, &name).unwrap_or_else(|never| match never {});
            let (client, connection) = host.connect_raw(stream, tls).await?;
            tokio::spawn(async move { ended(connection.await) });
            (client, Some(port))
        }
        None => {
            let (client, connection) = host.connect(tls).await?;
            tokio::spawn(async move { ended(connection.await) });
            (client, None)
        }
    };
    let row =
        query_opt(&client, FIRST, &[]).await?.ok_or_else(|| Failed::Row("it says nothing of itself".to_owned()))?;
    if get(&row, 0)? {
        return Err(Failed::Standby);
    }
    Ok((client, port.is_some() && get::<Option<i32>>(&row, 1)? == port.map(i32::from)))
}

/// Whoever uses the connection is told, too.
fn ended(done: Result<(), tokio_postgres::Error>) {
    if let Err(error) = done {
        tracing::debug!("connection to the index: {}", describe(&error));
    }
}

/// A connection to the machine, and its name in certificates; `None` if it is this machine, by a socket in a folder.
async fn reach(host: &Config) -> Result<Option<(TcpStream, String)>, Failed> {
    let name = match host.get_hosts().first() {
        Some(Host::Unix(_)) => return Ok(None),
        Some(Host::Tcp(name)) => name.clone(),
        None => String::new(),
    };
    let port = host.get_ports().first().copied().unwrap_or(5432);
    let connect = async {
        match host.get_hostaddrs().first() {
            Some(address) => TcpStream::connect((*address, port)).await,
            None => TcpStream::connect((&*name, port)).await,
        }
    };
    let stream = match host.get_connect_timeout() {
        Some(timeout) => tokio::time::timeout(*timeout, connect).await.map_err(|_| Failed::Deadline(*timeout))??,
        None => connect.await?,
    };
    stream.set_nodelay(true)?;
    if let Some(timeout) = host.get_tcp_user_timeout() {
        let timeout = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&stream, timeout).map_err(std::io::Error::from)?;
    }
    if host.get_keepalives() {
        sockopt::set_socket_keepalive(&stream, true).map_err(std::io::Error::from)?;
        sockopt::set_tcp_keepidle(&stream, host.get_keepalives_idle()).map_err(std::io::Error::from)?;
        if let Some(interval) = host.get_keepalives_interval() {
            sockopt::set_tcp_keepintvl(&stream, interval).map_err(std::io::Error::from)?;
        }
        if let Some(retries) = host.get_keepalives_retries() {
            sockopt::set_tcp_keepcnt(&stream, retries).map_err(std::io::Error::from)?;
        }
    }
    Ok(Some((stream, name)))
}
