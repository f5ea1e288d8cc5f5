#!/usr/bin/env bash
# scripts/setup installs on a bare Debian what the builds read: in a root made by debootstrap, every
# include of a release build is found after `scripts/setup`, and after `scripts/setup --lint` every
# benchmark compiles with clang and its sanitizers link. Takes minutes, 3 GB and the Debian mirror.
. "$(dirname "$0")/../common.inc"
[ "$(id -u)" = 0 ] || skip "not root: debootstrap and chroot need it"
command -v debootstrap >/dev/null || skip "no debootstrap: apt-get install debootstrap"
release=bookworm
# shellcheck disable=SC2016  # the words are apt's to expand
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' |
  awk -v release=$release '$2 == release && $3 == "main" { print $1; exit }')
[ -n "$mirror" ] || skip "apt has no mirror of Debian $release"

root=$T/root
step() { echo "== $1 ($((SECONDS / 60)) min)"; }
step "a bare Debian $release"
debootstrap --variant=minbase --include=git,make "$release" "$root" "$mirror" >"$T/debootstrap.log" 2>&1 ||
  { tail -n 20 "$T/debootstrap.log" >&2; die "debootstrap"; }
# Proxies and the like of this machine hold inside too.
apt-config dump | grep '^Acquire::' >"$root/etc/apt/apt.conf.d/99host" || true
mkdir "$root/mc"
(cd "$MC_SOURCE" && git ls-files -z | tar -c --null --files-from - ) | tar -x -C "$root/mc"

cat >"$root/compile" <<'PY'
"""compile BUILD FILES FLAG...: runs the compilations of a build folder, without code, of the sources
whose names match FILES."""
import concurrent.futures, json, os, re, shlex, subprocess, sys
build, files, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
entries = [e for e in json.load(open(f'{build}/compile_commands.json')) if re.search(files, e['file'])]
def check(entry):
    words = [w for w in shlex.split(entry['command']) if not w.endswith('ccache')]
    cut = words.index('-o')
    words[cut:cut + 2] = flags
    return entry['file'], subprocess.run(words, cwd=entry['directory'], capture_output=True, text=True)
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    bad = [(f, r.stderr) for f, r in pool.map(check, entries) if r.returncode]
print(f'{len(entries)} compilations, {len(bad)} failed')
for file, text in bad:
    print(f'{file}:\n{text[:2000]}')
sys.exit(bool(bad) or not entries)
PY

inside() { # what, command: in the root, with mounts that end with it
  step "$1"
  # shellcheck disable=SC2016  # expanded inside
  unshare --mount --fork bash -c 'mount --bind /dev "$1/dev" && mount -t proc proc "$1/proc" &&
    exec chroot "$1" bash -euc "cd /mc; $2"' - "$root" "$2" </dev/null >"$T/log" 2>&1 ||
    { tail -n 40 "$T/log" >&2; die "$1"; }
  tail -n 1 "$T/log"
}
inside 'scripts/setup' 'scripts/setup'
inside 'what make release and its tests include' '
  cmake -S . -B build/release -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMC_UNITY=ON
  python3 /compile build/release "^(?!.*/bench/[^/]*$)" -M -MF /dev/null'
inside 'one program of the tests' 'cmake --build build/release --target unit_base
  build/release/unit_base --count'
inside 'scripts/setup --lint' 'scripts/setup --lint'
inside 'what lint and the benchmarks include' '
  cmake -S . -B build/lint -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=clang++
  python3 /compile build/lint "/bench/[^/]*$" -fsyntax-only -Wthread-safety'
inside 'the sanitizers of clang' 'echo "int main() {}" >/tmp/a.cc
  clang++ -fsanitize=address,undefined /tmp/a.cc -o /tmp/a
  /tmp/a
  echo "extern \"C\" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }" >/tmp/f.cc
  clang++ -fsanitize=fuzzer,address,undefined /tmp/f.cc -o /tmp/f
  for tool in clang-tidy clang-format shellcheck; do command -v $tool; done'
step "all of it is there"
