import mxnet as mx
from mxnet import autograd, nd

x = nd.array([[1, 2], [3, 4]])
x.attach_grad()
with autograd.record():
    y = x * 2
    z = y * x
z.backward()
print("grad", x.grad.asnumpy().sum(), x.grad.asnumpy().max())


def f(a):
    b = a * 2
    while nd.norm(b).asscalar() < 1000:
        b = b * 2
    return b if nd.sum(b).asscalar() > 0 else 100 * b


a = nd.array([0.5, 0.25])
a.attach_grad()
with autograd.record():
    c = f(a)
c.backward()
print("control", a.grad.asnumpy().sum())
with autograd.record():
    loss = nd.sum(nd.softmax(nd.dot(x, x)) * nd.array([[1, 2], [3, 5]]))
loss.backward()
print("head", loss.asscalar(), abs(x.grad.asnumpy()).sum())
with autograd.record():
    y = nd.exp(x)
y.backward(nd.array([[1, 0.1], [0.01, 0]]))
print("given", x.grad.asnumpy().sum(), autograd.is_recording(), autograd.is_training())
w = mx.nd.random.uniform(shape=(3, 4))
print("random", w.shape[0], (w.asnumpy() >= 0).all())
