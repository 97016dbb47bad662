"""PyTorch: the raw call, scaled_dot_product_attention, gradients, compiled graphs, the registry."""
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.fx.experimental.symbolic_shapes  # noqa: E402

import greenfast  # noqa: E402
import greenfast.torch as gt  # noqa: E402
import reference  # noqa: E402
from test_arrays import by_codes  # noqa: E402

F = torch.nn.functional
SDPA = F.scaled_dot_product_attention


def tensors(dtype=torch.float32, **shape):
    return tuple(torch.from_numpy(x).to(dtype) for x in reference.inputs(**shape))


@pytest.fixture(params=["table", "attributes"])
def either_way(request, monkeypatch):
    """Tensors are read through DLPack's table, or attribute by attribute as before PyTorch 2.10."""
    if request.param == "attributes":
        monkeypatch.setattr(gt, "_DIRECT", False)
        monkeypatch.setattr(greenfast, "_shortcut", greenfast._no_shortcut)
    elif not gt._DIRECT:
        pytest.skip("this PyTorch has no table")


@pytest.fixture(autouse=True)
def said():
    gt._said.clear()


# --- greenfast.attention --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype, error", [(torch.float32, 3e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_attention_is_the_definitions(either_way, dtype, error):
    q, k, v = tensors(dtype)
    out, lse = greenfast.attention(q, k, v, causal=True, align="bottom_right", return_lse=True)
    want, want_lse = reference.attention(*(x.float().numpy() for x in (q, k, v)), right=0, bottom_right=True)
    assert out.dtype == dtype and lse.dtype == torch.float32
    np.testing.assert_allclose(out.float(), want, atol=error)
    np.testing.assert_allclose(lse, want_lse, atol=error)


@pytest.mark.parametrize("call", [
    "greenfast.explain(x, x, x).variant", "greenfast.quantize_e4m3(x)[0].shape", "greenfast.attention(x, x, x).shape",
    "greenfast.attention(*[numpy.zeros((1, 2, 3, 8), 'float32')] * 3, sinks=torch.zeros(2)).shape"])
def test_pytorch_that_is_loaded_later_is_known_to_the_first_call(call):
    code = ("import sys, numpy, greenfast\nassert 'torch' not in sys.modules and not greenfast._arrays.READERS\n"
            f"import torch\nx = torch.zeros(1, 2, 3, 8)\nassert {call}\nassert greenfast._arrays.READERS[0][0] is torch.Tensor")
    subprocess.run([sys.executable, "-c", code], check=True)


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_the_short_way_takes_plain_calls_and_nothing_else(either_way, monkeypatch):
    if greenfast._shortcut is greenfast._no_shortcut:
        pytest.skip("this PyTorch has no table")
    answers = []

    def recorded(*arguments, short=greenfast._shortcut):
        answers.append(short(*arguments))
        return answers[-1]

    monkeypatch.setattr(greenfast, "_shortcut", recorded)
    q, k, v = tensors()
    wide = torch.randn(*v.shape[:3], 16)
    learns, negated = q.clone().requires_grad_(), torch._neg_view(q)
    plain = [(q, k, v, {}), (q, k, v, {"out": torch.empty_like(q)}), (q, k, v, {"scale": 0.3, "softcap": 2.0}), (q, q, q, {"causal": True}),
             (q, k, v, {"variant": "cpu.naive"}), (q, k, v, {"batch_invariant": True}), (q, k, v, {"window": None, "align": None, "lse": None, "return_lse": False, "layout": "bhsd", "stream": None,
              "q_scale": None, "out_dtype": None, "out": None}), (torch.nn.Parameter(q, requires_grad=False), k, v, {})]
    other = [(q, k, v, {"return_lse": True}), (q, k, v, {"window": (2, 0), "align": "top_left"}), (q, k, v, {"align": "top_left", "causal": True}),
             (q, k, wide, {}), (learns, k, v, {}), (q, k, v, {"sinks": torch.zeros(q.shape[1])}), (q, k, v, {"stream": 0}),
             (q, k, v, {"out_dtype": torch.float32}), (q, k, v, {"lse": torch.empty(q.shape[:3])}),
             (*(x.transpose(1, 2) for x in (q, k, v)), {"layout": "bshd"}), (q.numpy(), k.numpy(), v.numpy(), {})]
    refused = [(q, k[:, :, :, :-8], v, {}), (q, k.half(), v, {}), (q, k, v, {"variant": "cpu.nothing"}), (q, k[:, :, 1:], v[:, :, 1:], {"causal": True}),
               (q.to_sparse(), k, v, {}), (q.to("meta"), k, v, {}), (q, k, v, {"out": torch.empty(1)}), (q, k, v, {"scale": "a"}),
               (q, k, v, {"causal": "yes", "layout": 3}), (q, k, v, {"out": negated}), (negated, k, v, {}), (q, k, v, {"sink": 1}), (q, k, v, {"out": learns}), (q, k, v, {"return_lse": None, "window": 3})]

    def outcome(q, k, v, options):
        try:
            made = greenfast.attention(q, k, v, **options)
        except Exception as error:
            return type(error), str(error)
        return [torch.as_tensor(x).detach() for x in (made if isinstance(made, tuple) else (made,))]

    for calls, short in ((plain, True), (other, False), (refused, False)):
        for call in calls:
            answers.clear()
            mine = outcome(*call)
            # What the library refuses is raised at once.
            assert [answer is not None for answer in answers] in ([short], [] if calls is refused else None), call[3]
            with monkeypatch.context() as patch:
                patch.setattr(greenfast, "_shortcut", greenfast._no_shortcut)
                theirs = outcome(*call)
            assert type(mine) is type(theirs) and isinstance(mine, tuple) == (calls is refused), (call[3], mine)
            assert mine == theirs if calls is refused else all(map(torch.equal, mine, theirs)), call[3]
    out = torch.empty_like(q)
    assert greenfast.attention(q, k, v, out=out) is out
    answers.clear()
    with Watch():
        greenfast.attention(q, k, v)
    with torch.no_grad():
        assert torch.equal(greenfast.attention(learns, k, v), greenfast.attention(q, k, v))
    assert [answer is not None for answer in answers] == [False, True, True]


def the_long_way(*arguments, **options):
    short, greenfast._shortcut = greenfast._shortcut, greenfast._no_shortcut
    try:
        return greenfast.attention(*arguments, **options)
    finally:
        greenfast._shortcut = short


def test_calls_of_the_same_shapes_are_answered_each_for_what_it_says(either_way):
    torch.manual_seed(3)
    options = [{}, {"causal": True}, {"scale": 0.3}, {}, {"softcap": 2.0}, {"variant": "cpu.naive"}, {"batch_invariant": True}, {"causal": True, "scale": 0.1},
               {"causal": False, "scale": None, "softcap": 0.0, "variant": None}]
    shapes = [(1, 2, 2, 5, 5, 16), (1, 2, 2, 5, 7, 16), (2, 4, 2, 5, 5, 16), (1, 2, 2, 5, 5, 24), (3, 2, 1, 6, 6, 8), (1, 1, 1, 1, 9, 8)]
    for turn in range(3):
        for batch, heads, heads_kv, rows, keys, width in shapes * 2:
            for dtype in (torch.float32, torch.float16):
                q, k, v = (torch.randn(batch, h, n, width).to(dtype) for h, n in ((heads, rows), (heads_kv, keys), (heads_kv, keys)))
                for said in options:
                    if said.get("causal") and rows != keys:
                        with pytest.raises(ValueError, match="align"):
                            greenfast.attention(q, k, v, **said)
                        continue
                    want = the_long_way(q, k, v, **said)
                    out = torch.full_like(q, torch.nan)
                    assert torch.equal(greenfast.attention(q, k, v, **said), want) and torch.equal(greenfast.attention(q, k, v, out=out, **said), want)


def test_a_refusal_is_not_forgotten_after_a_call_of_the_same_shapes(either_way):
    q, k, v = (torch.randn(2, 2, 9, 16) for _ in range(3))
    out = torch.empty_like(q)
    wrong = [((q, k, v), {"variant": "cpu.nothing"}), ((q, k, v), {"scale": "a"}), ((q, k, v), {"softcap": -1.0}), ((q, k, v), {"scale": float("nan")}),
             ((q, k, v), {"out": torch._neg_view(out)}), ((q, k, v), {"out": q}), ((q, k, v), {"out": out[:, :, 1:]}),
             ((q, k.half(), v), {"out": out}), ((q, k, torch._neg_view(v)), {"out": out}), ((q, k, v[:, :, 1:]), {"out": out})]
    for _ in range(2):
        greenfast.attention(q, k, v)
        greenfast.attention(q, k, v, out=out)
        for arguments, options in wrong:
            with pytest.raises((TypeError, ValueError, NotImplementedError)) as mine:
                greenfast.attention(*arguments, **options)
            with pytest.raises((TypeError, ValueError, NotImplementedError)) as theirs:
                the_long_way(*arguments, **options)
            assert mine.type is theirs.type and str(mine.value) == str(theirs.value), options


def test_a_number_that_asks_in_between_changes_no_other_call(either_way):
    class Half:
        def __float__(self):
            for width in range(8, 88, 8):  # more kinds of calls than are kept in mind
                greenfast.attention(*(torch.zeros(1, 1, 2, width),) * 3)
            return 0.5

    q, k, v = (torch.randn(2, 3, 7, 16) for _ in range(3))
    for _ in range(3):
        torch.testing.assert_close(greenfast.attention(q, k, v, scale=Half()), SDPA(q, k, v, scale=0.5), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("view", [
    lambda x: x, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), lambda x: x[:, :, ::2],
    lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3), lambda x: x[:, :1], lambda x: torch.nn.Parameter(x, requires_grad=False)],
    ids=["dense", "bshd", "rows apart", "rows first", "one head", "parameter"])
def test_a_new_output_is_what_empty_like_makes_each_time(either_way, view):
    x = view(torch.randn(3, 4, 6, 16))
    like = torch.empty_like(x)
    for inference in (False, True, False):
        with torch.inference_mode(inference):
            for _ in range(3):
                out = greenfast.attention(x, x, x)
                assert type(out) is torch.Tensor and out.stride() == like.stride() and out.dtype == x.dtype and out.device == x.device
                assert not out.requires_grad and out._base is None and out.is_inference() == inference and out.untyped_storage().resizable()
                torch.testing.assert_close(out, SDPA(x, x, x), atol=2e-6, rtol=1e-5)
    assert torch.equal(torch.func.vmap(lambda y: greenfast.attention(x, x, x) * y)(torch.ones(2))[1], out)


