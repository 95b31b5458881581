//! Small: files of ours without a magic number, known by their names: locks, reserves, settings, `feed.json`.
//!
//! **Not here**: what they are for (`env::lock`, `bucket`, `checkpoint`, `lane`).

use std::path::Path;

use super::tree::fields;
use super::{Input, Node};
use crate::datadir::SETTINGS_FILE;
use crate::env::LOCK_FILE;
use crate::error::{Error, Result};

/// Longest of the small files that are read.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// The file at `path` if its name is one of ours and its content fits the name.
pub(super) fn named(input: &Input, path: &Path) -> Result<Option<Node>> {
    let part =
        |part: Option<&std::ffi::OsStr>| part.and_then(|name| name.to_str().map(str::to_owned));
    let name = part(path.file_name()).unwrap_or_default();
    let folder = part(path.parent().and_then(Path::file_name)).unwrap_or_default();
    let empty = input.len() == 0;
    Ok(match name.as_str() {
        LOCK_FILE => lock(input)?,
        "OPEN" if folder == ".tmp" && empty => Some(fields! {
            format: "bucket lock",
            held: "shared, by every process that has the bucket open",
        }),
        "CAS" if folder == ".tmp" && empty => Some(fields! {
            format: "bucket lock",
            held: "alone, around compare-and-swap and delete",
        }),
        "reserve" | "reserve.pack" if input.bytes(0, 8)? == [0; 8] => Some(fields! {
            format: "reserve: space kept for a checkpoint or a pack",
            bytes: input.len(),
        }),
        name if name.ends_with(".seg") && input.bytes(0, 8)?.iter().all(|byte| *byte == 0) => {
            Some(fields! { format: "segment that is not in use yet", bytes: input.len() })
        }
        "feed.json" => feed(input)?,
        SETTINGS_FILE => {
            let bytes = input.bytes(0, SMALL_BYTES_MAX)?;
            let text = std::str::from_utf8(&bytes).unwrap_or_default();
            let lines: Vec<&str> = text.lines().filter(|line| line.contains(" = ")).collect();
            (!lines.is_empty()).then(|| {
                let lines = input.list(lines.into_iter(), Node::from);
                fields! { format: "settings of a data directory", settings: lines }
            })
        }
        _ => None,
    })
}

/// The refusal of a file that is none of ours.
pub(super) fn foreign(input: &Input, begin: &[u8]) -> Error {
    let text = match begin.is_empty() {
        true => "it is empty".to_owned(),
        false => format!("it begins with {:?}", String::from_utf8_lossy(begin)),
    };
    Error::Invalid(format!("{} is not a Sealog file: {text}", input.path))
}

fn lock(input: &Input) -> Result<Option<Node>> {
    let bytes = input.bytes(0, SMALL_BYTES_MAX)?;
    let text = String::from_utf8_lossy(&bytes);
    let value = |name: &str| {
        let values = text.lines().filter_map(|line| line.split_once('='));
        let mut named = values.filter(|(key, _)| *key == name);
        named.next().map(|(_, value)| value.to_owned())
    };
    if text.is_empty() {
        return Ok(Some(
            fields! { format: "directory lock", last_holder: "none named" },
        ));
    }
    let Some(pid) = value("pid").and_then(|pid| pid.parse::<u64>().ok()) else {
        return Ok(None);
    };
    Ok(Some(fields! {
        format: "directory lock",
        pid: pid,
        command: value("command").unwrap_or_default(),
        address: value("address").unwrap_or_default(),
    }))
}

fn feed(input: &Input) -> Result<Option<Node>> {
    let bytes = input.bytes(0, SMALL_BYTES_MAX)?;
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(&bytes) else {
        return Ok(None);
    };
    let number = |name: &str| json.get(name).and_then(serde_json::Value::as_u64);
    let flag = |name: &str| json.get(name).and_then(serde_json::Value::as_bool);
    let known = (
        number("format"),
        number("feed_id"),
        json.get("name").and_then(serde_json::Value::as_str),
    );
    let (Some(version), Some(id), Some(name)) = known else {
        return Ok(None);
    };
    Ok(Some(fields! {
        format: "feed",
        version: version,
        name: name,
        id: id,
        created_ms: number("created_ms").unwrap_or(0),
        keys: flag("keys").unwrap_or(false),
        exclusive: flag("exclusive").unwrap_or(false),
    }))
}
