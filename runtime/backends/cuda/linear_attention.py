"""Linear attention: a matrix for each head that every step reads, decays and updates.

The columns of the matrix know nothing of one another, so a thread goes through all steps with one column, which it
keeps in workspace; neighbouring threads have neighbouring columns.
"""

from __future__ import annotations

import math

from ....ops import Tensor
from ...compile.kernel import Declined, KernelRequest, listed
from .generated import Generated
from .launch import In, Out, Scratch, Written
from .text import each, elements, has_input, reads, writes


class LinearAttention(Generated):
    """LinearAttention with all rules."""

    name = "gpu.linear_attention"
    operators = listed("LinearAttention")
    spares = (1,)

    def write(self, request: KernelRequest) -> Written | Declined:
        every = [t for t in (*request.inputs, *request.outputs) if t is not None]
        forms, (query, key, value) = elements(every), request.inputs[:3]
        if forms is None or any(not e.dtype.floating for e in forms):
            return Declined("an operand is no tensor of floats, or its sizes are not known")
        assert isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)
        if max(t.elements or 0 for t in every if isinstance(t, Tensor)) >= 2**31:
            return Declined("too many elements for 32-bit indices")
        attrs, present = request.node.attrs, [i for i, t in enumerate(request.inputs) if t is not None]
        kinds = dict(zip(present, forms, strict=False))
        heads, groups = attrs["q_num_heads"], attrs["kv_num_heads"]
        rule, (batch, steps, _) = attrs.get("update_rule", "gated_delta"), query.sizes
        deep, wide = key.sizes[2] // groups, value.sizes[2] // groups
        if not batch * groups * deep * wide:
            return Declined("heads without elements")
        shared, kind = heads // groups, "double" if any(e.wide == "double" for e in forms) else "float"
        scale = attrs.get("scale", 0.0) or 1 / math.sqrt(deep)
        names = {0: "query", 1: "key", 2: "value", 3: "past", 4: "decay", 5: "beta"}
        used = [0, 1, 2, *([3] if has_input(request, 3) else [])]
        used += [i for i, rules in ((4, ("gated", "gated_delta")), (5, ("delta", "gated_delta"))) if rule in rules]
        if any(not has_input(request, i) for i in used):
            return Declined("an input that the rule needs is not there")

        def read(i: int, place: str) -> str:
            return f"({kind}){kinds[i].read(f'{names[i]}[{place}]')}"

        column = f"state[(c0 * {groups} + c1) * {deep * wide} + d * {wide} + c2]"
        start = read(3, f"((c0 * {groups} + c1) * {deep} + d) * {wide} + c2") if 3 in used else "0"
        each_d = f"for (int d = 0; d < {deep}; ++d)"
        lines = [
            f"{each_d} {column} = {start};",
            f"for (int t = 0; t < {steps}; ++t) {{",
            f"const int row = c0 * {steps} + t;",
        ]
        key_at = read(1, f"row * {groups * deep} + c1 * {deep} + d")
        if 4 in used:
            fades = request.inputs[4]
            assert isinstance(fades, Tensor)
            alone = fades.sizes[2] == groups
            place = f"row * {fades.sizes[2]} + " + ("c1" if alone else f"c1 * {deep} + d")
            exp = "exp" if kind == "double" else "expf"
            lines.append(f"{each_d} {column} *= {exp}({read(4, place)});")
        lines.append(f"{kind} v = {read(2, f'row * {groups * wide} + c1 * {wide} + c2')};")
        if 5 in used:
            learns = request.inputs[5]
            assert isinstance(learns, Tensor)
            own = "c1" if learns.sizes[2] > 1 else "0"
            lines += [
                f"{kind} known = 0;",
                f"{each_d} known += {column} * {key_at};",
                f"v = (v - known) * {read(5, f'row * {learns.sizes[2]} + {own}')};",
            ]
        query_at = read(0, f"row * {heads * deep} + (c1 * {shared} + h) * {deep} + d")
        result = forms[len(present)]
        lines += [
            f"{each_d} {column} += {key_at} * v;",
            f"for (int h = 0; h < {shared}; ++h) {{",
            f"    {kind} sum = 0;",
            f"    {each_d} sum += {query_at} * ({kind}){scale!r} * {column};",
            f"    y[row * {heads * wide} + (c1 * {shared} + h) * {wide} + c2] = {result.write('sum')};",
            "}",
            "}",
        ]
        parameters = [reads(kinds[i], names[i], In(i)) for i in used]
        parameters += [writes(result, "y", Out(0)), writes(kind, "state", Scratch(0))]
        if any(request.node.outputs[1:]):
            last = f"present[((c0 * {groups} + c1) * {deep} + d) * {wide} + c2]"
            lines.append(f"{each_d} {last} = {forms[-1].write(column)};")
            parameters.append(writes(forms[-1], "present", Out(1)))
        attention = each("linear_attention", parameters, (batch, groups, wide), "\n".join(lines))
        return Written((attention,), batch * groups * deep * wide * (8 if kind == "double" else 4))
