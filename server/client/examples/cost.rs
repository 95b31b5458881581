//! Cost: what a pipelined append of one record costs the client's thread, against a server that does nothing.
//!
//! `cargo run --release -p sealog-client --example cost [RECORDS [IN_FLIGHT [PAYLOAD_BYTES]]]`
//!
//! **Invariants**
//! - The server is a thread of its own: what is printed is the processor time of the client's thread.
//!
//! **Not here**: durability, other clients: `sealog-bench` measures those.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use sealog_client::{Client, FrameLimits};
use sealog_protocol::{
    Answer, Features, HEADER_BYTES, MESSAGE_BYTES_MAX, MessageHeader, Request, ShardAddress,
    Welcome,
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().map_or(Ok(default), |arg| arg.parse());
    let (records, in_flight, bytes) = (number(1_000_000)?, number(256)?, number(100)?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || serve(socket).map_err(|error| error.to_string()));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(
        address,
        records,
        usize::try_from(in_flight)?,
        usize::try_from(bytes)?,
    ))
}

async fn run(address: SocketAddr, records: u64, in_flight: usize, bytes: usize) -> Outcome {
    let client = Client::connect(&address.to_string()).await?;
    let session = client.open("f").await?;
    let payload = vec![7; bytes];
    let (began, cpu_before) = (std::time::Instant::now(), thread_cpu_nanos()?);
    let mut tickets = VecDeque::new();
    for _ in 0..records {
        if tickets.len() >= in_flight
            && let Some(oldest) = tickets.pop_front()
        {
            oldest.await?;
        }
        tickets.push_back(session.submit(payload.as_slice()));
    }
    for ticket in tickets {
        ticket.await?;
    }
    let (elapsed, cpu) = (began.elapsed(), thread_cpu_nanos()? - cpu_before);
    println!(
        "{records} records of {bytes} B, {in_flight} in flight: {:.0} records/s, {} ns of CPU each",
        records as f64 / elapsed.as_secs_f64(),
        cpu / records.max(1)
    );
    Ok(())
}

/// Processor time of this thread so far.
fn thread_cpu_nanos() -> Outcome<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = stat.split_whitespace().next().ok_or("no schedstat")?;
    Ok(nanos.parse()?)
}

fn serve(mut socket: TcpStream) -> Outcome {
    socket.set_nodelay(true)?;
    let (mut buffer, mut filled, mut next) = (vec![0; 1 << 20], 0, 0);
    let mut out = Vec::new();
    loop {
        let read = socket.read(&mut buffer[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let mut at = 0;
        while let Some(header) = MessageHeader::peek(&buffer[at..filled], MESSAGE_BYTES_MAX)? {
            let end = at + header.message_bytes;
            if end > filled {
                break;
            }
            let request = Request::decode(header.kind, &buffer[at + HEADER_BYTES..end])?;
            answer(&request, header.request, &mut next, &mut out);
            at = end;
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        socket.write_all(&out)?;
        out.clear();
    }
}

fn answer(request: &Request<'_>, id: u64, next: &mut u64, out: &mut Vec<u8>) {
    let answer = match request {
        Request::Hello { .. } => Answer::Welcome { welcome: welcome() },
        Request::Open { .. } => Answer::Leased {
            binding: 0,
            feed: 1,
            epoch: 1,
            stream: 1,
            next_sequence: 0,
        },
        Request::Append { .. } => {
            *next += 1;
            Answer::Appended {
                first: *next - 1,
                last: *next - 1,
                records: 1,
                duplicate: false,
                producer_sequence: Some(*next - 1),
            }
        }
        _ => Answer::Pong {},
    };
    answer.encode(id, 0, out);
}

fn welcome() -> Welcome {
    let limits = FrameLimits::DEFAULT;
    let limit = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
    Welcome {
        version: 1,
        features: Features::default(),
        server: 1,
        agent: "cost".to_owned(),
        message_bytes_max: 64 << 20,
        credit_bytes: 8 << 20,
        producer_batches_max: 256,
        batch_bytes_max: limit(limits.batch_bytes_max),
        record_bytes_max: limit(limits.record_bytes_max),
        records_max: limit(limits.records_max),
        logs: 1,
        shard: 0,
        shards: vec![ShardAddress { port: 0 }],
    }
}
