//! Forks: streams that go on from others, over HTTP, across restarts and what expires.

use std::time::{Duration, Instant};

use sealog_frame::FrameView;
use sealog_protocol::{Answer, ReadFrom, ReadScope, Request};

use super::http::{CLOSE, Got, Headers, JSON, TEXT, Web, offset};

/// Makes a fork of `source`, with these headers besides.
fn fork(web: &Web, source: &str, name: &str, headers: Headers<'_>, body: &str) -> Got {
    let from = format!("/v1/stream/{source}");
    let all = [&[("stream-forked-from", from.as_str())], headers].concat();
    web.ask("PUT", name, &all, body)
}

fn head(web: &Web, stream: &str) -> u16 {
    web.ask("HEAD", stream, &[], "").status
}

fn wait_for(web: &Web, stream: &str, status: u16) {
    let begun = Instant::now();
    while head(web, stream) != status {
        assert!(begun.elapsed() < Duration::from_secs(20), "{stream}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn fork_is_its_source_up_to_an_offset_and_the_same_again_is_found() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "one,");
    web.post("s", &[TEXT], "two,");
    let at = [("stream-fork-offset", &*offset(1))];
    let made = fork(&web, "s", "f/g%20h", &at, "own,");
    assert_eq!((made.status, made.next()), (201, &*offset(2)));
    let location = made.header("location");
    assert!(location.ends_with("/v1/stream/f/g%20h"), "{location}");
    for name in made.headers.keys() {
        assert!(!name.as_str().starts_with("stream-fork"), "{name}");
    }
    let got = web.get("f/g%20h");
    assert_eq!((&*got.body, got.next()), ("one,own,", &*offset(2)));
    assert_eq!(got.header("stream-up-to-date"), "true");
    // The same, and not quite.
    assert_eq!(fork(&web, "s", "f/g%20h", &at, "").status, 200);
    assert_eq!(fork(&web, "s", "f/g%20h", &[at[0], TEXT], "").status, 200);
    let sub = [at[0], ("stream-fork-sub-offset", "1")];
    let other = [("stream-fork-offset", &*offset(2))];
    for headers in [
        &sub[..],
        &other,
        &[],
        &[at[0], JSON],
        &[at[0], ("stream-ttl", "5")],
        &[at[0], CLOSE],
    ] {
        assert_eq!(
            fork(&web, "s", "f/g%20h", headers, "").status,
            409,
            "{headers:?}"
        );
    }
    assert_eq!(web.ask("PUT", "f/g%20h", &[TEXT], "").status, 409);
    assert_eq!(fork(&web, "s", "s", &[], "").status, 409);
    // Of a default offset, too, wherever the source is by now.
    assert_eq!(fork(&web, "s", "tail", &[], "").status, 201);
    web.post("s", &[TEXT], "three,");
    assert_eq!(fork(&web, "s", "tail", &[], "").status, 200);
    assert_eq!(web.get("tail").body, "one,two,");
}

#[test]
fn forks_that_make_no_sense_are_refused_and_leave_nothing() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "hello");
    web.made("j", JSON, "[1,2,3]");
    let from = ("stream-forked-from", "/v1/stream/s");
    let zero = offset(0);
    let begin = ("stream-fork-offset", &*zero);
    let cases: [(&[(&str, &str)], u16); 12] = [
        (&[("stream-fork-sub-offset", "0")], 400),
        (&[begin], 400),
        (&[from, ("stream-fork-sub-offset", "1")], 400),
        (&[from, begin, ("stream-fork-sub-offset", "6")], 400),
        (&[from, begin, ("stream-fork-sub-offset", "01")], 400),
        (&[from, ("stream-fork-offset", "now")], 400),
        (&[from, ("stream-fork-offset", "7")], 400),
        (&[from, ("stream-fork-offset", &offset(2))], 400),
        (&[("stream-forked-from", "/v1/stream/none")], 404),
        (&[("stream-forked-from", "s")], 400),
        (&[from, JSON], 409),
        (
            &[
                ("stream-forked-from", "/v1/stream/j"),
                begin,
                ("stream-fork-sub-offset", "4"),
            ],
            400,
        ),
    ];
    for (headers, status) in cases {
        assert_eq!(
            web.ask("PUT", "f", headers, "").status,
            status,
            "{headers:?}"
        );
    }
    assert_eq!(fork(&web, "j", "f", &[], "no json").status, 400);
    assert_eq!(head(&web, "f"), 404);
    for stream in ["s", "j"] {
        assert_eq!(web.ask("DELETE", stream, &[], "").status, 204);
        assert_eq!(head(&web, stream), 404, "a pin is left");
    }
}

#[test]
fn sub_offsets_cut_a_message_or_a_batch_and_outlive_a_crash() {
    let mut web = Web::start(&[]);
    web.made("s", TEXT, "hello");
    web.made("j", JSON, "[1,2,3]");
    let zero = offset(0);
    let cut = |sub| {
        [
            ("stream-fork-offset", &*zero),
            ("stream-fork-sub-offset", sub),
        ]
    };
    let made = fork(&web, "s", "f", &cut("3"), "XY");
    assert_eq!((made.status, made.next()), (201, &*offset(2)));
    assert_eq!(fork(&web, "s", "whole", &cut("5"), "!").next(), offset(2));
    assert_eq!(fork(&web, "j", "g", &cut("2"), "[9]").next(), offset(3));
    assert_eq!(
        fork(
            &web,
            "g",
            "h",
            &[
                ("stream-fork-offset", &*offset(1)),
                ("stream-fork-sub-offset", "1")
            ],
            ""
        )
        .status,
        201
    );
    // A source that is itself cut.
    assert_eq!(fork(&web, "f", "ff", &cut("2"), "").status, 201);
    for _ in 0..2 {
        assert_eq!(web.get("f").body, "helXY");
        assert_eq!(web.get("ff").body, "he");
        assert_eq!(web.get("whole").body, "hello!");
        assert_eq!(web.get("g").body, "[1,2,9]");
        assert_eq!(web.get("h").body, "[1,2]");
        assert_eq!(fork(&web, "s", "f", &cut("3"), "").status, 200);
        web.restart(&[]);
    }
}

