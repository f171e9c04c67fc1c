//! What an ID token proves: one pure rule.
//!
//! What must stay true: only asymmetric algorithms count, whatever the token says; the key is one that the provider publishes, for that algorithm; issuer,
//! audience, subject and dates are there and right, each in its own type; a nonce that was asked for is in it.

use super::LoginConfig;
use super::crypto::{self, ALGORITHMS};
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{AlgorithmFamily, DecodingKey, Header, Validation, decode, decode_header};
use muster_model::Principal;
use muster_model::bounds::ID_TOKEN_BYTES_MAX;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// How far clocks may differ.
const LEEWAY_MS: i64 = 60_000;
/// How old a token may be: it is verified once, right after it was made.
const AGE_MS_MAX: i64 = 600_000;
/// Groups of one person.
const GROUPS_MAX: usize = 256;
/// Bytes of the name of a group.
const GROUP_BYTES_MAX: usize = 256;

/// Whom a token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proved {
    pub(crate) user: String,
    pub(crate) groups: Vec<String>,
}

/// Why a token proves nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The provider cannot be asked for its keys.
    #[error(
        "the identity provider {issuer} cannot be asked for its keys: {why}; try again later, sessions go on meanwhile"
    )]
    Provider {
        /// Which.
        issuer: String,
        /// Why not.
        why: String,
    },
    /// It has no key of that name.
    #[error("the ID token is signed with a key that the identity provider does not publish ({kid}); log in again")]
    UnknownKey {
        /// Its name.
        kid: String,
    },
    /// It had no key of that name when it was asked last, and is not asked again yet.
    #[error(
        "the ID token is signed with a key that the identity provider did not publish when it was asked last ({kid}); it is asked once a minute: log in again in a minute"
    )]
    MaybeNewKey {
        /// Its name.
        kid: String,
    },
    /// The token does not hold.
    #[error("the ID token does not hold: {0}; log in again")]
    Token(String),
}

/// The claims that are looked at.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: f64,
    iat: f64,
    #[serde(default)]
    nbf: Option<f64>,
    #[serde(default)]
    nonce: Option<String>,
    #[serde(default)]
    azp: Option<String>,
    #[serde(default)]
    email_verified: Option<Value>,
    aud: Value,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// See the module.
///
/// # Errors
/// [`Refused`].
pub(super) fn verify(
    config: &LoginConfig,
    keys: &JwkSet,
    token: &str,
    nonce: &str,
    now_ms: u64,
) -> Result<Proved, Refused> {
    crypto::install();
    if token.len() > ID_TOKEN_BYTES_MAX {
        return Err(refused(format!("it has {} bytes; at most {ID_TOKEN_BYTES_MAX} are read", token.len())));
    }
    let header = decode_header(token).map_err(refused)?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(refused(format!("its algorithm is {:?}, and only signatures with public keys count", header.alg)));
    }
    // RFC 7515: a token that says that something must be understood is refused by whoever does not, and nothing of the kind is understood here.
    if header.crit.is_some() {
        return Err(refused("its header has crit, and nothing that it can name is understood here"));
    }
    let key = key(keys, &header)?;
    let mut rules = Validation::new(header.alg);
    rules.set_issuer(&[&config.issuer]);
    rules.set_audience(&[&config.client_id]);
    rules.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    // By the time of the cluster, below.
    rules.validate_exp = false;
    rules.validate_nbf = false;
    let claims = decode::<Claims>(token, &key, &rules).map_err(refused)?.claims;
    in_time(&claims, now_ms)?;
    if claims.aud.as_array().is_some_and(|all| all.len() > 1) && claims.azp.as_deref() != Some(&config.client_id) {
        return Err(refused("it is for several, and was not made for this cluster (azp)"));
    }
    let has_nonce = claims.nonce.as_deref().unwrap_or_default() == nonce;
    if !has_nonce || (nonce.is_empty() && !config.device_flow) {
        return Err(refused("its nonce is not the one of this login"));
    }
    Ok(Proved { user: user(config, &claims)?, groups: groups(config, &claims)? })
}

