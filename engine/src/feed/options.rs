//! Options: how a feed was made, and the flags that say so in log and checkpoint. Spec: spec/wal.md §3.
//!
//! **Invariants**
//! - An unknown flag is refused: whoever wrote it meant something by it.
//!
//! **Not here**: what the options do (`append`, `shard::roll`).

use crate::codec::{DecodeError, Reader};
use crate::limits::ATTRIBUTES_BYTES_MAX;

const EXCLUSIVE: u8 = 1;
const ATTRIBUTES: u8 = 2;
const ROLLING: u8 = 4;

/// How a feed was made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeedOptions {
    /// Records may carry keys.
    pub keys: bool,
    /// Batches without a fencing token are refused.
    pub exclusive: bool,
    /// Its open stream is sealed by itself once it is large or old, and goes on in another.
    pub rolling: bool,
    /// What the maker keeps with the feed, at most 4,096 bytes: the engine doesn't look at them.
    pub attributes: Box<[u8]>,
}

/// What the flag byte says of the options.
pub(crate) struct FeedFlags {
    exclusive: bool,
    rolling: bool,
    attributes_follow: bool,
}

impl FeedOptions {
    /// The flag byte: all but whether records may carry keys.
    pub(crate) fn flags(&self) -> u8 {
        let set = [
            (self.exclusive, EXCLUSIVE),
            (!self.attributes.is_empty(), ATTRIBUTES),
            (self.rolling, ROLLING),
        ];
        set.iter()
            .map(|(is_set, flag)| u8::from(*is_set) * flag)
            .sum()
    }
}

impl FeedFlags {
    pub(crate) fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flags = r.u8()?;
        if flags & !(EXCLUSIVE | ATTRIBUTES | ROLLING) != 0 {
            return Err(DecodeError::Invalid {
                field: "flag",
                value: flags.into(),
            });
        }
        Ok(Self {
            exclusive: flags & EXCLUSIVE != 0,
            rolling: flags & ROLLING != 0,
            attributes_follow: flags & ATTRIBUTES != 0,
        })
    }

    /// The options, with the attributes that follow here, if any do; they are not empty then.
    pub(crate) fn options(
        self,
        keys: bool,
        r: &mut Reader<'_>,
    ) -> Result<FeedOptions, DecodeError> {
        let attributes: Box<[u8]> = match self.attributes_follow {
            true => r.bytes()?.into(),
            false => Box::default(),
        };
        let bytes = attributes.len();
        if self.attributes_follow && !(1..=ATTRIBUTES_BYTES_MAX).contains(&bytes) {
            return Err(DecodeError::Invalid {
                field: "attribute bytes",
                value: bytes as u64,
            });
        }
        Ok(FeedOptions {
            keys,
            exclusive: self.exclusive,
            rolling: self.rolling,
            attributes,
        })
    }
}
