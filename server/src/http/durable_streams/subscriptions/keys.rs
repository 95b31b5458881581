//! Keys: what signs webhooks and proves a wake's token: made once, kept in the data directory.
//!
//! **Invariants**
//! - The file is its owner's alone (mode 0600), whole or not there, and durable before anything is signed.
//! - A token names a generation of one subscription and can't be made without the key; it is compared in
//!   constant time.
//! - Nothing of the key is printed: no `Debug` shows it.
//!
//! **Not here**: whether a generation is still in force (the engine fences).

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;

/// The file in the data directory.
const FILE: &str = "subscriptions.key";
/// What it begins with, and the bytes after: a seed for signing, a secret for tokens.
const MAGIC: &[u8; 8] = b"SLSUBKY1";
const PART_BYTES: usize = 32;
const FILE_BYTES: usize = MAGIC.len() + 2 * PART_BYTES;
/// What a token begins with.
const TOKEN: &str = "ds1";

/// The keys of a data directory.
pub(crate) struct Keys {
    signing: Ed25519KeyPair,
    tokens: hmac::Key,
    kid: String,
}

/// Bytes as text that URLs and headers take.
pub(super) fn text(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Keys {
    /// Those of a data directory, made if there are none yet. The caller holds the directory's lock.
    pub(crate) fn load_or_make(dir: &Path) -> io::Result<Self> {
        let path = dir.join(FILE);
        match File::open(&path) {
            Ok(file) => Self::load(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::make(dir, &path),
            Err(error) => Err(error),
        }
    }

    fn load(file: File) -> io::Result<Self> {
        let bad = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        if file.metadata()?.permissions().mode() & 0o077 != 0 {
            let text = "it is readable by others: its mode must be 0600";
            return Err(bad(text));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        let parts = bytes.strip_prefix(MAGIC.as_slice());
        let parts = parts.filter(|parts| parts.len() == 2 * PART_BYTES);
        let parts = parts.ok_or_else(|| bad("it is no key file, or damaged"))?;
        Self::of(parts).ok_or_else(|| bad("it holds no key"))
    }

    fn make(dir: &Path, path: &Path) -> io::Result<Self> {
        let mut bytes = [0; FILE_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        let random = SystemRandom::new().fill(&mut bytes[MAGIC.len()..]);
        random.map_err(|_| io::Error::other("no random bytes"))?;
        let keys = Self::of(&bytes[MAGIC.len()..]);
        let keys = keys.ok_or_else(|| io::Error::other("no key can be made"))?;
        let unfinished = dir.join(format!("{FILE}.tmp"));
        // A start before may have left one.
        if let Err(error) = std::fs::remove_file(&unfinished)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)?;
        File::open(dir)?.sync_all()?;
        Ok(keys)
    }

    fn of(parts: &[u8]) -> Option<Self> {
        let (seed, secret) = parts.split_at_checked(PART_BYTES)?;
        let signing = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
        let public = digest(&SHA256, signing.public_key().as_ref());
        Some(Self {
            kid: format!("ds_{}", text(&public.as_ref()[..12])),
            tokens: hmac::Key::new(hmac::HMAC_SHA256, secret),
            signing,
        })
    }

    /// Name of the public key.
    pub(super) fn kid(&self) -> &str {
        &self.kid
    }

    /// The public key, for who verifies.
    pub(super) fn jwks(&self) -> String {
        let key = json!({
            "kty": "OKP",
            "crv": "Ed25519",
            "x": text(self.signing.public_key().as_ref()),
            "kid": self.kid,
            "alg": "EdDSA",
            "use": "sig",
        });
        json!({ "keys": [key] }).to_string()
    }

    /// The value of `Webhook-Signature` for a body sent at `unix_s`.
    pub(super) fn signature(&self, unix_s: u64, body: &str) -> String {
        let signed = self.signing.sign(format!("{unix_s}.{body}").as_bytes());
        format!(
            "t={unix_s},kid={},ed25519={}",
            self.kid,
            text(signed.as_ref())
        )
    }

    /// The token of a wake.
    pub(super) fn token(&self, subscription: &str, created_ms: u64, generation: u64) -> String {
        let message = token_message(subscription, created_ms, generation);
        let tag = hmac::sign(&self.tokens, &message);
        format!("{TOKEN}.{generation}.{}", text(tag.as_ref()))
    }

    /// The generation that a token is of, if it is one of this subscription.
    pub(super) fn generation(
        &self,
        subscription: &str,
        created_ms: u64,
        token: &str,
    ) -> Option<u64> {
        let (generation, tag) = token
            .strip_prefix(TOKEN)?
            .strip_prefix('.')?
            .split_once('.')?;
        let generation = generation.parse().ok()?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        let message = token_message(subscription, created_ms, generation);
        let proven = hmac::verify(&self.tokens, &message, &tag);
        proven.ok().map(|()| generation)
    }
}

fn token_message(subscription: &str, created_ms: u64, generation: u64) -> Vec<u8> {
    // The name comes last: of whatever length, no other three make the same bytes.
    let numbers = [created_ms.to_le_bytes(), generation.to_le_bytes()].concat();
    [numbers.as_slice(), subscription.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use ring::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    #[test]
    fn keys_are_made_once_for_their_owner_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = Keys::load_or_make(dir.path()).expect("made");
        let path = dir.path().join(FILE);
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Keys::load_or_make(dir.path()).expect("loaded");
        assert_eq!(first.kid(), again.kid());
        assert_eq!(first.token("s", 1, 2), again.token("s", 1, 2));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
        let open = Keys::load_or_make(dir.path()).err().expect("refused");
        assert!(open.to_string().contains("0600"), "{open}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
        std::fs::write(&path, b"short").expect("written");
        assert!(Keys::load_or_make(dir.path()).is_err());
    }

    #[test]
    fn signature_is_over_time_and_body_and_verified_with_the_public_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let keys = Keys::load_or_make(dir.path()).expect("made");
        let value = keys.signature(17, "{}");
        let signed = value.split("ed25519=").nth(1).expect("a signature");
        let signed = URL_SAFE_NO_PAD.decode(signed).expect("base64url");
        let jwks: serde_json::Value = serde_json::from_str(&keys.jwks()).expect("JSON");
        let x = jwks["keys"][0]["x"].as_str().expect("a key");
        let public = UnparsedPublicKey::new(&ED25519, URL_SAFE_NO_PAD.decode(x).expect("bytes"));
        public.verify(b"17.{}", &signed).expect("verified");
        assert!(public.verify(b"18.{}", &signed).is_err());
    }

    #[test]
    fn token_is_of_one_generation_of_one_subscription() {
        let dir = tempfile::tempdir().expect("a directory");
        let keys = Keys::load_or_make(dir.path()).expect("made");
        let token = keys.token("s", 5, 7);
        assert_eq!(keys.generation("s", 5, &token), Some(7));
        for (name, created_ms) in [("t", 5), ("s", 6), ("", 5)] {
            assert_eq!(keys.generation(name, created_ms, &token), None);
        }
        let other = token.replacen(".7.", ".8.", 1);
        for wrong in [other.as_str(), "", "ds1", "ds1.7.", "ds1.7.AAAA", "ds2.7.x"] {
            assert_eq!(keys.generation("s", 5, wrong), None, "{wrong}");
        }
        let elsewhere = tempfile::tempdir().expect("a directory");
        let others = Keys::load_or_make(elsewhere.path()).expect("made");
        assert_eq!(others.generation("s", 5, &token), None);
    }
}
