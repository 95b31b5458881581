//! Config: from profile, file and options to the engine's configuration. Reference: `docs/cli.md`.
//!
//! **Invariants**
//! - Options win over the environment, that over the file, the file over the profile; profile and bucket are the directory's own.
//! - A key that is not in [`KEYS`], [`STORE_KEYS`] or [`SERVE_KEYS`] is an error that names it, and so is a value of the wrong kind.
//!
//! **Not here**: whether the numbers fit each other (the engine proves that).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sealog_engine::{EngineConfig, Error, MARKER_FILE, SETTINGS_FILE, fixed};
use toml::{Table, Value};

use super::args::{Globals, ServeArgs};
use super::exit::CliError;
use super::origins::{self, Origin, Row, Shown};
use super::serve_settings::{SERVE_KEYS, ServeSettings};
use super::settings::Settings;
use super::store::Store;

/// Where data lives when nobody says.
const DATA_DIR_DEFAULT: &str = "./sealog-data";
/// A configuration file is small; a larger file is some other file.
const FILE_BYTES_MAX: u64 = 1 << 20;

type Set = fn(&mut EngineConfig, &Value) -> Result<(), String>;

type Get = fn(&EngineConfig) -> Option<Value>;

/// Every key of the file that is the engine's: how it is set, and shown.
const KEYS: &[(&str, Set, Get)] = &[
    (
        "data_dir",
        |c, v| path(v).map(|p| c.data_dir = p),
        |c| Some(shown(&c.data_dir)),
    ),
    (
        "bucket_dir",
        |c, v| path(v).map(|p| c.bucket_dir = Some(p)),
        |c| c.bucket_dir.as_deref().map(shown),
    ),
    (
        "logs",
        |c, v| number(v).map(|n| c.logs = n),
        |c| whole(c.logs),
    ),
    (
        "shards",
        |c, v| number(v).map(|n| c.shards = n),
        |c| whole(c.shards),
    ),
    (
        "pin",
        |c, v| boolean(v).map(|b| c.pin = b),
        |c| Some(c.pin.into()),
    ),
    (
        "pack_bytes",
        |c, v| size(v).map(|n| c.pack_bytes = n),
        |c| whole(c.pack_bytes),
    ),
    (
        "roll.bytes",
        |c, v| size(v).map(|n| c.roll.bytes = n),
        |c| whole(c.roll.bytes),
    ),
    (
        "roll.after_ms",
        |c, v| millis(v).map(|d| c.roll.after = d),
        |c| whole(c.roll.after.as_millis()),
    ),
    (
        "inflight_bytes_max",
        |c, v| size(v).map(|n| c.inflight_bytes_max = n),
        |c| whole(c.inflight_bytes_max),
    ),
    (
        "feeds_max",
        |c, v| number(v).map(|n| c.feeds_max = n),
        |c| whole(c.feeds_max),
    ),
    (
        "producers_max",
        |c, v| number(v).map(|n| c.producers_max = n),
        |c| whole(c.producers_max),
    ),
    (
        "cache.bytes_max",
        |c, v| size(v).map(|n| c.cache_bytes_max = n),
        |c| whole(c.cache_bytes_max),
    ),
    (
        "gc_grace_ms",
        |c, v| millis(v).map(|d| c.gc_grace = d),
        |c| whole(c.gc_grace.as_millis()),
    ),
    (
        "wal.segment_bytes",
        |c, v| size(v).map(|n| c.wal.segment_bytes = n),
        |c| whole(c.wal.segment_bytes),
    ),
    (
        "wal.flush_bytes",
        |c, v| size(v).map(|n| c.wal.flush_bytes = n),
        |c| whole(c.wal.flush_bytes),
    ),
    (
        "wal.flush_interval_ms",
        |c, v| millis(v).map(|n| c.wal.flush_interval = n),
        |c| whole(c.wal.flush_interval.as_millis()),
    ),
    (
        "wal.disk_bytes_max",
        |c, v| size(v).map(|n| c.wal.disk_bytes_max = n),
        |c| whole(c.wal.disk_bytes_max),
    ),
    (
        "wal.lane_start_bytes",
        |c, v| size(v).map(|n| c.wal.lane_start_bytes = n),
        |c| whole(c.wal.lane_start_bytes),
    ),
    (
        "wal.checkpoint_bytes",
        |c, v| size(v).map(|n| c.wal.checkpoint_bytes = n),
        |c| whole(c.wal.checkpoint_bytes),
    ),
    (
        "wal.cache_bytes",
        |c, v| size(v).map(|n| c.wal.cache_bytes = n),
        |c| whole(c.wal.cache_bytes),
    ),
    (
        "wal.full_wait_ms",
        |c, v| millis(v).map(|n| c.wal.full_wait = n),
        |c| whole(c.wal.full_wait.as_millis()),
    ),
    (
        "batch.bytes_max",
        |c, v| size(v).map(|n| c.frame.batch_bytes_max = n),
        |c| whole(c.frame.batch_bytes_max),
    ),
    (
        "batch.records_max",
        |c, v| number(v).map(|n| c.frame.records_max = n),
        |c| whole(c.frame.records_max),
    ),
    (
        "batch.record_bytes_max",
        |c, v| size(v).map(|n| c.frame.record_bytes_max = n),
        |c| whole(c.frame.record_bytes_max),
    ),
    (
        "batch.key_bytes_max",
        |c, v| size(v).map(|n| c.frame.key_bytes_max = n),
        |c| whole(c.frame.key_bytes_max),
    ),
    (
        "batch.headers_max",
        |c, v| number(v).map(|n| c.frame.headers_max = n),
        |c| whole(c.frame.headers_max),
    ),
];

