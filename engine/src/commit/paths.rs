//! Paths: the names of everything in the bucket. Spec: spec/commit.md §3.
//!
//! **Invariants**
//! - COMMIT-7: two feed names never share a path component, and no component is empty, `.`, `..`
//!   or longer than [`COMPONENT_BYTES_MAX`].
//! - Commits and streams of a feed list in their numeric order.
//!
//! **Not here**: which names a feed may have (the limits say), what `feed.json` holds.

use crate::ids::{CommitNumber, Digest, FeedId, LogId, StreamId};
use std::fmt::Write as _;

/// Longest path component that an escaped feed name takes.
pub const COMPONENT_BYTES_MAX: usize = 200;
/// `~` and the SHA-256 in hexadecimal.
const HASH_SUFFIX_BYTES: usize = 65;
const _: () = assert!(HASH_SUFFIX_BYTES < COMPONENT_BYTES_MAX);

/// A feed name as one path component. Bytes outside `[A-Za-z0-9._-]` and a leading `.` become `%XX`;
/// a result beyond [`COMPONENT_BYTES_MAX`] is cut and ends in `~` and the name's SHA-256 instead.
/// The empty name (which no feed has) becomes `%`.
#[must_use]
pub fn escape_name(name: &str) -> String {
    if name.is_empty() {
        return "%".to_owned();
    }
    let mut out = String::with_capacity(name.len());
    let mut prefix_end = 0;
    for (at, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if plain && !(at == 0 && byte == b'.') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        if out.len() <= COMPONENT_BYTES_MAX - HASH_SUFFIX_BYTES {
            prefix_end = out.len();
        }
    }
    if out.len() > COMPONENT_BYTES_MAX {
        // `~` is never plain and never part of an escape: a cut name cannot equal a whole one.
        out.truncate(prefix_end);
        let _ = write!(out, "~{}", Digest::of(name.as_bytes()));
    }
    out
}

/// The feed name behind a component that [`escape_name`] made; `None` for a hashed or foreign one.
#[must_use]
pub fn unescape_name(component: &str) -> Option<String> {
    let mut out = Vec::with_capacity(component.len());
    let mut rest = component.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (pair, tail) = rest.split_at_checked(2)?;
        out.push(u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?);
        rest = tail;
    }
    let name = String::from_utf8(out).ok()?;
    (!name.is_empty() && escape_name(&name) == component).then_some(name)
}

/// Prefix below which all that a feed name ever held lies, one folder per feed id.
#[must_use]
pub fn name_prefix(name: &str) -> String {
    format!("feeds/{}/", escape_name(name))
}

/// Prefix of one feed.
#[must_use]
pub fn feed_prefix(name: &str, feed: FeedId) -> String {
    format!("feeds/{}/{feed}/", escape_name(name))
}

/// The feed's description.
#[must_use]
pub fn feed_json(name: &str, feed: FeedId) -> String {
    feed_prefix(name, feed) + "feed.json"
}

/// Prefix of the feed's history.
#[must_use]
pub fn commits_prefix(name: &str, feed: FeedId) -> String {
    feed_prefix(name, feed) + "commits/"
}

/// One commit of the feed's history.
#[must_use]
pub fn commit(name: &str, feed: FeedId, number: CommitNumber) -> String {
    format!("{}{:020}.commit", commits_prefix(name, feed), number.0)
}

/// Prefix of a stream's objects.
#[must_use]
pub fn stream_prefix(name: &str, feed: FeedId, stream: StreamId) -> String {
    format!("{}streams/{:020}/", feed_prefix(name, feed), stream.0)
}

/// A pack that holds one stream only.
#[must_use]
pub fn stream_pack(name: &str, feed: FeedId, stream: StreamId, digest: &Digest) -> String {
    format!("{}{digest}.pack", stream_prefix(name, feed, stream))
}

/// A stream's manifest.
#[must_use]
pub fn manifest(name: &str, feed: FeedId, stream: StreamId, digest: &Digest) -> String {
    format!("{}{digest}.manifest", stream_prefix(name, feed, stream))
}

/// A stream's key index.
#[must_use]
pub fn key_index(name: &str, feed: FeedId, stream: StreamId, digest: &Digest) -> String {
    format!("{}{digest}.keys", stream_prefix(name, feed, stream))
}

/// Prefix of the shared packs of a log.
#[must_use]
pub fn shared_prefix(log: LogId) -> String {
    format!("shared/{log}/")
}

/// A pack that streams of one log share.
#[must_use]
pub fn shared_pack(log: LogId, digest: &Digest) -> String {
    format!("{}{digest}.pack", shared_prefix(log))
}

/// The number of the commit that an object key names, `None` if it names none.
#[must_use]
pub fn commit_number(key: &str) -> Option<CommitNumber> {
    let stem = last_component(key).strip_suffix(".commit")?;
    let digits = stem.len() == 20 && stem.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| stem.parse().ok().map(CommitNumber))?
}

/// What an object named by its digest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// `.pack`
    Pack,
    /// `.manifest`
    Manifest,
    /// `.keys`
    KeyIndex,
}

/// Kind and digest of the object that a key names, `None` if it is not named by a digest.
#[must_use]
pub fn digest_object(key: &str) -> Option<(ObjectKind, Digest)> {
    let (stem, extension) = last_component(key).rsplit_once('.')?;
    let kind = match extension {
        "pack" => ObjectKind::Pack,
        "manifest" => ObjectKind::Manifest,
        "keys" => ObjectKind::KeyIndex,
        _ => return None,
    };
    Some((kind, parse_digest(stem)?))
}

