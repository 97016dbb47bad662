"""Every CPU variant times every dtype, mask and edge shape (S up to 517), through the same `check` that users run."""
import pytest

MASKS = {
    "full": [],
    "causal top-left": ["--causal=top-left"],
    "causal bottom-right": ["--causal=bottom-right"],
    "window": ["--window", "40,7"],
    "causal window": ["--window", "33,0"],
    "softcap": ["--softcap", "20", "--causal=top-left"],
}
DTYPES = {"fp32", "fp16", "bf16", "e4m3"}


@pytest.mark.parametrize("mask", MASKS)
def test_every_variant_dtype_and_edge_shape_is_green(greenfast, mask):
    result = greenfast("check", "--device", "cpu", "--shapes", "edges", "--dtype", ",".join(sorted(DTYPES)), "--seeds", "0",
                       "--lse", "--json", *MASKS[mask])
    assert result.code == 0, result.err
    cases = result.json["cases"]
    assert not [(case["variant"], case["problem"], case["reason"]) for case in cases if case["verdict"] != "GREEN"]
    seen = {(case["variant"], dtype) for case in cases for dtype in DTYPES if dtype in case["problem"].split()}
    # A problem in fp32 does not name its dtype.
    assert {dtype for variant, dtype in seen if variant == "cpu.flash"} >= DTYPES - {"fp32"}
    assert {case["variant"] for case in cases} == {"cpu.naive", "cpu.flash"}
    shapes = {tuple(word for word in case["problem"].split() if "x" in word)[:1] for case in cases}
    assert len(shapes) >= 15