type SetStore = fn(&mut Store, &Value) -> Result<(), String>;
type GetStore = fn(&Store) -> Option<Value>;

/// Keys of the file that say which store holds the bucket.
const STORE_KEYS: &[(&str, SetStore, GetStore)] = &[
    (
        "bucket",
        |s, v| text(v).map(|t| s.url = Some(t)),
        |s| s.url.clone().map(Value::from),
    ),
    (
        "s3.region",
        |s, v| text(v).map(|t| s.region = Some(t)),
        |s| s.region.clone().map(Value::from),
    ),
    (
        "s3.endpoint",
        |s, v| text(v).map(|t| s.endpoint = Some(t)),
        |s| s.endpoint.clone().map(Value::from),
    ),
    (
        "s3.unsafe_no_conditions",
        |s, v| boolean(v).map(|b| s.no_conditions = b),
        |s| Some(s.no_conditions.into()),
    ),
    (
        "s3.upload_bytes_per_s",
        |s, v| size(v).map(|n| s.upload_bytes_per_s = n),
        |s| whole(s.upload_bytes_per_s),
    ),
];

fn whole(number: impl TryInto<i64>) -> Option<Value> {
    number.try_into().ok().map(Value::Integer)
}

fn shown(path: &Path) -> Value {
    path.display().to_string().into()
}

pub(super) fn text(value: &Value) -> Result<String, String> {
    let text = value.as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| "text in quotes is needed".to_owned())
}

pub(super) fn path(value: &Value) -> Result<PathBuf, String> {
    let text = value.as_str().filter(|text| !text.is_empty());
    text.map(PathBuf::from)
        .ok_or_else(|| "a path in quotes is needed".to_owned())
}

pub(super) fn boolean(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| "true or false is needed".to_owned())
}