def test_threads_that_ask_of_different_shapes_get_their_own(either_way):
    def ask(number, failures):
        torch.manual_seed(number)
        q, k, v = (torch.randn(1, 1 + number % 3, 3 + number, 8) for _ in range(3))
        want = SDPA(q, k, v)
        for _ in range(200):
            if not torch.allclose(greenfast.attention(q, k, v), want, atol=1e-5):
                failures.append(number)

    failures: list = []
    threads = [threading.Thread(target=ask, args=(number, failures)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def negated_tensors():
    """Tensors whose bytes are not their values, most of which PyTorch does not know as views."""
    q = tensors()[0]
    by_metadata = q.clone()
    torch._C._set_tensor_metadata(by_metadata, {"neg": True})
    with torch.inference_mode():
        at_rest = torch._neg_view(q.clone())
    yield from (torch._neg_view(q), torch._neg_view(q).data, torch._neg_view(q).detach(), torch.complex(q, q).conj().imag, by_metadata, at_rest,
                torch.nn.Parameter(torch._neg_view(q), requires_grad=False), torch._neg_view(q)[:, :, 1:])


def test_a_negated_tensor_is_never_read_as_it_lies(either_way):
    plain = tensors()[0]
    for x in negated_tensors():
        assert x.is_neg()
        y = plain[:, :, :x.shape[2]]
        for call in (lambda: greenfast.attention(x, y, y), lambda: greenfast.attention(y, x, y), lambda: greenfast.attention(y, y, x),
                     lambda: greenfast.attention(y, y, y, out=x)):
            with pytest.raises(TypeError, match="negated"):
                call()
        for arguments in ((x, y, y), (y, x, y), (y, y, x)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.testing.assert_close(gt.scaled_dot_product_attention(*arguments), SDPA(*arguments), atol=2e-6, rtol=1e-5)


class Seen(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class Liar(torch.overrides.TorchFunctionMode):
    """Says of tensors that they are no plain ones."""
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return True if function is torch.Tensor.is_neg else function(*args, **(kwargs or {}))


def test_function_modes_are_asked_and_change_nothing(either_way):
    q, k, v = tensors()
    out = torch.empty_like(q)
    want = greenfast.attention(q, k, v)
    with Seen() as seen:
        assert greenfast.attention(q, k, v, out=out) is out and torch.equal(out, want)
        assert torch.equal(greenfast.attention(q, k, v), want)
        assert torch.equal(gt.scaled_dot_product_attention(q, k, v, enable_gqa=True), want)
    assert "is_neg" in seen.names and "empty_like" in seen.names
    with Liar(), pytest.raises(TypeError, match="negated"):
        greenfast.attention(q, k, v)
    with torch.device("meta"):
        assert torch.equal(greenfast.attention(q, k, v), want)
    with torch._C.DisableTorchFunction():
        assert torch.equal(greenfast.attention(q, k, v), want)


class Dispatched(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("the operator was seen")


def test_subclasses_modes_and_traces_are_not_the_short_ways(either_way):
    q, k, v = tensors()
    for which in range(3):
        three = [q, k, v]
        three[which] = three[which].as_subclass(Dispatched)
        with pytest.raises(AssertionError, match="was seen"):
            greenfast.attention(*three)
    seen = []

    class Counted(Watch):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return super().__torch_dispatch__(function, types, args, kwargs)

    with Counted():
        greenfast.attention(q, k, v)
        gt.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert seen.count("greenfast.sdpa.default") == 2
    from torch.fx.experimental.proxy_tensor import make_fx
    graph = make_fx(lambda *x: greenfast.attention(*x))(q, k, v)
    assert "greenfast" in graph.code
    with torch.compiler._compile_session_context() if hasattr(torch.compiler, "_compile_session_context") else torch.no_grad():
        assert torch.equal(greenfast.attention(q, k, v), graph(q, k, v))
    for grad in (True, False):
        learns = q.clone().requires_grad_()
        with torch.set_grad_enabled(grad):
            assert greenfast.attention(learns, k, v).requires_grad == grad
            assert gt.scaled_dot_product_attention(learns, k, v, enable_gqa=True).requires_grad == grad
            assert greenfast.attention(learns * 2, k, v).requires_grad == grad


def test_the_output_has_the_order_of_q(either_way):
    q, k, v = tensors()
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)):
        back = tuple(order.index(i) for i in range(4))
        seen = q.permute(order).contiguous().permute(back)
        for function in (greenfast.attention, lambda *x: gt.scaled_dot_product_attention(*x, enable_gqa=True)):
            assert function(seen, k, v).stride() == seen.stride()


def test_fast_accuracy_reaches_the_library_and_its_operator(either_way):
    (q, qs), (k, ks), (v, vs) = (greenfast.quantize_e4m3(x) for x in tensors())
    scales = dict(q_scale=qs, k_scale=ks, v_scale=vs)
    exact = greenfast.attention(q, k, v, **scales)
    assert (greenfast.attention(q, k, v, accuracy="fast", **scales) == exact).all()
    more = greenfast._arrays.features({"accuracy": "fast"})
    made, _ = gt._through_op(q, k, v, None, None, qs, ks, vs, None, 0.0, -1, -1, 2, 0, None, False, None, None, True, more)
    assert (made == exact).all()
    # The same word for what only exact exists for.
    with pytest.raises(ValueError, match="only e4m3"):
        greenfast.attention(*tensors(torch.float16), accuracy="fast")


QUANTIZED = [
    {}, dict(causal=True, align="bottom_right"), dict(window=(9, 3), align="top_left"), dict(softcap=2.0, scale=0.3), dict(chunk=8, align="top_left"),
    dict(sinks=torch.tensor([0.5, -1.0, 3.0, 0.0])), dict(slopes=torch.ones(4), align="bottom_right"), dict(mask=torch.arange(37)[:, None] > torch.arange(53) - 9),
    dict(mask=torch.linspace(-3, 3, 37 * 53).view(37, 53)), dict(out_dtype=torch.float32), dict(out_dtype="bfloat16"), dict(accuracy="fast"),
    dict(variant="cpu.naive"), dict(batch_invariant=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", QUANTIZED, ids=lambda options: "-".join(options))
def test_quantised_attention_is_attention_of_the_codes(either_way, options, dtype):
    for width_v in (32, 16):
        q, k, v = tensors(dtype, width_v=width_v)
        out, lse = greenfast.attention_quantized(q, k, v, return_lse=True, **options)
        want, want_lse = by_codes(q, k, v, **options)
        assert out.dtype == want.dtype and torch.equal(out, want) and torch.equal(lse, want_lse)


def test_quantised_attention_is_written_where_it_is_asked_in_either_layout(either_way):
    q, k, v = tensors(torch.float16, width_v=16)
    want, want_lse = greenfast.attention_quantized(q, k, v, return_lse=True)
    turned = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    for given, layout in (([q, k, v], "bhsd"), (turned, "bshd"), ([x.transpose(1, 2) for x in turned], "bhsd")):
        expected = want.transpose(1, 2) if layout == "bshd" else want
        made = greenfast.attention_quantized(*given, layout=layout)
        out, lse = torch.full_like(made, torch.nan), torch.full_like(want_lse, torch.nan)
        returned = greenfast.attention_quantized(*given, layout=layout, out=out, lse=lse, return_lse=True)
        assert returned[0] is out and returned[1] is lse and torch.equal(out, expected) and torch.equal(lse, want_lse)
        assert torch.equal(made, expected) and [made.stride(i) >= made.stride(j) for i, j in ((0, 1), (1, 2))] == [
            given[0].stride(i) >= given[0].stride(j) for i, j in ((0, 1), (1, 2))]
        assert greenfast.attention_quantized(*given, layout=layout, out=out) is out
    wide = torch.empty(want.shape)
    assert torch.equal(greenfast.attention_quantized(q, k, v, out=wide), greenfast.attention_quantized(q, k, v, out_dtype=torch.float32))
    assert torch.equal(greenfast.attention_quantized(q, k, v, sinks=np.zeros(4, np.float32)), greenfast.attention_quantized(q, k, v, sinks=torch.zeros(4)))


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def refused(error, words, change=lambda q, k, v: (q, k, v), **options):
    return pytest.param(change, options, error, words, id=words)


@pytest.mark.parametrize("change, options, error, words", [
    refused(NotImplementedError, "dense tensors, not used_q", used_q=ints(3, 4)), refused(NotImplementedError, "dense tensors, not used_kv", used_kv=ints(3, 4)),
    refused(NotImplementedError, "dense tensors, not kv_start", kv_start=ints(3, 4)), refused(NotImplementedError, "dense tensors, not kv_index", kv_index=ints(1, 0)),
    refused(NotImplementedError, "dense tensors, not page_table", page_table=ints(1, 0).view(2, 1)), refused(NotImplementedError, "dense tensors, not max_q", max_q=37),
    refused(NotImplementedError, "dense tensors, not cu_q", lambda q, k, v: (q[0], k[0], v[0]), cu_q=ints(0, 37), cu_kv=ints(0, 53)),
    refused(ValueError, "e4m3 already: call attention", lambda q, k, v: [greenfast.quantize_e4m3(x)[0] for x in (q, k, v)]),
    refused(NotImplementedError, "gradients through greenfast.attention_quantized", lambda q, k, v: (q.clone().requires_grad_(), k, v)),
    refused(NotImplementedError, "gradients through greenfast.attention_quantized", sinks=torch.zeros(4, requires_grad=True)),
    refused(TypeError, r"attention_quantized\(\) got .* 'sink': is 'sinks' meant", sink=1), refused(TypeError, "unexpected keyword argument 'q_scale'", q_scale=torch.ones(1)),
    refused(NotImplementedError, "runs on cuda", variant="cuda.sm90.fp8"), refused(TypeError, "leave one of them out", out_dtype=torch.bfloat16),
    refused(ValueError, "additive mask of fp16", mask=torch.zeros(37, 53, dtype=torch.float16)),
    refused(TypeError, "k is NoneType", lambda q, k, v: (q, None, v)), refused(TypeError, "v is NoneType", lambda q, k, v: (q, k, None)),
    refused(TypeError, "k lies on meta", lambda q, k, v: (q, k.to("meta"), v)), refused(TypeError, "q is a nested or sparse", lambda q, k, v: (q.to_sparse(), k, v)),
    refused(TypeError, "q is a .*negated", lambda q, k, v: (torch._neg_view(q), k, v)), refused(ValueError, "four dimensions", lambda q, k, v: (q[0], k, v)),
])
def test_what_quantised_attention_does_not_take_is_named_before_any_work(either_way, change, options, error, words):
    arguments = change(*tensors(torch.float16))
    out, lse = torch.full((2, 4, 37, 32), 7.0, dtype=torch.float16), torch.full((2, 4, 37), 7.0)
    with pytest.raises(error, match=words):
        greenfast.attention_quantized(*arguments, out=out, lse=lse, **options)
    assert (out == 7.0).all() and (lse == 7.0).all()
    if "out_dtype" not in options:
        with pytest.raises(error, match=words):
            greenfast.attention_quantized(*arguments, **options)


def test_what_changes_while_a_call_is_read_is_remembered_of_no_call():
    """The output is asked of PyTorch in between, where a mode, or another thread, may resize a tensor."""
    q, k, v = (torch.randn(1, 1, 8, 16) for _ in range(3))

    class Resizing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            made = function(*arguments, **(options or {}))
            if function is torch.empty_like and q.shape[2] == 8:
                for tensor in (q, k, v):
                    tensor.resize_(1, 1, 512, 16).fill_(1)
                made = torch.empty(1, 1, 512, 16)
            return made

    with torch.no_grad(), Resizing():
        assert greenfast.attention(q, k, v).shape[2] == 512
    small = [torch.randn(1, 1, 8, 16) for _ in range(3)]
    out = greenfast.attention(*small)
    assert out.shape == small[0].shape
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(*small))


def test_slices_of_one_buffer_are_read_where_they_lie(either_way):
    qkv = torch.randn(2, 11, 3, 4, 16)
    q, k, v = qkv.unbind(2)
    out = greenfast.attention(q, k, v, layout="bshd")
    assert torch.equal(out, greenfast.attention(q.contiguous(), k.contiguous(), v.contiguous(), layout="bshd"))


@pytest.mark.parametrize("as_numpy", [False, True])
def test_features_are_read_as_tensors_or_arrays(either_way, as_numpy):
    q, k, v = tensors(width_v=16)
    arrays = dict(mask=torch.rand(37, 53) < 0.7, sinks=torch.zeros(4), slopes=torch.ones(4) / 8, used_kv=torch.tensor([53, 9], dtype=torch.int32),
                  kv_start=torch.tensor([2, 0], dtype=torch.int32))
    want = reference.sequences(*(x.numpy() for x in (q, k.clone(), v.clone())), **{name: x.numpy() for name, x in arrays.items()}, right=0)
    given = {name: x.numpy() if as_numpy else x for name, x in arrays.items()}
    out = greenfast.attention(q, k, v, causal=True, align="top_left", **given)
    for where, own, _ in want:
        np.testing.assert_allclose(out[where], own, atol=4e-6)
    negated = {**given, "slopes": torch._neg_view(-arrays["slopes"])}
    with pytest.raises(TypeError, match="slopes is a .*negated"):
        greenfast.attention(q, k, v, causal=True, align="top_left", **negated)
    for bad, words in ((arrays["used_kv"].long(), "used_kv is int64"), ([3, 4], "used_kv is builtins.list"), (arrays["used_kv"].to("meta"), "meta")):
        with pytest.raises(TypeError, match=words):
            greenfast.attention(q, k, v, causal=True, align="top_left", used_kv=bad)


def broken(name, make, words):
    return pytest.param(make, words, id=name)


@pytest.mark.parametrize("make, words", [
    broken("meta", lambda x: x.to("meta"), "meta"),
    broken("coo", lambda x: x.to_sparse(), "q"),
    broken("csr", lambda x: x[0, 0].to_sparse_csr(), "q"),
    broken("nested", lambda x: torch.nested.nested_tensor([x[0]]), "q"),
    broken("jagged", lambda x: torch.nested.nested_tensor([x[0]], layout=torch.jagged), "q|Nested"),
    broken("mkldnn", lambda x: x.to_mkldnn(), "q"),
    broken("negated", lambda x: torch._neg_view(x), "negated"),
    broken("complex", lambda x: torch.complex(x, x), "q"),
    broken("double", lambda x: x.double(), "q"),
    broken("integer", lambda x: x.int(), "q"),
    broken("functional", lambda x: torch._to_functional_tensor(x), "q"),
    broken("freed", lambda x: (y := x.clone(), y.untyped_storage().resize_(0))[0], "null"),
])
@pytest.mark.filterwarnings("ignore")
def test_what_holds_no_plain_memory_is_refused(either_way, make, words):
    _, k, v = tensors()
    out = torch.full((2, 4, 37, 32), 7.0)
    try:
        q = make(tensors()[0])
    except RuntimeError as error:
        pytest.skip(f"PyTorch makes no such tensor: {error}")
    with pytest.raises((TypeError, ValueError, NotImplementedError, RuntimeError), match=words) as caught:
        greenfast.attention(q, k, v, out=out)
    assert (out == 7.0).all() and isinstance(caught.value, (TypeError, ValueError, NotImplementedError))


def test_storage_that_was_taken_away_is_refused():
    q, k, v = tensors()
    none, less = q.clone(), q.clone()
    none.untyped_storage().resize_(0)
    less.untyped_storage().resize_(64)
    for options in ({}, {"validate": True}):
        with pytest.raises(ValueError, match="q is null|q needs"):
            greenfast.attention(none, k, v, **options)
        with pytest.raises(ValueError, match="o is null|out needs"):
            greenfast.attention(q, k, v, out=none, **options)
    with pytest.raises(ValueError, match="q needs 37888 bytes, and its storage has 64"):
        greenfast.attention(less, k, v, validate=True)
    with pytest.raises(ValueError, match="out needs 37888 bytes"):
        greenfast.attention(q, k, v, out=less, validate=True)
    with pytest.raises(ValueError, match="used_kv needs 8 bytes"):
        used = torch.zeros(2, dtype=torch.int32)
        used.untyped_storage().resize_(4)
        greenfast.attention(q, k, v, used_kv=used, validate=True)
    with pytest.raises(ValueError, match="q needs 37888 bytes"):
        greenfast.attention_quantized(less, k, v, validate=True)
    with pytest.raises(ValueError, match="o is null"):
        greenfast.attention_quantized(q, k, v, out=none)
    cache = torch.zeros(2, 2, 60, 32)
    cache.untyped_storage().resize_(1024)
    with pytest.raises(ValueError, match="v_cache needs"):
        greenfast.append(k, v, torch.zeros(2, 2, 60, 32), cache, validate=True)
    assert torch.equal(greenfast.attention(q[:, :, 3:], k, v, validate=True), greenfast.attention(q[:, :, 3:], k, v))


def test_libraries_are_not_mixed():
    q, k, v = tensors()
    lse = torch.zeros(q.shape[:3])
    scale = np.ones(1, np.float32)
    for call in (lambda: greenfast.attention(q.numpy(), k, v), lambda: greenfast.attention(q.numpy(), k.numpy(), v.numpy(), out=q),
                 lambda: greenfast.attention(q, k.numpy(), v), lambda: greenfast.attention(q, k, v, out=np.empty(q.shape, np.float32)),
                 lambda: greenfast.attention(q, k, v, lse=lse.numpy()),
                 lambda: greenfast.attention(q, k, v, q_scale=scale, k_scale=scale, v_scale=scale), lambda: greenfast.merge(q, lse, q.numpy(), lse),
                 lambda: greenfast.merge(q.numpy(), lse.numpy(), q, lse.numpy()), lambda: greenfast.append(k, v.numpy(), k.clone(), v.clone()),
                 lambda: greenfast.append(k.numpy(), v.numpy(), k.clone(), v.clone().numpy()), lambda: greenfast.quantize_e4m3(q, scale=scale),
                 lambda: greenfast.attention_quantized(q, k.numpy(), v), lambda: greenfast.attention_quantized(q.numpy(), k, v),
                 lambda: greenfast.attention_quantized(q, k, v, out=np.empty(q.shape, np.float32)), lambda: greenfast.attention_quantized(q, k, v, lse=lse.numpy())):
        with pytest.raises(TypeError, match="all of one library|so must|of q's library"):
            call()


def test_a_fake_tensor_never_reaches_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(x) for x in tensors())
        out, lse = greenfast.attention(q, k, v, return_lse=True)
        assert type(out).__name__ == "FakeTensor" and out.shape == q.shape and lse.shape == q.shape[:3]
        out, lse = greenfast.attention_quantized(q, k, v[..., :16], out_dtype=torch.float16, return_lse=True)
        assert type(out).__name__ == "FakeTensor" and out.shape == (*q.shape[:3], 16) and out.dtype == torch.float16 and lse.shape == q.shape[:3]
    from greenfast import _core
    with pytest.raises(TypeError, match="FakeTensor"):
        _core.attention(q, *tensors()[1:], torch.empty(2, 4, 37, 32), *[None] * 5, 0.0, -1, -1, 2, 0, None, 0, None, None, None)


def test_two_devices_two_types_and_overlap_are_named():
    q, k, v = tensors()
    with pytest.raises(TypeError, match="one type"):
        greenfast.attention(q, k.half(), v)
    with pytest.raises(ValueError, match="overlaps"):
        greenfast.attention(q, k, v, out=q)
    with pytest.raises(TypeError, match="meta"):
        greenfast.attention(q, k.to("meta"), v)
    with pytest.raises(TypeError, match="leave one of them out"):
        greenfast.attention(q, k, v, out=torch.empty_like(q), out_dtype=torch.float16)


# --- scaled_dot_product_attention -----------------------------------------------------------------------------------------

def sdpa_and_gradients(function, sample, requires_grad, dtype=None):
    torch.manual_seed(0)
    made = [x.detach().to(dtype or x.dtype).clone().requires_grad_(requires_grad) for x in (sample.input, *sample.args)]
    options = {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in sample.kwargs.items()}
    mask = options.get("attn_mask")
    if dtype is not None and mask is not None and mask.is_floating_point():
        options["attn_mask"] = mask.to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = function(*made, **options)
        if requires_grad:
            out.sum().backward()
    return [out.detach(), *(x.grad for x in made if requires_grad)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opinfo_samples_are_as_near_to_fp64_as_torchs(dtype, requires_grad):
    from torch.testing._internal.common_methods_invocations import op_db
    op = next(op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    taken = seen = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=requires_grad):
        seen += 1
        options = {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in sample.kwargs.items()}
        ours, theirs = (sdpa_and_gradients(function, sample, requires_grad) for function in (gt.scaled_dot_product_attention, SDPA))
        if gt._why_not(sample.input, *sample.args, options.get("attn_mask"), options.get("dropout_p", 0.0), False, None,
                       options.get("enable_gqa", False)) is not None:
            assert all(torch.equal(x, y) for x, y in zip(ours, theirs))
            continue
        taken += 1
        largest = [x.abs().max().item() for x in (sample.input, *sample.args[:2])]
        width, eps = sample.input.shape[-1], torch.finfo(dtype).eps
        for i, (x, y, exact) in enumerate(zip(ours, theirs, sdpa_and_gradients(SDPA, sample, requires_grad, torch.float64))):
            unit = eps * exact.abs().max()
            if i > 0:
                # A flash backward takes exp(score - lse), and the sum of a row of O, from lse and O as they were rounded.
                unit = unit + torch.finfo(torch.float32).eps * max(largest) ** 2 * width ** 0.5 * exact.abs().max()
                unit = unit + eps * max(largest) * largest[2] * width ** 0.5
            assert x.dtype == y.dtype and (x - exact).abs().max() <= 2 * (y - exact).abs().max() + 4 * unit
    assert seen >= 20 and (taken >= 9) == (dtype != torch.float64)


@pytest.mark.parametrize("q_shape, k_shape, v_shape", [
    ((7, 16), (9, 16), (9, 16)), ((3, 7, 16), (3, 9, 16), (3, 9, 16)), ((2, 3, 4, 7, 16), (2, 3, 4, 9, 16), (2, 3, 4, 9, 16)),
    ((1, 4, 7, 16), (2, 4, 9, 16), (2, 4, 9, 16)), ((2, 4, 7, 16), (1, 1, 9, 16), (1, 4, 9, 16)), ((4, 7, 16), (2, 4, 9, 16), (9, 16)),
    ((2, 4, 0, 16), (2, 4, 9, 16), (2, 4, 9, 16)), ((2, 4, 7, 16), (2, 4, 0, 16), (2, 4, 0, 16)), ((0, 4, 7, 16), (0, 4, 9, 16), (0, 4, 9, 16)),
])
@pytest.mark.parametrize("is_causal", [False, True])
def test_ranks_and_batches_broadcast_as_torchs(q_shape, k_shape, v_shape, is_causal):
    q, k, v = torch.randn(q_shape), torch.randn(k_shape), torch.randn(v_shape)
    out = gt.scaled_dot_product_attention(q, k, v, is_causal=is_causal, fallback="error")
    torch.testing.assert_close(out, SDPA(q, k, v, is_causal=is_causal), atol=1e-6, rtol=1e-5)


GENERATOR = torch.Generator().manual_seed(4)
MASK = torch.rand(37, 53, generator=GENERATOR) < 0.5
MASK[3] = False
FLOAT_MASK = torch.where(MASK, torch.randn(37, 53, generator=GENERATOR), -torch.inf)
MASKS = {
    "bool": MASK, "float": FLOAT_MASK, "lowest": torch.where(MASK, 0.0, torch.finfo(torch.float32).min), "row": MASK[:1], "column": MASK[:, :1],
    "padding": torch.stack([MASK[0], MASK[1]])[:, None, None], "each-head": torch.stack([MASK, ~MASK])[None],
    "expanded": FLOAT_MASK.expand(2, 2, 37, 53), "turned": MASK.t().contiguous().t(), "one": torch.ones(1, 1, dtype=torch.bool),
}


@pytest.mark.parametrize("width_v", [32, 8])
@pytest.mark.parametrize("dtype, error", [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_are_torchs(mask, dtype, error, width_v):
    q, k, v = tensors(dtype, heads=2, width_v=width_v)
    if mask.dtype != torch.bool and dtype == torch.bfloat16:
        mask = mask.to(dtype)
    out = gt.scaled_dot_product_attention(q, k, v, mask, fallback="error")
    torch.testing.assert_close(out, SDPA(q, k, v, mask), atol=error, rtol=error)
    assert mask.dim() != 2 or mask.shape[0] == 1 or bool(mask[3].isfinite().all() and mask[3].all()) or mask is MASKS["lowest"] or (out[:, :, 3] == 0).all()


@pytest.mark.parametrize("q_shape, k_shape, mask_shape", [
    ((7, 16), (9, 16), (7, 9)), ((3, 7, 16), (3, 9, 16), (3, 7, 9)), ((3, 7, 16), (3, 9, 16), (7, 9)), ((3, 7, 16), (3, 9, 16), (1, 1, 9)),
    ((2, 3, 4, 7, 16), (2, 3, 4, 9, 16), (3, 1, 7, 9)), ((1, 4, 7, 16), (2, 4, 9, 16), (2, 1, 1, 9)), ((2, 4, 7, 16), (2, 4, 0, 16), (7, 0)),
    ((2, 4, 1, 16), (2, 4, 9, 16), (2, 1, 1, 9)),
])
def test_masks_broadcast_as_torchs(q_shape, k_shape, mask_shape):
    q, k, v, mask = torch.randn(q_shape), torch.randn(k_shape), torch.randn(k_shape), torch.rand(mask_shape) < 0.7
    out = gt.scaled_dot_product_attention(q, k, v, mask, fallback="error")
    torch.testing.assert_close(out, SDPA(q, k, v, mask), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mask", [MASK, FLOAT_MASK], ids=["bool", "float"])
def test_autocast_casts_masks_as_torchs(mask):
    q, k, v = tensors(heads=2)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = gt.scaled_dot_product_attention(q, k, v, mask, fallback="error"), SDPA(q, k, v, mask)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)


REASONS = {
    "dropout": dict(dropout_p=0.5),
    "dropout and mask": dict(dropout_p=0.5, attn_mask=MASK),
}


@pytest.mark.parametrize("options", REASONS.values(), ids=REASONS)
def test_a_fallback_is_torchs_result_and_is_said_once(options):
    q, k, v = tensors(heads=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.manual_seed(0)
            out = gt.scaled_dot_product_attention(q, k, v, **options)
    torch.manual_seed(0)
    assert torch.equal(out, SDPA(q, k, v, **options))
    ours = [x for x in caught if x.category is gt.FallbackWarning]
    assert len(ours) == 1 and ours[0].filename == __file__
    with pytest.raises(NotImplementedError, match="dropout|attn_mask"):
        gt.scaled_dot_product_attention(q, k, v, fallback="error", **options)


def test_a_problem_that_no_kernel_takes_goes_to_torch_in_the_librarys_words(monkeypatch):
    def refuses(*arguments):
        raise NotImplementedError("no variant takes this")
    q, k, v = tensors(heads=2)
    monkeypatch.setattr(gt._core, "attention", refuses)
    monkeypatch.setattr(gt._core, "plain_sdpa", lambda *arguments: None)
    with pytest.warns(gt.FallbackWarning, match="no variant takes this"):
        assert torch.equal(gt.scaled_dot_product_attention(q, k, v), SDPA(q, k, v))
    with pytest.raises(NotImplementedError, match="no variant"):
        gt.scaled_dot_product_attention(q, k, v, fallback="error")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_device_without_kernels_is_named():
    why = gt._refusal("cuda", 0, torch.float16)
    assert "CUDA" in why or "cuda" in why


class Mine(torch.Tensor):
    pass


@pytest.mark.parametrize("change, reason", [
    (lambda q, k, v: (q.double(), k.double(), v.double()), "float64"),
    (lambda q, k, v: (q, k, v[..., :12]), "a value of head dimension 12"),
    (lambda q, k, v: (q, k, v, torch.zeros(37, 53, requires_grad=True)), "attn_mask that requires gradients"),
    (lambda q, k, v: (q, k, v, MASK.as_subclass(Mine)), "Mine"),
    (lambda q, k, v: (q[..., :12], k[..., :12], v[..., :12]), "head dimension 12"),
    (lambda q, k, v: tuple(x.as_subclass(Mine) for x in (q, k, v)), "Mine"),
    (lambda q, k, v: (torch._neg_view(q), k, v), "negated lazily"),
    (lambda q, k, v: (q, k, torch._neg_view(v)), "negated lazily"),
])
def test_tensors_that_are_torchs_alone(change, reason):
    arguments = change(*tensors(heads=2))
    with pytest.warns(gt.FallbackWarning, match=reason):
        out = gt.scaled_dot_product_attention(*arguments)
    torch.testing.assert_close(out, SDPA(*arguments))


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("dtype, reason", [(torch.float32, "no heads"), (torch.float64, "float64")])
@pytest.mark.parametrize("mask", [None, MASK], ids=["none", "mask"])
@pytest.mark.parametrize("keys, enable_gqa", [(0, False), (0, True), (2, True)])
def test_no_heads_are_no_end_of_the_process(keys, enable_gqa, mask, dtype, reason, backend):
    """PyTorch's own function divides by their number, in some versions."""
    torch._dynamo.reset()
    ours = torch.compile(gt.scaled_dot_product_attention, backend=backend, fullgraph=True) if backend else gt.scaled_dot_product_attention
    q, k, v = (x[:, :heads] for x, heads in zip(tensors(dtype, width_v=8), (0, keys, keys)))
    with pytest.warns(gt.FallbackWarning, match=reason):
        out = ours(q, k, v, mask, enable_gqa=enable_gqa)
    assert out.shape == (2, 0, 37, 8) and out.dtype == dtype
    learns = q.clone().requires_grad_()
    ours(learns, k, v, mask, enable_gqa=enable_gqa).sum().backward()
    assert learns.grad.shape == q.shape
    assert torch.backends.cuda.flash_sdp_enabled()  # what other calls may choose is as it was


@pytest.mark.filterwarnings("ignore")
def test_no_heads_are_refused_as_torch_refuses_them():
    q, k, v = tensors(heads=2)
    none = q[:, :0]
    with pytest.raises(NotImplementedError, match="no heads"):
        gt.scaled_dot_product_attention(none, none, none, fallback="error")
    with pytest.raises(TypeError, match="is_causal"):
        gt.scaled_dot_product_attention(none, none, none, is_causal=1)
    for arguments in ((none, none, v), (q, none[:, :, :5], v)):
        with pytest.raises(RuntimeError):
            gt.scaled_dot_product_attention(*arguments, enable_gqa=True)
    if gt._DIVIDES:  # later versions have an answer of their own
        for arguments in ((q, none, none), (q[0], none[0], none[0]), (q[None], k[None], none[None])):
            with pytest.raises(RuntimeError, match="has none"):
                gt.scaled_dot_product_attention(*arguments, enable_gqa=True)


@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_a_scale_that_is_no_finite_number_is_torchs(scale):
    q, k, v = tensors(heads=2)
    with pytest.warns(gt.FallbackWarning, match=f"scale {scale}"):
        out = gt.scaled_dot_product_attention(q, k, v, scale=scale)
    torch.testing.assert_close(out, SDPA(q, k, v, scale=scale), equal_nan=True)


def test_a_query_without_memory_for_each_element_is_copied():
    q, k, v = tensors(heads=2)
    for shared in (q[:1].expand(2, -1, -1, -1), q[:, :1].expand(-1, 2, -1, -1), q[:, :, :1].expand(-1, -1, 37, -1)):
        out = gt.scaled_dot_product_attention(shared, k, v, fallback="error")
        torch.testing.assert_close(out, SDPA(shared, k, v), atol=2e-6, rtol=1e-5)


def test_what_torch_refuses_raises_its_error():
    q, k, v = tensors()
    for arguments, options in (((q, k, v), {}), ((q, k.double(), v), {}), ((q, k, v, torch.ones(37, 53, dtype=torch.bool)), {"is_causal": True}),
                               ((q, k, v, torch.ones(37, 52, dtype=torch.bool)), {}), ((q, k, k, torch.ones(53, dtype=torch.bool)), {}),
                               ((q, k, k, torch.tensor(True)), {}), ((q[:, :2], k, v, torch.ones(36, 53)), {}),
                               ((q, k, None), {})):
        with pytest.raises(Exception) as theirs:
            SDPA(*arguments, **options)
        with pytest.raises(type(theirs.value)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gt.scaled_dot_product_attention(*arguments, **options)


def test_transforms_go_to_torch():
    q, k, v = tensors(heads=2, batch=3)
    with pytest.warns(gt.FallbackWarning, match="torch.func"):
        out = torch.vmap(gt.scaled_dot_product_attention)(q, k, v)
    torch.testing.assert_close(out, SDPA(q, k, v))


def test_autocast_casts_as_torchs():
    q, k, v = tensors(heads=2)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = gt.scaled_dot_product_attention(q, k, v), SDPA(q, k, v)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)


@pytest.mark.filterwarnings("error::greenfast.torch.FallbackWarning")
@pytest.mark.parametrize("types", [(torch.float32, torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32, torch.float16)])
@pytest.mark.parametrize("mask", [None, FLOAT_MASK, FLOAT_MASK.half()], ids=["none", "float32", "float16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_casts_before_it_compares_types(types, mask, compiled):
    q, k, v = (x[:, :2].to(dtype) for x, dtype in zip(tensors(), types))
    torch._dynamo.reset()
    function = torch.compile(gt.scaled_dot_product_attention, backend="aot_eager", fullgraph=True) if compiled else gt.scaled_dot_product_attention
    mask = None if mask is None else mask[..., :q.shape[2], :k.shape[2]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = function(q, k, v, mask, fallback="error"), SDPA(q, k, v, mask)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)


def test_float64_keeps_its_type_under_autocast():
    q, k, v = (x[:, :2].double() for x in tensors())
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(gt.FallbackWarning, match="float64"):
        assert torch.equal(gt.scaled_dot_product_attention(q, k, v), SDPA(q, k, v))


def test_a_last_dimension_that_is_not_contiguous_is_copied():
    q, k, v = (x.transpose(2, 3).contiguous().transpose(2, 3) for x in tensors(heads=2))
    torch.testing.assert_close(gt.scaled_dot_product_attention(q, k, v, fallback="error"), SDPA(q, k, v))


def test_replaced_for_a_while():
    q, k, v = tensors()
    with gt.replace_sdpa():
        assert F.scaled_dot_product_attention is gt.scaled_dot_product_attention
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, enable_gqa=True), greenfast.attention(q, k, v))
    assert F.scaled_dot_product_attention is SDPA
    handle = gt.replace_sdpa(fallback="error")
    with pytest.raises(NotImplementedError, match="dropout"):
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, enable_gqa=True)
    handle.remove()
    assert F.scaled_dot_product_attention is SDPA


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
@pytest.mark.parametrize("kinds", [("error",) * 3, ("torch",) * 3, ("torch", "error", "torch")])
def test_replacements_are_removed_in_any_order(kinds, order):
    handles = [gt.replace_sdpa(kind) for kind in kinds]
    for count, one in enumerate(order):
        assert F.scaled_dot_product_attention is not SDPA
        handles[one].remove()
        handles[one].remove()
        left = [handle._ours for at, handle in enumerate(handles) if at not in order[:count + 1]]
        assert F.scaled_dot_product_attention is (left[-1] if left else SDPA)


def test_a_replacement_of_someone_elses_stays():
    first = gt.replace_sdpa()
    F.scaled_dot_product_attention = mine = lambda *x, **options: SDPA(*x, **options)  # noqa: E731
    try:
        first.remove()
        assert F.scaled_dot_product_attention is mine
    finally:
        F.scaled_dot_product_attention = SDPA


@pytest.mark.filterwarnings("ignore")
def test_the_signature_is_torchs(either_way):
    q, k, v = (x[:, :2] for x in tensors())
    for function in (SDPA, gt.scaled_dot_product_attention):
        for is_causal in (1, None, np.True_):
            with pytest.raises(TypeError, match="is_causal"):
                function(q, k, v, is_causal=is_causal)
        with pytest.raises(TypeError, match="positional"):
            function(q, k, v, None, 0.0, False, 0.5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_zeros_without_memory_and_sparse_keys_are_torchs(which, monkeypatch):
    given = [x[:, :2] for x in tensors()]
    given[which] = torch._efficientzerotensor(given[which].shape)
    # That they reach it, whatever it makes of them: until 2.11 at least, its kernel takes what lies in memory for zeros, another thing each time.
    theirs, seen = torch.zeros(1), []
    with monkeypatch.context() as patch:
        patch.setattr(gt, "_SDPA", lambda *arguments, **options: seen.append(arguments[:3]) or theirs)
        assert gt.scaled_dot_product_attention(*given) is theirs and all(x is y for x, y in zip(seen[0], given))
    given[which] = torch.zeros(given[which].shape).to_sparse()
    with pytest.raises((RuntimeError, NotImplementedError)) as theirs:
        SDPA(*given)
    with pytest.raises(theirs.type, match="Sparse"):
        gt.scaled_dot_product_attention(*given)


def test_flops_are_counted_as_torchs():
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    def flops(function, *arguments, **options):
        with FlopCounterMode(display=False) as counter:
            function(*arguments, **options)
        return counter.get_total_flops()

    q, k, v = (torch.randn(2, heads, n, 32) for heads, n in ((4, 16), (2, 24), (2, 24)))
    ours, mask = gt.scaled_dot_product_attention, torch.ones(16, 24, dtype=torch.bool)
    want = 2 * 2 * 4 * 16 * 24 * 64
    assert flops(ours, q, k, v, enable_gqa=True) == flops(ours, q, k, v, mask, enable_gqa=True) == want
    assert flops(torch.compile(ours, backend="aot_eager"), q, k, v, enable_gqa=True) == want
    bshd = [x.transpose(1, 2) for x in (q, k, v)]
    assert flops(greenfast.attention, *bshd, layout="bshd", return_lse=True) == flops(greenfast.attention_quantized, *bshd, layout="bshd") == want
    step = lambda function: function(q.clone().requires_grad_(), k, v, enable_gqa=True).sum().backward()  # noqa: E731
    assert flops(step, ours) == want * 7 // 2
    if torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in flop_registry:  # 2.11 has no formula for it and counts nothing
        assert flops(SDPA, q, k, v, enable_gqa=True) == want and flops(step, SDPA) == flops(step, ours)
    assert flops(greenfast.attention, q[0], k[0], v[0], cu_q=ints(0, 6, 16), cu_kv=ints(0, 10, 24)) == 2 * 4 * 64 * (6 * 10 + 10 * 14)
    assert flops(greenfast.attention, q, k, v, used_kv=ints(5, 24)) == 2 * 4 * 64 * 16 * 29
    assert flops(greenfast.attention, q[:1], k, v, page_table=ints(0, 1)[None]) == 2 * 4 * 64 * 16 * 48


@pytest.mark.skipif(not hasattr(torch.nn.attention, "activate_flash_attention_impl"), reason="torch 2.10 has the registry first")
def test_torchs_registry_serves_sdpa_from_inside():
    q, k, v = tensors(rows=37, keys=37, heads_kv=4)
    expected = greenfast.attention(q, k, v, causal=True)
    mask = torch.ones(37, 37, dtype=torch.bool).tril()
    torch.nn.attention.activate_flash_attention_impl("greenfast")
    try:
        inside = SDPA(q, k, v, is_causal=True)
        masked, half = SDPA(q, k, v, mask), SDPA(q.double(), k.double(), v.double())
        compiled = torch.compile(lambda *x: SDPA(*x, is_causal=True).transpose(1, 2) + 1, fullgraph=True, backend="aot_eager")(q, k, v)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        SDPA(*leaves, is_causal=True).square().sum().backward()
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    assert torch.equal(inside, expected) and torch.equal(compiled, expected.transpose(1, 2) + 1)
    torch.testing.assert_close(masked, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(half, SDPA(q.double(), k.double(), v.double()))
    assert not torch.equal(SDPA(q, k, v, is_causal=True), expected)  # PyTorch's own again, which rounds otherwise
    for ours, theirs in zip((x.grad for x in leaves), gradients(SDPA, q, k, v, is_causal=True)):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not hasattr(torch.nn.attention, "activate_flash_attention_impl"), reason="torch 2.10 has the registry first")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_registry_has_the_strides_that_compiled_graphs_rely_on(backend, order):
    torch._dynamo.reset()
    q, k, v = (x.permute(order).contiguous().permute(tuple(order.index(dim) for dim in range(4))) for x in tensors(rows=37, keys=37, heads_kv=4))
    theirs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)

    def model(q, k, v):
        return (SDPA(q, k, v, is_causal=True) * 2).sin()

    want = gradients(model, q, k, v)
    torch.nn.attention.activate_flash_attention_impl("greenfast")
    try:
        ours = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(q, k, v), model(q, k, v), atol=2e-6, rtol=1e-5)
        got = gradients(compiled, q, k, v)
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    assert [x.stride() for x in ours] == [x.stride() for x in theirs]
    for mine, other in zip(got, want):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not hasattr(torch.nn.attention, "activate_flash_attention_impl"), reason="torch 2.10 has the registry first")
def test_the_registry_leaves_a_query_without_memory_for_each_element_to_torch():
    q, k, v = tensors(heads_kv=4)
    q = q[:, :1].expand(-1, 4, -1, -1)
    want = SDPA(q, k, v)
    torch.nn.attention.activate_flash_attention_impl("greenfast")
    try:
        assert torch.equal(SDPA(q, k, v), want)
    finally:
        torch.nn.attention.restore_flash_attention_impl()


@pytest.mark.skipif(not hasattr(torch.nn.attention, "activate_flash_attention_impl"), reason="torch 2.10 has the registry first")
def test_the_registrys_operator_on_cuda_is_aligned_bottom_right(monkeypatch):
    """As PyTorch's own is, which causal_lower_right calls with unequal lengths. On memory of the CPU: which key sees what is the same."""
    overrides = {}
    library = type("Library", (), {"__init__": lambda self, *names: None, "impl": lambda self, name, function, key, **options: overrides.update({key: function})})
    monkeypatch.setattr(torch.library, "Library", library)
    gt._register_flash()
    q, k, v = tensors(heads_kv=4)
    out, lse = overrides["CUDA"](None, q, k, v, is_causal=True)[:2]
    want, want_lse = reference.attention(q, k, v, right=0, bottom_right=True)
    np.testing.assert_allclose(out, want, atol=3e-6)
    np.testing.assert_allclose(lse, want_lse, atol=3e-6)
    top_left, _ = reference.attention(q, k, v, right=0)
    np.testing.assert_allclose(overrides["CPU"](None, q, k, v, is_causal=True)[0], top_left, atol=3e-6)


# --- gradients --------------------------------------------------------------------------------------------------------------

def gradients(function, *arguments, **options):
    leaves = [x.detach().clone().requires_grad_() for x in arguments]
    function(*leaves, **options).float().square().sum().backward()
    return [x.grad for x in leaves]


@pytest.mark.parametrize("rows, keys, heads_kv", [(37, 37, 4), (37, 37, 2), (37, 37, 1), (37, 53, 2), (53, 37, 2), (1, 8, 4)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype, error", [(torch.float32, 2e-5), (torch.bfloat16, 6e-2)])
def test_gradients_are_sdpas(rows, keys, heads_kv, is_causal, dtype, error):
    q, k, v = tensors(dtype, rows=rows, keys=keys, heads_kv=heads_kv)
    options = dict(is_causal=is_causal, enable_gqa=True)
    for ours, theirs in zip(gradients(gt.scaled_dot_product_attention, q, k, v, fallback="error", **options), gradients(SDPA, q, k, v, **options)):
        torch.testing.assert_close(ours, theirs, atol=error, rtol=error)


@pytest.mark.parametrize("rows, keys", [(0, 5), (5, 0), (0, 0)])
def test_gradients_of_nothing_are_zeros(rows, keys):
    q, k, v = torch.randn(2, 4, rows, 16), torch.randn(2, 4, keys, 16), torch.randn(2, 4, keys, 16)
    for gradient in gradients(lambda *x: gt.scaled_dot_product_attention(*x, fallback="error"), q, k, v):
        assert not gradient.any()
    out, lse = greenfast.attention(q, k, v, return_lse=True)
    assert lse.shape == (2, 4, rows) and (lse == -torch.inf).all() and not out.any()


@pytest.mark.parametrize("dtype, error", [(torch.float32, 2e-5), (torch.bfloat16, 6e-2)])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_gradients_under_masks_are_sdpas(mask, dtype, error):
    q, k, v = tensors(dtype, heads=2)
    mask = mask if mask.dtype == torch.bool else mask.to(dtype)
    ours = gradients(lambda *x: gt.scaled_dot_product_attention(*x, mask, fallback="error"), q, k, v)
    exact = gradients(lambda *x: SDPA(*x, mask if mask.dtype == torch.bool else mask.double()), q.double(), k.double(), v.double())
    for x, y in zip(ours, exact):
        torch.testing.assert_close(x.double(), y, atol=error, rtol=error)


@pytest.mark.parametrize("width_v", [8, 64])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": MASK}, {"scale": 0.3}], ids=["plain", "causal", "mask", "scale"])
def test_gradients_of_values_of_another_width_are_sdpas(width_v, options):
    q, k, v = tensors(heads=2 if "attn_mask" in options else 4, width_v=width_v)
    ours = gradients(gt.scaled_dot_product_attention, q, k, v, fallback="error", enable_gqa=True, **options)
    for x, y in zip(ours, gradients(SDPA, q, k, v, enable_gqa=True, **options)):
        assert x.shape == y.shape
        torch.testing.assert_close(x, y, atol=2e-5, rtol=1e-4)


def test_gradients_under_a_mask_beside_a_causal_one_and_grouped_heads():
    q, k, v = tensors(keys=37)
    mask = MASK[:, :37] | torch.eye(37, dtype=torch.bool)
    ours = gradients(lambda *x: greenfast.attention(*x, mask=mask, causal=True), q, k, v)
    theirs = gradients(lambda *x: SDPA(*x, mask & torch.ones(37, 37, dtype=torch.bool).tril(), enable_gqa=True), q, k, v)
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x, y, atol=2e-5, rtol=1e-4)


def test_gradients_in_the_other_layout_have_its_order():
    q, k, v = tensors(keys=37)
    swapped = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    ours = gradients(lambda *x: greenfast.attention(*x, causal=True, layout="bshd"), *swapped)
    for grad, like, theirs in zip(ours, swapped, gradients(SDPA, q, k, v, is_causal=True, enable_gqa=True)):
        assert grad.stride() == like.stride()
        torch.testing.assert_close(grad.transpose(1, 2), theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_kv", [1, 2])
@pytest.mark.parametrize("mask", [None, torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]], dtype=torch.bool)])
def test_gradcheck_against_differences(causal, heads_kv, mask):
    """fp64 leaves and differences; the function between computes in fp32, which the step and the tolerance allow for."""
    leaves = [x.double().requires_grad_() for x in tensors(batch=1, heads=2, heads_kv=heads_kv, rows=4, keys=4, width=8)]
    features = {} if mask is None else {"mask": mask}
    assert torch.autograd.gradcheck(lambda *x: greenfast.attention(*(y.float() for y in x), causal=causal, **features).double(), leaves,
                                    eps=1e-2, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("options, words", [
    (dict(window=(3, 0), align="top_left"), "window"), (dict(softcap=2.0), "softcap"), (dict(out_dtype=torch.float16), "out_dtype"),
    (dict(causal=True, align="bottom_right"), "bottom-right"), (dict(out=torch.empty(2, 4, 37, 32)), "with out "),
    (dict(sinks=torch.zeros(4)), "sinks"), (dict(slopes=torch.zeros(4), align="top_left"), "slopes"), (dict(chunk=8, align="top_left"), "chunk"),
    (dict(used_kv=torch.tensor([3, 4], dtype=torch.int32)), "used_kv"), (dict(mask=torch.zeros(37, 53, requires_grad=True)), "requires gradients itself"),
])
def test_features_without_a_gradient_are_named_before_any_work(options, words):
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match=words):
        greenfast.attention(q.requires_grad_(), k, v, **options)
    with torch.no_grad():
        greenfast.attention(q, k, v, **options)


def test_sinks_that_learn_are_refused_alone():
    q, k, v = tensors()
    sinks = torch.nn.Parameter(torch.zeros(4))
    with pytest.raises(NotImplementedError, match="sinks"):
        greenfast.attention(q, k, v, sinks=sinks)
    with torch.no_grad():
        assert torch.equal(greenfast.attention(q, k, v, sinks=sinks), greenfast.attention(q, k, v, sinks=torch.zeros(4)))


def test_a_stream_of_ones_own_is_for_plain_calls():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="current stream"):
        greenfast.attention(q.requires_grad_(), k, v, stream=1)


def changed_in_place(tensor, change):
    """Whether backward refuses what somebody saved of the tensor before it was changed."""
    leaf = torch.ones_like(tensor, requires_grad=True)
    saved = (leaf * tensor).sum()
    change()
    try:
        saved.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return True
    return False


def test_what_is_written_counts_as_changed_in_place(either_way):
    q, k, v = tensors(rows=20, keys=20, heads_kv=4)
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:3])
    for options in ({}, {"softcap": 2.0}, {"sinks": torch.zeros(4)}, {"lse": torch.zeros_like(lse)}):
        assert changed_in_place(out, lambda: greenfast.attention(q, k, v, out=out, **options)), options
    assert changed_in_place(lse, lambda: greenfast.attention(q, k, v, lse=lse))
    made, made_lse = greenfast.attention(q, k, v, return_lse=True)
    for written in (out, lse):
        assert changed_in_place(written, lambda: greenfast.merge(made, made_lse, made, made_lse, out=out, lse=lse))
    caches = [torch.zeros(2, 4, 30, 32) for _ in range(2)]
    turned, angles = torch.zeros_like(q), {"cos": torch.ones(30, 8), "sin": torch.zeros(30, 8)}
    for written in (*caches, turned):
        assert changed_in_place(written, lambda: greenfast.append(k, v, *caches, q=q, q_out=turned, **angles))
    for written in caches:
        assert changed_in_place(written, lambda: torch.ops.greenfast.append.default(k, v, *caches, *[None] * 9))
    for written in (out, lse):
        assert changed_in_place(written, lambda: greenfast.attention_quantized(q, k, v, out=out, lse=lse))
    codes = torch.zeros(q.shape, dtype=torch.float8_e4m3fn)
    before = codes._version
    greenfast.quantize_e4m3(q, out=codes)
    assert codes._version > before
    with torch.inference_mode():  # whose tensors have no version
        out = torch.empty_like(q)
    assert greenfast.attention(q, k, v, out=out) is out


