// An OpenID provider for the tests of `muster login` (cli/tests/commands/login_certified.rs): the package oidc-provider, with one account.
//
//   node provider.mjs FOLDER [PORT]     FOLDER: where the package is installed (.ci/setup-oidc-provider). Without a port it takes a free one
//
// It prints one line when it listens, with its issuer. Warnings of the package go to the error output.
//
// What must stay true: this is for tests alone. It listens on 127.0.0.1, whoever comes is logged in as Alice without a password, keys are made anew
// at each start and all state is in memory, so nothing here is secret. Requests, replies, tokens and published keys are as the package makes them.

import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [, , folder, port = '0'] = process.argv;
const installed = createRequire(resolve(folder, 'package.json')).resolve('oidc-provider');
const { default: Provider } = await import(pathToFileURL(installed));

// The issuer has the port, so the port comes first.
const server = createServer().listen(Number(port), '127.0.0.1');
await once(server, 'listening');
const issuer = `http://127.0.0.1:${server.address().port}`;

const account = { sub: '17', email: 'alice@corp.example', email_verified: true, groups: ['ml', 'ops'] };

// One key for each kind of signature, and one for encryption, which verifies nothing.
const key = (use, ...kind) => ({ ...generateKeyPairSync(...kind).privateKey.export({ format: 'jwk' }), use });
const keys = [
  key('sig', 'rsa', { modulusLength: 2048 }),
  key('sig', 'ec', { namedCurve: 'P-256' }),
  key('sig', 'ed25519'),
  key('enc', 'x25519'),
];

// Public clients, one for each kind of signature. To a native application the package allows every port of 127.0.0.1 (RFC 8252).
const client = (client_id, id_token_signed_response_alg) => ({
  client_id,
  id_token_signed_response_alg,
  application_type: 'native',
  token_endpoint_auth_method: 'none',
  redirect_uris: ['http://127.0.0.1/callback'],
  response_types: ['code'],
  grant_types: ['authorization_code', 'urn:ietf:params:oauth:grant-type:device_code'],
});

const provider = new Provider(issuer, {
  clients: [client('muster', 'RS256'), client('muster-es256', 'ES256'), client('muster-eddsa', 'EdDSA')],
  jwks: { keys },
  enabledJWA: { idTokenSigningAlgValues: ['RS256', 'ES256', 'EdDSA'] },
  cookies: { keys: [randomBytes(32).toString('hex')] },
  // The claims of each scope. By its default this one has them at the userinfo endpoint alone, unless a client asks for them in the ID token.
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  findAccount: () => ({ accountId: account.sub, claims: () => account }),
  features: { claimsParameter: { enabled: true }, devInteractions: { enabled: false }, deviceFlow: { enabled: true }, encryption: { enabled: true } },
  interactions: { url: (_, { uid }) => `/interaction/${uid}` },
});

// In place of the pages on which somebody gives a password and consents.
provider.use(async (ctx, next) => {
  if (!ctx.path.startsWith('/interaction/')) return next();
  const { prompt, session, params } = await provider.interactionDetails(ctx.req, ctx.res);
  const result = {};
  if (prompt.name === 'login') {
    result.login = { accountId: account.sub };
  } else {
    const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
    grant.addOIDCScope(params.scope);
    grant.addOIDCClaims(prompt.details.missingOIDCClaims ?? []);
    result.consent = { grantId: await grant.save() };
  }
  ctx.redirect(await provider.interactionResult(ctx.req, ctx.res, result, { mergeWithLastSubmission: true }));
});

server.on('request', provider.callback());
console.log(`listens at ${issuer}`);
