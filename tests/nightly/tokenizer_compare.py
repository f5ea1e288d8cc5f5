#!/usr/bin/env python3
"""Compares the tokenizers of mc with the `tokenizers` package.

    tokenizer_compare.py TOKENIZE [FILE..] [--texts N] [--seed N] [--keep FOLDER]
    tokenizer_compare.py --golden FOLDER

TOKENIZE is build/release/tokenize. Tokenizers of each published layout are trained on Debian's documents, with the
normalizers, pre-tokenizers, post-processors and decoders that the models' files have; FILEs (tokenizer.json
or .gguf) are compared too. Texts are random and of many languages. A text that has an added token is compared as a template's
text. Exits with 1 on any difference, and with 77 where the package is absent.

--golden writes small tokenizers with the ids of some texts: the fixtures of tests/unit/model/golden_test.cc.
"""
import argparse
import glob
import gzip
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import trainers
except ImportError:
    if __name__ == '__main__':
        print('SKIP: no package tokenizers')
        sys.exit(77)

GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
            "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = '|'.join([rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}",
                  r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

SAMPLES = ['The quick brown fox jumps over 13 lazy dogs.', "I'd've SEEN'S it; they'll don't WE'RE", 'x = foo(bar[1234567], 3.14)\n',
           'Grüße aus München, naïve café déjà vu', 'Zażółć gęślą jaźń', 'Съешь же ещё этих мягких булок',
           'Η ταχεία αλεπού Σίσυφος', 'השועל החום המהיר', 'سريع الثعلب البني ١٢٣', 'तेज़ भूरी लोमड़ी १२३', 'เร็วสีน้ำตาล',
           '敏捷的棕色狐狸', '素早い茶色のキツネ、カタカナ', '빠른 갈색 여우 한국어', 'İstanbul ıĞ', 'e\u0301a\u0323\u0302', 'ﬁ ﬂ ① Ａ １ ㍿',
           '👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️', '\t\ttabs  and   spaces   \n\n\r\n x', '\u00a0\u3000\u2003wide\u200bzero', '<0x0A> <unk> </s> [CLS] ##x',
           '▁ meta▁mark ▁▁', '#include <stdio.h>\nint main(void) { return 0; }', '{"a": [1, 2.5, null]}', 'http://a.example/b?c=d&e=%20',
           '— “quotes” … ‘x’', '∑∏√∞≠', 'ᄒ\u1161\u11AB', 'ǅ ß ſ K Å', '\u0001\u0007\u007f\ufffd\ufeff', "it's  O'Neil's '  ' n't"]
RANGES = [(0x20, 0x7e), (0xa0, 0x17f), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x4ff), (0x5d0, 0x5ea), (0x620, 0x66f),
          (0x900, 0x97f), (0xe01, 0xe3a), (0x1100, 0x11ff), (0x2000, 0x206f), (0x2150, 0x218f), (0x2460, 0x24ff),
          (0x3000, 0x30ff), (0x4e00, 0x4eff), (0xac00, 0xacff), (0xf900, 0xf9ff), (0xfb00, 0xfb06), (0xff01, 0xff9f),
          (0x1d400, 0x1d4ff), (0x1f300, 0x1f64f), (0x20000, 0x20100)]


def documents():
    """Text of this machine: what Debian's packages say about themselves."""
    out = []
    for path in sorted(glob.glob('/usr/share/doc/*/*') + glob.glob('/usr/share/common-licenses/*')):
        name = path.lower()
        if not any(word in name for word in ('copyright', 'readme', 'news', 'licenses')) or pathlib.Path(path).is_dir():
            continue
        data = pathlib.Path(path).read_bytes()
        out.append((gzip.decompress(data) if path.endswith('.gz') else data).decode('utf-8', 'replace'))
        if sum(map(len, out)) > 3_000_000:
            break
    return out


