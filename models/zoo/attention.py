"""Transformers: a vision transformer, an encoder like BERT, decoders like GPT-2 and Llama with their caches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import nd
from ...gluon import nn
from ...gluon.hybrid import HybridBlock
from ...gluon.initializer import Normal
from ...gluon.parameter import Parameter
from ...nd.array import Array
from ...nd.running import apply
from ...ops.errors import InputError
from .parts import Chain, conv, dense

Pair = tuple[Array, Array]  # keys and values [batch, heads, length, size]


def attended(
    query: Array, key: Array, value: Array, *, heads: int, groups: int = 0, past: Pair | None = None, **how: Any
) -> tuple[Array, Pair | None]:
    """Attention of arrays [batch, length, heads * size], over the past too; the keys and values with the new ones
    behind it. `groups` heads of keys and values serve all heads (as many if 0). `how`: a mask, is_causal."""
    mask = how.pop("mask", None)
    attrs = {"q_num_heads": heads, "kv_num_heads": groups or heads, **how}
    if past is None:
        return apply("Attention", query, key, value, mask, **attrs), None
    y, keys, values = apply("Attention", query, key, value, mask, *past, outputs=3, **attrs)
    return y, (keys, values)


def counted(ids: Array, past: Sequence[Pair] | None) -> Array:
    """Positions [batch, length] of tokens: 0, 1, 2 ... behind the past."""
    before = past[0][0].shape[2] if past else 0
    one = nd.ones((), dtype="int64", device=ids.device)
    ones = nd.where(ids >= 0, one, one)  # as many as there are tokens, in files of any length too
    return nd.cumulative_sum(ones, axis=1) + (before - 1)


def _heads(units: int, heads: int) -> int:
    if units % heads:
        raise InputError(f"{units} units in {heads} heads", where="models")
    return units // heads


class Mlp(HybridBlock):
    """Two dense layers over the last axis, GELU between."""

    def __init__(self, units: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = dense(units, hidden), dense(hidden, units)

    def forward(self, x: Array) -> Array:
        return self.fc2(apply("Gelu", self.fc1(x)))


class _QKV(HybridBlock):
    """Self-attention with one dense layer for queries, keys and values."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.qkv, self.proj = dense(units, 3 * units), dense(units, units)

    def forward(self, x: Array) -> Array:
        return self.proj(attended(*nd.split(self.qkv(x), 3, axis=-1), heads=self._heads)[0])


