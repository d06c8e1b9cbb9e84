//! The options that all examples take: `--port N` (0: any free one) and `--driver auto|epoll|uring`; and some of their own.

#![allow(dead_code, reason = "each example uses what it needs of this")]

use std::collections::HashMap;
use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;

use narval_http::{Builder, DriverChoice, Handler, Listen, Server, ServerHandle};

/// How long running requests have to finish.
const GRACE: Duration = Duration::from_secs(30);

/// Serves `handler` as the command line says, until a SIGTERM or Ctrl-C.
pub(crate) fn serve(handler: impl Handler) -> Result<(), Box<dyn Error>> {
    Arguments::read(&[])?.serve(handler, |builder| builder)
}

/// The command line.
pub(crate) struct Arguments {
    port: u16,
    driver: DriverChoice,
    own: HashMap<String, String>,
}

impl Arguments {
    /// Reads it; `own` are the names of the example's own options, each of which has a value.
    pub(crate) fn read(own: &[&str]) -> Result<Self, Box<dyn Error>> {
        let mut read = Self { port: 8080, driver: DriverChoice::Auto, own: HashMap::new() };
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--port" => read.port = value.parse()?,
                "--driver" => read.driver = value.parse()?,
                _ if own.contains(&name.as_str()) => drop(read.own.insert(name, value)),
                _ => {
                    let known = ["--port", "--driver"].iter().chain(own).copied().collect::<Vec<_>>().join(", ");
                    return Err(format!("unknown option {name}: one of {known}").into());
                }
            }
        }
        Ok(read)
    }

    /// One of the example's own options.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.own.get(name).map(String::as_str)
    }

    /// Serves `handler`, until a SIGTERM or Ctrl-C.
    pub(crate) fn serve(
        self,
        handler: impl Handler,
        set: impl FnOnce(Builder) -> Builder,
    ) -> Result<(), Box<dyn Error>> {
        self.serve_and(handler, set, |_| {})
    }

    /// Serves `handler`; `started` gets the server's handle before anybody waits for its end.
    pub(crate) fn serve_and(
        self,
        handler: impl Handler,
        set: impl FnOnce(Builder) -> Builder,
        started: impl FnOnce(&ServerHandle),
    ) -> Result<(), Box<dyn Error>> {
        narval_http::give_back_large_blocks();
        let builder = Server::builder(handler).listen(Listen::Tcp((Ipv4Addr::LOCALHOST, self.port).into()));
        let server = set(builder).driver(self.driver).build()?;
        for address in server.addresses() {
            println!("listening on {address}");
        }
        let handle = server.spawn()?;
        handle.stop_on_signals(GRACE)?;
        started(&handle);
        Ok(handle.wait()?)
    }
}
