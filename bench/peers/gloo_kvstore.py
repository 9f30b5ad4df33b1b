"""A rank of torch.distributed with gloo for `bench/kvstore.py`: `gloo_kvstore.py RANK RANKS PORT`."""

import sys

import torch
import torch.distributed as dist
from teams import answer


def main():
    rank, ranks, port = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)

    def measure(size, how):
        tensor = torch.full((size // 4,), float(rank + 1))
        dist.all_reduce(tensor)
        if tensor[0] != sum(range(1, ranks + 1)):
            raise ArithmeticError(f"{tensor} is no sum")
        tensor.zero_()  # sums of sums would grow for ever
        return lambda: dist.all_reduce(tensor)

    answer(measure)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
