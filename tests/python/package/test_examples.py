"""What the docs and examples show, run as written."""
import os
import pathlib
import re
import subprocess
import sys
import warnings

import numpy
import pytest

import reference

ROOT = pathlib.Path(__file__).resolve().parents[3]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)


def block(word):
    (found,) = [text for text in BLOCKS if word in text]
    return found


def test_the_drop_in_for_pytorch():
    torch = pytest.importorskip("torch")
    names = {"torch": torch, **{name: torch.randn(1, 4, 16, 32) for name in "qkv"}}
    exec(block("replace_sdpa():"), names)
    torch.testing.assert_close(names["out"], torch.nn.functional.scaled_dot_product_attention(*(names[x] for x in "qkv"), is_causal=True))


def test_the_registry_of_pytorch():
    torch = pytest.importorskip("torch")
    if not hasattr(torch.nn.attention, "activate_flash_attention_impl"):
        pytest.skip("torch 2.10 has it first")
    exec(block("activate_flash_attention_impl"), {})
    assert torch.nn.attention.current_flash_attention_impl() is None


def test_the_call_on_numpy(capsys):
    names = {}
    exec(block("import numpy"), names)
    assert names["out"].shape == (1, 8, 512, 64) and names["lse"].shape == (1, 8, 512) and "cpu.flash" in capsys.readouterr().out


def test_pages_on_numpy():
    names = {}
    exec(block("import numpy"), names)
    exec(block("page_table=table"), names)
    k, v, b = names["pool_k"].reshape(4, 80, 2, 64), names["pool_v"].reshape(4, 80, 2, 64), 2
    want, _ = reference.attention(names["q"][b:b + 1].swapaxes(1, 2), *(x[b:b + 1, :41].swapaxes(1, 2) for x in (k, v)))
    numpy.testing.assert_allclose(names["out"][b:b + 1].swapaxes(1, 2), want, atol=3e-6)
    assert (k[b, 40] != 0).all() and not k[b, 41:].any()


def test_generation_from_pages_end_to_end():
    done = subprocess.run([sys.executable, ROOT / "examples" / "paged.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("as without pages") == 3, done.stdout + done.stderr


def test_the_model_of_transformers(monkeypatch):
    transformers = pytest.importorskip("transformers")
    chosen = {}
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda name, **options: chosen.update(options))
    exec(block("AutoModelForCausalLM"), {"name": "some/model"})
    assert chosen == {"attn_implementation": "greenfast"} and "greenfast" in transformers.AttentionInterface()


def test_the_backend_of_diffusers():
    diffusers = pytest.importorskip("diffusers")
    chosen = []
    pipe = type("Pipe", (), {"transformer": type("Transformer", (), {"set_attention_backend": chosen.append})})
    exec(block("set_attention_backend"), {"pipe": pipe})
    assert chosen == ["greenfast"] and diffusers.models.attention_dispatch.AttentionBackendName("greenfast").value == "greenfast"


def test_the_sentence_encoder_end_to_end():
    pytest.importorskip("transformers")
    cache = pathlib.Path(os.environ.get("GREENFAST_CAPTURE_CACHE", ROOT / "build" / "capture"))
    done = subprocess.run([sys.executable, ROOT / "examples" / "minilm.py", "--cache", cache], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        warnings.warn(done.stderr)
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"least cosine to eager (0\.9999|1\.0)", done.stdout)) == 2
