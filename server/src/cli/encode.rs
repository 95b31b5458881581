//! Encode: hexadecimal and base64, for bytes that JSON can't carry.
//!
//! **Invariants**
//! - Decoding takes only what encoding makes: padded base64 of the standard alphabet, whole bytes of hex.
//!
//! **Not here**: JSON (`shapes`, `ndjson`).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Standard base64 with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            if place <= chunk.len() {
                let six = (bits >> (18 - 6 * place)) & 63;
                text.push(char::from(ALPHABET[six as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Bytes of padded standard base64; `None` for anything else.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let last = (text.len() / 4).saturating_sub(1);
    for (index, chunk) in text.chunks(4).enumerate() {
        let padding = chunk.iter().rev().take_while(|c| **c == b'=').count();
        if padding > 2 || (padding > 0 && index != last) {
            return None;
        }
        let mut bits = 0_u32;
        for c in &chunk[..4 - padding] {
            bits = bits << 6 | six_bits(*c)?;
        }
        bits <<= 6 * padding;
        let kept = 3 - padding;
        if bits & ((1 << (8 * padding)) - 1) != 0 {
            return None;
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..=kept]);
    }
    Some(bytes)
}

fn six_bits(c: u8) -> Option<u32> {
    let value = match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

/// Lower-case hexadecimal, as the engine prints digests.
pub(crate) fn hex(bytes: &[u8; 32]) -> String {
    sealog_engine::ids::Digest(*bytes).to_string()
}

/// A fingerprint from its 64 hexadecimal digits.
pub(crate) fn fingerprint(text: &str) -> Result<[u8; 32], String> {
    let digits = text.chars().count();
    if digits != 64 {
        return Err(format!("fingerprint of {digits} hex digits, 64 needed"));
    }
    let mut bytes = [0; 32];
    let mut digits = text.chars();
    for byte in &mut bytes {
        for _ in 0..2 {
            let digit = digits.next().unwrap_or(' ');
            let value = digit
                .to_digit(16)
                .ok_or_else(|| format!("fingerprint holds {digit:?}, not a hex digit"))?;
            *byte = *byte << 4 | value as u8;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_known_vectors_both_ways() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_base64(&base64(&all)), Some(all));
    }

    #[test]
    fn base64_malformed_refused() {
        for text in [
            "Zg", "Zg=", "Z===", "Zg==Zg==", "Zh==", "Zm9=", "Z g=", "Zg\n=",
        ] {
            assert_eq!(from_base64(text), None, "{text:?}");
        }
    }

    #[test]
    fn fingerprint_bad_text_names_what_is_wrong() {
        assert_eq!(fingerprint(&"ab".repeat(32)), Ok([0xab; 32]));
        assert_eq!(hex(&[0xab; 32]), "ab".repeat(32));
        let short = fingerprint("abc").unwrap_err();
        assert_eq!(short, "fingerprint of 3 hex digits, 64 needed");
        let bad = fingerprint(&"x".repeat(64)).unwrap_err();
        assert_eq!(bad, "fingerprint holds 'x', not a hex digit");
    }
}
