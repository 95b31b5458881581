//! Config: from profile, file and options to the engine's configuration. Reference: `docs/cli.md`.
//!
//! **Invariants**
//! - Options win over the file, the file over the profile; profile and bucket are the directory's own.
//! - A key that is not in [`KEYS`] is an error that names it, and so is a value of the wrong kind.
//!
//! **Not here**: whether the numbers fit each other (the engine proves that).

use std::path::{Path, PathBuf};
use std::time::Duration;

use sealog_engine::EngineConfig;
use toml::{Table, Value};

use super::args::Globals;
use super::exit::CliError;
use super::settings::Settings;
use super::store::Store;

/// Where data lives when nobody says.
const DATA_DIR_DEFAULT: &str = "./sealog-data";
/// A configuration file is small; a larger file is some other file.
const FILE_BYTES_MAX: u64 = 1 << 20;

type Set = fn(&mut EngineConfig, &Value) -> Result<(), String>;

/// Every key of the file.
const KEYS: &[(&str, Set)] = &[
    ("data_dir", |c, v| path(v).map(|p| c.data_dir = p)),
    ("bucket_dir", |c, v| path(v).map(|p| c.bucket_dir = Some(p))),
    ("logs", |c, v| number(v).map(|n| c.logs = n)),
    ("shards", |c, v| number(v).map(|n| c.shards = n)),
    ("pin", |c, v| boolean(v).map(|b| c.pin = b)),
    ("pack_bytes", |c, v| size(v).map(|n| c.pack_bytes = n)),
    ("inflight_bytes_max", |c, v| {
        size(v).map(|n| c.inflight_bytes_max = n)
    }),
    ("feeds_max", |c, v| number(v).map(|n| c.feeds_max = n)),
    ("producers_max", |c, v| {
        number(v).map(|n| c.producers_max = n)
    }),
    ("cache.bytes_max", |c, v| {
        size(v).map(|n| c.cache_bytes_max = n)
    }),
    ("gc_grace_ms", |c, v| millis(v).map(|d| c.gc_grace = d)),
    ("wal.segment_bytes", |c, v| {
        size(v).map(|n| c.wal.segment_bytes = n)
    }),
    ("wal.flush_bytes", |c, v| {
        size(v).map(|n| c.wal.flush_bytes = n)
    }),
    ("wal.flush_interval_ms", |c, v| {
        millis(v).map(|d| c.wal.flush_interval = d)
    }),
    ("wal.disk_bytes_max", |c, v| {
        size(v).map(|n| c.wal.disk_bytes_max = n)
    }),
    ("wal.lane_start_bytes", |c, v| {
        size(v).map(|n| c.wal.lane_start_bytes = n)
    }),
    ("wal.checkpoint_bytes", |c, v| {
        size(v).map(|n| c.wal.checkpoint_bytes = n)
    }),
    ("wal.cache_bytes", |c, v| {
        size(v).map(|n| c.wal.cache_bytes = n)
    }),
    ("wal.full_wait_ms", |c, v| {
        millis(v).map(|d| c.wal.full_wait = d)
    }),
    ("batch.bytes_max", |c, v| {
        size(v).map(|n| c.frame.batch_bytes_max = n)
    }),
    ("batch.records_max", |c, v| {
        number(v).map(|n| c.frame.records_max = n)
    }),
    ("batch.record_bytes_max", |c, v| {
        size(v).map(|n| c.frame.record_bytes_max = n)
    }),
    ("batch.key_bytes_max", |c, v| {
        size(v).map(|n| c.frame.key_bytes_max = n)
    }),
    ("batch.headers_max", |c, v| {
        number(v).map(|n| c.frame.headers_max = n)
    }),
];

type SetStore = fn(&mut Store, &Value) -> Result<(), String>;

/// Keys of the file that say which store holds the bucket.
const STORE_KEYS: &[(&str, SetStore)] = &[
    ("bucket", |s, v| text(v).map(|t| s.url = Some(t))),
    ("s3.region", |s, v| text(v).map(|t| s.region = Some(t))),
    ("s3.endpoint", |s, v| text(v).map(|t| s.endpoint = Some(t))),
    ("s3.unsafe_no_conditions", |s, v| {
        boolean(v).map(|b| s.no_conditions = b)
    }),
    ("s3.upload_bytes_per_s", |s, v| {
        size(v).map(|n| s.upload_bytes_per_s = n)
    }),
];

fn text(value: &Value) -> Result<String, String> {
    let text = value.as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| "text in quotes is needed".to_owned())
}

