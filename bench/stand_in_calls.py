"""One call of each package that bench/stand_in.py compares: models and examples of the packages themselves; where their
weights lie on a hub, a network of the same inputs and outputs with random ones is built here.

`python bench/stand_in_calls.py NAME` prints a line of JSON: what the package answered, the milliseconds until the first
answer from the import on, the median of later calls, and the peak of memory.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], Any]
SIZE = 16000  # samples in a second of sound


def _page() -> Any:
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (640, 200), "white")
    for row, text in enumerate(("Hello world 2026", "A second line", "and 3 words")):
        ImageDraw.Draw(page).text((20, 10 + 60 * row), text, fill="black", font=ImageFont.load_default(36))
    return page


def _sound(seconds: int = 4) -> Any:
    time_ = np.arange(SIZE * seconds) / SIZE
    voice = sum(np.sin(2 * np.pi * f * time_) / i for i, f in enumerate((140, 280, 420, 2200), 1))
    return (voice * (np.sin(2 * np.pi * 1.5 * time_) > 0) * 0.2).astype(np.float32)


def _graph(build: Callable[[Any, np.random.Generator], list[Any]], inputs: dict[str, Any], path: Path) -> str:
    """Write a model that `build` describes with onnx.helper; `inputs` are element types and shapes."""
    import onnx
    from onnx import helper as h

    kinds = {"f": onnx.TensorProto.FLOAT, "i": onnx.TensorProto.INT64}
    rng, weights = np.random.default_rng(0), []

    def weight(name: str, *shape: int) -> str:
        array = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(array, name))
        return name

    nodes, outputs = build(weight, rng)
    graph = h.make_graph(
        nodes,
        "random",
        [h.make_tensor_value_info(n, kinds[k], s) for n, (k, s) in inputs.items()],
        [h.make_tensor_value_info(n, kinds[k], s) for n, (k, s) in outputs.items()],
        weights,
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])
    model.ir_version = 8
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return str(path)


def _encoder(path: Path, vocabulary: int = 64, width: int = 384, rows: int = 512) -> str:
    """Tokens and mask in, a vector for each token out: an embedding and four layers of a perceptron."""
    from onnx import helper as h

    def build(weight: Any, rng: Any) -> Any:
        nodes = [h.make_node("Gather", [weight("table", vocabulary, width), "input_ids"], ["x0"])]
        for i in range(4):
            nodes += [
                h.make_node("MatMul", [f"x{i}", weight(f"w{i}", width, rows)], [f"h{i}"]),
                h.make_node("Tanh", [f"h{i}"], [f"t{i}"]),
                h.make_node("MatMul", [f"t{i}", weight(f"v{i}", rows, width)], [f"y{i}"]),
                h.make_node("Add", [f"x{i}", f"y{i}"], [f"x{i + 1}"]),
            ]
        nodes += [
            h.make_node("Cast", ["attention_mask"], ["mask"], to=1),
            h.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
            h.make_node("Mul", ["x4", "wide"], ["last_hidden_state"]),
        ]
        nodes.insert(0, h.make_node("Constant", [], ["last"], value_ints=[-1]))
        return nodes, {"last_hidden_state": ("f", ["batch", "length", width])}

    return _graph(build, {n: ("i", ["batch", "length"]) for n in ("input_ids", "attention_mask")}, path)


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"a the cat dog sat on mat and ran far over one two lazy fox".split()]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    about = {"model_type": "bert", "hidden_size": 384, "pad_token_id": 0, "vocab_size": 64, "num_hidden_layers": 2}
    more = {"intermediate_size": 64, "num_attention_heads": 2, "architectures": ["BertModel"]}
    (folder / "config.json").write_text(json.dumps({**about, **more}))
    tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    more = {"model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokens, **more}))
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))


TEXTS = ["the cat sat on the mat", "a lazy dog ran far over", "one fox and two", "the mat"] * 4


def magika(folder: Path) -> Call:
    from magika import Magika

    texts = [b"import os\nfor i in range(3):\n    print(os.getcwd(), i)\n" * 4, b"<!doctype html><p>hello</p>" * 9]
    texts += [b"#include <stdio.h>\nint main(void) { return 0; }\n" * 5, b'{"a": [1, 2, {"b": null}]}' * 3]
    kinds = Magika()
    return lambda: [(str(f.output.label), float(f.score)) for f in map(kinds.identify_bytes, texts)]


def silero_vad(folder: Path) -> Call:
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    model, sound = load_silero_vad(onnx=True), torch.from_numpy(_sound())

    def call() -> Any:
        model.reset_states()
        likely = [float(model(sound[i : i + 512], SIZE)) for i in range(0, SIZE, 512) if i + 512 <= SIZE]
        return [likely, [list(part.values()) for part in get_speech_timestamps(sound, model)]]

    return call


def rapidocr_onnxruntime(folder: Path) -> Call:
    from rapidocr_onnxruntime import RapidOCR

    reader, page = RapidOCR(), np.array(_page())
    return lambda: [(box, text, float(score)) for box, text, score in reader(page)[0]]


def rapidocr(folder: Path) -> Call:
    from rapidocr import RapidOCR

    reader, page = RapidOCR(), np.array(_page())

    def call() -> Any:
        read = reader(page)
        return [read.boxes.tolist(), list(read.txts), [float(s) for s in read.scores]]

    return call


def nudenet(folder: Path) -> Call:
    from nudenet import NudeDetector

    path = folder / "page.png"
    _page().save(path)
    detector = NudeDetector()
    raw = detector.onnx_session

    def call() -> Any:
        rng = np.random.default_rng(0)
        out = raw.run(None, {detector.input_name: rng.random((1, 3, 320, 320), np.float32)})
        return [detector.detect(str(path)), [float(np.abs(o).mean()) for o in out]]

    return call


def ddddocr(folder: Path) -> Call:
    import io

    from ddddocr import DdddOcr

    reader, finder = DdddOcr(show_ad=False), DdddOcr(det=True, ocr=False, show_ad=False)
    whole, line = io.BytesIO(), io.BytesIO()
    _page().save(whole, "PNG")
    _page().crop((0, 0, 400, 64)).save(line, "PNG")
    return lambda: [reader.classification(line.getvalue()), finder.detection(whole.getvalue())]


def basic_pitch(folder: Path) -> Call:
    import wave

    from basic_pitch import FilenameSuffix, build_icassp_2022_model_path
    from basic_pitch.inference import Model, predict

    path, sound = folder / "sound.wav", _sound()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SIZE)
        file.writeframes((sound * 32767).astype("<i2").tobytes())
    model = Model(build_icassp_2022_model_path(FilenameSuffix.onnx))

    def call() -> Any:
        out, _, notes = predict(str(path), model)
        return [
            [float(np.mean(out[k])) for k in sorted(out)],
            [[float(v) for v in n[:4]] for n in sorted(notes, key=str)],
        ]

    return call


def piper(folder: Path) -> Call:
    from piper.hebrew import NakdimonDiacritizer
    from piper.tashkeel import TashkeelDiacritizer

    arabic, hebrew = TashkeelDiacritizer(), NakdimonDiacritizer()
    return lambda: [arabic("بسم الله الرحمن الرحيم"), hebrew("שלום עולם זה מבחן קצר")]


def faster_whisper(folder: Path) -> Call:
    from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model

    sound, model = _sound(), get_vad_model()
    padded = np.pad(sound, (0, -sound.size % 512))
    return lambda: [
        model(padded).ravel().tolist(),
        [list(s.values()) for s in get_speech_timestamps(sound, VadOptions(min_silence_duration_ms=100))],
    ]


def fastembed(folder: Path) -> Call:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    _encoder(folder / "model.onnx")
    _tokenizer(folder)
    TextEmbedding.add_custom_model(
        model="random/encoder",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="random/encoder"),
        dim=384,
        model_file="model.onnx",
    )
    model = TextEmbedding("random/encoder", specific_model_path=str(folder))
    return lambda: [e.tolist() for e in model.embed(TEXTS)]


def _convolutions(path: Path, side: Any, name: str, channels: int = 16, last: int = 1, act: str = "Sigmoid") -> str:
    from onnx import helper as h

    def build(weight: Any, rng: Any) -> Any:
        nodes, value, wide = [], name, 3
        for i, out in enumerate((channels, channels, last)):
            w = weight(f"w{i}", out, wide, 3, 3)
            nodes.append(h.make_node("Conv", [value, w], [f"c{i}"], pads=[1, 1, 1, 1]))
            nodes.append(h.make_node("Relu" if i < 2 else act, [f"c{i}"], [f"a{i}"]))
            value, wide = f"a{i}", out
        return nodes, {value: ("f", ["batch", last, side, side])}

    return _graph(build, {name: ("f", ["batch", 3, side, side])}, path)


def rembg(folder: Path) -> Call:
    from rembg import new_session, remove

    os.environ["U2NET_HOME"] = str(folder)
    path = _convolutions(folder / "u2net.onnx", 320, "input")
    session, page = new_session("u2net_custom", model_path=path), _page()
    return lambda: np.asarray(remove(page, session=session, only_mask=True)).mean(0).tolist()


def insightface(folder: Path) -> Call:
    from insightface.model_zoo import get_model
    from onnx import helper as h

    def build(weight: Any, rng: Any) -> Any:
        nodes, value, wide = [], "data", 3
        for i, out in enumerate((16, 32, 64)):
            nodes.append(h.make_node("Conv", [value, weight(f"w{i}", out, wide, 3, 3)], [f"c{i}"], strides=[2, 2]))
            nodes.append(h.make_node("Relu", [f"c{i}"], [f"a{i}"]))
            value, wide = f"a{i}", out
        nodes.append(h.make_node("GlobalAveragePool", [value], ["p"]))
        nodes.append(h.make_node("Flatten", ["p"], ["f"]))
        nodes.append(h.make_node("MatMul", ["f", weight("e", 64, 512)], ["embedding"]))
        return nodes, {"embedding": ("f", ["batch", 512])}

    path = _graph(build, {"data": ("f", ["batch", 3, 112, 112])}, folder / "w600k.onnx")
    model = get_model(path, providers=["CPUExecutionProvider"])
    model.prepare(ctx_id=-1)
    image = np.random.default_rng(0).integers(0, 255, (112, 112, 3), np.uint8)
    return lambda: [np.ravel(model.get_feat([image] * 4)).tolist(), list(model.input_size)]


def _iris() -> tuple[Any, Any]:
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    return x.astype(np.float32), y


def skl2onnx(folder: Path) -> Call:
    import onnxruntime as rt
    from skl2onnx import to_onnx
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    x, y = _iris()
    kinds = (
        make_pipeline(StandardScaler(), LogisticRegression()),
        GradientBoostingClassifier(random_state=0),
        SVC(probability=True, random_state=0),
    )
    sessions = [
        rt.InferenceSession(
            to_onnx(k.fit(x, y), x[:1], options={"zipmap": False}).SerializeToString(),
            providers=["CPUExecutionProvider"],
        )
        for k in kinds
    ]
    return lambda: [[out.tolist() for out in s.run(None, {"X": x})] for s in sessions]


def sentence_transformers(folder: Path) -> Call:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    _encoder(folder / "model.onnx")
    _tokenizer(folder)
    encoder = Transformer(str(folder), backend="onnx", model_args={"file_name": "model.onnx"})
    model = SentenceTransformer(modules=[encoder, Pooling(384)], device="cpu")
    return lambda: model.encode(TEXTS).tolist()


def optimum(folder: Path) -> Call:
    from optimum.onnxruntime import ORTModelForFeatureExtraction
    from transformers import AutoTokenizer

    _encoder(folder / "model.onnx")
    _tokenizer(folder)
    model = ORTModelForFeatureExtraction.from_pretrained(str(folder), file_name="model.onnx")
    tokens = AutoTokenizer.from_pretrained(str(folder))(TEXTS, padding=True, return_tensors="pt")
    return lambda: model(**tokens).last_hidden_state.numpy().ravel()[::97].tolist()


CALLS: dict[str, Callable[[Path], Call]] = {
    f.__name__: f
    for f in (
        *(magika, silero_vad, rapidocr_onnxruntime, rapidocr, nudenet, ddddocr, basic_pitch, piper, faster_whisper),
        *(fastembed, rembg, insightface, skl2onnx, sentence_transformers, optimum),
    )
}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
    np.asarray([0.0])
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        call = CALLS[sys.argv[1]](Path(folder))
        answer = call()
        first = time.perf_counter() - began
        taken = []
        while len(taken) < 5 or (sum(taken) < 2 and len(taken) < 50):
            at = time.perf_counter()
            again = call()
            taken.append(time.perf_counter() - at)
    import onnxruntime

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    ms = {"first_ms": first * 1e3, "ms": statistics.median(taken) * 1e3, "peak": peak}
    print(json.dumps({"answer": answer, "again": again, "by": onnxruntime.__name__, **ms}, default=str))


if __name__ == "__main__":
    main()
