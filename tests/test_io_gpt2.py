"""GPT-2's weights in our GPT.

Here: names, transposition, scores against the model written out with NumPy. Not here: real weights, which are big.
"""

import math

import numpy as np
import pytest

import polygrad as pg

pytest.importorskip("safetensors", reason="not run: needs safetensors")
VOCAB, CONTEXT, DIM, LAYERS, HEADS = 11, 6, 8, 2, 2


def weights(rng):
    shapes = {"wte.weight": (VOCAB, DIM), "wpe.weight": (CONTEXT, DIM), "ln_f.weight": (DIM,), "ln_f.bias": (DIM,)}
    for k in range(LAYERS):
        sizes = {
            "ln_1.weight": (DIM,), "ln_1.bias": (DIM,), "ln_2.weight": (DIM,), "ln_2.bias": (DIM,),
            "attn.c_attn.weight": (DIM, 3 * DIM), "attn.c_attn.bias": (3 * DIM,),
            "attn.c_proj.weight": (DIM, DIM), "attn.c_proj.bias": (DIM,),
            "mlp.c_fc.weight": (DIM, 4 * DIM), "mlp.c_fc.bias": (4 * DIM,),
            "mlp.c_proj.weight": (4 * DIM, DIM), "mlp.c_proj.bias": (DIM,),
        }  # fmt: skip
        shapes |= {f"h.{k}.{n}": s for n, s in sizes.items()}
    return {n: rng.standard_normal(s).astype("float32") for n, s in shapes.items()}


def scores(w, tokens):
    """GPT-2 written out, one sequence."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    n, size = len(tokens), DIM // HEADS
    x = w["wte.weight"][tokens] + w["wpe.weight"][:n]
    for k in range(LAYERS):
        q, key, v = np.split(dense(norm(x, f"h.{k}.ln_1"), f"h.{k}.attn.c_attn"), 3, axis=-1)
        heads = []
        for h in range(HEADS):
            part = slice(h * size, (h + 1) * size)
            match = q[:, part] @ key[:, part].T / math.sqrt(size)
            match = np.where(np.tri(n, dtype=bool), match, -np.inf)
            share = np.exp(match - match.max(-1, keepdims=True))
            heads.append(share / share.sum(-1, keepdims=True) @ v[:, part])
        x = x + dense(np.concatenate(heads, -1), f"h.{k}.attn.c_proj")
        u = dense(norm(x, f"h.{k}.ln_2"), f"h.{k}.mlp.c_fc")
        gelu = 0.5 * u * (1 + np.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        x = x + dense(gelu, f"h.{k}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_scores_are_those_of_gpt2_written_out(device, tmp_path, rng, prefix):
    w = weights(rng)
    extra = {"h.0.attn.bias": np.tri(CONTEXT, dtype="float32").reshape(1, 1, CONTEXT, CONTEXT)}
    named = {prefix + n: pg.asarray(a) for n, a in {**w, **extra}.items()}
    named["lm_head.weight"] = named[prefix + "wte.weight"]
    pg.io.save_safetensors(named, tmp_path / "gpt2.safetensors")
    model = pg.io.load_gpt2(tmp_path / "gpt2.safetensors", heads=HEADS)
    tokens = [3, 1, 10, 0, 7]
    got = model.eval()(pg.asarray([tokens])).detach().numpy()[0]
    np.testing.assert_allclose(
        got, scores({n: a.astype("float64") for n, a in w.items()}, tokens), rtol=2e-4, atol=2e-4
    )


def test_what_is_no_gpt2_is_refused(tmp_path, rng):
    path = tmp_path / "a"
    good = {n: pg.asarray(a) for n, a in weights(rng).items()}

    def refused(arrays, message, **how):
        pg.io.save_safetensors(arrays, path)
        with pytest.raises(pg.StateError, match=message):
            pg.io.load_gpt2(path, **how)

    refused({**good, "h.0.attn.q.weight": pg.ones(1)}, r"cannot read h\.0\.attn\.q\.weight: no GPT-2 has an array of")
    refused(good, "cannot tell the heads of a GPT with 8 features: pass heads=")
    refused({n: a for n, a in good.items() if n != "wpe.weight"}, r"it lacks what becomes position_embedding\.weight")
    less = {n: a for n, a in good.items() if n != "h.1.ln_1.bias"}
    refused(less, r"it lacks blocks\.1\.attention_norm\.bias", heads=2)
    refused({**good, "h.1.mlp.c_fc.weight": pg.ones(3)}, r"it is a matrix in every GPT-2", heads=2)
