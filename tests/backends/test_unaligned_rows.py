"""Products of 16 bits whose rows begin anywhere: our kernels in the place of a library's slow ones, over copies."""

from __future__ import annotations

import re

import pytest
import torch

import tilec
from tilec.backends.triton.matmul.hopper import aligned_copies
from tilec.backends.triton.plan.sizes import copied_row

WORDS, COTANGENT = "S[i, v : N, V] = +(X[i, h] * W[v, h]);", "G[i, h : N, H] = +(D[i, v] * W[v, h]);"
ACROSS = "G[v, h : V, H] = +(D[i, v] * X[i, h]);"


def source(head: str, text: str, *shapes: tuple[int, ...], dtype: str = "bfloat16") -> str:
    f = tilec.compile(f"function ({head}) {{ {text} }}")
    return f.lower(*(tilec.spec(shape, dtype) for shape in shapes), target="sm_90").source()


def copies(text: str) -> list[str]:
    """The shapes of copies of D."""
    return re.findall(r"_D_\d = torch.empty\((\(.*?\))", text)


def test_results_are_stored_by_our_kernels() -> None:
    ours = source("X[N, H], W[V, H]) -> (S", WORDS, (2048, 512), (32003, 512))
    assert "gluon_map(X" in ours and "_lines(" not in ours
    assert "_lines(" in source("X[N, H], W[V, H]) -> (S", WORDS, (2048, 512), (32000, 512))
    assert "_lines(" in source("X[N, H], W[V, H]) -> (S", WORDS, (64, 64), (67, 64))  # no time to lose


@pytest.mark.parametrize(("text", "reads"), [(COTANGENT, "W[V, H]"), (ACROSS, "X[N, H]")], ids=["rows", "columns"])
def test_operands_are_copied(text: str, reads: str) -> None:
    other = (32003, 512) if "W" in reads else (2048, 512)
    ours = source(f"D[N, V], {reads}) -> (G", text, (2048, 32003), other)
    assert copies(ours) == ["(2048, 32064)"] and "_lines(" not in ours
    assert not copies(source(f"D[N, V], {reads}) -> (G", text, (2048, 32003), other, dtype="float32"))
    small = (67, 64) if "W" in reads else (64, 64)
    assert not copies(source(f"D[N, V], {reads}) -> (G", text, (64, 67), small))


def test_two_products_share_a_copy() -> None:
    both = source(
        "D[N, V], W[V, H], X[N, H]) -> (G, K",
        COTANGENT + ACROSS.replace("G[", "K["),
        (2048, 32003),
        (32003, 512),
        (2048, 512),
    )
    assert copies(both) == ["(2048, 32064)"]


def test_convolutions_of_odd_channels_read_copies() -> None:
    head = "D[N, Y, X, O], K[3, 3, C, O]) -> (G"
    text = "G[n, 2*y + p, 2*x + q, c : N, 2*Y, 2*X, C] = +(D[n, y, x, o] * K[p, q, c, o]);"
    for channels, row in (
        (3, 80),
        (72, 128),
    ):  # whole vectors; boxes too, which take longer where a tensor ends in them
        ours = source(head, text, (32, 64, 64, 70), (3, 3, channels, 70))
        assert copies(ours) == [f"(32, 64, 64, {row})"] and "gluon_map(G_D_3" in ours and "_dot" not in ours
        assert not copies(source(head, text, (32, 64, 64, 80), (3, 3, channels, 80)))
    assert not copies(source(head, text, (1, 4, 4, 70), (3, 3, 72, 70)))  # no time to lose


