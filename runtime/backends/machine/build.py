"""Builder of blobs: `python -m mezzo.runtime.backends.machine.build` writes one for each tier, with llvmlite.

The same texts and the same LLVM give the same bytes.
"""

from __future__ import annotations

from ...digests import blake2b
from ...files import replace_file
from .blobs import Blob, path_of
from .emit import FAMILIES
from .emit.compiler import compiled, llvm_version
from .emit.ir import module
from .tiers import TIERS, Tier


def texts(tier: Tier) -> list[str]:
    """The text of each family of kernels."""
    return [module(functions(tier)) for functions in FAMILIES]


def digest_of(sources: list[str]) -> str:
    """A digest that tells if the texts have changed."""
    return blake2b("\0".join(sources).encode(), digest_size=16).hexdigest()


def build(tier: Tier) -> Blob:
    """The blob of a tier. Raises MissingPackage without llvmlite."""
    sources = texts(tier)
    code, functions = b"", dict[str, int]()
    for source in sources:
        part = compiled(source, tier)
        code += bytes(-len(code) % 64)
        functions |= {name: len(code) + at for name, at in part.functions.items()}
        code += part.data
    about = {"tier": tier.name, "llvm": llvm_version(), "texts": digest_of(sources), "functions": functions}
    return Blob(about, code)


def main() -> None:
    """Write all blobs."""
    for tier in TIERS:
        blob = build(tier)
        replace_file(path_of(tier), [blob.content()])
        print(f"{path_of(tier).name}: {len(blob.code)} bytes, {len(blob.about['functions'])} functions")


if __name__ == "__main__":
    main()
