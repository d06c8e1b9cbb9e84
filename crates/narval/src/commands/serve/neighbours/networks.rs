//! On which networks this machine is, whether they are metered, and on which power it is.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Output};
use std::{fs, io};

use if_addrs::IfAddr;

/// An address of this machine on a network with neighbours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Network {
    pub(super) interface: String,
    pub(super) address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether an address is one of this network, and private: what comes from elsewhere is no neighbour.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        let mask = u128::MAX.checked_shl(128_u32.saturating_sub(self.prefix.into())).unwrap_or(0);
        let same = bits(address) & mask == bits(self.address) & mask;
        same && address.is_ipv4() == self.address.is_ipv4() && is_local(address)
    }

    /// The address as a part of a name.
    pub(super) fn label(&self) -> String {
        format!("{:032x}", bits(self.address))
    }
}

/// The bits of an address, from the most significant one on.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => address.into(),
    }
}

/// Link-local addresses of IPv6 hold only together with an interface, and are left out.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => address.is_unique_local(),
    }
}

/// The networks of this machine that are allowed: by the name of their interface, by the address of their gateway, or all. IPv6 is used where an
/// interface has nothing else: a machine is not found twice, and gateways of IPv6 have the same address in many networks.
pub(super) fn allowed(on: &[String]) -> Vec<Network> {
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let gateways = gateways(&routes);
    let Ok(mut interfaces) = if_addrs::get_if_addrs() else { return Vec::new() };
    interfaces.sort_by_key(|interface| interface.ip().is_ipv6());
    let mut networks: Vec<Network> = Vec::new();
    for interface in interfaces {
        let (address, prefix, bits) = match &interface.addr {
            IfAddr::V4(address) => (IpAddr::V4(address.ip), address.prefixlen, 32),
            IfAddr::V6(address) => (IpAddr::V6(address.ip), address.prefixlen, 128),
        };
        // A network of less than four addresses has no neighbours, and a point-to-point link has none either.
        if interface.is_loopback() || !is_local(address) || prefix > bits - 2 {
            continue;
        }
        if address.is_ipv6() && networks.iter().any(|network| network.interface == interface.name) {
            continue;
        }
        let is_allowed = |on: &String| match on.parse::<Ipv4Addr>() {
            Ok(gateway) => gateways.iter().any(|(name, at)| *name == interface.name && *at == gateway),
            Err(_) => *on == interface.name || on == "any",
        };
        if on.iter().any(is_allowed) {
            networks.push(Network { interface: interface.name, address, prefix });
        }
    }
    networks
}

/// The interfaces with a gateway, in a table as that of `/proc/net/route`: addresses are in the byte order of the network, as numbers of the machine.
fn gateways(routes: &str) -> Vec<(String, Ipv4Addr)> {
    let gateway = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (interface, destination, gateway) = (fields.next()?, fields.next()?, fields.next()?);
        let address = u32::from_str_radix(gateway, 16).ok().filter(|address| *address != 0)?;
        (destination == "00000000").then(|| (interface.to_owned(), Ipv4Addr::from(address.to_ne_bytes())))
    };
    routes.lines().skip(1).filter_map(gateway).collect()
}

/// Whether the machine runs on battery, by a folder as `/sys/class/power_supply`: none of its mains is on, and it has a battery. One without a battery
/// never does.
pub(super) fn is_on_battery(supplies: &Path) -> bool {
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default().trim().to_owned();
    let (mut has_battery, mut is_on_mains) = (false, false);
    for supply in fs::read_dir(supplies).into_iter().flatten().flatten() {
        let path = supply.path();
        match read(&path, "type").as_str() {
            // Batteries of mice and phones do not say which power the machine is on.
            "Battery" if read(&path, "scope") != "Device" => has_battery = true,
            "Mains" | "USB" => is_on_mains |= read(&path, "online") == "1",
            _ => {}
        }
    }
    has_battery && !is_on_mains
}

/// The property `Metered` of NetworkManager: that of the network which leads to the internet.
const METERED: [&str; 6] = [
    "--timeout=2",
    "get-property",
    "org.freedesktop.NetworkManager",
    "/org/freedesktop/NetworkManager",
    "org.freedesktop.NetworkManager",
    "Metered",
];

/// Whether NetworkManager says, through `busctl`, that the network is not metered, or guesses so. Where nobody knows, it may be.
pub(super) fn is_unmetered() -> bool {
    says_unmetered(Command::new("busctl").args(METERED).output())
}

/// `NMMetered` is 2 or 4.
fn says_unmetered(output: io::Result<Output>) -> bool {
    let unknown = match output {
        Ok(output) if output.status.success() => return matches!(output.stdout.trim_ascii(), b"u 2" | b"u 4"),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("busctl: {error}"),
    };
    tracing::debug!("neighbours: whether the network is metered is not known: {unknown}");
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_may_be_metered() {
        let says = |script: &str| says_unmetered(Command::new("sh").args(["-c", script]).output());
        assert!(says("echo u 2") && says("echo u 4"));
        for script in ["echo u 0", "echo u 1", "echo u 3", "echo u 24", "true", "echo u 2; exit 1"] {
            assert!(!says(script), "{script}");
        }
        assert!(!says_unmetered(Command::new("no-such-program").output()));
    }

    #[test]
    fn gateways_of_interfaces() {
        let routes =
            "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0101A8C0\t0003\neth0\t0001A8C0\t00000000\t0001\nbad\n";
        assert_eq!(gateways(routes), [("eth0".to_owned(), Ipv4Addr::new(192, 168, 1, 1))]);
    }

    #[test]
    fn a_neighbour_has_a_private_address_of_the_network() {
        let at = |address: IpAddr, prefix| Network { interface: "e".into(), address, prefix };
        let network = |address: [u8; 4], prefix| at(address.into(), prefix);
        let has = |network: &Network, address: &str| network.has(address.parse().unwrap());
        let home = network([192, 168, 1, 7], 24);
        assert!(has(&home, "192.168.1.200") && !has(&home, "192.168.2.1") && !has(&home, "127.0.0.1"));
        assert!(!has(&home, "fe80::1"));
        let six = at("fd12:3456:789a:1::7".parse().unwrap(), 64);
        assert!(has(&six, "fd12:3456:789a:1::8") && !has(&six, "fd12:3456:789a:2::8") && !has(&six, "192.168.1.200"));
        let public = at("2001:db8::1".parse().unwrap(), 64);
        assert!(!has(&public, "2001:db8::2"), "public addresses are never neighbours");
        assert!(!has(&network([8, 8, 8, 8], 8), "8.8.4.4"), "public addresses are never neighbours");
        assert!(!has(&network([10, 0, 0, 1], 0), "8.8.8.8") && has(&network([10, 0, 0, 1], 0), "10.9.9.9"));
    }

    #[test]
    fn batteries() {
        let folder = tempfile::tempdir().unwrap();
        let supply = |name: &str, files: &[(&str, &str)]| {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).unwrap();
            files.iter().for_each(|(file, text)| fs::write(path.join(file), text).unwrap());
        };
        assert!(!is_on_battery(folder.path()), "a desktop");
        supply("hidpp_battery_0", &[("type", "Battery\n"), ("scope", "Device\n")]);
        assert!(!is_on_battery(folder.path()), "a mouse");
        supply("BAT0", &[("type", "Battery\n")]);
        assert!(is_on_battery(folder.path()));
        supply("AC", &[("type", "Mains\n"), ("online", "1\n")]);
        assert!(!is_on_battery(folder.path()));
        supply("AC", &[("online", "0\n")]);
        assert!(is_on_battery(folder.path()));
    }
}