def test_memory_that_requires_gradients_is_not_written(either_way):
    q, k, v = tensors()
    for options in ({"out": torch.zeros_like(q, requires_grad=True)}, {"out": torch.zeros_like(q, requires_grad=True) * 2},
                    {"lse": torch.zeros(q.shape[:3], requires_grad=True)}, {"out": torch.zeros_like(q, requires_grad=True), "sinks": torch.zeros(4)}):
        with pytest.raises(NotImplementedError, match="out or lse requires gradients"):
            greenfast.attention(q, k, v, **options)
        with torch.no_grad():
            greenfast.attention(q, k, v, **{name: x.detach() for name, x in options.items()})
        with pytest.raises(NotImplementedError, match="gradients through greenfast.attention_quantized"):
            greenfast.attention_quantized(q, k, v, **options)
    with pytest.raises(NotImplementedError, match="gradients through greenfast.quantize_e4m3"):
        greenfast.quantize_e4m3(q.clone().requires_grad_())


def test_forward_mode_derivatives_are_never_lost(either_way):
    q, k, v = tensors()
    ad = torch.autograd.forward_ad
    with ad.dual_level():
        assert torch.equal(greenfast.attention(q, k, v), greenfast.attention(q, k, v, variant="cpu.flash"))  # no tangent: nothing is lost
        dual = ad.make_dual(q, torch.ones_like(q))
        assert not changed_in_place(q, lambda: greenfast.attention(q, k, v))
        lse = torch.zeros(q.shape[:3])
        for call in (lambda: greenfast.attention(dual, k, v), lambda: greenfast.attention(q, k, dual[:, :2].contiguous(), out=torch.empty_like(q)),
                     lambda: greenfast.merge(dual, lse, q, lse), lambda: greenfast.quantize_e4m3(dual),
                     lambda: greenfast.attention_quantized(dual, k, v), lambda: greenfast.attention_quantized(q, k, v, mask=dual[0, 0, :, :1])):
            with pytest.raises(NotImplementedError, match="forward-mode"):
                call()
        with pytest.raises(NotImplementedError, match="forward AD"), pytest.warns(gt.FallbackWarning, match="forward-mode"):
            gt.scaled_dot_product_attention(dual[:, :2], k[:, :2], v[:, :2])  # PyTorch's own kernel has none either
    with pytest.raises(NotImplementedError, match="torch.func|forward-mode"):
        torch.func.jvp(lambda x: greenfast.attention(x, k, v), (q,), (q,))
    with pytest.raises(NotImplementedError, match="torch.func"):
        torch.func.grad(lambda x: greenfast.attention(x, k, v).sum())(q)


