"""Communicators: collective operations between ranks, over shared memory, NCCL, or the threads of one process."""
