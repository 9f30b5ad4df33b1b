"""CPU kernels of oneDNN, called through its C API.

https://oneapi-src.github.io/oneDNN/ (the C API of version 3). `library.py` finds it, `api.py` declares its functions,
`memory.py` and `primitive.py` wrap descriptors; each family of kernels has a module of its own, and `KERNELS` lists
them in the order in which they are asked. Families that many models have no use for are imported when they are asked.
Without the library nothing here is used.
"""

from __future__ import annotations

from functools import partial

from ...compile.kernel import Kernel
from ...compile.lazy_kernel import LazyKernel
from .concat import Concat, Split
from .conv import Conv, ConvTranspose
from .elementwise import Binary, Eltwise
from .matmul import Gemm, MatMul
from .movement import Reorder, Transpose, Units
from .norm import ChannelNorm, LayerNorm, LocalNorm, Softmax
from .pool import OneDnnPool
from .reduce import OneDnnReduce

_later = partial(LazyKernel, __name__)
KERNELS: tuple[Kernel, ...] = (
    _later("onednn.qlinear_conv", "quantised.QLinearConv", "QLinearConv"),
    _later("onednn.conv_integer", "quantised.ConvInteger", "ConvInteger"),
    _later("onednn.qlinear_matmul", "quantised_matmul.QLinearMatMul", "QLinearMatMul"),
    _later("onednn.qgemm", "quantised_matmul.QGemm", "com.microsoft.QGemm"),
    _later("onednn.matmul_integer", "quantised_matmul.MatMulInteger", "MatMulInteger"),
    _later("onednn.matmul_n_bits", "packed_weights.PackedSgemm", "com.microsoft.MatMulNBits mezzo.MatMulNBitsGrad"),
    _later("onednn.quantize", "quantised_elements.Quantize", "QuantizeLinear"),
    _later("onednn.dequantize", "quantised_elements.Dequantize", "DequantizeLinear"),
    _later("onednn.qlinear_binary", "quantised_elements.Arithmetic",
           "com.microsoft.QLinearAdd com.microsoft.QLinearMul"),
    _later("onednn.qlinear_sigmoid", "quantised_elements.Sigmoid", "com.microsoft.QLinearSigmoid"),
    _later("onednn.dynamic_quantize", "quantised_dynamic.DynamicQuantize", "DynamicQuantizeLinear"),
    _later("onednn.dynamic_matmul", "quantised_dynamic.DynamicMatMul", "com.microsoft.DynamicQuantizeMatMul"),
    Conv(),
    ConvTranspose(),
    MatMul(),
    Gemm(),
    OneDnnPool(),
    _later("onednn.qlinear_pool", "quantised_elements.Pool8",
           "MaxPool com.microsoft.QLinearAveragePool com.microsoft.QLinearGlobalAveragePool"),
    Softmax(),
    LayerNorm(),
    Eltwise(),
    Binary(),
    Reorder(),
    Transpose(),
    Units(),
    _later("onednn.recurrent", "recurrent.Recurrent", "GRU LSTM RNN"),
    Concat(),
    Split(),
    OneDnnReduce(),
    _later("onednn.resize", "resample.Resize", "Resize", True),
    ChannelNorm(),
    LocalNorm(),
    _later("onednn.cast", "operands.Cast", "Cast", True),
    _later("onednn.prelu", "operands.PRelu", "PRelu"),
    _later("onednn.sum", "operands.Sum", "Mean Sum", True),
    _later("onednn.conv_grad_input", "conv_grads.ConvGradInput", "mezzo.ConvGradInput", True),
    _later("onednn.conv_grad_weights", "conv_grads.ConvGradWeights", "mezzo.ConvGradWeights", True),
    _later("onednn.eltwise_grad", "elementwise_grads.EltwiseGrad",
           "mezzo.EluGrad mezzo.GeluGrad mezzo.HardSwishGrad mezzo.LeakyReluGrad mezzo.MishGrad mezzo.ReluGrad "
           "mezzo.SigmoidGrad mezzo.SwishGrad mezzo.TanhGrad", True),
    _later("onednn.softmax_grad", "elementwise_grads.SoftmaxGrad", "mezzo.LogSoftmaxGrad mezzo.SoftmaxGrad", True),
    _later("onednn.max_pool_train", "pool_grads.MaxPoolTrain", "mezzo.MaxPoolTrain", True),
    _later("onednn.max_pool_grad", "pool_grads.MaxPoolGrad", "mezzo.MaxPoolGrad", True),
    _later("onednn.average_pool_grad", "pool_grads.AveragePoolGrad", "mezzo.AveragePoolGrad", True),
    _later("onednn.batch_norm_train", "norm_grads.BatchNormTrain", "mezzo.BatchNormalizationTrain", True),
    _later("onednn.batch_norm_grad", "norm_grads.BatchNormGrad", "mezzo.BatchNormalizationGrad", True),
    _later("onednn.layer_norm_train", "norm_grads.LayerNormTrain", "LayerNormalization", True),
    _later("onednn.layer_norm_grad", "norm_grads.LayerNormGrad", "mezzo.LayerNormalizationGrad", True),
    _later("onednn.update", "update.ChainedUpdate", "mezzo.Update"),
    _later("onednn.lstm_train", "recurrent_train.lstm.TRAIN", "mezzo.LSTMTrain"),
    _later("onednn.lstm_grad", "recurrent_train.lstm.GRAD", "mezzo.LSTMGrad"),
    _later("onednn.gru_train", "recurrent_train.gru.TRAIN", "mezzo.GRUTrain"),
    _later("onednn.gru_grad", "recurrent_train.gru.GRAD", "mezzo.GRUGrad"),
    _later("onednn.rnn_train", "recurrent_train.rnn.TRAIN", "mezzo.RNNTrain"),
    _later("onednn.rnn_grad", "recurrent_train.rnn.GRAD", "mezzo.RNNGrad"),
)  # fmt: skip

__all__ = ["KERNELS"]
