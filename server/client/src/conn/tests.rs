//! Tests of a connection: which appends wait for company.

use sealog_frame::{BatchBuilder, FrameLimits, Record};
use sealog_protocol::Features;
use tokio::io::AsyncReadExt;

use super::*;

fn conn() -> Arc<Conn> {
    Arc::new(Conn::new(Welcome {
        version: 1,
        features: Features::default(),
        server: 1,
        agent: String::new(),
        message_bytes_max: 1 << 20,
        credit_bytes: 1 << 20,
        producer_batches_max: 256,
        batch_bytes_max: 1 << 20,
        record_bytes_max: 1 << 20,
        records_max: 1 << 10,
        logs: 1,
        shard: 0,
        shards: Vec::new(),
    }))
}

fn batch(payload_bytes: usize) -> Batch {
    let mut builder = BatchBuilder::new(FrameLimits::default());
    builder.push(&Record::of(&vec![7; payload_bytes])).unwrap();
    builder.build().unwrap()
}

/// Appends one batch.
fn append(conn: &Conn, payload_bytes: usize) {
    assert!(conn.sending(1, 0).append(0, &batch(payload_bytes), 0));
}

fn taken(conn: &Conn) -> Taken {
    conn.take_outbox(&mut Outbox::default())
}

/// Appends `count` batches that leave at once.
fn in_flight(conn: &Conn, count: usize) {
    (0..count).for_each(|_| append(conn, 100));
    conn.release();
    assert_eq!(taken(conn), Taken::All);
    assert_eq!(taken(conn), Taken::Nothing);
}

#[test]
fn small_append_waits_for_company_while_many_are_in_flight() {
    let conn = conn();
    in_flight(&conn, 20);
    append(&conn, 100);
    assert_eq!(taken(&conn), Taken::Held);
    conn.release();
    assert_eq!(taken(&conn), Taken::All);
    append(&conn, 100);
    assert_eq!(taken(&conn), Taken::Held);
}

#[test]
fn append_waits_for_nobody_while_few_are_in_flight() {
    let conn = conn();
    in_flight(&conn, 1);
    for _ in 0..3 {
        append(&conn, 100);
        assert_eq!(taken(&conn), Taken::All);
    }
}

#[test]
fn append_waits_for_nobody_when_all_is_answered() {
    let conn = conn();
    in_flight(&conn, 20);
    drop(conn.sending(1, 20 * request_bytes(&batch(100))));
    append(&conn, 100);
    assert_eq!(taken(&conn), Taken::All);
}

#[test]
fn enough_bytes_wait_for_nobody() {
    for (flying, enough) in [(20, 5), (1_000, 15)] {
        let conn = conn();
        in_flight(&conn, flying);
        let mut waiting = 0;
        loop {
            append(&conn, 100);
            waiting += 1;
            if taken(&conn) == Taken::All {
                break;
            }
        }
        assert_eq!(waiting, enough, "beside {flying}");
    }
}

#[test]
fn other_requests_wait_for_nobody_and_take_appends_along() {
    let conn = conn();
    in_flight(&conn, 20);
    append(&conn, 100);
    assert_eq!(taken(&conn), Taken::Held);
    conn.tell(&Request::Ping {}, 1);
    assert_eq!(taken(&conn), Taken::All);
}

#[tokio::test]
async fn append_behind_one_that_is_never_answered_leaves_all_the_same() {
    let conn = conn();
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(ours);
    io::run(
        &conn,
        Box::new(reader),
        Box::new(writer),
        bytes::BytesMut::new(),
        Duration::ZERO,
    );
    let sent = async {
        for count in [20, 1, 1] {
            (0..count).for_each(|_| append(&conn, 100));
            let mut messages = vec![0; count * request_bytes(&batch(100)) as usize];
            theirs.read_exact(&mut messages).await.unwrap();
        }
    };
    timeout(Duration::from_secs(10), sent).await.unwrap();
    conn.fail(Error::disconnected("over"));
}
