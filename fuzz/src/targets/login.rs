//! Login with an identity provider: its document, its keys, the ID token. An input has a line each for the header of the token, its claims, the keys and the
//! document; lines that are not there are those of a good provider.
//!
//! The target signs the token with the keys of the provider, whatever the token says. What must stay true: a token proves somebody only when its header asks for
//! nothing, its signature is of a public key of the right kind, and it is from this provider, for this cluster.

use super::text_of;
use crate::target::{Target, reached};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::FutureExt;
use muster_control_server::fuzzing;
use muster_control_server::login::LoginConfig;
use muster_model::Principal;
use muster_runtime::Host;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::Value;
use std::sync::{Arc, LazyLock};

/// See the module.
pub const TARGETS: &[Target] = &[Target {
    name: "id-token",
    what: "an ID token with the keys and the document of its provider: whom it proves, it proves rightly",
    words: &[
        "\"alg\":\"ES256\"",
        "\"alg\":\"EdDSA\"",
        "\"alg\":\"none\"",
        "\"alg\":\"HS256\"",
        "\"crit\":[\"exp\"],",
        "\"kid\":\"k1\",",
        "\"kty\":\"EC\"",
        "\"kty\":\"oct\"",
        "\"use\":\"enc\",",
        "\"aud\":[\"muster\",\"x\"]",
        "\"azp\":\"muster\",",
        "1e308",
        "null",
        "true",
        "[",
        "]",
        "{",
        "}",
        "\n",
    ],
    reaches: &["EC", "OKP"],
    run: id_token,
}];

const NOW_MS: u64 = 1_800_000_000_000;
const ISSUER: &str = "https://idp";
const CLIENT: &str = "muster";
const HEADER: &str = r#"{"alg":"ES256","kid":"k1","typ":"JWT"}"#;
const CLAIMS: &str = r#"{"iss":"https://idp","aud":"muster","sub":"17","exp":1800000300,"iat":1799999995,"nonce":"n1","email":"alice@corp.example"}"#;
/// The words with a dollar stand for the provider's public keys.
const KEYS: &str =
    r#"{"keys":[{"kty":"EC","crv":"P-256","x":"$EC_X","y":"$EC_Y","kid":"k1","use":"sig","alg":"ES256"}]}"#;
const DOCUMENT: &str = r#"{"issuer":"https://idp","jwks_uri":"https://idp/keys"}"#;

/// The provider's keys. They are the smallest that there can be, and the same in every run.
struct Provider {
    ec: EcdsaKeyPair,
    ed: Ed25519KeyPair,
}

/// P-256's generator: the public key of the private key 1.
const GENERATOR: [u8; 65] = [
    0x04, 0x6b, 0x17, 0xd1, 0xf2, 0xe1, 0x2c, 0x42, 0x47, 0xf8, 0xbc, 0xe6, 0xe5, 0x63, 0xa4, 0x40, 0xf2, 0x77, 0x03,
    0x7d, 0x81, 0x2d, 0xeb, 0x33, 0xa0, 0xf4, 0xa1, 0x39, 0x45, 0xd8, 0x98, 0xc2, 0x96, 0x4f, 0xe3, 0x42, 0xe2, 0xfe,
    0x1a, 0x7f, 0x9b, 0x8e, 0xe7, 0xeb, 0x4a, 0x7c, 0x0f, 0x9e, 0x16, 0x2b, 0xce, 0x33, 0x57, 0x6b, 0x31, 0x5e, 0xce,
    0xcb, 0xb6, 0x40, 0x68, 0x37, 0xbf, 0x51, 0xf5,
];

