//! Offset: positions as clients send them back, and cursors that keep caches apart.
//!
//! **Invariants**
//! - Offsets order as text as their positions do; they are never `-1` or `now`.
//! - A cursor that is answered is greater than the one that was sent, if that was not behind.
//!
//! **Not here**: what lies at a position (`read`).

use super::Refused;

/// 2024-10-09T00:00:00Z, where cursors begin, in milliseconds.
const CURSOR_EPOCH_MS: u64 = 1_728_432_000_000;
/// Length of a cursor's interval.
const CURSOR_INTERVAL_MS: u64 = 20_000;
/// Most that a cursor is moved on by, in intervals: an hour.
const CURSOR_JITTER_MAX: u64 = 3_600_000 / CURSOR_INTERVAL_MS;

/// Digits of a position.
const DIGITS: usize = 16;

/// Where to read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offset {
    /// At this sequence; `-1` is 0.
    At(u64),
    /// Behind everything, whatever that is.
    Beyond,
    /// At the tail.
    Now,
}

/// The offset of sequence `next`.
pub(super) fn format(next: u64) -> String {
    let mut text = *b"0000000000000000_0000000000000000";
    let mut left = next;
    for digit in text.iter_mut().rev().take(DIGITS) {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    match left {
        0 => String::from_utf8_lossy(&text).into_owned(),
        _ => format!("{:016}_{next}", 0),
    }
}

/// Reads an offset of a request.
pub(super) fn parse(text: &str) -> Result<Offset, Refused> {
    match text {
        "-1" => return Ok(Offset::At(0)),
        "now" => return Ok(Offset::Now),
        _ => {}
    }
    let bad = || {
        Refused::bad(&format!(
            "offset {text:?} is neither -1, nor now, nor 16 digits, _ and 16 digits"
        ))
    };
    let (epoch, sequence) = text.split_once('_').ok_or_else(bad)?;
    let digits = |part: &str| part.len() == 16 && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(epoch) || !digits(sequence) {
        return Err(bad());
    }
    match (epoch.bytes().all(|b| b == b'0'), sequence.parse()) {
        (true, Ok(sequence)) => Ok(Offset::At(sequence)),
        _ => Ok(Offset::Beyond),
    }
}

/// The cursor to answer `sent` with.
pub(super) fn cursor(sent: Option<&str>, now_ms: u64, random: u64) -> String {
    let current = u128::from(now_ms.saturating_sub(CURSOR_EPOCH_MS) / CURSOR_INTERVAL_MS);
    // Wider than whatever counts honestly, so that there is always a greater one.
    let sent = sent.and_then(|sent| sent.parse::<u128>().ok());
    match sent.filter(|sent| *sent >= current) {
        Some(ahead) => ahead.saturating_add(u128::from(1 + random % CURSOR_JITTER_MAX)),
        None => current,
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_back_and_order_as_text() {
        let texts: Vec<String> = [0, 1, 9, 10, 1 << 40].map(format).into();
        assert!(texts.is_sorted());
        for (text, next) in texts.iter().zip([0, 1, 9, 10, 1 << 40]) {
            assert_eq!(parse(text).expect("an offset"), Offset::At(next));
        }
    }

    #[test]
    fn what_is_no_offset_is_refused() {
        for text in [
            "",
            " ",
            "0",
            "-2",
            "NOW",
            "0_0",
            "../..",
            "0000000000000000_000000000000000x",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let beyond = parse("9999999999999999_9999999999999999");
        assert_eq!(beyond.expect("an offset"), Offset::Beyond);
    }

    #[test]
    fn cursor_moves_on_from_whatever_is_not_behind() {
        let now_ms = CURSOR_EPOCH_MS + 100 * CURSOR_INTERVAL_MS;
        for sent in [None, Some("99"), Some("junk"), Some("")] {
            assert_eq!(cursor(sent, now_ms, 7), "100");
        }
        let most = cursor(Some(&u64::MAX.to_string()), now_ms, 0);
        assert_eq!(most, (u128::from(u64::MAX) + 1).to_string());
        let mut sent = 100;
        for random in 0..1000 {
            let next = cursor(Some(&sent.to_string()), now_ms, random * 7919).parse();
            let next: u64 = next.expect("a number");
            assert!(next > sent && next <= sent + CURSOR_JITTER_MAX);
            sent = next;
        }
    }
}
