import mxnet as mx
import numpy as np
from mxnet import nd

a = mx.nd.array([[1, 2, 3], [4, 5, 6]])
b = mx.nd.ones((2, 3)) * 2
print("kinds", a.dtype == np.float32, a.shape == (2, 3), a.size)
c = a * b + 1 - a / 2
print("arithmetic", c.asnumpy().sum(), (a**2).asnumpy().mean(), (-a).asnumpy().min())
print("dot", mx.nd.dot(a, b.T).asnumpy().sum(), nd.batch_dot(nd.ones((2, 2, 3)), nd.ones((2, 3, 4))).asnumpy().sum())
a[1] = 7
a[:, 0] += 1
print("slices", a.asnumpy().sum(), a[0:1].asnumpy().sum(), a[1, 2].asscalar())
print("reductions", nd.sum(a, axis=1).asnumpy().max(), nd.mean(a).asscalar(), nd.max(a, axis=0).asnumpy().sum(),
      nd.norm(a).asscalar(), nd.argmax(a, axis=1).asnumpy().sum())
print("shapes", a.reshape((3, 2)).shape[0], a.expand_dims(0).shape[1], nd.concat(a, b, dim=0).shape[0],
      nd.stack(a, b).shape[0], nd.transpose(a).shape[0], a.flatten().shape[1])
print("functions", nd.exp(b).asnumpy().sum(), nd.sqrt(b).asnumpy().sum(), nd.sigmoid(b).asnumpy().sum(),
      nd.softmax(a).asnumpy().max(), nd.relu(b - 3).asnumpy().sum(), nd.clip(a, 0, 5).asnumpy().sum())
print("compare", (a > 3).asnumpy().sum(), (a == 7).asnumpy().sum(), nd.broadcast_add(a, nd.ones((1, 3))).asnumpy().sum())
x = nd.arange(6).reshape((2, 3))
y = x.copy()
y += 10
x.copyto(y)
print("copies", y.asnumpy().sum(), x.astype("int32").asnumpy().sum(), nd.one_hot(nd.array([0, 2]), 3).asnumpy().sum())
print("take", nd.take(x, nd.array([1, 0])).asnumpy()[0].sum(), nd.pick(x, nd.array([0, 2]), axis=1).asnumpy().sum())
print("topk", nd.topk(x, k=2, ret_typ="value").asnumpy().sum(), nd.sort(x).asnumpy()[0, 2])
