"""The networks of `mz.models`: sizes as in the literature; eager, hybridized and exported alike; weights of others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import mezzo as mz
from mezzo.gluon import Block, HybridBlock, Trainer
from mezzo.models.zoo.pixels import decoded, encoded
from mezzo.models.zoo.registry import MODELS, Model
from mezzo.nd.array import Array

from .peers import peer

LIGHT = 150e6  # parameters of networks that run at full size in `make soak`


def small(model: Model) -> HybridBlock:
    """A network of the kind, with few numbers."""
    mz.random.seed(0)
    return mz.models.get(model.name, **model.small).initialize("xavier")


def distinct() -> list[str]:
    """The names, without those whose small forms are one network: vit_tiny to vit_large."""
    seen: dict[str, str] = {}
    for name, model in MODELS.items():
        net = mz.models.get(name, **model.small)
        shapes = {n: p.shape for n, p in net.collect_params().items()}
        seen.setdefault(f"{type(net).__name__} {shapes}", name)
    return [*seen.values()]


def answers(found: Any) -> list[Array]:
    return [*found] if isinstance(found, tuple | list) else [found]


def close(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], tolerance: float) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


def test_the_list() -> None:
    assert mz.models.list() == [*MODELS]
    assert mz.models.list("vgg*") == ["vgg11", "vgg16", "vgg19"]
    with pytest.raises(mz.InputError, match=r"no model 'resnet5'(.|\n)*resnet50"):
        mz.models.get("resnet5")
    with pytest.raises(mz.InputError, match=r"no option 'depth'(.|\n)*it has layers, classes"):
        mz.models.get("resnet50", depth=3)


@pytest.mark.parametrize("name", MODELS)
def test_as_many_parameters_as_the_literature_says(name: str) -> None:
    """At full size, without a byte for them."""
    net = mz.models.get(name)
    assert mz.models.count(net) == MODELS[name].parameters
    assert all(p._data is None for p in net.collect_params().values())


def test_sizes_that_other_libraries_tell() -> None:
    assert mz.models.count(mz.models.get("ssd300", classes=91)) == 35_641_826  # torchvision's ssd300_vgg16
    assert len(mz.models.get("ssd300").anchors) == 8732
    assert mz.models.count(mz.models.get("vgg16", norm=True)) == 138_365_992  # torchvision's vgg16_bn
    assert mz.models.count(mz.models.get("bert_base", classes=2)) == 109_483_778  # BertForSequenceClassification


@pytest.mark.parametrize("name", distinct())
def test_one_network_eager_and_hybridized_and_exported_and_trained(name: str, tmp_path: Path) -> None:
    """Small forms of all networks."""
    model = MODELS[name]
    net = small(model)
    inputs = model.examples(2, side=model.small_side, **model.small)
    arrays = [mz.nd.asarray(x) for x in inputs]
    eager = [y.asnumpy() for y in answers(net(*arrays))]
    net.hybridize(fullgraph=True)
    for found, wanted in zip(answers(net(*arrays)), eager, strict=True):
        close(found.asnumpy(), wanted, 1e-4)
    net.export(tmp_path / "net.onnx", *arrays)
    for found, wanted in zip(run_by_ort(tmp_path / "net.onnx", inputs), eager, strict=True):
        close(found, wanted, 1e-3)

    params = {n: p for n, p in net.collect_params().items() if p.grad_req != "null"}
    before = {n: p.data().asnumpy().copy() for n, p in params.items()}
    trainer = Trainer(params, "sgd", {"learning_rate": 0.1})
    with mz.autograd.record():
        loss = sum((mz.nd.mean((y - 1) ** 2) for y in answers(net(*arrays))), mz.nd.zeros(()))
    loss.backward()
    trainer.step(1)
    assert np.isfinite(loss.item())
    still = [n for n, p in params.items() if np.array_equal(p.data().asnumpy(), before[n])]
    # biases and scales before a normalisation, or of keys before a softmax, have no effect but by rounding
    assert not [n for n in still if before[n].ndim > 1], still


def run_by_ort(path: Path, inputs: list[Any]) -> list[Any]:
    ort = peer("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options)
    return list(session.run(None, dict(zip([i.name for i in session.get_inputs()], inputs, strict=True))))


@pytest.mark.soak
@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if m.parameters < LIGHT])
def test_at_full_size(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    mz.random.seed(0)
    net = mz.models.get(name).initialize("xavier")
    inputs = model.examples(1)
    arrays = [mz.nd.asarray(x) for x in inputs]
    eager = [y.asnumpy() for y in answers(net(*arrays))]
    net.hybridize(fullgraph=True)
    for found, wanted in zip(answers(net(*arrays)), eager, strict=True):
        close(found.asnumpy(), wanted, 1e-3)
    net.export(tmp_path / "net.onnx", *arrays)
    for found, wanted in zip(run_by_ort(tmp_path / "net.onnx", inputs), eager, strict=True):
        close(found, wanted, 5e-3)


# -- weights ----------------------------------------------------------------------------------------------------------


# Of each network that has weights elsewhere: names that stand in such files, with the sizes of its small form.
FIELD: dict[str, dict[str, tuple[int, ...]]] = {
    "alexnet_owt": {"features.0.weight": (8, 3, 11, 11), "classifier.1.weight": (256, 16), "classifier.6.bias": (10,)},
    "vgg16": {"features.28.weight": (32, 32, 3, 3), "classifier.0.weight": (256, 32), "classifier.6.weight": (10, 256)},
    "squeezenet1_1": {"features.3.squeeze.weight": (8, 32, 1, 1), "features.12.expand3x3.bias": (128,)},
    "resnet50": {
        "bn1.running_var": (8,), "layer1.0.downsample.1.weight": (32,), "layer3.1.conv3.weight": (128, 32, 1, 1),
        "fc.weight": (10, 256),
    },
    "resnet18_v2": {"stem.conv.weight": (8, 3, 7, 7), "stages.1.blocks.0.downsample.conv.weight": (16, 8, 1, 1),
                    "norm.bias": (64,), "head.fc.weight": (10, 64)},
    "mobilenet_v2": {"conv_stem.weight": (8, 3, 3, 3), "blocks.0.0.conv_dw.weight": (8, 1, 3, 3),
                     "blocks.1.0.conv_pwl.weight": (8, 48, 1, 1), "conv_head.weight": (1280, 40, 1, 1)},
    "mobilenet_v3_small": {"blocks.0.0.se.conv_reduce.bias": (8,), "blocks.5.0.conv.weight": (72, 16, 1, 1),
                           "blocks.5.0.bn1.running_mean": (72,), "conv_head.bias": (1024,)},
    "densenet121": {"features.denseblock2.denselayer2.norm1.weight": (24,), "features.transition1.norm.weight": (32,),
                    "features.norm5.running_mean": (36,), "classifier.bias": (10,)},
    "inception_v3": {"Conv2d_1a_3x3.bn.running_var": (8,), "Mixed_5b.branch3x3dbl_3.conv.weight": (8, 8, 3, 3),
                     "Mixed_6b.branch7x7dbl_2.conv.weight": (8, 8, 7, 1), "Mixed_7c.branch3x3_2b.bn.bias": (24,)},
    "unet": {"inc.double_conv.4.running_mean": (8,), "down4.maxpool_conv.1.double_conv.0.weight": (128, 64, 3, 3),
             "up1.up.weight": (128, 64, 2, 2), "up4.conv.double_conv.1.bias": (8,), "outc.conv.bias": (2,)},
    "ssd300": {"vgg.21.weight": (64, 64, 3, 3), "vgg.31.weight": (128, 64, 3, 3), "L2Norm.weight": (64,),
               "extras.7.bias": (32,), "loc.1.weight": (24, 128, 3, 3), "conf.5.bias": (16,)},
    "vit_tiny": {"cls_token": (1, 1, 32), "pos_embed": (1, 17, 32), "patch_embed.proj.bias": (32,),
                 "blocks.1.attn.qkv.weight": (96, 32), "blocks.0.norm1.weight": (32,), "head.weight": (10, 32)},
    "bert_base": {"embeddings.token_type_embeddings.weight": (2, 32), "embeddings.LayerNorm.bias": (32,),
                  "encoder.layer.1.attention.self.query.weight": (32, 32), "pooler.dense.bias": (32,),
                  "encoder.layer.0.attention.output.LayerNorm.weight": (32,)},
    "gpt2": {"wte.weight": (50, 32), "h.1.attn.c_attn.weight": (32, 96), "h.0.mlp.c_fc.weight": (32, 128),
             "ln_f.bias": (32,)},
    "llama3_8b": {"model.embed_tokens.weight": (50, 32), "model.layers.1.self_attn.k_proj.weight": (16, 32),
                  "model.layers.0.input_layernorm.weight": (32,), "lm_head.weight": (50, 32)},
    "lstm_medium": {"encoder.weight": (50, 16), "rnn.weight_hh_l1": (64, 16), "rnn.bias_ih_l0": (64,)},
}  # fmt: skip
PREFIXED = re.compile(r"lm_head")  # what stands outside of Llama's `model.`


def field_file(name: str, path: Path, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A file of random weights as the field writes them: made from our names by what the field calls otherwise."""
    from safetensors.numpy import save_file

    rng, stored = np.random.default_rng(3), {}
    for ours, p in mz.models.get(name, **{**MODELS[name].small, **options}).collect_params().items():
        theirs, shape = ours.replace(".gamma", ".weight").replace(".beta", ".bias"), p.shape
        assert shape is not None
        if name == "llama3_8b" and not PREFIXED.match(theirs):
            theirs = f"model.{theirs}"
        if name == "gpt2" and re.search(r"c_\w+\.weight", theirs):
            shape = shape[::-1]
        if found := re.fullmatch(r"rnn\.l(\d)_(i2h|h2h)_(weight)", theirs):
            theirs, shape = f"rnn.weight_{found[2][0]}h_l{found[1]}", shape[1:]
        if found := re.fullmatch(r"rnn\.l(\d)_bias", theirs):
            half = (shape[1] // 2,)
            stored[f"rnn.bias_ih_l{found[1]}"], stored[f"rnn.bias_hh_l{found[1]}"] = rng.random((2, *half), np.float32)
            continue
        stored[theirs] = np.float32(0.1) + rng.random(shape, np.float32)
        if theirs.endswith("running_var") and name not in ("unet",):
            stored[theirs.replace("running_var", "num_batches_tracked")] = np.array(1)
    save_file(stored, path)
    return stored


@pytest.mark.parametrize("name", FIELD)
def test_weights_under_the_names_of_the_field(name: str, tmp_path: Path) -> None:
    stored = field_file(name, tmp_path / "weights.safetensors")
    for known, shape in FIELD[name].items():
        assert stored[known].shape == shape
    net = mz.models.get(name, weights=tmp_path / "weights.safetensors", **MODELS[name].small)
    held = [p.data().asnumpy() for p in net.collect_params().values()]
    kept = [a for n, a in stored.items() if "num_batches" not in n]
    assert sum(a.size for a in held) == sum(a.size for a in kept)
    assert_allclose(sum(a.sum(dtype=np.float64) for a in held), sum(a.sum(dtype=np.float64) for a in kept), rtol=1e-9)
    for ours, p in net.collect_params().items():
        theirs = ours.replace(".gamma", ".weight").replace(".beta", ".bias")
        if theirs in stored and stored[theirs].shape == p.shape and "c_proj" not in theirs:
            assert_array_equal(p.data().asnumpy(), stored[theirs])


def test_weights_of_torch_modules_answer_as_torch_does(tmp_path: Path) -> None:
    """LSTM layers, whose gates have another order, and a residual block with its batch normalisation."""
    torch = peer("torch")
    from safetensors.torch import save_file

    torch.manual_seed(0)
    theirs = torch.nn.ModuleDict(
        {"encoder": torch.nn.Embedding(50, 16), "rnn": torch.nn.LSTM(16, 16, 2, batch_first=True),
         "decoder": torch.nn.Linear(16, 50)}
    )  # fmt: skip
    save_file(theirs.state_dict(), tmp_path / "lstm.safetensors")
    net = mz.models.get("lstm_medium", weights=tmp_path / "lstm.safetensors", **MODELS["lstm_medium"].small)
    ids = np.random.default_rng(0).integers(0, 50, (3, 7))
    with torch.no_grad():
        wanted = theirs["decoder"](theirs["rnn"](theirs["encoder"](torch.tensor(ids)))[0]).numpy()
    close(net(mz.nd.asarray(ids)).asnumpy(), wanted, 1e-5)
    one, states = net(mz.nd.asarray(ids[:, :4]), net.no_states(3))
    two, _ = net(mz.nd.asarray(ids[:, 4:]), states)
    close(np.concatenate([one.asnumpy(), two.asnumpy()], 1), wanted, 1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["gpt2", "llama3_8b", "llama3_2_1b", "bert_base"])
def test_weights_of_transformers_answer_as_transformers_does(name: str, tmp_path: Path) -> None:
    torch, t = peer("torch"), peer("transformers")
    from safetensors.torch import save_file

    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
    llama = {**size, "num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-5}
    stretched = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
                 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    torch.manual_seed(0)
    theirs = {
        "gpt2": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=0, eos_token_id=0)
        ),
        "bert_base": lambda: t.BertModel(t.BertConfig(**size, intermediate_size=128)),
        "llama3_8b": lambda: t.LlamaForCausalLM(
            t.LlamaConfig(**llama, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
        ),
        "llama3_2_1b": lambda: t.LlamaForCausalLM(
            t.LlamaConfig(**llama, rope_parameters=stretched, tie_word_embeddings=True, max_position_embeddings=131072)
        ),
    }[name]().eval()
    save_file({n: v.clone() for n, v in theirs.state_dict().items()}, tmp_path / "w.safetensors")
    net = mz.models.get(name, weights=tmp_path / "w.safetensors", **MODELS[name].small)
    ids = np.random.default_rng(0).integers(0, 50, (2, 40))
    with torch.no_grad():
        wanted = theirs(torch.tensor(ids))[0].numpy()
    close(answers(net(mz.nd.asarray(ids)))[0].asnumpy(), wanted, 1e-5)


def test_a_new_head_on_old_weights(tmp_path: Path) -> None:
    small_one = dict(MODELS["resnet18"].small)
    field_file("resnet18", tmp_path / "w.safetensors")
    net = mz.models.get("resnet18", weights=tmp_path / "w.safetensors", **{**small_one, "classes": 3})
    assert net.conv1.weight.data().shape == (8, 3, 7, 7)
    kept = net.conv1.weight.data().asnumpy().copy()
    assert net.initialize("xavier")(mz.nd.zeros((1, 3, 32, 32))).shape == (1, 3)
    assert_array_equal(net.conv1.weight.data().asnumpy(), kept)


def test_weights_in_several_files_and_in_16_bits(tmp_path: Path) -> None:
    import ml_dtypes
    from safetensors.numpy import load_file, save_file

    field_file("llama3_8b", tmp_path / "all.safetensors")
    stored = {n: a.astype(ml_dtypes.bfloat16) for n, a in load_file(tmp_path / "all.safetensors").items()}
    names = sorted(stored)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({n: stored[n] for n in part}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: f for f, part in shards.items() for n in part}}))
    for given in (index, [tmp_path / f for f in shards]):
        net = mz.models.get("llama3_8b", weights=given, **MODELS["llama3_8b"].small)
        assert_array_equal(net.lm_head.weight.data().asnumpy(), stored["lm_head.weight"].astype(np.float32))
    index.write_text(json.dumps({"weight_map": {"x": "../all.safetensors"}}))
    with pytest.raises(mz.ModelError, match="another folder"):
        mz.models.get("llama3_8b", weights=index, **MODELS["llama3_8b"].small)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "w.safetensors"
    field_file("lenet", path)
    stored = load_file(path)
    stored["extra.weight"] = stored.pop("features.0.weight")
    stored["features.3.weight"] = np.zeros((16, 6, 3, 3), np.float32)
    save_file(stored, path)
    with pytest.raises(mz.InputError) as told:
        mz.models.get("lenet", weights=path)
    for part in ("lacks 'features.0.weight'", "(16, 6, 3, 3)", "has no 'extra.weight'"):
        assert part in str(told.value)
    with pytest.raises(mz.ModelError, match="no weights can be read"):
        mz.models.get("lenet", weights=tmp_path / "absent.safetensors")
    path.write_bytes(b"\x80\x04]q\x00.")  # a pickle
    with pytest.raises(mz.ModelError, match="no weights can be read"):
        mz.models.get("lenet", weights=path)


