"""The conversations of bench/agentic.py, and their answers."""
import json
import random
import sys
from collections import OrderedDict

NEW, SAID = 200, 16  # tokens of a turn: of the prompt, of the answer
BLOCK = 32
BLOCK_BYTES = 30 * 3 * 2 * 64 * 4 * BLOCK  # SmolLM2-135M in float32
CLOSE = 1e-3  # two best logprobs nearer than this are decided by the order of a sum


class Workload:
    """Conversations that grow by a turn each, in the order of turns."""

    def __init__(self, conversations, turns, seed):
        chance = random.Random(seed)
        self.conversations, self.turns = conversations, turns
        self.new = [[[chance.randrange(1000, 40000) for _ in range(NEW)] for _ in range(turns)]
                    for _ in range(conversations)]
        self.order = [(c, t) for t in range(turns) for c in range(conversations)]
        self.longest = turns * (NEW + SAID)  # tokens

    def turned(self):
        """The order for who deals turns out to two servers by himself: one after the other, and an even
        number of conversations begins one further each time, so that none stays on its server."""
        shift = self.conversations % 2 == 0
        return [((c + shift * t) % self.conversations, t) for t in range(self.turns) for c in range(self.conversations)]

    def length(self, turn):
        return turn * (NEW + SAID) + NEW

    def server(self, conversation, turn):
        """Round robin: the other one than before."""
        return (conversation + turn) % 2

    def prompt_tokens(self):
        return sum(self.length(t) for _, t in self.order)

    def seen_before(self, whole=1):
        """Tokens of prompts that some earlier turn had computed; the KV of its last token it had not."""
        return sum(max(0, t * (NEW + SAID) - 1) // whole * whole for _, t in self.order)

    def blocks(self):
        """Of one server: what the longest conversation takes, and no less than an eighth of all."""
        longest = -(-self.longest // BLOCK) + 1
        return max(longest, -(-self.conversations * self.longest // BLOCK // 8))

    def predicted(self, shared, turned=False):
        """Hit tokens, own and pool's, of LRU caches of that size, turn after turn."""
        own, pool, caches, stored = 0, 0, (OrderedDict(), OrderedDict()), set()
        for number, (c, t) in enumerate(self.turned() if turned else self.order):
            cache = caches[number % 2 if turned else self.server(c, t)]
            names = [(c, n) for n in range((self.length(t) + SAID - 1) // BLOCK)]
            most = (self.length(t) - 1) // BLOCK
            hit = next((n for n in range(most) if names[n] not in cache), most)
            more = next((n for n in range(hit, most) if names[n] not in stored), most) if shared else hit
            own, pool = own + hit * BLOCK, pool + (more - hit) * BLOCK
            for name in names:
                cache.pop(name, None)
            while len(cache) + len(names) + 1 > self.blocks():
                cache.popitem(last=False)
            cache.update(dict.fromkeys(reversed(names)))  # the ends go first
            stored.update(names)
        return own, pool

    def trace(self, seconds=3):
        """As mc-replay reads it, a turn each so many seconds."""
        ids, lines = {}, []
        for number, (c, t) in enumerate(self.order):
            size = self.length(t)
            names = [(c, n) if (n + 1) * BLOCK <= size else (c, n, t) for n in range(-(-size // BLOCK))]
            lines.append(json.dumps({'timestamp': number * seconds * 1000, 'input_length': size, 'output_length': SAID,
                                     'hash_ids': [ids.setdefault(name, len(ids)) for name in names]}))
        return '\n'.join(lines) + '\n'


class Answers:
    """What each prompt is answered; the first answer is what others are compared with."""

    def __init__(self):
        self.first = {}
        self.equal = self.close = self.wrong = self.unknown = 0

    def take(self, prompt, reply, reference):
        key = tuple(prompt)
        if key not in self.first:
            self.unknown += not reference
            self.first[key] = reply
            return
        known = self.first[key]
        at = next((n for n, (a, b) in enumerate(zip(known.tokens, reply.tokens)) if a != b), None)
        if at is None:
            self.equal += 1
        elif known.gaps[at] < CLOSE:
            self.close += 1
        else:
            self.wrong += 1
            print(f'agentic: a wrong answer: {reply.tokens} for {known.tokens}, gap {known.gaps[at]}', file=sys.stderr)