static PROVIDER: LazyLock<Provider> = LazyLock::new(|| {
    let mut one = [0; 32];
    one[31] = 1;
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let ec = EcdsaKeyPair::from_private_key_and_public_key(algorithm, &one, &GENERATOR, &SystemRandom::new());
    Provider { ec: ec.expect("a key"), ed: Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key") }
});

static HOST: LazyLock<Host> =
    LazyLock::new(|| muster_runtime::sim::run(1, |world| async move { world.boot("control-1") }));

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A token with this header and these claims, signed with the key of the algorithm that the header names.
fn signed(header: &str, claims: &str) -> String {
    let body = format!("{}.{}", encoded(header.as_bytes()), encoded(claims.as_bytes()));
    let provider = &*PROVIDER;
    let signature = match header.contains("EdDSA") {
        true => provider.ed.sign(body.as_bytes()).as_ref().to_vec(),
        false => provider
            .ec
            .sign(&SystemRandom::new(), body.as_bytes())
            .map(|made| made.as_ref().to_vec())
            .unwrap_or_default(),
    };
    format!("{body}.{}", encoded(&signature))
}

/// By a stricter reading of URLs than the one under test: what stands before an `@` is no host.
fn leads_here_or_is_encrypted(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return url.starts_with("https://") };
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    matches!(port.map_or(host, |(host, _)| host), "127.0.0.1" | "localhost" | "[::1]")
}

fn config(keys: String, document: String) -> LoginConfig {
    let fetch = move |url: String| {
        assert!(leads_here_or_is_encrypted(&url), "{url} is asked for, where anybody may answer");
        let content = if url == "https://idp/.well-known/openid-configuration" { &document } else { &keys };
        std::future::ready(Ok(content.clone().into_bytes())).boxed()
    };
    LoginConfig {
        issuer: ISSUER.to_owned(),
        client_id: CLIENT.to_owned(),
        user_claim: "email".to_owned(),
        groups_claim: "groups".to_owned(),
        scopes: Vec::new(),
        session_ms: 3_600_000,
        device_flow: false,
        fetch: Arc::new(fetch),
    }
}

fn id_token(bytes: &[u8]) {
    let Some(text) = text_of(bytes) else { return };
    let mut lines = text.split('\n');
    let mut line = |usual: &'static str| lines.next().filter(|line| !line.is_empty()).unwrap_or(usual);
    let (header, claims, keys, document) = (line(HEADER), line(CLAIMS), line(KEYS), line(DOCUMENT));
    let (x, y) = (encoded(&GENERATOR[1..33]), encoded(&GENERATOR[33..]));
    let keys =
        keys.replace("$EC_X", &x).replace("$EC_Y", &y).replace("$ED_X", &encoded(PROVIDER.ed.public_key().as_ref()));
    let proves = |token: &str| {
        let config = config(keys.clone(), document.to_owned());
        fuzzing::login(HOST.clone(), config, token, "n1", NOW_MS).now_or_never().expect("nothing is waited for")
    };
    // As it stands, too: what is no token.
    assert_eq!(proves(header), None, "{header:?} is signed by nobody");
    let Some((user, groups)) = proves(&signed(header, claims)) else { return };
    Principal::check_user(&user).unwrap_or_else(|why| panic!("{user:?}: {why}"));
    assert!(groups.len() <= 256 && groups.iter().all(|group| group.len() <= 256), "{groups:?}");
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    let (header, claims, keys, document) = (json(header), json(claims), json(&keys), json(document));
    assert!(header.get("crit").is_none_or(Value::is_null), "what must be understood was not: {header}");
    let kind = match header["alg"].as_str() {
        Some("ES256") => "EC",
        Some("EdDSA") => "OKP",
        other => panic!("no key of this provider signs with {other:?}"),
    };
    reached(kind);
    let kinds: Vec<_> = keys["keys"].as_array().into_iter().flatten().filter_map(|key| key["kty"].as_str()).collect();
    assert!(kinds.contains(&kind), "a token with {header} holds for keys of the kinds {kinds:?}");
    let for_us = |audience: &Value| {
        audience == CLIENT || audience.as_array().is_some_and(|all| all.iter().any(|one| one == CLIENT))
    };
    assert!(claims["iss"] == ISSUER && for_us(&claims["aud"]), "{claims}");
    assert_eq!(document["issuer"], ISSUER);
}
