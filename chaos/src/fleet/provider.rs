//! A simulated identity provider (OpenID Connect): it publishes its keys, and signs ID tokens for whoever asks. It goes away, and changes its key.
//!
//! What must stay true: keys, dates and delays come from the seed and the simulated time. While it is away nobody gets a token or its keys. In the
//! end it is there.

use crate::history::ProviderThen;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::FutureExt;
use muster_control_server::login::{Fetch, LoginConfig};
use muster_runtime::Chance;
use muster_runtime::sim::SimWorld;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How the cluster names it.
const ISSUER: &str = "https://idp.example";
const KEYS_URL: &str = "https://idp.example/keys";
/// How it names the cluster.
const CLUSTER: &str = "muster";
/// The group of all users of a run.
pub(super) const GROUP: &str = "operations";
/// Sessions are short, so that they end while the provider is away: they stand for those of a day.
const SESSION_MS: (u64, u64) = (20_000, 30_000);
/// For how long it is there between two absences.
const THERE_MS: (u64, u64) = (1_000, 12_000);
/// For how long it is away: longer than a session, as a week is longer than a day.
const AWAY_MS: (u64, u64) = (32_000, 70_000);
/// How long it takes to answer.
const ANSWER_MS: (u64, u64) = (5, 300);
/// How long it takes to find out that it does not answer.
const NO_ANSWER_MS: (u64, u64) = (10, 2_000);
/// How long a token holds.
const TOKEN_S: u64 = 300;
/// For so long after the last fault nobody may be able to log in: the longest absence, and the minute for which a control node does not ask
/// the provider again.
pub(super) const NO_LOGIN_MAX: Duration = Duration::from_secs(140);

/// See the module.
pub(super) struct Provider {
    world: SimWorld,
    chance: Chance,
    session_ms: u64,
    state: Mutex<State>,
}

struct State {
    then: ProviderThen,
    /// Those that are published, with their numbers; the last one signs.
    keys: Vec<(u64, Ed25519KeyPair)>,
}

/// A token for one user.
#[derive(Clone)]
pub(super) struct IdToken {
    pub(super) text: String,
    /// The number of the key that it is signed with.
    pub(super) key: u64,
}

impl Provider {
    /// The provider of a run, with a first key. Its randomness is its own: runs without it are as if there were none.
    pub(super) fn new(world: &SimWorld) -> Arc<Provider> {
        let chance = Chance::seeded(world.seed() ^ 0x6964_705f);
        let session_ms = chance.between(SESSION_MS.0, SESSION_MS.1);
        let state = State { then: ProviderThen::default(), keys: vec![(0, new_key(&chance))] };
        Arc::new(Provider { world: world.clone(), chance, session_ms, state: Mutex::new(state) })
    }

    /// Randomness for one of its users.
    pub(super) fn chance(&self) -> Chance {
        Chance::seeded(self.chance.u64())
    }

    pub(super) fn then(&self) -> ProviderThen {
        self.state().then
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it was held")
    }

    /// What control nodes know of it.
    pub(super) fn config(self: &Arc<Self>) -> LoginConfig {
        let provider = Arc::clone(self);
        let fetch: Fetch = Arc::new(move |url| {
            let provider = Arc::clone(&provider);
            async move { provider.answer(&url).await }.boxed()
        });
        LoginConfig {
            issuer: ISSUER.to_owned(),
            client_id: CLUSTER.to_owned(),
            user_claim: "sub".to_owned(),
            groups_claim: "groups".to_owned(),
            scopes: Vec::new(),
            session_ms: self.session_ms,
            device_flow: true,
            fetch,
        }
    }

    async fn answer(&self, url: &str) -> Result<Vec<u8>, String> {
        let (low, high) = if self.then().away { NO_ANSWER_MS } else { ANSWER_MS };
        sleep(Duration::from_millis(self.chance.between(low, high))).await;
        let state = self.state();
        if state.then.away {
            return Err("no answer".to_owned());
        }
        let document = match url {
            KEYS_URL => json!({ "keys": state.keys.iter().map(published).collect::<Vec<Value>>() }),
            _ => json!({ "issuer": ISSUER, "jwks_uri": KEYS_URL }),
        };
        Ok(document.to_string().into_bytes())
    }

    /// A token for `user`, unless it is away.
    pub(super) fn token(&self, user: &str) -> Option<IdToken> {
        let state = self.state();
        let (key, pair) = state.keys.last().filter(|_| !state.then.away)?;
        let now_s = self.world.wall_ms() / 1_000;
        let header = json!({ "alg": "EdDSA", "kid": name(*key) });
        let claims = json!({
            "iss": ISSUER, "aud": CLUSTER, "sub": user, "groups": [GROUP], "iat": now_s, "exp": now_s + TOKEN_S,
        });
        let signed = format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
        let signature = encoded(pair.sign(signed.as_bytes()).as_ref());
        Some(IdToken { text: format!("{signed}.{signature}"), key: *key })
    }

    /// Goes away and comes back until `end`, and changes its key now and then. From the last return on it stays.
    pub(super) async fn come_and_go(&self, end: Instant) {
        loop {
            self.pass(THERE_MS).await;
            if self.chance.between(0, 4) == 0 {
                self.rotate();
                self.pass(THERE_MS).await;
            }
            if Instant::now() >= end {
                return;
            }
            self.change("the identity provider is away", |state| {
                state.then.away = true;
                state.then.absences += 1;
            });
            self.pass(AWAY_MS).await;
            if self.chance.between(0, 2) == 0 {
                self.rotate();
            }
            self.change("the identity provider is back", |state| state.then.away = false);
        }
    }

    /// Signs with a new key from now on. Tokens of the old one hold as long as it is published: in some runs a while, in some no longer.
    fn rotate(&self) {
        let (key, keeps_old) = (new_key(&self.chance), self.chance.between(0, 2) == 0);
        self.change("the identity provider changes its key", |state| {
            state.then.rotations += 1;
            if !keeps_old {
                state.keys.clear();
            }
            state.keys.push((state.then.rotations, key));
        });
    }

    fn change(&self, what: &str, change: impl FnOnce(&mut State)) {
        self.world.note(format_args!("{what}"));
        change(&mut self.state());
    }

    async fn pass(&self, (low, high): (u64, u64)) {
        sleep(Duration::from_millis(self.chance.between(low, high))).await;
    }
}

fn new_key(chance: &Chance) -> Ed25519KeyPair {
    let mut seed = [0; 32];
    seed.chunks_mut(8).for_each(|part| part.copy_from_slice(&chance.u64().to_le_bytes()));
    Ed25519KeyPair::from_seed_unchecked(&seed).expect("any 32 bytes are a seed")
}

fn published((number, key): &(u64, Ed25519KeyPair)) -> Value {
    let public = encoded(key.public_key().as_ref());
    json!({ "kty": "OKP", "crv": "Ed25519", "x": public, "kid": name(*number), "use": "sig", "alg": "EdDSA" })
}

fn name(key: u64) -> String {
    format!("key-{key}")
}

fn encoded(part: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(part)
}