fn path(value: &Value) -> Result<PathBuf, String> {
    let text = value.as_str().filter(|text| !text.is_empty());
    text.map(PathBuf::from)
        .ok_or_else(|| "a path in quotes is needed".to_owned())
}

fn boolean(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| "true or false is needed".to_owned())
}

fn number<T: TryFrom<i64>>(value: &Value) -> Result<T, String> {
    let whole = value.as_integer().and_then(|n| T::try_from(n).ok());
    // TOML's numbers end where an i64 does.
    let max = match size_of::<T>() {
        2 => u64::from(u16::MAX),
        _ => i64::MAX as u64,
    };
    whole.ok_or_else(|| format!("a whole number from 0 to {max} is needed"))
}

fn millis(value: &Value) -> Result<Duration, String> {
    number(value).map(Duration::from_millis)
}

/// Bytes: a number, or text such as "64 MiB".
fn size<T: TryFrom<u64>>(value: &Value) -> Result<T, String> {
    let bytes = match value {
        Value::Integer(bytes) => u64::try_from(*bytes).ok(),
        Value::String(text) => size_of_text(text),
        _ => None,
    };
    let whole = bytes.and_then(|bytes| T::try_from(bytes).ok());
    whole.ok_or_else(|| {
        "bytes are needed, below 2^63: 67108864, or \"64 MiB\" (B, KiB, MiB, GiB)".to_owned()
    })
}

fn size_of_text(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    let bytes = count.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (bytes <= i64::MAX as u64).then_some(bytes)
}

/// The configuration that the global options ask for, and the directory remembers.
pub(super) fn resolve(globals: &Globals) -> Result<EngineConfig, CliError> {
    let file = match &globals.config {
        Some(path) => Some((path, read_file(path)?)),
        None => None,
    };
    let mut store = Store::default();
    let mut apply_all = |config: &mut EngineConfig| {
        if let Some((path, text)) = &file {
            apply(config, &mut store, text).map_err(|error| {
                CliError::usage(format!("configuration {}: {error}", path.display()))
            })?;
        }
        if let Some(dir) = &globals.data_dir {
            config.data_dir.clone_from(dir);
        }
        if let Some(dir) = &globals.bucket_dir {
            config.bucket_dir = Some(dir.clone());
        }
        Ok::<(), CliError>(())
    };
    // Which profile the rest stands on, only the directory knows.
    let mut config = profile(false);
    apply_all(&mut config)?;
    let recorded = Settings::of(&config.data_dir)?;
    let edge = globals.edge || recorded.as_ref().is_some_and(|recorded| recorded.edge);
    if edge {
        config = profile(true);
        apply_all(&mut config)?;
    }
    let start = &mut config.wal.lane_start_bytes;
    if *start == profile(edge).wal.lane_start_bytes {
        *start = (*start).min(config.wal.disk_bytes_max / 4);
    }
    if let (Some((path, _)), Err(error)) = (&file, check_lane(&config)) {
        let text = format!("configuration {}: {error}", path.display());
        return Err(CliError::usage(text));
    }
    let store = store.under(globals);
    match recorded {
        Some(recorded) if recorded.edge != edge => {
            let dir = config.data_dir.display();
            return Err(CliError::usage(format!(
                "--edge, but data directory {dir} was made with the standard profile: leave it out"
            )));
        }
        Some(recorded) => recorded.settle_bucket(&mut config, store)?,
        None => {
            config.s3 = store.options()?;
            config.settings = Some(Settings::text(edge, &config, &store)?);
        }
    }
    Ok(config)
}

fn profile(edge: bool) -> EngineConfig {
    match edge {
        true => EngineConfig::edge(DATA_DIR_DEFAULT),
        false => EngineConfig {
            // One writer with a window of 16 MiB; the engine's own default is for many.
            inflight_bytes_max: 32 << 20,
            ..EngineConfig::new(DATA_DIR_DEFAULT)
        },
    }
}

/// The engine takes a lane that never starts by itself (it does so when space runs short); in a file
/// it is a mistake.
fn check_lane(config: &EngineConfig) -> Result<(), String> {
    let (start, bound) = (config.wal.lane_start_bytes, config.wal.disk_bytes_max);
    match start > bound {
        true => Err(format!(
            "wal.lane_start_bytes = {start}, at most wal.disk_bytes_max = {bound} makes sense"
        )),
        false => Ok(()),
    }
}

fn read_file(path: &Path) -> Result<String, CliError> {
    let file = super::lines::open_file(path)?;
    let mut text = String::new();
    let reading = |error| CliError::file("reading", path, &error);
    let bytes = file.metadata().map_err(reading)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(CliError::usage(format!(
            "configuration {} of {bytes} bytes, over the limit of {FILE_BYTES_MAX}",
            path.display()
        )));
    }
    std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_BYTES_MAX), &mut text)
        .map_err(reading)?;
    Ok(text)
}

