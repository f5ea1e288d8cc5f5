#include "serve/frontend/dashboard.h"

namespace mc::serve {
namespace {

constexpr std::string_view kPage = R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mc conductor</title>
<link rel="icon" href="data:,">
<style>
:root { --ink: #1c2430; --dim: #6b7685; --line: #dfe4ea; --back: #f5f7f9; --card: #fff;
  --a: #1f6feb; --b: #d9730d; --c: #1a8f5a; --bad: #c9302c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --dim: #93a0b0; --line: #2b3440; --back: #12171d; --card: #1a2129;
    --a: #58a6ff; --b: #f0a35e; --c: #4cc38a; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 20px 24px 40px; background: var(--back); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 6px 18px; }
h1 { font-size: 20px; margin: 0; }
h2 { font-size: 13px; font-weight: 600; margin: 0 0 6px; }
.dim { color: var(--dim); }
#state { font-weight: 600; padding: 1px 10px; border-radius: 10px; color: #fff;
  background: var(--c); }
#state.bad { background: var(--bad); }
section { display: grid; gap: 12px; margin-top: 16px; }
#tiles { grid-template-columns: repeat(auto-fit, minmax(112px, 1fr)); }
#charts { grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 14px; }
.tile b { display: block; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: 120px; }
svg path { fill: none; stroke-width: 1.6; vector-effect: non-scaling-stroke; }
svg line { stroke: var(--line); vector-effect: non-scaling-stroke; }
.axis { display: flex; justify-content: space-between; font-size: 11px; color: var(--dim); }
.key span { margin-right: 14px; font-size: 12px; }
.key i { display: inline-block; width: 10px; height: 3px; margin-right: 5px;
  vertical-align: middle; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { font-weight: 600; color: var(--dim); font-size: 12px; }
th:nth-child(-n+3), td:nth-child(-n+3) { text-align: left; }
tr:last-child td { border-bottom: 0; }
.bar { display: inline-block; width: 120px; height: 9px; border-radius: 3px; overflow: hidden;
  background: var(--line); vertical-align: middle; }
.bar i { display: block; float: left; height: 100%; }
#nodes { overflow-x: auto; }
</style>
</head>
<body>
<header>
  <h1>mc conductor</h1>
  <span id="state">&hellip;</span>
  <span id="what" class="dim"></span>
</header>
<section id="tiles"></section>
<section id="charts"></section>
<section><div class="card" id="nodes"><h2>Workers</h2><table><thead></thead><tbody></tbody></table>
</div></section>
<p class="dim" id="foot"></p>
<script>
'use strict';
const KEEP = 600, EVERY = 1000;
const $ = id => document.getElementById(id);
const COLORS = ['var(--a)', 'var(--b)', 'var(--c)', 'var(--bad)'];

function make(tag, attributes, ...children) {
  const svg = ['svg', 'path', 'line'].includes(tag);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag)
                : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// ---- what the conductor says

// {name: [{labels, value}]} of the Prometheus text.
function parseMetrics(text) {
  const all = {};
  for (const line of text.split('\n')) {
    const m = /^([a-z_0-9:]+)(?:\{(.*)\})? (\S+)$/i.exec(line);
    if (!m) continue;
    const labels = {};
    for (const l of (m[2] || '').matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) labels[l[1]] = l[2];
    (all[m[1]] = all[m[1]] || []).push({labels, value: Number(m[3])});
  }
  return all;
}
const sum = (metrics, name, want = () => true) =>
  (metrics[name] || []).filter(s => want(s.labels)).reduce((n, s) => n + s.value, 0);

// A quantile of what a histogram took since an earlier reading; null when that is nothing.
function quantile(metrics, before, name, q) {
  const at = m => new Map((m[name + '_bucket'] || []).map(s => [s.labels.le, s.value]));
  const old = at(before);
  let low = 0, under = 0;
  const rows = [...at(metrics)].map(([le, n]) => [le, n - (old.get(le) || 0)]);
  const total = rows.length ? rows[rows.length - 1][1] : 0;
  if (total <= 0) return null;
  for (const [le, n] of rows) {
    const high = le === '+Inf' ? low : Number(le);
    if (n >= q * total) return low + (high - low) * (n > under ? (q * total - under) / (n - under)
                                                               : 1);
    low = high;
    under = n;
  }
  return low;
}

const history = [];  // samples, oldest first
function sample(cluster, metrics) {
  const back = history[Math.max(0, history.length - 10)];  // rates are over ten readings
  const now = performance.now() / 1000;
  const s = {now, metrics, cluster};
  const seconds = back ? now - back.now : 0;
  const rate = (name, want) => !seconds ? null
    : Math.max(0, sum(metrics, name, want) - sum(back.metrics, name, want)) / seconds;
  const share = name => {
    const n = back ? cluster.input_tokens - back.cluster.input_tokens : 0;
    return n > 0 ? (cluster[name] - back.cluster[name]) / n * 100 : null;
  };
  const requests = 'mc_conductor_requests_total';
  s.served = rate(requests, l => l.code === '200');
  s.refused = rate(requests, l => l.code === '429');
  s.failed = rate(requests, l => l.code >= '500');
  s.hit = share('hit_tokens');
  s.reachable = share('reachable_hit_tokens');
  s.p50 = back && ms(quantile(metrics, back.metrics, 'mc_conductor_ttft_seconds', .5));
  s.p99 = back && ms(quantile(metrics, back.metrics, 'mc_conductor_ttft_seconds', .99));
  const of = role => cluster.nodes.filter(n => n.role === role && !n.draining);
  const mean = (list, f) => list.length ? list.reduce((a, n) => a + f(n), 0) / list.length : null;
  s.prefills = of('prefill').length;
  s.decodes = of('decode').length;
  s.ratio = s.decodes ? s.prefills / s.decodes : null;
  s.queue = mean(of('prefill'), n => n.queue_ms);
  s.queueMax = s.prefills ? Math.max(...of('prefill').map(n => n.queue_ms)) : null;
  s.tbt = mean(of('decode'), n => n.tbt_ms);
  s.waiting = cluster.waiting;
  s.flight = cluster.in_flight;
  history.push(s);
  if (history.length > KEEP) history.shift();
  return s;
}
const ms = seconds => seconds === null ? null : seconds * 1000;

// ---- how it looks

function show(v, unit = '', digits) {
  if (v === null || v === undefined || Number.isNaN(v)) return '\u2013';
  const d = digits !== undefined ? digits : v === 0 || Math.abs(v) >= 100 ? 0
    : Math.abs(v) >= 10 ? 1 : 2;
  return v.toFixed(d) + (unit && '\u2009' + unit);
}

const TILES = [
  ['requests a second', s => show(s.served)], ['refused a second', s => show(s.refused)],
  ['in flight', s => show(s.flight, '', 0)], ['waiting for room', s => show(s.waiting, '', 0)],
  ['TTFT, median', s => show(s.p50, 'ms')], ['TTFT, p99', s => show(s.p99, 'ms')],
  ['between tokens', s => show(s.tbt, 'ms')], ['reused tokens', s => show(s.hit, '%')],
  ['prefill : decode', s => s.prefills + ' : ' + s.decodes],
];
const CHARTS = [
  ['Requests a second', '/s', [['answered', 'served'], ['failed', 'failed'],
                               ['refused', 'refused']]],
  ['Time to the first token', 'ms', [['median', 'p50'], ['p99', 'p99']]],
  ['Between tokens, predicted', 'ms', [['mean of decode workers', 'tbt']]],
  ['Prompt tokens reused', '%', [['reused', 'hit'], ['could have been', 'reachable']]],
  ['Prefill queues', 'ms', [['mean', 'queue'], ['longest', 'queueMax']]],
  ['Requests', '', [['in flight', 'flight'], ['waiting for room', 'waiting']]],
  ['Workers', '', [['prefill', 'prefills'], ['decode', 'decodes'], ['ratio', 'ratio']]],
];
const tiles = TILES.map(([name]) => {
  const value = make('b', {}, '\u2013');
  $('tiles').append(make('div', {class: 'card tile'}, value, make('span', {class: 'dim'}, name)));
  return value;
});
const charts = CHARTS.map(([name, unit, lines]) => {
  const top = make('span', {}), from = make('span', {});
  const paths = lines.map((l, i) => make('path', {stroke: COLORS[i]}));
  const key = make('div', {class: 'key'}, ...lines.map(([text], i) =>
    make('span', {}, make('i', {style: 'background:' + COLORS[i]}), text)));
  const svg = make('svg', {viewBox: '0 0 600 100', preserveAspectRatio: 'none', role: 'img',
                           'aria-label': name},
                   make('line', {x1: 0, x2: 600, y1: 99, y2: 99}),
                   make('line', {x1: 0, x2: 600, y1: 1, y2: 1}), ...paths);
  $('charts').append(make('div', {class: 'card'}, make('h2', {}, name),
    make('div', {class: 'axis'}, top), svg,
    make('div', {class: 'axis'}, from, make('span', {}, 'now')), key));
  return {unit, lines, top, from, paths};
});

function draw(chart) {
  const values = chart.lines.flatMap(([, field]) =>
    history.map(s => s[field]).filter(v => v !== null && v !== undefined));
  const high = Math.max(1e-9, ...values);
  const span = Math.max(60, history[history.length - 1].now - history[0].now);
  const end = history[history.length - 1].now;
  chart.top.textContent = values.length ? show(high, chart.unit) : 'nothing yet';
  chart.from.textContent = '\u2212' + show(span, 's', 0);
  chart.lines.forEach(([, field], i) => {
    let d = '', pen = 'M';
    for (const s of history) {
      const v = s[field];
      if (v === null || v === undefined) { pen = 'M'; continue; }
      d += pen + (600 - (end - s.now) / span * 600).toFixed(1) + ' ' +
           (99 - v / high * 98).toFixed(1);
      pen = 'L';
    }
    chart.paths[i].setAttribute('d', d);
  });
}

const COLUMNS = [
  ['name', n => n.name], ['role', n => n.role],
  ['state', n => n.draining ? 'draining' : n.up === false ? 'down'
    : n.synced === false ? 'syncing' : 'live'],
  ['requests', n => show(n.requests, '', 0)], ['so far', n => show(n.assigned, '', 0)],
  ['waiting', n => show(n.waiting, '', 0)], ['running', n => show(n.running, '', 0)],
  ['queue', n => show(n.queue_ms, 'ms')], ['between tokens', n => show(n.tbt_ms, 'ms')],
  ['blocks used, cached, free', blocks], ['silent', n => show(n.silent_ms, 'ms', 0)],
];
function blocks(n) {
  const total = n.blocks_total || 0, cached = n.blocks_cached || 0;
  const used = Math.max(0, total - (n.blocks_free || 0) - cached);
  if (!total) return show(n.index_blocks, 'known', 0);
  const part = (v, color) => make('i', {style: `width:${v / total * 100}%;background:${color}`});
  return make('span', {title: `${used} used, ${cached} cached, ${total} in all`},
              make('span', {class: 'bar'}, part(used, COLORS[0]), part(cached, COLORS[2])),
              ' ' + show(total, '', 0));
}

function render(s) {
  const c = s.cluster;
  $('state').textContent = c.ready ? 'ready' : c.reason;
  $('state').className = c.ready ? '' : 'bad';
  $('what').textContent = `${c.model}, blocks of ${c.block_size} tokens, policy ${c.policy}, ` +
    `${c.index_blocks} blocks known`;
  TILES.forEach(([, text], i) => { tiles[i].textContent = text(s); });
  charts.forEach(draw);
  const table = $('nodes').querySelector('table');
  table.tHead.replaceChildren(make('tr', {}, ...COLUMNS.map(([name]) => make('th', {}, name))));
  table.tBodies[0].replaceChildren(...c.nodes.map(n =>
    make('tr', {}, ...COLUMNS.map(([, cell]) => make('td', {}, cell(n))))));
  $('foot').textContent = 'Since this page was opened; rates over the last ten seconds.';
}

async function turn() {
  try {
    const [cluster, metrics] = await Promise.all([
      fetch('cluster').then(r => r.json()), fetch('metrics').then(r => r.text())]);
    render(sample(cluster, parseMetrics(metrics)));
  } catch (error) {
    $('state').textContent = 'no answer';
    $('state').className = 'bad';
  }
  setTimeout(turn, EVERY);
}
turn();
</script>
</body>
</html>
)page";

}  // namespace

std::string_view dashboard_html() { return kPage; }

http::Headers dashboard_headers() {
  return {{"content-security-policy",
           "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
           "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"},
          {"x-content-type-options", "nosniff"},
          {"cache-control", "no-store"}};
}

}  // namespace mc::serve