# -- what single networks can -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama3_8b"])
def test_a_decoder_goes_on_from_its_cache(name: str, tmp_path: Path) -> None:
    """By hand, as a file that `mz.generate` runs, and in ONNX Runtime."""
    net: Any = small(MODELS[name])
    ids = np.random.default_rng(0).integers(0, 50, (2, 9))
    wanted = net(mz.nd.asarray(ids)).asnumpy()
    past, found = net.no_past(2), []
    for begin, end in ((0, 5), (5, 8), (8, 9)):
        scores, past = net(mz.nd.asarray(ids[:, begin:end]), None, past)
        found.append(scores.asnumpy())
    close(np.concatenate(found, 1), wanted, 1e-5)

    net.export_cached(tmp_path / "decoder.onnx")
    text = [5, 6, 7]
    for _ in range(6):
        text.append(int(net(mz.nd.asarray(np.array([text])))[0, -1].asnumpy().argmax()))
    session = mz.load(tmp_path / "decoder.onnx", cache="auto", capacity=32)
    assert [*mz.generate(session, text[:3], 6)] == text[3:]
    _, heads, size = net.cache
    empty = [np.zeros((2, heads, 0, size), np.float32)] * (2 * net.cache[0])
    places = np.broadcast_to(np.arange(9), (2, 9))
    logits, *presents = run_by_ort(tmp_path / "decoder.onnx", [ids[:, :6], places[:, :6], *empty])
    close(logits, wanted[:, :6], 1e-4)
    logits, *_ = run_by_ort(tmp_path / "decoder.onnx", [ids[:, 6:], places[:, 6:], *presents])
    close(logits, wanted[:, 6:], 1e-4)


