"""Every CPU variant times every mask and edge shape (S up to 517), in every dtype, through the same `check` that users run."""
import pytest

DTYPES = {"fp32", "fp16", "bf16", "e4m3"}
# And in which types: each mask in two at least, which between them meet every path of the kernels.
MASKS = {
    "full": ([], DTYPES),
    "causal top-left": (["--causal=top-left"], {"fp16", "e4m3"}),
    "causal bottom-right": (["--causal=bottom-right"], {"fp32", "bf16"}),
    "window": (["--window", "40,7"], {"fp16", "e4m3"}),
    "causal window": (["--window", "33,0"], {"fp32", "bf16"}),
    "softcap": (["--softcap", "20", "--causal=top-left"], {"fp16", "e4m3"}),
}


@pytest.mark.parametrize("mask", MASKS)
def test_every_variant_dtype_and_edge_shape_is_green(greenfast, mask):
    options, dtypes = MASKS[mask]
    result = greenfast("check", "--device", "cpu", "--shapes", "edges", "--dtype", ",".join(sorted(dtypes)), "--seeds", "0",
                       "--lse", "--json", *options)
    assert result.code == 0, result.err
    cases = result.json["cases"]
    assert not [(case["variant"], case["problem"], case["reason"]) for case in cases if case["verdict"] != "GREEN"]
    seen = {(case["variant"], dtype) for case in cases for dtype in dtypes if dtype in case["problem"].split()}
    # A problem in fp32 does not name its dtype.
    assert {dtype for variant, dtype in seen if variant == "cpu.flash"} >= dtypes - {"fp32"}
    assert {case["variant"] for case in cases} == {"cpu.naive", "cpu.flash"}
    shapes = {tuple(word for word in case["problem"].split() if "x" in word)[:1] for case in cases}
    assert len(shapes) >= 15