fn last_component(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(_, last)| last)
}

fn parse_digest(hex: &str) -> Option<Digest> {
    let mut digest = Digest::default();
    let nibble = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if hex.len() != 64 {
        return None;
    }
    for (out, pair) in digest.0.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *out = nibble(*high)? << 4 | nibble(*low)?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::collections::HashMap;

    #[test]
    fn escape_name_known_names_give_known_components() {
        let cases = [
            ("plain-Name_1.x", "plain-Name_1.x"),
            ("a/b", "a%2Fb"),
            ("a//b", "a%2F%2Fb"),
            (".", "%2E"),
            ("..", "%2E."),
            ("...", "%2E.."),
            (".hidden", "%2Ehidden"),
            (" ", "%20"),
            ("", "%"),
            ("%", "%25"),
            ("%2F", "%252F"),
            ("~", "%7E"),
            ("ü", "%C3%BC"),
            ("日", "%E6%97%A5"),
        ];
        for (name, component) in cases {
            assert_eq!(escape_name(name), component);
            if !name.is_empty() {
                assert_eq!(unescape_name(component).as_deref(), Some(name));
            }
        }
    }

    #[test]
    fn escape_name_long_names_are_hashed_within_the_limit() {
        let at_limit = "x".repeat(COMPONENT_BYTES_MAX);
        assert_eq!(escape_name(&at_limit), at_limit);
        let beyond = "x".repeat(COMPONENT_BYTES_MAX + 1);
        let hashed = escape_name(&beyond);
        assert_eq!(hashed.len(), COMPONENT_BYTES_MAX);
        assert_eq!(hashed[135..136], *"~");
        assert_eq!(hashed[136..], Digest::of(beyond.as_bytes()).to_string());
        assert_eq!(unescape_name(&hashed), None);
        // An escape is never cut in two: the prefix stops before it.
        let unicode = escape_name(&"ü".repeat(512));
        assert!(unicode.len() <= COMPONENT_BYTES_MAX);
        let (prefix, _) = unicode.split_once('~').unwrap();
        assert_eq!(prefix.len() % 3, 0);
    }

    #[test]
    fn exhaustive_escape_name_short_names_never_collide() {
        let alphabet = ["a", "A", "/", ".", "%", "2", "F", "~", "\u{e9}", " "];
        let mut names = vec![String::new()];
        let mut seen: HashMap<String, String> = HashMap::new();
        for _ in 0..4 {
            names = names
                .iter()
                .flat_map(|name| alphabet.iter().map(move |add| format!("{name}{add}")))
                .collect();
            for name in &names {
                let component = escape_name(name);
                assert!(!component.contains('/') && component != "." && component != "..");
                assert!(!component.is_empty());
                assert_eq!(unescape_name(&component).as_ref(), Some(name));
                if let Some(other) = seen.insert(component, name.clone()) {
                    panic!("{other:?} and {name:?} collide");
                }
            }
        }
        // Long names that differ only beyond the cut, and a name equal to another's hashed form.
        let (a, b) = ("x".repeat(900) + "1", "x".repeat(900) + "2");
        assert_ne!(escape_name(&a), escape_name(&b));
        assert_ne!(escape_name(&escape_name(&a)), escape_name(&a));
    }

    #[test]
    fn unescape_name_foreign_components_are_none() {
        for component in ["%", "%2", "%zz", "a/b", ".x", "%2f", "%61", "~", "%FF", ""] {
            assert_eq!(unescape_name(component), None, "{component}");
        }
    }

    #[test]
    fn keys_have_the_documented_shape() {
        let digest = Digest([0xab; 32]);
        let (feed, stream) = (FeedId(7), StreamId(3));
        let hex = "ab".repeat(32);
        assert_eq!(feed_json("a/b", feed), "feeds/a%2Fb/7/feed.json");
        assert_eq!(
            commit("f", feed, CommitNumber(12)),
            "feeds/f/7/commits/00000000000000000012.commit"
        );
        let folder = "feeds/f/7/streams/00000000000000000003/";
        assert_eq!(stream_prefix("f", feed, stream), folder);
        let pack = stream_pack("f", feed, stream, &digest);
        assert_eq!(pack, format!("{folder}{hex}.pack"));
        let keys = key_index("f", feed, stream, &digest);
        assert_eq!(keys, format!("{folder}{hex}.keys"));
        let list = manifest("f", feed, stream, &digest);
        assert_eq!(list, format!("{folder}{hex}.manifest"));
        let shared = shared_pack(LogId(9), &digest);
        assert_eq!(shared, format!("shared/9/{hex}.pack"));

        assert_eq!(digest_object(&pack), Some((ObjectKind::Pack, digest)));
        assert_eq!(digest_object(&shared), Some((ObjectKind::Pack, digest)));
        assert_eq!(digest_object(&keys), Some((ObjectKind::KeyIndex, digest)));
        assert_eq!(digest_object(&list), Some((ObjectKind::Manifest, digest)));
    }

    #[test]
    fn parsers_reject_foreign_keys() {
        let last = commit("f", FeedId(1), CommitNumber(u64::MAX));
        assert_eq!(commit_number(&last), Some(CommitNumber(u64::MAX)));
        for key in [
            "1.commit",
            "x/99999999999999999999.commit",
            "+0000000000000000012.commit",
            "",
        ] {
            assert_eq!(commit_number(key), None, "{key}");
        }
        let upper = "AB".repeat(32) + ".pack";
        for key in ["feed.json", "abc.pack", upper.as_str(), ""] {
            assert_eq!(digest_object(key), None, "{key}");
        }
    }
}
