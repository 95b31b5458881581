//! Subscriptions: webhooks and pulled wakes over HTTP, from the outside: a receiver on this machine, crashes in
//! between.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde_json::{Value, json};

use super::http::{Got, JSON, TEXT, Web, offset};
use super::server::DEADLINE;

/// A webhook as it came.
struct Hook {
    signature: String,
    raw: String,
    body: Value,
}

impl Hook {
    fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap()
    }

    fn generation(&self) -> u64 {
        self.body["generation"].as_u64().unwrap()
    }

    /// The wake's word about itself, and more.
    fn said(&self, more: Value) -> String {
        let mut said =
            json!({ "wake_id": self.body["wake_id"], "generation": self.body["generation"] });
        for (name, value) in more.as_object().unwrap() {
            said[name] = value.clone();
        }
        said.to_string()
    }
}

/// A receiver of webhooks. Each is answered with the next of the answers, the last of them for ever.
struct Receiving {
    address: SocketAddr,
    hooks: Receiver<Hook>,
}

type Answers = Arc<Mutex<Vec<(u16, &'static str)>>>;

impl Receiving {
    fn start(answers: &[(u16, &'static str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers: Answers = Arc::new(Mutex::new(answers.to_vec()));
        let (heard, hooks) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answers, heard) = (answers.clone(), heard.clone());
                std::thread::spawn(move || {
                    let mut stream = BufReader::new(stream.unwrap());
                    while let Some(hook) = receive(&mut stream) {
                        let answer = {
                            let mut answers = answers.lock().unwrap();
                            match answers.len() {
                                1 => answers[0],
                                _ => answers.remove(0),
                            }
                        };
                        send(stream.get_mut(), answer);
                        let _ = heard.send(hook);
                    }
                });
            }
        });
        Self { address, hooks }
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    fn next(&self) -> Hook {
        self.hooks.recv_timeout(DEADLINE).expect("a webhook")
    }

    fn none_for(&self, wait: Duration) {
        match self.hooks.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {}
            other => panic!("a webhook too many: {:?}", other.map(|hook| hook.raw)),
        }
    }
}

fn receive(stream: &mut BufReader<TcpStream>) -> Option<Hook> {
    let (mut signature, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "webhook-signature" => signature = value.to_owned(),
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let raw = String::from_utf8(body).unwrap();
    Some(Hook {
        signature,
        body: serde_json::from_str(&raw).unwrap(),
        raw,
    })
}

fn send(stream: &mut TcpStream, (status, body): (u16, &str)) {
    let more = match status {
        302 => "location: http://127.0.0.1:1/\r\n",
        _ => "",
    };
    let length = body.len();
    let text = format!("HTTP/1.1 {status} X\r\n{more}content-length: {length}\r\n\r\n{body}");
    let _ = stream.write_all(text.as_bytes());
}

fn subscription(id: &str) -> String {
    format!("__ds/subscriptions/{id}")
}

fn value(got: &Got) -> Value {
    serde_json::from_str(&got.body).unwrap_or_else(|error| panic!("{error}: {got:?}"))
}

fn code(got: &Got) -> (u16, String) {
    let code = value(got)["error"]["code"].as_str().unwrap().to_owned();
    (got.status, code)
}

fn webhook(web: &Web, id: &str, url: &str) -> Got {
    let body = json!({
        "type": "webhook", "pattern": "events/*", "webhook": { "url": url }, "lease_ttl_ms": 1000,
    });
    web.ask("PUT", &subscription(id), &[JSON], &body.to_string())
}

fn pulled(web: &Web, id: &str, lease_ttl_ms: u64) -> Got {
    let body = json!({
        "type": "pull-wake", "pattern": "**", "wake_stream": "wakes", "lease_ttl_ms": lease_ttl_ms,
    });
    web.ask("PUT", &subscription(id), &[JSON], &body.to_string())
}

fn acked(web: &Web, id: &str, stream: &str) -> String {
    let shown = value(&web.get(&subscription(id)));
    let streams = shown["streams"].as_array().unwrap().clone();
    let found = streams.iter().find(|s| s["path"] == stream);
    let found = found.unwrap_or_else(|| panic!("{stream} in {shown}"));
    found["acked_offset"].as_str().unwrap().to_owned()
}

fn until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < DEADLINE, "too late");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn callback(web: &Web, hook: &Hook, more: Value) -> Got {
    let bearer = format!("Bearer {}", hook.text("callback_token"));
    let path = hook
        .text("callback_url")
        .split("/v1/stream/")
        .nth(1)
        .unwrap();
    web.post(path, &[JSON, ("authorization", &bearer)], &hook.said(more))
}