pub(super) fn number<T: TryFrom<i64>>(value: &Value) -> Result<T, String> {
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

/// Everything that profile, file, environment, options and directory come to.
pub(super) struct Resolved {
    /// The engine's part.
    pub(super) config: EngineConfig,
    /// The part of `serve`.
    pub(super) serve: ServeSettings,
    store: Store,
    edge: bool,
    /// Path of the file, and the line of each key in it.
    file: Option<(PathBuf, BTreeMap<String, usize>)>,
    /// What the directory remembers.
    recorded: Option<Settings>,
}

/// What a file sets.
struct Layers {
    config: EngineConfig,
    store: Store,
    serve: ServeSettings,
}

impl Layers {
    fn new(edge: bool) -> Self {
        Self {
            config: profile(edge),
            store: Store::default(),
            serve: ServeSettings::of_profile(edge),
        }
    }

    fn resolve(
        mut self,
        file: Option<&(&PathBuf, String)>,
        globals: &Globals,
    ) -> Result<Self, CliError> {
        if let Some((path, text)) = file {
            apply(&mut self, text).map_err(|error| {
                CliError::usage(format!("configuration {}: {error}", path.display()))
            })?;
        }
        if let Some(dir) = &globals.data_dir {
            self.config.data_dir.clone_from(dir);
        }
        if let Some(dir) = &globals.bucket_dir {
            self.config.bucket_dir = Some(dir.clone());
        }
        self.config.take_bucket = globals.take_bucket;
        Ok(self)
    }
}

/// The configuration that the options ask for, and the directory remembers.
pub(super) fn resolve(globals: &Globals, serve: Option<&ServeArgs>) -> Result<Resolved, CliError> {
    let file = match &globals.config {
        Some(path) => Some((path, read_file(path)?)),
        None => None,
    };
    // Which profile the rest stands on, only the directory knows.
    let mut layers = Layers::new(false).resolve(file.as_ref(), globals)?;
    let recorded = match (&globals.server, serve) {
        // A server is asked: what lies here does not matter.
        (Some(_), None) => None,
        _ => Settings::of(&layers.config.data_dir)?,
    };
    let edge = globals.edge || recorded.as_ref().is_some_and(|recorded| recorded.edge);
    if edge {
        layers = Layers::new(true).resolve(file.as_ref(), globals)?;
    }
    let Layers {
        mut config,
        store,
        serve: settings,
    } = layers;
    let start = &mut config.wal.lane_start_bytes;
    if *start == profile(edge).wal.lane_start_bytes {
        *start = (*start).min(config.wal.disk_bytes_max / 4);
    }
    let mut store = store.under(globals);
    match &recorded {
        Some(recorded) if recorded.edge != edge => {
            let dir = config.data_dir.display();
            return Err(CliError::usage(format!(
                "--edge, but data directory {dir} was made with the standard profile: leave it out"
            )));
        }
        Some(recorded) => {
            recorded.settle_bucket(&mut config, store.clone())?;
            store = store.over(&recorded.store);
        }
        None => {
            config.s3 = store.options()?;
            config.settings = Some(Settings::text(edge, &config, &store)?);
        }
    }
    check(&config, file.as_ref().map(|(path, _)| *path))?;
    let serve = match serve {
        Some(args) => settings.under(args, globals)?,
        None => settings,
    };
    let file = file.map(|(path, text)| (path.clone(), origins::lines(&text)));
    Ok(Resolved {
        config,
        serve,
        store,
        edge,
        file,
        recorded,
    })
}

impl Resolved {
    /// Every key, with its value and where that came from.
    ///
    /// # Errors
    /// The data directory does not say what it was made with.
    pub(super) fn rows(&self, globals: &Globals) -> Result<Vec<Row>, CliError> {
        let usual = profile(false);
        let fixed = fixed(&self.config.data_dir)?;
        let mut rows = vec![self.profile_row(globals)];
        for (key, _, get) in KEYS {
            let own = fixed.as_ref().and_then(|fixed| match *key {
                "logs" => whole(fixed.logs),
                "wal.segment_bytes" => whole(fixed.segment_bytes),
                _ => None,
            });
            if let Some(value) = own {
                rows.push(Row {
                    key,
                    value: Some(Shown::new(&value)),
                    origin: self.directory(MARKER_FILE),
                });
                continue;
            }
            let value = get(&self.config);
            let by_profile = self.edge && value != get(&usual);
            rows.push(self.row(globals, key, value, by_profile));
        }
        for (key, _, get) in STORE_KEYS {
            rows.push(self.row(globals, key, get(&self.store), false));
        }
        let usual = ServeSettings::default();
        for (key, _, get) in SERVE_KEYS {
            let value = get(&self.serve);
            let by_profile = self.edge && value != get(&usual);
            rows.push(self.row(globals, key, value, by_profile));
        }
        Ok(rows)
    }

    fn profile_row(&self, globals: &Globals) -> Row {
        let name = if self.edge { "edge" } else { "standard" };
        let origin = match globals.given.of("edge") {
            Some(given) => Origin::of_option("edge", given),
            None if self.recorded.is_some() => self.directory(SETTINGS_FILE),
            None => Origin::Default,
        };
        let value = Some(Shown::new(&name.into()));
        Row {
            key: "profile",
            value,
            origin,
        }
    }

    /// Of the data directory, by its file `name`.
    fn directory(&self, name: &str) -> Origin {
        let file = self.config.data_dir.join(name);
        Origin::Directory(file.display().to_string())
    }

    fn row(
        &self,
        globals: &Globals,
        key: &'static str,
        value: Option<Value>,
        by_profile: bool,
    ) -> Row {
        let id = key.trim_start_matches("serve.").trim_start_matches("s3.");
        let line = self
            .file
            .as_ref()
            .and_then(|(path, lines)| Some((path, *lines.get(key)?)));
        let remembered = self.recorded.as_ref().is_some_and(|recorded| match key {
            "bucket_dir" => recorded.bucket_dir.is_some(),
            "bucket" => recorded.store.url.is_some(),
            "s3.region" => recorded.store.region.is_some(),
            "s3.endpoint" => recorded.store.endpoint.is_some(),
            _ => false,
        });
        let lane = profile(self.edge).wal.lane_start_bytes;
        let origin = match (globals.given.of(id), line) {
            (Some(given), _) => Origin::of_option(id, given),
            (None, Some((path, line))) => Origin::File(path.display().to_string(), line),
            _ if remembered => self.directory(SETTINGS_FILE),
            _ if key == "wal.lane_start_bytes" && self.config.wal.lane_start_bytes != lane => {
                Origin::Derived("wal.disk_bytes_max")
            }
            _ if by_profile => Origin::Profile("edge"),
            _ => Origin::Default,
        };
        let value = value.as_ref().map(Shown::new);
        Row { key, value, origin }
    }
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

/// Refuses limits that nothing could be done within before anything is: input is framed by them, too.
fn check(config: &EngineConfig, file: Option<&PathBuf>) -> Result<(), CliError> {
    let Some(path) = file else {
        // The profile fits itself; of the store, whoever opens it says what is wrong.
        return Ok(());
    };
    let wrong = match check_lane(config) {
        Err(text) => Some(text),
        Ok(()) => config.validate().err().map(|error| match error {
            Error::Config(text) => text,
            other => other.to_string(),
        }),
    };
    wrong.map_or(Ok(()), |text| {
        let text = format!("configuration {}: {text}", path.display());
        Err(CliError::config(text))
    })
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

fn apply(layers: &mut Layers, text: &str) -> Result<(), String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        format!("line {line}: {}", error.message())
    })?;
    apply_table(layers, "", &table)
}

