"""A small training job for live tests. It knows nothing of sameshot; the options only shape the training.

--finish FILE ends the training on all ranks. --stagger: seconds times rank to wait before torch is imported.
--fail-on RANK FILE: once FILE appears, that rank takes it away and fails. --apart: every rank trains for itself and
does not notice when another one dies; by default they train one model (DDP). --pause SECONDS: asleep in every step;
--pause-file FILE holds others, once it is there.
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
parser.add_argument("--fail-on", nargs=2, default=None)
parser.add_argument("--pause", type=float, default=0.005)
parser.add_argument("--pause-file", type=Path, default=None)
parser.add_argument("--max-steps", type=int, default=1_000_000)
parser.add_argument("--apart", action="store_true")

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
    model = nn.Linear(32, 32)
    if not options.apart:
        model = DistributedDataParallel(model)
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
        time.sleep(pause())
        if rank == 0:
            print(f"step {step}", flush=True)
        if options.fail_on and rank == int(options.fail_on[0]) and os.path.exists(options.fail_on[1]):
            os.unlink(options.fail_on[1])
            sys.exit(17)
        if step + 1 >= options.max_steps or everybody_may_finish():
            break
    if not options.apart:
        dist.destroy_process_group()


def pause():
    if options.pause_file is not None and options.pause_file.exists():
        return float(options.pause_file.read_text())
    return options.pause


def everybody_may_finish():
    if options.apart:
        return options.finish.exists()
    finish = torch.tensor(float(options.finish.exists()))
    dist.all_reduce(finish, op=dist.ReduceOp.MAX)
    return bool(finish.item())


if __name__ == "__main__":
    main()