/// The key that is meant: by its name, or the only one.
fn key(keys: &JwkSet, header: &Header) -> Result<DecodingKey, Refused> {
    let signs = |key: &&Jwk| key.common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature);
    let found = match &header.kid {
        Some(kid) => keys.find(kid).filter(signs),
        None => {
            let mut all = keys.keys.iter().filter(signs);
            all.next().filter(|_| all.next().is_none())
        }
    };
    let kid = || header.kid.clone().unwrap_or_else(|| "it has no name".to_owned());
    let key = found.ok_or_else(|| Refused::UnknownKey { kid: kid() })?;
    let named = key.common.key_algorithm.map(|algorithm| algorithm.to_string());
    if named.is_some_and(|named| named != format!("{:?}", header.alg)) {
        return Err(refused(format!("its key is not for {:?}", header.alg)));
    }
    if !is_of_family(&key.algorithm, header.alg.family()) {
        return Err(refused(format!("its key is of another kind than {:?}", header.alg)));
    }
    DecodingKey::from_jwk(key).map_err(refused)
}

/// Whether a published key is a public key of this family of algorithms. A shared secret (`oct`) is none of any.
fn is_of_family(key: &AlgorithmParameters, family: AlgorithmFamily) -> bool {
    match key {
        AlgorithmParameters::EllipticCurve(_) => family == AlgorithmFamily::Ec,
        AlgorithmParameters::RSA(_) => family == AlgorithmFamily::Rsa,
        AlgorithmParameters::OctetKeyPair(_) => family == AlgorithmFamily::Ed,
        _ => false,
    }
}

fn in_time(claims: &Claims, now_ms: u64) -> Result<(), Refused> {
    let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    // Dates are numbers of seconds, with fractions where a provider likes them; a conversion never goes beyond the ends.
    let ms = |seconds: f64| (seconds * 1_000.0) as i64;
    if ms(claims.exp).saturating_add(LEEWAY_MS) <= now_ms {
        return Err(refused("it has expired"));
    }
    let later = |seconds: f64| ms(seconds).saturating_sub(LEEWAY_MS) > now_ms;
    if claims.nbf.is_some_and(later) || later(claims.iat) {
        return Err(refused("it is not valid yet; compare the clocks of the cluster and of the identity provider"));
    }
    if now_ms.saturating_sub(ms(claims.iat)) > AGE_MS_MAX + LEEWAY_MS {
        return Err(refused("it was made more than ten minutes ago"));
    }
    Ok(())
}

fn user(config: &LoginConfig, claims: &Claims) -> Result<String, Refused> {
    let claim = config.user_claim.as_str();
    let named = match claim {
        "sub" => Some(claims.sub.as_str()),
        claim => claims.others.get(claim).and_then(Value::as_str),
    };
    let named = named.ok_or_else(|| {
        let remedy =
            "have the identity provider put that claim into ID tokens, or name another one as `user-claim` in the file of --oidc";
        refused(format!("it has no text {claim:?}, which names the user: {remedy}"))
    })?;
    // Some providers send it as a text. What is neither true nor absent verifies nothing.
    let is_true = |value: &Value| value.as_bool() == Some(true) || value.as_str() == Some("true");
    if claim == "email" && claims.email_verified.as_ref().is_some_and(|value| !is_true(value)) {
        return Err(refused("the identity provider has not verified the e-mail address"));
    }
    Principal::check_user(named).map_err(|why| refused(format!("{claim} is {named:?}: {why}")))?;
    Ok(named.to_owned())
}

fn groups(config: &LoginConfig, claims: &Claims) -> Result<Vec<String>, Refused> {
    let claim = config.groups_claim.as_str();
    let listed = match claims.others.get(claim) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(all)) => all.iter().map(|one| one.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>(),
        Some(Value::String(one)) => Some(vec![one.clone()]),
        Some(_) => None,
    };
    let listed = listed.ok_or_else(|| refused(format!("{claim:?} is no list of texts")))?;
    let long = |group: &String| group.len() > GROUP_BYTES_MAX || group.chars().any(char::is_control);
    if listed.len() > GROUPS_MAX || listed.iter().any(long) {
        return Err(refused(format!(
            "{claim:?} has {} groups, or a long name; at most {GROUPS_MAX} are read",
            listed.len()
        )));
    }
    Ok(listed)
}

