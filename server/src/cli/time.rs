//! Time: points in time as people write them, in milliseconds since the Unix epoch.
//!
//! **Invariants**
//! - Years 1970 to 9999; what is outside is refused, not wrapped.
//! - Writing a time and reading it back gives the same millisecond.
//!
//! **Not here**: clocks other than now; ordering (timestamps never order anything).

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_MS: u64 = 86_400_000;
const RULE: &str = "neither RFC 3339 (2026-01-31T12:00:00Z), nor milliseconds since 1970, \
                    nor how long ago (500ms, 90s, 5m, 2h, 1d, 1w)";

/// Now.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Reads RFC 3339, milliseconds, or an age such as `5m` counted back from now.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    parse_at(text, now_ms())
}

fn parse_at(text: &str, now_ms: u64) -> Result<u64, String> {
    let bad = || format!("time {text:?} is {RULE}");
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    match age_ms(text) {
        Some(age) => now_ms.checked_sub(age).ok_or_else(bad),
        None => rfc3339_ms(text.as_bytes()).ok_or_else(bad),
    }
}

fn age_ms(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => DAY_MS,
        "w" => 7 * DAY_MS,
        _ => return None,
    };
    count.parse::<u64>().ok()?.checked_mul(unit_ms)
}

/// `YYYY-MM-DDThh:mm:ss[.fraction](Z|+hh:mm|-hh:mm)`.
pub(crate) fn rfc3339_ms(text: &[u8]) -> Option<u64> {
    let (head, rest) = text.split_at_checked(19)?;
    let shape = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let separator = matches!(head[10], b'T' | b't' | b' ');
    if !separator || shape.iter().any(|(at, c)| head[*at] != *c) {
        return None;
    }
    let field = |from: usize, to: usize| number(&head[from..to]);
    let (year, month, day) = (field(0, 4)?, field(5, 7)?, field(8, 10)?);
    let (hour, minute, second) = (field(11, 13)?, field(14, 16)?, field(17, 19)?);
    let days_in = [31, 28 + leap(year), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let last = *days_in.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    // A leap second counts as the second after it.
    if !(1..=last).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction_ms, zone) = fraction(rest)?;
    let offset_minutes = zone_minutes(zone)?;
    let days = days_before(year, month, day)?;
    let minutes = i64::try_from(days * 1440 + hour * 60 + minute).ok()? - offset_minutes;
    Some(u64::try_from(minutes).ok()? * 60_000 + second * 1000 + fraction_ms)
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |value: u64, digit| {
        digit
            .is_ascii_digit()
            .then(|| value * 10 + u64::from(digit - b'0'))
    })
}

fn fraction(rest: &[u8]) -> Option<(u64, &[u8])> {
    let Some(rest) = rest.strip_prefix(b".") else {
        return Some((0, rest));
    };
    let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
    let (digits, zone) = rest.split_at(digits);
    let mut three = [b'0'; 3];
    for (to, from) in three.iter_mut().zip(digits) {
        *to = *from;
    }
    (!digits.is_empty()).then_some((number(&three)?, zone))
}

fn zone_minutes(zone: &[u8]) -> Option<i64> {
    match zone {
        [b'Z' | b'z'] => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?);
            let total = i64::try_from(hours * 60 + minutes).ok()?;
            let valid = hours < 24 && minutes < 60;
            valid.then_some(if *sign == b'-' { -total } else { total })
        }
        _ => None,
    }
}

fn leap(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    u64::from(leap)
}

/// Days from 1970-01-01 to a valid date; `None` before.
fn days_before(year: u64, month: u64, day: u64) -> Option<u64> {
    const BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let past = year.checked_sub(1970).map(|_| year - 1)?;
    let leaps = past / 4 - past / 100 + past / 400 - 477;
    let this_leap = if month > 2 { leap(year) } else { 0 };
    let month = BEFORE_MONTH.get(usize::try_from(month - 1).ok()?)?;
    Some((year - 1970) * 365 + leaps + month + this_leap + day - 1)
}

/// RFC 3339 in UTC with milliseconds; the bare number beyond the year 9999.
pub(crate) fn format(ms: u64) -> String {
    let mut days = ms / DAY_MS;
    if days > 2_932_896 {
        return ms.to_string();
    }
    let mut year = 1970 + days / 366;
    while days_before(year + 1, 1, 1).is_some_and(|next| next <= days) {
        year += 1;
    }
    days -= days_before(year, 1, 1).unwrap_or(0);
    let mut month = 1;
    let of =
        |month| days_before(year, month, 1).unwrap_or(0) - days_before(year, 1, 1).unwrap_or(0);
    while month < 12 && of(month + 1) <= days {
        month += 1;
    }
    let (day, rest) = (days - of(month) + 1, ms % DAY_MS);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, milli) = (rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_each_form_gives_milliseconds() {
        let now = 1_800_000_000_000;
        for (text, ms) in [
            ("0", 0),
            ("1767225600123", 1_767_225_600_123),
            ("1970-01-01T00:00:00Z", 0),
            ("2026-01-01T00:00:00Z", 1_767_225_600_000),
            ("2026-01-01t00:00:00.5z", 1_767_225_600_500),
            ("2026-01-01 02:00:00.123456+02:00", 1_767_225_600_123),
            ("2025-12-31T19:30:00-04:30", 1_767_225_600_000),
            ("2024-02-29T00:00:00Z", 1_709_164_800_000),
            ("5m", now - 300_000),
            ("250ms", now - 250),
            ("1w", now - 7 * DAY_MS),
        ] {
            assert_eq!(parse_at(text, now), Ok(ms), "{text}");
        }
    }

    #[test]
    fn parse_nonsense_refused_with_the_rule() {
        for text in [
            "",
            "soon",
            "5",
            "2026-01-01",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "99999999999999999999w",
            "-5m",
        ] {
            if text == "5" {
                continue; // five milliseconds after 1970
            }
            let refused = parse_at(text, 1_800_000_000_000).unwrap_err();
            assert!(refused.contains(RULE), "{text:?}: {refused}");
        }
    }

    #[test]
    fn format_then_parse_is_identity() {
        for ms in [
            0,
            1,
            951_782_400_000,
            1_767_225_600_123,
            4_102_444_799_999,
            253_402_300_799_999,
        ] {
            assert_eq!(parse_at(&format(ms), 0), Ok(ms), "{}", format(ms));
        }
        assert_eq!(format(1_709_164_800_000), "2024-02-29T00:00:00.000Z");
        assert_eq!(format(253_402_300_800_000), "253402300800000");
        let day = |n: u64| format(n * DAY_MS);
        for n in 0..60_000 {
            assert_eq!(parse_at(&day(n), 0), Ok(n * DAY_MS));
        }
    }
}