def test_each_call_of_each_thread_counts_as_one_change_and_keeps_no_output():
    q, k, v = torch.randn(3, 1, 2, 9, 16)
    outs = [torch.empty_like(q) for _ in range(4)]
    before = [(out._version, sys.getrefcount(out)) for out in outs]

    def run(out):
        for _ in range(300):
            assert greenfast.attention(q, k, v, out=out) is out

    threads = [threading.Thread(target=run, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads
    assert [(out._version - 300, sys.getrefcount(out)) for out in outs] == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", [
    lambda q, k, v: greenfast.attention(q, k, v) + 1, lambda q, k, v: greenfast.attention(q, k, v, out=torch.zeros_like(q)) + 1,
    lambda q, k, v: gt.scaled_dot_product_attention(q, k, v) + 1], ids=["allocated", "out given", "SDPA"])
def test_a_trace_holds_the_call_and_not_what_it_gave_once(function):
    traced, other = (torch.randn(3, 1, 2, 9, 16) for _ in range(2))
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.trace(function, tuple(traced), check_trace=False)(*other), SDPA(*other) + 1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forward_mode_derivatives_are_not_lost_in_graphs(backend):
    q, k, v = (x[:1, :2] for x in tensors())
    ad = torch.autograd.forward_ad

    def compiled(function, *arguments, **options):
        torch._dynamo.reset()
        return torch.compile(function, backend=backend, **options)(*arguments)

    def derivative(function, **options):
        return lambda a, b, c: torch.func.jvp(lambda x: function(x, b, c, **options), (a,), (a,))[1]

    def dual(function):
        def run(a, b, c):
            with ad.dual_level():
                return ad.unpack_dual(function(ad.make_dual(a, a), b, c)).tangent
        return run

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # which has forward-mode derivatives
        want = derivative(SDPA)(q, k, v)
        assert want.abs().max() > 0.1
        with pytest.warns(gt.FallbackWarning, match="forward-mode"):
            torch.testing.assert_close(compiled(derivative(gt.scaled_dot_product_attention), q, k, v, fullgraph=True), want)
        torch.testing.assert_close(compiled(dual(gt.scaled_dot_product_attention), q, k, v), want)
    for function in (derivative(greenfast.attention), dual(greenfast.attention), derivative(gt.scaled_dot_product_attention, fallback="error"),
                     derivative(greenfast.attention_quantized), dual(greenfast.attention_quantized)):
        with pytest.raises(NotImplementedError, match="forward-mode"):
            compiled(function, q, k, v)
    # A graph that was traced before knows nothing of the derivatives that it is called with.
    for function in (greenfast.attention, greenfast.attention_quantized):
        torch._dynamo.reset()
        plain = torch.compile(function, backend=backend)
        plain(q, k, v)
        with ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
            plain(ad.make_dual(q, q), k, v)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_transforms_go_to_torch(backend):
    q, k, v = (x[:1, :2] for x in tensors())

    def gradient(function):
        return lambda a, b, c: torch.func.grad(lambda x: function(x, b, c).square().sum())(a)

    torch._dynamo.reset()
    with pytest.warns(gt.FallbackWarning, match="torch.func"):
        ours = torch.compile(gradient(gt.scaled_dot_product_attention), backend=backend, fullgraph=True)(q, k, v)
    torch.testing.assert_close(ours, gradient(SDPA)(q, k, v))


