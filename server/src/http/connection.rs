//! Connection: from a socket that was accepted to its last answer.
//!
//! **Invariants**
//! - No more than `connections_max` are there; one more waits, and has the one that idles longest give way.
//! - A connection ends when its client is done, is cut ([`Pulse`]), or the shard drains.
//!
//! **Not here**: what is asked (`http`).

use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures_lite::future::or;
use hyper::server::conn::http2;
use hyper::service::service_fn;

use super::durable_streams::sweep;
use super::{HttpService, Pulse, answer};
use crate::net::{HyperIo, Listener, Stream};

/// Streams of an HTTP/2 connection at once.
const H2_STREAMS_MAX: u32 = 256;
/// Bytes that an HTTP/2 client may send before they are asked for, in all.
const H2_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes that one of its requests may.
const H2_STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes of an answer that wait for an HTTP/2 client to take them.
const H2_SEND_BYTES: usize = 64 << 10;
/// How often connections are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The same while one waits for a place.
const LOOK_FULL: Duration = Duration::from_millis(50);

impl HttpService {
    /// Serves what `listener` accepts, until the shard drains.
    pub(crate) fn serve(self: &Rc<Self>, listener: Listener) {
        let service = self.clone();
        self.side.spawn("http accept", async move {
            while let Some(stream) = service.next(&listener).await {
                let service = service.clone();
                let (number, pulse) = service.pulses.add(service.side.monotonic_ns());
                service.side.clone().spawn("http connection", async move {
                    // Boxed, here and below: a task keeps room for what is moved inside it, for each
                    // place it is at, and most connections only wait.
                    let connection = Box::pin(service.connection(stream, &pulse));
                    or(connection, pulse.until_cut()).await;
                    service.pulses.remove(number);
                    service.changed.notify();
                });
            }
        });
        self.watch();
        if self.side.shard() == 0 {
            let service = self.clone();
            self.side.spawn("http sweep", async move {
                or(sweep(&service), service.until_draining()).await;
            });
        }
    }

    /// The next connection that there is a place for; `None`: the shard drains.
    async fn next(&self, listener: &Listener) -> Option<Stream> {
        match self.unless_draining(self.accepted(listener)).await {
            Poll::Ready(stream) => Some(stream),
            Poll::Pending => None,
        }
    }

    async fn accepted(&self, listener: &Listener) -> Stream {
        let stream = loop {
            match listener.accept().await {
                Ok(stream) => break stream,
                // No descriptor left, or the caller has gone.
                Err(_) => self.side.sleep(Duration::from_millis(10)).await,
            }
        };
        while self.pulses.count() >= self.options.connections_max {
            self.pulses.give_way(self.side.monotonic_ns());
            let room = || (self.pulses.count() < self.options.connections_max).then_some(());
            or(self.changed.until(room), self.side.sleep(LOOK_FULL)).await;
        }
        stream
    }

    /// Cuts connections whose time is over, until the shard has drained.
    fn watch(self: &Rc<Self>) {
        let service = self.clone();
        self.side.spawn("http watch", async move {
            let looks = async {
                loop {
                    service.side.sleep(LOOK).await;
                    let tight = service.sending.is_contended();
                    let now_ns = service.side.monotonic_ns();
                    service.pulses.cut_late(now_ns, tight);
                }
            };
            or(looks, service.drained()).await;
        });
    }

    async fn connection(self: &Rc<Self>, stream: Stream, pulse: &Rc<Pulse>) {
        let Some(stream) = self.begun(stream, pulse).await else {
            return;
        };
        let owned = (pulse.clone(), self.side.clone());
        let mut io = HyperIo::new(stream, owned, self.scratch.clone());
        match self.unless_draining(io.is_http2()).await {
            Poll::Ready(Ok(true)) => Box::pin(self.http2(io, pulse)).await,
            Poll::Ready(Ok(false)) => self.http1(io, pulse).await,
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
    }

    async fn http2(self: &Rc<Self>, io: HyperIo, pulse: &Rc<Pulse>) {
        let (service, of) = (self.clone(), pulse.clone());
        let answer = service_fn(move |request| answer(service.clone(), request, of.clone()));
        let mut connection = http2::Builder::new(OnShard(self.clone()))
            .max_concurrent_streams(H2_STREAMS_MAX)
            .initial_connection_window_size(H2_WINDOW_BYTES)
            .initial_stream_window_size(H2_STREAM_WINDOW_BYTES)
            .max_send_buf_size(H2_SEND_BYTES)
            .serve_connection(io, answer);
        // If it ends: what was wrong with it only its client could mend.
        if self.unless_draining(&mut connection).await.is_pending() {
            Pin::new(&mut connection).graceful_shutdown();
            let _ = connection.await;
        }
    }

    /// TLS, if it is spoken; `None`: it was not, or the shard drains.
    async fn begun(&self, stream: Stream, pulse: &Pulse) -> Option<Stream> {
        let Some(config) = &self.options.tls else {
            return Some(stream);
        };
        pulse.received(|| self.side.monotonic_ns());
        let shaken = Box::pin(stream.shake_hands(config.clone()));
        let Poll::Ready(Ok(stream)) = self.unless_draining(shaken).await else {
            return None;
        };
        pulse.rests(self.side.monotonic_ns());
        Some(stream)
    }
}

/// Starts hyper's tasks on the shard.
#[derive(Clone)]
struct OnShard(Rc<HttpService>);

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for OnShard {
    fn execute(&self, future: F) {
        self.0.side.spawn("http stream", future);
    }
}
