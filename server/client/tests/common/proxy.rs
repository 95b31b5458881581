//! Proxy: TCP in between, which cuts or stalls connections where a test says.
//!
//! **Invariants**
//! - A plan applies to one connection; connections without a plan pass everything.
//!
//! **Not here**: what the bytes mean.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to one connection; bytes are counted from its beginning.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plan {
    /// Cut both ways once so many bytes went to the server.
    pub cut_up: Option<usize>,
    /// Cut both ways once so many bytes came from the server.
    pub cut_down: Option<usize>,
    /// Pass nothing more to the server after so many bytes, and stay open.
    pub stall_up: Option<usize>,
    /// Pass nothing more from the server after so many bytes, and stay open.
    pub stall_down: Option<usize>,
}

/// A running proxy.
pub struct Proxy {
    pub address: SocketAddr,
    plans: Arc<Mutex<VecDeque<Plan>>>,
    target: Arc<Mutex<SocketAddr>>,
    pub connections: Arc<AtomicUsize>,
    /// Bytes that passed, to the server and from it, of all connections.
    pub passed: Arc<[Mutex<Vec<u8>>; 2]>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub async fn start(target: SocketAddr, plans: impl IntoIterator<Item = Plan>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let plans: Arc<Mutex<VecDeque<Plan>>> = Arc::new(Mutex::new(plans.into_iter().collect()));
        let connections = Arc::new(AtomicUsize::new(0));
        let passed: Arc<[Mutex<Vec<u8>>; 2]> = Arc::default();
        let target = Arc::new(Mutex::new(target));
        let aim = target.clone();
        let (queue, counter, counted) = (plans.clone(), connections.clone(), passed.clone());
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::SeqCst);
                let plan = queue.lock().unwrap().pop_front().unwrap_or_default();
                let target = *aim.lock().unwrap();
                tokio::spawn(pass(client, target, plan, counted.clone()));
            }
        });
        Self {
            address,
            plans,
            target,
            connections,
            passed,
            task,
        }
    }

    /// Connections from now on lead there.
    pub fn aim(&self, target: SocketAddr) {
        *self.target.lock().unwrap() = target;
    }

    pub fn plan(&self, plan: Plan) {
        self.plans.lock().unwrap().push_back(plan);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(client: TcpStream, target: SocketAddr, plan: Plan, passed: Arc<[Mutex<Vec<u8>>; 2]>) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::select! {
        () = copy(&mut from_client, &mut to_server, plan.cut_up, plan.stall_up, &passed[0]) => {}
        () = copy(&mut from_server, &mut to_client, plan.cut_down, plan.stall_down, &passed[1]) => {}
    }
}

async fn copy(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    cut: Option<usize>,
    stall: Option<usize>,
    passed: &Mutex<Vec<u8>>,
) {
    let limit = cut.or(stall).unwrap_or(usize::MAX);
    let mut total = 0;
    let mut buffer = vec![0; 64 << 10];
    while total < limit {
        let room = buffer.len().min(limit - total);
        let Ok(read @ 1..) = from.read(&mut buffer[..room]).await else {
            return;
        };
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        total += read;
        passed.lock().unwrap().extend_from_slice(&buffer[..read]);
    }
    if cut.is_none() {
        std::future::pending::<()>().await;
    }
}
