//! Outbox: what waits to be written to a connection.
//!
//! **Invariants**
//! - Messages leave in the order they came, whole.
//! - Small messages share a buffer, so that many go out in one write; a big frame is not copied.
//!
//! **Not here**: how much may be in it (`conn`: credit).

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sealog_frame::Batch;
use sealog_protocol::Request;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Frames from here on are written from where they are.
const FRAME_BYTES_SHARED: usize = 8 << 10;
/// A buffer takes no further message when it is this long.
const BUFFER_BYTES: usize = 256 << 10;
/// Slices of one vectored write.
const SLICES_MAX: usize = 64;

/// A piece of the stream of bytes.
#[derive(Debug)]
enum Chunk {
    Bytes(Vec<u8>),
    Frame(Batch),
}

impl Chunk {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Frame(batch) => batch.as_bytes(),
        }
    }
}

/// Messages in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    chunks: VecDeque<Chunk>,
    spare: Option<Vec<u8>>,
}

impl Outbox {
    /// Bytes of all that waits.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks
            .iter()
            .map(|chunk| chunk.as_slice().len() as u64)
            .sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Adds a request.
    pub(crate) fn push(&mut self, request: &Request<'_>, id: u64) {
        request.encode(id, 0, self.buffer());
    }

    /// Adds a request unless it is longer than `limit`; its length.
    pub(crate) fn push_within(&mut self, request: &Request<'_>, id: u64, limit: u64) -> u64 {
        let buffer = self.buffer();
        let before = buffer.len();
        request.encode(id, 0, buffer);
        let bytes = (buffer.len() - before) as u64;
        if bytes > limit {
            buffer.truncate(before);
            if before == 0 {
                self.chunks.pop_back();
            }
        }
        bytes
    }

    /// Adds an append.
    pub(crate) fn push_append(&mut self, binding: u32, batch: &Batch, id: u64) {
        let frame = batch.as_bytes();
        let shared = frame.len() >= FRAME_BYTES_SHARED;
        let buffer = self.buffer();
        Request::encode_append_head(binding, frame.len(), id, buffer);
        if shared {
            self.chunks.push_back(Chunk::Frame(batch.clone()));
        } else {
            buffer.extend_from_slice(frame);
        }
    }

    fn buffer(&mut self) -> &mut Vec<u8> {
        let open =
            |chunk: &Chunk| matches!(chunk, Chunk::Bytes(bytes) if bytes.len() < BUFFER_BYTES);
        if !self.chunks.back().is_some_and(open) {
            let fresh = self.spare.take().unwrap_or_default();
            self.chunks.push_back(Chunk::Bytes(fresh));
        }
        match self.chunks.back_mut() {
            Some(Chunk::Bytes(bytes)) => bytes,
            _ => unreachable!("a buffer was just put there"),
        }
    }

    /// Takes all of it; `spent` is a taken outbox whose buffer may be used again.
    pub(crate) fn take(&mut self, spent: &mut Self) {
        if self.spare.is_none() {
            self.spare = spent.spare.take();
        }
        std::mem::swap(&mut self.chunks, &mut spent.chunks);
    }

    /// Writes all of it; a single write that takes longer than `stuck` fails, unless that is zero, or `busy`
    /// has gone up meanwhile: the other side says that it does not read.
    pub(crate) async fn write_to<W: AsyncWrite + Unpin>(
        &mut self,
        out: &mut W,
        stuck: Duration,
        busy: &AtomicU64,
    ) -> io::Result<()> {
        let mut skip = 0;
        while !self.chunks.is_empty() {
            let said = busy.load(Ordering::Relaxed);
            // A write that is given up has written nothing.
            let written = match stuck.is_zero() {
                true => self.write_some(out, skip).await?,
                false => match timeout(stuck, self.write_some(out, skip)).await {
                    Ok(written) => written?,
                    Err(_) if busy.load(Ordering::Relaxed) != said => continue,
                    Err(late) => return Err(late.into()),
                },
            };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            skip = self.advance(skip + written);
        }
        out.flush().await
    }

    /// One write, from byte `skip` of the first chunk on.
    async fn write_some<W: AsyncWrite + Unpin>(
        &mut self,
        out: &mut W,
        skip: usize,
    ) -> io::Result<usize> {
        if let [only] = self.chunks.make_contiguous() {
            return out.write(&only.as_slice()[skip..]).await;
        }
        let mut slices = Vec::with_capacity(self.chunks.len().min(SLICES_MAX));
        for (at, chunk) in self.chunks.iter().take(SLICES_MAX).enumerate() {
            let from = if at == 0 { skip } else { 0 };
            slices.push(IoSlice::new(&chunk.as_slice()[from..]));
        }
        out.write_vectored(&slices).await
    }

    /// Lets go of chunks that are written whole; what of the first one left is written.
    fn advance(&mut self, mut written: usize) -> usize {
        while let Some(chunk) = self.chunks.front() {
            let length = chunk.as_slice().len();
            if written < length {
                break;
            }
            written -= length;
            if let Some(Chunk::Bytes(mut bytes)) = self.chunks.pop_front() {
                bytes.clear();
                self.spare = Some(bytes);
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use sealog_frame::{BatchBuilder, FrameLimits, Record};

    use super::*;

    /// Takes `step` bytes at most of each write.
    struct Dripping {
        step: usize,
        taken: Vec<u8>,
    }

    impl AsyncWrite for Dripping {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let step = self.step.min(bytes.len());
            self.taken.extend_from_slice(&bytes[..step]);
            Poll::Ready(Ok(step))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut left = self.step;
            for slice in slices {
                let step = left.min(slice.len());
                self.taken.extend_from_slice(&slice[..step]);
                left -= step;
            }
            Poll::Ready(Ok(self.step - left))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn outbox_writes_everything_in_order_whatever_a_write_takes() {
        let batch = |bytes: usize| {
            let mut builder = BatchBuilder::new(FrameLimits::DEFAULT);
            builder.push(&Record::of(&vec![7; bytes])).unwrap();
            builder.build().unwrap()
        };
        let sizes = [10, 9_000, 8_192, 20, 30, 100_000, 1];
        let mut expected = Vec::new();
        let fill = |outbox: &mut Outbox, expected: &mut Vec<u8>| {
            for (id, bytes) in (1..).zip(sizes) {
                let batch = batch(bytes);
                outbox.push_append(3, &batch, id);
                let frame = sealog_protocol::Rest(batch.as_bytes());
                Request::Append { binding: 3, frame }.encode(id, 0, expected);
            }
            outbox.push(&Request::Ping {}, 99);
            Request::Ping {}.encode(99, 0, expected);
        };
        for step in [5, 64, 10_000, 1 << 20] {
            let (mut outbox, mut spent) = (Outbox::default(), Outbox::default());
            let mut out = Dripping {
                step,
                taken: Vec::new(),
            };
            expected.clear();
            for _ in 0..2 {
                fill(&mut outbox, &mut expected);
                outbox.take(&mut spent);
                assert!(outbox.is_empty());
                spent
                    .write_to(&mut out, Duration::from_secs(5), &AtomicU64::new(0))
                    .await
                    .unwrap();
                assert!(spent.is_empty());
            }
            assert!(out.taken == expected, "step {step}");
        }
    }
}
