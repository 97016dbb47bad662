"""tools/gpu/python where there is no GPU: every part that can be is run whole, at sizes that take seconds."""
import argparse
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import greenfast  # noqa: E402

TOOL = pathlib.Path(__file__).resolve().parents[3] / "tools" / "gpu" / "python"
PACKAGE = pathlib.Path(greenfast.__file__).parents[1]


def tool(package, out, *arguments, **variables):
    return subprocess.run([sys.executable, TOOL, package, out, *arguments], capture_output=True, text=True, timeout=900, check=False,
                          env={**os.environ, **variables})


def test_calls_and_a_model_are_measured_and_kept(tmp_path):
    done = tool(PACKAGE, tmp_path, "calls", "diffusion", "--device", "cpu", "--rounds", "2", "--budget", "800")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "python.json").read_text())
    assert record["schema"] == "greenfast.python/1" and record["tiny"] and [step["state"] for step in record["steps"]] == ["as it should"] * 2
    assert len(record["calls"]["microseconds"]) == 10
    (case,) = record["models"].values()
    assert not case["failed"] and case["cosine_to_sdpa"] > 0.999
    assert set(case["eager"]) == {"sdpa", "greenfast", "nothing"} and set(case["compiled"]) == {"sdpa", "greenfast"}
    assert {name for mode in ("eager", "compiled") for name in case["speedup_over_sdpa"][mode]} == {"greenfast"}
    assert "attention is" in done.stdout


def test_what_does_not_fit_is_named_and_what_was_found_is_kept(tmp_path):
    done = tool(PACKAGE, tmp_path, "calls", "models", "--device", "cpu", "--budget", "15")
    assert done.returncode == 1
    states = {step["part"]: step["state"] for step in json.loads((tmp_path / "python.json").read_text())["steps"]}
    assert set(states) == {"calls", "encoder", "diffusion", "decoder"} and set(states.values()) == {"left out"}
    assert "decoder    left out" in done.stdout


def test_a_package_that_does_not_load_is_told_before_anything_is_measured(tmp_path):
    (tmp_path / "empty").mkdir()
    done = tool(tmp_path / "empty", tmp_path / "out", "calls", "--device", "cpu", PYTHONPATH="")
    assert done.returncode == 3 and "does not load" in done.stderr
    done = tool(tmp_path / "absent", tmp_path / "out", "calls", "--device", "cpu")
    assert done.returncode == 2 and "no such wheel or folder" in done.stderr


# --- decoding over a static cache, with layers that Dynamo traces and nobody compiles, which takes no time ------------------------

@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("gpu_python", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_python", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def traced(monkeypatch):
    """Each layer has to share what was traced of the first: one program for each of three implementations."""
    compiled = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled(self, backend="eager"))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=3, fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def small_decoder(script):
    script.implementations(torch, transformers)
    config = transformers.Qwen3Config(**{**script.TINY["decoder"], "num_hidden_layers": 5})
    torch.manual_seed(1)
    model = transformers.Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return model


def logits(model, name, step):
    model.config._attn_implementation = name
    with torch.no_grad():
        return step().clone()