fn refused(why: impl ToString) -> Refused {
    Refused::Token(why.to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Fetch;
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use futures::FutureExt;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;
    use std::sync::Arc;

    const NOW_MS: u64 = 1_800_000_000_000;
    const NOW_S: u64 = NOW_MS / 1_000;

    pub(in super::super) fn config(issuer: &str, fetch: Fetch) -> LoginConfig {
        LoginConfig {
            issuer: issuer.to_owned(),
            client_id: "muster".to_owned(),
            user_claim: "email".to_owned(),
            groups_claim: "groups".to_owned(),
            scopes: Vec::new(),
            session_ms: 3_600_000,
            device_flow: true,
            fetch,
        }
    }

    struct Provider {
        key: EcdsaKeyPair,
    }

    fn encoded(part: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(part)
    }

    impl Provider {
        fn new() -> Self {
            let random = SystemRandom::new();
            let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
            Provider { key: EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("a key") }
        }

        fn keys(&self) -> JwkSet {
            let point = self.key.public_key().as_ref();
            let (x, y) = (encoded(&point[1..33]), encoded(&point[33..]));
            let key = json!({"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "k1", "use": "sig", "alg": "ES256"});
            serde_json::from_value(json!({ "keys": [key] })).expect("a key set")
        }

        fn token(&self, header: &Value, claims: &Value) -> String {
            let signed =
                format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
            let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).expect("signed");
            format!("{signed}.{}", encoded(signature.as_ref()))
        }
    }

    fn header() -> Value {
        json!({"alg": "ES256", "kid": "k1", "typ": "JWT"})
    }

    fn claims() -> Value {
        json!({
            "iss": "https://idp", "aud": "muster", "sub": "17", "exp": NOW_S + 300, "iat": NOW_S - 5, "nonce": "n1",
            "email": "alice@corp.example", "email_verified": true, "groups": ["ml", "ops"],
        })
    }

    fn judge(provider: &Provider, token: &str) -> Result<Proved, Refused> {
        let fetch: Fetch = Arc::new(|_| async { Err(String::new()) }.boxed());
        verify(&config("https://idp", fetch), &provider.keys(), token, "n1", NOW_MS)
    }

    #[test]
    fn a_good_token_proves_its_user_and_groups() {
        let provider = Provider::new();
        let proved = judge(&provider, &provider.token(&header(), &claims())).expect("it holds");
        assert_eq!(
            proved,
            Proved { user: "alice@corp.example".to_owned(), groups: vec!["ml".to_owned(), "ops".to_owned()] }
        );
    }

    /// Attempt 25 of the design, and what peers have taken for good.
    #[test]
    fn attempt_25_tokens_that_do_not_hold_prove_nobody() {
        let provider = Provider::new();
        let with = |change: Value| {
            let mut all = claims();
            for (name, value) in change.as_object().expect("an object") {
                match value {
                    Value::Null => drop(all.as_object_mut().expect("an object").remove(name)),
                    value => all[name] = value.clone(),
                }
            }
            provider.token(&header(), &all)
        };
        for (change, why) in [
            (json!({"iss": "https://other"}), "InvalidIssuer"),
            (json!({"aud": "another"}), "InvalidAudience"),
            (json!({"aud": ["muster", "another"]}), "azp"),
            (json!({"sub": null}), "sub"),
            (json!({"exp": null}), "exp"),
            (json!({"iss": null}), "iss"),
            (json!({"aud": null}), "aud"),
            (json!({"exp": NOW_S - 61}), "expired"),
            (json!({"exp": (NOW_S + 300).to_string()}), "exp"),
            (json!({"nbf": NOW_S + 61}), "not valid yet"),
            (json!({"iat": NOW_S + 61}), "not valid yet"),
            (json!({"iat": NOW_S - 700}), "ten minutes"),
            (json!({"nonce": "n2"}), "nonce"),
            (json!({"nonce": null}), "nonce"),
            (json!({"email": null}), "names the user"),
            (json!({"email": 7}), "names the user"),
            (json!({"email": "a/b"}), "no / and no :"),
            (json!({"email": "a b"}), "spaces"),
            (json!({"email_verified": false}), "not verified"),
            (json!({"email_verified": "false"}), "not verified"),
            (json!({"email_verified": "False"}), "not verified"),
            (json!({"email_verified": 0}), "not verified"),
            (json!({"email_verified": []}), "not verified"),
            (json!({"groups": [1]}), "no list of texts"),
            (json!({"groups": vec!["g"; 257]}), "257 groups"),
        ] {
            let refused = judge(&provider, &with(change.clone())).expect_err(why).to_string();
            assert!(refused.contains(why), "{change}: {refused:?} lacks {why:?}");
        }
        let good = provider.token(&header(), &claims());
        let (signed, signature) = good.rsplit_once('.').expect("a signature");
        let (head, body) = signed.split_once('.').expect("a body");
        let headed = |header: Value| format!("{}.{body}.{signature}", encoded(header.to_string().as_bytes()));
        let symmetric = encoded(json!({"alg": "HS256", "kid": "k1"}).to_string().as_bytes());
        let public = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, provider.key.public_key().as_ref());
        let secret = ring::hmac::sign(&public, format!("{symmetric}.{body}").as_bytes());
        let forged = format!("{symmetric}.{body}.{}", encoded(secret.as_ref()));
        for (what, token) in [
            ("no signature", format!("{}.{body}.", encoded(json!({"alg": "none"}).to_string().as_bytes()))),
            ("the public key as a secret", forged),
            ("another algorithm", headed(json!({"alg": "RS256", "kid": "k1"}))),
            ("another header", headed(json!({"alg": "ES256", "kid": "k1", "x": 1}))),
            (
                "a header that must be understood",
                provider.token(&json!({"alg": "ES256", "kid": "k1", "crit": ["exp"], "exp": 1}), &claims()),
            ),
            ("an unknown key", provider.token(&json!({"alg": "ES256", "kid": "k2"}), &claims())),
            ("another's key", Provider::new().token(&header(), &claims())),
            ("cut", good[..good.len() - 4].to_owned()),
            ("another body", format!("{head}.{}.{signature}", encoded(with(json!({"sub": "18"})).as_bytes()))),
            ("nothing", String::new()),
            ("no token", "ms1_17_abc_00000000".to_owned()),
            ("too long", format!("{good}{}", "a".repeat(ID_TOKEN_BYTES_MAX))),
        ] {
            assert!(judge(&provider, &token).is_err(), "{what}");
        }
    }

    /// A secret that a provider publishes by mistake is known to all, so what is signed for it proves nobody.
    #[test]
    fn a_published_secret_is_no_public_key() {
        let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key");
        let public = encoded(key.public_key().as_ref());
        let signed = format!(
            "{}.{}",
            encoded(json!({"alg": "EdDSA", "kid": "k1"}).to_string().as_bytes()),
            encoded(claims().to_string().as_bytes())
        );
        let token = format!("{signed}.{}", encoded(key.sign(signed.as_bytes()).as_ref()));
        let judged = |key: Value| {
            let keys: JwkSet = serde_json::from_value(json!({ "keys": [key] })).expect("a key set");
            let fetch: Fetch = Arc::new(|_| async { Err(String::new()) }.boxed());
            verify(&config("https://idp", fetch), &keys, &token, "n1", NOW_MS)
        };
        judged(json!({"kty": "OKP", "crv": "Ed25519", "x": public, "kid": "k1"})).expect("a public key");
        let refused = judged(json!({"kty": "oct", "k": public, "kid": "k1"})).expect_err("a secret").to_string();
        assert!(refused.contains("another kind"), "{refused}");
    }
}
