//! Names: the headers of the protocol, known when the program is built.
//!
//! **Invariants**
//! - A header's name is written here and nowhere else, but in the texts that list them for browsers.

use hyper::header::HeaderName;

/// `Cross-Origin-Resource-Policy`.
pub(super) const RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");
/// `Producer-Epoch`.
pub(super) const PRODUCER_EPOCH: HeaderName = HeaderName::from_static("producer-epoch");
/// `Producer-Expected-Seq`.
pub(super) const PRODUCER_EXPECTED_SEQ: HeaderName =
    HeaderName::from_static("producer-expected-seq");
/// `Producer-Id`.
pub(super) const PRODUCER_ID: HeaderName = HeaderName::from_static("producer-id");
/// `Producer-Received-Seq`.
pub(super) const PRODUCER_RECEIVED_SEQ: HeaderName =
    HeaderName::from_static("producer-received-seq");
/// `Producer-Seq`.
pub(super) const PRODUCER_SEQ: HeaderName = HeaderName::from_static("producer-seq");
/// `Stream-Closed`.
pub(super) const STREAM_CLOSED: HeaderName = HeaderName::from_static("stream-closed");
/// `Stream-Cursor`.
pub(super) const STREAM_CURSOR: HeaderName = HeaderName::from_static("stream-cursor");
/// `Stream-Expires-At`.
pub(super) const STREAM_EXPIRES_AT: HeaderName = HeaderName::from_static("stream-expires-at");
/// `Stream-Forked-From`.
pub(super) const STREAM_FORKED_FROM: HeaderName = HeaderName::from_static("stream-forked-from");
/// `Stream-Fork-Offset`.
pub(super) const STREAM_FORK_OFFSET: HeaderName = HeaderName::from_static("stream-fork-offset");
/// `Stream-Fork-Sub-Offset`.
pub(super) const STREAM_FORK_SUB_OFFSET: HeaderName =
    HeaderName::from_static("stream-fork-sub-offset");
/// `Stream-Next-Offset`.
pub(super) const STREAM_NEXT_OFFSET: HeaderName = HeaderName::from_static("stream-next-offset");
/// `Stream-Seq`.
pub(super) const STREAM_SEQ: HeaderName = HeaderName::from_static("stream-seq");
/// `Stream-SSE-Data-Encoding`.
pub(super) const STREAM_SSE_DATA_ENCODING: HeaderName =
    HeaderName::from_static("stream-sse-data-encoding");
/// `Stream-TTL`.
pub(super) const STREAM_TTL: HeaderName = HeaderName::from_static("stream-ttl");
/// `Stream-Up-To-Date`.
pub(super) const STREAM_UP_TO_DATE: HeaderName = HeaderName::from_static("stream-up-to-date");
/// `X-Accel-Buffering`.
pub(super) const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
