//! FakeStore: an object store in memory that answers on a port of its own.
//!
//! **Invariants**
//! - Conditions are judged and applied under one lock.
//! - An upload in parts shows nothing until it is completed, and is unknown from then on.
//!
//! **Not here**: faults (`proxy`).

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use super::http::{Reply, Request};

/// Least length of a part but the last.
const PART_BYTES_MIN: usize = 5 << 20;
/// What the store says of every object's age.
const LONG_AGO: &str = "2020-01-01T00:00:00.000Z";

struct Parts {
    key: String,
    begun: String,
    parts: BTreeMap<u32, Vec<u8>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    uploads: BTreeMap<String, Parts>,
    requests: Vec<String>,
    next_upload: u64,
}

/// A store; it ends with the process.
#[derive(Clone)]
pub struct FakeStore {
    state: Arc<Mutex<State>>,
    port: u16,
}

impl FakeStore {
    /// An empty one.
    ///
    /// # Panics
    /// No port of this machine can be had.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let port = listener.local_addr().expect("an address").port();
        let store = Self {
            state: Arc::default(),
            port,
        };
        let serving = store.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let store = serving.clone();
                std::thread::spawn(move || store.serve(stream));
            }
        });
        store
    }

    /// Where it listens.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Keys that begin with `prefix`.
    #[must_use]
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let state = self.lock();
        let keys = state.objects.keys().filter(|key| key.starts_with(prefix));
        keys.cloned().collect()
    }

    /// An object's bytes.
    #[must_use]
    pub fn object(&self, key: &str) -> Option<Vec<u8>> {
        self.lock().objects.get(key).cloned()
    }

    /// Takes an object out.
    pub fn remove(&self, key: &str) {
        self.lock().objects.remove(key);
    }

    /// Puts an object there, whatever was there.
    pub fn set(&self, key: &str, data: &[u8]) {
        self.lock().objects.insert(key.to_owned(), data.to_vec());
    }

    /// Uploads in parts that are neither completed nor aborted.
    #[must_use]
    pub fn open_uploads(&self) -> Vec<String> {
        self.lock().uploads.keys().cloned().collect()
    }

    /// Begins an upload in parts of `key`, long ago or just now.
    pub fn leave_upload(&self, key: &str, begun: &str) -> String {
        self.lock().begin(key, begun)
    }

    /// Forgets every upload in parts.
    pub fn forget_uploads(&self) {
        self.lock().uploads.clear();
    }

    /// Every request so far: method and key, with the query's first word if there is one.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) {
        let Ok(reading) = stream.try_clone() else {
            return;
        };
        let mut reading = BufReader::new(reading);
        while let Ok(Some(request)) = Request::read(&mut reading) {
            let reply = self.lock().answer(&request);
            if stream.write_all(&reply.bytes()).is_err() {
                return;
            }
        }
    }
}

