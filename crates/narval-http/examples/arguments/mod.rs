//! The options of all examples: `--port N` (0: any free port), `--driver auto|epoll|uring`, `--workers N`, `--shards
//! N`, and `--inherited yes` (serve the sockets that systemd hands over); and the example's own ones.

#![allow(dead_code, reason = "each example uses only parts of this")]

use std::collections::HashMap;
use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;

use narval_http::{Builder, DriverChoice, IntoHandler, Listen, Server, ServerHandle, StopSignals};

/// How long running requests may take when the server stops.
const GRACE: Duration = Duration::from_secs(30);

/// Serves `handler` with the options of the command line, until SIGTERM or Ctrl-C.
pub(crate) fn serve<Form>(handler: impl IntoHandler<Form>) -> Result<(), Box<dyn Error>> {
    Arguments::read(&[])?.serve(handler, |builder| builder)
}

/// The command line.
pub(crate) struct Arguments {
    port: u16,
    inherited: bool,
    driver: DriverChoice,
    workers: Option<usize>,
    shards: Option<usize>,
    own: HashMap<String, String>,
}

impl Arguments {
    /// Reads the command line; `own` names the example's own options. Every option has a value.
    pub(crate) fn read(own: &[&str]) -> Result<Self, Box<dyn Error>> {
        let mut read = Self {
            port: 8080,
            inherited: false,
            driver: DriverChoice::Auto,
            workers: None,
            shards: None,
            own: HashMap::new(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--port" => read.port = value.parse()?,
                "--inherited" => read.inherited = value == "yes",
                "--driver" => read.driver = value.parse()?,
                "--workers" => read.workers = Some(value.parse()?),
                "--shards" => read.shards = Some(value.parse()?),
                _ if own.contains(&name.as_str()) => drop(read.own.insert(name, value)),
                _ => {
                    let known = ["--port", "--driver", "--workers", "--shards", "--inherited"];
                    let known = known.iter().chain(own).copied().collect::<Vec<_>>().join(", ");
                    return Err(format!("unknown option {name}: expected one of {known}").into());
                }
            }
        }
        Ok(read)
    }

    /// The value of one of the example's own options.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.own.get(name).map(String::as_str)
    }

    /// Serves `handler` until SIGTERM or Ctrl-C; `set` sets more options of the server.
    pub(crate) fn serve<Form>(
        self,
        handler: impl IntoHandler<Form>,
        set: impl FnOnce(Builder) -> Builder,
    ) -> Result<(), Box<dyn Error>> {
        self.serve_and(handler, set, |_| {})
    }

    /// Like [`serve`](Self::serve); `started` is called with the handle of the running server.
    pub(crate) fn serve_and<Form>(
        self,
        handler: impl IntoHandler<Form>,
        set: impl FnOnce(Builder) -> Builder,
        started: impl FnOnce(&ServerHandle),
    ) -> Result<(), Box<dyn Error>> {
        narval_http::give_back_large_blocks();
        let tcp = || Listen::Tcp((Ipv4Addr::LOCALHOST, self.port).into());
        let mut builder = Server::builder(handler).driver(self.driver);
        builder = builder.listen(if self.inherited { Listen::Inherited } else { tcp() });
        if let Some(workers) = self.workers {
            builder = builder.workers(workers);
        }
        if let Some(shards) = self.shards {
            builder = builder.shards(shards);
        }
        let server = set(builder).build()?;
        for address in server.addresses() {
            println!("listening on {address}");
        }
        let signals = StopSignals::catch()?;
        let handle = server.spawn()?;
        handle.stop_on(signals, GRACE)?;
        started(&handle);
        Ok(handle.wait()?)
    }
}
