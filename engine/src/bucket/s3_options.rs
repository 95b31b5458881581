//! S3Options: which S3-compatible store a bucket is in, and how much it may cost this machine.
//!
//! **Invariants**
//! - Nothing in it is secret: credentials come from the process's surroundings and stay in memory.
//!
//! **Not here**: talking to the store (`s3`).

use crate::error::{Error, Result};

/// What a bucket's URL begins with.
const SCHEME: &str = "s3://";
/// Longest prefix: keys are at most 1,024 bytes, and the longest of ours take less than 400.
const PREFIX_BYTES_MAX: usize = 512;
/// Slowest upload that makes sense: a part takes three minutes then.
const UPLOAD_BYTES_PER_S_MIN: u64 = 32 << 10;

/// An S3-compatible store, and the place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Options {
    /// Name of the store's bucket.
    pub bucket: String,
    /// What every key begins with, without slashes at its ends; may be empty.
    pub prefix: String,
    /// Region; `None` takes `AWS_REGION` or `AWS_DEFAULT_REGION`, else the profile's, else us-east-1.
    pub region: Option<String>,
    /// Where the store listens; `None` takes `AWS_ENDPOINT_URL`, else Amazon's own.
    pub endpoint: Option<String>,
    /// Serve even if the store ignores conditions: two writers would then both win. Unsafe.
    pub ignore_missing_conditions: bool,
    /// Bound on the rate of uploads; 0 is none.
    pub upload_bytes_per_s: u64,
}

impl S3Options {
    /// The place that a URL like `s3://NAME/PREFIX` names; everything else as it is by default.
    ///
    /// # Errors
    /// [`Error::Config`] naming what is wrong with the URL.
    pub fn of_url(url: &str) -> Result<Self> {
        let refuse = |rule: &str| Err(Error::Config(format!("bucket {url:?}: {rule}")));
        let Some(place) = url.strip_prefix(SCHEME) else {
            return refuse("s3://NAME or s3://NAME/PREFIX is needed");
        };
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let options = Self {
            bucket: bucket.to_owned(),
            prefix: prefix.trim_end_matches('/').to_owned(),
            region: None,
            endpoint: None,
            ignore_missing_conditions: false,
            upload_bytes_per_s: 0,
        };
        match options.check_place() {
            Ok(()) => Ok(options),
            Err(rule) => refuse(&rule),
        }
    }

    /// The URL that [`S3Options::of_url`] takes back.
    #[must_use]
    pub fn url(&self) -> String {
        match self.prefix.as_str() {
            "" => format!("{SCHEME}{}", self.bucket),
            prefix => format!("{SCHEME}{}/{prefix}", self.bucket),
        }
    }

    /// Refuses what cannot work.
    pub(crate) fn validate(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::Config(text));
        if let Err(rule) = self.check_place() {
            return refuse(format!("bucket {:?}: {rule}", self.url()));
        }
        if let Some(endpoint) = &self.endpoint
            && !endpoint.starts_with("http://")
            && !endpoint.starts_with("https://")
        {
            return refuse(format!(
                "endpoint {endpoint:?}: http:// or https:// is needed"
            ));
        }
        let rate = self.upload_bytes_per_s;
        if rate != 0 && rate < UPLOAD_BYTES_PER_S_MIN {
            return refuse(format!(
                "s3.upload_bytes_per_s = {rate}, 0 (no bound) or at least {UPLOAD_BYTES_PER_S_MIN} needed"
            ));
        }
        Ok(())
    }

    fn check_place(&self) -> std::result::Result<(), String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !(3..=63).contains(&self.bucket.len()) || !self.bucket.bytes().all(plain) {
            return Err("the name is 3 to 63 letters, digits, dots and dashes".to_owned());
        }
        if self.prefix.len() > PREFIX_BYTES_MAX {
            let bytes = self.prefix.len();
            return Err(format!(
                "a prefix of {bytes} bytes, over the limit of {PREFIX_BYTES_MAX}"
            ));
        }
        let parts = self.prefix.split('/').filter(|_| !self.prefix.is_empty());
        for part in parts {
            let odd = part.chars().any(|c| c.is_control());
            if odd || matches!(part, "" | "." | "..") {
                return Err(format!("{part:?} can't be part of a prefix"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundtrip_urls_of_buckets() {
        for (url, bucket, prefix) in [
            ("s3://abc", "abc", ""),
            ("s3://abc/", "abc", ""),
            ("s3://a.b-c/x/y z/", "a.b-c", "x/y z"),
        ] {
            let options = S3Options::of_url(url).unwrap();
            assert_eq!((&*options.bucket, &*options.prefix), (bucket, prefix));
            assert_eq!(S3Options::of_url(&options.url()), Ok(options));
        }
    }

    #[test]
    fn of_url_wrong_places_are_refused() {
        for (url, rule) in [
            ("abc", "s3://NAME"),
            ("http://abc", "s3://NAME"),
            ("s3://", "3 to 63"),
            ("s3://ab", "3 to 63"),
            ("s3://a_b?c/x", "3 to 63"),
            ("s3://abc//x", "can't be part"),
            ("s3://abc/x/../y", "can't be part"),
        ] {
            let refused = S3Options::of_url(url).unwrap_err().to_string();
            assert!(refused.contains(rule), "{url}: {refused}");
        }
    }

    #[test]
    fn validate_numbers_that_cannot_work_are_refused() {
        let good = S3Options::of_url("s3://abc").unwrap();
        good.validate().unwrap();
        let bad = [
            S3Options {
                endpoint: Some("localhost:9000".to_owned()),
                ..good.clone()
            },
            S3Options {
                upload_bytes_per_s: 100,
                ..good
            },
        ];
        for options in bad {
            assert!(options.validate().is_err(), "{options:?}");
        }
    }
}
