//! Image: what a process kill leaves of a data directory, and the places in it to damage.
//!
//! **Invariants**
//! - An image is a copy: damaging it never touches the store it came from.
//! - Places are found through the formats' own headers, never through file names.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sealog_engine::wal::group::{FLAG_MARKER, GROUP_HEADER_BYTES, GroupHeader};
use sealog_engine::wal::segment::SegmentHeader;
use sha2::{Digest, Sha256};

/// Copies a tree of files and folders. Of a store that runs, and has no group in flight, the copy is
/// what a kill at this moment leaves.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// A copy of `dir` in a directory of its own.
pub fn image(dir: &Path) -> tempfile::TempDir {
    let copy = super::quick();
    copy_tree(dir, copy.path());
    copy
}

/// Every file below `dir` with length and digest, and every folder. The lock file is left out: it
/// says who holds the directory, and is no data.
pub fn tree(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    walk(dir, dir, &mut found);
    found
}

fn walk(root: &Path, dir: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap().to_owned();
        if entry.file_type().unwrap().is_dir() {
            found.insert(name, "folder".to_owned());
            walk(root, &path, found);
        } else if name != Path::new(sealog_engine::env::LOCK_FILE) {
            let bytes = fs::read(&path).unwrap();
            let digest = Sha256::digest(&bytes);
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            found.insert(name, format!("{} {hex}", bytes.len()));
        }
    }
}

/// Files below `dir` for which `wanted` holds, in order of their paths.
pub fn files(dir: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let paths = tree(dir).into_iter().filter(|(_, kind)| kind != "folder");
    let named = paths.filter(|(path, _)| wanted(&path.to_string_lossy()));
    named.map(|(path, _)| dir.join(path)).collect()
}

/// A group as it lies in a segment file.
#[derive(Debug, Clone)]
pub struct GroupAt {
    pub path: PathBuf,
    /// Position in the file.
    pub position: u64,
    pub header: GroupHeader,
}

impl GroupAt {
    pub fn len(&self) -> u64 {
        u64::from(self.header.group_bytes)
    }

    pub fn end(&self) -> u64 {
        self.position + self.len()
    }

    pub fn is_marker(&self) -> bool {
        self.header.flags & FLAG_MARKER != 0
    }

    pub fn bytes(&self) -> Vec<u8> {
        read_at(&self.path, self.position, self.header.group_bytes as usize)
    }

    /// Writes back `bytes` of this group with checksums that fit them.
    pub fn write_sealed(&self, bytes: &mut [u8]) {
        let crc = crc32c::crc32c(&bytes[GROUP_HEADER_BYTES..]);
        bytes[52..56].copy_from_slice(&crc.to_le_bytes());
        bytes[12..16].fill(0);
        let crc = crc32c::crc32c(&bytes[..GROUP_HEADER_BYTES]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        write_at(&self.path, self.position, bytes);
    }
}

/// Segment files of a log by number.
pub fn segments(dir: &Path, log: u64) -> BTreeMap<u64, PathBuf> {
    let mut found = BTreeMap::new();
    for path in files(&dir.join("wal").join(log.to_string()), |name| {
        name.ends_with(".seg")
    }) {
        // A running store may just be making one.
        let bytes = fs::read(&path).unwrap();
        if let Ok(header) = SegmentHeader::decode(&bytes[..bytes.len().min(4096)]) {
            found.insert(header.number, path);
        }
    }
    found
}

/// The groups of an undamaged log, in log order.
pub fn groups(dir: &Path, log: u64) -> Vec<GroupAt> {
    let mut found = Vec::new();
    for (number, path) in segments(dir, log) {
        let bytes = fs::read(&path).unwrap();
        let mut position = 4096u64;
        while let Some(head) = bytes.get(position as usize..) {
            let Ok(header) = GroupHeader::decode(head) else {
                break;
            };
            if header.offset != number * bytes.len() as u64 + position {
                break;
            }
            let at = GroupAt {
                path: path.clone(),
                position,
                header,
            };
            position = at.end();
            found.push(at);
        }
    }
    found
}

/// Groups that hold entries.
pub fn data_groups(dir: &Path, log: u64) -> Vec<GroupAt> {
    groups(dir, log)
        .into_iter()
        .filter(|group| !group.is_marker())
        .collect()
}

pub fn read_at(path: &Path, position: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let file = fs::File::open(path).unwrap();
    file.read_exact_at(&mut bytes, position).unwrap();
    bytes
}

pub fn write_at(path: &Path, position: u64, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, position).unwrap();
}

pub fn flip_bit(path: &Path, position: u64, bit: u8) {
    let byte = read_at(path, position, 1)[0];
    write_at(path, position, &[byte ^ (1 << (bit % 8))]);
}

/// Cuts or grows a file.
pub fn set_len(path: &Path, len: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}
