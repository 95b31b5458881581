//! Fork: PUT with `Stream-Forked-From`: a stream that goes on from another, which is not copied.
//!
//! **Invariants**
//! - A fork has its source's content type; its lifetime, where none is asked for, is the source's, with a time
//!   of its own.
//! - Offsets are the source's: the fork's own messages go on where what it inherits ends.
//! - What a sub-offset cuts off a message, and the body, become durable with the fork or not at all.
//!
//! **Not here**: what keeps the source's messages (the engine's pins).

use sealog_engine::{FeedInfo, ForkRequest, Made, MakeRequest, ReadFrom, ReadRequest};
use sealog_frame::FrameView;
use serde::{Deserialize, Serialize};

use super::append::messages;
use super::offset::{self, Offset};
use super::traits::is_same_type;
use super::{Call, ROOT, Refused, Traits, name_of, names};

/// Which fork is asked for.
pub(super) struct Asked {
    /// Name of the source.
    source: String,
    /// Where it is to begin, if that was said; else at the source's tail.
    offset: Option<u64>,
    /// How much of what lies behind it inherits: messages of a JSON stream, else bytes.
    sub_offset: u64,
    /// Whether a lifetime is asked for.
    mortal: bool,
    /// Whether a content type is.
    typed: bool,
}

/// As a fork's traits keep what was asked for; the source is the feed's base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    /// Where it begins.
    offset: u64,
    /// How much it inherits of what lies behind.
    #[serde(default, skip_serializing_if = "is_zero")]
    sub_offset: u64,
    /// That was the source's tail, and not said.
    #[serde(default, skip_serializing_if = "is_false")]
    at_tail: bool,
    /// Its lifetime is the source's.
    #[serde(default, skip_serializing_if = "is_false")]
    inherits: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives references")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Where a fork's own messages begin, and the part of a message that comes before them.
struct Cut {
    at: u64,
    prefix: Vec<u8>,
}

impl Asked {
    /// Whether `info` is the fork that is asked for, its content type and lifetime aside.
    fn is_like(&self, info: &FeedInfo, traits: &Traits) -> bool {
        let (Some(base), Some(origin)) = (&info.base, &traits.fork) else {
            return false;
        };
        let same_offset = match self.offset {
            Some(offset) => offset == origin.offset,
            None => origin.at_tail,
        };
        *base.name == *self.source && same_offset && self.sub_offset == origin.sub_offset
    }

    /// What is asked for, with what it would inherit from a stream that may be this very fork.
    fn resolve(&self, asked: &Traits, from: &Traits) -> Traits {
        let mut traits = asked.clone();
        if !self.typed {
            traits.content_type.clone_from(&from.content_type);
        }
        if !self.mortal {
            (traits.ttl_s, traits.expires_at) = (from.ttl_s, from.expires_at.clone());
        }
        traits
    }
}

/// Whether a stream that is there is what is asked for.
pub(super) fn is_same(
    (info, traits): (&FeedInfo, &Traits),
    asked: &Traits,
    fork: Option<&Asked>,
) -> bool {
    let Some(fork) = fork else {
        return info.base.is_none() && traits.is_like(asked);
    };
    let inherits = traits.fork.as_ref().is_some_and(|origin| origin.inherits);
    fork.is_like(info, traits)
        && (fork.mortal || inherits)
        && traits.is_like(&fork.resolve(asked, traits))
}

impl Call {
    /// The fork that the request asks for, if it does.
    pub(super) fn asked_fork(&self) -> Result<Option<Asked>, Refused> {
        let sub_offset = self
            .header(&names::STREAM_FORK_SUB_OFFSET)?
            .map(number)
            .transpose()?;
        let begin = self
            .header(&names::STREAM_FORK_OFFSET)?
            .map(beginning)
            .transpose()?;
        let Some(path) = self.header(&names::STREAM_FORKED_FROM)? else {
            return match sub_offset.or(begin) {
                Some(_) => Err(Refused::bad("Stream-Forked-From is missing")),
                None => Ok(None),
            };
        };
        let sub_offset = sub_offset.unwrap_or(0);
        if sub_offset > 0 && begin.is_none() {
            return Err(Refused::bad(
                "a sub-offset counts from Stream-Fork-Offset, which is missing",
            ));
        }
        let Some(name) = path.strip_prefix(ROOT) else {
            let text = format!("Stream-Forked-From {path:?} is no path below {ROOT}");
            return Err(Refused::bad(&text));
        };
        let has = |name| self.head.headers.contains_key(name);
        Ok(Some(Asked {
            source: name_of(name)?,
            offset: begin,
            sub_offset,
            mortal: has("stream-ttl") || has("stream-expires-at"),
            typed: has("content-type"),
        }))
    }