def texts(draw, count, marks, corpus):
    """Random texts: words, other languages, characters of many ranges, white space, and added tokens."""
    def characters():
        low, high = draw.choice(RANGES)
        made = (chr(draw.randint(low, high)) for _ in range(draw.randint(1, 8)))
        return ''.join(c for c in made if unicodedata.category(c) != 'Cn')

    def words():
        text = draw.choice(corpus)
        at = draw.randrange(max(1, len(text) - 80))
        return text[at:at + draw.randint(1, 80)]

    kinds = [lambda: draw.choice(SAMPLES), characters, characters, words, words, lambda: draw.choice([' ', '  ', '\n', '\n\n', '\t', '\r\n', ' \n ']),
             lambda: str(draw.randint(0, 10 ** draw.randint(1, 12))),
             lambda: draw.choice(marks) if marks and draw.random() < 0.3 else ' ']
    return [''.join(draw.choice(kinds)() for _ in range(draw.randint(0, 6))) for _ in range(count)]


def byte_level(corpus, size, pre, specials, normalizer=None, post=None, added=(), ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=specials,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if post:
        t.post_processor = post(t)
    t.add_tokens(list(added))
    return t


def isolated(*patterns):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), 'isolated') for p in patterns] +
                                   [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def begins(token):
    return lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single=f'{token}:0 $A:0', pair=f'{token}:0 $A:0 {token}:1 $B:1', special_tokens=[(token, t.token_to_id(token))])])


BYTES = [f'<0x{byte:02X}>' for byte in range(256)]


def byte_fallback(corpus, size, metaspace, gemma=False):
    """Llama 2, Mistral and Gemma: pairs of characters, and bytes for those that are no pieces."""
    t = Tokenizer(models.BPE(unk_token='<unk>', fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(' ', '▁')
    if gemma:
        t.normalizer = replace
        t.pre_tokenizer = pre_tokenizers.Split(' ', 'merged_with_previous')
    elif metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(replacement='▁', prepend_scheme='first', split=False)
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), replace])
    strip = [] if gemma else [decoders.Strip(' ', 1, 0)]
    t.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), *strip])
    t.train_from_iterator((line for text in corpus for line in text.split('\n')[:2000]), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=['<unk>', '<s>', '</s>'] + BYTES, max_token_length=16, limit_alphabet=120))
    state = json.loads(t.to_str())
    state['added_tokens'] = [a for a in state['added_tokens'] if a['content'] not in BYTES]
    t = Tokenizer.from_str(json.dumps(state))
    t.post_processor = processors.TemplateProcessing(single='<s> $A', pair='<s> $A <s> $B', special_tokens=[('<s>', 1)])
    t.add_tokens([AddedToken('<extra_1>', normalized=True), AddedToken('[INST]', normalized=False)])
    return t


def charsmap():
    """A small table of characters as SentencePiece compiles it, by Darts-clone's layout."""
    import base64
    import struct
    rules = {'ﬁ': 'fi', '①': '1', 'Ａ': 'A', '\u3000': ' ', 'e\u0301': 'é', '\u00a0': ' ', '㍿': '株式会社', '\t': ' ', 'ｶ\uff9e': 'ガ', '\u200b': ''}
    keys, blob = {}, b''
    for key, value in rules.items():
        keys[key.encode()] = len(blob)
        blob += value.encode() + b'\0'
    units = [0] * 65536
    used = {0}

    def place(prefix, node):
        children = sorted({k[len(prefix)] if len(k) > len(prefix) else -1 for k in keys if k.startswith(prefix)})
        labels = [0 if c < 0 else c for c in children]
        offset = next(o for o in range(1, 1 << 15) if all((node ^ o ^ c) not in used for c in labels)
                      and (o < (1 << 21)))
        used.update(node ^ offset ^ c for c in labels)
        units[node] |= offset << 10
        for child, label in zip(children, labels):
            at = node ^ offset ^ label
            if child < 0:
                units[node] |= 1 << 8
                units[at] = keys[prefix] | 1 << 31
            else:
                units[at] |= label
                place(prefix + bytes([child]), at)

    place(b'', 0)
    count = max(used) // 256 * 256 + 256  # the package reads anywhere in a block
    trie = struct.pack(f'<{count}I', *units[:count])
    return base64.b64encode(struct.pack('<I', len(trie)) + trie + blob).decode()


