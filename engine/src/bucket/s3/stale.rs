//! Stale: uploads in parts that a crash left in the store, found by listing and aborted.
//!
//! **Invariants**
//! - Only below our prefix, and only what was begun longer than the grace time ago: another process may
//!   be at work with the rest.
//! - A store that can't list them is asked once; whoever pays for it may set a rule there that does the same.
//!
//! **Not here**: uploads that this process gave up (`upload`).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::client::{HttpConnector, HttpRequest, HttpRequestBody};
use object_store::multipart::MultipartStore;
use object_store::path::Path as StorePath;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{ClientOptions, Error as StoreError};

use super::client::Client;
use super::reply::{Failure, Kind, Listening};

/// How long the signed request may be used.
const SIGNED_FOR: Duration = Duration::from_secs(60);
/// Uploads looked at in one start, at most; the next one finds the others.
const UPLOADS_MAX: usize = 1000;

/// One row of the store's list.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: String,
    id: String,
    begun_ms: u64,
}

/// Aborts what is older than `grace`.
pub(super) async fn abort_stale(client: &Client, grace: Duration) -> Result<u64, Failure> {
    let text = client.attempt(0, list(client)).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let mut aborted = 0;
    for row in rows(&text) {
        let due = row.begun_ms.saturating_add(grace_ms) < now_ms;
        if !due || client.key(&row.name).is_none() {
            continue;
        }
        let Ok(path) = StorePath::parse(&row.name) else {
            continue;
        };
        let abort = client.store().abort_multipart(&path, &row.id);
        match client.attempt(0, abort).await {
            Ok(()) => aborted += 1,
            Err(failure) if failure.kind == Kind::NotFound => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(aborted)
}

/// The store's list, as it sends it.
async fn list(client: &Client) -> object_store::Result<String> {
    let odd = |source: Box<dyn std::error::Error + Send + Sync>| StoreError::Generic {
        store: "S3",
        source,
    };
    let prefix = client.name("");
    let max = UPLOADS_MAX.to_string();
    let query = [
        ("uploads", ""),
        ("prefix", &*prefix),
        ("max-uploads", &*max),
    ];
    let options = SignedUrlOptions::default().with_query(query);
    let get = "GET".parse().map_err(|e| odd(Box::new(e)))?;
    let url = client
        .store()
        .signed_url_opts(get, &StorePath::default(), SIGNED_FOR, &options)
        .await?;
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.uri_mut() = url.as_str().parse().map_err(|e| odd(Box::new(e)))?;
    let http = Listening.connect(&ClientOptions::new().with_allow_http(true))?;
    let answer = http.execute(request).await;
    // The address is signed: whoever reads it may use it, so it goes into no message.
    let answer = answer.map_err(|_| odd("uploads could not be listed".into()))?;
    if !answer.status().is_success() {
        return Err(odd(format!(
            "uploads are not listed: status {}",
            answer.status()
        )
        .into()));
    }
    let body = answer.into_body().bytes().await;
    let body = body.map_err(|_| odd("the list of uploads broke off".into()))?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn rows(text: &str) -> impl Iterator<Item = Row> + '_ {
    let uploads = text.split("<Upload>").skip(1);
    uploads.filter_map(|upload| {
        let upload = upload.split("</Upload>").next()?;
        Some(Row {
            name: unescaped(within(upload, "Key")?),
            id: unescaped(within(upload, "UploadId")?),
            begun_ms: millis_of(within(upload, "Initiated")?)?,
        })
    })
}

/// What stands between a tag and its end.
fn within<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    rest.split_once(&format!("</{tag}>"))
        .map(|(value, _)| value)
}

fn unescaped(text: &str) -> String {
    let named = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
    ];
    let mut text = text.to_owned();
    for (escape, plain) in named {
        text = text.replace(escape, plain);
    }
    text.replace("&amp;", "&")
}

/// Milliseconds since 1970 of a time like `2026-11-30T09:38:40.000Z`.
fn millis_of(time: &str) -> Option<u64> {
    let (date, time) = time.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let hours: u64 = time.next()?.parse().ok()?;
    let minutes: u64 = time.next()?.parse().ok()?;
    let seconds: u64 = time.next()?.split('.').next()?.parse().ok()?;
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March, so that the odd day comes last.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let since_1970 = days - 719_468;
    Some((((since_1970 * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn millis_of_known_times() {
        for (time, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00.123Z", 951_825_600),
            ("2026-11-30T09:38:40.000Z", 1_796_031_520),
        ] {
            assert_eq!(millis_of(time), Some(seconds * 1000), "{time}");
        }
        for odd in [
            "",
            "yesterday",
            "2026-13-01T00:00:00Z",
            "2026-11-30 09:38:40Z",
        ] {
            assert_eq!(millis_of(odd), None, "{odd}");
        }
    }

    #[test]
    fn rows_of_a_list_and_of_anything_else() {
        let text = "<R><Upload><Key>a&amp;b/c.pack</Key><UploadId>u1</UploadId>\
                    <Initiated>1970-01-01T00:00:01.000Z</Initiated></Upload>\
                    <Upload><Key>broken</Key></Upload></R>";
        let expected = Row {
            name: "a&b/c.pack".to_owned(),
            id: "u1".to_owned(),
            begun_ms: 1000,
        };
        assert_eq!(rows(text).collect::<Vec<_>>(), [expected]);
        assert_eq!(rows("<Upload>").count(), 0);
        assert_eq!(rows("").count(), 0);
    }
}