#[test]
fn deleted_stream_with_forks_is_gone_until_the_last_of_them_is() {
    let mut web = Web::start(&[]);
    web.made("s", TEXT, "a");
    assert_eq!(fork(&web, "s", "f", &[], "b").status, 201);
    assert_eq!(fork(&web, "f", "g", &[], "c").status, 201);
    assert_eq!(web.ask("DELETE", "s", &[], "").status, 204);
    assert_eq!(web.ask("DELETE", "f", &[], "").status, 204);
    for _ in 0..2 {
        for stream in ["s", "f"] {
            for method in ["GET", "HEAD", "DELETE"] {
                assert_eq!(web.ask(method, stream, &[], "").status, 410, "{method}");
            }
            assert_eq!(
                web.get(&format!("{stream}?offset=now&live=sse")).status,
                410
            );
            assert_eq!(web.post(stream, &[TEXT], "x").status, 410);
            assert_eq!(web.post(stream, &[CLOSE], "").status, 410);
            assert_eq!(web.ask("PUT", stream, &[TEXT], "x").status, 409);
            assert_eq!(fork(&web, stream, "new", &[], "").status, 409);
        }
        assert_eq!(web.get("g").body, "abc");
        assert_eq!(fork(&web, "f", "g", &[], "").status, 200);
        web.restart(&[]);
    }
    assert_eq!(web.ask("DELETE", "g", &[], "").status, 204);
    assert_eq!(head(&web, "g"), 404);
    wait_for(&web, "f", 404);
    wait_for(&web, "s", 404);
    web.made("s", TEXT, "new");
    assert_eq!(web.get("s").body, "new");
}

#[test]
fn fork_outlives_a_source_that_expires_and_lives_as_long_if_nothing_else_is_said() {
    let web = Web::start(&[]);
    let ttl = ("stream-ttl", "1");
    assert_eq!(web.ask("PUT", "s", &[TEXT, ttl], "a").status, 201);
    assert_eq!(fork(&web, "s", "heir", &[], "").status, 201);
    assert_eq!(web.ask("HEAD", "heir", &[], "").header("stream-ttl"), "1");
    assert_eq!(
        fork(&web, "s", "own", &[("stream-ttl", "600")], "b").status,
        201
    );
    std::thread::sleep(Duration::from_millis(1300));
    assert!([404, 410].contains(&head(&web, "s")));
    assert_eq!(head(&web, "s"), 410);
    assert_eq!(head(&web, "heir"), 404);
    assert_eq!(web.get("own").body, "ab");
    assert_eq!(web.ask("PUT", "s", &[TEXT], "").status, 409);
    assert_eq!(web.ask("DELETE", "own", &[], "").status, 204);
    wait_for(&web, "s", 404);
}

#[test]
fn live_readers_of_a_fork_get_what_it_inherits_at_once_and_then_its_own() {
    let web = Web::start(&[]);
    web.made("s", TEXT, "a");
    assert_eq!(fork(&web, "s", "f", &[], "").status, 201);
    let begun = Instant::now();
    let polled = web.get(&format!("f?offset={}&live=long-poll", offset(0)));
    assert_eq!((polled.status, &*polled.body), (200, "a"));
    assert!(begun.elapsed() < Duration::from_secs(5));
    web.post("s", &[TEXT], "later");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| web.events("f?offset=-1&live=sse", "own"));
        std::thread::sleep(Duration::from_millis(200));
        web.post("f", &[TEXT], "own");
        let events = reader.join().unwrap();
        assert!(!events.contains("later"), "{events}");
        assert!(events.contains("data:a\n"), "{events}");
    });
}

#[test]
fn native_readers_see_a_fork_as_any_feed_and_nothing_of_its_source_behind_the_base() {
    let web = Web::start(&[]);
    web.made("s", JSON, "[1,2,3]");
    let begin = offset(1);
    let cut = [
        ("stream-fork-offset", &*begin),
        ("stream-fork-sub-offset", "1"),
    ];
    assert_eq!(fork(&web, "s", "f", &cut, "[9]").status, 201);
    let mut native = web.server.as_ref().unwrap().connect();
    let (mut next, mut got) = (0, Vec::new());
    while next < 3 {
        let scope = ReadScope {
            feed: "f",
            feed_id: None,
            stream: None,
            from: ReadFrom::Sequence(next),
            end: u64::MAX,
            bytes_max: 1 << 20,
            fingerprints: false,
        };
        let read = native.call(&Request::Read { scope, wait_ms: 0 });
        let Answer::Records { records } = &read else {
            panic!("{read:?}");
        };
        let mut rest = records.frames.0;
        while !rest.is_empty() {
            let (frame, after) = FrameView::split_trusted(rest).unwrap();
            got.extend(frame.records().map(|r| (r.sequence, r.payload.to_vec())));
            rest = after;
        }
        assert!(records.next > next, "{read:?}");
        next = records.next;
    }
    let expected = [(0, b"1".to_vec()), (1, b"2".to_vec()), (2, b"9".to_vec())];
    assert_eq!(got, expected);
    assert_eq!(web.ask("DELETE", "s", &[], "").status, 204);
    let refused = native.call(&Request::Open { feed: "s" });
    assert!(format!("{refused:?}").contains("FeedGone"), "{refused:?}");
}