impl State {
    fn answer(&mut self, request: &Request) -> Reply {
        let key = request.key();
        let query = request
            .target
            .split_once('?')
            .map_or("", |(_, query)| query);
        let word = query.split(['=', '&']).next().unwrap_or_default();
        self.requests.push(
            format!("{} {key} {word}", request.method)
                .trim_end()
                .to_owned(),
        );
        let upload = request.query("uploadId");
        match (request.method.as_str(), upload) {
            ("PUT", Some(id)) => self.put_part(request, &id),
            ("POST", Some(id)) => self.complete(&key, &id),
            ("DELETE", Some(id)) => match self.uploads.remove(&id) {
                Some(_) => Reply::new(204, ""),
                None => Reply::error(404, "NoSuchUpload"),
            },
            ("POST", None) => {
                let id = self.begin(&key, LONG_AGO);
                Reply::new(
                    200,
                    format!(
                        "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>\
                         <UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                    ),
                )
            }
            ("PUT", None) => self.put(&key, request),
            ("GET", None) if key.is_empty() && request.query("uploads").is_some() => {
                self.list_uploads(request)
            }
            ("GET", None) if key.is_empty() => self.list(request),
            ("GET" | "HEAD", None) => self.get(&key, request),
            ("DELETE", None) => {
                self.objects.remove(&key);
                Reply::new(204, "")
            }
            _ => Reply::error(501, "NotImplemented"),
        }
    }

    fn put(&mut self, key: &str, request: &Request) -> Reply {
        let found = self.objects.get(key);
        if request.header("if-none-match").is_some() && found.is_some() {
            return Reply::error(412, "PreconditionFailed");
        }
        match (request.header("if-match"), found) {
            (Some(_), None) => return Reply::error(404, "NoSuchKey"),
            (Some(tag), Some(found)) if tag != tag_of(found) => {
                return Reply::error(412, "PreconditionFailed");
            }
            _ => {}
        }
        let tag = tag_of(&request.body);
        self.objects.insert(key.to_owned(), request.body.clone());
        Reply::new(200, "").with("etag", tag)
    }

    fn get(&self, key: &str, request: &Request) -> Reply {
        let Some(found) = self.objects.get(key) else {
            return Reply::error(404, "NoSuchKey");
        };
        let total = found.len();
        let mut reply = Reply::new(200, found.clone());
        if let Some(range) = request.header("range") {
            let bounds = range.trim_start_matches("bytes=").split_once('-');
            let (from, to) = bounds.unwrap_or(("0", ""));
            let from: usize = from.parse().unwrap_or(0);
            let last: usize = to.parse().unwrap_or(usize::MAX).min(total.max(1) - 1);
            if from >= total {
                return Reply::error(416, "InvalidRange");
            }
            reply = Reply::new(206, &found[from..=last])
                .with("content-range", format!("bytes {from}-{last}/{total}"));
        }
        let mut reply = reply
            .with("etag", tag_of(found))
            .with("last-modified", "Wed, 01 Jan 2020 00:00:00 GMT");
        if request.method == "HEAD" {
            reply.said_length = Some(total as u64);
            reply.body.clear();
        }
        reply
    }

    fn list(&self, request: &Request) -> Reply {
        let prefix = request.query("prefix").unwrap_or_default();
        let token = request.query("continuation-token");
        let after = token.or_else(|| request.query("start-after"));
        let after = after.unwrap_or_default();
        let max = request.query("max-keys").and_then(|n| n.parse().ok());
        let max: usize = max.unwrap_or(1000);
        let mut rows = self
            .objects
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) && **key > after);
        let page: Vec<_> = rows.by_ref().take(max).collect();
        let mut text = "<ListBucketResult><Name>b</Name>".to_owned();
        if let (Some(_), Some((last, _))) = (rows.next(), page.last()) {
            text += &format!(
                "<NextContinuationToken>{}</NextContinuationToken>",
                escape(last)
            );
        }
        for (key, data) in page {
            let (key, tag, size) = (escape(key), escape(&tag_of(data)), data.len());
            text += &format!(
                "<Contents><Key>{key}</Key><LastModified>{LONG_AGO}</LastModified>\
                 <ETag>{tag}</ETag><Size>{size}</Size></Contents>"
            );
        }
        Reply::new(200, text + "</ListBucketResult>")
    }

    fn list_uploads(&self, request: &Request) -> Reply {
        let prefix = request.query("prefix").unwrap_or_default();
        let mut text = "<ListMultipartUploadsResult>".to_owned();
        let uploads = self.uploads.iter();
        for (id, upload) in uploads.filter(|(_, upload)| upload.key.starts_with(&prefix)) {
            let (key, begun) = (escape(&upload.key), &upload.begun);
            text += &format!(
                "<Upload><Key>{key}</Key><UploadId>{id}</UploadId>\
                 <Initiated>{begun}</Initiated></Upload>"
            );
        }
        Reply::new(200, text + "</ListMultipartUploadsResult>")
    }

    fn begin(&mut self, key: &str, begun: &str) -> String {
        self.next_upload += 1;
        let id = format!("upload-{}", self.next_upload);
        let upload = Parts {
            key: key.to_owned(),
            begun: begun.to_owned(),
            parts: BTreeMap::new(),
        };
        self.uploads.insert(id.clone(), upload);
        id
    }

    fn put_part(&mut self, request: &Request, id: &str) -> Reply {
        let Some(upload) = self.uploads.get_mut(id) else {
            return Reply::error(404, "NoSuchUpload");
        };
        let number = request.query("partNumber").and_then(|n| n.parse().ok());
        let Some(number) = number else {
            return Reply::error(400, "InvalidArgument");
        };
        upload.parts.insert(number, request.body.clone());
        Reply::new(200, "").with("etag", tag_of(&request.body))
    }

    fn complete(&mut self, key: &str, id: &str) -> Reply {
        let Some(upload) = self.uploads.remove(id) else {
            return Reply::error(404, "NoSuchUpload");
        };
        let last = upload.parts.keys().next_back().copied();
        let mut parts = upload.parts.iter();
        if parts.any(|(n, part)| Some(*n) != last && part.len() < PART_BYTES_MIN) {
            return Reply::error(400, "EntityTooSmall");
        }
        let whole: Vec<u8> = upload.parts.into_values().flatten().collect();
        let tag = escape(&tag_of(&whole));
        self.objects.insert(key.to_owned(), whole);
        Reply::new(
            200,
            format!(
                "<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>\
                 <ETag>{tag}</ETag></CompleteMultipartUploadResult>"
            ),
        )
    }
}

fn tag_of(data: &[u8]) -> String {
    let hash = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("\"{hash:016x}{:08x}\"", data.len())
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
