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
    let input = Input {
        path: path.display().to_string(),
        file,
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

/// A file being looked at.
struct Input {
    path: String,
    file: FileReader,
    options: InspectOptions,
}

impl Input {
    fn len(&self) -> u64 {
        self.file.len()
    }

    /// `len` bytes at `offset`, fewer at the end of the file.
    fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let read = self.file.read_at(offset, len);
        read.map_err(|error| Error::io("read", Path::new(&self.path), &error))
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
