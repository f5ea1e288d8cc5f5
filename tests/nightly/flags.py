"""Hostile values for every flag: flags.py BIN FOLDER SECONDS SEED [NAME...].

The flags are those that `PROGRAM --help` and `PROGRAM VERB --help` list. Each gets values of every kind: none,
huge, negative, not a number, 100 kB long, with control characters, paths that lead nowhere, addresses that are
none. A program takes a value, as it does without the flag, or it ends within 10 seconds with a status of 1 to 4
and one line that names the flag. It never ends by a signal, hangs or prints a stack. All values of a flag are
drawn in an order that SEED fixes, one of each flag first, until SECONDS are over. NAMEs: only programs, verbs
and flags of these names. What is written goes into FOLDER.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

BIN, FOLDER, SECONDS, SEED = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
ONLY = set(sys.argv[5:])
PROGRAMS = ('mc-conductor', 'mc-decode', 'mc-master', 'mc-prefill', 'mc-replay', 'mc-store', 'mc-topo', 'mc-xfer')
LIMIT = 10.0
DAEMONS = {'mc-conductor', 'mc-decode', 'mc-master', 'mc-prefill', 'mc-store serve', 'mc-xfer serve',
           'mc-xfer publish'}
RUN_ON = {'mc-xfer probe'}  # until they are stopped, and say nothing before: not tried

# --- values

NUMBERS = ['', ' ', '0', '-0', '-1', '1', '18446744073709551615', '18446744073709551616', '9223372036854775807',
           '-9223372036854775808', '4294967296', '1e400', '1e308', '1e-320', 'nan', '-nan', 'inf', '-inf', '0x10', '1,5',
           '1.5', '٣', '7 ', '+7', 'x']
DURATIONS = [n + unit for n in ('0', '-1', '1', '9223372036', '9223372037', '9999999999999999999', '0.0000001', 'nan', '1e3')
             for unit in ('', 'ns', 's', 'h', 'd', ' s')] + ['', 's', '1s1s', '1h ' * 1000]
SIZES = [n + unit for n in ('0', '-1', '1', '3', '8388607', '8388608', '17179869184', '99999999999999999999', '0.5', 'nan')
         for unit in ('', 'KiB', 'TiB', 'EiB', 'kb')] + ['', 'GiB', '1GiB1GiB']
WORDS = ['', ' ', 'x', ',', ',,,', '--', '-', '..', '%s%n%p', "'", '"', '{}', '[' * 5000, 'a' * (100 << 10), 'é' * 5000,
         '\x1b[2J\x07', '\n\n', 'a\tb', '\x7f', '\udcff\udcfe', '\u202egnp', '$(true)', '*']
ADDRESSES = ['127.0.0.1', '127.0.0.1:', ':', ':0', '127.0.0.1:65536', '127.0.0.1:-1', '127.0.0.1:0x50', '256.1.1.1:80',
             'no-such-host.invalid:80', '[::1', '[::1]:', '[]:1', '::1:1', 'localhost:99999999999', '127.0.0.1:1:1',
             'http://', 'http:///x', 'https://127.0.0.1:1', 'unix:', 'tcp://127.0.0.1:1', 'etcd://', 'etcd://127.0.0.1',
             'etcd://127.0.0.1:1,,', '127.0.0.1:1/..', '0.0.0.0:1', '*:1', '255.255.255.255:1']


def make_paths():
    """Paths that are no good, below FOLDER: what is written or removed is nobody else's."""
    at = os.path.join(FOLDER, 'paths')
    os.makedirs(os.path.join(at, 'folder'))
    for name, content in (('empty', b''), ('noise', random.Random(0).randbytes(5000)), ('half.json', b'{"a": [1, '),
                          ('deep.json', b'[' * 200_000), ('list.json', b'[1,2,3]'), ('zeros', b'\0' * 100_000)):
        with open(os.path.join(at, name), 'wb') as f:
            f.write(content)
    os.mkfifo(os.path.join(at, 'pipe'))
    os.chmod(os.path.join(at, 'pipe'), 0o600)
    os.symlink('loop', os.path.join(at, 'loop'))
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.join(at, 'socket'))
    with open(os.path.join(at, 'closed'), 'wb') as f:
        f.write(b'x' * 100)
    os.chmod(os.path.join(at, 'closed'), 0)
    names = ['folder', 'folder/', 'empty', 'noise', 'half.json', 'deep.json', 'list.json', 'zeros', 'pipe', 'loop', 'socket',
             'closed', 'absent', 'absent/deep', 'empty/below', 'n' * 300, 'd/' * 3000]
    return [os.path.join(at, n) for n in names]


KINDS = {'DURATION': DURATIONS, 'SIZE': SIZES, 'NUMBER': NUMBERS, 'N': NUMBERS}


