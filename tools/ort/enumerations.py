"""Enumerations of ONNX Runtime's API, with its names and numbers."""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag


class Named(IntEnum):
    """Numbers that print by their names, as those of ONNX Runtime do."""

    __str__ = Enum.__str__


class ExecutionMode(Named):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(Named):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class GraphOptimizationLevel(Named):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class OrtAllocatorType(Named):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtCompileApiFlags(IntFlag):
    __str__ = Enum.__str__
    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class OrtCompiledModelCompatibility(Named):
    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


class OrtDeviceEpIncompatibilityReason(Named):
    NONE = 0
    DRIVER_INCOMPATIBLE = 1
    DEVICE_INCOMPATIBLE = 2
    MISSING_DEPENDENCY = 4
    UNKNOWN = -(1 << 31)


class OrtDeviceMemoryType(Named):
    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtDeviceVendorId(Named):
    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtExecutionProviderDevicePolicy(Named):
    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtHardwareDeviceType(Named):
    CPU = 0
    GPU = 1
    NPU = 2


class OrtMemType(Named):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1  # another name of CPU_OUTPUT
    DEFAULT = 0


class OrtMemoryInfoDeviceType(Named):
    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtSparseFormat(Named):
    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class ModelPackageWriteMode(Named):
    PRESERVE = 0
    DENSE = 1