/// Events in the stream of wakes.
fn wakes(web: &Web) -> Vec<Value> {
    value(&web.get("wakes")).as_array().unwrap().clone()
}

fn is_verified(web: &Web, hook: &Hook) -> bool {
    let jwks = web.get("__ds/jwks.json");
    assert_eq!(jwks.header("content-type"), "application/jwk-set+json");
    assert_eq!(jwks.header("cache-control"), "public, max-age=300");
    let jwks = value(&jwks);
    let parts: Vec<&str> = hook.signature.split(',').collect();
    let of = |at: usize, name: &str| parts[at].strip_prefix(name).unwrap().to_owned();
    let (time, kid, signed) = (of(0, "t="), of(1, "kid="), of(2, "ed25519="));
    let keys = jwks["keys"].as_array().unwrap();
    let key = keys.iter().find(|key| key["kid"] == kid.as_str()).unwrap();
    let x = URL_SAFE_NO_PAD.decode(key["x"].as_str().unwrap()).unwrap();
    let message = format!("{time}.{}", hook.raw);
    let signed = URL_SAFE_NO_PAD.decode(signed).unwrap();
    let public = UnparsedPublicKey::new(&ED25519, x);
    public.verify(message.as_bytes(), &signed).is_ok()
}

#[test]
fn webhook_is_signed_and_done_acknowledges_what_it_told_of() {
    let web = Web::start(&[]);
    web.made("events/old", TEXT, "before");
    let receiver = Receiving::start(&[(200, "{\"done\":true}")]);
    let made = webhook(&web, "s", &receiver.url());
    assert_eq!(made.status, 201, "{made:?}");
    let shown = value(&made);
    assert_eq!(shown["streams"][0]["acked_offset"], offset(1));
    assert_eq!(
        shown["webhook"]["signing"]["jwks_url"],
        web.url("__ds/jwks.json")
    );
    assert_eq!(webhook(&web, "s", &receiver.url()).status, 200);
    let other = webhook(&web, "s", "http://127.0.0.1:9/other");
    assert_eq!(
        code(&other),
        (409, "SUBSCRIPTION_ALREADY_EXISTS".to_owned())
    );
    // Made with its first message.
    web.made("events/new", JSON, "[1,2]");
    let hook = receiver.next();
    assert!(is_verified(&web, &hook));
    assert_eq!((hook.text("subscription_id"), hook.generation()), ("s", 1));
    let told = json!([{
        "path": "events/new", "link_type": "glob", "acked_offset": offset(0),
        "tail_offset": offset(2), "has_pending": true,
    }]);
    assert_eq!(hook.body["streams"], told);
    let route = subscription("s") + "/callback";
    assert_eq!(hook.text("callback_url"), web.url(&route));
    until(|| acked(&web, "s", "events/new") == offset(2));
    assert_eq!(web.post("events/old", &[TEXT], "more").status, 204);
    assert_eq!(receiver.next().generation(), 2);
    until(|| acked(&web, "s", "events/old") == offset(2));
    receiver.none_for(Duration::from_millis(300));
    assert_eq!(web.ask("DELETE", &subscription("s"), &[], "").status, 204);
    assert_eq!(web.ask("DELETE", &subscription("s"), &[], "").status, 204);
    let gone = web.get(&subscription("s"));
    assert_eq!(code(&gone), (404, "SUBSCRIPTION_NOT_FOUND".to_owned()));
    web.made("events/later", TEXT, "x");
    receiver.none_for(Duration::from_millis(300));
}

