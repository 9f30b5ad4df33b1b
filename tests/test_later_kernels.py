"""Kernels that are imported when they are asked: what is written of them is what they are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mezzo.ops import OPS
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.compile.lazy_kernel import LazyKernel, itself
from mezzo.runtime.devices import DEVICES
from mezzo.runtime.ir.graph import Node

LATER = [k for k in DEVICES["cpu"].target.kernels if isinstance(k, LazyKernel)]


@pytest.mark.parametrize("later", LATER, ids=lambda k: k.name)
def test_it_is_what_was_written_of_it(later: LazyKernel) -> None:
    kernel = itself(later)
    assert later.source.startswith("mezzo.runtime.")
    assert kernel.name == later.name
    assert getattr(kernel, "remembers", False) == later.remembers
    assert not getattr(kernel, "lengthy", False)  # such a kernel would be imported to be asked that
    nodes = [Node(op, (), ("y",), domain=domain) for domain, op in OPS if op != "Fused"]
    assert {(n.domain, n.op) for n in nodes if kernel.serves(n)} == later.ops
    chains = [Node("Fused", (), ("y",), {"chain": (((n.domain, n.op, (), ())),)}, "mezzo") for n in nodes]
    assert all(later.serves(n) for n in chains if kernel.serves(n))


@pytest.mark.skipif(
    library() is None, reason="oneDNN is not installed, so that all of its kernels are asked and decline"
)
def test_a_model_imports_what_it_needs() -> None:
    code = """
import sys
import numpy as np
import mezzo as mz
from mezzo.runtime.compile.lazy_kernel import LazyKernel
from mezzo.runtime.devices import DEVICES
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.ops.types import f32
g = GraphBuilder()
s = mz.Session(g.graph([g.MaxPool(g.Relu(g.input("x", f32(1, 2, 4, 4))), kernel_shape=[2, 2])]))
s.run({"x": np.ones((1, 2, 4, 4), np.float32)})
later = {k.source.rpartition(".")[0] for k in DEVICES["cpu"].target.kernels if isinstance(k, LazyKernel)}
print(*sorted(later & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []
