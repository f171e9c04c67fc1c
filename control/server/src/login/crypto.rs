//! Signatures of ID tokens, checked by ring. The library that reads the tokens leaves this to whoever uses it.
//!
//! What must stay true: nothing is signed here, and no algorithm with a shared secret is known.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{Error as BadSignature, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};

/// All that are accepted. A token with another one is refused before its key is looked for.
pub(super) const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| Ok(Box::new(Ring { algorithm: *algorithm, key: key.clone() })),
    key_utils: KeyUtils::new_unimplemented(),
};

/// Has the library use this; once in a process.
pub(super) fn install() {
    // A second time it is there already.
    let _ = PROVIDER.install_default();
}

struct Ring {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for Ring {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), BadSignature> {
        let checked = match self.key.kind() {
            DecodingKeyKind::SecretOrDer(key) => {
                let algorithm: &dyn signature::VerificationAlgorithm = match self.algorithm {
                    Algorithm::ES256 => &signature::ECDSA_P256_SHA256_FIXED,
                    Algorithm::ES384 => &signature::ECDSA_P384_SHA384_FIXED,
                    Algorithm::EdDSA => &signature::ED25519,
                    _ => return Err(unsupported()),
                };
                UnparsedPublicKey::new(algorithm, key).verify(message, signed)
            }
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let parameters = match self.algorithm {
                    Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
                    Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
                    Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return Err(unsupported()),
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signed)
            }
        };
        checked.map_err(|_| BadSignature::new())
    }
}

impl JwtVerifier for Ring {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

fn unsupported() -> BadSignature {
    BadSignature::from_source(Error::from(ErrorKind::UnsupportedAlgorithm))
}
