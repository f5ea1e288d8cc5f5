#!/usr/bin/env bash
# Two conductors at once over the same workers, behind an HTTP proxy: both know the caches, each is
# replaced under load, and no request fails. Nothing is left of what they gave out.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
command -v nginx >/dev/null || skip "no nginx"
sample 120
cluster_up --conductors 2 --prefill 2 --decode 2 --store 1 --block-size 512 --time-scale 10
one=$URL two=$(loopback url conductor1)

# What one had computed is a hit at the other.
ask() { # URL -> the tokens that were cached
  curl -fsS -m 20 --json "{\"model\":\"tiny\",\"prompt\":$prompt,\"max_tokens\":2}" "$1/v1/completions" |
    jq -r .usage.prompt_tokens_details.cached_tokens
}
prompt=$(jq -nc '[range(1; 2050)]')
[ "$(ask "$one")" = 0 ] || die "a new prompt is cached"
hits() { [ "$(ask "$two")" = 2048 ]; }
until_true 30 "the second conductor does not know what the first one had computed" hits

# A proxy that takes the other one where one says no.
cat >"$T/nginx.conf" <<NGINX
daemon off;
user $(id -un) $(id -gn);
pid $T/nginx.pid;
error_log $T/nginx.log warn;
events {}
http {
  access_log off;
  client_body_temp_path $T/n1; proxy_temp_path $T/n2; fastcgi_temp_path $T/n3;
  uwsgi_temp_path $T/n4; scgi_temp_path $T/n5;
  client_max_body_size 32m;
  upstream conductors { server ${one#http://} max_fails=0; server ${two#http://} max_fails=0; }
  server {
    listen unix:$T/front.sock;
    location / {
      proxy_pass http://conductors;
      proxy_http_version 1.1;
      proxy_buffering off;
      proxy_next_upstream error timeout http_503 non_idempotent;
    }
  }
}
NGINX
# nginx cannot take a port by itself.
port=$(free_port)
sed -i "s|unix:$T/front.sock|127.0.0.1:$port|" "$T/nginx.conf"
nginx -c "$T/nginx.conf" -p "$T" >"$T/nginx.out" 2>&1 &
proxy=$!
trap 'kill $proxy 2>/dev/null || true; cluster_down' EXIT
front=http://127.0.0.1:$port
until_true 30 "nginx does not come up: $(cat "$T/nginx.out")" curl -fsS "$front/ready"

"$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$front" --speed 4 --timeout 60s --max-lag 5s \
  --output json --requests "$T/requests.jsonl" >"$T/run.json" 2>"$T/run.err" &
replay=$!
for name in conductor conductor1 conductor; do
  url=$(loopback url $name)
  pid=$(cat "$T/cluster/$name.pid")
  in_flight() { curl -fsS "$url/cluster" | jq -e '.in_flight > 0' >/dev/null; }
  until_true 30 "$name has nothing to do" in_flight
  kill -TERM "$pid"
  ended() { ! kill -0 "$pid" 2>/dev/null || [ "$(cut -d' ' -f3 "/proc/$pid/stat")" = Z ]; }
  until_true 40 "$name does not drain" ended
  grep -q 'drained [0-9]*, cut 0' "$T/cluster/$name.log" || die "$name cut requests"
  loopback restart $name
  until_true 30 "$name is not ready again" curl -fsS "$url/ready"
done
kill -0 $replay 2>/dev/null || die "the replay was over before the conductors were replaced"
wait $replay || die "the replay failed: $(cat "$T/run.err")"
jq -e '.requests | .sent == 120 and .ok == 120' "$T/run.json" >/dev/null ||
  die "requests failed: $(jq -c .requests "$T/run.json") $(grep -v '"status":"ok"' "$T/requests.jsonl")"
rest_within 30
