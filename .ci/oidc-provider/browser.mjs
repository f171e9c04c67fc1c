// What a browser and the person before it do in the tests of `muster login`: keeps cookies, follows redirects, sends forms.
//
//   node browser.mjs URL               opens a page
//   node browser.mjs URL USER_CODE     and enters the code of a device where a form asks for one
//
// What must stay true: it knows HTTP and HTML and nothing of the provider. It prints the last page; the exit status is 0 only if that one was
// answered well.

const [, , start, userCode = ''] = process.argv;
const PAGES_MAX = 20;

const cookies = new Map();

function keep(url, response) {
  for (const line of response.headers.getSetCookie()) {
    const [, name, value] = line.match(/^([^=]+)=([^;]*)/);
    const path = line.match(/;\s*path=([^;]*)/i)?.[1] ?? '/';
    cookies.set(`${url.origin} ${path} ${name}`, { origin: url.origin, path, pair: `${name}=${value}` });
  }
}

// A cookie goes back to where it came from, to its own path and below.
function cookiesFor(url) {
  const kept = [...cookies.values()].filter(({ origin, path }) => origin === url.origin && url.pathname.startsWith(path));
  return kept.map(({ pair }) => pair).join('; ');
}

const attribute = (tag, name) => tag.match(new RegExp(`\\b${name}="([^"]*)"`))?.[1];

// The first form of a page, filled in.
function formOf(page) {
  const tag = page.match(/<form[^>]*>/)?.[0];
  const fields = [...page.matchAll(/<input[^>]*>/g)].map(([input]) => {
    const name = attribute(input, 'name');
    return [name, attribute(input, 'value') ?? (name === 'user_code' ? userCode : '')];
  });
  return tag && { action: attribute(tag, 'action'), body: new URLSearchParams(fields) };
}

let url = new URL(start);
let body;
for (let pages = 0; pages < PAGES_MAX; pages += 1) {
  const headers = { accept: 'text/html', cookie: cookiesFor(url) };
  const response = await fetch(url, { method: body ? 'POST' : 'GET', headers, body, redirect: 'manual' });
  keep(url, response);
  const page = await response.text();
  const location = response.headers.get('location');
  const form = location || !response.ok ? undefined : formOf(page);
  if (!location && !form) {
    console.log(page);
    process.exit(response.ok ? 0 : 1);
  }
  url = new URL(location ?? form.action, url);
  body = form?.body;
}
console.error(`after ${PAGES_MAX} pages there is still another one, at ${url}`);
process.exit(1);
