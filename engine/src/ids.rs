//! Ids: one newtype for every identifier, so that none is passed for another.
//!
//! **Invariants**
//! - A feed id is never reused: its high 16 bits are the log that made it, the rest a counter in that log.
//! - Stream ids, epochs and commit numbers of a feed only rise.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(/// A feed, for ever; a name created again gets a new one.
    FeedId);
id!(/// A stream within its feed, from 1.
    StreamId);
id!(/// Writer fencing number of a feed, from 1; 0 means never opened.
    Epoch);
id!(/// Position of a commit in its feed's history, from 0.
    CommitNumber);
id!(/// Position of a record in its feed, from 0.
    Sequence);
id!(/// Which log of the data directory, unique for its life.
    LogId);
id!(/// What keeps a feed's range for one fork; drawn at random.
    PinId);

/// SHA-256 of an object's bytes: names packs, manifests and key indexes, and chains commits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }
}