fn apply(config: &mut EngineConfig, store: &mut Store, text: &str) -> Result<(), String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        format!("line {line}: {}", error.message())
    })?;
    apply_table(config, store, "", &table)
}

fn apply_table(
    config: &mut EngineConfig,
    store: &mut Store,
    prefix: &str,
    table: &Table,
) -> Result<(), String> {
    let keys = KEYS.iter().map(|(key, _)| *key);
    let all: Vec<&str> = keys.chain(STORE_KEYS.iter().map(|(key, _)| *key)).collect();
    for (name, value) in table {
        let key = format!("{prefix}{name}");
        let inner = format!("{key}.");
        if let Some((_, set)) = KEYS.iter().find(|(known, _)| *known == key) {
            set(config, value).map_err(|rule| format!("{key} = {value}: {rule}"))?;
        } else if let Some((_, set)) = STORE_KEYS.iter().find(|(known, _)| *known == key) {
            set(store, value).map_err(|rule| format!("{key} = {value}: {rule}"))?;
        } else if let (Value::Table(table), true) =
            (value, all.iter().any(|known| known.starts_with(&inner)))
        {
            apply_table(config, store, &inner, table)?;
        } else {
            return Err(format!("unknown key {key}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(text: &str) -> Result<EngineConfig, String> {
        let mut config = EngineConfig::new("d");
        apply(&mut config, &mut Store::default(), text).map(|()| config)
    }

    #[test]
    fn apply_known_keys_set_their_fields() {
        let config = applied(
            "logs = 2\nbucket_dir = \"/b\"\npin = true\ngc_grace_ms = 5\nwal.flush_interval_ms = 7\n\
             [wal]\nsegment_bytes = \"128 MiB\"\ndisk_bytes_max = 1073741824\n[batch]\nrecords_max = 10\n",
        );
        // `wal.x` and `[wal]` in one file is not TOML.
        assert!(config.is_err());
        let config = applied(
            "logs = 2\nbucket_dir = \"/b\"\npin = true\ngc_grace_ms = 5\n\
             [wal]\nsegment_bytes = \"128 MiB\"\ndisk_bytes_max = 1073741824\n[batch]\nrecords_max = 10\n",
        )
        .unwrap();
        assert_eq!((config.logs, config.pin), (2, true));
        assert_eq!(config.bucket_dir.as_deref(), Some(Path::new("/b")));
        assert_eq!(config.gc_grace, Duration::from_millis(5));
        assert_eq!(config.wal.segment_bytes, 128 << 20);
        assert_eq!(config.wal.disk_bytes_max, 1 << 30);
        assert_eq!(config.frame.records_max, 10);
    }

    #[test]
    fn apply_wrong_files_name_the_key() {
        for (text, refusal) in [
            ("log = 2", "unknown key log"),
            ("[wal]\nsegment_byte = 1", "unknown key wal.segment_byte"),
            ("wal.x.y = 1", "unknown key wal.x"),
            ("[cache]\nx = 1", "unknown key cache.x"),
            ("[caches]\nx = 1", "unknown key caches"),
            ("s3.region = 1", "s3.region = 1: text in quotes is needed"),
            ("wal = 3", "unknown key wal"),
            (
                "logs = 70000",
                "logs = 70000: a whole number from 0 to 65535 is needed",
            ),
            (
                "logs = -1",
                "logs = -1: a whole number from 0 to 65535 is needed",
            ),
            ("pin = 1", "pin = 1: true or false is needed"),
            (
                "pack_bytes = \"64 MB\"",
                "pack_bytes = \"64 MB\": bytes are needed, below 2^63: 67108864, or \"64 MiB\" (B, KiB, MiB, GiB)",
            ),
        ] {
            assert_eq!(applied(text), Err(refusal.to_owned()), "{text}");
        }
        let broken = applied("logs = 2\npin = = 3").unwrap_err();
        assert!(broken.starts_with("line 2: "), "{broken}");
    }

    #[test]
    fn keys_all_take_a_value_of_their_kind() {
        let store = STORE_KEYS.iter().map(|(key, _)| *key);
        for key in KEYS.iter().map(|(key, _)| *key).chain(store) {
            let value = match key {
                "data_dir" | "bucket_dir" | "bucket" | "s3.region" | "s3.endpoint" => "\"x\"",
                "pin" | "s3.unsafe_no_conditions" => "true",
                _ => "1",
            };
            assert!(applied(&format!("{key} = {value}")).is_ok(), "{key}");
        }
    }
}