/// Every key there is.
fn all_keys() -> impl Iterator<Item = &'static str> {
    let store = STORE_KEYS.iter().map(|(key, ..)| *key);
    let serve = SERVE_KEYS.iter().map(|(key, ..)| *key);
    KEYS.iter().map(|(key, ..)| *key).chain(store).chain(serve)
}

fn apply_table(layers: &mut Layers, prefix: &str, table: &Table) -> Result<(), String> {
    for (name, value) in table {
        let key = format!("{prefix}{name}");
        let inner = format!("{key}.");
        let set = if let Some((_, set, _)) = KEYS.iter().find(|(known, ..)| *known == key) {
            set(&mut layers.config, value)
        } else if let Some((_, set, _)) = STORE_KEYS.iter().find(|(known, ..)| *known == key) {
            set(&mut layers.store, value)
        } else if let Some((_, set, _)) = SERVE_KEYS.iter().find(|(known, ..)| *known == key) {
            set(&mut layers.serve, value)
        } else if let (Value::Table(table), true) =
            (value, all_keys().any(|known| known.starts_with(&inner)))
        {
            apply_table(layers, &inner, table)?;
            continue;
        } else {
            return Err(format!("unknown key {key}"));
        };
        set.map_err(|rule| format!("{key} = {value}: {rule}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
