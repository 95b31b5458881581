//! Tests of lines: where lines end and batches are cut.

use std::io::Cursor;

use sealog_frame::{Batch, FrameLimits, Record};

use super::*;

fn lines_of(source: impl Read + Send + 'static, line_max: usize, steady: bool) -> LineInput {
    LineInput::new("input".to_owned(), Box::new(source), line_max, steady)
}

fn push(line: &[u8], builder: &mut BatchBuilder) -> Result<(), CliError> {
    builder.push(&Record::of(line)).map_err(CliError::from)
}

fn batches(input: &mut LineInput, limits: FrameLimits) -> Result<Vec<Vec<Vec<u8>>>, CliError> {
    let mut builder = BatchBuilder::new(limits);
    let mut all = Vec::new();
    while input.fill(&mut builder, push)? {
        let batch: Batch = builder.build().unwrap();
        all.push(batch.view().records().map(|r| r.payload.to_vec()).collect());
    }
    assert!(!input.fill(&mut builder, push)?, "the end stays the end");
    Ok(all)
}

fn flat(source: &[u8]) -> Vec<Vec<u8>> {
    let mut input = lines_of(Cursor::new(source.to_vec()), 100, true);
    batches(&mut input, FrameLimits::default())
        .unwrap()
        .concat()
}

#[test]
fn fill_lines_are_bytes_between_newlines() {
    assert_eq!(flat(b""), Vec::<Vec<u8>>::new());
    assert_eq!(flat(b"a"), [b"a"]);
    assert_eq!(flat(b"a\n"), [b"a"]);
    assert_eq!(flat(b"\n\nb\r\n"), [&b""[..], b"", b"b\r"]);
    assert_eq!(flat(b"\xff\0\nlast"), [&b"\xff\0"[..], b"last"]);
}

/// Gives one byte at a time.
struct Dripping(Cursor<Vec<u8>>);

impl Read for Dripping {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(&mut to[..1])
    }
}

#[test]
fn fill_steady_input_cuts_the_same_however_it_arrives() {
    let text: Vec<u8> = (0..10_000)
        .flat_map(|n| format!("{n}\n").into_bytes())
        .collect();
    let mut whole = lines_of(Cursor::new(text.clone()), 100, true);
    let mut drips = lines_of(Dripping(Cursor::new(text)), 100, true);
    let whole = batches(&mut whole, FrameLimits::default()).unwrap();
    assert_eq!(
        whole.iter().map(Vec::len).collect::<Vec<_>>(),
        [4096, 4096, 1808]
    );
    assert_eq!(batches(&mut drips, FrameLimits::default()).unwrap(), whole);
}

#[test]
fn fill_long_lines_cut_by_bytes_and_by_what_fits() {
    let line = |c: char| c.to_string().repeat(200 << 10);
    let text = format!("{}\n{}\n{}", line('a'), line('b'), line('c'));
    let limits = FrameLimits {
        batch_bytes_max: 300 << 10,
        ..FrameLimits::default()
    };
    let mut input = lines_of(Cursor::new(text.clone().into_bytes()), 1 << 20, true);
    let cut = batches(&mut input, limits).unwrap();
    assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
    let mut input = lines_of(Cursor::new(text.into_bytes()), 1 << 20, true);
    let cut = batches(&mut input, FrameLimits::default()).unwrap();
    assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn fill_line_over_the_limit_is_named_with_its_place() {
    let mut input = lines_of(Cursor::new(b"ok\nmuch too long\n".to_vec()), 5, true);
    let error = batches(&mut input, FrameLimits::default()).unwrap_err();
    assert!(
        error.message.starts_with("input line 2: more than "),
        "{}",
        error.message
    );
    assert!(error.message.contains("limit of 5"), "{}", error.message);
}

#[test]
fn fill_paused_input_gives_what_there_is() {
    struct Slow(Vec<&'static [u8]>);
    impl Read for Slow {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let Some(part) = self.0.pop() else {
                return Ok(0);
            };
            std::thread::sleep(PAUSE * 20);
            to[..part.len()].copy_from_slice(part);
            Ok(part.len())
        }
    }
    let parts = || Slow(vec![b"ird\n", b"first\nsecond\nth"]);
    let cut = batches(&mut lines_of(parts(), 100, false), FrameLimits::default()).unwrap();
    assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(cut[1], [b"third"]);
    let cut = batches(&mut lines_of(parts(), 100, true), FrameLimits::default()).unwrap();
    assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [3]);
}