def values_of(kind, paths):
    if kind in KINDS:
        return KINDS[kind] + [paths[0], '9' * (100 << 10), '\x1b[2J']
    return WORDS + ADDRESSES + paths + ['0', '-1', '1e400']


# --- programs

class Verb:
    def __init__(self, program, verb, text):
        self.program, self.verb = program, verb
        self.name = f'{program} {verb}' if verb else program
        self.flags = dict(re.findall(r'^  --([a-z0-9-]+) (TEXT|DURATION|SIZE|NUMBER|N|LIST)\b', text, re.M))
        self.once = re.search(r'^  --once\b', text, re.M) is not None
        usage = re.search(r'^Usage: \S+ (.*)$', text, re.M)[1]
        self.words = [w for w in re.findall(r'[A-Z]+', usage.replace('[OPTIONS]', '').replace('SUBCOMMAND', ''))]

    def command(self, flag=None, value=None):
        """The arguments of a run that ends soon, or serves; with the flag on top."""
        quiet = {'listen': '127.0.0.1:0', 'http': '127.0.0.1:0', 'announce': os.path.join(FOLDER, 'announced'),
                 'master': MASTER.address, 'timeout': '300ms', 'url': f'http://127.0.0.1:{CLOSED}',
                 'duration': '100ms', 'admin-socket': 'none', 'progress': '0s', 'size': '16MiB', 'pool': '16MiB', 'wait-ready': '0s', 'for': '100ms', 'count': '4'}
        own = '' if self.name not in DAEMONS else ('listen', 'http', 'announce', 'admin-socket')
        words = [os.path.join(BIN, self.program)] + ([self.verb] if self.verb else [])
        if self.name == 'mc-xfer pull':
            quiet |= {'from': f'127.0.0.1:{CLOSED}', 'to': os.path.join(FOLDER, 'pulled')}
        for name, usual in quiet.items():
            if name in self.flags and name != flag and (name not in ('announce', 'admin-socket') or own):
                words.append(f'--{name}={usual}')
        if self.once:
            words.append('--once')
        if flag is not None:
            words += [f'--{flag}={value}'] if value else [f'--{flag}', value]
        return words + [WORDS_FOR.get(w, 'x') for w in self.words]


def verbs_of(program):
    def help_of(*words):
        return subprocess.run([os.path.join(BIN, program), *words, '--help'], capture_output=True, text=True, check=True,
                              timeout=LIMIT).stdout
    text = help_of()
    below = re.search(r'^Subcommands:\n((?:  .*\n)+)', text, re.M)
    names = re.findall(r'^  ([a-z][a-z-]*)', below[1], re.M) if below else []
    own = [] if below and 'mc-conductor' != program else [Verb(program, '', text)]
    return own + [Verb(program, name, help_of(name)) for name in names]


def closed_port():
    """Nobody listens there: it is bound, and held."""
    s = socket.socket()
    s.bind(('127.0.0.1', 0))
    return s, s.getsockname()[1]


class Master:
    """Of a store without nodes, for those who ask one."""
    def __init__(self):
        announced = os.path.join(FOLDER, 'master.json')
        with open(os.path.join(FOLDER, 'master.log'), 'wb') as log:
            self.process = subprocess.Popen(
                [os.path.join(BIN, 'mc-master'), '--listen=127.0.0.1:0', '--http=127.0.0.1:0', f'--announce={announced}'],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT)
        end = time.monotonic() + LIMIT
        while not os.path.exists(announced) and time.monotonic() < end:
            time.sleep(0.02)
        with open(announced, encoding='utf-8') as f:
            self.address = json.load(f)['control']


def limits():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(words, serves):
    """The status, what it said, and the seconds: of a daemon that is ready, 'ready' and the status after SIGTERM."""
    announced = os.path.join(FOLDER, 'announced')
    if os.path.exists(announced):
        os.unlink(announced)
    shutil.rmtree(WORDS_FOR['DIR'], ignore_errors=True)
    began = time.monotonic()
    with open(os.path.join(FOLDER, 'said'), 'w+b') as said, open(os.path.join(FOLDER, 'out'), 'w+b') as out:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=said, preexec_fn=limits,
                                 env=ENVIRONMENT, cwd=os.path.join(FOLDER, 'work'), start_new_session=True)
        ready, status = False, None
        while status is None and time.monotonic() - began < LIMIT:
            try:
                status = child.wait(0.02)
            except subprocess.TimeoutExpired:
                said.seek(0)
                if serves and not ready and (os.path.exists(announced) or b' ready: control ' in said.read()):
                    ready = True
                    child.send_signal(signal.SIGTERM)
        if status is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        said.seek(0)
        return status, said.read(), ready, time.monotonic() - began


def last_line(said):
    """The line on which a program says why it ends: logs have a time in front."""
    lines = [line for line in said.decode(errors='replace').split('\n') if line.strip()]
    return lines[-1] if lines else ''


def plain(line):
    """Without what differs from run to run."""
    return re.sub(r'\d+', '#', line)


