//! Routes: what a control path means.
//!
//! **Invariants**
//! - A subscription's id is one segment, percent-decoded; a stream's path is all that is left.

use hyper::StatusCode;
use percent_encoding::percent_decode_str;

use super::wrong::Wrong;

/// What is asked about.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Public keys.
    Jwks,
    /// Something of a subscription.
    Of(String, Action),
}

/// What of a subscription.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Whole,
    Streams,
    Stream(String),
    Callback,
    Claim,
    Ack,
    Release,
}

impl Action {
    /// Whether a wake's token is what lets in.
    pub(super) fn is_fenced(&self) -> bool {
        matches!(self, Self::Callback | Self::Ack | Self::Release)
    }
}

/// Takes a path below the streams' root apart.
pub(super) fn parse(path: &str) -> Result<Route, Wrong> {
    let unknown = || Wrong::new(StatusCode::NOT_FOUND, "NOT_FOUND", "no such route");
    let below = path.strip_prefix("__ds/").ok_or_else(unknown)?;
    if below == "jwks.json" {
        return Ok(Route::Jwks);
    }
    let below = below.strip_prefix("subscriptions/").ok_or_else(unknown)?;
    let (id, rest) = match below.split_once('/') {
        Some((id, rest)) => (id, Some(rest)),
        None => (below, None),
    };
    let id = decoded(id)?;
    if id.is_empty() {
        return Err(unknown());
    }
    let action = match rest {
        None => Action::Whole,
        Some("streams") => Action::Streams,
        Some("callback") => Action::Callback,
        Some("claim") => Action::Claim,
        Some("ack") => Action::Ack,
        Some("release") => Action::Release,
        Some(rest) => {
            let stream = rest.strip_prefix("streams/").ok_or_else(unknown)?;
            Action::Stream(plain(&decoded(stream)?).to_owned())
        }
    };
    Ok(Route::Of(id, action))
}

fn decoded(text: &str) -> Result<String, Wrong> {
    let name = percent_decode_str(text).decode_utf8();
    let name = name.map_err(|_| Wrong::bad("the path is not UTF-8"))?;
    Ok(name.into_owned())
}

/// A stream's path without the slashes before it.
pub(super) fn plain(path: &str) -> &str {
    path.trim_start_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        let of = |action| Some(Route::Of("a b".to_owned(), action));
        let cases = [
            ("__ds/jwks.json", Some(Route::Jwks)),
            ("__ds/subscriptions/a%20b", of(Action::Whole)),
            ("__ds/subscriptions/a%20b/streams", of(Action::Streams)),
            (
                "__ds/subscriptions/a%20b/streams/x%2Fy",
                of(Action::Stream("x/y".to_owned())),
            ),
            (
                "__ds/subscriptions/a%20b/streams/x/y",
                of(Action::Stream("x/y".to_owned())),
            ),
            ("__ds/subscriptions/a%20b/claim", of(Action::Claim)),
            ("__ds/subscriptions/a%20b/ack", of(Action::Ack)),
            ("__ds/subscriptions/a%20b/release", of(Action::Release)),
            ("__ds/subscriptions/a%20b/callback", of(Action::Callback)),
            ("__ds/subscriptions/a%20b/other", None),
            ("__ds/subscriptions/", None),
            ("__ds/subscriptions/%ff", None),
            ("__ds/other", None),
            ("__ds", None),
        ];
        for (path, expected) in cases {
            assert_eq!(parse(path).ok(), expected, "{path}");
        }
    }
}
