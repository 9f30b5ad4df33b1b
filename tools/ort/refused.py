"""Names of ONNX Runtime's API that are refused, each with what to do instead."""

from __future__ import annotations

from typing import Any, ClassVar

from ...ops.errors import ArgumentError
from .hints import overlooked


class _Refused:
    """Base of classes that are not made: `isinstance` answers False."""

    instead: ClassVar[str]

    def __new__(cls, *_: Any, **__: Any) -> Any:
        raise ArgumentError("this is not built", where=f"onnxruntime.{cls.__name__}", hint=cls.instead)


def _made(cls: type[_Refused], *_: Any, **__: Any) -> Any:
    """A function that makes an object of such a class."""
    return cls()


class ModelPackage(_Refused):
    instead = "a .mezzo file holds variants for several machines and sizes"
    open = classmethod(_made)


class ModelPackageComponentContext(ModelPackage):
    pass


class ModelPackageContext(ModelPackage):
    pass


class ModelPackageOptions(ModelPackage):
    pass


class OrtEpContextData(_Refused):
    instead = "models with compiled contexts are those of other providers"


class OrtEpContextDataBuffer(OrtEpContextData):
    pass


class OrtSyncStream(_Refused):
    instead = "runs end before they return"


class SparseTensor(_Refused):
    instead = "feed the dense array: no operator here takes sparse tensors"
    sparse_coo_from_numpy = sparse_csr_from_numpy = classmethod(_made)


def _refuse(name: str, instead: str, *_: Any, **__: Any) -> None:
    raise ArgumentError("this is not built", where=f"onnxruntime.{name}", hint=instead)


PLANNED = "arenas are planned; the entry mezzo.max_memory of SessionOptions limits them"


def create_and_register_allocator(*given: Any) -> None:
    """Refused, but for programs that were not written for Mezzo: arenas are planned."""
    if not overlooked("create_and_register_allocator", [*given]):
        _refuse("create_and_register_allocator", PLANNED)


def create_and_register_allocator_v2(*given: Any) -> None:
    """As `create_and_register_allocator`."""
    if not overlooked("create_and_register_allocator_v2", [*given]):
        _refuse("create_and_register_allocator_v2", PLANNED)


def register_execution_provider_library(*_: Any) -> None:
    """Refused: devices and kernels are registered from Python."""
    _refuse("register_execution_provider_library", "CONTRIBUTING.md, A device: a Target and an Executor in DEVICES")


def unregister_execution_provider_library(*_: Any) -> None:
    """Refused, as registering is."""
    _refuse("unregister_execution_provider_library", "CONTRIBUTING.md, A device: a Target and an Executor in DEVICES")
