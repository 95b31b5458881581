//! Log: every group of every live segment, from the oldest that a kept checkpoint needs to the end.
//!
//! **Invariants**
//! - WAL-1 to WAL-4 hold for every group, and WAL-3 chains them to the end that recovery found.
//! - Every batch is a whole frame of its own, not only under the group's checksum.
//! - FEED-4: the unpacked records of every unpublished stream are in the log, without gap.
//!
//! **Not here**: the verdict (`recovery`), which came before.

use std::collections::BTreeMap;

use sealog_frame::{FrameLimits, FrameView};

use super::{Check, LogVerified};
use crate::checkpoint::Root;
use crate::commit::CommitKind;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::feed::Feeds;
use crate::ids::{FeedId, StreamId};
use crate::recovery::{Examined, LogPlace};
use crate::wal::entry::Entry;
use crate::wal::reader::Group;
use crate::wal::scan::{Found, Link, Scanner};
use crate::wal::segment::Geometry;

impl<E: Env> Check<'_, E> {
    /// Walks the live segments of a log.
    pub(super) async fn log(
        &mut self,
        place: &LogPlace,
        examined: &Examined<E>,
        roots: &[Root],
    ) -> Result<()> {
        let geometry = place.geometry();
        let end = examined.report.end;
        let kept = &roots[roots.len().saturating_sub(2)..];
        let retain_from = kept.iter().map(|root| root.retain_from).min();
        let oldest = geometry.segment_of(retain_from.unwrap_or(end));
        let mut tails = Tails::new(&examined.loaded.feeds);
        let mut walk = Walk {
            found: &examined.found,
            geometry,
            verified: LogVerified {
                log: place.log,
                end,
                proven_end: examined.report.proven_end,
                clean: examined.report.clean,
                ..LogVerified::default()
            },
            segment: None,
        };
        let mut scanner = Scanner::new(&examined.found, geometry, place.log);
        let mut at = geometry.first_offset(oldest);
        let mut link: Option<Link> = None;
        while at < end {
            let Some(group) = scanner.next(at, link).await? else {
                let (path, position) = scanner.damage_at(at, link).await?;
                let detail = format!(
                    "no whole group at log offset {at}, the log ends at {end}; the log opens all the \
                     same: `admin accept-loss` writes it anew, and says whether any record is lost"
                );
                return Err(Error::corrupt(path.display(), position, detail));
            };
            if walk.group(&group, &mut tails)? {
                self.reading(walk.path_of(&group).display());
            }
            self.report.bytes += u64::from(group.header.group_bytes);
            at = group.header.end();
            link = Some(Link {
                crc: group.header.crc(),
                incarnation: group.header.incarnation,
            });
            self.env.yield_if_needed().await;
        }
        let known = link.is_none_or(|link| link.crc == examined.link.crc);
        if at > end && walk.verified.groups > 0 || !known {
            let (path, position) = examined
                .found
                .place(geometry.segment_of(end), geometry.position_of(end));
            let detail = format!("groups reach {at}, recovery found the end at {end}");
            return Err(Error::corrupt(path.display(), position, detail));
        }
        tails.finish(place)?;
        self.report.logs.push(walk.verified);
        Ok(())
    }
}

struct Walk<'a, E: Env> {
    found: &'a Found<E>,
    geometry: Geometry,
    verified: LogVerified,
    segment: Option<u64>,
}

impl<E: Env> Walk<'_, E> {
    fn path_of(&self, group: &Group) -> std::path::PathBuf {
        self.found
            .path(self.geometry.segment_of(group.header.offset))
    }

    /// Checks a group's content; `true` when it is the first of its segment.
    fn group(&mut self, group: &Group, tails: &mut Tails) -> Result<bool> {
        let offset = group.header.offset;
        let corrupt = |detail: String| {
            let position = self.geometry.position_of(offset);
            Error::corrupt(self.path_of(group).display(), position, detail)
        };
        let mut entries = 0;
        let mut batches = 0;
        for entry in group.entries() {
            let entry = entry.map_err(|error| corrupt(error.to_string()))?;
            entries += 1;
            let decoded = entry.decode().map_err(|error| corrupt(error.to_string()))?;
            let Entry::Batch(frame) = decoded else {
                continue;
            };
            let view = FrameView::parse(frame, &FrameLimits::DEFAULT)
                .map_err(|error| corrupt(format!("batch: {error}")))?;
            tails
                .batch((entry.feed, entry.stream), &view)
                .map_err(corrupt)?;
            batches += 1;
        }
        if entries != group.header.entries {
            let said = group.header.entries;
            return Err(corrupt(format!(
                "{entries} entries, the header says {said}"
            )));
        }
        let number = self.geometry.segment_of(offset);
        let first = self.segment != Some(number);
        self.segment = Some(number);
        self.verified.segments += u64::from(first);
        self.verified.groups += 1;
        self.verified.batches += batches;
        Ok(first)
    }
}

/// How far each stream's unpacked records were found: (next sequence, end).
struct Tails(BTreeMap<(FeedId, StreamId), (u64, u64)>);

impl Tails {
    fn new(feeds: &Feeds) -> Self {
        let streams = feeds
            .iter()
            .flat_map(|feed| feed.streams.iter().map(|stream| (feed.id, stream)));
        let unpacked = streams.filter(|(_, stream)| {
            let discarded = stream
                .seal
                .as_ref()
                .is_some_and(|seal| seal.kind == CommitKind::Discarded);
            !discarded && stream.packed_end() < stream.end
        });
        Self(
            unpacked
                .map(|(feed, stream)| ((feed, stream.id), (stream.packed_end(), stream.end)))
                .collect(),
        )
    }

    fn batch(
        &mut self,
        key: (FeedId, StreamId),
        view: &FrameView<'_>,
    ) -> std::result::Result<(), String> {
        let Some((next, end)) = self.0.get_mut(&key) else {
            return Ok(());
        };
        let (base, after) = (view.base_sequence(), view.end_sequence());
        if after <= *next || base >= *end {
            return Ok(());
        }
        if base != *next {
            return Err(format!(
                "records {next}..{base} of stream {} of feed id {} are missing",
                key.1, key.0
            ));
        }
        *next = after;
        Ok(())
    }

    fn finish(self, place: &LogPlace) -> Result<()> {
        let missing = self.0.into_iter().find(|(_, (next, end))| next != end);
        let Some(((feed, stream), (next, end))) = missing else {
            return Ok(());
        };
        let detail =
            format!("records {next}..{end} of stream {stream} of feed id {feed} are missing");
        Err(Error::corrupt(place.wal_dir().display(), 0, detail))
    }
}
