import mxnet as mx
import numpy as np
from common import ByShape

rng = np.random.RandomState(1)
x = rng.uniform(-1, 1, (400, 2))
y = x.dot([1.5, -2.0]) + 0.5 + 0.01 * rng.normal(size=400)
train = mx.io.NDArrayIter(x[:320], y[:320], batch_size=20, shuffle=False, label_name="lin_reg_label")
test = mx.io.NDArrayIter(x[320:], y[320:], batch_size=20, label_name="lin_reg_label")
X, Y = mx.sym.Variable("data"), mx.symbol.Variable("lin_reg_label")
fc = mx.sym.FullyConnected(data=X, name="fc1", num_hidden=1)
lro = mx.sym.LinearRegressionOutput(data=fc, label=Y, name="lro")
model = mx.mod.Module(symbol=lro, data_names=["data"], label_names=["lin_reg_label"])
model.fit(train, test, optimizer="sgd", optimizer_params={"learning_rate": 0.05, "momentum": 0.9}, num_epoch=4,
          eval_metric="mse", initializer=ByShape(), batch_end_callback=mx.callback.Speedometer(20, 4))
args, _ = model.get_params()
print("weights", *args["fc1_weight"].asnumpy().ravel(), args["fc1_bias"].asscalar())
print("mse", model.score(test, mx.metric.MSE())[0][1], model.score(test, "mae")[0][1])
print("predict", model.predict(test).asnumpy().sum(), model.predict(test).shape[0])
