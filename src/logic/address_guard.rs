//! Addresses at which no engine is, and which may be asked for on somebody else's behalf: whoever can name an address makes this
//! process connect to it.
//!
//! Link-local addresses are refused, because the metadata services of clouds answer there with credentials; so are addresses that
//! are no single host's. A name is judged by its spelling only: what it resolves to is known when it is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::logic::endpoint::WorkerUrl;

/// Metadata services that do not answer at a link-local address.
const METADATA_V4: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);
const METADATA_NAMES: [&str; 2] = ["metadata", "metadata.google.internal"];

/// Says why the worker's address is not one to connect to; `None` where nothing speaks against it.
pub fn objection(url: &WorkerUrl) -> Option<&'static str> {
    let host = url.host().trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => objection_to(address),
        Err(_) => {
            let name = host.trim_end_matches('.');
            METADATA_NAMES.contains(&name).then_some("it is the address of a metadata service")
        }
    }
}

/// Says why the address is not one to connect to, an IPv4 address inside an IPv6 one included.
pub fn objection_to(address: IpAddr) -> Option<&'static str> {
    let address = address.to_canonical();
    if address.is_multicast() || address.is_unspecified() || address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Some("it is not the address of one host");
    }
    let is_metadata = address == IpAddr::V4(METADATA_V4) || address == IpAddr::V6(METADATA_V6);
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    match (is_metadata, is_link_local) {
        (true, _) => Some("it is the address of a metadata service"),
        (_, true) => Some("it is a link-local address"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::objection;
    use crate::logic::testing::url;

    /// Seen in volcano-sh/kthena#1725.
    #[test]
    fn metadata_and_link_local_addresses_are_refused_in_every_spelling() {
        let refused = [
            "169.254.169.254:80",
            "http://169.254.0.1:30000/",
            "0xa9.0xfe.0xa9.0xfe:80",
            "169.254.43518:80",
            "[::ffff:169.254.169.254]:80",
            "[fe80::1]:30000",
            "[febf::1]:30000",
            "[fd00:ec2::254]:80",
            "100.100.100.200:80",
            "metadata.google.internal:80",
            "Metadata.Google.Internal.:80",
            "0.0.0.0:30000",
            "[::]:30000",
            "224.0.0.1:30000",
            "255.255.255.255:30000",
        ];
        for text in refused {
            assert!(objection(&url(text)).is_some(), "{text}");
        }
        for text in
            ["10.0.0.1:1", "127.0.0.1:1", "[::1]:1", "[fec0::1]:1", "[fd00::1]:1", "169.253.0.1:1", "engine-0:1"]
        {
            assert_eq!(objection(&url(text)), None, "{text}");
        }
    }
}