def test_copies_of_convolutions_end_with_boxes() -> None:
    """A box that ends behind its tensor takes three times as long as others. Zeros fill what is summed, in the kernel
    too, and both gradients read one copy of the cotangent."""
    text = "G[n, z, y, x, o : N, U, H, W, O] = +(D[n, z + k - 1, y + j - 1, x + i - 1, c] * K[o, k, j, i, c]);"
    f = tilec.compile(f"function (D[N, U, H, W, C], K[O, 3, 3, 3, C]) -> (G) {{ {text} }}")
    for channels, copied in ((56, True), (64, False)):
        image, kernel = ((8, 16, 66, 53, channels), (56, 3, 3, 3, channels))
        specs = [tilec.spec(shape, "bfloat16") for shape in (image, kernel)]
        ours = f.lower(*specs, target="sm_90").source()
        assert copies(ours) == ["(8, 16, 66, 53, 64)"] * copied
        assert ("G_K_4 = torch.empty((56, 3, 3, 3, 64)" in ours) == copied
    specs = [tilec.spec(shape, "bfloat16") for shape in (image[:-1] + (56,), kernel[:-1] + (56,), image[:-1] + (56,))]
    both = f.grad(["D", "K"]).lower(*specs, target="sm_90").source()
    assert sorted(re.findall(r"(\w+) = torch.empty\(\(8, 16, 66, 53, 64\)", both)) == ["DD_DG_4", "DK_D_4"]
    assert "DD_K_4 = torch.empty((64, 3, 3, 3, 64)" in both


