"""Index of operators by module. A module is imported on the first use of one of its operators: a program needs some ten
of three hundred, and a start is a third shorter.

Rules of gradients and standard forms may stand in a module beside the operator's own. Whoever asks for them loads all
modules first (`Operators.load`), as does whoever goes through all operators.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .op import Op

Key = tuple[str, str]  # domain, name

# Names of other domains than ONNX's own are written domain::name. tests/test_registry.py compares this with what is.
MODULES: dict[str, str] = {
    "nn.activations": """
        Sigmoid mezzo::SigmoidGrad Relu mezzo::ReluGrad LeakyRelu mezzo::LeakyReluGrad PRelu ThresholdedRelu
        mezzo::ThresholdedReluGrad Elu mezzo::EluGrad Selu mezzo::SeluGrad Celu mezzo::CeluGrad HardSigmoid
        mezzo::HardSigmoidGrad HardSwish mezzo::HardSwishGrad Swish mezzo::SwishGrad SwiGLU Softplus
        mezzo::SoftplusGrad Softsign mezzo::SoftsignGrad Mish mezzo::MishGrad Erf mezzo::ErfGrad Gelu
        mezzo::GeluGrad Shrink mezzo::ShrinkGrad
    """,
    "math.algebra": "Einsum Det mezzo::Cofactors",
    "nn.attention": "Attention ai.onnx.preview::FlexAttention",
    "math.bitwise": "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift BitCast",
    "core.broadcast": "mezzo::SumTo",
    "tensor.cast": "Cast CastLike",
    "tensor.control": "If mezzo::Raise Loop Scan",
    "nn.conv": "Conv ConvTranspose",
    "nn.conv_grads": "mezzo::ConvGradInput mezzo::ConvGradWeights",
    "nn.decoding": "RotaryEmbedding TensorScatter CausalConvWithState LinearAttention",
    "math.decompositions": "mezzo::Solve mezzo::PInv mezzo::SlogDet mezzo::Cholesky mezzo::Eigh mezzo::SVD mezzo::QR",
    "nn.deform": "DeformConv mezzo::DeformConvGrad Col2Im",
    "nn.detection": "NonMaxSuppression",
    "math.elementwise": """
        Add Sub Mul Div Pow mezzo::PowGrad mezzo::PowExponentGrad Neg Abs Exp Log Sqrt Reciprocal
        mezzo::ReciprocalGrad Floor Ceil Round Sign Mod Clip mezzo::ClipGrad Max Min mezzo::ExtremeGrad Sum Mean
        Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Not Where IsNaN IsInf
    """,
    "training.exchange": "mezzo::Emit mezzo::Await mezzo::SumRows",
    "quantization.fake_quantize": "mezzo::FakeQuantize mezzo::FakeQuantizeGrad mezzo::FakeQuantizeScaleGrad",
    "core.fused": "mezzo::ConvReluPool mezzo::Reorder mezzo::Fused",
    "tensor.generate": "Constant ConstantOfShape Range Shape Size NonZero OneHot EyeLike",
    "training.gradient": "ai.onnx.preview.training::Gradient",
    "nn.dropout": "Dropout",
    "nn.grid": "AffineGrid GridSample mezzo::GridSampleGrad",
    "nn.image": "ImageDecoder",
    "tensor.indexing": "Slice Gather GatherElements GatherND ScatterND ScatterElements",
    "tensor.indexing_grads": "mezzo::GatherGrad mezzo::GatherGradRows mezzo::SliceGrad",
    "math.linear": "MatMul Gemm",
    "contrib.fused": """
        com.microsoft::Gelu com.microsoft::BiasGelu com.microsoft::FastGelu com.microsoft::QuickGelu
        com.microsoft::FusedConv com.microsoft::FusedMatMul com.microsoft::SkipLayerNormalization
    """,
    "contrib.attention": """
        com.microsoft::EmbedLayerNormalization com.microsoft::Attention com.microsoft::MultiHeadAttention
    """,
    "contrib.dynamic": "com.microsoft::DynamicQuantizeMatMul",
    "contrib.gemm": "com.microsoft::FusedGemm",
    "contrib.norm": "com.microsoft::SkipSimplifiedLayerNormalization",
    "contrib.quantized": """
        com.microsoft::QLinearAdd com.microsoft::QLinearMul com.microsoft::QLinearSigmoid
        com.microsoft::QLinearAveragePool com.microsoft::QLinearGlobalAveragePool com.microsoft::QLinearConcat
        com.microsoft::QGemm
    """,
    "contrib.text": "com.microsoft::Tokenizer",
    "contrib.weights": "com.microsoft::MatMulNBits com.microsoft::DynamicQuantizeLSTM",
    "ml.features": """
        ai.onnx.ml::ArrayFeatureExtractor ai.onnx.ml::Binarizer ai.onnx.ml::Scaler ai.onnx.ml::Normalizer
        ai.onnx.ml::Imputer ai.onnx.ml::FeatureVectorizer ai.onnx.ml::OneHotEncoder ai.onnx.ml::CategoryMapper
        ai.onnx.ml::LabelEncoder
    """,
    "ml.linear": """
        ai.onnx.ml::LinearClassifier ai.onnx.ml::LinearRegressor ai.onnx.ml::SVMRegressor
        ai.onnx.ml::SVMClassifier
    """,
    "ml.maps": "ai.onnx.ml::CastMap ai.onnx.ml::DictVectorizer ai.onnx.ml::ZipMap",
    "ml.trees": "ai.onnx.ml::TreeEnsembleRegressor ai.onnx.ml::TreeEnsembleClassifier ai.onnx.ml::TreeEnsemble",
    "tensor.movement": """
        Identity mezzo::StopGradient Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Expand Tile DepthToSpace
        SpaceToDepth Trilu
    """,
    "tensor.ngrams": "TfIdfVectorizer",
    "nn.norm": """
        BatchNormalization InstanceNormalization LayerNormalization GroupNormalization RMSNormalization
        MeanVarianceNormalization LpNormalization LRN
    """,
    "nn.norm_grads": "mezzo::BatchNormalizationTrain mezzo::BatchNormalizationGrad mezzo::LayerNormalizationGrad",
    "math.numeric": """
        mezzo::Expm1 mezzo::Log1p mezzo::Log2 mezzo::Log10 mezzo::Atan2 mezzo::Hypot mezzo::LogAddExp mezzo::FloorDiv
        mezzo::Remainder
    """,
    "training.optimizers": """
        ai.onnx.preview.training::Adagrad ai.onnx.preview.training::Adam ai.onnx.preview.training::Momentum
    """,
    "tensor.optional": "Optional OptionalGetElement OptionalHasElement",
    "tensor.pad": "Pad mezzo::PadGrad",
    "math.pairs": "mezzo::RealImag mezzo::Complex mezzo::Conj",
    "nn.pool": "MaxPool AveragePool LpPool MaxUnpool GlobalAveragePool GlobalMaxPool GlobalLpPool",
    "nn.pool_grads": "mezzo::MaxPoolTrain mezzo::MaxPoolGrad mezzo::AveragePoolGrad",
    "quantization.quantize": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear",
    "quantization.quantized": "MatMulInteger QLinearMatMul ConvInteger QLinearConv",
    "recurrent.recurrence": "mezzo::Recurrence",
    "recurrent.recurrent": "RNN GRU LSTM",
    "recurrent.recurrent_grads": """
        mezzo::RNNTrain mezzo::RNNGrad mezzo::GRUTrain mezzo::GRUGrad mezzo::LSTMTrain mezzo::LSTMGrad
    """,
    "math.reduce": """
        ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
        ReduceSumSquare ArgMax ArgMin CumSum CumProd TopK
    """,
    "nn.regions": "MaxRoiPool RoiAlign",
    "nn.regions_grads": "mezzo::MaxRoiPoolGrad mezzo::RoiAlignGrad",
    "nn.resize": "Resize",
    "nn.resize_grads": "mezzo::ResizeGrad",
    "math.sampling": "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial",
    "tensor.selection": "Compress ReverseSequence Unique CenterCropPad",
    "tensor.sequence": """
        SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap
        ConcatFromSequence SplitToSequence
    """,
    "math.signal": "DFT STFT MelWeightMatrix HannWindow HammingWindow BlackmanWindow",
    "nn.softmax": """
        Softmax LogSoftmax mezzo::SoftmaxGrad mezzo::LogSoftmaxGrad Hardmax NegativeLogLikelihoodLoss
        SoftmaxCrossEntropyLoss mezzo::SoftmaxCrossEntropyGrad
    """,
    "tensor.strings": "StringConcat StringNormalizer StringSplit RegexFullMatch",
    "math.trigonometry": """
        Sin mezzo::SinGrad Cos mezzo::CosGrad Tan mezzo::TanGrad Asin mezzo::AsinGrad Acos mezzo::AcosGrad Atan
        mezzo::AtanGrad Sinh mezzo::SinhGrad Cosh mezzo::CoshGrad Tanh mezzo::TanhGrad Asinh mezzo::AsinhGrad
        Acosh mezzo::AcoshGrad Atanh mezzo::AtanhGrad
    """,
    "training.update": "mezzo::Update mezzo::UpdateRows",
    "upgrade.legacy": """
        mezzo::SoftmaxFlattened mezzo::LogSoftmaxFlattened mezzo::HardmaxFlattened mezzo::PReluPerChannel
        mezzo::BatchNormalizationPerElement mezzo::GroupNormalizationPerGroup mezzo::ScanRows
    """,
}


def _index() -> dict[Key, str]:
    found = {}
    for module, names in MODULES.items():
        for name in names.split():
            domain, _, short = name.rpartition("::")
            found[domain, short] = module
    return found


INDEX = _index()


class Operators(dict[Key, "Op"]):
    """Records by domain and name. `redefined` are called once a record has taken the place of another."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded = False
        self.redefined: list[Callable[[], None]] = []

    def load(self) -> None:
        """Import all modules of operators."""
        if not self._loaded:
            for module in MODULES:
                _load(module)
            self._loaded = True

    def __missing__(self, key: Key) -> Op:
        module = INDEX.get(key)
        if module is not None:
            _load(module)
        found = super().get(key)
        if found is None:
            raise KeyError(key)
        return found

    def outside(self) -> list[Key]:
        """The operators that were registered from outside."""
        return [key for key in super().__iter__() if key not in INDEX]

    def get(self, key: Key, default: Op | None = None) -> Op | None:  # type: ignore[override]
        """The record of an operator, or what is given instead."""
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (key in INDEX and self.get(key) is not None)

    def __iter__(self) -> Iterator[Key]:
        self.load()
        return super().__iter__()

    def __len__(self) -> int:
        self.load()
        return super().__len__()

    def keys(self) -> KeysView[Key]:  # type: ignore[override]
        """Domain and name of every operator."""
        self.load()
        return super().keys()

    def values(self) -> ValuesView[Op]:  # type: ignore[override]
        """Return all records."""
        self.load()
        return super().values()

    def items(self) -> ItemsView[Key, Op]:  # type: ignore[override]
        """Return all records with their domains and names."""
        self.load()
        return super().items()


def _load(module: str) -> None:
    import_module(f".{module}", __package__)
