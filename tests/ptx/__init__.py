"""An interpreter of PTX: it runs what NVRTC emits for a device, and looks for what only a device would show.

Threads are the columns of NumPy's arrays: an instruction is one call for all threads that are at it. Warps go on in a
random order. Each byte of memory remembers who has read and written it, and whether it means anything: see `memory`.
"""