def unigram(corpus, size, layout):
    """T5 (Precompiled, WhitespaceSplit, Metaspace), ALBERT and Gemma-like files of unigram models."""
    t = Tokenizer(models.Unigram())
    specials = ['<pad>', '</s>', '<unk>'] if layout == 't5' else ['<unk>', '[CLS]', '[SEP]', '[MASK]']
    if layout == 't5':
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    else:
        t.normalizer = normalizers.Sequence([normalizers.Replace('``', '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
                                             normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Replace(Regex(' {2,}'), ' ')])
        t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator((line for text in corpus[:40] for line in text.split('\n')), trainers.UnigramTrainer(
        vocab_size=size, show_progress=False, special_tokens=specials, unk_token='<unk>'))
    if layout == 't5':
        state = json.loads(t.to_str())
        state['normalizer'] = {'type': 'Precompiled', 'precompiled_charsmap': charsmap()}
        t = Tokenizer.from_str(json.dumps(state))
        t.post_processor = processors.TemplateProcessing(single='$A </s>', pair='$A </s> $B </s>', special_tokens=[('</s>', 1)])
        t.add_special_tokens([AddedToken(f'<extra_id_{i}>', lstrip=i == 0, rstrip=i == 1) for i in range(3)])
    else:
        t.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B [SEP]',
                                                         special_tokens=[('[CLS]', 1), ('[SEP]', 2)])
        t.add_special_tokens([AddedToken('[MASK]', lstrip=True, normalized=False)])
    return t


def word_piece(corpus, size, lower):
    t = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    t.normalizer = normalizers.BertNormalizer(lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=size, show_progress=False, limit_alphabet=400,
                                                            special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']))
    cls, sep = (('[CLS]', t.token_to_id('[CLS]')), ('[SEP]', t.token_to_id('[SEP]')))
    if lower:
        t.post_processor = processors.TemplateProcessing(single='[CLS]:0 $A:0 [SEP]:0', pair='[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1',
                                                         special_tokens=[cls, sep])
    else:
        t.post_processor = processors.BertProcessing(sep, cls)
    t.add_tokens([AddedToken('frobnicate', single_word=True)])
    return t


def odds(corpus, size):
    """Parts that the published layouts leave out."""
    t = Tokenizer(models.BPE(unk_token='<unk>', end_of_word_suffix='</w>'))
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Strip(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Punctuation('contiguous'),
        pre_tokenizers.CharDelimiterSplit('q'), pre_tokenizers.Split(Regex('[aeiou]'), 'merged_with_next'),
        pre_tokenizers.Split('th', 'merged_with_previous'), pre_tokenizers.UnicodeScripts(), pre_tokenizers.FixedLength(6)])
    t.decoder = decoders.BPEDecoder()
    t.train_from_iterator(corpus[:40], trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=['<unk>'],
                                                           end_of_word_suffix='</w>', limit_alphabet=200))
    t.post_processor = processors.RobertaProcessing(('<unk>', 0), ('<unk>', 0))
    return t


