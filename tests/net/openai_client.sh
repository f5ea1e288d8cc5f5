#!/usr/bin/env bash
# The OpenAI client library itself, streaming and not.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
command -v npm >/dev/null || skip "npm is absent: scripts/setup --all"
(cd "$T" && npm install --silent --no-audit --no-fund --prefix "$T" openai@4 >"$T/npm.log" 2>&1) ||
  skip "the openai package cannot be installed: $(tail -1 "$T/npm.log")"
cluster_up --prefill 1 --decode 1 --store 0
cat >"$T/client.js" <<'JS'
const OpenAI = require('openai').default || require('openai');
(async () => {
  const client = new OpenAI({ apiKey: 'none', baseURL: process.argv[2] + '/v1', maxRetries: 0 });
  const models = await client.models.list();
  const model = models.data[0].id;
  const plain = await client.completions.create({ model, prompt: 'once upon a time', max_tokens: 6 });
  if (plain.usage.completion_tokens < 1) throw new Error('no tokens: ' + JSON.stringify(plain));
  let events = 0, usage = null;
  const stream = await client.completions.create({ model, prompt: 'once upon a time', max_tokens: 6,
    stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) { events += chunk.choices.length; usage = chunk.usage || usage; }
  if (events < 1 || !usage) throw new Error(`events ${events}, usage ${JSON.stringify(usage)}`);
  try {
    await client.completions.create({ model: 'no-such-model', prompt: 'x' });
    throw new Error('an unknown model was served');
  } catch (e) {
    if (e.status !== 404) throw e;
  }
  console.log('ok');
})().catch((e) => { console.error(e); process.exit(1); });
JS
expect 0 node "$T/client.js" "$URL"
grep -qx ok "$T/out" || die "the client did not finish"
