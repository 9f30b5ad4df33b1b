"""CPU kernels of oneDNN, called through its C API.

https://oneapi-src.github.io/oneDNN/ (the C API of version 3). `library.py` finds it, `api.py` declares its functions,
`memory.py` and `primitive.py` wrap descriptors; each family of kernels has a module of its own, and `KERNELS` lists
them in the order in which they are asked. Families that many models have no use for are imported when they are asked.
Without the library nothing here is used.
"""

from __future__ import annotations

from functools import partial

from ..kernels.kernel import Kernel
from ..kernels.later import Later
from .concat import Concat, Split
from .conv import Conv, ConvTranspose
from .elementwise import Binary, Eltwise
from .matmul import Gemm, MatMul
from .movement import Reorder, Transpose, Units
from .norm import ChannelNorm, LayerNorm, LocalNorm, Softmax
from .pool import Pool
from .reduce import Reduce

later = partial(Later, __name__)
KERNELS: tuple[Kernel, ...] = (
    later("onednn.qlinear_conv", "quantised.QLinearConv", "QLinearConv"),
    later("onednn.conv_integer", "quantised.ConvInteger", "ConvInteger"),
    later("onednn.qlinear_matmul", "quantised_matmul.QLinearMatMul", "QLinearMatMul"),
    later("onednn.qgemm", "quantised_matmul.QGemm", "com.microsoft.QGemm"),
    later("onednn.matmul_integer", "quantised_matmul.MatMulInteger", "MatMulInteger"),
    later("onednn.matmul_n_bits", "quantised_matmul.MatMulNBits", "com.microsoft.MatMulNBits"),
    later("onednn.quantize", "quantised_elements.Quantize", "QuantizeLinear"),
    later("onednn.dequantize", "quantised_elements.Dequantize", "DequantizeLinear"),
    later("onednn.qlinear_binary", "quantised_elements.Arithmetic",
          "com.microsoft.QLinearAdd com.microsoft.QLinearMul"),
    later("onednn.qlinear_sigmoid", "quantised_elements.Sigmoid", "com.microsoft.QLinearSigmoid"),
    later("onednn.dynamic_quantize", "quantised_dynamic.DynamicQuantize", "DynamicQuantizeLinear"),
    later("onednn.dynamic_matmul", "quantised_dynamic.DynamicMatMul", "com.microsoft.DynamicQuantizeMatMul"),
    Conv(),
    ConvTranspose(),
    MatMul(),
    Gemm(),
    Pool(),
    later("onednn.qlinear_pool", "quantised_elements.Pool8",
          "MaxPool com.microsoft.QLinearAveragePool com.microsoft.QLinearGlobalAveragePool"),
    Softmax(),
    LayerNorm(),
    Eltwise(),
    Binary(),
    Reorder(),
    Transpose(),
    Units(),
    later("onednn.recurrent", "recurrent.Recurrent", "GRU LSTM RNN"),
    Concat(),
    Split(),
    Reduce(),
    later("onednn.resize", "resample.Resize", "Resize", True),
    ChannelNorm(),
    LocalNorm(),
    later("onednn.cast", "operands.Cast", "Cast", True),
    later("onednn.prelu", "operands.PRelu", "PRelu"),
    later("onednn.sum", "operands.Sum", "Mean Sum", True),
    later("onednn.conv_grad_input", "conv_grads.ConvGradInput", "mezzo.ConvGradInput", True),
    later("onednn.conv_grad_weights", "conv_grads.ConvGradWeights", "mezzo.ConvGradWeights", True),
    later("onednn.eltwise_grad", "elementwise_grads.EltwiseGrad",
          "mezzo.EluGrad mezzo.GeluGrad mezzo.HardSwishGrad mezzo.LeakyReluGrad mezzo.MishGrad mezzo.ReluGrad "
          "mezzo.SigmoidGrad mezzo.SwishGrad mezzo.TanhGrad", True),
    later("onednn.softmax_grad", "elementwise_grads.SoftmaxGrad", "mezzo.LogSoftmaxGrad mezzo.SoftmaxGrad", True),
    later("onednn.max_pool_train", "pool_grads.MaxPoolTrain", "mezzo.MaxPoolTrain", True),
    later("onednn.max_pool_grad", "pool_grads.MaxPoolGrad", "mezzo.MaxPoolGrad", True),
    later("onednn.average_pool_grad", "pool_grads.AveragePoolGrad", "mezzo.AveragePoolGrad", True),
    later("onednn.batch_norm_train", "norm_grads.BatchNormTrain", "mezzo.BatchNormalizationTrain", True),
    later("onednn.batch_norm_grad", "norm_grads.BatchNormGrad", "mezzo.BatchNormalizationGrad", True),
    later("onednn.layer_norm_train", "norm_grads.LayerNormTrain", "LayerNormalization", True),
    later("onednn.layer_norm_grad", "norm_grads.LayerNormGrad", "mezzo.LayerNormalizationGrad", True),
    later("onednn.update", "update.ChainedUpdate",
          "mezzo.Adadelta mezzo.Adagrad mezzo.Adam mezzo.CenteredRMSprop mezzo.CenteredRMSpropMomentum "
          "mezzo.DampenedMomentum mezzo.Lion mezzo.Momentum mezzo.RMSprop mezzo.RMSpropMomentum mezzo.SGD"),
    later("onednn.lstm_train", "recurrent_train.lstm.TRAIN", "mezzo.LSTMTrain"),
    later("onednn.lstm_grad", "recurrent_train.lstm.GRAD", "mezzo.LSTMGrad"),
    later("onednn.gru_train", "recurrent_train.gru.TRAIN", "mezzo.GRUTrain"),
    later("onednn.gru_grad", "recurrent_train.gru.GRAD", "mezzo.GRUGrad"),
    later("onednn.rnn_train", "recurrent_train.rnn.TRAIN", "mezzo.RNNTrain"),
    later("onednn.rnn_grad", "recurrent_train.rnn.GRAD", "mezzo.RNNGrad"),
)  # fmt: skip

__all__ = ["KERNELS"]
