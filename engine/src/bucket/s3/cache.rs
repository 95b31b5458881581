//! Cache: pieces of packs on the local disk, so that reading them again asks nobody else.
//!
//! ```text
//!  <digest of key and piece size, 32 hex>-<number>.piece:  magic | checksum | bytes
//! ```
//!
//! **Invariants**
//! - Pieces are of objects that never change: those named by their content.
//! - A piece is used only if its checksum, which covers its name too, is right; a damaged one is fetched anew.
//! - The pieces together hold no more than the bound; those not used for longest go first.
//! - Everything in the folder may be deleted at any time: it is nowhere the only copy.
//!
//! **Not here**: which bytes to fetch (`ranges`).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::env::random_u64;

const MAGIC: [u8; 8] = *b"SLPIECE1";
/// Magic and checksum.
const HEADER_BYTES: usize = 12;
const SUFFIX: &str = ".piece";
/// Smallest and largest piece.
const PIECE_BYTES: (u64, u64) = (64 << 10, 1 << 20);
/// As many pieces as the bound should have room for.
const PIECES_WANTED: u64 = 512;

/// Name of a piece: which object, which of its pieces.
pub(super) type Piece = ([u8; 16], u64);

#[derive(Default)]
struct Index {
    /// Length of the file, and when it was last used.
    pieces: BTreeMap<Piece, (u64, u64)>,
    by_use: BTreeMap<u64, Piece>,
    bytes: u64,
    clock: u64,
}

impl Index {
    fn touch(&mut self, piece: Piece) -> bool {
        let Some((_, used)) = self.pieces.get_mut(&piece) else {
            return false;
        };
        self.by_use.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.by_use.insert(self.clock, piece);
        true
    }

    fn insert(&mut self, piece: Piece, bytes: u64) {
        self.remove(piece);
        self.clock += 1;
        self.pieces.insert(piece, (bytes, self.clock));
        self.by_use.insert(self.clock, piece);
        self.bytes += bytes;
    }

    fn remove(&mut self, piece: Piece) {
        if let Some((bytes, used)) = self.pieces.remove(&piece) {
            self.by_use.remove(&used);
            self.bytes -= bytes;
        }
    }
}

/// The pieces in one folder.
pub(super) struct Cache {
    dir: PathBuf,
    bytes_max: u64,
    piece_bytes: u64,
    index: Mutex<Index>,
}

impl Cache {
    /// Opens the folder `dir`, made if absent, with what it holds; cuts it to `bytes_max`.
    pub(super) fn open(dir: &Path, bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let mut found: Vec<(SystemTime, Piece, u64)> = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let Ok(meta) = entry.metadata() else { continue };
            match entry.file_name().to_str().and_then(parse_name) {
                Some(piece) if meta.is_file() => {
                    found.push((
                        meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                        piece,
                        meta.len(),
                    ));
                }
                // In the making when the process ended.
                _ if meta.is_file() => fs::remove_file(entry.path())?,
                _ => {}
            }
        }
        found.sort_unstable();
        let mut index = Index::default();
        for (_, piece, bytes) in found {
            index.insert(piece, bytes);
        }
        let cache = Self {
            dir: dir.to_owned(),
            bytes_max,
            piece_bytes: (bytes_max / PIECES_WANTED).clamp(PIECE_BYTES.0, PIECE_BYTES.1),
            index: Mutex::new(index),
        };
        cache.shrink_to(bytes_max);
        Ok(cache)
    }

    /// Length of every piece but an object's last.
    pub(super) fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        self.index().bytes
    }

    /// What pieces of `key` are called.
    pub(super) fn object(&self, key: &str) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(self.piece_bytes.to_le_bytes());
        hash.update(key.as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let mut name = [0; 16];
        name.copy_from_slice(&digest[..16]);
        name
    }

    /// Whether a piece is there, whole or not.
    pub(super) fn has(&self, piece: Piece) -> bool {
        self.index().pieces.contains_key(&piece)
    }

    /// The bytes of a piece; `None` if it is not there, or damaged.
    pub(super) fn get(&self, piece: Piece) -> Option<Vec<u8>> {
        if !self.index().touch(piece) {
            return None;
        }
        let path = self.path(piece);
        let mut bytes = fs::read(&path).unwrap_or_default();
        if !is_whole(piece, &bytes) {
            self.index().remove(piece);
            let _ = fs::remove_file(path);
            return None;
        }
        bytes.drain(..HEADER_BYTES);
        Some(bytes)
    }

    /// Keeps the bytes of a piece, if there is room on the disk.
    pub(super) fn put(&self, piece: Piece, data: &[u8]) {
        let bytes = (HEADER_BYTES + data.len()) as u64;
        if bytes > self.bytes_max {
            return;
        }
        self.shrink_to(self.bytes_max - bytes);
        let temp = self.dir.join(format!("{:016x}.tmp", random_u64()));
        let mut file = Vec::with_capacity(HEADER_BYTES + data.len());
        file.extend_from_slice(&MAGIC);
        file.extend_from_slice(&checksum(piece, data).to_le_bytes());
        file.extend_from_slice(data);
        let written = fs::write(&temp, &file).or_else(|error| match error.kind() {
            // Whoever cleared the cache took the folder, too.
            io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.dir)?;
                fs::write(&temp, &file)
            }
            _ => Err(error),
        });
        match written.and_then(|()| fs::rename(&temp, self.path(piece))) {
            Ok(()) => {
                self.index().insert(piece, bytes);
                // Others may have put theirs meanwhile.
                self.shrink_to(self.bytes_max);
            }
            Err(_) => {
                let _ = fs::remove_file(&temp);
            }
        }
    }

    /// Gives all space back to the disk.
    pub(super) fn clear(&self) {
        self.shrink_to(0);
    }

    fn shrink_to(&self, bytes_max: u64) {
        loop {
            let oldest = {
                let mut index = self.index();
                if index.bytes <= bytes_max {
                    return;
                }
                let Some((_, piece)) = index.by_use.first_key_value() else {
                    return;
                };
                let piece = *piece;
                index.remove(piece);
                piece
            };
            let _ = fs::remove_file(self.path(oldest));
        }
    }

    fn path(&self, (object, number): Piece) -> PathBuf {
        let mut name = String::new();
        for byte in object {
            use std::fmt::Write as _;
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        self.dir.join(format!("{name}-{number}{SUFFIX}"))
    }

    fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        // Between any two of its operations the index is whole.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse_name(name: &str) -> Option<Piece> {
    let (object, number) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    if object.len() != 32 || !object.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(object.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some((bytes, number.parse().ok()?))
}

fn checksum((object, number): Piece, data: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&object);
    let sum = crc32c::crc32c_append(sum, &number.to_le_bytes());
    crc32c::crc32c_append(sum, data)
}

