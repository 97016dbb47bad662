"""run --inputs: Q, K and V from files, good ones and bad ones."""
import json
import struct

import numpy as np
import pytest

RNG = np.random.default_rng(5)


def tensors(shape_q=(2, 4, 20, 32), shape_kv=(2, 2, 33, 32), dtype=np.float32):
    return {"q": RNG.standard_normal(shape_q).astype(dtype), "k": RNG.standard_normal(shape_kv).astype(dtype),
            "v": RNG.standard_normal(shape_kv).astype(dtype)}


def safetensors(arrays, names=None):
    """The bytes of a .safetensors file, after the format's description; dtype by itemsize unless (dtype, bytes)."""
    header, data = {}, b""
    for name, array in arrays.items():
        if isinstance(array, tuple):
            dtype, shape, raw = array
        else:
            dtype, shape, raw = {"float32": "F32", "float16": "F16", "float64": "F64"}[array.dtype.name], array.shape, array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def with_header(text, data=b""):
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text + data


def bf16(array):
    """Truncated: values need not be the nearest, only the file's own."""
    return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)


@pytest.fixture
def capture(tmp_path):
    def write(content, name="capture.safetensors"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def check(greenfast, path, *options):
    return greenfast("check", "--device", "cpu", "--inputs", path, "--json", *options)


def attention(q, k, v):
    """fp64, [B, H, S, D], GQA."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1).astype(np.float64) for x in (k, v))
    s = q.astype(np.float64) @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def test_a_safetensors_file_is_a_problem_of_its_own_shape_and_type(greenfast, capture):
    record = check(greenfast, capture(safetensors({f"layer.3.{n}": a for n, a in tensors().items()}))).json
    (problem,) = record["problems"]
    assert (problem["name"], problem["source"], problem["dtype"]) == ("capture.safetensors", "file", "fp32")
    assert [problem[n] for n in ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim")] == [2, 4, 2, 20, 33, 32]
    assert {row["verdict"] for row in record["rows"]} == {"GREEN"}
    assert {case["distribution"] for case in record["cases"]} == {"file"}


def test_bshd_files_are_read_in_their_order(greenfast, capture):
    arrays = tensors()
    plain = check(greenfast, capture(safetensors(arrays))).json
    swapped = {n: np.ascontiguousarray(a.transpose(0, 2, 1, 3)) for n, a in arrays.items()}
    other = check(greenfast, capture(safetensors(swapped), "bshd.safetensors"), "--layout", "bshd").json
    # Digests are of the elements in BHSD order, so the same values give the same ones.
    assert {c["variant"]: c["output_sha256"] for c in plain["cases"]} == {c["variant"]: c["output_sha256"] for c in other["cases"]}
    assert plain["problems"][0]["strides"] != other["problems"][0]["strides"]


@pytest.mark.parametrize("names", ["q.npy,k.npy,v.npy", "."])
def test_npy_files_by_name_or_by_directory(greenfast, tmp_path, names):
    folder = tmp_path / "work" / "npy"
    folder.mkdir(parents=True)
    for name, array in tensors(dtype=np.float16).items():
        np.save(folder / name, array)
    inputs = ",".join(f"npy/{n}" for n in names.split(",")) if "," in names else "npy"
    record = check(greenfast, inputs).json
    assert record["problems"][0]["dtype"] == "fp16"
    assert record["exit_code"] == 0


def test_types_of_the_file_and_types_asked_for(greenfast, capture):
    arrays = tensors()
    as_bf16 = {n: ("BF16", a.shape, bf16(a).tobytes()) for n, a in arrays.items()}
    assert check(greenfast, capture(safetensors(as_bf16))).json["problems"][0]["dtype"] == "bf16"
    record = check(greenfast, capture(safetensors(arrays)), "--dtype", "fp32,fp16,bf16,e4m3").json
    assert [p["dtype"] for p in record["problems"]] == ["fp32", "fp16", "bf16", "e4m3"]
    assert {row["verdict"] for row in record["rows"]} == {"GREEN"}


def test_e4m3_with_scales_is_taken_bit_for_bit(greenfast, capture):
    shape = (1, 2, 16, 16)
    codes = {n: ("F8_E4M3", shape, RNG.integers(0, 0x70, 512, dtype=np.uint8).tobytes()) for n in "qkv"}
    scales = {f"{n}_scale": np.full((1, 2), 0.01, np.float32) for n in "qkv"}
    record = check(greenfast, capture(safetensors({**codes, **scales}))).json
    assert (record["problems"][0]["dtype"], record["problems"][0]["scales"]) == ("e4m3", "per_head")
    assert {row["verdict"] for row in record["rows"]} == {"GREEN"}
    without = check(greenfast, capture(safetensors(codes))).json
    assert without["problems"][0]["scales"] == "none"


def test_shapes_and_inputs_run_together(greenfast, capture):
    record = check(greenfast, capture(safetensors(tensors())), "--shapes", "small").json
    assert [p["name"] for p in record["problems"]] == ["small", "capture.safetensors"]


def test_rank_3_is_a_batch_of_one(greenfast, capture):
    arrays = {n: a[0] for n, a in tensors().items()}
    assert check(greenfast, capture(safetensors(arrays))).json["problems"][0]["batch"] == 1


def test_captured_inputs_are_timed_too(greenfast, capture):
    record = greenfast("run", "--inputs", capture(safetensors(tensors())), "--variants", "cpu.flash", "--iters", "4",
                       "--json").json
    assert record["rows"][0]["time"]["p50_seconds"] > 0


GOOD = safetensors(tensors((1, 1, 4, 8), (1, 1, 4, 8)))
ENTRY = '{"dtype":"F32","shape":[1,1,1,8],"data_offsets":[%d,%d]}'
TRIPLE = '{"q":' + ENTRY % (0, 32) + ',"k":' + ENTRY % (32, 64) + ',"v":' + ENTRY % (64, 96) + "}"


def changed(**entries):
    header = json.loads(TRIPLE)
    header["q"].update(entries)
    return with_header(json.dumps(header), b"\0" * 96)


@pytest.mark.parametrize("content, words", [
    (b"", ["truncated"]),
    (GOOD[:5], ["truncated"]),
    (GOOD[:40], ["only", "follow"]),
    (GOOD[:-1], ["outside the file"]),
    (struct.pack("<Q", 2**63) + b"{}", ["claims 9223372036854775808 bytes"]),
    (struct.pack("<Q", 2**64 - 1) + b"{}", ["claims 18446744073709551615 bytes"]),
    (struct.pack("<Q", 17 << 20) + b" " * (17 << 20), ["claims 17825792 bytes; at most"]),
    (with_header("not json"), ["not a JSON object"]),
    (with_header("[1, 2]"), ["not a JSON object"]),
    (with_header('{"a":' + "[" * 2000 + "]" * 2000 + "}"), ["nested too deeply"]),
    (with_header('{"q":1}'), ["'q'", "not an object"]),
    (with_header('{"q":{"dtype":"F32"}}'), ["'q'", "'shape' is missing"]),
    (with_header("{}"), ["no tensor is called 'q'"]),
    (with_header('{"q":' + ENTRY % (0, 32) + ',"q":' + ENTRY % (0, 32) + "}", b"\0" * 32), ["'q' occurs twice"]),
    (with_header('{"a.q":' + ENTRY % (0, 32) + ',"b.q":' + ENTRY % (32, 64) + "}", b"\0" * 64), ["both 'a.q' and 'b.q'"]),
    (with_header('{"x\\u001b[31m":' + ENTRY % (0, 32) + "}", b"\0" * 32), ["the file has: x?[31m"]),
    (changed(dtype="F64", data_offsets=[0, 64], shape=[1, 1, 1, 8]), ["share the bytes"]),
    (changed(dtype="I32"), ["'q' has dtype I32", "F32, F16, BF16 and F8_E4M3"]),
    (changed(dtype=7), ["dtype is not a string"]),
    (changed(shape=[1, 1, 1, 9]), ["needs 36 bytes", "hold 32"]),
    (changed(shape=[1, 1, -1, 8]), ["not a non-negative integer"]),
    (changed(shape=[1, 1, 1.5, 8]), ["not a non-negative integer"]),
    (changed(shape=[2**62, 2**62, 4, 8]), ["overflows"]),
    (changed(shape=[1] * 9), ["at most 8 sizes"]),
    (changed(shape=[8]), ["q has rank 1"]),
    (changed(shape=[1, 1, 1, 1, 8]), ["q has rank 5"]),
    (changed(data_offsets=[0, 1000]), ["outside the file's 96 bytes"]),
    (changed(data_offsets=[32, 0]), ["outside the file"]),
    (changed(data_offsets=[-4, 28]), ["data_offsets"]),
    (changed(data_offsets=[16, 48]), ["share the bytes"]),
    (with_header(TRIPLE, b"\0" * 100), ["take 96 bytes", "the file has 100"]),
    (with_header(TRIPLE.replace("[64,96]", "[68,100]"), b"\0" * 100), ["bytes 64 to 68 of the data belong to no tensor"]),
    (changed(shape=[1, 1, 2, 4]), ["do not fit together"]),
    (safetensors(tensors((1, 3, 4, 8), (1, 2, 4, 8))), ["3", "2"]),
    (safetensors(tensors((1, 1, 4, 12), (1, 1, 4, 12))), ["12", "8 to 256"]),
    (safetensors({**tensors((1, 1, 4, 8), (1, 1, 4, 8)), "q": np.zeros((1, 1, 4, 8), np.float16)}), ["fp16, fp32, fp32"]),
    (safetensors({**tensors((1, 1, 4, 8), (1, 1, 4, 8)), "q_scale": np.ones(1, np.float32)}), ["F8_E4M3"]),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "file")
def test_a_bad_safetensors_file_is_refused_by_name(greenfast, capture, content, words):
    path = capture(content)
    greenfast("check", "--inputs", path).refused(2, "capture.safetensors", *words)
    assert greenfast.files() == []


def npy(header, data=b"\0" * 128, version=1):
    text = header.encode() if isinstance(header, str) else header
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


F4 = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 4, 8), }"


@pytest.mark.parametrize("content, words", [
    (b"", ["not an .npy file"]),
    (b"\x93NUMPY\x01\x00", ["not an .npy file"]),
    (npy(F4, version=9), ["format 9.x"]),
    (npy(F4)[:30], ["only", "truncated"]),
    (npy(F4)[:-1], ["needs 128 bytes", "has 127"]),
    (npy(F4) + b"\0", ["needs 128 bytes", "has 129"]),
    (npy(F4.replace("<f4", ">f4")), ["dtype '>f4'", "'<f4' and '<f2'"]),
    (npy(F4.replace("<f4", "|V2")), ["dtype '|V2'", "save those as .safetensors"]),
    (npy(F4.replace("False", "True")), ["Fortran order", "ascontiguousarray"]),
    (npy(F4.replace("(1, 1, 4, 8)", "(4611686018427387904, 4, 4, 8)")), ["overflows"]),
    (npy(F4.replace("(1, 1, 4, 8)", "(-1, 4, 4, 8)")), ["damaged"]),
    (npy(F4.replace("(1, 1, 4, 8)", "(" + "1, " * 40 + ")")), ["damaged"]),
    (npy(F4.replace("(1, 1, 4, 8)", "(32,)")), ["q has rank 1"]),
    (npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}"), ["plain array"]),
    (npy("{'descr': '<f4'"), ["damaged"]),
    (npy("{'descr': '<f4', 'descr': '<f4'}"), ["repeated key 'descr'"]),
    (npy(b"\xff" * 64), ["damaged"]),
    (npy(F4, version=2)[:8] + struct.pack("<I", 2**32 - 1) + F4.encode(), ["claims 4294967295 bytes"]),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "file")
def test_a_bad_npy_file_is_refused_by_name(greenfast, tmp_path, content, words):
    folder = tmp_path / "npy"
    folder.mkdir()
    for name, array in tensors((1, 1, 4, 8), (1, 1, 4, 8)).items():
        np.save(folder / name, array)
    (folder / "q.npy").write_bytes(content)
    greenfast("check", "--inputs", folder).refused(2, "q.npy", *words)
    assert greenfast.files() == []


@pytest.mark.parametrize("inputs, words", [
    ("nowhere.safetensors", ["cannot open nowhere.safetensors", "No such file"]),
    ("nowhere.bin", ["nowhere.bin", "no such file"]),
    ("/etc/passwd", ["/etc/passwd", ".safetensors"]),
    ("a.npy,b.npy", ["names 2 files", "q.npy,k.npy,v.npy"]),
    ("/dev", ["/dev/q.npy"]),
])
def test_inputs_that_are_not_there(greenfast, inputs, words):
    greenfast("check", "--inputs", inputs).refused(2, *words)
    assert greenfast.files() == []


def test_layouts_that_files_do_not_have(greenfast, capture):
    greenfast("check", "--inputs", capture(GOOD), "--layout", "padded").refused(2, "possible are", "bshd")


def test_inputs_that_hold_nothing_judge_nobody_and_are_named(greenfast, capture):
    arrays = tensors()
    arrays["q"][:] = np.nan
    result = check(greenfast, capture(safetensors(arrays)))
    assert result.code == 10
    for row in result.json["rows"]:
        assert row["verdict"] == "SKIPPED", row
        assert "nothing to judge: Q is NaN or Inf in 5120 of 5120 elements" in row["reason"]
    arrays = tensors()
    arrays["v"][0, 0, 3, 1] = np.inf
    some = check(greenfast, capture(safetensors(arrays)))
    assert all("V is NaN or Inf in 1 of 4224 elements" in row["reason"] for row in some.json["rows"] if row["verdict"] == "GREEN")
    table = greenfast("check", "--device", "cpu", "--inputs", capture(safetensors(arrays)), "--quiet", "--out", "o")
    assert "V is NaN or Inf in 1 of" in table.out


def test_a_shape_without_rows_is_named(greenfast):
    result = greenfast("check", "--variants", "cpu.naive", "--shapes", "1x2x0/8x16", "--dtype", "fp32", "--json")
    assert result.code == 0 and result.json["rows"][0]["verdict"] == "GREEN"
    assert "no rows" in result.json["rows"][0]["reason"]
    gate = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", "--primary", "1x2x0/8x16", "--guards", "none",
                     "--dtype", "fp32", "--seeds", "0")
    assert gate.code == 2 and "1x2x0/8x16" in gate.err and "nothing to compute" in gate.err