def test_copies_of_one_tensor_that_end_otherwise_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where A is read along what is summed, its copy ends with a box along that too; in the window it must not. The
    other product shares the first one."""
    monkeypatch.setattr(aligned_copies, "MEMORY_BYTES", 1e30)  # copies pay
    monkeypatch.setattr(aligned_copies, "LAUNCH_SECONDS", 0.0)
    text = "G[n, a, b, j : P, R, Q, 3] = +(A[n, c, a] * A[n, b + j, c]);"
    text += "H[n, a, e, j : P, R, E, 3] = +(A[n, c, a] * W[e + j, c]);"
    ours = source("A[P, Q, R], W[E, S]) -> (G, H", text, (3, 43, 43), (40, 43))
    made = dict(re.findall(r"(\w+) = torch.empty\((\(.*?\))", ours))
    assert len(made) == ours.count("= torch.empty(")
    assert [shape for name, shape in made.items() if "_A_" in name] == ["(3, 64, 64)", "(3, 43, 64)"]


def test_a_library_takes_channels_that_fill_its_boxes_better() -> None:
    """96 channels are three of its boxes and one and a half of ours, 152 of a result leave less of three of ours empty
    than of two of its; gradients, which it is slow at, stay ours."""
    text = "G[n, y, x, o : N, H, W, O] = +(D[n, y + j - 1, x + i - 1, c] * K[o, j, i, c]);"
    f = tilec.compile(f"function (D[N, H, W, C], K[O, 3, 3, C]) -> (G) {{ {text} }}")
    for channels, library in ((96, True), (128, False), (152, False), (200, False)):
        image, kernel = (
            tilec.spec((32, 56, 56, channels), "bfloat16"),
            tilec.spec((channels, 3, 3, channels), "bfloat16"),
        )
        assert ("rt.convolution(" in f.lower(image, kernel, target="sm_90").source()) == library
        assert "rt.convolution" not in f.grad(["D", "K"]).lower(image, kernel, image, target="sm_90").source()
    for summed, made, library in (
        (160, 160, False),
        (96, 160, False),
        (152, 112, True),
        (80, 80, True),
        (96, 40, False),
    ):
        specs = tilec.spec((32, 48, 48, summed), "bfloat16"), tilec.spec((made, 3, 3, summed), "bfloat16")
        assert ("rt.convolution(" in f.lower(*specs, target="sm_90").source()) == library
    odd = tilec.spec((38, 48, 34, 94), "bfloat16"), tilec.spec((112, 3, 3, 94), "bfloat16")
    assert copies(f.lower(*odd, target="sm_90").source())  # as a library does
    one = tilec.spec((16, 65, 55, 133), "bfloat16"), tilec.spec((58, 1, 1, 133), "bfloat16")
    text = text.replace("y + j - 1, x + i - 1", "y + j, x + i")
    f = tilec.compile(f"function (D[N, H, W, C], K[O, 1, 1, C]) -> (G) {{ {text} }}")
    assert "rt.convolution(" in f.lower(*one, target="sm_90").source()  # each element is read once: copies do not pay


def test_steps_take_half_a_row_of_channels_that_begin_with_sectors() -> None:
    """144 channels are five boxes of 32; so are 136 in a copy, whose rows begin with sectors."""
    text = "G[n, y, x, o : N, H, W, O] = +(D[n, y + j - 1, x + i - 1, c] * K[o, j, i, c]);"
    for channels, box in ((96, 32), (144, 32), (128, 64), (136, 32), (176, 64)):
        ours = source("D[N, H, W, C], K[O, 3, 3, C]) -> (G", text, (40, 50, 43, channels), (113, 3, 3, channels))
        assert f", {box}), layout_1)" in ours and "rt.convolution" not in ours


def test_gradients_of_one_place_read_copies_that_they_share() -> None:
    """A library pads them; forward it reads single elements as fast as copies take."""
    text = "G[n, y, x, o : N, H, W, O] = +(D[n, y + j, x + i, c] * K[o, j, i, c]);"
    f = tilec.compile(f"function (D[N, H, W, C], K[O, 1, 1, C]) -> (G) {{ {text} }}")
    for outer, library in (((39, 64, 32), False), ((1, 8, 8), True)):
        specs = [tilec.spec(shape, "bfloat16") for shape in ((*outer, 147), (74, 1, 1, 147), (*outer, 74))]
        assert "rt.convolution(" in f.lower(*specs[:2], target="sm_90").source() or library
        both = f.grad(["D", "K"]).lower(*specs, target="sm_90").source()
        assert ("rt.convolution_gradients" not in both and both.count("DG_1 = torch.empty") == 1) == (not library)


def test_products_over_copies_have_an_epilogue() -> None:
    text = "O[n, j : N, J] = +(X[n, h] * W[h, j]); Y = relu(O + B);"
    ours = source("X[N, H], W[H, J], B[J]) -> (Y", text, (1500, 1001), (1001, 2731), (2731,))
    assert "O_W_1 = torch.empty((1001, 2752)" in ours and "O = " not in ours
    assert ours.count("Y = torch.empty(") == 1 and "Y_kernel" not in ours


LOSS = "E[i, v : N, V] = exp(D[i, v] - L[i]) * C[i]; G[i, h : N, H] = +(E[i, v] * W[v, h]);"


def test_what_a_group_stores_has_rows_of_vectors_at_once() -> None:
    """An intermediate that products alone would copy."""
    head, other = "D[N, V], L[N], C[N], W[V, H], X[N, H]", ((32003, 512), (2048, 512))
    across = ACROSS.replace("D[", "E[").replace("G[", "K[")
    ours = source(f"{head}) -> (G, K", LOSS + across, (2048, 32003), (2048,), (2048,), *other)
    assert "E = torch.empty((2048, 32064)" in ours and "gluon_map(E" in ours and "_E_" not in ours
    assert "tl.multiple_of(" in ours  # rows of D begin anywhere: no thread has neighbours
    kept = source(f"{head}) -> (E, G", LOSS, (2048, 32003), (2048,), (2048,), *other)
    assert "(2048, 32003)" in kept and "_E_1 = torch.empty((2048, 32064)" in kept
    assert "tl.multiple_of(" in kept


HEADS = "O[b, n, d : B, N, D] = +(X[b, h, n, e] * W[h, e, d]);"


def test_rows_that_begin_between_lines_are_copied_where_a_library_does_not_multiply() -> None:
    """A row of 1432 elements is 22.4 lines of the caches, one of 1472 is 23."""
    head, shapes = "X[B, H, N, E], W[H, E, D]) -> (O", ((8, 24, 2056, 64), (24, 64, 1432))
    ours = source(head, HEADS, *shapes)
    assert "O_W_2 = torch.empty((24, 64, 1472)" in ours and "gluon_map(O_W_2" in ours and "O_X" not in ours
    assert "_W_" not in source(head, HEADS, shapes[0], (24, 64, 1408))
    assert "_W_" not in source(head, HEADS, (2, 3, 200, 64), (3, 64, 1432))  # no time to lose
    library = source("X[N, H], W[V, H]) -> (S", WORDS, (4096, 1432), (4096, 1432))
    assert "_lines(" in library and "_W_" not in library


ACROSS_HEADS = "G[h, e, d : H, E, D] = +(X[b, h, n, e] * C[b, n, d]);"


def test_variables_of_which_boxes_are_mostly_empty_lie_next_to_each_other_in_a_copy() -> None:
    """Heads of 68 elements take two boxes of 64 each, or one of 128; forty of them 42.5 boxes."""
    head, shapes = "X[B, H, N, E], W[H, E, D]) -> (O", ((8, 40, 1514, 68), (40, 68, 2176))
    ours = source(head, HEADS, *shapes)
    assert "O_X_0_2_1_3 = torch.empty((8, 1514, 2752)" in ours
    assert "gluon_map(O_X_0_2_1_3, 0, (12112, 2720), (2752, 1)" in ours and "gluon_map(W, 0, (2720, 2176)" in ours
    across = source("X[B, H, N, E], C[B, N, D]) -> (G", ACROSS_HEADS, shapes[0], (8, 1514, 2176))
    assert "gluon_map(G_X_0_2_1_3, 0, (12112, 2720), (2752, 1)" in across and "gluon_map(G, 0, (2720, 2176)" in across
    followed = source(head, HEADS.replace("O[", "P[") + " O = relu(P);", *shapes)
    assert "_X_0_2_1_3" in followed and "relu" in followed
    for other in ((8, 40, 1514, 128), (1, 2, 70, 68)):  # full boxes; no time to lose
        assert "_0_2_1_3" not in source(head, HEADS, other, (other[1], other[3], 2176))
    bounded = HEADS.replace("e]);", "e]), h < 30;").replace("d]);", "d]), h < 30;")  # which are not one variable
    assert "_0_2_1_3" not in source(head, bounded, *shapes)
    apart = "O[b, n, d : B, N, D] = +(X[b, h, n, e] * W[e, h, d]);"  # which lie in another order there
    assert "_0_2_1_3" not in source("X[B, H, N, E], W[E, H, D]) -> (O", apart, shapes[0], (68, 40, 2176))


def test_operands_of_many_axes_whose_innermost_has_one_element() -> None:
    """Of six axes maps have five, and the innermost one would be merged."""
    head = "A[I, B, M, J, G], D[J, I, G, L, N, B], C[B]) -> (Y"
    text = "P[m, g, n, l, b : M, G, N, L, B] = +(A[i, b, m, j, g] * D[j, i, g, l, n, b]); Y = gelu(P + C);"
    assert "gelu" in source(head, text, (12, 1, 2048, 113, 5), (113, 12, 5, 341, 12, 1), (1,))


GATED = "A[m, j : M, J] = +(X[m, h] * W[h, j]); B[m, j : M, J] = +(X[m, h] * V[h, j]); Y = silu(A) * B;"


def test_a_library_multiplies_between_lines_what_would_have_an_epilogue() -> None:
    """Boxes of rows of 2552 and 7304 elements take twice as long as those of 2560 and 7296."""

    def gated(h: int, j: int) -> str:
        return source("X[M, H], W[H, J], V[H, J]) -> (Y", GATED, (4808, h), (h, j), (h, j))

    assert "gluon_map(" not in gated(2552, 7304) and "gluon_map(" in gated(2560, 7296)


def test_products_store_intermediates_in_rows_of_vectors() -> None:
    """Where maps, groups and further products read them."""
    head, text = "X[N, H], W[V, H], A[V]) -> (Y", WORDS + "Y[i : N] = sum(exp(S[i, v] - max(S[i, u])) * A[v]);"
    ours = source(head, text, (2048, 512), (32003, 512), (32003,))
    assert "S = torch.empty((2048, 32064)" in ours and "gluon_map(S, 0, (2048, 32003), (32064, 1)" in ours
    narrow = source(head, text, (4096, 4096), (51, 4096), (51,))  # an eighth and more would be padding
    assert "S = torch.empty((4096, 51)" in narrow
    text = "H[m, n : M, N] = +(X[m, k] * W[k, n]); T = relu(H + R); Y[m, p : M, P] = +(T[m, n] * V[n, p]);"
    shapes = (4001, 1003), (1003, 2003), (4001, 2003), (2003, 997)
    ours = source("X[M, K], W[K, N], R[M, N], V[N, P]) -> (Y", text, *shapes)
    assert "T = torch.empty((4001, 2048)" in ours and ours.count("gluon_map(T") == 2 and "_T_1" not in ours
    kept = source("X[M, K], W[K, N], R[M, N], V[N, P]) -> (T, Y", text, *shapes)
    assert "T = torch.empty((4001, 2003)" in kept and "_T_1 = torch.empty((4001, 2048)" in kept


def test_computed_operands_have_rows_of_vectors() -> None:
    text = "Y[m, n : M, N] = +(X[m, k] * S[m] * W[k, n]);"
    ours = source("X[M, K], S[M], W[K, N]) -> (Y", text, (4099, 2051), (4099,), (2051, 1777))
    assert "Y_left = torch.empty((4099, 2112)" in ours and "Y_W_1 = torch.empty((2051, 1792)" in ours
    assert "gluon_map(Y_left" in ours and "gluon_map(Y_W_1" in ours
    text = "G[b, i : B, I] = +(D[b, o] * W[o, i, j] * Y[b, j]);"
    ours = source("D[B, O], W[O, I, J], Y[B, J]) -> (G", text, (2048, 96), (96, 203, 131), (2048, 131))
    assert "gluon_map(G_1" in ours and "_G_1_" not in ours  # the outer product is stored so at once


def test_kernels_that_share_reads_have_memory_for_rows_of_vectors() -> None:
    """The operands of a complex product: one kernel writes those of both parts."""
    text = "P[m, n : M, N] = +(A[m, k] * C[k, n] - B[m, k] * D[k, n]);"
    text += text.replace("P[", "Q[").replace("C[", "E[").replace("D[", "C[").replace("E[", "D[").replace(" - ", " + ")
    shapes = (1021, 2047), (1021, 2047), (2047, 1333), (2047, 1333)
    ours = source("A[M, K], B[M, K], C[K, N], D[K, N]) -> (P, Q", text, *shapes)
    for name in ("P_beside", "Q_beside", "P_beside_1", "Q_beside_1"):
        assert f"{name} = torch.empty(({1333 if '1' in name else 1021}, 4096)" in ours


@pytest.mark.parametrize(("row", "memory"), [(32003, 32064), (640, 640), (205, 256), (70, 80), (57, 64), (3, 8)])
def test_rows_of_copies(row: int, memory: int) -> None:
    """They begin with lines of 64 elements, halves or quarters where a third at most is padding."""
    assert copied_row(row, 2) == memory


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_device(dtype: torch.dtype) -> None:
    f = tilec.compile(f"function (X[N, H], W[V, H]) -> (S) {{ {WORDS} }}")
    for n, v, h in ((1031, 8003, 264), (1024, 50257, 768), (77, 30522 + 1, 1023)):
        x, w = (torch.randn(k, h, device="cuda", dtype=dtype).requires_grad_() for k in (n, v))
        d = torch.randn(n, v, device="cuda", dtype=dtype)
        y = f(x, w)
        y.backward(d)
        exact = [(a.double() @ b.double()) for a, b in ((x, w.mT), (d, w), (d.mT, x))]
        for got, wanted in zip((y, x.grad, w.grad), exact, strict=True):
            assert (got.double() - wanted).abs().max() <= 1e-2 * wanted.abs().max()
    head = "D[N, V], L[N], C[N], W[V, H], X[N, H]"
    across = ACROSS.replace("D[", "E[").replace("G[", "K[")
    f = tilec.compile(f"function ({head}) -> (G, K) {{ {LOSS}{across} }}")
    for n, v, h in ((1031, 8003, 264), (2048, 32003, 512)):
        d, w, x = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((n, v), (v, h), (n, h)))
        lengths, c = d.float().logsumexp(1).to(dtype), torch.randn(n, device="cuda", dtype=dtype)
        e = ((d.double() - lengths.double()[:, None]).exp() * c.double()[:, None]).to(dtype).double()
        for got, wanted in zip(f(d, lengths, c, w, x), (e @ w.double(), e.mT @ x.double()), strict=True):
            assert (got.double() - wanted).abs().max() <= 2e-2 * wanted.abs().max()
