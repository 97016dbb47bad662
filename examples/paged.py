#!/usr/bin/env python3
"""paged.py: a toy model generates text for three prompts at once, with its keys and values in pages. NumPy alone.

Prompts of different lengths are computed packed, one behind the other; then each step appends one key and value of each sequence
to its last page, takes a new page where that is full, and attends. At the end every sequence is computed once more by
itself, without cache and pages: the tokens must be the same. Exit codes: 0 they are, 1 they are not.
"""
import sys

import numpy as np

import greenfast

WORDS, HEADS, HEADS_KV, WIDTH, PAGE, STEPS = 97, 8, 2, 32, 16, 40
rng = np.random.default_rng(0)
embed = rng.standard_normal((WORDS, HEADS * WIDTH), dtype=np.float32)
project = {name: rng.standard_normal((HEADS * WIDTH, heads * WIDTH), dtype=np.float32) / 16 for name, heads in
           (("q", HEADS), ("k", HEADS_KV), ("v", HEADS_KV))}
unembed = rng.standard_normal((HEADS * WIDTH, WORDS), dtype=np.float32)
angles = np.outer(np.arange(128), 10000.0 ** -np.linspace(0, 1, WIDTH // 2)).astype(np.float32)
cos, sin = np.cos(angles), np.sin(angles)


def heads(tokens, name):
    """[tokens, heads, WIDTH]"""
    return (embed[tokens] @ project[name]).reshape(len(tokens), -1, WIDTH)


def words(attended):
    """The next word of each position."""
    return (attended.reshape(len(attended), -1) @ unembed).argmax(-1)


def generate(prompts):
    lengths = np.array([len(p) for p in prompts], np.int32)
    most = -(-(lengths.max() + STEPS) // PAGE)
    pool = [np.empty((len(prompts) * most, PAGE, HEADS_KV, WIDTH), np.float32) for _ in range(2)]
    free, table = list(rng.permutation(len(pool[0]))), np.full((len(prompts), most), -1, np.int32)
    used, new, tokens = np.zeros_like(lengths), lengths, np.concatenate(prompts)
    texts = [list(p) for p in prompts]
    for _ in range(STEPS):
        for b, length in enumerate(used + new):  # a page where the last one is full
            for n in range(-(-length // PAGE)):
                if table[b, n] < 0:
                    table[b, n] = free.pop()
        cu = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
        q = greenfast.append(heads(tokens, "k"), heads(tokens, "v"), *pool, used_kv=used, q=heads(tokens, "q"), cos=cos, sin=sin,
                             page_table=table, cu_new=cu, layout="bshd")
        used = used + new
        attended = greenfast.attention(q, *pool, used_kv=used, page_table=table, cu_q=cu, max_q=int(new.max()), causal=True,
                                       align="bottom_right", layout="bshd")
        tokens = words(attended)[cu[1:] - 1]  # what each sequence's last position says
        new = np.ones_like(lengths)
        for text, token in zip(texts, tokens):
            text.append(int(token))
    return texts


def again(text, prompt):
    """Whether the text follows from its prompt, computed at once from all of its words."""
    tokens = np.array(text)
    at = [np.empty((1, len(text), HEADS_KV, WIDTH), np.float32) for _ in range(2)]
    q = greenfast.append(heads(tokens, "k")[None], heads(tokens, "v")[None], *at, q=heads(tokens, "q")[None], cos=cos, sin=sin, layout="bshd")
    said = words(greenfast.attention(q, *at, causal=True, layout="bshd")[0])
    return text[len(prompt):] == said[len(prompt) - 1:-1].tolist()


def main():
    prompts = [rng.integers(0, WORDS, length) for length in (5, 33, 16)]
    texts = generate(prompts)
    right = [again(text, prompt) for text, prompt in zip(texts, prompts)]
    for prompt, text, same in zip(prompts, texts, right):
        print(f"{len(prompt)} words and {len(text) - len(prompt)} new ones: {' '.join(map(str, text[len(prompt):][:12]))} ... "
              f"{'as without pages' if same else 'NOT as without pages'}")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
