"""Defects to be planted, one at a time, in a copy of the checkout: whether the search would find them.

Each is a text in a file that stands there once, and what takes its place. They are what such defects have been, or
would be: in kernels, layouts, post-ops, passes, the planner and what a session remembers. Those with a number of
`known` are of a kind that stood in the code once, and was found by others first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutation:
    """`old` in `file` becomes `new`; `what` says which defect that is, `focus` where a search looks for it, and
    `missed` why it does not find it."""

    what: str
    file: str
    old: str
    new: str
    focus: str = ""
    known: int = 0
    missed: str = ""


MUTATIONS = (
    # post-ops
    Mutation("a number is added to itself in place of the operand", "runtime/backends/onednn/postops.py",
             "        first, value = second, scalar(request, first)\n", "        value = scalar(request, first)\n",
             "elementwise", 5),
    Mutation("subtracting a number adds it", "runtime/backends/onednn/postops.py",
             '"Sub": lambda v: (1.0, -v)', '"Sub": lambda v: (1.0, v)', "elementwise"),
    Mutation("a post-op takes its operands the other way round", "runtime/backends/onednn/postops.py",
             "if link.operands[0] != PREVIOUS and link.op not in COMMUTE:", "if link.op not in BINARY:", "elementwise"),
    Mutation("HardSwish of another slope", "runtime/backends/onednn/postops.py",
             '("eltwise_hardswish", 1 / 6, 0.5)', '("eltwise_hardswish", 1 / 6, 0.4)', "elementwise"),
    Mutation("Elu without its alpha", "runtime/backends/onednn/postops.py",
             '("eltwise_elu", alpha, 0.0)', '("eltwise_elu", 1.0, 0.0)', "elementwise"),
    Mutation("channels of an operand beside unit axes are trusted to oneDNN", "runtime/backends/onednn/defects.py",
             "return _channels(result, operand) and not told", "return False", "norms", 2,
             "frames merge the axes before; tests/test_onednn_defects.py asks for it directly"),
    Mutation("an operand behind a softmax is trusted to oneDNN", "runtime/backends/onednn/defects.py",
             "        return _channels(result, operand) and axis > 1\n", "        return False\n", "norms", 3),
    # layouts
    Mutation("a constant is packed by the axes of the primitive", "runtime/backends/onednn/kernel.py",
             "if operand.source is None and operand.layout not in (\"\", ANY):",
             "if operand.source is None and not operand.place:",
             "layouts"),
    Mutation("softmax along the axis of the tensor in a permuted frame", "runtime/backends/onednn/norm.py",
             "(algorithm, frame.axis(axis))", "(algorithm, min(axis, len(frame.groups) - 1))", "norms"),
    Mutation("the bias of a transposed product is forgotten", "runtime/backends/onednn/matmul.py",
             "if is_permutation(layout) and len(links) == 1:", "if is_permutation(layout):", "products"),
    Mutation("a bias that differs from row to row is taken for one of columns", "runtime/backends/onednn/matmul.py",
             "or other.elements != columns or columns == 1:", "or columns == 1:", "products"),
    Mutation("the batch of a transposed operand is read with the strides of another",
    "runtime/backends/onednn/matmul.py",
             "strides = (strides[0],) * (rank - len(t.sizes)) + strides",
             "strides = strides + (strides[0],) * (rank - len(t.sizes))", "products"),
    Mutation("what is done before a reduction is forgotten", "runtime/backends/onednn/reduce.py",
             'yield Draft("eltwise_forward", operands, (before, 0.0, 0.0))',
             'yield Draft("eltwise_forward", operands, ("eltwise_linear", 1.0, 0.0))', "reductions"),
    Mutation("what is left by a reduction is said to be row-major", "runtime/backends/onednn/reduce.py",
             'layout = usual("".join(letters[kept.index(d)] for d in order if d in kept), y.sizes)', 'layout = ""',
             "reductions", 4),
    Mutation("what pads an image before its first pixel pads it behind the last", "runtime/backends/onednn/pool.py",
             "tuple(w.before for w in axes),\n"
             "        # what is left over at the end is cut, where oneDNN would see a negative padding\n"
             "        tuple((w.out - 1) * w.stride + w.span - n - w.before for w",
             "tuple(w.after for w in axes),\n"
             "        tuple((w.out - 1) * w.stride + w.span - n - w.after for w", "pools"),
    Mutation("the average counts the padding", "runtime/backends/onednn/pool.py",
             'if not link.attr("count_include_pad"):', 'if link.attr("count_include_pad"):', "pools"),
    # kernels of NumPy
    Mutation("parts of a concatenation lie one behind the other from its first", "runtime/backends/cpu/movement.py",
             "        pairs.append((out[_along(axis, at, at + x.shape[axis])], x))\n        at += x.shape[axis]\n",
             "        at = at or 0\n        pairs.append((out[_along(axis, at, at + x.shape[axis])], x))\n"
             "        at += x.shape[axis] if x.shape[axis] > 1 else 0\n", "layouts"),
    Mutation("parts of an inner axis are taken for runs of bytes", "runtime/backends/cpu/movement.py",
             "all(n == 1 for n in x.sizes[: axis % x.rank]):", "x.sizes:", "layouts"),
    Mutation("a slice that is a view begins one row late", "runtime/backends/cpu/movement.py",
             "        at += (part.start or 0) * row\n", "        at += (part.start or 0) * row + (n == 3) * row\n",
             "layouts"),
    # passes
    Mutation("a Transpose that only moves axes of size 2 is dropped", "runtime/passes/identities.py",
             "moving = [a for a in order if x.dims[a] != 1]", "moving = [a for a in order if x.dims[a] not in (1, 2)]",
             "layouts"),
    Mutation("a Slice that turns all elements round is dropped", "runtime/passes/identities.py",
             "(np.asarray(m.constant(steps)) < 0).any()", "(np.asarray(m.constant(steps)) < -1).any()", "layouts"),
    Mutation("a Dropout, Reshape or Expand that changes dims is dropped", "runtime/passes/identities.py",
             'return None if before == after else f"{before} becomes {after}"\n\n\ndef _inference',
             'return None if before.elements == after.elements else f"{before} becomes {after}"\n\n\ndef _inference',
             "layouts"),
    Mutation("batch normalisation folds without its epsilon", "runtime/passes/batchnorm.py",
             'factor = scale / np.sqrt(var + m.attr("epsilon"))', "factor = scale / np.sqrt(var)", "norms"),
    Mutation("a constant of few dims is taken for channels", "runtime/passes/batchnorm.py",
             "dims = (1,) * (len(y.dims) - np.ndim(c)) + np.shape(c)",
             "dims = (1,) * (len(y.dims) > np.ndim(c)) + np.shape(c) + (1,) * (len(y.dims) - np.ndim(c) - 1)",
             "convolutions"),
    Mutation("a division by a constant goes into the convolution as a product", "runtime/passes/batchnorm.py",
             "else 1 / c, zero", "else c, zero", "convolutions"),
    Mutation("nodes that differ in attributes alone are one", "runtime/passes/cse.py",
             "attrs = tuple((a, _frozen(v)) for a, v in sorted(node.attrs.items()))",
             "attrs = tuple(a for a, v in sorted(node.attrs.items()))", "layouts"),
    Mutation("what is fused away is read elsewhere", "runtime/passes/chains.py",
             "if uses.get(result) != 1 or result not in readers or result in keep:",
             "if result not in readers or result in keep:", "elementwise"),
    Mutation("a sum is written over an operand that others read later", "runtime/passes/chains.py",
             "and last[name] == i:", "and last[name] >= i:", "convolutions"),
    Mutation("a mean over another axis makes a layer norm", "runtime/passes/canonical.py",
             'return "the mean is not over the last axis"', "pass", "norms"),
    Mutation("gelu of any number in place of one half", "runtime/passes/canonical.py",
             "return numbers(half=0.5, one=1.0, **root)(m)", "return numbers(one=1.0, **root)(m)", "elementwise"),
    # the planner and what sessions remember
    Mutation("values that meet in one step share bytes", "runtime/memory/liveness.py",
             "return a.first <= b.last and b.first <= a.last", "return a.first < b.last and b.first < a.last"),
    Mutation("a value is overwritten while others still read it", "runtime/memory/liveness.py",
             "        return old.first < new.first == old.last\n\n\nclass Parallel",
             "        return old.first < new.first <= old.last\n\n\nclass Parallel"),
    Mutation("a sum is written over an operand that the product reads, too", "runtime/passes/chains.py",
             'once = added >= 0 and sum(link[2].count(added) for link in node.attrs["chain"]) == 1',
             "once = added >= 0", "convolutions"),
    Mutation("all views of a value begin at its first byte", "runtime/compile/program.py",
             'views.append(Sharing(output, source, "view", alias.delta))',
             'views.append(Sharing(output, source, "view"))',
             "layouts"),
    Mutation("two values in the bytes of a third are not looked at", "runtime/memory/buffers.py",
             "if any(clashing(a, b, time) for a in moved.members for b in kept.around(a.life, time)):", "if False:",
             "layouts"),
    Mutation("results are those of the next run", "runtime/execution/guards.py",
             "answer[name] = place.copy()", "answer[name] = place"),
    Mutation("a large input that nothing reads has no place", "runtime/execution/guards.py",
             "staged.get(name)) for name", "staged[name]) for name", "", 7),
    Mutation("what follows a recurrent layer is taken for a part of it", "runtime/backends/onednn/postops.py",
             "    link, *others = chain(node)\n    if others:\n",
             "    (link,) = chain(node)\n    if not node.inputs:\n", "recurrent", 7),
    Mutation("a product reads an operand with its batch innermost as if it lay row by row",
             "runtime/backends/onednn/matmul.py",
             'return Operand(argument, ("in", at), Memory(sizes, t.dtype, strides=strides), layout)',
             'return Operand(argument, ("in", at), Memory(sizes, t.dtype, strides=strides), t.layout if '
             'is_permutation(t.layout) else "")', "products", 1),
    Mutation("a known run takes the feeds in another order", "runtime/execution/guards.py",
             "inputs = [feeds[n] if n in feeds else self.defaults[n] for n in self.names]",
             "inputs = [*feeds.values(), *self.defaults.values()]"),
    Mutation("arrays of another shape fit a run that is known", "runtime/execution/guards.py",
             f"{' ' * 16}if array.__class__ is not np.ndarray or array.shape != shape or array.dtype is not dtype:",
             f"{' ' * 16}if array.__class__ is not np.ndarray or array.dtype is not dtype:"),
    Mutation("a template serves all sizes", "ops/symbolic.py",
             "if _decided(self.value(terms, values), how) is not outcome:", "if False:"),
    Mutation("an equality of sizes is decided and not noted", "ops/symbolic.py",
             "        self.guards[terms, how] = outcome\n",
             '        if how != "=":\n            self.guards[terms, how] = outcome\n'),
    # sizes that are rounded up
    Mutation("a product sums over padding", "runtime/compile/padding_rules.py",
             "    names = [g.filled(node, names[0], deep, 0.0), g.filled(node, names[1], along, 0.0)]\n", "",
             "products"),
    Mutation("a reduction goes over padding", "runtime/compile/padding_rules.py",
             "        name = g.filled(node, name, axis, node.record.neutral or 0.0)\n", "        pass\n"),
    Mutation("a mean is that of all that is planned", "runtime/compile/padding_rules.py",
             'if node.op != "ReduceMean" or not rounded:', "if True:"),
    Mutation("padding is joined with what counts", "runtime/compile/padding_rules.py",
             "counts = g.array(rows, (len(rows),))", "counts = g.array([g.planned(n) for n in rows], (len(rows),))",
             "layouts"),
    # training
    Mutation("the gradient of a product is that of its other operand", "ops/math/elementwise.py",
             "return g.Mul(dys[0], xs[1]), g.Mul(dys[0], xs[0])", "return g.Mul(dys[0], xs[0]), g.Mul(dys[0], xs[1])",
             "elementwise"),
    Mutation("the gradient of a difference has one sign", "ops/math/elementwise.py",
             "    return dys[0], g.Neg(dys[0])\n", "    return dys[0], dys[0]\n", "elementwise"),
)  # fmt: skip


def planted(mutation: Mutation, root: Path) -> None:
    """Plant a defect in a checkout. Raises ValueError where its text does not stand there once."""
    path = root / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.file} has {text.count(mutation.old)} times what {mutation.what!r} changes")
    path.write_text(text.replace(mutation.old, mutation.new))
