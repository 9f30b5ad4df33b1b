"""LLVM, through llvmlite: texts become code that stands alone. The extra `mezzo[codegen]` installs it."""

from __future__ import annotations

from functools import cache
from typing import Any

from .....ops.errors import MissingPackage
from ..tiers import Tier
from .elf import Code, joined


def llvm_version() -> str:
    """The version of LLVM that compiles here. Raises MissingPackage where there is none."""
    return ".".join(map(str, _llvm().llvm_version_info))


@cache
def _llvm() -> Any:
    try:
        from llvmlite import binding
    except ImportError as error:
        raise MissingPackage("llvmlite is not installed", hint="pip install 'mezzo[codegen]'") from error
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


@cache
def _machine(tier: Tier) -> Any:
    target = _llvm().Target.from_triple(tier.triple)
    return target.create_target_machine(cpu=tier.cpu, features=tier.features, opt=3, reloc="pic", codemodel="small")


def compiled(text: str, tier: Tier) -> Code:
    """The code of a text for a tier. Raises PlanError where it does not stand alone, MissingPackage without LLVM.

    The text comes from this package alone: LLVM ends the process over some that it does not like.
    """
    llvm, machine = _llvm(), _machine(tier)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = tier.triple, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False  # the texts have vectors
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return joined(machine.emit_object(module))
