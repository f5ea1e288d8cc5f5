#!/usr/bin/env bash
# The OpenAI client library itself: whole and streamed, keys, errors, what it retries, cancelling, and
# the fields that go beyond the standard.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
command -v npm >/dev/null || skip "npm is absent: scripts/setup --all"
(cd "$T" && npm install --silent --fetch-retries 0 --no-audit --no-fund --prefix "$T" openai@4 >"$T/npm.log" 2>&1) ||
  skip "the openai package cannot be installed: $(tail -1 "$T/npm.log")"
cat >"$T/keys.json" <<'JSON'
{ "tenants": [ { "name": "free", "keys": ["key-of-free"], "admin": true },
               { "name": "one", "keys": ["key-of-one"], "in-flight": 1 } ] }
JSON
export MC_CONDUCTOR_API_KEYS=$T/keys.json
cluster_up --prefill 1 --decode 1 --store 0
cat >"$T/client.js" <<'JS'
const OpenAI = require('openai').default || require('openai');
const baseURL = process.argv[2] + '/v1';
const as = (apiKey, maxRetries) => new OpenAI({ apiKey, baseURL, maxRetries });
const client = as('key-of-free', 0);
const model = 'tiny';
const must = (truth, what) => { if (!truth) throw new Error(what); };
const metric = async (name) => {
  const text = await (await fetch(process.argv[2] + '/metrics')).text();
  const line = text.split('\n').find((l) => l.startsWith(name));
  return line ? Number(line.slice(name.length)) : 0;
};
const until = async (what, done) => {
  for (const end = Date.now() + 20000; Date.now() < end;) if (await done()) return;
  throw new Error('not within 20 s: ' + what);
};
const refused = async (what, promise, Kind, check) => {
  try { await promise; } catch (e) {
    must(e instanceof Kind && check(e), `${what}: ${e.constructor.name} ${e.status} ${e.message}`);
    return;
  }
  throw new Error(what + ' was served');
};

