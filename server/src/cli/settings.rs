//! Settings: what a data directory remembers of how it was made, so that nobody has to say it again.
//! Reference: `docs/cli.md`.
//!
//! **Invariants**
//! - Written once, by the engine, before the marker that makes the folder a data directory.
//! - What the command line says must agree with it.
//!
//! **Not here**: the configuration file (`config`).

use std::io;
use std::path::{Path, PathBuf};

use sealog_engine::{EngineConfig, SETTINGS_FILE};
use toml::{Table, Value};

use super::exit::CliError;
use super::store::Store;

/// It holds a few lines.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// Made with `--edge`.
    pub(super) edge: bool,
    /// Where the bucket is, unless it is in the data directory.
    pub(super) bucket_dir: Option<PathBuf>,
    /// The store that the bucket is in, if it is in one.
    pub(super) store: Store,
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes)
        .map_err(|error| format!("{}: not UTF-8", place(bytes, error.valid_up_to())))
}

/// A place in the file, in words.
fn place(bytes: &[u8], offset: usize) -> String {
    let before = bytes.get(..offset).unwrap_or(bytes);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    format!("line {line}, offset {offset}")
}

/// Where `key` is set: it stands at the start of its line.
fn offset_of(text: &str, key: &str) -> usize {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_start_matches(['"', ' ']).starts_with(key) {
            break;
        }
        at += line.len();
    }
    at.min(text.len())
}

impl Settings {
    /// What the directory remembers; `None` if it does not exist, or remembers nothing.
    pub(super) fn of(data_dir: &Path) -> Result<Option<Self>, CliError> {
        let path = data_dir.join(SETTINGS_FILE);
        let read = super::lines::open_file(&path).and_then(|file| {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, FILE_BYTES_MAX), &mut bytes)
                .map_err(|error| CliError::file("reading", &path, &error))?;
            Ok(bytes)
        });
        match read {
            Ok(bytes) => utf8(&bytes)
                .and_then(Self::parse)
                .map(Some)
                .map_err(|error| CliError::usage(format!("{}: {error}", path.display()))),
            // What is wrong with the place, whoever opens it says.
            Err(_) if !path.exists() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            format!("{}: {}", place(text.as_bytes(), at), error.message())
        })?;
        let mut settings = Self::default();
        for (key, value) in &table {
            let here = || place(text.as_bytes(), offset_of(text, key));
            match (key.as_str(), value) {
                ("profile", Value::String(profile)) => {
                    settings.edge = match profile.as_str() {
                        "edge" => true,
                        "standard" => false,
                        _ => {
                            let here = here();
                            return Err(format!(
                                "{here}: profile = {value}: standard or edge is needed"
                            ));
                        }
                    }
                }
                ("bucket_dir", Value::String(dir)) => settings.bucket_dir = Some(dir.into()),
                ("bucket", Value::String(url)) => settings.store.url = Some(url.clone()),
                ("region", Value::String(name)) => settings.store.region = Some(name.clone()),
                ("endpoint", Value::String(url)) => settings.store.endpoint = Some(url.clone()),
                _ => return Err(format!("{}: {key} = {value} is not understood", here())),
            }
        }
        Ok(settings)
    }

    /// The file that remembers `config`.
    pub(super) fn text(
        edge: bool,
        config: &EngineConfig,
        store: &Store,
    ) -> Result<String, CliError> {
        let profile = if edge { "edge" } else { "standard" };
        let mut text = format!(
            "# How `sealog` made this directory; options must agree with it.\n\
             # May be edited when the bucket was moved.\nprofile = {profile:?}\n"
        );
        if let Some(dir) = config
            .bucket_dir
            .as_ref()
            .filter(|dir| !is_own(dir, config))
        {
            let dir = absolute(dir)?;
            let dir = dir.to_str().ok_or_else(|| {
                let dir = dir.display();
                CliError::usage(format!(
                    "bucket folder {dir} can't be remembered: its path is not UTF-8"
                ))
            })?;
            text += &format!("bucket_dir = {}\n", Value::from(dir));
        }
        Ok(text + &store.lines())
    }

    /// Puts the recorded bucket into `config`, or refuses the other one that it names.
    pub(super) fn settle_bucket(
        &self,
        config: &mut EngineConfig,
        given: Store,
    ) -> Result<(), CliError> {
        let named = given.url.clone().or_else(|| {
            let dir = config.bucket_dir.as_ref();
            dir.map(|dir| format!("folder {}", dir.display()))
        });
        let store = given.over(&self.store);
        let is_other = match &self.store.url {
            None => store.url.is_some(),
            Some(recorded) => {
                let same =
                    |url: &String| url.trim_end_matches('/') == recorded.trim_end_matches('/');
                config.bucket_dir.is_some() || !store.url.as_ref().is_some_and(same)
            }
        };
        if let (true, Some(named)) = (is_other, named) {
            let recorded = self.store.url.as_deref().unwrap_or("a folder");
            return Err(CliError::unusable(format!(
                "bucket {named} was named, but data directory {} has its bucket in {recorded}: leave \
                 the option out, or edit {SETTINGS_FILE} there if the bucket was moved",
                config.data_dir.display(),
            )));
        }
        config.s3 = store.options()?;
        match config.s3 {
            Some(_) => Ok(()),
            None => self.settle_folder(config),
        }
    }

    fn settle_folder(&self, config: &mut EngineConfig) -> Result<(), CliError> {
        let own = config.data_dir.join("bucket");
        let recorded = self.bucket_dir.as_ref().unwrap_or(&own);
        match &config.bucket_dir {
            None => config.bucket_dir.clone_from(&self.bucket_dir),
            Some(given) if same(given, recorded)? => {}
            Some(given) => {
                return Err(CliError::unusable(format!(
                    "bucket folder {} was named, but data directory {} has its bucket in {}: leave \
                     --bucket-dir out, or edit {SETTINGS_FILE} there if the bucket was moved",
                    given.display(),
                    config.data_dir.display(),
                    recorded.display()
                )));
            }
        }
        Ok(())
    }
}

