//! `narval serve --neighbours`: finds near caches on the same network by mDNS, answers them, and tells the upstreams of the cache at `/` where they are.
//!
//! One thread looks every few seconds on which networks and which power the machine is. While it is on one that is allowed, a server of its own listens on
//! the addresses there, and is announced. What others announce is hostile: only private addresses of the same network are used, and only a limited number.

mod networks;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use mdns_sd::{IfKind, Receiver, ServiceDaemon, ServiceEvent, ServiceInfo};
use narval_cache::upstream::{NEIGHBOURS_MAX, Upstreams};
use narval_http::{Limits, Listen, ListenAddress, Server, ServerHandle};
use narval_nix::{SecretKey, StoreDir};
use narval_serve::{ForNeighbours, NeighbourLimits};

use crate::config::Neighbours;
use crate::ui::failure::Failure;
use networks::{Network, allowed, is_on_battery, is_unmetered};

/// The service, as RFC 6763 names it.
const SERVICE: &str = "_narval._tcp.local.";
/// What the announcement has: the version of the protocol, the name of the machine, and the store directory.
const VERSION_KEY: &str = "v";
const VERSION: &str = "1";
const ID_KEY: &str = "id";
const STORE_KEY: &str = "store";
/// How often networks and power are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// How often announcements are taken in.
const TAKE_EVERY: Duration = Duration::from_millis(100);
/// The maximum number of announcements that are remembered.
const ANNOUNCED_MAX: usize = 8 * NEIGHBOURS_MAX;
/// Threads that answer neighbours, and connections of them.
const WORKERS: usize = 16;
const CONNECTIONS_MAX: usize = 1024;
/// How often NetworkManager is asked: a program is started for it.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// Where the kernel has batteries and mains.
const POWER: &str = "/sys/class/power_supply";

/// Takes part, on a thread of its own, until the program ends.
///
/// # Errors
/// Without random numbers, or without a thread.
pub(super) fn start(config: &Neighbours, upstreams: Upstreams, store_dir: StoreDir) -> Result<(), Failure> {
    // No address or name of the machine: it is another one after each start.
    let nonce = SecretKey::generate("neighbour").map_err(Failure::runtime)?.sign(b"").map_err(Failure::runtime)?;
    let id = nonce.bytes().first_chunk().map_or(1, |bytes| u64::from_be_bytes(*bytes).max(1));
    let (config, watch) = (config.clone(), "neighbours");
    let run = move || Watcher { config, upstreams, store_dir, id }.run();
    thread::Builder::new().name(watch.into()).spawn(run).map_err(Failure::runtime)?;
    Ok(())
}

struct Watcher {
    config: Neighbours,
    upstreams: Upstreams,
    store_dir: StoreDir,
    id: u64,
}

/// The networks on which this machine takes part.
struct Present {
    networks: Vec<Network>,
    server: ServerHandle,
    daemon: ServiceDaemon,
    events: Receiver<ServiceEvent>,
    /// The addresses of others, by the names that they have announced.
    announced: HashMap<String, SocketAddr>,
}

impl Watcher {
    fn run(self) {
        let mut present: Option<Present> = None;
        let mut reported = None;
        let only_on = self.config.neighbours_only_on;
        let mut metered: Option<(Instant, bool)> = None;
        loop {
            if only_on.needs_unmetered() && metered.is_none_or(|(at, _)| at.elapsed() >= ASK_EVERY) {
                let is_metered = !is_unmetered();
                if is_metered && metered.is_none_or(|(_, was_metered)| !was_metered) {
                    tracing::info!("neighbours: not now: the network is metered, or NetworkManager does not know it");
                }
                metered = Some((Instant::now(), is_metered));
            }
            let is_metered = metered.is_some_and(|(_, is_metered)| is_metered);
            let networks = match is_metered || only_on.needs_ac() && is_on_battery(Path::new(POWER)) {
                true => Vec::new(),
                false => allowed(&self.on()),
            };
            if present.as_ref().map_or(&[][..], |present| &present.networks) != networks {
                if let Some(present) = present.take() {
                    present.ends();
                    self.tell(0, &[]);
                }
                if !networks.is_empty() {
                    match self.join(networks) {
                        Ok(joined) => present = Some(joined),
                        Err(failure) if reported.as_ref() == Some(&failure.to_string()) => {}
                        Err(failure) => {
                            tracing::warn!("neighbours: {failure}; tried again every {} s", LOOK_EVERY.as_secs());
                            reported = Some(failure.to_string());
                        }
                    }
                }
            }
            let until = Instant::now() + LOOK_EVERY;
            while Instant::now() < until {
                thread::sleep(TAKE_EVERY);
                if let Some(present) = &mut present
                    && present.takes_announcements(&self)
                {
                    let addresses: Vec<_> = present.sorted();
                    tracing::info!("neighbours: {} on the network", addresses.len());
                    self.tell(self.id, &addresses);
                }
            }
            // Those that were forgotten for a while are asked again.
            if let Some(present) = &present {
                self.tell(self.id, &present.sorted());
            }
        }
    }

