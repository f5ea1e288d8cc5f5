"""llama.cpp, by llama-cpp-python: it opens a model file, and times prompts and decoding, by the wall clock
(`seconds`) and in CPU time of all threads (`cpu`)."""
import time

import llama_cpp
import numpy

BATCH = 512


def _now():
    return time.perf_counter(), time.process_time()


def _since(start, parts):
    """What has gone by for each part."""
    wall, cpu = (end - begin for begin, end in zip(start, _now()))
    return {'seconds': wall / parts, 'cpu': cpu / parts}


class Peer:
    """One model."""

    def open(self, file, threads):
        self.model = llama_cpp.Llama(model_path=file, n_ctx=8192, n_batch=BATCH, n_threads=threads,
                                     n_threads_batch=threads, verbose=False)
        return {'vocab': self.model.n_vocab()}

    def tokens(self, text, count):
        """The first tokens of a text."""
        found = self.model.tokenize(text.encode(), add_bos=False)
        if len(found) < count:
            raise ValueError(f'{len(found)} tokens are fewer than {count}')
        return found[:count]

    def _compute(self, tokens):
        """The likeliest token behind these."""
        self.model.eval(tokens)
        logits = llama_cpp.llama_get_logits_ith(self.model.ctx, -1)
        return int(numpy.argmax(numpy.ctypeslib.as_array(logits, shape=(self.model.n_vocab(),))))

    def prefill(self, tokens):
        """Seconds for a whole prompt, and the token behind it."""
        self.model.reset()
        start = _now()
        following = self._compute(tokens)
        return {**_since(start, 1), 'next': [following]}

    def decode(self, tokens, count):
        """Seconds for each of `count` tokens behind a prompt, and these."""
        self.model.reset()
        following, said = self._compute(tokens), []
        start = _now()
        for _ in range(count):
            said.append(following)
            following = self._compute([following])
        return {**_since(start, count), 'next': said}