def test_a_step_over_a_static_cache_is_that_over_a_dynamic_one_and_begins_again_each_time(script, traced):
    batch, tokens, length = 2, 16, 23
    model = small_decoder(script)
    step, cache = script.static_step(script.Machine(torch, "cpu"), model, batch, tokens, length)
    dynamic = transformers.DynamicCache()
    for number, layer in enumerate(cache.layers):
        assert layer.keys.shape[2] == length and layer.keys[:, :, tokens:].eq(0).all() and layer.keys[:, :, :tokens].ne(0).all()
        dynamic.update(layer.keys[:, :, :tokens].clone(), layer.values[:, :, :tokens].clone(), number)
    eager = logits(model, "sdpa", step)
    ids = next(cell.cell_contents for name, cell in zip(step.__code__.co_freevars, step.__closure__) if name == "ids")
    torch.testing.assert_close(eager, logits(model, "sdpa", lambda: model(input_ids=ids, past_key_values=dynamic).logits), atol=2e-5, rtol=1e-4)
    for layer, part in zip(model.model.layers, cache.layers):
        layer.compile()
        layer._compiled_call_impl = script.over_one_layer(layer, script.OneLayer(part))
    for _ in range(2):  # all took turns, and the position is where it was
        for name in ("sdpa", "greenfast"):
            torch.testing.assert_close(logits(model, name, step), eager, atol=2e-5, rtol=1e-4)
        assert (logits(model, "nothing", step) - eager).abs().max() > 0.01
        for layer in cache.layers:
            assert layer.cumulative_length == tokens + 1 and layer.keys[:, :, tokens + 1:].eq(0).all() and layer.keys[:, :, tokens].ne(0).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_every_replay_of_a_captured_step_is_that_step(script, traced):
    machine = script.Machine(torch, "cuda")
    model = small_decoder(script).to("cuda", torch.bfloat16)
    step, cache = script.static_step(machine, model, 2, 16, 23)
    eager = logits(model, "sdpa", step)
    for layer, part in zip(model.model.layers, cache.layers):
        layer.compile()
        layer._compiled_call_impl = script.over_one_layer(layer, script.OneLayer(part))
    sides = {name: lambda name=name: logits(model, name, step) for name in ("sdpa", "greenfast", "nothing")}
    for call in sides.values():
        call()
    graphs, why = script.captured(machine, sides)
    assert why == ""
    for _ in range(3):
        got = {name: graph().clone() for name, graph in graphs.items()}
        assert script.cosine(torch, got["sdpa"], eager) > 0.999 and script.cosine(torch, got["greenfast"], eager) > 0.999
        assert script.cosine(torch, got["nothing"], eager) < 0.99
        assert all(layer.cumulative_length == 17 for layer in cache.layers)


def test_the_decoder_is_timed_with_both_caches_and_the_record_says_of_what_size(script, traced, tmp_path, monkeypatch):
    arguments = argparse.Namespace(device="cpu", layers=3, rounds=2, tiny=True, budget=500)
    monkeypatch.setattr(script, "TINY", {**script.TINY, "prefill": (32,), "decode": ((4, 16),)})
    monkeypatch.setattr(script, "flash_attention_3", lambda torch: lambda q, k, v, causal, scale: q)
    work = script.Work("decoder", tmp_path, arguments)
    work.names = script.implementations(torch, transformers)
    assert work.names == ["sdpa", "fa3", "greenfast", "nothing"]
    script.decoder(work, script.Machine(torch, "cpu"), transformers)
    cases = json.loads((tmp_path / "decoder.json").read_text())
    assert list(cases) == ["tiny decoder, prefill 32", "tiny decoder, decode, batch 4 at 16"]
    prefill, decode = cases.values()
    for case in (prefill, decode):
        script.summarise(case)
        assert not case["failed"] and set(case["eager"]) == {*work.names} and case["cosine_to_sdpa"] > 0.999 and case["compiled_cosine_to_sdpa"] > 0.999
        assert all(len(times) == 2 for mode in ("eager", "compiled") for times in case[mode].values())
    assert set(prefill["compiled"]) == {"sdpa", "fa3", "greenfast"} and not {"static_cache", "compiled_attention_share"} & set(prefill)
    assert set(decode["compiled"]) == {"sdpa", "greenfast", "nothing"}
    assert decode["static_cache"] == {"batch": 4, "filled": 16, "length": 23, "cuda_graph": False, "why": "there are none on a CPU"}
    assert set(decode["compiled_attention_share"]) == {"sdpa", "greenfast"} and set(decode["speedup_over_sdpa"]["compiled"]) == {"greenfast"}
    record = {"device": "cpu", "versions": {"torch": "2"}, "utc": "2026-11-26", "models": cases, "steps": []}
    assert "compiled: 16 tokens in a static cache of 23, no CUDA graph: there are none on a CPU; attention is" in script.table(record)


def test_all_sides_are_captured_or_none(script, monkeypatch):
    machine = argparse.Namespace(device="cuda", torch=torch)
    made = []

    class Graph:
        def __init__(self, torch, call):
            made.append(call())

    def broken():
        raise RuntimeError("operation not permitted when stream is capturing")

    sides = {"sdpa": lambda: 1, "greenfast": lambda: 2}
    monkeypatch.setattr(script, "Captured", Graph)
    graphs, why = script.captured(machine, sides)
    assert why == "" and made == [1, 2] and all(isinstance(x, Graph) for x in graphs.values())
    sides["nothing"] = broken
    assert script.captured(machine, sides) == (sides, "nothing: RuntimeError: operation not permitted when stream is capturing")