def serves_later(verb, line):
    """A daemon waits for a master that may come."""
    return verb.name in DAEMONS and 'trying again' in line


def judge(verb, flag, value, usual):
    """What is wrong; '': nothing."""
    status, said, ready, took = run(verb.command(flag, value), verb.name in DAEMONS)
    line = last_line(said)
    if status is None and not ready and serves_later(verb, line):
        return ''
    if status is None:
        return 'hangs after SIGTERM' if ready else f'hangs for {took:.0f} s: {line[:300]}'
    if status < 0:
        return f'ends by signal {-status}: {line[:300]}'
    if re.search(rb'Sanitizer|terminate called|runtime error:|Assertion|what\(\):|#0 0x', said):
        return f'prints a stack: {said[-500:]!r}'
    if re.search(rb'[\x00-\x08\x0b-\x1f\x7f]', said):
        return f'prints control characters: {said[-300:]!r}'
    if ready or status == 0 or (status, plain(line)) == usual:
        return '' if not ready or status == 0 else f'ready, then status {status}: {line[:300]}'
    if status not in (1, 2, 3, 4):
        return f'ends with status {status}: {line[:300]}'
    if len(line) > 5000:
        return f'says a line of {len(line)} bytes'
    if flag not in said.decode(errors='replace') and status != 3 and value.strip(' ,'):  # 3: whom it asks is not there, or late
        now_status, now_said, _, _ = run(verb.command(), verb.name in DAEMONS)
        if (now_status, plain(last_line(now_said))) == (status, plain(line)):
            return ''  # what others left at the master meanwhile, such as a node that is full or gone
        return f'status {status} without the name of the flag: {line[:300]}'
    return ''


for name in ('work', 'home'):
    os.makedirs(os.path.join(FOLDER, name))
ENVIRONMENT = {'PATH': os.environ['PATH'], 'HOME': os.path.join(FOLDER, 'home'), 'TMPDIR': os.path.join(FOLDER, 'work')}
HELD, CLOSED = closed_port()
MASTER = Master()
TRACE = os.path.join(FOLDER, 'trace.jsonl')
with open(TRACE, 'w') as f:
    for i in range(20):
        f.write(f'{{"timestamp": {i * 10}, "input_length": 600, "output_length": 3, "hash_ids": [{i}, {i + 1}]}}\n')
WORDS_FOR = {'TRACE': TRACE, 'FILE': TRACE, 'LIVE': TRACE, 'COUNT': '1', 'ROLE': 'prefill', 'KIND': 'poisson', 'FIGURE': 'none',
             'TARGET': f'127.0.0.1:{CLOSED}', 'WORKER': f'127.0.0.1:{CLOSED}', 'PATH': TRACE, 'DIR': os.path.join(FOLDER, 'captured'),
             'FROM': TRACE, 'TO': os.path.join(FOLDER, 'copied')}


def main():
    draw = random.Random(SEED)
    paths = make_paths()
    verbs = [v for p in PROGRAMS if os.access(os.path.join(BIN, p), os.X_OK) for v in verbs_of(p)
             if v.name not in RUN_ON]
    rounds = []  # of each flag: its values, in a drawn order
    for verb in verbs:
        for flag, kind in verb.flags.items():
            if ONLY and not ONLY & {verb.program, verb.verb, verb.name, flag}:
                continue
            values = values_of(kind, paths)
            draw.shuffle(values)
            rounds.append((verb, flag, values))
    todo = []
    for i in range(max((len(values) for _, _, values in rounds), default=0)):
        some = [(verb, flag, values[i]) for verb, flag, values in rounds if i < len(values)]
        draw.shuffle(some)
        todo += some
    usual, wrong, done, end = {}, [], 0, time.monotonic() + SECONDS
    for verb, flag, value in todo:
        if time.monotonic() > end:
            break
        if verb.name not in usual:
            status, said, ready, _ = run(verb.command(), verb.name in DAEMONS)
            if status is None or ready != (verb.name in DAEMONS):
                wrong.append(f'{verb.name} does not start or end as it should: {said[-500:]!r}')
                print(wrong[-1], flush=True)
            usual[verb.name] = (status, plain(last_line(said)))
        if usual[verb.name][0] is None:
            continue
        done += 1
        if why := judge(verb, flag, value, usual[verb.name]):
            shown = repr(value) if len(value) < 80 else f'{value[:40]!r}... of {len(value)}'
            wrong.append(f'{verb.name} --{flag}={shown}: {why}')
            print(wrong[-1], flush=True)
    print(f'flags: {done} of {len(todo)} values for {len(rounds)} flags of {len(verbs)} verbs, {len(wrong)} wrong (seed {SEED})')
    return 1 if wrong or not done else 0


try:
    STATUS = main()
finally:
    MASTER.process.kill()
    MASTER.process.wait()
sys.exit(STATUS)
