//! Address: where webhooks may go: nowhere that only this machine, or its network, should reach.
//!
//! **Invariants**
//! - Outside: https only, to addresses that the whole internet routes.
//! - This machine: plain http to `localhost` and 127.0.0.0/8 only, and only if the server says so.
//! - Names are checked by their addresses, at each connection, and the address that was checked is the one
//!   that is connected to ([`Guard`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hyper::StatusCode;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::wrong::Wrong;

/// Longest URL of a webhook.
const URL_BYTES_MAX: usize = 2048;

/// Where a webhook goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// This machine.
    Loopback,
    /// The internet.
    Public,
}

/// Checks the URL of a webhook as far as that goes without asking for addresses.
pub(super) fn check_url(text: &str, loopback: bool) -> Result<(Url, Side), Wrong> {
    let refuse = |why: &str| {
        let text = format!("webhook.url {why}");
        Err(Wrong::new(
            StatusCode::BAD_REQUEST,
            "WEBHOOK_URL_REJECTED",
            text,
        ))
    };
    if text.len() > URL_BYTES_MAX {
        return refuse("is longer than 2048 bytes");
    }
    let Ok(url) = Url::parse(text) else {
        return refuse("is no URL");
    };
    if !url.username().is_empty() || url.password().is_some() {
        return refuse("must not carry a user or a password");
    }
    let Some(host) = url.host_str() else {
        return refuse("has no host");
    };
    let host = host.trim_end_matches('.').to_owned();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let literal: Option<IpAddr> = bare.parse().ok();
    let local = host == "localhost" || host.ends_with(".localhost");
    match url.scheme() {
        "https" if local => refuse("must not go to this machine"),
        "https" if literal.is_some_and(|ip| !is_public(ip)) => {
            refuse("must not go to a private or reserved address")
        }
        "https" => Ok((url, Side::Public)),
        "http" if !loopback => refuse("must be https"),
        "http" if host == "localhost" || literal.is_some_and(is_loopback) => {
            Ok((url, Side::Loopback))
        }
        "http" => refuse("must be https, or http to localhost or 127.0.0.0/8"),
        _ => refuse("must be https"),
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.is_loopback())
}

/// Whether the whole internet routes the address.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// Ranges that are special: first address, and length of the prefix.
const SPECIAL_V4: [([u8; 4], u32); 16] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    // A cloud's own services answer here, on every machine of it.
    ([168, 63, 129, 16], 32),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let within = |(first, length): &([u8; 4], u32)| {
        let shift = 32 - length;
        u32::from(ip).checked_shr(shift) == u32::from_be_bytes(*first).checked_shr(shift)
    };
    !SPECIAL_V4.iter().any(within)
}

/// What is handed out to networks is in 2000::/3; within it are ranges that lead elsewhere: tunnels to any
/// address (2001::/32, 2002::/16), and what is kept for documents and protocols.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    let global = a & 0xe000 == 0x2000;
    let special = (a == 0x2001 && (b < 0x200 || b == 0xdb8)) || a == 0x2002 || a & 0xfff0 == 0x3ff0;
    global && !special
}

/// Finds addresses of names, and lets only those through that a webhook may go to.
pub(super) struct Guard(pub(super) Side);

impl Guard {
    fn lets(&self, ip: IpAddr) -> bool {
        match self.0 {
            Side::Loopback => is_loopback(ip),
            Side::Public => is_public(ip),
        }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = Self(self.0);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found.filter(|at| guard.lets(at.ip())).collect();
            if allowed.is_empty() {
                let text = "the name has no address that a webhook may go to";
                return Err(text.into());
            }
            let allowed: Addrs = Box::new(allowed.into_iter());
            Ok(allowed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_lead_inside_are_refused() {
        for url in [
            "http://10.0.0.1/hook",
            "https://10.0.0.1/hook",
            "https://192.168.1.1/",
            "https://172.31.255.255/",
            "https://169.254.169.254/latest/meta-data",
            "http://169.254.169.254/",
            "https://168.63.129.16/",
            "https://100.100.100.200/",
            "https://127.0.0.1/",
            "https://localhost/",
            "https://x.localhost/",
            "https://0.0.0.0/",
            "http://0.0.0.0/",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://[::1]/",
            "http://[::1]/",
            "https://[::]/",
            "https://[::ffff:10.0.0.1]/",
            "https://[::ffff:8.8.8.8]/",
            "https://[fd00::1]/",
            "https://[fe80::1]/",
            "https://[64:ff9b::a00:1]/",
            "https://[2002:a00:1::]/",
            "https://[2001:db8::1]/",
            "https://[ff02::1]/",
            "http://example.com/",
            "http://localhost.example.com/",
            "http://127.0.0.1.example.com/",
            "http://user@127.0.0.1/",
            "https://user:word@example.com/",
            "ftp://example.com/",
            "file:///etc/passwd",
            "gopher://127.0.0.1/",
            "/hook",
            "",
        ] {
            let refused = check_url(url, true);
            let refused = refused.expect_err(url);
            assert!(format!("{refused:?}").contains("WEBHOOK_URL_REJECTED"));
        }
        assert!(check_url(&format!("https://example.com/{}", "x".repeat(2048)), true).is_err());
    }

    #[test]
    fn urls_that_lead_outside_or_to_this_machine_are_taken() {
        for (url, side) in [
            ("https://example.com/hook?x=1", Side::Public),
            ("https://8.8.8.8:8443/", Side::Public),
            ("https://[2606:4700::1111]/", Side::Public),
            ("http://localhost:8080/hook", Side::Loopback),
            ("http://127.0.0.1:1/", Side::Loopback),
            ("http://127.9.9.9/", Side::Loopback),
        ] {
            let taken = check_url(url, true).expect(url);
            assert_eq!(taken.1, side, "{url}");
            let elsewhere = check_url(url, false).is_ok();
            assert_eq!(elsewhere, side == Side::Public, "{url}");
        }
    }

    #[test]
    fn names_are_known_by_their_addresses() {
        let (inside, outside) = (Guard(Side::Loopback), Guard(Side::Public));
        for (ip, public, loopback) in [
            ("127.0.0.1", false, true),
            ("10.1.2.3", false, false),
            ("169.254.169.254", false, false),
            ("::1", false, false),
            ("fd12::1", false, false),
            ("1.1.1.1", true, false),
            ("2606:4700::1111", true, false),
        ] {
            let ip: IpAddr = ip.parse().expect("an address");
            assert_eq!(
                (outside.lets(ip), inside.lets(ip)),
                (public, loopback),
                "{ip}"
            );
        }
    }

    #[test]
    fn edges_of_ranges_are_where_they_are_said_to_be() {
        for (ip, public) in [
            ("9.255.255.255", true),
            ("11.0.0.0", true),
            ("100.63.255.255", true),
            ("100.128.0.0", true),
            ("172.15.255.255", true),
            ("172.32.0.0", true),
            ("198.17.255.255", true),
            ("198.20.0.0", true),
            ("223.255.255.255", true),
            ("255.255.255.255", false),
            ("0.1.2.3", false),
        ] {
            let ip: Ipv4Addr = ip.parse().expect("an address");
            assert_eq!(is_public_v4(ip), public, "{ip}");
        }
    }
}
