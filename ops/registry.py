"""Which module defines which operators. A module is imported when one of its operators is first asked for: a program
needs some ten of three hundred, and a start is a third shorter.

Rules of gradients and standard forms may stand in a module beside the operator's own. Whoever asks for them loads all
modules first (`Operators.load`), as does whoever goes through all operators.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .op import Op

Key = tuple[str, str]  # domain, name

# Names of other domains than ONNX's own are written domain::name. tests/test_registry.py compares this with what is.
MODULES: dict[str, str] = {
    "activations": """
        Sigmoid mezzo::SigmoidGrad Relu mezzo::ReluGrad LeakyRelu mezzo::LeakyReluGrad PRelu ThresholdedRelu
        mezzo::ThresholdedReluGrad Elu mezzo::EluGrad Selu mezzo::SeluGrad Celu mezzo::CeluGrad HardSigmoid
        mezzo::HardSigmoidGrad HardSwish mezzo::HardSwishGrad Swish mezzo::SwishGrad SwiGLU Softplus
        mezzo::SoftplusGrad Softsign mezzo::SoftsignGrad Mish mezzo::MishGrad Erf mezzo::ErfGrad Gelu
        mezzo::GeluGrad Shrink mezzo::ShrinkGrad
    """,
    "algebra": "Einsum Det mezzo::Cofactors",
    "attention": "Attention ai.onnx.preview::FlexAttention",
    "bitwise": "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift BitCast",
    "broadcast": "mezzo::SumTo",
    "cast": "Cast CastLike",
    "control": "If mezzo::Raise Loop Scan",
    "conv": "Conv ConvTranspose",
    "conv_grads": "mezzo::ConvGradInput mezzo::ConvGradWeights",
    "decoding": "RotaryEmbedding TensorScatter CausalConvWithState LinearAttention",
    "decompositions": "mezzo::Solve mezzo::PInv mezzo::SlogDet mezzo::Cholesky mezzo::Eigh mezzo::SVD mezzo::QR",
    "deform": "DeformConv mezzo::DeformConvGrad Col2Im",
    "detection": "NonMaxSuppression",
    "elementwise": """
        Add Sub Mul Div Pow mezzo::PowGrad mezzo::PowExponentGrad Neg Abs Exp Log Sqrt Reciprocal
        mezzo::ReciprocalGrad Floor Ceil Round Sign Mod Clip mezzo::ClipGrad Max Min mezzo::ExtremeGrad Sum Mean
        Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Not Where IsNaN IsInf
    """,
    "exchange": "mezzo::Emit mezzo::Await mezzo::SumRows",
    "fake_quantize": "mezzo::FakeQuantize mezzo::FakeQuantizeGrad mezzo::FakeQuantizeScaleGrad",
    "fused": "mezzo::ConvReluPool mezzo::Reorder mezzo::Fused",
    "generate": "Constant ConstantOfShape Range Shape Size NonZero OneHot EyeLike",
    "gradient": "ai.onnx.preview.training::Gradient",
    "grid": "AffineGrid GridSample mezzo::GridSampleGrad",
    "image": "ImageDecoder",
    "indexing": "Slice Gather GatherElements GatherND ScatterND ScatterElements",
    "indexing_grads": "mezzo::GatherGrad mezzo::GatherGradRows mezzo::SliceGrad",
    "linear": "MatMul Gemm",
    "microsoft": """
        com.microsoft::Gelu com.microsoft::BiasGelu com.microsoft::FastGelu com.microsoft::QuickGelu
        com.microsoft::FusedConv com.microsoft::FusedMatMul com.microsoft::SkipLayerNormalization
    """,
    "microsoft_attention": """
        com.microsoft::EmbedLayerNormalization com.microsoft::Attention com.microsoft::MultiHeadAttention
    """,
    "microsoft_dynamic": "com.microsoft::DynamicQuantizeMatMul",
    "microsoft_gemm": "com.microsoft::FusedGemm",
    "microsoft_norm": "com.microsoft::SkipSimplifiedLayerNormalization",
    "microsoft_quantized": """
        com.microsoft::QLinearAdd com.microsoft::QLinearMul com.microsoft::QLinearSigmoid
        com.microsoft::QLinearAveragePool com.microsoft::QLinearGlobalAveragePool com.microsoft::QLinearConcat
        com.microsoft::QGemm
    """,
    "microsoft_text": "com.microsoft::Tokenizer",
    "microsoft_weights": "com.microsoft::MatMulNBits com.microsoft::DynamicQuantizeLSTM",
    "ml_features": """
        ai.onnx.ml::ArrayFeatureExtractor ai.onnx.ml::Binarizer ai.onnx.ml::Scaler ai.onnx.ml::Normalizer
        ai.onnx.ml::Imputer ai.onnx.ml::FeatureVectorizer ai.onnx.ml::OneHotEncoder ai.onnx.ml::CategoryMapper
        ai.onnx.ml::LabelEncoder
    """,
    "ml_linear": """
        ai.onnx.ml::LinearClassifier ai.onnx.ml::LinearRegressor ai.onnx.ml::SVMRegressor
        ai.onnx.ml::SVMClassifier
    """,
    "ml_maps": "ai.onnx.ml::CastMap ai.onnx.ml::DictVectorizer ai.onnx.ml::ZipMap",
    "ml_trees": "ai.onnx.ml::TreeEnsembleRegressor ai.onnx.ml::TreeEnsembleClassifier ai.onnx.ml::TreeEnsemble",
    "movement": """
        Identity mezzo::StopGradient Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Expand Tile DepthToSpace
        SpaceToDepth Trilu
    """,
    "ngrams": "TfIdfVectorizer",
    "norm": """
        BatchNormalization InstanceNormalization LayerNormalization GroupNormalization RMSNormalization
        MeanVarianceNormalization LpNormalization LRN Dropout
    """,
    "norm_grads": "mezzo::BatchNormalizationTrain mezzo::BatchNormalizationGrad mezzo::LayerNormalizationGrad",
    "numeric": """
        mezzo::Expm1 mezzo::Log1p mezzo::Log2 mezzo::Log10 mezzo::Atan2 mezzo::Hypot mezzo::LogAddExp mezzo::FloorDiv
        mezzo::Remainder
    """,
    "optimizers": "ai.onnx.preview.training::Adagrad ai.onnx.preview.training::Adam ai.onnx.preview.training::Momentum",
    "optional": "Optional OptionalGetElement OptionalHasElement",
    "pad": "Pad mezzo::PadGrad",
    "pairs": "mezzo::RealImag mezzo::Complex mezzo::Conj",
    "pool": "MaxPool AveragePool LpPool MaxUnpool GlobalAveragePool GlobalMaxPool GlobalLpPool",
    "pool_grads": "mezzo::MaxPoolTrain mezzo::MaxPoolGrad mezzo::AveragePoolGrad",
    "quantize": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear",
    "quantized": "MatMulInteger QLinearMatMul ConvInteger QLinearConv",
    "recurrence": "mezzo::Recurrence",
    "recurrent": "RNN GRU LSTM",
    "recurrent_grads": "mezzo::RNNTrain mezzo::RNNGrad mezzo::GRUTrain mezzo::GRUGrad mezzo::LSTMTrain mezzo::LSTMGrad",
    "reduce": """
        ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
        ReduceSumSquare ArgMax ArgMin CumSum CumProd TopK
    """,
    "regions": "MaxRoiPool RoiAlign",
    "regions_grads": "mezzo::MaxRoiPoolGrad mezzo::RoiAlignGrad",
    "resize": "Resize",
    "resize_grads": "mezzo::ResizeGrad",
    "sampling": "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial",
    "selection": "Compress ReverseSequence Unique CenterCropPad",
    "sequence": """
        SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap
        ConcatFromSequence SplitToSequence
    """,
    "signal": "DFT STFT MelWeightMatrix HannWindow HammingWindow BlackmanWindow",
    "softmax": """
        Softmax LogSoftmax mezzo::SoftmaxGrad mezzo::LogSoftmaxGrad Hardmax NegativeLogLikelihoodLoss
        SoftmaxCrossEntropyLoss mezzo::SoftmaxCrossEntropyGrad
    """,
    "strings": "StringConcat StringNormalizer StringSplit RegexFullMatch",
    "trigonometry": """
        Sin mezzo::SinGrad Cos mezzo::CosGrad Tan mezzo::TanGrad Asin mezzo::AsinGrad Acos mezzo::AcosGrad Atan
        mezzo::AtanGrad Sinh mezzo::SinhGrad Cosh mezzo::CoshGrad Tanh mezzo::TanhGrad Asinh mezzo::AsinhGrad
        Acosh mezzo::AcoshGrad Atanh mezzo::AtanhGrad
    """,
    "update": "mezzo::Update mezzo::UpdateRows",
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
    """Records by domain and name."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded = False

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
        """Every record."""
        self.load()
        return super().values()

    def items(self) -> ItemsView[Key, Op]:  # type: ignore[override]
        """Every record with its domain and name."""
        self.load()
        return super().items()


def _load(module: str) -> None:
    import_module(f".{module}", __package__)