    fn tell(&self, id: u64, addresses: &[SocketAddr]) {
        self.upstreams.set_neighbours(id, self.config.neighbours_patience, addresses);
    }

    fn on(&self) -> Vec<String> {
        self.config.neighbours_on.iter().map(|at| at.value.clone()).collect()
    }

    fn join(&self, networks: Vec<Network>) -> Result<Present, Failure> {
        let limits = NeighbourLimits {
            rate_max: self.config.neighbours_rate_max.value,
            nars_max: usize::try_from(self.config.neighbours_nars_max).unwrap_or(usize::MAX),
        };
        let theirs = networks.clone();
        let admits = move |address: IpAddr| theirs.iter().any(|network| network.has(address));
        let handler = ForNeighbours::new(self.upstreams.clone(), &self.store_dir, limits, admits);
        let mut builder = Server::builder(handler).workers(WORKERS);
        builder = builder.limits(Limits { connections_max: CONNECTIONS_MAX, ..Limits::default() });
        for network in &networks {
            builder = builder.listen(Listen::Tcp((network.address, 0).into()));
        }
        let server = builder.build().and_then(Server::spawn).map_err(Failure::runtime)?;
        let announced = self.announce(&networks, server.addresses());
        match announced {
            Ok((daemon, events)) => {
                let shown: Vec<_> = server.addresses().iter().map(ToString::to_string).collect();
                tracing::info!("neighbours: answers them at {}", shown.join(" and "));
                self.tell(self.id, &[]);
                Ok(Present { networks, server, daemon, events, announced: HashMap::new() })
            }
            Err(error) => {
                server.shutdown(Duration::ZERO);
                Err(Failure::runtime(format!("mDNS: {error}")))
            }
        }
    }

    /// Announces the server on these networks alone, and listens for others there.
    fn announce(
        &self,
        networks: &[Network],
        addresses: &[ListenAddress],
    ) -> Result<(ServiceDaemon, Receiver<ServiceEvent>), mdns_sd::Error> {
        let daemon = ServiceDaemon::new()?;
        daemon.disable_interface(IfKind::All)?;
        let name = format!("{:016x}", self.id);
        let mut last = None;
        for (network, address) in networks.iter().zip(addresses) {
            let ListenAddress::Tcp(address) = address else { continue };
            daemon.enable_interface(IfKind::Addr(network.address))?;
            let has = BTreeMap::from([
                (VERSION_KEY.to_owned(), VERSION.to_owned()),
                (ID_KEY.to_owned(), name.clone()),
                (STORE_KEY.to_owned(), self.store_dir.to_string()),
            ]);
            let has: HashMap<_, _> = has.into_iter().collect();
            // Machines on several networks have one name on each.
            let instance = format!("{name}-{}", network.label());
            let host = format!("narval-{instance}.local.");
            daemon.register(ServiceInfo::new(SERVICE, &instance, &host, network.address, address.port(), has)?)?;
            last = Some(());
        }
        if last.is_none() {
            return Err(mdns_sd::Error::Msg("there is no address".to_owned()));
        }
        let events = daemon.browse(SERVICE)?;
        Ok((daemon, events))
    }
}

impl Present {
    /// Takes in what was announced since. Returns whether anything has changed.
    fn takes_announcements(&mut self, watcher: &Watcher) -> bool {
        let mut changed = false;
        while let Ok(event) = self.events.try_recv() {
            match event {
                ServiceEvent::ServiceResolved(service) => {
                    let is = |key: &str, value: &str| service.txt_properties.get_property_val_str(key) == Some(value);
                    let own = format!("{:016x}", watcher.id);
                    if !is(VERSION_KEY, VERSION) || !is(STORE_KEY, &watcher.store_dir.to_string()) || is(ID_KEY, &own) {
                        continue;
                    }
                    let addresses = service.addresses.iter().map(|address| address.to_ip_addr());
                    let mut near =
                        addresses.filter(|address| self.networks.iter().any(|network| network.has(*address)));
                    let own = |address: &IpAddr| self.networks.iter().any(|network| network.address == *address);
                    let Some(address) = near.find(|address| !own(address)) else { continue };
                    let is_known = self.announced.contains_key(&service.fullname);
                    if service.port != 0 && (is_known || self.announced.len() < ANNOUNCED_MAX) {
                        let address = SocketAddr::new(address, service.port);
                        changed |= self.announced.insert(service.fullname.clone(), address) != Some(address);
                    }
                }
                ServiceEvent::ServiceRemoved(_, name) => changed |= self.announced.remove(&name).is_some(),
                _ => {}
            }
        }
        changed
    }

    /// In an order that others cannot choose by announcing first.
    fn sorted(&self) -> Vec<SocketAddr> {
        let mut addresses: Vec<_> = self.announced.values().copied().collect();
        addresses.sort();
        addresses.dedup_by_key(|address| address.ip());
        addresses
    }

    fn ends(self) {
        tracing::info!("neighbours: no longer on a network where they are allowed");
        // Its own thread ends with it; what is on the network expires.
        if let Err(error) = self.daemon.shutdown() {
            tracing::debug!("neighbours: mDNS: {error}");
        }
        self.server.shutdown(Duration::ZERO);
    }
}