#[test]
fn webhook_that_failed_is_tried_again_with_the_same_wake_also_after_a_crash() {
    let mut web = Web::start(&[]);
    let receiver = Receiving::start(&[(500, ""), (302, ""), (200, "{\"done\":true}")]);
    assert_eq!(webhook(&web, "s", &receiver.url()).status, 201);
    web.made("events/a", TEXT, "x");
    let first = receiver.next();
    until(|| value(&web.get(&subscription("s")))["status"] == "failed");
    let begun = Instant::now();
    let second = receiver.next();
    assert!(
        begun.elapsed() > Duration::from_millis(600),
        "1 s, less a fifth"
    );
    web.restart(&[]);
    let third = receiver.next();
    let name = |hook: &Hook| (hook.text("wake_id").to_owned(), hook.generation());
    assert_eq!((name(&second), name(&third)), (name(&first), name(&first)));
    assert!(is_verified(&web, &third), "the key is the same one");
    assert_eq!(third.body["streams"][0]["path"], "events/a");
    until(|| acked(&web, "s", "events/a") == offset(1));
    assert_eq!(value(&web.get(&subscription("s")))["status"], "active");
}

#[test]
fn lease_that_is_over_leads_to_a_new_wake_and_fences_the_old() {
    let mut web = Web::start(&[]);
    let receiver = Receiving::start(&[(204, "")]);
    assert_eq!(webhook(&web, "s", &receiver.url()).status, 201);
    web.made("events/a", TEXT, "x");
    let first = receiver.next();
    // Signs of life keep it.
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(400));
        let kept = callback(&web, &first, json!({}));
        assert_eq!(
            (kept.status, value(&kept)),
            (200, json!({"ok": true, "next_wake": false}))
        );
    }
    let second = receiver.next();
    assert_eq!(second.generation(), 2);
    let ack = |next: u64| json!({ "acks": [{ "stream": "events/a", "offset": offset(next) }] });
    let stale = callback(&web, &first, ack(1));
    assert_eq!(code(&stale), (409, "FENCED".to_owned()));
    for (wrong, status) in [
        (ack(2), 409),
        (json!({"acks": [{"stream": "x", "offset": offset(0)}]}), 409),
    ] {
        let got = callback(&web, &second, wrong);
        assert_eq!(code(&got), (status, "INVALID_OFFSET".to_owned()));
    }
    assert_eq!(callback(&web, &second, ack(1)).status, 200);
    let back = callback(&web, &second, ack(0));
    assert_eq!(code(&back), (409, "INVALID_OFFSET".to_owned()));
    // What was acknowledged and who holds the wake live through a crash.
    web.restart(&[]);
    assert_eq!(acked(&web, "s", "events/a"), offset(1));
    let done = callback(&web, &second, json!({ "done": true }));
    assert_eq!(
        (done.status, value(&done)["next_wake"].clone()),
        (200, json!(false))
    );
    receiver.none_for(Duration::from_millis(1500));
}

#[test]
fn callback_without_the_wakes_token_is_refused() {
    let web = Web::start(&[]);
    let receiver = Receiving::start(&[(204, "")]);
    assert_eq!(webhook(&web, "s", &receiver.url()).status, 201);
    assert_eq!(webhook(&web, "t", &receiver.url()).status, 201);
    web.made("events/a", TEXT, "x");
    let (one, other) = (receiver.next(), receiver.next());
    let path = format!("{}/callback", subscription(one.text("subscription_id")));
    let foreign = format!("Bearer {}", other.text("callback_token"));
    let body = one.said(json!({ "done": true }));
    let none = web.post(&path, &[JSON], &body);
    assert_eq!(code(&none), (401, "TOKEN_INVALID".to_owned()));
    for bearer in [foreign.as_str(), "Bearer x", "Bearer ds1.1.AAAA", "Basic x"] {
        let got = web.post(&path, &[JSON, ("authorization", bearer)], &body);
        assert_eq!(code(&got), (401, "TOKEN_INVALID".to_owned()), "{bearer}");
    }
    assert_eq!(callback(&web, &one, json!({ "done": true })).status, 200);
}

