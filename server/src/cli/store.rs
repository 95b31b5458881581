//! Store: which S3-compatible store the command line, the file and the directory name, taken together.
//! Reference: `docs/cli.md`.
//!
//! **Invariants**
//! - Credentials are none of it: they come from the process's surroundings alone.
//! - The directory decides which bucket; where and how it is reached may change.
//!
//! **Not here**: folders (`settings`), what is done with the store (the engine).

use sealog_engine::S3Options;
use toml::Value;

use super::args::Globals;
use super::exit::CliError;

/// What is known of the store so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Store {
    /// `s3://NAME/PREFIX`; without it there is no store.
    pub(super) url: Option<String>,
    /// Its region.
    pub(super) region: Option<String>,
    /// Where it listens.
    pub(super) endpoint: Option<String>,
    /// Use it although it ignores conditions.
    pub(super) no_conditions: bool,
    /// Bound on uploads.
    pub(super) upload_bytes_per_s: u64,
}

impl Store {
    /// What the options of the command line say goes first.
    pub(super) fn under(mut self, globals: &Globals) -> Self {
        let take = |own: &mut Option<String>, given: &Option<String>| {
            if given.is_some() {
                own.clone_from(given);
            }
        };
        take(&mut self.url, &globals.bucket);
        take(&mut self.region, &globals.region);
        take(&mut self.endpoint, &globals.endpoint);
        self.no_conditions |= globals.unsafe_no_conditions;
        self
    }

    /// What the directory remembers fills the gaps.
    pub(super) fn over(mut self, recorded: &Self) -> Self {
        self.url = self.url.or_else(|| recorded.url.clone());
        self.region = self.region.or_else(|| recorded.region.clone());
        self.endpoint = self.endpoint.or_else(|| recorded.endpoint.clone());
        self
    }

    /// The engine's options; `None` if no store was named.
    pub(super) fn options(&self) -> Result<Option<S3Options>, CliError> {
        let Some(url) = &self.url else {
            return match self.region.is_some() || self.endpoint.is_some() {
                false => Ok(None),
                true => Err(CliError::usage(
                    "a region or an endpoint, but no store: --bucket s3://NAME is needed",
                )),
            };
        };
        if let Some(endpoint) = &self.endpoint
            && !["http://", "https://"]
                .iter()
                .any(|s| endpoint.starts_with(s))
        {
            return Err(CliError::usage(format!(
                "--endpoint {endpoint} (s3.endpoint in a file): http:// or https:// is needed"
            )));
        }
        let named = S3Options::of_url(url).map_err(|error| CliError::usage(error.to_string()))?;
        Ok(Some(S3Options {
            region: self.region.clone(),
            endpoint: self.endpoint.clone(),
            ignore_missing_conditions: self.no_conditions,
            upload_bytes_per_s: self.upload_bytes_per_s,
            ..named
        }))
    }

    /// The lines that remember it.
    pub(super) fn lines(&self) -> String {
        let rows = [
            ("bucket", &self.url),
            ("region", &self.region),
            ("endpoint", &self.endpoint),
        ];
        let line = |(key, value): (&str, &Option<String>)| {
            let value = value.as_deref()?;
            Some(format!("{key} = {}\n", Value::from(value)))
        };
        rows.into_iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(url: &str, region: &str) -> Store {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Store {
            url: some(url),
            region: some(region),
            ..Store::default()
        }
    }

    #[test]
    fn options_a_region_without_a_store_is_refused() {
        assert_eq!(Store::default().options().unwrap(), None);
        assert!(store("", "eu").options().is_err());
        let options = store("s3://abc/x/", "eu").options().unwrap().unwrap();
        assert_eq!(options.url(), "s3://abc/x");
        assert_eq!(options.region.as_deref(), Some("eu"));
    }

    #[test]
    fn over_what_is_given_wins() {
        let given = store("", "eu").over(&store("s3://abc", "us"));
        assert_eq!(given, store("s3://abc", "eu"));
    }
}
