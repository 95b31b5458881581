//! Inspect: any file or object of ours as a tree to print: what it is is told by its first bytes, else by its name.
//!
//! **Invariants**
//! - Output is bounded: of everything that repeats, the first [`InspectOptions::items`] and how many more.
//! - Memory is one part of the file (one group, one block), but for chunks and manifests, read whole.
//! - Damage is an error that names the file and the byte; what came before it is not shown.
//!
//! **Not here**: whether files fit each other (`verify`).

mod log;
mod objects;
mod small;
mod state;
mod tree;

use std::path::Path;

pub use tree::Node;

#[cfg(feature = "s3")]
use crate::bucket::S3Options;
use crate::codec::DecodeError;
use crate::env::fs_ops::FileReader;
use crate::error::{Error, Result};

/// How much to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InspectOptions {
    /// Groups, entries, records, feeds, packs, keys: so many of each, at each place.
    pub items: usize,
    /// Bytes of a payload, key or message.
    pub preview_bytes: usize,
}

impl Default for InspectOptions {
    fn default() -> Self {
        Self {
            items: 20,
            preview_bytes: 64,
        }
    }
}

/// Longest file of the formats that are read whole.
const WHOLE_BYTES_MAX: u64 = 1 << 30;

/// Reads one file: a segment, checkpoint root or chunk, the marker, a pack, manifest, commit, key
/// index, a bare frame, a lock, a reserve, settings or a `feed.json`. Blocks. The file may be in use; a segment being written shows as it is.
///
/// # Errors
/// [`Error::Invalid`] naming a file that is none of ours; [`Error::Corrupt`] naming the file and the
/// byte; [`Error::NewerFormat`]; [`Error::Unusable`]; [`Error::Io`].
pub fn inspect(path: &Path, options: &InspectOptions) -> Result<Node> {
    let file = FileReader::open(path).map_err(|error| Error::io("open", path, &error))?;
    show(path, Source::File(file), options)
}

/// Reads one object of a store, whole: what [`inspect`] reads of a file. Blocks.
///
/// # Errors
/// As [`inspect`]; [`Error::Bucket`] if the store does not give it.
#[cfg(feature = "s3")]
pub fn inspect_object(store: &S3Options, key: &str, options: &InspectOptions) -> Result<Node> {
    store.validate()?;
    let bytes = crate::bucket::fetch(store, key)?;
    show(Path::new(key), Source::Object(bytes), options)
}

fn show(path: &Path, source: Source, options: &InspectOptions) -> Result<Node> {
    let input = Input {
        path: path.display().to_string(),
        source,
        options: *options,
    };
    let magic = input.bytes(0, 8)?;
    match &magic[..] {
        b"SLSEGMT1" => log::segment(&input),
        b"SLCKPT01" => state::root(&input),
        b"SLCHUNK1" => state::chunk(&input),
        b"SLFORMAT" => state::marker(&input),
        b"SEALPACK" => objects::pack(&input),
        b"SEALMANI" => objects::manifest(&input),
        b"SEALCOMT" => objects::commit(&input),
        b"SEALKEYS" => objects::key_index(&input),
        [b'S', b'L', b'F', b'1', ..] => log::bare_frame(&input),
        b"SLGROUP1" => log::bare_group(&input),
        _ => small::named(&input, path)?.ok_or_else(|| small::foreign(&input, &magic)),
    }
}

/// Where the bytes are.
enum Source {
    File(FileReader),
    #[cfg(feature = "s3")]
    Object(Vec<u8>),
}

/// A file being looked at.
struct Input {
    path: String,
    source: Source,
    options: InspectOptions,
}

impl Input {
    fn len(&self) -> u64 {
        match &self.source {
            Source::File(file) => file.len(),
            #[cfg(feature = "s3")]
            Source::Object(bytes) => bytes.len() as u64,
        }
    }

    /// `len` bytes at `offset`, fewer at the end of the file.
    fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        match &self.source {
            Source::File(file) => {
                let read = file.read_at(offset, len);
                read.map_err(|error| Error::io("read", Path::new(&self.path), &error))
            }
            #[cfg(feature = "s3")]
            Source::Object(bytes) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let rest = bytes.get(from..).unwrap_or_default();
                Ok(rest[..rest.len().min(len)].to_vec())
            }
        }
    }

    fn whole(&self) -> Result<Vec<u8>> {
        let len = self.len();
        if len > WHOLE_BYTES_MAX {
            let detail = format!("{len} bytes long, {WHOLE_BYTES_MAX} at most");
            return Err(Error::corrupt(&self.path, 0, detail));
        }
        self.bytes(0, usize::try_from(len).unwrap_or(usize::MAX))
    }

    fn range(&self, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let bytes = self.bytes(range.start, len)?;
        if bytes.len() == len {
            return Ok(bytes);
        }
        let at = range.start + bytes.len() as u64;
        Err(Error::corrupt(&self.path, at, "file ends early"))
    }

    /// The error of a decoder, with its place.
    fn at(&self, offset: u64) -> impl Fn(DecodeError) -> Error + '_ {
        move |error| Error::decode(&self.path, offset, error)
    }

    /// The first items as a list, and how many there are if that is more.
    fn list<T>(&self, items: impl ExactSizeIterator<Item = T>, show: impl Fn(T) -> Node) -> Node {
        let total = items.len();
        let mut shown: Vec<Node> = items.take(self.options.items).map(show).collect();
        if total > shown.len() {
            shown.push(Node::more(total - shown.len()));
        }
        Node::List(shown)
    }

    fn preview(&self, bytes: &[u8]) -> Node {
        Node::preview(bytes, self.options.preview_bytes)
    }
}
