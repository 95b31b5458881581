//! Claim: one bucket, one data directory: an object of the bucket says whose it is. Spec: spec/commit.md §3.
//!
//! ```text
//!  data directory: file `owner` = id ──── the same bytes ──── bucket: object `owner`, created if absent
//! ```
//!
//! **Invariants**
//! - Nothing is published into a bucket whose owner object names another data directory.
//! - The object is created conditionally, and recognised as ours by the id in it, whatever became of the reply.
//! - A bucket without one is taken; a foreign one only if that was asked for, by compare-and-swap.
//!
//! **Not here**: buckets within the data directory, which nobody else has; whether it holds our history (`owner`).

use std::path::{Path, PathBuf};

use crate::env::{Bucket, BucketError, Disk, Env, PutOutcome, SwapOutcome, host};
use crate::error::{Error, Result};
use crate::files::{read_whole, write_whole};
use crate::limits::EngineConfig;

/// The data directory's file, and the bucket's object.
pub(crate) const OWNER: &str = "owner";
/// Below it: objects of feeds.
const FEEDS: &str = "feeds/";
/// Neither is longer.
const BYTES_MAX: u64 = 64 << 10;
/// Tries when somebody else writes the object at the same time.
const TRIES: usize = 4;

/// Who a bucket belongs to, as file and object say.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    id: String,
    data_dir: String,
    host: String,
}

impl Owner {
    /// Two directories of the same name, one after the other, differ in their ids.
    fn shown(&self) -> String {
        let id = self.id.get(..8).unwrap_or(&self.id);
        format!("{} on {} (id {id})", self.data_dir, self.host)
    }

    fn encode(&self) -> Vec<u8> {
        let json = serde_json::json!({
            "data_dir": self.data_dir,
            "format": 1,
            "host": self.host,
            "id": self.id,
        });
        let json = json.to_string();
        format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes())).into_bytes()
    }

    fn decode(bytes: &[u8], place: &str) -> Result<Self> {
        let corrupt =
            |what: &str| Error::corrupt(place, 0, format!("{what}; --take-bucket writes it anew"));
        let text = std::str::from_utf8(bytes).map_err(|_| corrupt("not UTF-8"))?;
        let (crc, json) = text.split_once(' ').ok_or_else(|| corrupt("no checksum"))?;
        let json = json.strip_suffix('\n').unwrap_or(json);
        if crc != format!("{:08x}", crc32c::crc32c(json.as_bytes())) {
            return Err(corrupt("checksum mismatch"));
        }
        let value: serde_json::Value =
            serde_json::from_str(json).map_err(|error| corrupt(&error.to_string()))?;
        if value.get("format").and_then(serde_json::Value::as_u64) != Some(1) {
            return Err(Error::NewerFormat {
                file: place.to_owned(),
                detail: "owner of a format that is not known here".to_owned(),
            });
        }
        let text = |key: &str| {
            let found = value.get(key).and_then(serde_json::Value::as_str);
            found.map_or_else(String::new, str::to_owned)
        };
        Ok(Self {
            id: text("id"),
            data_dir: text("data_dir"),
            host: text("host"),
        })
    }
}

/// Whether the bucket is known to be ours.
pub(crate) enum Standing {
    /// It is.
    Ours,
    /// That could not be found out.
    Unknown(Error),
}

/// What this data directory says of a bucket that others may have, too.
pub(crate) struct Claim {
    own: Owner,
    bucket: String,
    take: bool,
}

impl Claim {
    /// As the data directory remembers it; `None` if its bucket lies within it.
    pub(crate) async fn of<E: Env>(env: &E, config: &EngineConfig) -> Result<Option<Self>> {
        let Some(bucket) = name_of(config) else {
            return Ok(None);
        };
        let path = config.data_dir.join(OWNER);
        let Some(own) = read(env, &path).await? else {
            // Verified, or resharded, before it was ever opened.
            return Ok(None);
        };
        Ok(Some(Self {
            own,
            bucket,
            take: config.take_bucket,
        }))
    }

