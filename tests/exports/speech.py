"""Architectures that read sound, or pictures and words together, from transformers, made small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .answers import answers
from .architecture import Architecture, Read, Sizes

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SOUND = Read("input_values", ("batch", "samples"))
SAMPLES = ({"samples": 800}, {"samples": 431}, {"samples": 1300})


def hears(
    name: str, make: Callable[[Any], Any], given: tuple[Read, ...], returns: tuple[str, ...], sizes: tuple[Sizes, ...],
    **always: Any,
) -> Architecture:  # fmt: skip
    def build() -> Any:
        import transformers

        return answers(make(transformers), tuple(r.name for r in given), returns, **always)

    return Architecture(name, build, given, returns, sizes)


LAYERS = {
    "conv_dim": [16, 16, 16], "conv_stride": [5, 4, 2], "conv_kernel": [10, 8, 4], "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "vocab_size": 12, "mask_time_prob": 0.0,
}  # fmt: skip


def wav2vec2(t: Any) -> Any:
    return t.Wav2Vec2ForCTC(t.Wav2Vec2Config(**WIDTHS, **LAYERS))


def hubert(t: Any) -> Any:
    return t.HubertForCTC(t.HubertConfig(**WIDTHS, **LAYERS, feat_extract_norm="layer", do_stable_layer_norm=True))


def whisper(t: Any) -> Any:
    return t.WhisperForConditionalGeneration(
        t.WhisperConfig(
            vocab_size=60, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=20,
            max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )
    )  # fmt: skip


def spectrogram(t: Any) -> Any:
    return t.ASTForAudioClassification(
        t.ASTConfig(**WIDTHS, patch_size=8, frequency_stride=6, time_stride=6, max_length=40, num_mel_bins=16)
    )


def clip(t: Any) -> Any:
    words = {**WIDTHS, "vocab_size": 60, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1}
    return t.CLIPModel(
        t.CLIPConfig(
            text_config={**words, "pad_token_id": 0, "projection_dim": 24},
            vision_config={**WIDTHS, "image_size": 32, "patch_size": 8, "projection_dim": 24},
            projection_dim=24,
        )
    )


def siglip(t: Any) -> Any:
    return t.SiglipModel(
        t.SiglipConfig(
            text_config={**WIDTHS, "vocab_size": 60, "max_position_embeddings": 32, "projection_size": 32},
            vision_config={**WIDTHS, "image_size": 32, "patch_size": 8},
        )
    )


def encodec(t: Any) -> Any:
    return t.EncodecModel(
        t.EncodecConfig(
            num_filters=4, hidden_size=16, codebook_size=16, codebook_dim=16, upsampling_ratios=[4, 2],
            num_lstm_layers=1, target_bandwidths=[24.0], sampling_rate=24000,
        )
    ).encoder  # fmt: skip


WORDS = Read("input_ids", ("texts", "length"), below=60)
COUNTED = Read("attention_mask", ("texts", "length"), mask=True)
PICTURE = Read("pixel_values", ("batch", 3, 32, 32))
TEXTS = ({"texts": 2, "length": 5}, {"texts": 1, "length": 9}, {"texts": 3, "length": 3})
BOTH = ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")

SPEECH = (
    hears("wav2vec 2.0", wav2vec2, (SOUND,), ("logits",), SAMPLES),
    hears("HuBERT", hubert, (SOUND,), ("logits",), SAMPLES),
    hears(
        "Whisper", whisper,
        (
            Read("input_features", ("batch", 8, 40)),
            Read("decoder_input_ids", ("batch", "said"), below=60),
            Read("decoder_attention_mask", ("batch", "said"), mask=True),
        ),
        ("logits", "encoder_last_hidden_state"), ({"said": 3}, {"said": 1}, {"said": 8}), use_cache=False,
    ),
    hears(
        "Audio Spectrogram Transformer", spectrogram, (Read("input_values", ("batch", 40, 16)),), ("logits",),
        ({}, {}, {}),
    ),
    hears("CLIP", clip, (WORDS, COUNTED, PICTURE), BOTH, TEXTS),
    hears("SigLIP", siglip, (WORDS, COUNTED, PICTURE), BOTH, TEXTS),
)  # fmt: skip