def test_lse_and_second_derivatives_have_no_gradient():
    q, k, v = tensors()
    out, lse = greenfast.attention(q.requires_grad_(), k, v, return_lse=True)
    with pytest.raises(NotImplementedError, match="lse"):
        (out.sum() + lse.sum()).backward()
    (first,) = torch.autograd.grad(greenfast.attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second"):
        first.sum().backward()


def test_a_training_step_lowers_the_loss():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    x, y = torch.randn(3, 10, 32), torch.randn(3, 10, 32)
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    losses = []
    with gt.replace_sdpa():
        for _ in range(5):
            loss = (layer(x, x, x, need_weights=False)[0] - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


# --- compiled ---------------------------------------------------------------------------------------------------------------

def test_opcheck():
    q, k, v = tensors()
    op, forward = torch.ops.greenfast.attention.default, torch.ops.greenfast.attention_forward.default
    assert set(torch.library.opcheck(forward, (q, k, v), {"with_lse": False}).values()) == {"SUCCESS"}
    assert set(torch.library.opcheck(torch.ops.greenfast.sdpa.default, (q, k, v, True, 0.3)).values()) == {"SUCCESS"}
    for options in ({}, {"right": 0, "align": 1, "softcap": 2.0}, {"out_dtype": torch.bfloat16, "variant": "cpu.naive"}, {"with_lse": False}):
        assert set(torch.library.opcheck(op, (q, k, v), options).values()) == {"SUCCESS"}
    assert set(torch.library.opcheck(op, tuple(x.transpose(1, 2) for x in (q, k, v)), {"bshd": True}).values()) == {"SUCCESS"}
    features = torch.ops.greenfast.attention_features.default
    none = (None,) * 3
    cu, table = torch.tensor([0, 9, 37], dtype=torch.int32), torch.tensor([[1, 0], [2, 3]], dtype=torch.int32)
    masked = (*tensors(width_v=8), *none, MASK, torch.zeros(4), torch.ones(4), *[None] * 7)
    pool = tuple(x.reshape(4, 1, 53, 32) for x in (k, v))
    packed = (q[0], *pool, *none, *none, cu, None, None, torch.tensor([60, 9], dtype=torch.int32), None, None, table)
    for arguments, options in ((masked, {"align": 0, "chunk": 7}), (packed, {"align": 1, "right": 0, "max_q": 37})):
        for op_ in (features, torch.ops.greenfast.attention_features_forward.default):
            assert set(torch.library.opcheck(op_, arguments, options).values()) == {"SUCCESS"}
    # Its last test differentiates lse, which is refused; the tests below compare gradients through compiled graphs.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    leaves = [x.requires_grad_() for x in tensors()]
    assert set(torch.library.opcheck(op, leaves, test_utils=tests).values()) == {"SUCCESS"}
    out, lse = op(q, k, v)
    assert set(torch.library.opcheck(torch.ops.greenfast.attention_backward.default, (out, q, k, v, out, lse, None, False, False)).values()) == {"SUCCESS"}


def compiled_operators(*tensors):
    """What the graph of a compiled call without gradients calls."""
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(lambda q, k, v: gt.scaled_dot_product_attention(q, k, v, enable_gqa=True), fullgraph=True, backend=backend)(*tensors)
    return seen


def test_compiled_calls_take_the_operator_without_gradients():
    """Dynamo of torch 2.11 takes torch.compiler.is_exporting() for true; the operator that an exported program needs costs twice as much."""
    assert compiled_operators(*tensors()) == ["greenfast.sdpa.default"]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_quantising_compiles(backend):
    torch._dynamo.reset()
    q, _, _ = tensors()
    given = torch.full((1,), 0.01)
    for options in ((), ("tensor",), ("block",), ("block", "bshd"), ("head", "bshd"), ("head", "bhsd", True), ("head", "bshd", True), (given,)):
        def model(x, options=options):
            if options and options[0] is given:
                return greenfast.quantize_e4m3(x * 2, scale=given)
            return greenfast.quantize_e4m3(x * 2, **dict(zip(("per", "layout", "transposed"), options)))

        codes, scale = torch.compile(model, fullgraph=True, backend=backend)(q)
        want, want_scale = model(q)
        assert torch.equal(codes.view(torch.uint8), want.view(torch.uint8)) and torch.equal(scale, want_scale)
        assert codes.stride() == want.stride()
    op = torch.ops.greenfast.quantize_e4m3.default
    for arguments in ((q,), (q, given)):
        assert set(torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")).values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_quantised_attention_compiles(backend):
    torch._dynamo.reset()

    def model(q, k, v, mask, out, lse):
        a, a_lse = greenfast.attention_quantized(q * 2, k, v, causal=True, align="bottom_right", sinks=mask[:4], return_lse=True)
        b = greenfast.attention_quantized(q, k, v, mask=mask, accuracy="fast", out=out, lse=lse, softcap=3.0)
        c = greenfast.attention_quantized(*(x.transpose(1, 2) for x in (q, k, v)), layout="bshd", out_dtype=torch.float32, chunk=7, align="top_left",
                                          smooth_k=True, rotate=True)
        return a + 1, a_lse, b * 2, c.flatten(2)

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for rows in (24, 31, 40):
        q, k, v = tensors(torch.float16, rows=rows, width_v=16)
        # out is wider than q: what is written there is not rounded to q's type first.
        given, wanted = ([torch.full((2, 4, rows, 16), torch.nan), torch.full((2, 4, rows), torch.nan)] for _ in range(2))
        ours, theirs = compiled(q, k, v, torch.linspace(-1, 1, 53), *given), model(q, k, v, torch.linspace(-1, 1, 53), *wanted)
        for x, y in zip((*ours, *given), (*theirs, *wanted)):
            assert torch.equal(x, y) and x.dtype == y.dtype
    op, none = torch.ops.greenfast.attention_quantized.default, (None,) * 3
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for arguments, options in (((q, k, v, *none), {}), ((q, k, v, torch.ones(40, 53), torch.zeros(4), torch.ones(4)), dict(align=1, with_lse=False))):
        assert set(torch.library.opcheck(op, arguments, options, test_utils=tests).values()) == {"SUCCESS"}


@pytest.mark.parametrize("exact", [True, False], ids=["as this PyTorch has it", "without a tag for strides"])
def test_what_a_graph_computes_and_expands_is_quantised(exact, monkeypatch):
    if exact and not gt._EXACT_STRIDES:
        pytest.skip("this PyTorch has no tag for strides")
    monkeypatch.setattr(gt, "_EXACT_STRIDES", exact)
    torch._dynamo.reset()

    def model(q, k, v, last):
        shared, visible = [(x[:, :1] * 2).expand_as(x) for x in (k, v)], torch.arange(k.shape[2]) <= last
        return [greenfast.attention_quantized(q, *shared, mask=visible.expand(2, 1, q.shape[2], -1)),
                greenfast.attention_quantized(q * 2, *((x[:1] + 1).expand_as(x) for x in (k, v)))]

    arguments = *tensors(torch.float16), torch.tensor(20)
    with torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
        ours = torch.compile(model, fullgraph=True)(*arguments)
    for one, theirs in zip(ours, model(*arguments)):
        assert torch.equal(one, theirs)


@pytest.mark.parametrize("change, options, error, words", [
    refused(ValueError, "current stream", stream=1), refused(NotImplementedError, "not used_kv", used_kv=ints(3, 4)),
    refused(NotImplementedError, "not page_table", page_table=ints(1, 0).view(2, 1)), refused(NotImplementedError, "not max_q", max_q=37),
    refused(NotImplementedError, "gradients", sinks=torch.zeros(4, requires_grad=True)), refused(TypeError, "is 'sinks' meant", sink=1),
    refused(NotImplementedError, "gradients", lambda q, k, v: (q.requires_grad_(), k, v)),
    refused(ValueError, "e4m3 already", lambda q, k, v: [greenfast.quantize_e4m3(x)[0] for x in (q, k, v)]),
    refused(TypeError, "leave one of them out", out_dtype=torch.bfloat16), refused(NotImplementedError, "runs on cuda", variant="cuda.sm90.fp8")])
def test_what_a_compiled_quantised_attention_does_not_take_is_named(change, options, error, words):
    torch._dynamo.reset()
    out = torch.full((2, 4, 37, 32), 7.0)
    with pytest.raises(error, match=words):
        torch.compile(lambda *x: greenfast.attention_quantized(*x, out=out, **options), backend="aot_eager")(*change(*tensors()))
    assert (out == 7.0).all()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_no_graph_breaks_and_dynamic_shapes(backend):
    torch._dynamo.reset()

    def model(q, k, v):
        return gt.scaled_dot_product_attention(q * 2, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2) + 1

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    counter = torch._dynamo.utils.counters["stats"]
    for rows in (24, 31, 40):
        q, k, v = tensors(rows=rows, keys=rows)
        assert torch.equal(compiled(q, k, v), model(q, k, v))
    graphs = counter["unique_graphs"]
    q, k, v = tensors(rows=52, keys=52)
    assert torch.equal(compiled(q, k, v), model(q, k, v)) and counter["unique_graphs"] == graphs
    for ours, theirs in zip(gradients(compiled, q, k, v), gradients(model, q, k, v)):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_the_raw_call_compiles_with_all_it_can_do():
    torch._dynamo.reset()
    q, k, v = tensors()

    def model(q, k, v, out):
        a, lse = greenfast.attention(q, k, v, window=(5, 0), align="bottom_right", softcap=3.0, return_lse=True)
        greenfast.attention(q, k, v, out=out)
        return a * 2, lse

    outs = torch.empty_like(q), torch.empty_like(q)
    compiled = torch.compile(model, fullgraph=True)(q, k, v, outs[0])
    assert all(torch.equal(x, y) for x, y in zip(compiled, model(q, k, v, outs[1]))) and torch.equal(*outs)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_masks_and_lengths_compile(backend):
    torch._dynamo.reset()

    def model(q, k, v, mask, used):
        a = gt.scaled_dot_product_attention(q * 2, k, v, mask, enable_gqa=True, fallback="error")
        b = greenfast.attention(q, k, v, used_kv=used, causal=True, align="bottom_right")
        return a.transpose(1, 2).flatten(2) + 1, b

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for rows in (24, 31, 40):
        q, k, v = tensors(rows=rows, width_v=16)
        arguments = q, k, v, torch.rand(rows, 53) < 0.5, torch.tensor([rows, 53], dtype=torch.int32)
        for ours, theirs in zip(compiled(*arguments), model(*arguments)):
            assert torch.equal(ours, theirs)
    q, k, v = tensors(heads=2)
    run = torch.compile(lambda *x: gt.scaled_dot_product_attention(*x, MASK), fullgraph=True, backend=backend)
    for ours, theirs in zip(gradients(run, q, k, v), gradients(SDPA, q, k, v, attn_mask=MASK)):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("exact", [True, False], ids=["as this PyTorch has it", "without a tag for strides"])
def test_what_a_graph_computes_and_expands_is_read(exact, monkeypatch):
    """Inductor writes what is expanded to memory in an order of its own, if it may: keys, values or masks with other than contiguous rows."""
    if exact and not gt._EXACT_STRIDES:
        pytest.skip("this PyTorch has no tag for strides")
    monkeypatch.setattr(gt, "_EXACT_STRIDES", exact)
    torch._dynamo.reset()

    def model(attend, q, k, v, last):
        visible = torch.arange(k.shape[2]) <= last
        bias = torch.zeros(k.shape[2]).masked_fill(~visible, -torch.inf)
        shared = [(x[:, :1] * 2).expand_as(x) for x in (k, v)]
        return [attend(q, k, v, visible.expand(2, 1, q.shape[2], -1)), attend(q, k, v, bias.expand(2, 4, q.shape[2], -1)), attend(q, *shared),
                attend(q, *((x[:1] + 1).expand_as(x) for x in (k, v))), attend((q[:, :1] * 2).expand_as(q), k, v)]

    arguments = torch.randn(2, 4, 3, 16), torch.randn(2, 4, 31, 16), torch.randn(2, 4, 31, 16), torch.tensor(20)
    # What was compiled before may have been kept, under the same name, without what this is about.
    with torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
        ours = torch.compile(model, fullgraph=True)(lambda *x: gt.scaled_dot_product_attention(*x, fallback="error"), *arguments)
    for one, theirs in zip(ours, model(SDPA, *arguments)):
        torch.testing.assert_close(one, theirs, atol=2e-6, rtol=1e-5)


def test_a_compiled_fallback_is_said_when_it_is_traced(monkeypatch):
    torch._dynamo.reset()
    q, k, v = tensors(heads=2)
    compiled = torch.compile(gt.scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    monkeypatch.setitem(gt._answers, ("cpu", 0, torch.float32, ("bool mask",)), "no kernel has learned masks")
    with pytest.warns(gt.FallbackWarning, match="no kernel has learned masks"):
        out = compiled(q, k, v, MASK)
    torch.testing.assert_close(out, SDPA(q, k, v, MASK))
    with pytest.warns(gt.FallbackWarning, match="no kernel has learned masks"):
        gt._said.clear()
        gt.scaled_dot_product_attention(q, k, v, MASK)


class Projected(torch.nn.Module):
    """A projection before attention, whose weight needs attention's gradient."""

    def __init__(self, attend):
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.projection = attend, torch.nn.Linear(32, 32)

    def forward(self, x):
        y = self.projection(x)
        return self.attend(y, y, y)


def gradient_of(module, x):
    module(x).square().sum().backward()
    (gradient,) = (weight.grad for name, weight in module.named_parameters() if name.endswith("weight"))
    return gradient


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="torch 2.7 says first that a program is exported")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("attend", [
    lambda q, k, v: gt.scaled_dot_product_attention(q, k, v, is_causal=True), lambda q, k, v: greenfast.attention(q, k, v, causal=True),
    lambda q, k, v: gt.scaled_dot_product_attention(q, k, v, torch.ones(16, 16, dtype=torch.bool).tril())], ids=["sdpa", "raw", "mask"])
def test_a_program_exported_without_gradients_has_them_when_it_is_trained(attend, strict):
    x = torch.randn(1, 2, 16, 32)
    with torch.no_grad():
        exported = torch.export.export(Projected(attend), (x,), strict=strict).module()
        torch.testing.assert_close(exported(x), Projected(attend)(x))
    torch.testing.assert_close(gradient_of(exported, x), gradient_of(Projected(lambda *y: SDPA(*y, is_causal=True)), x), atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="torch 2.7 says first that a program is exported")
@pytest.mark.parametrize("options", [dict(window=(3, 0)), dict(softcap=5.0), dict(sinks=torch.zeros(2))], ids=["window", "softcap", "sinks"])
def test_an_exported_program_without_exact_gradients_refuses_to_be_trained(options):
    x = torch.randn(1, 2, 16, 32)
    module = Projected(lambda q, k, v: greenfast.attention(q, k, v, causal=True, **options))
    with torch.no_grad():
        exported = torch.export.export(module, (x,)).module()
        torch.testing.assert_close(exported(x), module(x))
    with pytest.raises(NotImplementedError, match="gradients"):
        exported(x)


UNKNOWN = {
    "rows": lambda f, q, k, v, at: f(q[:, :, at], k, v), "rows causal": lambda f, q, k, v, at: f(q[:, :, at], k[:, :, at], v[:, :, at], is_causal=True),
    "keys": lambda f, q, k, v, at: f(q, k[:, :, at], v[:, :, at]), "heads": lambda f, q, k, v, at: f(q[:, at[at < 4]], k[:, at[at < 4]], v[:, at[at < 4]]),
    "batches": lambda f, q, k, v, at: f(q[at[at < 2]], k[at[at < 2]], v[at[at < 2]]), "three dimensions": lambda f, q, k, v, at: f(q[0][:, at], k[0], v[0]),
    "item": lambda f, q, k, v, at: (lambda n: f(q[:, :, :n], k[:, :, :n], v[:, :, :n]))(at.sum().item() // 10),
    "mask": lambda f, q, k, v, at: f(q, k[:, :, at], v[:, :, at], q[0, 0, :, :1].expand(16, 16)[:, at]),
}


@pytest.mark.skipif(not hasattr(torch.fx.experimental.symbolic_shapes, "guard_or_false"), reason="torch 2.7 compares unknown sizes first")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("case", UNKNOWN.values(), ids=UNKNOWN)
def test_sizes_that_a_graph_does_not_know(case, requires_grad):
    torch._dynamo.reset()
    q, k, v = torch.randn(3, 2, 4, 16, 32)
    at = torch.tensor([1, 0, 1, 1] * 4)
    run = lambda *x: case(gt.scaled_dot_product_attention, *x[:3], x[3].nonzero()[:, 0])  # noqa: E731
    k.requires_grad_(requires_grad)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        ours = torch.compile(run, backend="aot_eager", fullgraph=True)(q, k, v, at)
    torch.testing.assert_close(ours, case(SDPA, q, k, v, at.nonzero()[:, 0]))
    if requires_grad:
        torch.testing.assert_close(torch.autograd.grad(ours.sum(), k)[0], torch.autograd.grad(run(q, k, v, at).sum(), k)[0])