class ViTLayer(HybridBlock):
    """Attention and two dense layers, each normalised before and added."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(1e-6, in_channels=units) for _ in range(2))
        self.attn, self.mlp = _QKV(units, heads), Mlp(units, 4 * units)

    def forward(self, x: Array) -> Array:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(HybridBlock):
    """Vision transformer (Dosovitskiy et al. 2020, arXiv 2010.11929) over patches: 86,567,656 parameters for Base with
    patches of 16 pixels, 304,326,632 for Large, 22,050,664 and 5,717,416 for Small and Tiny of arXiv 2012.12877, as
    timm's vit_base_patch16_224 and its sisters, whose names it has."""

    def __init__(
        self,
        units: int = 768,
        layers: int = 12,
        heads: int = 12,
        *,
        patch: int = 16,
        image: int = 224,
        classes: int = 1000,
        channels: int = 3,
    ) -> None:
        super().__init__()
        _heads(units, heads)
        count = (image // patch) ** 2
        self.patch_embed = Chain(proj=conv(channels, units, patch, patch, 0, use_bias=True))
        self.cls_token = Parameter("cls_token", shape=(1, 1, units), init=Normal(0.02))
        self.pos_embed = Parameter("pos_embed", shape=(1, count + 1, units), init=Normal(0.02))
        self.blocks = nn.HybridSequential(*(ViTLayer(units, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(1e-6, in_channels=units), dense(units, classes)

    def forward(self, x: Array) -> Array:
        x = self.patch_embed(x)
        x = nd.permute_dims(nd.reshape(x, (*x.shape[:2], -1)), (0, 2, 1))
        first = nd.broadcast_to(self.cls_token.data(), (x.shape[0], 1, x.shape[2]))
        x = self.blocks(nd.concat([first, x], axis=1) + self.pos_embed.data())
        return self.head(self.norm(x)[:, 0])


class _BertSelf(HybridBlock):
    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.query, self.key, self.value = (dense(units, units) for _ in range(3))

    def forward(self, x: Array, mask: Array | None) -> Array:
        return attended(self.query(x), self.key(x), self.value(x), heads=self._heads, mask=mask)[0]


class _Added(HybridBlock):
    """A dense layer, dropout, the sum with what was before, normalised."""

    def __init__(self, inputs: int, units: int, drop: float) -> None:
        super().__init__()
        self.dense, self.drop = dense(inputs, units), nn.Dropout(drop)
        self.LayerNorm = nn.LayerNorm(1e-12, in_channels=units)

    def forward(self, x: Array, before: Array) -> Array:
        return self.LayerNorm(self.drop(self.dense(x)) + before)


class _Named(HybridBlock):
    """Blocks under names (`self` is one of BERT's), which the owner calls."""

    def __init__(self, /, **blocks: HybridBlock) -> None:
        super().__init__()
        for name, block in blocks.items():
            setattr(self, name, block)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class BertLayer(HybridBlock):
    """Attention and two dense layers, each added and then normalised."""

    def __init__(self, units: int, heads: int, drop: float) -> None:
        super().__init__()
        self.attention = _Named(self=_BertSelf(units, heads), output=_Added(units, units, drop))
        self.intermediate = _Named(dense=dense(units, 4 * units))
        self.output = _Added(4 * units, units, drop)

    def forward(self, x: Array, mask: Array | None) -> Array:
        x = self.attention.output(self.attention.self(x, mask), x)
        return self.output(apply("Gelu", self.intermediate.dense(x)), x)


class Bert(HybridBlock):
    """BERT (Devlin et al. 2018, arXiv 1810.04805): 109,482,240 parameters for Base and 335,141,888 for Large, as
    Hugging Face's BertModel with its pooler, whose names it has.

    Token ids [batch, length], a mask of what is no padding, and the number of each token's sentence to the last hidden
    states [batch, length, units] and tanh of a dense layer over the first [batch, units]; with `classes`, to scores of
    them [batch, classes].
    """

    def __init__(
        self,
        units: int = 768,
        layers: int = 12,
        heads: int = 12,
        *,
        vocabulary: int = 30522,
        places: int = 512,
        classes: int = 0,
        drop: float = 0.1,
    ) -> None:
        super().__init__()
        _heads(units, heads)
        self.embeddings = _Named(
            word_embeddings=nn.Embedding(vocabulary, units), position_embeddings=nn.Embedding(places, units),
            token_type_embeddings=nn.Embedding(2, units), LayerNorm=nn.LayerNorm(1e-12, in_channels=units),
            drop=nn.Dropout(drop),
        )  # fmt: skip
        self.encoder = _Named(layer=nn.HybridSequential(*(BertLayer(units, heads, drop) for _ in range(layers))))
        self.pooler = _Named(dense=dense(units, units))
        self.drop, self.classifier = nn.Dropout(drop), dense(units, classes) if classes else None

    def forward(self, ids: Array, mask: Array | None = None, sentences: Array | None = None) -> Any:
        e = self.embeddings
        kinds = e.token_type_embeddings(ids * 0 if sentences is None else sentences)
        x = e.drop(e.LayerNorm(e.word_embeddings(ids) + kinds + e.position_embeddings(counted(ids, None))))
        seen = None if mask is None else nd.expand_dims(nd.expand_dims(mask, axis=1), axis=1).astype("bool")
        for layer in self.encoder.layer:
            x = layer(x, seen)
        pooled = nd.tanh(self.pooler.dense(x[:, 0]))
        return (x, pooled) if self.classifier is None else self.classifier(self.drop(pooled))


class _GPTAttention(HybridBlock):
    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.c_attn, self.c_proj = dense(units, 3 * units), dense(units, units)

    def forward(self, x: Array, past: Pair | None) -> tuple[Array, Pair | None]:
        y, present = attended(*nd.split(self.c_attn(x), 3, axis=-1), heads=self._heads, past=past, is_causal=1)
        return self.c_proj(y), present


class GPTLayer(HybridBlock):
    """Attention to earlier tokens and two dense layers, each normalised before and added."""

    def __init__(self, units: int, heads: int, drop: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(1e-5, in_channels=units) for _ in range(2))
        self.attn, self.drop = _GPTAttention(units, heads), nn.Dropout(drop)
        self.mlp = _Named(c_fc=dense(units, 4 * units), c_proj=dense(4 * units, units))

    def forward(self, x: Array, past: Pair | None) -> tuple[Array, Pair | None]:
        y, present = self.attn(self.ln_1(x), past)
        x = x + self.drop(y)
        y = self.mlp.c_proj(apply("Gelu", self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))
        return x + self.drop(y), present


class Decoder(HybridBlock):
    """Base of language models: `forward(ids, positions=None, past=None)` gives the scores [batch, length, vocabulary]
    of the next token behind each; with a past (`no_past` begins one) also the past with these tokens behind it.
    Positions that are not given count on behind the past."""

    cache: tuple[int, int, int]  # layers, heads and size of what it keeps

    def no_past(self, batch: int = 1) -> list[Pair]:
        """A past without tokens: for each layer keys and values [batch, heads, 0, size]."""
        layers, heads, size = self.cache
        return [(nd.zeros((batch, heads, 0, size)), nd.zeros((batch, heads, 0, size))) for _ in range(layers)]

    def export_cached(self, path: str | os.PathLike[str], *, opset: int | None = None) -> None:
        """Write the decoder with its caches, for `mz.load(path, cache="auto")` and `mz.generate`: `input_ids`,
        `position_ids` [batch, length] and `past_key_values.N.key` and `.value` [batch, heads, past, size] to `logits`
        and `present.N.key` and `.value`. Sizes of batch, length and past stay open."""
        layers = self.cache[0]
        pair = [f".{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
        ids = nd.zeros((2, 3), dtype="int64")
        past = [nd.zeros((2, heads, 5, size)) for _, heads, size in [self.cache] * (2 * layers)]
        open_sizes: dict[int, dict[int, str]] = {n: {0: "batch", 1: "length"} for n in range(2)}
        open_sizes |= {2 + n: {0: "batch", 2: "past"} for n in range(2 * layers)}
        _Flat(self).export(
            path, ids, ids, *past, dynamic=open_sizes, opset=opset,
            input_names=["input_ids", "position_ids", *(f"past_key_values{n}" for n in pair)],
            output_names=["logits", *(f"present{n}" for n in pair)],
        )  # fmt: skip

    def _layers(self, layers: Any, x: Array, past: Sequence[Pair] | None, *more: Any) -> tuple[Array, list[Any]]:
        presents = []
        befores: Sequence[Pair | None] = past or [None] * len(layers)
        for layer, before in zip(layers, befores, strict=True):
            x, present = layer(x, before, *more)
            presents.append(present)
        return x, presents


class _Flat(HybridBlock):
    """A decoder whose past and present are arrays one by one."""

    def __init__(self, net: Decoder) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Array, positions: Array, *past: Array) -> tuple[Array, ...]:
        scores, presents = self.net(ids, positions, list(zip(past[::2], past[1::2], strict=True)))
        return (scores, *(x for pair in presents for x in pair))


class GPT2(Decoder):
    """GPT-2 (Radford et al. 2019): 124,439,808 parameters for the small one, and 354,823,168, 774,030,080 and
    1,557,611,200, as Hugging Face's gpt2, gpt2-medium, -large and -xl, whose names it has. The table of tokens is used
    for the scores too."""

    def __init__(
        self,
        units: int = 768,
        layers: int = 12,
        heads: int = 12,
        *,
        vocabulary: int = 50257,
        places: int = 1024,
        drop: float = 0.1,
    ) -> None:
        super().__init__()
        self.cache = (layers, heads, _heads(units, heads))
        self.wte, self.wpe, self.drop = nn.Embedding(vocabulary, units), nn.Embedding(places, units), nn.Dropout(drop)
        self.h = nn.HybridSequential(*(GPTLayer(units, heads, drop) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(1e-5, in_channels=units)

    def forward(self, ids: Array, positions: Array | None = None, past: Sequence[Pair] | None = None) -> Any:
        x = self.drop(self.wte(ids) + self.wpe(counted(ids, past) if positions is None else positions))
        x, presents = self._layers(self.h, x, past)
        scores = nd.matmul(self.ln_f(x), nd.permute_dims(self.wte.weight.data(), (1, 0)))
        return scores if past is None else (scores, presents)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Angles by which pairs of numbers turn with each position (Su et al. 2021, arXiv 2104.09864). With a `factor`,
    long waves are stretched as Llama 3.1 has it: those longer than `original / low` by the factor, those shorter than
    `original / high` not at all, and between them by degrees."""

    size: int
    base: float = 10000.0
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def rates(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The angle for each position, float32 [size / 2]."""
        rates = self.base ** (-np.arange(0, self.size, 2) / self.size)
        turns = self.original * rates / (2 * np.pi)
        share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return np.asarray(rates * (share + (1 - share) / self.factor), np.float32)


class _LlamaAttention(HybridBlock):
    def __init__(self, units: int, heads: int, groups: int, size: int) -> None:
        super().__init__()
        self._heads, self._groups = heads, groups
        self.q_proj, self.o_proj = dense(units, heads * size, bias=False), dense(heads * size, units, bias=False)
        self.k_proj, self.v_proj = (dense(units, groups * size, bias=False) for _ in range(2))

    def forward(self, x: Array, past: Pair | None, turn: Pair) -> tuple[Array, Pair | None]:
        query = apply("RotaryEmbedding", self.q_proj(x), *turn, None, num_heads=self._heads)
        key = apply("RotaryEmbedding", self.k_proj(x), *turn, None, num_heads=self._groups)
        y, present = attended(
            query, key, self.v_proj(x), heads=self._heads, groups=self._groups, past=past, is_causal=1
        )
        return self.o_proj(y), present


class LlamaLayer(HybridBlock):
    """Attention with grouped queries and a gated product of dense layers, each normalised before and added."""

    def __init__(self, units: int, heads: int, groups: int, size: int, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(epsilon, in_channels=units) for _ in range(2))
        self.self_attn = _LlamaAttention(units, heads, groups, size)
        self.mlp = _Named(
            gate_proj=dense(units, hidden, bias=False), up_proj=dense(units, hidden, bias=False),
            down_proj=dense(hidden, units, bias=False),
        )  # fmt: skip

    def forward(self, x: Array, past: Pair | None, turn: Pair) -> tuple[Array, Pair | None]:
        y, present = self.self_attn(self.input_layernorm(x), past, turn)
        x = x + y
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(apply("Swish", self.mlp.gate_proj(y)) * self.mlp.up_proj(y)), present


class Llama(Decoder):
    """Llama (Touvron et al. 2023, arXiv 2302.13971 and 2307.09288), with fewer heads of keys and values than of queries
    from Llama 2 70B on (`groups`): 6,738,415,616 parameters for Llama 2 7B, 8,030,261,248 for Llama 3 8B, 1,235,814,400
    for Llama 3.2 1B (`tied`: one table for tokens and scores), 1,100,048,384 for TinyLlama, as Hugging Face's
    LlamaForCausalLM, whose names it has."""

    def __init__(
        self,
        units: int = 4096,
        layers: int = 32,
        heads: int = 32,
        groups: int = 32,
        hidden: int = 11008,
        *,
        vocabulary: int = 32000,
        size: int | None = None,
        base: float = 10000.0,
        epsilon: float = 1e-5,
        tied: bool = False,
        factor: float = 1.0,
    ) -> None:
        super().__init__()
        size = size or _heads(units, heads)
        if heads % groups:
            raise InputError(f"{heads} heads of queries share {groups} of keys", where="Llama", hint="a divisor")
        self.cache = (layers, groups, size)
        self._rates = Rotation(size, base, factor).rates()
        self.embed_tokens = nn.Embedding(vocabulary, units)
        self.layers = nn.HybridSequential(
            *(LlamaLayer(units, heads, groups, size, hidden, epsilon) for _ in range(layers))
        )
        self.norm = nn.RMSNorm(epsilon, in_channels=units)
        self.lm_head = None if tied else dense(units, vocabulary, bias=False)

    def forward(self, ids: Array, positions: Array | None = None, past: Sequence[Pair] | None = None) -> Any:
        places = counted(ids, past) if positions is None else positions
        angles = nd.expand_dims(places, axis=2).astype("float32") * nd.asarray(self._rates, device=ids.device)
        x, presents = self._layers(self.layers, self.embed_tokens(ids), past, (nd.cos(angles), nd.sin(angles)))
        x = self.norm(x)
        if self.lm_head is None:
            scores = nd.matmul(x, nd.permute_dims(self.embed_tokens.weight.data(), (1, 0)))
        else:
            scores = self.lm_head(x)
        return scores if past is None else (scores, presents)