fn is_own(bucket: &Path, config: &EngineConfig) -> bool {
    same(bucket, &config.data_dir.join("bucket")).unwrap_or(false)
}

fn same(a: &Path, b: &Path) -> Result<bool, CliError> {
    if absolute(a)? == absolute(b)? {
        return Ok(true);
    }
    // By another way to the same place.
    Ok(matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b))
}

fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(path).map_err(|error| CliError::file("finding", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundtrip_settings_of_odd_paths() {
        for dir in [None, Some("/b u/\"q\"\n\\x"), Some("/plain")] {
            for edge in [false, true] {
                let mut config = EngineConfig::new("/d");
                config.bucket_dir = dir.map(PathBuf::from);
                let text = Settings::text(edge, &config, &Store::default()).unwrap();
                let expected = Settings {
                    edge,
                    bucket_dir: config.bucket_dir.clone(),
                    store: Store::default(),
                };
                assert_eq!(Settings::parse(&text), Ok(expected), "{text}");
            }
        }
        let mut config = EngineConfig::new("/d");
        config.bucket_dir = Some("/d/bucket".into());
        let text = Settings::text(false, &config, &Store::default()).unwrap();
        assert!(!text.contains("bucket_dir"), "{text}");
    }

    #[test]
    fn parse_wrong_files_say_why() {
        for (text, reason) in [
            (
                "profile = \"big\"",
                "profile = \"big\": standard or edge is needed",
            ),
            ("profile = 1", "profile = 1 is not understood"),
            ("colour = \"red\"", "colour = \"red\" is not understood"),
        ] {
            let said = format!("line 1, offset 0: {reason}");
            assert_eq!(Settings::parse(text), Err(said));
        }
    }
}