const tests = {
  async models() {
    const models = await client.models.list();
    must(models.data[0].id === model, JSON.stringify(models));
  },
  async whole() {
    const { data, response } = await client.completions.create(
      { model, prompt: 'once upon a time', max_tokens: 6 }, { headers: { 'x-request-id': 'mine' } })
      .withResponse();
    must(data.usage.completion_tokens >= 1, JSON.stringify(data));
    must(response.headers.get('x-request-id') === 'mine', 'another request id');
    must(response.headers.get('x-mc-prefill'), 'no x-mc-prefill');
    const ids = await client.completions.create({ model, prompt: [1, 2, 3, 4], max_tokens: 1 });
    must(ids.usage.prompt_tokens === 4, JSON.stringify(ids.usage));
  },
  async streamed() {
    let events = 0, usage = null, text = '';
    const ask = { model, prompt: 'once upon a time', max_tokens: 6, ignore_eos: true, seed: 3 };
    const stream = await client.completions.create(
      { ...ask, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      events += chunk.choices.length;
      text += chunk.choices[0]?.text ?? '';
      usage = chunk.usage || usage;
    }
    must(events === 6 && usage.completion_tokens === 6, `${events} events, ${JSON.stringify(usage)}`);
    const whole = await client.completions.create(ask);
    must(whole.choices[0].text === text, `streamed '${text}', whole '${whole.choices[0].text}'`);
  },
  async chat() {
    const messages = [{ role: 'user', content: 'hello' }];
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 4, seed: 3, stream: true });
    let first = null, text = '';
    for await (const chunk of stream) {
      first = first || chunk.choices[0].delta;
      text += chunk.choices[0].delta.content || '';
    }
    must(first.role === 'assistant', JSON.stringify(first));
    const whole = await client.chat.completions.create(
      { model, messages, max_completion_tokens: 4, seed: 3 });
    must(whole.choices[0].message.content === text, 'streamed and whole differ');
  },
  async 'stop and seed'() {
    const ask = { model, prompt: 'tell me more', max_tokens: 12, ignore_eos: true, temperature: 1, seed: 7 };
    const text = (await client.completions.create(ask)).choices[0].text;
    must((await client.completions.create(ask)).choices[0].text === text, 'a seed gives two texts');
    const stop = [...text][3];
    const cut = await client.completions.create({ ...ask, stop: [stop] });
    must(cut.choices[0].finish_reason === 'stop', JSON.stringify(cut.choices));
    must(cut.choices[0].text === text.slice(0, text.indexOf(stop)), JSON.stringify([text, stop, cut]));
  },
  async 'cached tokens'() {
    const prompt = Array.from({ length: 1024 }, (_, i) => i % 200 + 1);
    const cached = async () => (await client.completions.create({ model, prompt, max_tokens: 1 }))
      .usage.prompt_tokens_details.cached_tokens;
    must(await cached() === 0, 'a cold prompt has cached tokens');
    await until('768 cached tokens', async () => await cached() === 768);
    const salted = await client.completions.create(
      { model, prompt, max_tokens: 1, cache_salt: 'another' });
    must(salted.usage.prompt_tokens_details.cached_tokens === 0, 'a salt shares a cache');
  },
  async 'choices and logprobs'() {
    const ask = { model, prompt: ['once', 'upon'], n: 2, seed: 3, max_tokens: 4, ignore_eos: true, logprobs: 2 };
    const whole = await client.completions.create(ask);
    must(whole.choices.map((c) => c.index).join() === '0,1,2,3', JSON.stringify(whole.choices));
    must(whole.choices.every((c) => c.logprobs.tokens.length === 4 && c.logprobs.token_logprobs.every((l) => l < 0)),
      JSON.stringify(whole.choices));
    const texts = ['', '', '', ''];
    for await (const chunk of await client.completions.create({ ...ask, stream: true }))
      for (const c of chunk.choices) texts[c.index] += c.text;
    must(texts.every((text, i) => text === whole.choices[i].text), JSON.stringify([texts, whole.choices]));
    const best = await client.completions.create({ ...ask, prompt: 'once', n: 1, best_of: 3, logprobs: undefined });
    must(best.choices.length === 1 && best.usage.completion_tokens === 12, JSON.stringify(best));
    const chat = await client.chat.completions.create({ model, messages: [{ role: 'user', content: 'hi' }],
      max_tokens: 2, logprobs: true, top_logprobs: 3, logit_bias: { 65: 100 }, frequency_penalty: 0.5 });
    must(chat.choices[0].message.content === 'AA', JSON.stringify(chat));
    must(chat.choices[0].logprobs.content[0].top_logprobs.length === 3, JSON.stringify(chat));
  },
  async errors() {
    const one = (more) => client.completions.create({ model, prompt: 'x', ...more });
    await refused('an unknown model', one({ model: 'no-such-model' }), OpenAI.NotFoundError,
      (e) => e.code === 'model_not_found' && e.param === 'model');
    await refused('n = 17', one({ n: 17 }), OpenAI.BadRequestError,
      (e) => e.param === 'n' && e.type === 'invalid_request_error');
    await refused('too long', one({ max_tokens: 99999999 }), OpenAI.BadRequestError,
      (e) => e.code === 'context_length_exceeded');
    await refused('a wrong key', as('nobody-has-this', 0).models.list(), OpenAI.AuthenticationError,
      (e) => e.code === 'invalid_api_key');
    const large = client.completions.create({ model, prompt: 'x'.repeat(33 << 20) });
    await refused('a giant body', large, OpenAI.APIError, (e) => e.status === 413);
  },
  async 'retries and cancelling'() {
    const limited = '{code="429",reason="rate_limit_exceeded"} ';
    const name = 'mc_conductor_requests_total';
    const gone = `${name}{code="499",reason="client_gone"} `;
    const before = await metric(gone);
    const long = { model, prompt: 'a long story', max_tokens: 100000, ignore_eos: true, stream: true };
    const hold = await as('key-of-one', 0).completions.create(long);
    for await (const chunk of hold) { must(chunk.choices.length === 1, 'an empty event'); break; }
    // Leaving the loop ended the stream: its place is free again, and what it had is given up.
    await until('the first was cancelled', async () => await metric(gone) === before + 1);
    const again = await as('key-of-one', 0).completions.create(long);
    const events = again[Symbol.asyncIterator]();
    await events.next();
    await refused('a second one at once', as('key-of-one', 0).completions.create({ ...long, stream: false }),
      OpenAI.RateLimitError, (e) => e.headers['retry-after'] === '1' &&
        e.headers['x-mc-reject-reason'] === 'rate_limit_exceeded');
    const start = Date.now();
    const patient = as('key-of-one', 5).completions.create({ model, prompt: 'x', max_tokens: 1 });
    await until('it was refused', async () => await metric(name + limited) >= 2);
    again.controller.abort();
    const served = await patient;
    must(served.usage.completion_tokens === 1, JSON.stringify(served));
    must(Date.now() - start >= 900, `it came back after ${Date.now() - start} ms, not after a second`);
  },
};
(async () => {
  for (const [name, test] of Object.entries(tests)) {
    try { await test(); } catch (e) { console.error(`${name}:`, e); process.exit(1); }
    console.log(name);
  }
  console.log('ok');
})();
JS
expect 0 timeout 200 node "$T/client.js" "$URL"
grep -qx ok "$T/out" || die "the client did not finish"