#[test]
fn wakes_token_lets_in_where_the_servers_is_needed_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "secret").unwrap();
    let web = Web::start(&["--token-file", file.to_str().unwrap()]);
    let own = ("authorization", "Bearer secret");
    let receiver = Receiving::start(&[(204, "")]);
    let refused = webhook(&web, "s", &receiver.url());
    assert_eq!(refused.status, 401);
    let body = json!({ "type": "webhook", "streams": ["a"], "webhook": { "url": receiver.url() } });
    let made = web.ask("PUT", &subscription("s"), &[JSON, own], &body.to_string());
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(web.ask("PUT", "a", &[TEXT, own], "x").status, 201);
    let hook = receiver.next();
    assert!(is_verified(&web, &hook), "the key is public");
    assert_eq!(callback(&web, &hook, json!({ "done": true })).status, 200);
    for path in ["s", "s/claim", "s/streams"] {
        let path = subscription(path);
        let bearer = format!("Bearer {}", hook.text("callback_token"));
        let got = web.post(&path, &[JSON, ("authorization", &bearer)], "{}");
        assert_eq!(got.status, 401, "{path}");
    }
}

#[test]
fn of_two_workers_one_wins_and_the_other_is_told_who() {
    let mut web = Web::start(&[]);
    web.made("wakes", JSON, "[]");
    assert_eq!(pulled(&web, "p", 60_000).status, 201);
    let claim = |web: &Web, worker: &str| {
        let body = json!({ "worker": worker }).to_string();
        web.post(&(subscription("p") + "/claim"), &[JSON], &body)
    };
    let nothing = claim(&web, "a");
    assert_eq!(code(&nothing), (409, "NO_PENDING_WORK".to_owned()));
    web.made("jobs/1", JSON, "{}");
    until(|| wakes(&web).len() == 1);
    let event = wakes(&web).remove(0);
    assert_eq!(
        (event["type"].as_str(), event["stream"].as_str()),
        (Some("wake"), Some("jobs/1"))
    );
    assert_eq!(
        (
            event["subscription_id"].as_str(),
            event["generation"].as_u64()
        ),
        (Some("p"), Some(1))
    );
    let both = std::thread::scope(|scope| {
        let all = ["a", "b"].map(|worker| scope.spawn(|| claim(&web, worker)));
        all.map(|one| one.join().unwrap())
    });
    let (won, lost): (Vec<&Got>, Vec<&Got>) = both.iter().partition(|got| got.status == 200);
    assert_eq!(
        (won.len(), code(lost[0])),
        (1, (409, "ALREADY_CLAIMED".to_owned()))
    );
    let held = value(won[0]);
    assert_eq!(value(lost[0])["error"]["generation"], 1);
    assert_eq!(
        (&held["lease_ttl_ms"], &held["streams"][0]["path"]),
        (&json!(60_000), &json!("jobs/1"))
    );
    web.restart(&[]);
    let busy = claim(&web, "c");
    let holder = value(&busy)["error"]["current_holder"].clone();
    assert!(holder == "a" || holder == "b", "{busy:?}");
    let bearer = format!("Bearer {}", held["token"].as_str().unwrap());
    let say = |web: &Web, action: &str, more: Value| {
        let mut said = json!({ "wake_id": held["wake_id"], "generation": held["generation"] });
        more.as_object()
            .unwrap()
            .iter()
            .for_each(|(name, v)| said[name] = v.clone());
        let path = format!("{}/{action}", subscription("p"));
        web.post(
            &path,
            &[JSON, ("authorization", &bearer)],
            &said.to_string(),
        )
    };
    let wrong_way = say(&web, "callback", json!({}));
    assert_eq!(code(&wrong_way), (400, "INVALID_REQUEST".to_owned()));
    let acks = json!({ "acks": [{ "path": "jobs/1", "offset": offset(1) }] });
    assert_eq!(
        value(&say(&web, "ack", acks)),
        json!({"ok": true, "next_wake": false})
    );
    web.made("jobs/2", JSON, "{}");
    std::thread::sleep(Duration::from_millis(200));
    let released = say(&web, "release", json!({}));
    assert_eq!((released.status, released.body.as_str()), (204, ""));
    assert_eq!(
        code(&say(&web, "release", json!({}))),
        (409, "FENCED".to_owned())
    );
    until(|| wakes(&web).iter().any(|event| event["generation"] == 2));
    // Its own wakes never wake it, although its pattern is all streams.
    assert_eq!(claim(&web, "d").status, 200);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(value(&claim(&web, "e"))["error"]["generation"], 2);
}

