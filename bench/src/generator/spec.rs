//! Spec: the shape of a load in one word: `16x16x1k` is clients x appends in flight x record size.
//!
//! **Invariants**
//! - Four numbers put the records of a batch third: `64x16x100x1k`.
//! - What it prints, it parses.
//!
//! **Not here**: how long and how fast (`Plan`).

use std::fmt;
use std::str::FromStr;

/// Most clients: each is a connection.
pub const CLIENTS_MAX: usize = 4096;
/// Most appends one client keeps in flight.
const WINDOW_MAX: usize = 1 << 16;
/// Most records of a batch.
const RECORDS_MAX: usize = 1 << 16;
/// Largest record.
const RECORD_BYTES_MAX: usize = 16 << 20;

/// Who appends what, and how many at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSpec {
    /// Connections, each with a feed of its own where the target has feeds.
    pub clients: usize,
    /// Appends each keeps in flight.
    pub window: usize,
    /// Records of an append.
    pub records: usize,
    /// Payload bytes of a record.
    pub record_bytes: usize,
    /// Records carry keys.
    pub keyed: bool,
}

impl LoadSpec {
    /// One record an append, without keys.
    pub const fn of(clients: usize, window: usize, record_bytes: usize) -> Self {
        Self {
            clients,
            window,
            records: 1,
            record_bytes,
            keyed: false,
        }
    }

    /// Most appends in flight over all clients.
    pub fn in_flight_max(&self) -> u64 {
        self.clients as u64 * self.window as u64
    }

    /// Payload of an append.
    pub fn append_bytes(&self) -> u64 {
        self.records as u64 * self.record_bytes as u64
    }
}

impl fmt::Display for LoadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x", self.clients, self.window)?;
        if self.records > 1 {
            write!(f, "{}x", self.records)?;
        }
        let bytes = self.record_bytes;
        match bytes {
            _ if bytes.is_multiple_of(1 << 20) => write!(f, "{}m", bytes >> 20),
            _ if bytes.is_multiple_of(1024) => write!(f, "{}k", bytes >> 10),
            _ => write!(f, "{bytes}"),
        }
    }
}

impl FromStr for LoadSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('x').collect();
        let (clients, window, records, bytes) = match parts[..] {
            [clients, window, bytes] => (clients, window, "1", bytes),
            [clients, window, records, bytes] => (clients, window, records, bytes),
            _ => {
                return Err(format!(
                    "{text:?} is not CLIENTSxWINDOWxBYTES or CLIENTSxWINDOWxRECORDSxBYTES, as 16x16x1k"
                ));
            }
        };
        Ok(Self {
            clients: count("clients", clients, CLIENTS_MAX)?,
            window: count("window", window, WINDOW_MAX)?,
            records: count("records", records, RECORDS_MAX)?,
            record_bytes: parse_bytes(bytes)?,
            keyed: false,
        })
    }
}

fn count(what: &str, text: &str, max: usize) -> Result<usize, String> {
    let number: usize = text
        .parse()
        .map_err(|_| format!("{what} = {text:?} is not a number"))?;
    match number {
        0 => Err(format!("{what} = 0, at least 1 needed")),
        _ if number > max => Err(format!("{what} = {number}, at most {max} allowed")),
        _ => Ok(number),
    }
}

/// A record size: `100`, `100b`, `1k`, `2m`.
///
/// # Errors
/// Not that, 0, or over 16 MiB.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let text = text.trim().to_ascii_lowercase();
    let (digits, unit) = match text.strip_suffix(['b', 'k', 'm']) {
        Some(digits) if text.ends_with('k') => (digits, 1 << 10),
        Some(digits) if text.ends_with('m') => (digits, 1 << 20),
        Some(digits) => (digits, 1),
        None => (text.as_str(), 1),
    };
    let most = RECORD_BYTES_MAX / unit;
    count("record bytes", digits, most).map(|number| number * unit)
}

/// When the next append comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// When there is room in the window.
    Closed,
    /// At random times (exponential gaps), this many appends a second over all clients; one that finds
    /// no room in the window waits, and its wait counts.
    Open {
        /// Appends a second.
        per_second: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_of_three_and_four_numbers_is_read_and_printed() {
        let spec: LoadSpec = "16x16x1k".parse().expect("a spec");
        assert_eq!(spec, LoadSpec::of(16, 16, 1024));
        assert_eq!(spec.in_flight_max(), 256);
        let spec: LoadSpec = "64x8x100x100b".parse().expect("a spec");
        assert_eq!((spec.records, spec.record_bytes), (100, 100));
        assert_eq!(spec.append_bytes(), 10_000);
        for text in ["1x256x100", "16x16x1k", "64x16x100x16k", "1x1x2m"] {
            let spec: LoadSpec = text.parse().expect("a spec");
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn spec_that_is_none_names_what_is_wrong() {
        for (text, says) in [
            ("16x16", "is not CLIENTS"),
            ("0x1x100", "clients = 0"),
            ("1xax100", "window = \"a\""),
            ("1x1x0", "record bytes = 0"),
            ("1x1x17m", "at most 16"),
            ("5000x1x1", "at most 4096"),
            ("1x1x1x1x1", "is not CLIENTS"),
        ] {
            let error = text.parse::<LoadSpec>().expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
