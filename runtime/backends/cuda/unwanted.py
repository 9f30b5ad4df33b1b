"""Outputs that nobody wants: a family that computes them all the same writes them to the workspace of the step.

A graph lists such an output without a name, or not at all behind the last one that is wanted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ....ops import Tensor
from ....ops.errors import MezzoError
from ...compile.kernel import KernelRequest
from ...memory.liveness import aligned
from .launch import Launch, Operand, Out, Scratch, Written


def completed(request: KernelRequest, spared: Collection[int]) -> KernelRequest:
    """The question with all outputs of the operator named and typed, but for those in `spared`, which may be absent."""
    node = request.node
    names, params = list(node.outputs), node.record.outputs
    if not any(p.variadic for p in params):
        names += [""] * (len(params) - len(names))
    lacking = [i for i, name in enumerate(names) if not name and i not in spared]
    if not lacking:
        return request
    while names and not names[-1] and len(names) - 1 not in lacking:
        names.pop()
    try:
        types = node.record.infer_types(request.inputs, node.attrs, (True,) * len(names))
    except MezzoError:  # there is no such output with these operands
        return request
    known = [*request.results, *[None] * (len(names) - len(node.outputs))]
    full = [f"unwanted {i}" if i in lacking else name for i, name in enumerate(names)]
    outputs = [known[i] or types[i] for i, name in enumerate(full) if name]
    return replace(request, node=replace(node, outputs=tuple(full)), outputs=outputs)


def unwanted_to_workspace(written: Written, whole: KernelRequest, request: KernelRequest) -> Written:
    """The launches for the completed question `whole`, with what `request` does not want in the workspace."""
    wanted, places, workspace = request.node.outputs, dict[int, int](), written.workspace
    for i, known in enumerate(whole.results):
        if isinstance(known, Tensor) and not (i < len(wanted) and wanted[i]):
            places[i] = aligned(workspace)
            workspace = places[i] + known.nbytes

    def place(operand: Operand) -> Operand:
        return Scratch(places[operand.index]) if isinstance(operand, Out) and operand.index in places else operand

    needed = {o for launch in written.launches if not _only_copies(launch, places) for o in launch.operands}
    launches = [
        # what is copied to the workspace is never in place already
        replace(launch, operands=tuple(map(place, launch.operands)), copies=None if copies else launch.copies)
        for launch in written.launches
        if not (copies := _only_copies(launch, places)) or needed.intersection(launch.operands)
    ]
    return replace(
        written,
        launches=tuple(launches),
        workspace=workspace,
        aliases=tuple(a for a in written.aliases if a.output not in places),
        layouts=written.layouts[: len(request.inputs) + len(wanted)],
    )


def _only_copies(launch: Launch, places: Collection[int]) -> bool:
    """True if a launch copies an input to an output that nobody wants."""
    return launch.copies is not None and launch.copies.output in places