#[test]
fn urls_that_lead_inside_the_network_are_refused() {
    let web = Web::start(&[]);
    for url in [
        "http://10.0.0.1/hook",
        "https://169.254.169.254/latest",
        "https://[fd00::1]/",
        "http://example.com/",
        "https://localhost/",
        "not a url",
    ] {
        let refused = webhook(&web, "s", url);
        assert_eq!(
            code(&refused),
            (400, "WEBHOOK_URL_REJECTED".to_owned()),
            "{url}"
        );
    }
    assert_eq!(code(&web.get(&subscription("s"))).0, 404);
    // Behind an address that others reach, nothing on this machine either.
    let open = Web::start(&["--http-listen", "0.0.0.0:0", "--insecure"]);
    let refused = webhook(&open, "s", "http://127.0.0.1:80/");
    assert_eq!(code(&refused), (400, "WEBHOOK_URL_REJECTED".to_owned()));
}

#[test]
fn routes_and_bodies_that_are_none_are_refused_in_json() {
    let web = Web::start(&[]);
    for (method, path, body, expected) in [
        ("GET", "__ds/other", "", (404, "NOT_FOUND")),
        ("GET", "__ds", "", (404, "NOT_FOUND")),
        ("POST", "__ds/jwks.json", "", (405, "METHOD_NOT_ALLOWED")),
        (
            "PATCH",
            "__ds/subscriptions/s",
            "",
            (405, "METHOD_NOT_ALLOWED"),
        ),
        ("PUT", "__ds/subscriptions/s", "{", (400, "INVALID_REQUEST")),
        ("PUT", "__ds/subscriptions/s", "", (400, "INVALID_REQUEST")),
        (
            "PUT",
            "__ds/subscriptions/s",
            r#"{"type":"webhook"}"#,
            (400, "INVALID_REQUEST"),
        ),
        (
            "POST",
            "__ds/subscriptions/s/claim",
            "{}",
            (400, "INVALID_REQUEST"),
        ),
        (
            "POST",
            "__ds/subscriptions/s/claim",
            r#"{"worker":"w"}"#,
            (404, "SUBSCRIPTION_NOT_FOUND"),
        ),
        (
            "POST",
            "__ds/subscriptions/s/streams",
            r#"{"streams":["a"]}"#,
            (404, "SUBSCRIPTION_NOT_FOUND"),
        ),
    ] {
        let got = web.ask(method, path, &[JSON], body);
        let (status, expected) = (expected.0, expected.1.to_owned());
        assert_eq!(code(&got), (status, expected), "{method} {path}");
        assert_eq!(got.header("x-content-type-options"), "nosniff");
    }
}
