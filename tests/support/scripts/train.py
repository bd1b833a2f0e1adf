"""A small DDP job for live tests. It knows nothing of sameshot; the options only shape the training.

--stagger: seconds times rank to wait before torch is imported. --fail-once RANK FILE: that rank fails in its
first life, when FILE does not exist yet. --finish FILE ends the training on all ranks.
"""

import argparse
import os
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--finish", type=Path, required=True)
parser.add_argument("--stagger", type=float, default=0.0)
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--fork-workers", action="store_true")
parser.add_argument("--fail-once", nargs=2, default=None)
parser.add_argument("--pause", type=float, default=0.005)
parser.add_argument("--max-steps", type=int, default=1_000_000)

if __name__ == "__main__":
    options = parser.parse_args()
    time.sleep(options.stagger * int(os.environ["RANK"]))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        return torch.full((32,), float(index % 7))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    context = "fork" if options.fork_workers else "spawn"
    loader = DataLoader(
        Samples(),
        batch_size=8,
        num_workers=options.loader_workers,
        multiprocessing_context=context if options.loader_workers else None,
    )
    for step, batch in enumerate(loader):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.pause)
        if rank == 0:
            print(f"step {step}", flush=True)
        if options.fail_once and step == 5 and rank == int(options.fail_once[0]):
            marker = Path(options.fail_once[1])
            if not marker.exists():
                marker.touch()
                sys.exit(17)
        finish = torch.tensor(float(options.finish.exists()))
        dist.all_reduce(finish, op=dist.ReduceOp.MAX)
        if finish.item() or step + 1 >= options.max_steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
