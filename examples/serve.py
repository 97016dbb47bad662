#!/usr/bin/env python3
"""serve.py [--requests N] [--budget TOKENS] [--pages N] [--page KEYS] [--window KEYS] [--sinks] [--seed N]: continuous batching.

Requests arrive while others run. Each step takes at most `--budget` tokens: one of every text that is being generated, and with what is
left chunks of prompts. All of them, whatever their lengths, are one packed batch, and one call of greenfast.append and one of
greenfast.attention a layer. Keys and values lie in pages of one pool; a text that ends gives its pages back, with --window also those that
no later token sees, and where the pool is empty the youngest text gives up its pages and is computed again later.

The model is small and has random weights: what is shown is the loop. At the end each text is computed once more by itself, by plain PyTorch
without cache, pages and batch: every logit that chose a token must be the same to 1e-3. PyTorch on the CPU, where append runs.
Exit codes: 0 they are, 1 they are not, 2 usage.
"""
import argparse
import collections
import dataclasses
import sys
import time

import torch

import greenfast

WORDS, LAYERS, HEADS, HEADS_KV, WIDTH, LONGEST = 512, 3, 8, 2, 32, 1024
HIDDEN = HEADS * WIDTH


class Model:
    """A decoder: rotary positions, grouped heads, and with `window` and `sinks` what gpt-oss adds."""

    def __init__(self, window=None, sinks=False, seed=0):
        rng = torch.Generator().manual_seed(seed)

        def weights(rows, columns):
            return torch.randn(rows, columns, generator=rng) * rows ** -0.5
        self.embed, self.unembed = weights(WORDS, HIDDEN) * WORDS ** 0.5, weights(HIDDEN, WORDS)
        self.layers = [(weights(HIDDEN, (HEADS + 2 * HEADS_KV) * WIDTH), weights(HIDDEN, HIDDEN), weights(HIDDEN, 2 * HIDDEN),
                        weights(2 * HIDDEN, HIDDEN)) for _ in range(LAYERS)]
        self.sinks = torch.randn(LAYERS, HEADS, generator=rng) if sinks else [None] * LAYERS
        self.window = window
        angles = torch.outer(torch.arange(LONGEST), 10000.0 ** -torch.linspace(0, 1, WIDTH // 2))
        self.cos, self.sin = angles.cos(), angles.sin()

    def logits(self, tokens, attend, rows):
        """Of these rows of a packed batch; attend(layer, q, k, v) is where tokens meet, all [tokens, heads, WIDTH]."""
        x = self.embed[tokens]
        for layer, (qkv, project, up, down) in enumerate(self.layers):
            parts = (torch.nn.functional.rms_norm(x, (HIDDEN,)) @ qkv).view(len(tokens), -1, WIDTH).split((HEADS, HEADS_KV, HEADS_KV), 1)
            x = x + attend(layer, *(part.contiguous() for part in parts)).reshape(len(tokens), HIDDEN) @ project
            x = x + torch.nn.functional.silu(torch.nn.functional.rms_norm(x, (HIDDEN,)) @ up) @ down
        return torch.nn.functional.rms_norm(x[rows], (HIDDEN,)) @ self.unembed


@dataclasses.dataclass(eq=False)
class Request:
    prompt: list
    new: int                                                    #: tokens to generate
    arrival: int                                                #: the step before which it comes
    text: list = dataclasses.field(default_factory=list)        #: the prompt and what has been generated
    used: int = 0                                               #: tokens whose keys are in the cache
    pages: list = dataclasses.field(default_factory=list)       #: -1 where a page was given back
    logits: list = dataclasses.field(default_factory=list)      #: that chose each token

    @property
    def ended(self):
        return len(self.text) == len(self.prompt) + self.new


class Server:
    def __init__(self, model, pages, page, budget):
        self.model, self.page, self.budget = model, page, budget
        self.pool = [[torch.empty(pages, page, HEADS_KV, WIDTH) for _ in range(2)] for _ in range(LAYERS)]
        self.free = list(range(pages))
        self.waiting, self.running = collections.deque(), []
        self.counts = collections.Counter()

    def add(self, request):
        request.text = list(request.prompt)
        most = -(-(len(request.prompt) + request.new) // self.page)
        if most > len(self.pool[0][0]) or len(request.prompt) + request.new > LONGEST:
            raise ValueError(f"a text of {len(request.prompt) + request.new} tokens wants {most} pages: the pool has {len(self.pool[0][0])}, and "
                             f"the longest text has {LONGEST} tokens")
        self.waiting.append(request)

    def release(self, request, pages=None):
        """Gives back all pages, or the first `pages`."""
        for n in range(len(request.pages) if pages is None else pages):
            if request.pages[n] >= 0:
                self.free.append(request.pages[n])
                request.pages[n] = -1

    def reserve(self, request, tokens):
        """Whether there are pages for so many more tokens; the youngest text makes room for an older one."""
        wanted = -(-(request.used + tokens) // self.page) - len(request.pages)
        while wanted > len(self.free):
            youngest = self.running[-1]
            if youngest is request:
                return False
            self.release(youngest)
            youngest.used, youngest.pages = 0, []
            self.waiting.appendleft(self.running.pop())
            self.counts["given up"] += 1
        request.pages += [self.free.pop() for _ in range(wanted)]
        return True

    def schedule(self):
        """{request: tokens of it} of this step: texts that go on one token at a time first, then chunks of prompts, the oldest first."""
        step, left, given_up = {}, self.budget, self.counts["given up"]
        for request in sorted(self.running, key=lambda one: len(one.text) - one.used > 1):
            if request in self.running and left > 0:  # not given up for one before it
                room = (len(request.pages) + len(self.free)) * self.page - request.used
                tokens = min(len(request.text) - request.used, left, max(room, 1))
                if self.reserve(request, tokens):
                    step[request] = tokens
                    left -= tokens
        while self.waiting and left > 0 and self.free and self.counts["given up"] == given_up:
            request = self.waiting.popleft()
            step[request] = min(len(request.text), left, len(self.free) * self.page)
            left -= step[request]
            self.running.append(request)
            self.reserve(request, step[request])
        return {request: tokens for request, tokens in step.items() if request in self.running}

    def step(self):
        step = self.schedule()
        if not step:
            return []
        requests, new = list(step), list(step.values())
        tokens = torch.tensor([word for request, count in step.items() for word in request.text[request.used:request.used + count]])
        cu = torch.tensor([0, *new]).cumsum(0).int()
        before = torch.tensor([request.used for request in requests], dtype=torch.int32)
        after = before + torch.tensor(new, dtype=torch.int32)
        table = torch.zeros(len(step), max(len(request.pages) for request in requests), dtype=torch.int32)
        for row, request in enumerate(requests):  # pages that were given back are never read, but entries have to be pages: 0
            table[row, :len(request.pages)] = torch.tensor(request.pages, dtype=torch.int32).clamp(min=0)
        model, window = self.model, None if self.model.window is None else (self.model.window - 1, 0)

        def attend(layer, q, k, v):
            pool = self.pool[layer]
            q = greenfast.append(k, v, *pool, used_kv=before, q=q, q_out=q, cos=model.cos, sin=model.sin, page_table=table, cu_new=cu, layout="bshd")
            return greenfast.attention(q, *pool, cu_q=cu, max_q=max(new), used_kv=after, page_table=table, causal=True, window=window,
                                       align="bottom_right", sinks=model.sinks[layer], layout="bshd")
        logits = model.logits(tokens, attend, cu[1:].long() - 1)

        ended = []
        for (request, count), row in zip(step.items(), logits):
            request.used += count
            if request.used == len(request.text):  # its last token is in: this row chooses the next
                request.text.append(int(row.argmax()))
                request.logits.append(row)
            if model.window is not None:  # the next token sees the last window - 1 keys and itself
                self.release(request, max(0, request.used + 1 - model.window) // self.page)
            if request.ended:
                self.release(request)
                self.running.remove(request)
                ended.append(request)
        self.counts.update(steps=1, tokens=len(tokens), mixed=max(new) > 1 and min(new) == 1)
        self.counts["pages"] = max(self.counts["pages"], len(self.pool[0][0]) - len(self.free))
        return ended


def serve(server, requests):
    """All requests, those of a step added before it; in the order in which they end."""
    coming, ended, step = collections.deque(sorted(requests, key=lambda one: one.arrival)), [], 0
    while coming or server.waiting or server.running:
        while coming and coming[0].arrival <= step:
            server.add(coming.popleft())
        ended += server.step()
        step += 1
    return ended


def alone(model, text):
    """Logits of every position, from all of the text at once, by the definition."""
    def turned(x):
        a, b = x.chunk(2, -1)
        cos, sin = model.cos[:len(x), None], model.sin[:len(x), None]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def attend(layer, q, k, v):
        k, v = (x.repeat_interleave(HEADS // HEADS_KV, 1) for x in (turned(k), v))
        scores = torch.einsum("ihd,jhd->hij", turned(q), k) * WIDTH ** -0.5
        step = torch.arange(len(text))[:, None] - torch.arange(len(text))
        hidden = (step < 0) | (step >= (model.window or len(text)))
        scores = scores.masked_fill(hidden, -torch.inf)
        if model.sinks[layer] is not None:
            scores = torch.cat([scores, model.sinks[layer][:, None, None].expand(-1, len(text), 1)], -1)
        return torch.einsum("hij,jhd->ihd", scores.softmax(-1)[..., :len(text)], v)
    return model.logits(torch.tensor(text), attend, slice(None))


def largest_error(model, request):
    """Between logits that chose a token and those of the text alone."""
    want = alone(model, request.text)[len(request.prompt) - 1:-1]
    return float((torch.stack(request.logits) - want).abs().max())


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].partition(": ")[2])
    for name, default, meaning in (("requests", 24, "texts to generate"), ("budget", 64, "most tokens of a step"), ("pages", 60, "of the pool"),
                                   ("page", 16, "keys of a page"), ("window", None, "keys that a token sees, its own included"), ("seed", 0, "")):
        parser.add_argument(f"--{name}", type=int, default=default, help=meaning)
    parser.add_argument("--sinks", action="store_true", help="a sink for each head")
    options = parser.parse_args(arguments)
    if min(options.requests, options.budget, options.pages, options.page, options.window or 1) < 1:
        parser.error("--requests, --budget, --pages, --page and --window are 1 or more")
    torch.set_num_threads(1)  # the model's matrices are too small for more
    model = Model(options.window, options.sinks, options.seed)
    rng = torch.Generator().manual_seed(options.seed)
    draw = lambda low, high: int(torch.randint(low, high, (), generator=rng))  # noqa: E731
    arrivals = torch.empty(options.requests).exponential_(0.5, generator=rng).cumsum(0).int().tolist()
    requests = [Request(torch.randint(0, WORDS, (draw(1, 200),), generator=rng).tolist(), draw(1, 60), arrival) for arrival in arrivals]
    server = Server(model, options.pages, options.page, options.budget)
    began = time.perf_counter()
    try:
        ended = serve(server, requests)
    except ValueError as error:
        print(f"serve: {error}; change --pages or --page", file=sys.stderr)
        return 2
    seconds = time.perf_counter() - began
    counts, made = server.counts, sum(request.new for request in ended)
    print(f"{len(ended)} requests, {sum(len(one.prompt) for one in ended)} words read and {made} written in {seconds:.2f} s: {len(ended) / seconds:.1f} "
          f"requests/s, {made / seconds:.0f} words/s")
    print(f"{counts['steps']} steps of {counts['tokens'] / counts['steps']:.0f} tokens, {counts['mixed']} of them with prompts and single tokens; "
          f"at most {counts['pages']} of {options.pages} pages; {counts['given up']} times a text gave up its pages")
    worst = max(largest_error(model, request) for request in ended)
    same = worst < 1e-3 and len(ended) == options.requests and sorted(server.free) == list(range(options.pages))
    print(f"largest difference to each text by itself: {worst:.1e}{'' if same else ': NOT the same'}")
    return 0 if same else 1


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main(sys.argv[1:]))
