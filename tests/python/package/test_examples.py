"""What the docs and examples show, run as written."""
import importlib.util
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


README = (ROOT / "README.md").read_text()


def block(word):
    (found,) = [text for text in BLOCKS if word in text]
    return found


def test_the_drop_in_for_pytorch():
    torch = pytest.importorskip("torch")
    names = {"torch": torch, **{name: torch.randn(1, 4, 16, 32) for name in "qkv"}}
    exec(block("replace_sdpa():"), names)
    torch.testing.assert_close(names["out"], torch.nn.functional.scaled_dot_product_attention(*(names[x] for x in "qkv"), is_causal=True))


def test_the_three_lines_of_the_readme():
    torch = pytest.importorskip("torch")
    (lines,) = re.findall(r"```python\n(.*?)```", README, re.S)

    def model(query, key, value):
        assert torch.nn.functional.scaled_dot_product_attention is greenfast.torch.scaled_dot_product_attention
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    names = {"model": model, "inputs": {name: torch.randn(1, 4, 16, 32) for name in ("query", "key", "value")}}
    import greenfast.torch
    exec(lines, names)
    torch.testing.assert_close(names["out"], torch.nn.functional.scaled_dot_product_attention(**names["inputs"], is_causal=True))
    assert torch.nn.functional.scaled_dot_product_attention is not greenfast.torch.scaled_dot_product_attention


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


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def one_thread():
    """The example's matrices are too small for more: on a busy machine they wait for each other."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("model, server", [(dict(), dict(pages=60, page=16, budget=64)), (dict(window=20, sinks=True), dict(pages=30, page=8, budget=40)),
                                           (dict(sinks=True), dict(pages=13, page=16, budget=17)), (dict(window=1), dict(pages=200, page=1, budget=30))])
def test_texts_served_together_are_each_text_alone(one_thread, model, server):
    torch = pytest.importorskip("torch")
    serve = example("serve")
    rng = torch.Generator().manual_seed(1)
    whole = torch.randint(0, serve.WORDS, (200,), generator=rng).tolist()
    requests = [serve.Request(whole[n:n + length], new, n) for n, (length, new) in enumerate(((150, 20), (1, 40), (37, 1), (160, 30), (16, 16), (90, 9)))]
    decoder, widest = serve.Model(**model), []

    class Watched(serve.Server):
        def schedule(self):
            step = super().schedule()
            widest.append(sum(step.values()))
            held = [page for one in self.running for page in one.pages if page >= 0]
            assert sorted(held + self.free) == list(range(server["pages"]))  # each page is one text's, or free
            return step
    watched = Watched(decoder, **server)
    with torch.inference_mode():
        ended = serve.serve(watched, requests)
        assert {id(one) for one in ended} == {id(one) for one in requests} and all(len(one.logits) == one.new for one in requests)
        assert all(one.text[:len(one.prompt)] == one.prompt and len(one.text) == len(one.prompt) + one.new for one in requests)
        assert max(serve.largest_error(decoder, one) for one in requests) < 1e-4
    assert max(widest) <= server["budget"] and watched.counts["mixed"] and len(watched.free) == server["pages"]
    assert bool(watched.counts["given up"]) == (server["pages"] == 13)


def test_continuous_batching_end_to_end():
    pytest.importorskip("torch")
    script = ROOT / "examples" / "serve.py"
    done = subprocess.run([sys.executable, script, "--requests", "6", "--window", "50", "--sinks"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and re.search(r"6 requests, .* requests/s", done.stdout), done.stdout + done.stderr
    for arguments, words in ((["--pages", "3"], "the pool has 3"), (["--budget", "0"], "1 or more")):
        done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and words in done.stderr


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
