//! Append: POST: messages for a stream, its closing, or both.
//!
//! **Invariants**
//! - What is refused has no effects; a producer's sequence moves only with its data.
//! - A duplicate is told before anything else that would refuse it.

use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, EXPECT};
use hyper::{Response, StatusCode};
use sealog_engine::append::AppendResult;
use sealog_engine::{CloseRequest, Error, FeedInfo, OrderKey};
use sealog_frame::{Batch, BatchBuilder, Record};
use serde_json::value::RawValue;

use super::traits::is_same_type;
use super::{Answered, Call, Refused, empty, names, no_such_stream, offset, put};
use crate::http::Body;
use crate::http::intake::{self, Taken};

/// Largest number of a producer: what JavaScript counts exactly.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// Who sends, and which of its requests it is.
pub(super) struct Producer {
    id: String,
    epoch: u64,
    sequence: u64,
}

impl Producer {
    /// As the closing of a feed keeps it.
    fn note(&self) -> Box<[u8]> {
        let note = serde_json::json!([self.id, self.epoch, self.sequence]);
        note.to_string().into_bytes().into()
    }
}

/// Takes a body apart: JSON values of an array one level deep, or all of it.
pub(super) fn messages(body: &[u8], json: bool, creating: bool) -> Result<Vec<&[u8]>, Refused> {
    if body.is_empty() {
        return Ok(Vec::new());
    }
    if !json {
        return Ok(vec![body]);
    }
    let bad = |error: serde_json::Error| Refused::bad(&format!("the body is not JSON: {error}"));
    let is_array = body.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[');
    let values: Vec<&RawValue> = match is_array {
        true => serde_json::from_slice(body).map_err(bad)?,
        false => vec![serde_json::from_slice(body).map_err(bad)?],
    };
    if values.is_empty() && !creating {
        return Err(Refused::bad("an empty array appends nothing"));
    }
    Ok(values.into_iter().map(|v| v.get().as_bytes()).collect())
}

impl Call {
    pub(super) async fn append(&self, body: &mut Incoming) -> Answered {
        let answered = self.append_now(body).await;
        self.settled(answered).await
    }

    async fn append_now(&self, body: &mut Incoming) -> Answered {
        let found = self.stream_now().await?;
        let (info, traits) = found.ok_or_else(no_such_stream)?;
        let closes = self.says(&names::STREAM_CLOSED);
        let producer = self.producer()?;
        let body = self.collect(body).await?;
        self.lifetimes().touch(&info, &traits);
        if body.is_empty() && !closes {
            return Err(Refused::bad("an empty body appends nothing"));
        }
        if info.closed.is_some() {
            self.service.side.settle(&self.name).await?;
            return on_closed(&info, producer.as_ref(), body.is_empty());
        }
        if !body.is_empty() {
            let content_type = self.header(&CONTENT_TYPE)?;
            let content_type = content_type.filter(|given| !given.is_empty());
            let Some(content_type) = content_type else {
                return Err(Refused::bad("Content-Type is missing"));
            };
            if !is_same_type(content_type, &traits.content_type) {
                return Err(Refused::conflict(format!(
                    "Content-Type {content_type} is not the stream's, {}",
                    traits.content_type
                )));
            }
        }
        let messages = messages(&body, traits.is_json(), false)?;
        let batch = match messages.is_empty() {
            true => None,
            false => Some(self.batch(&messages, producer.as_ref())?),
        };
        let close_only = body.is_empty();
        let _place = body.release();
        let order = self.order()?;
        match self
            .write(&info, producer.as_ref(), (batch, order), closes)
            .await
        {
            // It was closed meanwhile.
            Err(Error::FeedClosed { .. }) => {
                let (info, _) = self.known_stream().await?;
                on_closed(&info, producer.as_ref(), close_only)
            }
            done => self.answer_append(done?, producer.as_ref()).await,
        }
    }

    /// `Stream-Seq`, if there is one.
    fn order(&self) -> Result<Option<OrderKey>, Refused> {
        let key = self.header(&names::STREAM_SEQ)?;
        let key = key.map(|key| OrderKey::new(key.as_bytes())).transpose();
        key.map_err(|error| Refused::bad(&format!("Stream-Seq: {error}")))
    }

    async fn write(
        &self,
        info: &FeedInfo,
        producer: Option<&Producer>,
        (batch, order): (Option<Batch>, Option<OrderKey>),
        closes: bool,
    ) -> Result<Written, Error> {
        let side = &self.service.side;
        let batch = match batch {
            Some(batch) if !closes => {
                let appended = side.append((&self.name, info.id), batch, order).await?;
                return Ok(Written {
                    appended: Some(appended),
                    next: appended.last + 1,
                    duplicate: appended.duplicate,
                    closed: false,
                });
            }
            batch => batch,
        };
        let request = CloseRequest {
            producer: match (&batch, producer) {
                (None, Some(by)) => Some((by.id.clone().into_bytes(), by.epoch, by.sequence)),
                _ => None,
            },
            batch,
            order,
            token: None,
            note: producer.map(Producer::note).unwrap_or_default(),
        };
        let done = side
            .handle()
            .close_feed(&self.name, Some(info.id), request)
            .await?;
        Ok(Written {
            appended: done.appended,
            next: done.next_sequence,
            duplicate: !done.now,
            closed: done.closing.is_some(),
        })
    }

    async fn answer_append(&self, done: Written, producer: Option<&Producer>) -> Answered {
        let fresh = producer.is_some() && !done.duplicate && done.appended.is_some();
        let mut response = empty(match fresh {
            true => StatusCode::OK,
            false => StatusCode::NO_CONTENT,
        });
        let next = match done.duplicate {
            // The original's end is behind; what counts is where the stream ends.
            true => self.known_stream().await?.0.next_sequence,
            false => done.next,
        };
        put(
            &mut response,
            names::STREAM_NEXT_OFFSET,
            &offset::format(next),
        );
        if done.closed {
            put(&mut response, names::STREAM_CLOSED, "true");
        }
        if let Some(producer) = producer {
            let highest = done.appended.and_then(|a| a.producer_sequence);
            put_producer(
                &mut response,
                producer.epoch,
                highest.unwrap_or(producer.sequence),
            );
        }
        Ok(response)
    }

    /// The whole body, if it is within what a record may be.
    pub(super) async fn collect(&self, body: &mut Incoming) -> Result<Taken, Refused> {
        let side = &self.service.side;
        let most = side.handle().frame_limits().record_bytes_max;
        let waits = self.head.headers.contains_key(EXPECT);
        let taken = intake::take(body, (most, waits), (side, &self.service.receiving)).await;
        taken.map_err(|why| {
            let (status, text) = why.told(most);
            Refused::new(status, text).with(CONNECTION, "close")
        })
    }

    pub(super) fn batch(
        &self,
        messages: &[&[u8]],
        producer: Option<&Producer>,
    ) -> Result<Batch, Refused> {
        let over = |error: sealog_frame::FrameError| {
            Refused::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
        };
        let mut builder = BatchBuilder::new(self.service.side.handle().frame_limits());
        for message in messages {
            builder.push(&Record::of(message)).map_err(over)?;
        }
        if let Some(by) = producer {
            let made = builder.producer(by.id.as_bytes(), by.epoch, by.sequence);
            made.map_err(|error| Refused::bad(&error.to_string()))?;
        }
        builder.build().map_err(over)
    }

    /// All three of a producer's headers, or none.
    fn producer(&self) -> Result<Option<Producer>, Refused> {
        let id = self.header(&names::PRODUCER_ID)?;
        let epoch = self.header(&names::PRODUCER_EPOCH)?;
        let sequence = self.header(&names::PRODUCER_SEQ)?;
        match (id, epoch, sequence) {
            (None, None, None) => Ok(None),
            (Some(""), ..) => Err(Refused::bad("Producer-Id is empty")),
            (Some(id), Some(epoch), Some(sequence)) => Ok(Some(Producer {
                id: id.to_owned(),
                epoch: number("Producer-Epoch", epoch)?,
                sequence: number("Producer-Seq", sequence)?,
            })),
            _ => Err(Refused::bad(
                "Producer-Id, Producer-Epoch and Producer-Seq come together",
            )),
        }
    }
}

/// What a write came to.
struct Written {
    appended: Option<AppendResult>,
    next: u64,
    duplicate: bool,
    closed: bool,
}

fn number(name: &str, text: &str) -> Result<u64, Refused> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let value = text.parse().ok().filter(|n| plain && *n <= NUMBER_MAX);
    let bad = || format!("{name} {text:?} is no whole number up to {NUMBER_MAX}");
    value.ok_or_else(|| Refused::bad(&bad()))
}

fn put_producer(response: &mut Response<Body>, epoch: u64, sequence: u64) {
    put(response, names::PRODUCER_EPOCH, &epoch.to_string());
    put(response, names::PRODUCER_SEQ, &sequence.to_string());
}

/// What a stream that is closed answers.
fn on_closed(info: &FeedInfo, producer: Option<&Producer>, close_only: bool) -> Answered {
    let next = offset::format(info.next_sequence);
    let by = info.closed.as_ref().map(|closing| &*closing.note);
    let same = match producer {
        Some(producer) => by == Some(&*producer.note()),
        None => close_only,
    };
    if !same {
        return Err(Refused::conflict("the stream is closed")
            .with(names::STREAM_CLOSED, "true")
            .with(names::STREAM_NEXT_OFFSET, next));
    }
    let mut response = empty(StatusCode::NO_CONTENT);
    put(&mut response, names::STREAM_NEXT_OFFSET, &next);
    put(&mut response, names::STREAM_CLOSED, "true");
    if let Some(producer) = producer {
        put_producer(&mut response, producer.epoch, producer.sequence);
    }
    Ok(response)
}