fn is_whole(piece: Piece, file: &[u8]) -> bool {
    let Some((header, data)) = file.split_at_checked(HEADER_BYTES) else {
        return false;
    };
    header[..8] == MAGIC && header[8..] == checksum(piece, data).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(cache: &Cache, key: &str, number: u64) -> Piece {
        (cache.object(key), number)
    }

    #[test]
    fn cache_gives_back_what_was_put_also_after_opening_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), 1 << 20).unwrap();
        let (a, b) = (piece(&cache, "a", 0), piece(&cache, "a", 1));
        assert_eq!(cache.get(a), None);
        cache.put(a, b"hello");
        assert_eq!(cache.get(a).unwrap(), b"hello");
        assert_eq!(cache.get(b), None);
        fs::write(dir.path().join("0123.tmp"), b"half").unwrap();
        drop(cache);
        let cache = Cache::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(cache.get(a).unwrap(), b"hello");
        assert_eq!(cache.bytes(), 5 + HEADER_BYTES as u64);
        assert!(!dir.path().join("0123.tmp").exists());
    }

    #[test]
    fn cache_damage_anywhere_is_a_miss() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), 1 << 20).unwrap();
        let a = piece(&cache, "a", 3);
        cache.put(a, b"hello");
        let whole = fs::read(cache.path(a)).unwrap();
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            fs::write(cache.path(a), &bad).unwrap();
            assert_eq!(cache.get(a), None, "byte {at}");
            assert!(!cache.path(a).exists());
            cache.put(a, b"hello");
        }
        // Cut short; another piece's file; gone.
        fs::write(cache.path(a), &whole[..7]).unwrap();
        assert_eq!(cache.get(a), None);
        let b = piece(&cache, "b", 3);
        cache.put(b, b"other");
        fs::write(cache.path(b), &whole).unwrap();
        assert_eq!(cache.get(b), None);
        cache.put(a, b"hello");
        fs::remove_dir_all(dir.path()).unwrap();
        assert_eq!(cache.get(a), None);
        cache.put(a, b"hello");
        assert_eq!(cache.get(a).unwrap(), b"hello");
    }

    #[test]
    fn cache_keeps_its_bound_and_lets_the_unused_go() {
        let dir = tempfile::tempdir().unwrap();
        let room = 3 * (100 + HEADER_BYTES as u64);
        let cache = Cache::open(dir.path(), room).unwrap();
        let of = |n| piece(&cache, "k", n);
        for n in 0..3 {
            cache.put(of(n), &[n as u8; 100]);
        }
        cache.get(of(0)).unwrap();
        cache.put(of(3), &[3; 100]);
        assert_eq!(cache.get(of(1)), None, "the one not used for longest");
        assert!(cache.get(of(0)).is_some() && cache.get(of(2)).is_some());
        let on_disk = || {
            let files = fs::read_dir(dir.path()).unwrap();
            files
                .map(|f| f.unwrap().metadata().unwrap().len())
                .sum::<u64>()
        };
        assert!(on_disk() <= room && on_disk() == cache.bytes());
        cache.put(of(9), &[0; 1000]);
        assert_eq!(cache.get(of(9)), None, "larger than everything");
        drop(cache);
        let cache = Cache::open(dir.path(), room / 3).unwrap();
        assert!(cache.bytes() <= room / 3 && on_disk() == cache.bytes());
        cache.clear();
        assert_eq!((cache.bytes(), on_disk()), (0, 0));
    }
}
