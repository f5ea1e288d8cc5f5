#!/usr/bin/env bash
# The page at /, and what configs/monitoring draws and watches: every metric they name is one that
# the programs print. With chromium the page is opened and photographed: $MC_PHOTOS keeps the picture.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
cluster_up --prefill 2 --decode 1 --store 1 --time-scale 0.2

model=$(curl -fsS "$URL/v1/models" | jq -r '.data[0].id')
ask() { # PROMPT
  curl -fsS -m 20 -o /dev/null -H 'content-type: application/json' \
    -d "{\"model\":\"$model\",\"prompt\":\"$1\",\"max_tokens\":8,\"ignore_eos\":true}" \
    "$URL/v1/completions"
}
for i in 1 2 3; do ask "a question, number $i"; done

# The page: one document that asks nobody else for anything.
curl -fsS -D "$T/head" "$URL/" >"$T/page.html"
grep -qi '^content-type: text/html' "$T/head" || die "/ is not a page: $(cat "$T/head")"
grep -qi "^content-security-policy: default-src 'none'" "$T/head" || die "/ has no policy"
grep -Eq '(src|href)="(https?:)?//' "$T/page.html" && die "the page loads something from elsewhere"
for id in state what tiles charts nodes foot; do
  grep -q "id=\"$id\"" "$T/page.html" || die "the page has no element $id"
done
# Every field of /cluster and every metric that its script reads is there.
curl -fsS "$URL/cluster" >"$T/cluster.json"
jq -e '[.model, .block_size, .policy, .index_blocks, .in_flight, .waiting, .input_tokens, .hit_tokens,
  .reachable_hit_tokens, .nodes[0].name, .nodes[0].role] | all(. != null)' "$T/cluster.json" \
  >/dev/null || die "/cluster lacks what the page shows: $(cat "$T/cluster.json")"
curl -fsS "$URL/metrics" >"$T/conductor.txt"
for name in $(grep -oE "mc_conductor_[a-z_]+" "$T/page.html" | sort -u); do
  grep -q "^$name" "$T/conductor.txt" || die "the page reads $name, which is not printed"
done

# Grafana and Prometheus.
for name in $(jq -r '.nodes[].http' "$T/cluster.json"); do curl -fsS "http://$name/metrics"; done \
  >"$T/all.txt"
cat "$T/conductor.txt" >>"$T/all.txt"
for file in "$T"/cluster/master.json "$T"/cluster/store*.json "$T"/cluster/node*.json; do
  [ ! -e "$file" ] || curl -fsS "http://$(jq -r .http "$file")/metrics" >>"$T/all.txt"
done
monitoring=$MC_SOURCE/configs/monitoring
jq -e '.panels | length > 10' "$monitoring/grafana.json" >/dev/null || die "grafana.json is no dashboard"
{ jq -r '.panels[].targets[].expr' "$monitoring/grafana.json"
  grep 'expr:' "$monitoring/prometheus-rules.yml"; } >"$T/exprs"
[ "$(wc -l <"$T/exprs")" -gt 30 ] || die "expressions are missing"
for name in $(grep -oE '\bmc_[a-z_]+' "$T/exprs" | sort -u); do
  grep -q "^$name" "$T/all.txt" || die "configs/monitoring names $name, which nobody prints"
done
# Labels that they select by.
for label in 'role="prefill"' 'role="decode"' 'role="foreign"'; do
  grep -q "^mc_conductor_workers{.*$label" "$T/conductor.txt" || die "no mc_conductor_workers{$label}"
done

chromium=$(command -v chromium || command -v chromium-browser || true)
if [ -z "$chromium" ]; then
  echo "not opened in a browser: no chromium (scripts/setup --all)"
  exit 0
fi
(for i in $(seq 40); do ask "more, $i"; done) &
"$chromium" --headless --no-sandbox --disable-gpu --user-data-dir="$T/chromium" \
  --window-size=1280,1250 --virtual-time-budget=15000 --dump-dom "$URL/" \
  >"$T/dom.html" 2>"$T/chromium.log" || die "chromium: $(tail -3 "$T/chromium.log")"
grep -q '>ready<' "$T/dom.html" || die "the page does not say ready: $(head -c 2000 "$T/dom.html")"
[ "$(grep -o '<td>prefill</td>' "$T/dom.html" | wc -l)" = 2 ] || die "the page does not list two workers"
grep -qE '<path[^>]* d="M[^"]*L' "$T/dom.html" || die "no line was drawn"
wait
if [ -n "${MC_PHOTOS:-}" ]; then
  "$chromium" --headless --no-sandbox --disable-gpu --user-data-dir="$T/chromium" \
    --window-size=1280,1250 --virtual-time-budget=15000 --screenshot="$MC_PHOTOS/dashboard.png" \
    "$URL/" >/dev/null 2>&1 || die "no picture was taken"
fi
