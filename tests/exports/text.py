"""Architectures that read text, from transformers, made small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .answers import answers, remembers
from .architecture import Architecture, Read

WORDS = 60
LENGTHS = ({"length": 7}, {"length": 3}, {"length": 19})
IDS = Read("input_ids", ("batch", "length"), below=WORDS)
SEEN = Read("attention_mask", ("batch", "length"), mask=True)
WIDTHS = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def reads(
    name: str, make: Callable[[Any], Any], *returns: str, more: tuple[Read, ...] = (SEEN,), **said: Any
) -> Architecture:
    """An architecture that reads words, and which of them count."""
    given = (IDS, *more)

    def build() -> Any:
        import transformers

        return answers(make(transformers), tuple(r.name for r in given), returns)

    return Architecture(name, build, given, returns, LENGTHS, **said)


def goes_on(name: str, make: Callable[[Any], Any], heads: int, depth: int) -> Architecture:
    """A decoder of two layers that goes on from the keys and values of what it has seen."""
    before = [f"past.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    after = tuple(n.replace("past", "now") for n in before)
    given = (
        *(IDS, Read("attention_mask", ("batch", "total"), mask=True)),
        *(Read(n, ("batch", heads, "past", depth)) for n in before),
    )

    def build() -> Any:
        import transformers

        return remembers(make(transformers), 2, ("input_ids", "attention_mask"), ("logits",))

    sizes = [{"length": n, "past": past, "total": n + past} for n, past in ((4, 6), (1, 9), (3, 13))]
    return Architecture(name, build, given, ("logits", *after), tuple(sizes))


def bert(t: Any) -> Any:
    return t.BertForMaskedLM(t.BertConfig(**WIDTHS))


def roberta(t: Any) -> Any:
    return t.RobertaForSequenceClassification(t.RobertaConfig(**WIDTHS, num_labels=3))


def albert(t: Any) -> Any:
    return t.AlbertModel(t.AlbertConfig(**WIDTHS, embedding_size=16))


def electra(t: Any) -> Any:
    return t.ElectraForTokenClassification(t.ElectraConfig(**WIDTHS, embedding_size=16, num_labels=5))


def distilbert(t: Any) -> Any:
    return t.DistilBertForQuestionAnswering(
        t.DistilBertConfig(
            vocab_size=WORDS, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64, pad_token_id=0
        )
    )


def deberta(t: Any) -> Any:
    return t.DebertaV2ForSequenceClassification(
        t.DebertaV2Config(
            **WIDTHS, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], num_labels=3,
            norm_rel_ebd="layer_norm", share_att_key=True, type_vocab_size=0, position_biased_input=False,
        )
    )  # fmt: skip


def mpnet(t: Any) -> Any:
    return t.MPNetModel(t.MPNetConfig(**{**WIDTHS, "pad_token_id": 1}))


def fnet(t: Any) -> Any:
    return t.FNetModel(
        t.FNetConfig(
            vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, intermediate_size=64, max_position_embeddings=64
        )
    )


def gpt2(t: Any) -> Any:
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=64))


def llama(t: Any) -> Any:
    return t.LlamaForCausalLM(t.LlamaConfig(**WIDTHS, num_key_value_heads=2))


def qwen3(t: Any) -> Any:
    return t.Qwen3ForCausalLM(t.Qwen3Config(**WIDTHS, num_key_value_heads=2, head_dim=8))


def gemma(t: Any) -> Any:
    return t.GemmaForCausalLM(t.GemmaConfig(**WIDTHS, num_key_value_heads=1, head_dim=8))


def phi(t: Any) -> Any:
    return t.PhiForCausalLM(t.PhiConfig(**WIDTHS, partial_rotary_factor=0.5))


def neox(t: Any) -> Any:
    return t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**WIDTHS))


def opt(t: Any) -> Any:
    return t.OPTForCausalLM(
        t.OPTConfig(
            vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
            max_position_embeddings=64, word_embed_proj_dim=32,
        )
    )  # fmt: skip


def mixtral(t: Any) -> Any:
    config = t.MixtralConfig(**WIDTHS, num_key_value_heads=2, num_local_experts=4)
    return t.MixtralForCausalLM._from_config(config, experts_implementation="batched_mm")


def mamba() -> Any:
    import transformers as t

    sizes = {"vocab_size": WORDS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}
    return answers(t.MambaForCausalLM(t.MambaConfig(**sizes, use_cache=False)), ("input_ids",), ("logits",))


TO_LENGTHS = tuple({"length": n, "said": m} for n, m in ((7, 4), (3, 1), (19, 11)))
SAID = Read("decoder_input_ids", ("batch", "said"), below=WORDS)


def answers_to(name: str, make: Callable[[Any], Any]) -> Architecture:
    """An encoder and a decoder, which reads what has been said so far."""

    def build() -> Any:
        import transformers

        return answers(
            make(transformers), ("input_ids", "attention_mask", "decoder_input_ids"), ("logits",), **NO_CACHE
        )

    return Architecture(name, build, (IDS, SEEN, SAID), ("logits",), TO_LENGTHS)


NO_CACHE = {"use_cache": False}


def t5(t: Any) -> Any:
    return t.T5ForConditionalGeneration(
        t.T5Config(
            vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
            relative_attention_num_buckets=8, relative_attention_max_distance=16,
        )
    )  # fmt: skip


def bart(t: Any) -> Any:
    return t.BartForConditionalGeneration(
        t.BartConfig(
            vocab_size=WORDS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
            pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2,
        )
    )  # fmt: skip


TEXT = (
    reads("BERT", bert, "logits", more=(SEEN, Read("token_type_ids", ("batch", "length"), below=2))),
    reads("RoBERTa", roberta, "logits"),
    reads("ALBERT", albert, "last_hidden_state", "pooler_output"),
    reads("ELECTRA", electra, "logits"),
    reads("DistilBERT", distilbert, "start_logits", "end_logits"),
    reads("DeBERTa v2", deberta, "logits"),
    reads("MPNet", mpnet, "last_hidden_state"),
    reads("FNet", fnet, "last_hidden_state", more=(), exporters=("dynamo",), excused="no Fourier transform"),
    goes_on("GPT-2", gpt2, 4, 8),
    goes_on("Llama", llama, 2, 8),
    goes_on("Qwen3", qwen3, 2, 8),
    goes_on("Gemma", gemma, 1, 8),
    goes_on("Phi", phi, 4, 8),
    goes_on("GPT-NeoX", neox, 4, 8),
    goes_on("OPT", opt, 4, 8),
    goes_on("Mixtral", mixtral, 2, 8),
    # both exporters write the steps of its scan one by one, as many as the example has
    Architecture("Mamba", mamba, (Read("input_ids", ("batch", 7), below=WORDS),), ("logits",), ({},)),
    answers_to("T5", t5),
    answers_to("BART", bart),
)