def layouts(corpus, size):
    """name -> a function that makes the tokenizer."""
    nfc = normalizers.NFC()
    chatml = [AddedToken(t, special=True, normalized=False) for t in ('<|im_start|>', '<|im_end|>')]
    phi = [AddedToken(f'<|{t}|>', special=True, normalized=False, rstrip=t != 'x') for t in ('user', 'assistant', 'x')]
    return {
        'llama3': lambda: byte_level(corpus, size, isolated(GPT4 % '{1,3}'), ['<|begin_of_text|>', '<|eot_id|>'], ignore_merges=True,
                                     post=begins('<|begin_of_text|>')),
        'qwen': lambda: byte_level(corpus, size, isolated(GPT4 % ''), ['<|endoftext|>'], normalizer=nfc, added=chatml + ['<tool_call>', '<think>'],
                                   post=lambda t: processors.ByteLevel(trim_offsets=False)),
        'gpt2': lambda: byte_level(corpus, size, pre_tokenizers.ByteLevel(add_prefix_space=False), ['<|endoftext|>'],
                                   post=lambda t: processors.ByteLevel(trim_offsets=False)),
        'roberta': lambda: byte_level(corpus, size, pre_tokenizers.ByteLevel(add_prefix_space=True), ['<s>', '</s>', '<mask>'],
                                      post=lambda t: processors.RobertaProcessing(('</s>', 1), ('<s>', 0)),
                                      added=[AddedToken('<mask>', lstrip=True, special=True)]),
        'smollm': lambda: byte_level(corpus, size, pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]), ['<|endoftext|>'], added=chatml),
        'deepseek': lambda: byte_level(corpus, size, isolated(*DEEPSEEK), ['<｜begin▁of▁sentence｜>'], post=begins('<｜begin▁of▁sentence｜>'), added=['<think>']),
        'phi': lambda: byte_level(corpus, size, isolated(O200K), ['<|endoftext|>'], added=phi),
        'llama2': lambda: byte_fallback(corpus, size, False),
        'mistral': lambda: byte_fallback(corpus, size, True),
        'gemma': lambda: byte_fallback(corpus, size, False, True),
        't5': lambda: unigram(corpus, size, 't5'),
        'albert': lambda: unigram(corpus, size, 'albert'),
        'bert-uncased': lambda: word_piece(corpus, size, True),
        'bert-cased': lambda: word_piece(corpus, size, False),
        'odds': lambda: odds(corpus, size),
    }


def expected(t, batch):
    """What the package makes of texts: as tests/tokenizers/main.cc asks mc's tokenizers."""
    out = []
    marked = [e.ids for e in t.encode_batch(batch, add_special_tokens=False)]
    decoded = t.decode_batch(marked, skip_special_tokens=True)
    t.encode_special_tokens = True
    plain = [e.ids for e in t.encode_batch(batch, add_special_tokens=False)]
    prompt = [e.ids for e in t.encode_batch(batch, add_special_tokens=True)]
    t.encode_special_tokens = False
    for one in zip(prompt, plain, marked, decoded):
        out.append(dict(zip(('prompt', 'plain', 'marked', 'text'), one)))
    return out


def marks_of(t):
    return [token.content for token in t.get_added_tokens_decoder().values()]


def from_gguf(path):
    """The tokenizer of a GGUF file, with the parts that its model's own tokenizer.json has; None: of another kind."""
    import gguf
    fields = gguf.GGUFReader(path).fields

    def value(key):
        field = fields.get('tokenizer.ggml.' + key)
        return None if field is None else field.contents()

    words, kinds = value('tokens'), value('token_type')
    ids = {word: i for i, word in enumerate(words)}
    if value('model') == 'llama':
        t = of_scores(words, value('scores'), ids, value('add_space_prefix') is not False)
    else:
        pre = {'smollm': pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]),
               'llama-bpe': isolated(GPT4 % '{1,3}'), 'qwen2': isolated(GPT4 % '')}.get(value('pre'))
        if value('model') != 'gpt2' or pre is None:
            return None
        t = Tokenizer(models.BPE(ids, [tuple(m.split(' ')) for m in value('merges')], ignore_merges=value('pre') == 'llama-bpe'))
        t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.add_special_tokens([AddedToken(w, normalized=False) for w, kind in zip(words, kinds) if kind == 3])
    t.add_tokens([AddedToken(w, normalized=False) for w, kind in zip(words, kinds) if kind == 4])
    bos = value('bos_token_id')
    if value('add_bos_token') and bos is not None:
        t.post_processor = processors.TemplateProcessing(single=f'{words[bos]} $A', special_tokens=[(words[bos], bos)])
    return t


def of_scores(words, scores, ids, prefix):
    """SentencePiece's pairs as merges: those of the best piece first, as converters write them."""
    merges = []
    for i, word in enumerate(words):
        parts = [(word[:at], word[at:]) for at in range(1, len(word)) if word[:at] in ids and word[at:] in ids]
        merges += [(-scores[i], ids[left], ids[right], left, right) for left, right in parts]
    t = Tokenizer(models.BPE(ids, [merge[3:] for merge in sorted(merges)], unk_token='<unk>', fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(' ', '▁')
    t.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), replace]) if prefix else replace
    t.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()] +
                                  ([decoders.Strip(' ', 1, 0)] if prefix else []))
    return t


