"""Opsets at which an operator's schema changed and old nodes kept their meaning: more element types, attributes whose
default is the former behaviour, clearer words. The operators have the last opset of their line."""

from __future__ import annotations

# One line per operator: the opsets. From the opset in brackets on, axes may count from the back.
TABLE = """
Add                 13 14
Sub                 13 14
Mul                 13 14
Div                 13 14
Pow                 12 13 15
Neg                 6 13
Abs                 6 13
Exp                 6 13
Log                 6 13
Sqrt                6 13
Reciprocal          6 13
Floor               6 13
Ceil                6 13
Sin                 22
Cos                 22
Tan                 22
Asin                22
Acos                22
Atan                22
Sinh                22
Cosh                22
Asinh               22
Acosh               22
Atanh               22
Tanh                6 13
Sigmoid             6 13
Relu                6 13 14
LeakyRelu           6 16
PRelu               9 16
Elu                 6 22
Selu                6 22
Celu                28
ThresholdedRelu     22
Softplus            22
Softsign            22
Erf                 13
Sign                13
Round               22
Mod                 13 28
BitShift            28
IsNaN               13 20
IsInf               20
HardSigmoid         6 22
HardSwish           22
Mish                22
Clip                12 13
Max                 12 13
Min                 12 13
Sum                 13
Mean                13
Equal               11 13 19
Less                9 13
LessOrEqual         16
Greater             9 13
GreaterOrEqual      16
And
Or
Xor
Not
Where               16
Reshape             13 19 21 23 24 25
Flatten             9 [11] 13 21 23 24 25
Squeeze             [11] 21 23 24 25
Unsqueeze           [11] 21 23 24 25
Transpose           13 21 23 24 25
Concat              [11] 13
Split               [11]
Slice               [11] 13
Gather              11 13
GatherElements      13
GatherND            12 13
ScatterND           13 16 18
ScatterElements     13 16 18
Pad                 13 19 21 23 24 25
Expand              13
Tile                13
Identity            13 14 16 19 21 23 24 25
Cast                9 13 19 21 23 24 25 28
CastLike            19 21 23 24 25
DepthToSpace        11 13 28
SpaceToDepth        13 28
Trilu
Constant            9 11 12 13 19 21 23 24 25
ConstantOfShape     20 21 23 24 25
Range               27
Shape               13 15 19 21 23 24 25
Size                13 19 21 23 24 25
NonZero             13
OneHot              [11] 28
EyeLike             22
ReduceSum           [11]
ReduceMean          [11] 13
ReduceMax           [11] 12 13 20
ReduceMin           [11] 12 13 20
ReduceProd          [11] 13
ReduceL1            [11] 13
ReduceL2            [11] 13
ReduceLogSum        [11] 13 28
ReduceLogSumExp     [11] 13 28
ReduceSumSquare     [11] 13
ArgMax              [11] 12 13
ArgMin              [11] 12 13
CumSum              14
TopK                11 24
MatMul              9 13
Gemm                6 9 11 13
Conv                11 22
ConvTranspose       11 22
MaxPool             8 10 11 12 22
AveragePool         7 10 11 19 22
LpPool              11 18 22
GlobalAveragePool   22
GlobalMaxPool       22
GlobalLpPool        2 22
BatchNormalization  15
LRN                 13
Softmax             [11]
LogSoftmax          [11]
Hardmax             [11]
LayerNormalization
InstanceNormalization 6 22
GroupNormalization
MeanVarianceNormalization 13
LpNormalization     22
Attention           24 25
Det                 22
DeformConv          22
MaxRoiPool          22
MaxUnpool           11 22
Compress            [11] 28
ReverseSequence     28
Unique              28
Einsum              28
GridSample          22
RoiAlign            22
NegativeLogLikelihoodLoss 13 22
SoftmaxCrossEntropyLoss 13
Dropout             13 22
LSTM                14 22
GRU                 3 14 22
RNN                 14 22
Resize              13 18 19
NonMaxSuppression   11
If                  11 13 16 19 21 23 24 25
Loop                11 13 16 19 21 23 24 25
Scan                11 16 19 21 23 24 25
QuantizeLinear      13 19 21 23 24 25 28
DequantizeLinear    13 19 21 23 24 25 28
DynamicQuantizeLinear
QLinearMatMul       21
RandomNormal        22
RandomNormalLike    22
RandomUniform       22
RandomUniformLike   22
Bernoulli           22
Multinomial         22
SplitToSequence     24
Optional            28
OptionalGetElement  18 28
OptionalHasElement  18 28
"""

# The same for ai.onnx.ml.
ML_TABLE = """
LabelEncoder        4
TreeEnsembleClassifier 3 5
TreeEnsembleRegressor 3 5
"""


def parse(table: str) -> dict[str, dict[int, bool]]:
    """Return, by operator, its opsets, each with whether negative axes are allowed from it on.

    >>> parse("Concat [11] 13")
    {'Concat': {11: True, 13: False}}
    """
    rows = [line.split() for line in table.splitlines() if line.strip()]
    return {op: {int(v.strip("[]")): v.startswith("[") for v in opsets} for op, *opsets in rows}