def test_bert_leaves_padding_out() -> None:
    net = small(MODELS["bert_base"])
    ids = np.random.default_rng(0).integers(0, 50, (1, 9))
    mask = np.array([[1] * 6 + [0] * 3])
    alone = net(mz.nd.asarray(ids[:, :6]))[0].asnumpy()
    ids[:, 6:] = 0
    close(net(mz.nd.asarray(ids), mz.nd.asarray(mask))[0].asnumpy()[:, :6], alone, 1e-5)
    assert mz.models.get("bert_base", **MODELS["bert_base"].small, classes=3).initialize()(
        mz.nd.asarray(ids)
    ).shape == (1, 3)


def test_unet_takes_odd_sizes() -> None:
    net = small(MODELS["unet"])
    assert net(mz.nd.zeros((1, 3, 37, 50))).shape == (1, 2, 37, 50)


def test_ssd_says_what_it_was_told() -> None:
    """Targets of boxes, taken as answers, are these boxes again."""
    net: Any = mz.models.get("ssd300", classes=4)
    boxes = [
        np.array([[0.1, 0.2, 0.4, 0.6], [0.5, 0.5, 0.95, 0.9]]),
        np.zeros((0, 4)),
        np.array([[0.0, 0.0, 0.02, 0.02]]),
    ]
    classes, offsets = net.targets(boxes, [[2, 3], [], [1]])
    assert classes.shape == (3, 8732)
    assert (classes > 0).any(1).tolist() == [True, False, True]
    scores = 20 * np.eye(4, dtype=np.float32)[classes]
    for (found, names, sure), wanted, kinds in zip(
        net.detections(scores, offsets), boxes, ([2, 3], [], [1]), strict=True
    ):
        order = np.argsort(names)
        assert names[order].tolist() == kinds
        assert_allclose(found[order], np.reshape(wanted, (-1, 4)), atol=1e-5)
        assert (sure > 0.9).all()
    places, known = net.anchors[:2], np.array(boxes[0], np.float32)
    assert_allclose(decoded(encoded(known, places), places), known, atol=1e-5)
    with pytest.raises(mz.InputError, match="images of 200 pixels"):
        mz.models.get("ssd300", image=200)


def test_names_of_an_export(tmp_path: Path) -> None:
    net: Block = small(MODELS["lenet"])
    x = mz.nd.zeros((2, 1, 28, 28))
    net.export(tmp_path / "net.onnx", x, dynamic={0: "batch"}, input_names=["image"], output_names=["scores"])
    session = mz.load(tmp_path / "net.onnx")
    assert [*session.run({"image": np.zeros((3, 1, 28, 28), np.float32)})] == ["scores"]
    for names, why in ((["a", "b"], "a, b for 1 outputs"), (["classifier.2.bias"], "value inside")):
        with pytest.raises(mz.InputError, match=why):
            net.export(tmp_path / "net.onnx", x, output_names=names)