def opened(path):
    t = from_gguf(path) if str(path).endswith('.gguf') else Tokenizer.from_file(str(path))
    if t is not None:
        t.no_truncation()
        t.no_padding()
    return t


def compare(name, path, t, program, batch):
    said = subprocess.run([program, str(path)], input=''.join(json.dumps(text) + '\n' for text in batch), capture_output=True, text=True, check=False)
    if said.returncode != 0:
        print(f'{name}: {said.stderr.strip()}')
        return 1
    specials = [token.content for token in t.get_added_tokens_decoder().values() if token.special]
    wrong = 0
    counted = {'prompt': 0, 'plain': 0, 'marked': 0, 'text': 0}
    for text, theirs, line in zip(batch, expected(t, batch), said.stdout.rstrip('\n').split('\n'), strict=True):
        ours = json.loads(line)
        # A text that spells a special token stays text here, whatever the vocabulary has.
        asked = ('marked', 'text') if any(s in text for s in specials) else ('prompt', 'plain', 'marked', 'text')
        for kind in asked:
            if kind == 'text' and ('\ufffd' in theirs[kind] or '\ufffd' in ours[kind]):
                continue  # bytes that are no text: shown as such by both, not as many
            counted[kind] += 1
            if ours[kind] != theirs[kind]:
                wrong += 1
                if wrong <= 5:
                    print(f'{name}: {kind} of {text!r}:\n  ours   {ours[kind]!r}\n  theirs {theirs[kind]!r}')
    print(f'{name}: {len(batch)} texts, {t.get_vocab_size()} tokens, ' +
          ', '.join(f'{n} {kind}' for kind, n in counted.items()) + f': {wrong} differ', flush=True)
    return wrong


def golden(folder):
    """Fixtures: a tokenizer of each layout, and the ids of the samples."""
    corpus = [' '.join(SAMPLES) + '\n', *SAMPLES] * 3 + [pathlib.Path(__file__).read_text()]
    draw = random.Random(1)
    for name, make in layouts(corpus, 420).items():
        t = make()
        state = json.loads(t.to_str())
        t = Tokenizer.from_str(json.dumps(state))
        batch = [text for text in SAMPLES + [mark + ' x' + mark + 'y' for mark in marks_of(t)] + texts(draw, 10, marks_of(t), corpus)
                 if '\ufffd' not in text]
        specials = [token.content for token in t.get_added_tokens_decoder().values() if token.special]
        cases = []
        for text, one in zip(batch, expected(t, batch), strict=True):
            one['decoded'] = one.pop('text')
            if '\ufffd' not in one['decoded']:
                cases.append({'text': text, 'spells': any(s in text for s in specials), **one})
        path = pathlib.Path(folder) / f'{name}.json'
        path.write_text(json.dumps({'tokenizer': state, 'cases': cases}, ensure_ascii=True, separators=(',', ':')) + '\n')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('program', nargs='?')
    parser.add_argument('files', nargs='*')
    parser.add_argument('--texts', type=int, default=10_000)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--only')
    parser.add_argument('--size', type=int, default=8000)
    parser.add_argument('--keep')
    parser.add_argument('--golden')
    args = parser.parse_intermixed_args()
    if args.golden:
        golden(args.golden)
        return 0
    print(f'tokenizers {tokenizers.__version__}, seed {args.seed}')
    wrong = 0
    corpus = documents() + SAMPLES * 20
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(args.keep or temporary)
        folder.mkdir(exist_ok=True)
        for name, make in layouts(corpus, args.size).items():
            if args.only and name not in args.only.split(','):
                continue
            path = folder / f'{name}.json'
            if not path.exists():
                make().save(str(path))
            args.files.append(str(path))
        for path in args.files:
            t = opened(path)
            if t is None:
                print(f'{path}: not of a kind that is compared')
                continue
            draw = random.Random(args.seed)
            wrong += compare(pathlib.Path(path).stem, path, t, args.program, texts(draw, args.texts, marks_of(t), corpus)) > 0
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
