"""Fast path of repeated runs on a GPU: arrays of the device in and out, of the same signature as before, go straight to
an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....ops import Tensor
from ....ops.dataclasses import dataclass
from ...execution.guards import Replay
from ...execution.overlap import share
from ...ir.interpreter import Meter
from .host import on_host

if TYPE_CHECKING:
    from ...compile.executable import Executable
    from ...execution.instance import Instance

Kind = tuple[str, type[Any], tuple[int, ...], Any]  # name, class, shape, element type
Made = tuple[str, tuple[int, ...], Any]


@dataclass(slots=True, eq=False)
class Direct:
    """The signature of the feeds and buffers of a run, and the program for them; `index` is the device's."""

    executable: Executable
    index: int
    fed: tuple[Kind, ...]
    buffers: tuple[Kind, ...]
    results: tuple[Made, ...]

    @classmethod
    def of(
        cls, executable: Executable, index: int, feeds: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> Direct | None:
        """Return the signature of a run. None if the fast path cannot serve it: inputs were left out or are no arrays,
        results have data-dependent sizes, or a step draws random numbers or runs on the host."""
        program = executable.program
        steps = program.all_steps()
        fixed = all(isinstance(p.type, Tensor) and p.type.static for p in (*program.inputs, *program.outputs))
        arrays = (*feeds.values(), *outputs.values())
        plain = all(hasattr(a, "__cuda_array_interface__") or isinstance(a, np.ndarray) for a in arrays)
        launched = all(not on_host(s) and s.choice.deterministic for s in steps)
        if not (fixed and plain and launched) or set(feeds) != set(program.given):
            return None
        results = [(p.name, p.type.sizes, p.type.dtype.numpy) for p in program.outputs if isinstance(p.type, Tensor)]
        return cls(executable, index, _kinds(feeds), _kinds(outputs), tuple(results))

    def fits(self, feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> bool:
        """True if these have the same signature, are contiguous, and are on the device or the host as those were."""
        same = self._same(self.fed, feeds) and self._same(self.buffers, outputs)
        return same and not any(share(x, y) for y in outputs.values() for x in feeds.values())

    def _same(self, kinds: Sequence[Kind], arrays: Mapping[str, Any]) -> bool:
        if len(arrays) != len(kinds):
            return False
        for name, of, shape, dtype in kinds:
            array: Any = arrays.get(name)
            if array.__class__ is not of or array.shape != shape or array.dtype != dtype:
                return False
            if not array.flags.c_contiguous:
                return False
            if of is np.ndarray:
                if kinds is self.buffers and not array.flags.writeable:
                    return False
            elif array.device.id != self.index:
                return False
        return True

    def replay(self, instance: Instance) -> Replay:
        """The run in one instance."""
        names, results, run, around = instance.program.given, self.results, instance.run, instance.around

        def replay(feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
            if around.meter.watches:  # of a run before, which has ended
                around.meter = Meter(around.budget.steps)
            buffers = [outputs[n] if n in outputs else np.empty(sizes, dtype) for n, sizes, dtype in results]
            run([feeds[n] for n in names], buffers)
            return {name: buffer for (name, _, _), buffer in zip(results, buffers, strict=True)}

        return replay


def _kinds(arrays: Mapping[str, Any]) -> tuple[Kind, ...]:
    return tuple((n, a.__class__, tuple(a.shape), a.dtype) for n, a in arrays.items())
