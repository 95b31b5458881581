//! Profile: credentials and region of a profile in the files that Amazon's own tools keep.
//! Source: AWS CLI user guide, "Configuration and credential file settings".
//!
//! **Invariants**
//! - Only static keys are taken; a profile that gets its keys in another way is an error, not a gap.
//! - Secrets are never part of an error.
//!
//! **Not here**: the order among the other sources (`client`).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ini::{Ini, Properties};

/// Profile that is read unless another is named.
const DEFAULT: &str = "default";
/// Keys by which a profile says that its credentials have to be fetched.
const FETCHED: [&str; 6] = [
    "role_arn",
    "source_profile",
    "credential_process",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
];

/// What a profile says.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Profile {
    /// Key id, secret and session token.
    pub keys: Option<Keys>,
    /// Region.
    pub region: Option<String>,
}

/// Static credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Keys {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.keys.as_ref().map(|keys| &keys.id);
        f.debug_struct("Profile")
            .field("id", &id)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// Where profiles are looked for.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// `AWS_PROFILE`, else `AWS_DEFAULT_PROFILE`.
    pub name: Option<String>,
    /// `AWS_SHARED_CREDENTIALS_FILE`, else `~/.aws/credentials`.
    pub credentials: Option<PathBuf>,
    /// `AWS_CONFIG_FILE`, else `~/.aws/config`.
    pub config: Option<PathBuf>,
}

impl Surroundings {
    /// Those of this process.
    pub(super) fn of_process() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from);
        let file = |name: &str, standard: &str| {
            let standard = || home.as_ref().map(|home| home.join(standard));
            variable(name).map(PathBuf::from).or_else(standard)
        };
        Self {
            name: variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE")),
            credentials: file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"),
            config: file("AWS_CONFIG_FILE", ".aws/config"),
        }
    }

    /// What the profile says; nothing if none is named and there is no default one.
    ///
    /// # Errors
    /// Text that names the file, the profile and the key: a file that can't be read, a named profile
    /// that is in neither file, half of a pair of keys, credentials that have to be fetched.
    pub(super) fn profile(&self) -> Result<Profile, String> {
        let name = self.name.as_deref().unwrap_or(DEFAULT);
        let titled = match name {
            DEFAULT => DEFAULT.to_owned(),
            name => format!("profile {name}"),
        };
        let credentials = section(self.credentials.as_deref(), name)?;
        let config = section(self.config.as_deref(), &titled)?;
        if self.name.is_some() && credentials.is_none() && config.is_none() {
            return Err(format!("profile {name:?} is in neither {}", self.places()));
        }
        let sections = [&credentials, &config];
        let value = |key: &str| {
            let found = sections.iter().filter_map(|found| found.as_ref()?.get(key));
            found
                .map(|value| value.trim().to_owned())
                .find(|value| !value.is_empty())
        };
        let pair = (value("aws_access_key_id"), value("aws_secret_access_key"));
        let keys = match pair {
            (Some(id), Some(secret)) => {
                let token = value("aws_session_token");
                Some(Keys { id, secret, token })
            }
            (None, None) => None,
            (id, _) => {
                let absent = if id.is_some() {
                    "aws_secret_access_key"
                } else {
                    "aws_access_key_id"
                };
                return Err(format!(
                    "profile {name:?} has no {absent} in {}",
                    self.places()
                ));
            }
        };
        if keys.is_none()
            && let Some(key) = FETCHED.iter().find(|key| value(key).is_some())
        {
            return Err(format!(
                "profile {name:?} gets its credentials by {key}, which is not supported: put \
                 aws_access_key_id and aws_secret_access_key there, or set AWS_ACCESS_KEY_ID"
            ));
        }
        Ok(Profile {
            keys,
            region: value("region"),
        })
    }

    fn places(&self) -> String {
        let shown = |path: &Option<PathBuf>| {
            path.as_ref()
                .map_or_else(|| "~/.aws".to_owned(), |path| path.display().to_string())
        };
        format!("{} nor {}", shown(&self.credentials), shown(&self.config))
    }
}

/// The section of that title; `None` without file or section.
fn section(path: Option<&Path>, title: &str) -> Result<Option<Properties>, String> {
    let Some(path) = path else {
        return Ok(None);
    };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    // Secrets hold backslashes; nothing in these files is escaped.
    let parsed = Ini::load_from_str_noescape(&text);
    let ini = parsed.map_err(|error| {
        format!(
            "{}: line {}: not a profile file",
            path.display(),
            error.line
        )
    })?;
    Ok(ini.section(Some(title)).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: Option<&str>, credentials: &str, config: &str) -> Result<Profile, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            if !text.is_empty() {
                std::fs::write(&path, text).unwrap();
            }
            Some(path)
        };
        let surroundings = Surroundings {
            name: name.map(str::to_owned),
            credentials: file("credentials", credentials),
            config: file("config", config),
        };
        surroundings.profile()
    }

    const CREDENTIALS: &str = "[default]\naws_access_key_id = A1\naws_secret_access_key = s/1+\\x=\n\n\
        [edge]\naws_access_key_id=A2\naws_secret_access_key=s2\naws_session_token=t2\n";

    #[test]
    fn profile_default_and_named_are_found() {
        let profile = with(None, CREDENTIALS, "[default]\nregion = eu-west-1\n").unwrap();
        let keys = profile.keys.unwrap();
        assert_eq!((keys.id.as_str(), keys.secret.as_str()), ("A1", "s/1+\\x="));
        assert_eq!(keys.token, None);
        assert_eq!(profile.region.as_deref(), Some("eu-west-1"));
        let config = "[profile edge]\nregion = x\n[edge]\nregion = not this\n";
        let edge = with(Some("edge"), CREDENTIALS, config).unwrap();
        assert_eq!(edge.keys.unwrap().token.as_deref(), Some("t2"));
        assert_eq!(edge.region.as_deref(), Some("x"));
    }

    #[test]
    fn profile_without_files_says_nothing() {
        assert_eq!(with(None, "", ""), Ok(Profile::default()));
        assert_eq!(Surroundings::default().profile(), Ok(Profile::default()));
    }

    #[test]
    fn profile_that_cannot_serve_is_an_error_that_names_it() {
        let refused = |name, credentials, config, word: &str| {
            let error = with(name, credentials, config).unwrap_err();
            assert!(error.contains(word), "{error}");
            assert!(!error.contains("s2"), "a secret: {error}");
        };
        refused(Some("nobody"), CREDENTIALS, "", "\"nobody\"");
        refused(
            None,
            "[default]\naws_secret_access_key = s2\n",
            "",
            "aws_access_key_id",
        );
        refused(
            None,
            "[default]\naws_access_key_id = A\n",
            "",
            "aws_secret_access_key",
        );
        refused(
            Some("sso"),
            "",
            "[profile sso]\nsso_session = me\n",
            "sso_session",
        );
        refused(
            None,
            "[default\naws_secret_access_key = s2\n",
            "",
            "not a profile file",
        );
    }

    #[test]
    fn profile_shown_in_logs_has_no_secret() {
        let shown = format!("{:?}", with(Some("edge"), CREDENTIALS, "").unwrap());
        assert!(
            shown.contains("A2") && !shown.contains("s2") && !shown.contains("t2"),
            "{shown}"
        );
    }
}
