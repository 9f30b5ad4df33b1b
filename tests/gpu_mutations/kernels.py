"""Defects in kernels that we write: barriers, shared memory, masks, indices, bounds, numbers."""

from __future__ import annotations

from .mutation import Mutation, of_family


def _rows(what: str, old: str, new: str, family: str = "gpu.softmax or gpu.normalisation or gpu.places") -> Mutation:
    return of_family(family, what, "rows.py", old, new)


def _reduce(what: str, old: str, new: str) -> Mutation:
    return of_family("gpu.reduce", what, "reduce.py", old, new)


KERNELS = (
    # rows that warps and blocks combine
    _rows(
        "a warp's sum leaves its lower half out",
        'f"for (int m = {WARP // 2}; m; m >>= 1) {{ const {kind} other',
        'f"for (int m = {WARP // 4}; m; m >>= 1) {{ const {kind} other',
    ),
    _rows(
        "shuffles name half of the warp",
        '__shfl_xor_sync(0xffffffffu, {name}, m); "',
        '__shfl_xor_sync(0x0000ffffu, {name}, m); "',
    ),
    _rows(
        "sums of warps are read before they are written",
        'f"if (lane % {WARP} == 0) {name}s[lane / {WARP}] = {name};",\n                "__syncthreads();",',
        'f"if (lane % {WARP} == 0) {name}s[lane / {WARP}] = {name};",',
    ),
    _rows(
        "shared memory for a warp too few",
        'f"__shared__ {kind} {name}s[{warps}];"',
        'f"__shared__ {kind} {name}s[{warps - 1}];"',
    ),
    _rows(
        "one warp's sum is forgotten",
        'f"for (int w = 1; w < {warps}; ++w) {{ const {kind} other = {name}s[w]; {name} = {combine}; }}"',
        'f"for (int w = 2; w < {warps}; ++w) {{ const {kind} other = {name}s[w]; {name} = {combine}; }}"',
    ),
    _rows(
        "columns are combined without a barrier",
        'f"{name}s[lane][threadIdx.x % {WARP}] = {name};",\n                "__syncthreads();",',
        'f"{name}s[lane][threadIdx.x % {WARP}] = {name};",',
        "gpu.losses or gpu.batch_training or gpu.places",
    ),
    _rows("rows beyond the last are computed", "if (row >= {self.count}) return;", "if (row > {self.count}) return;"),
    _rows(
        "the last elements of a row are left out",
        'f"for (int j = lane; j < {self.size}; j += {self.team}) {{',
        'f"for (int j = lane; j < {self.size} - {self.size} % 4; j += {self.team}) {{',
    ),
    _rows(
        "an element behind the row is read",
        'test = "" if self._even else f"if (j < {self.size}) "',
        'test = "" if self._even else f"if (j <= {self.size}) "',
    ),
    _rows(
        "strides of the inner axes are taken for one",
        'return f"({self.index}){j} * {strides[0]}" if strides and strides[0] != 1 else j',
        "return j",
    ),
    # softmax, normalisation
    of_family(
        "gpu.softmax",
        "softmax does not subtract the largest element",
        "softmax.py",
        "f\"v[k] = {rounded(f'{exp}(v[k] - most)')}; sum += v[k];\"",
        "f\"v[k] = {rounded(f'{exp}(v[k])')}; sum += v[k];\"",
    ),
    of_family(
        "gpu.softmax",
        "a long row's sums are not scaled to the common largest element",
        "softmax.py",
        'f"sum *= own == most ? 1 : {exp}(own - most);",',
        '"sum *= 1;",',
    ),
    of_family(
        "gpu.softmax",
        "the gradient of softmax forgets the sum",
        "softmax.py",
        'else f"{y} * ({dy} - sum)"',
        'else f"{y} * {dy}"',
    ),
    of_family(
        "gpu.normalisation",
        "epsilon stands outside of the root",
        "norm.py",
        'rows, wide, f"1 / {_root(wide)}(squares / {rows.size} + {epsilon})", result, more=more, after',
        'rows, wide, f"1 / ({_root(wide)}(squares / {rows.size}) + {epsilon})", result, more=more, after',
    ),
    of_family(
        "gpu.normalisation",
        "the mean is divided by one less",
        "norm.py",
        "const {wide} mean = sum / {rows.size};",
        "const {wide} mean = sum / ({rows.size} - 1);",
    ),
    of_family(
        "gpu.normalisation",
        "every thread stores the statistics of its row, other threads those of others",
        "norm.py",
        "if (lane == 0) y{i}[row] =",
        "y{i}[row + (lane > 0)] =",
    ),
    of_family(
        "gpu.normalisation",
        "a scale that broadcasts is read along the row",
        "norm.py",
        "strides = [0 if n == 1 else s for n, s in zip(shape, strides_of(shape), strict=True)]",
        "strides = list(strides_of(shape))",
    ),
    # reductions
    _reduce("a mean of parts", 'f"{{}} / ({e.wide}){count}.0"', 'f"{{}} / ({e.wide}){count + 1}.0"'),
    _reduce(
        "NaN is lost in a maximum", "f' || {v} != {v}' if e.dtype.floating else ''", "'' if e.dtype.floating else ''"
    ),
    _reduce("a part begins where another does", "f'blockIdx.y * {chunk}'", "f'blockIdx.y * {chunk - step}'"),
    _reduce(
        "parts lie on each other in the workspace", "        offset += self._room(kind)\n", "        offset += 0\n"
    ),
    _reduce(
        "the workspace is too small",
        "return -(-self.parts * self.rows.outer.count * size // 64) * 64",
        "return -(-self.parts * self.rows.outer.count * size // 128) * 64",
    ),
    _reduce(
        "the last row is left out", 'f"if (row < {rows.outer.count}) {{",', 'f"if (row < {rows.outer.count} - 1) {{",'
    ),
    _reduce(
        "16 bytes are read where only 4 are aligned",
        "while width > 1 and (inner.sizes[0] % width or any(s % width for s in outer.strides[0])):",
        "while width > 1 and inner.sizes[0] % width:",
    ),
    _reduce("logarithms of sums lose what is scaled", "s = s * {f}(m - o_m) + o_s; m = o_m;", "s = s + o_s; m = o_m;"),
    # copies
    of_family(
        "gpu.copy",
        "a square is read before it is written",
        "copies.py",
        '        "}",\n        "__syncthreads();",\n',
        '        "}",\n',
    ),
    of_family(
        "gpu.copy",
        "the square is turned twice",
        "copies.py",
        "to[into + ({index})b * {copy.to[axis]} + a] = square[threadIdx.x][r];",
        "to[into + ({index})b * {copy.to[axis]} + a] = square[r][threadIdx.x];",
    ),
    of_family(
        "gpu.copy",
        "a copy writes an element too many",
        "copies.py",
        "if (i < {copy.count}) to[{to}] = of[{of}];",
        "if (i <= {copy.count}) to[{to}] = of[{of}];",
    ),
    of_family(
        "gpu.copy",
        "16 bytes are moved where runs begin elsewhere",
        "copies.py",
        "apart = [self.sizes[-1], self.to_begin, self.of_begin, *self.to[:-1], *self.of[:-1]]",
        "apart = [self.sizes[-1], *self.to[:-1], *self.of[:-1]]",
    ),
    of_family(
        "gpu.copy",
        "axes are merged that only one side has together",
        "copies.py",
        "if merged and (merged[-1][1], merged[-1][2]) == (a * size, b * size):",
        "if merged and merged[-1][1] == a * size:",
    ),
    of_family(
        "gpu.copy",
        "of several copies the first is done for all",
        "copies.py",
        "if (blockIdx.y == {i}) {{",
        "if (blockIdx.y == 0) {{",
    ),
    of_family(
        "gpu.pad",
        "reflection repeats the border",
        "movement.py",
        "last=size - 1, p=2 * (size - 1))",
        "last=size - 1, p=2 * size)",
    ),
    of_family(
        "gpu.pad",
        "padding in front is read from memory",
        "movement.py",
        'inside.append(f"s{d} >= {first}")',
        'inside.append(f"s{d} >= {first} - 1")',
    ),
    # pools
    of_family(
        "gpu.pool",
        "the average counts one element more",
        "pool.py",
        'if not layout or ord(layout[-1]) - ord("a") != 1:',
        "if not layout:",
    ),
    of_family(
        "gpu.pool",
        "places of the largest are of another channel",
        "pool.py",
        "((long long)c0 * {x.sizes[1]} + c1) * ",
        "((long long)c0 + c1 * {x.sizes[1]}) * ",
    ),
    # indices
    of_family(
        "gpu.gather",
        "negative indices are not counted from the end",
        "indexing.py",
        "long long {name} = {place}; if ({name} < 0) {name} += {size};",
        "long long {name} = {place};",
    ),
    of_family(
        "index",
        "an index behind the axis is read",
        "indexing.py",
        "y[i] = k >= 0 && k < {n} ? x[(c0 * {n} + k) * {sizes[2]} + c2] : nothing;",
        "y[i] = k >= 0 && k <= {n} ? x[(c0 * {n} + k) * {sizes[2]} + c2] : nothing;",
    ),
    of_family(
        "index",
        "an index below the axis is read",
        "indexing.py",
        "y[i] = k >= 0 && k < {n} ? x[{dot(strides)} + k * {step}]",
        "y[i] = k < {n} ? x[{dot(strides)} + k * {step}]",
    ),
    of_family(
        "index",
        "a tuple of indices is inside if its last is",
        "indexing.py",
        "there = there && k >= 0 && k < {n}; from",
        "there = k >= 0 && k < {n}; from",
    ),
    of_family(
        "index",
        "an update beside the tensor is written",
        "indexing.py",
        "row = row < 0 || k < 0 || k >= {size} ? -1 : row * {size} + k; }}",
        "row = row * {size} + k; }}",
    ),
    of_family(
        "gpu.scatter",
        "the first of two updates stays",
        "indexing.py",
        "if (row >= 0) atomicMax(&last[row], (int)i);",
        "if (row >= 0) atomicMax(&last[row], -(int)i);",
    ),
    of_family(
        "gpu.scatter",
        "the last update is found without an atomic operation",
        "indexing.py",
        "if (row >= 0) atomicMax(&last[row], (int)i);",
        "if (row >= 0 && last[row] < (int)i) last[row] = (int)i;",
    ),
    of_family(
        "gpu.scatter",
        "numbers of updates begin as nothing",
        "indexing.py",
        '(rows,), "last[i] = -1;")]',
        '(rows,), "if (i) last[i] = -1;")]',
    ),
    # sorting, sums upto
    of_family(
        "gpu.top_k",
        "the network sorts without a barrier",
        "topk.py",
        '        "    __syncthreads();",\n        "}",\n    ]\n',
        '        "}",\n    ]\n',
    ),
    of_family(
        "gpu.top_k",
        "sorting begins before all is loaded",
        "topk.py",
        '        "}",\n        "__syncthreads();",\n        *_network',
        '        "}",\n        *_network',
    ),
    of_family(
        "gpu.top_k", "equal elements come in any order", "topk.py", "({alike} && {i} < {j})", "({alike} && {i} > {j})"
    ),
    of_family(
        "gpu.top_k",
        "elements behind the end are candidates",
        "topk.py",
        "f'part * {part} + j'} : -1;",
        "f'part * {part} + j'} : j;",
    ),
    of_family(
        "gpu.cumulated",
        "totals of the next piece overwrite those that others read",
        "scans.py",
        '        "        running = upon;",\n        "    }",\n        "    __syncthreads();",\n',
        '        "        running = upon;",\n        "    }",\n',
    ),
    of_family(
        "gpu.cumulated",
        "lanes add what no lane gave",
        "scans.py",
        "if (lane >= m) upto = other {sign} upto;",
        "upto = other {sign} upto;",
    ),
    of_family(
        "gpu.cumulated",
        "what was carried is forgotten",
        "scans.py",
        "{kind} ahead = carried;",
        "{kind} ahead = {none};",
    ),
    of_family(
        "gpu.places",
        "the last of equal elements",
        "scans.py",
        "{'>' if last else '<'} {{3}})",
        "{'<' if last else '>'} {{3}})",
    ),
    # losses
    of_family(
        "gpu.losses",
        "labels that are ignored count",
        "losses.py",
        'beside += f" || named == {self.element.integer(self.ignored)}"',
        'beside += ""',
    ),
    of_family(
        "index",
        "negative labels count from the end",
        "losses.py",
        "(int)(named < 0 || named >= {classes} ? -1 : named)",
        "(int)(named < -{classes} || named >= {classes} ? -1 : named < 0 ? named + {classes} : named)",
    ),
    of_family(
        "index",
        "a label behind the classes is looked up",
        "losses.py",
        "(int)(named < 0 || named >= {classes} ? -1 :",
        "(int)(named < 0 ? -1 :",
    ),
    of_family("gpu.losses", "the gradient forgets the label", "losses.py", "c1 == label ? made - pull : made", "made"),
    of_family(
        "gpu.losses",
        "parts of a loss lie on each other",
        "losses.py",
        "places = [Scratch(workspace + k * aligned(parts * itemsize)) for k in range(len(sums))]",
        "places = [Scratch(workspace) for k in range(len(sums))]",
    ),
    # batch normalisation in training
    of_family(
        "gpu.batch_training",
        "parts of a channel are stored where those of another are",
        "batchnorm.py",
        "parts_{n}[row * {self.parts} + blockIdx.y] = {n};",
        "parts_{n}[row + {self.parts} * blockIdx.y] = {n};",
    ),
    of_family(
        "gpu.batch_training",
        "two numbers share a place in the workspace",
        "batchnorm.py",
        'places = [(f"parts_{n}", Scratch(used + i * step)) for i, n in enumerate(names)]',
        'places = [(f"parts_{n}", Scratch(used)) for i, n in enumerate(names)]',
    ),
    # products
    of_family(
        "gpu.gemm",
        "squares of the operands are read before they are there",
        "gemm.py",
        '"column", "column0", self.columns, self.right),\n            "__syncthreads();",',
        '"column", "column0", self.columns, self.right),',
    ),
    of_family(
        "gpu.gemm",
        "squares are overwritten while others read",
        "gemm.py",
        '            "}",\n            "__syncthreads();",\n            "}",\n        ]\n',
        '            "}",\n            "}",\n        ]\n',
    ),
    of_family(
        "gpu.gemm",
        "shared memory for one row less",
        "gemm.py",
        'f"__shared__ {kind} as[{DEPTH}][{m + 1}];"',
        'f"__shared__ {kind} as[{DEPTH}][{m - 1}];"',
    ),
    of_family(
        "gpu.gemm",
        "the depth is not bounded",
        "gemm.py",
        "if ({outer} < {size} && k < {self.inner}) {{ {value} }}",
        "if ({outer} < {size}) {{ {value} }}",
    ),
    of_family(
        "gpu.gemm",
        "rows beyond the matrix are stored",
        "gemm.py",
        "if (row >= {self.rows} || column >= {self.columns}) continue;",
        "if (column >= {self.columns}) continue;",
    ),
    of_family(
        "gpu.conv",
        "a tap before the image is read",
        "conv.py",
        "there = there && s >= 0{divides} &&",
        "there = there{divides} &&",
    ),
    # other families
    of_family(
        "gpu.determinant",
        "the pivot is read before it is found",
        "determinant.py",
        "        pivot = best;\n    }}\n    __syncthreads();\n",
        "        pivot = best;\n    }}\n",
    ),
    of_family(
        "gpu.determinant",
        "rows are exchanged while others eliminate",
        "determinant.py",
        "        a[p * {n} + c] = held;\n    }}\n    __syncthreads();\n",
        "        a[p * {n} + c] = held;\n    }}\n",
    ),
    of_family(
        "random",
        "every thread draws the same numbers",
        "random.py",
        "const KERNEL_four u = KERNEL_drawn(key, i);",
        "const KERNEL_four u = KERNEL_drawn(key, i / 2);",
    ),
    of_family(
        "gpu.random or random",
        "shares are halved without a barrier",
        "random.py",
        "        most[threadIdx.x] = v > w || v != v ? v : w;\n    }}\n    __syncthreads();\n",
        "        most[threadIdx.x] = v > w || v != v ? v : w;\n    }}\n",
    ),
    of_family(
        "gpu.quantise", "scales of one axis are taken along another", "quantised.py", 'return f"c{at}"', 'return "c0"'
    ),
    of_family(
        "gpu.dynamic_quantise",
        "the least element is the largest of the warps'",
        "quantised.py",
        '"other < least || other != other ? other : least"',
        '"other > least || other != other ? other : least"',
    ),
    of_family(
        "gpu.recurrence",
        "a step begins before the state is whole",
        "recurrence.py",
        'return [*text, *(["__syncthreads();"] if self.through else [])]',
        "return text",
    ),
    of_family(
        "gpu.recurrence",
        "states before and after a step share their bytes",
        "recurrence.py",
        "state{i} + (step + 1 & 1) * {count};",
        "state{i} + (step & 1) * {count};",
    ),
    of_family(
        "gpu.recurrence",
        "shares are summed before they are stored",
        "recurrence.py",
        '*stores, "}", "__syncthreads();"]',
        '*stores, "}"]',
    ),
    of_family(
        "gpu.pointwise",
        "a result lies in place of an operand that is read twice",
        "pointwise.py",
        "if names.count(names[i]) == 1 and not self.request.constant(i)",
        "if not self.request.constant(i)",
    ),
)