    /// Makes the bucket ours, unless it is somebody else's. `shares_history`: it is known to hold what this
    /// directory published.
    ///
    /// # Errors
    /// [`Error::Unusable`]: it is, or may not be taken. [`Error::Corrupt`], [`Error::NewerFormat`]: whose it is can't be read.
    pub(crate) async fn settle<E: Env>(&self, env: &E, shares_history: bool) -> Result<Standing> {
        let bucket = env.bucket();
        let place = format!("object {OWNER} of bucket {}", self.bucket);
        for _ in 0..TRIES {
            let (bytes, tag) = match bucket.get(OWNER).await {
                Ok(found) => found,
                Err(BucketError::NotFound { .. }) => {
                    match bucket.put_if_absent(OWNER, self.own.encode()).await {
                        Ok(PutOutcome::Created) => return Ok(Standing::Ours),
                        // Whoever made it: what it says decides.
                        Ok(PutOutcome::Exists) => continue,
                        Err(error) => return Ok(Standing::Unknown(error.into())),
                    }
                }
                Err(error) => return Ok(Standing::Unknown(error.into())),
            };
            let foreign = match Owner::decode(&bytes, &place) {
                Ok(owner) if owner.id == self.own.id => return Ok(Standing::Ours),
                Ok(owner) => self.refusal(&owner),
                Err(error) => error,
            };
            if !self.take {
                return Err(foreign);
            }
            match self.obstacle(env, shares_history).await {
                Ok(None) => {}
                Ok(Some(obstacle)) => return Err(obstacle),
                Err(error) => return Ok(Standing::Unknown(error.into())),
            }
            match bucket.put_if_match(OWNER, &tag, self.own.encode()).await {
                Ok(SwapOutcome::Swapped(_)) => return Ok(Standing::Ours),
                Ok(SwapOutcome::Mismatch) => {}
                Err(error) => return Ok(Standing::Unknown(error.into())),
            }
        }
        let text = format!("{place} changes again and again");
        Ok(Standing::Unknown(Error::Bucket(text)))
    }

    /// What keeps the bucket from being taken: feeds of whoever had it, whose objects would lie where ours
    /// do, for ids begin anew in every directory.
    async fn obstacle<E: Env>(
        &self,
        env: &E,
        shares_history: bool,
    ) -> std::result::Result<Option<Error>, BucketError> {
        if shares_history {
            return Ok(None);
        }
        let found = env.bucket().list(FEEDS, "", 1).await?;
        Ok(found.first().map(|found| {
            Error::Unusable(format!(
                "bucket {} can't be taken: it holds feeds of another data directory (object {}), and nothing that \
                 this one, {}, has published. --take-bucket is for a directory that goes on with the history in \
                 it; give this one a bucket, or a prefix, of its own",
                self.bucket, found.key, self.own.data_dir
            ))
        }))
    }

    fn refusal(&self, other: &Owner) -> Error {
        let (theirs, ours) = (other.shown(), self.own.shown());
        Error::Unusable(format!(
            "bucket {} belongs to data directory {theirs} (its object {OWNER} says so), not to {ours}: \
             one bucket, or prefix of one, for one data directory. If that one will never write again, \
             and this one goes on with its history, --take-bucket makes it this one's",
            self.bucket
        ))
    }
}

/// Gives a data directory whose bucket is elsewhere its identity, if it has none yet.
pub(crate) async fn make_identity<E: Env>(env: &E, config: &EngineConfig) -> Result<()> {
    if name_of(config).is_none() {
        return Ok(());
    }
    let dir = &config.data_dir;
    match read(env, &dir.join(OWNER)).await {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => {}
        // A new one has to take the bucket over anyway.
        Err(Error::Corrupt { .. }) if config.take_bucket => {}
        Err(error) => return Err(error),
    }
    let shown = dir.to_owned();
    let (data_dir, host) = env
        .offload(move || (host::absolute(&shown), host::host_name()))
        .await;
    let own = Owner {
        id: format!("{:016x}{:016x}", env.random_u64(), env.random_u64()),
        data_dir,
        host,
    };
    write_whole(env.disk(), dir, OWNER, &own.encode()).await?;
    let synced = env.disk().sync_dir(dir).await;
    synced.map_err(|error| Error::io("sync", dir, &error))
}

/// For `verify`: the object, if there is one, must be what the data directory's file says.
pub(crate) async fn check<E: Env>(env: &E, config: &EngineConfig) -> Result<()> {
    let Some(claim) = Claim::of(env, config).await? else {
        return Ok(());
    };
    match env.bucket().get(OWNER).await {
        Ok((bytes, _)) => match Owner::decode(&bytes, OWNER)? {
            owner if owner.id == claim.own.id => Ok(()),
            owner => Err(claim.refusal(&owner)),
        },
        Err(BucketError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn read<E: Env>(env: &E, path: &Path) -> Result<Option<Owner>> {
    let bytes = read_whole(env.disk(), path, BYTES_MAX).await?;
    let place = path.display().to_string();
    bytes.map(|bytes| Owner::decode(&bytes, &place)).transpose()
}

/// What the bucket is called; `None` if it lies within the data directory.
fn name_of(config: &EngineConfig) -> Option<String> {
    let dir: Option<&PathBuf> = config.bucket_dir.as_ref();
    let folder = dir.map(|dir| dir.display().to_string());
    config.s3.as_ref().map(crate::S3Options::url).or(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_roundtrips_and_every_flipped_bit_shows() {
        let owner = Owner {
            id: "0123456789abcdef".repeat(2),
            data_dir: "/srv/a \"b\"".to_owned(),
            host: "east".to_owned(),
        };
        let bytes = owner.encode();
        assert_eq!(Owner::decode(&bytes, "x").unwrap(), owner);
        for at in 0..bytes.len() - 1 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(
                matches!(Owner::decode(&flipped, "x"), Err(Error::Corrupt { .. })),
                "{at}"
            );
        }
    }
}