    /// Makes a fork that is not there, with `body` behind what it inherits.
    pub(super) async fn fork(
        &self,
        fork: &Asked,
        asked: &Traits,
        closed: bool,
        body: &[u8],
    ) -> Result<Made, Refused> {
        let found = self.stream_named(&fork.source).await?;
        let missing = || Refused::new(hyper::StatusCode::NOT_FOUND, "no such stream to fork");
        let (source, source_traits) = found.ok_or_else(missing)?;
        let mut traits = fork.resolve(asked, &source_traits);
        if !is_same_type(&traits.content_type, &source_traits.content_type) {
            return Err(Refused::conflict(format!(
                "Content-Type {} is not the source's, {}",
                traits.content_type, source_traits.content_type
            )));
        }
        let offset = fork.offset.unwrap_or(source.next_sequence);
        if offset > source.next_sequence {
            return Err(Refused::bad(
                "Stream-Fork-Offset is beyond the source's tail",
            ));
        }
        let cut = self
            .cut(&source, &source_traits, offset, fork.sub_offset)
            .await?;
        let mut all = messages(body, traits.is_json(), true)?;
        if !cut.prefix.is_empty() {
            all.insert(0, &cut.prefix);
        }
        let batch = match all.is_empty() {
            true => None,
            false => Some(self.batch(&all, None)?),
        };
        traits.fork = Some(Origin {
            offset,
            sub_offset: fork.sub_offset,
            at_tail: fork.offset.is_none(),
            inherits: !fork.mortal,
        });
        let request = ForkRequest {
            source: source.name,
            source_id: Some(source.id),
            at: Some(cut.at),
            make: MakeRequest {
                options: traits.options(),
                batch,
                closed,
            },
        };
        let handle = self.service.side.handle();
        Ok(handle.fork_feed(&self.name, request).await?)
    }

    /// Where a fork's own messages begin that inherits `sub_offset` of what lies at `offset`.
    async fn cut(
        &self,
        source: &FeedInfo,
        traits: &Traits,
        offset: u64,
        sub_offset: u64,
    ) -> Result<Cut, Refused> {
        let mut cut = Cut {
            at: offset,
            prefix: Vec::new(),
        };
        if sub_offset == 0 {
            return Ok(cut);
        }
        let request = ReadRequest {
            id: Some(source.id),
            from: ReadFrom::Sequence(offset),
            bytes_max: 1,
            ..ReadRequest::new(&*source.name)
        };
        let chunk = self.service.side.handle().read(request).await?;
        let beyond = || Refused::bad("Stream-Fork-Sub-Offset is beyond what lies at the offset");
        let (frame, _) = FrameView::split_trusted(&chunk.frames).map_err(|_| beyond())?;
        let at = frame.records().find(|record| record.sequence >= offset);
        let record = at.filter(|at| at.sequence == offset).ok_or_else(beyond)?;
        if traits.is_json() {
            let left = frame.end_sequence() - offset;
            cut.at += Some(sub_offset).filter(|n| *n <= left).ok_or_else(beyond)?;
            return Ok(cut);
        }
        let taken = usize::try_from(sub_offset).ok();
        let taken = taken.and_then(|taken| record.payload.get(..taken));
        match taken.ok_or_else(beyond)? {
            whole if whole.len() == record.payload.len() => cut.at += 1,
            part => cut.prefix = part.to_vec(),
        }
        Ok(cut)
    }
}

fn number(text: &str) -> Result<u64, Refused> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let leading = text.len() > 1 && text.starts_with('0');
    let value = text.parse().ok().filter(|_| plain && !leading);
    value.ok_or_else(|| Refused::bad(&format!("Stream-Fork-Sub-Offset {text:?} is no number")))
}

fn beginning(text: &str) -> Result<u64, Refused> {
    match offset::parse(text)? {
        Offset::At(sequence) => Ok(sequence),
        Offset::Beyond => Err(Refused::bad(
            "Stream-Fork-Offset is beyond the source's tail",
        )),
        Offset::Now => Err(Refused::bad(
            "Stream-Fork-Offset is an offset; without it a fork begins at the tail",
        )),
    }
}
