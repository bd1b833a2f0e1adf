"""An ordinary DDP training script. It knows nothing of profiling: that is the point of the demonstration.

Two files in --control let the demonstration play with it: `slow` holds a rank and milliseconds to sleep in every step
("2 30"); `finish` ends the training after the current step, on every rank, with exit code 0.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, count: int, width: int) -> None:
        self.count, self.width = count, width

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        sample = torch.randn(self.width, generator=generator)
        return sample, sample.sum().sign().clamp(min=0).long()


def planted_delay(control: Path, rank: int) -> float:
    try:
        who, milliseconds = (control / "slow").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return float(milliseconds) / 1000 if int(who) == rank else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--loader-workers", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=100_000)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(options.width, 2 * options.width),
        nn.ReLU(),
        nn.Linear(2 * options.width, options.width),
        nn.ReLU(),
        nn.Linear(options.width, 2),
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    loader = DataLoader(
        Samples(options.max_steps * options.batch, options.width),
        batch_size=options.batch,
        num_workers=options.loader_workers,
        multiprocessing_context="spawn" if options.loader_workers else None,
        prefetch_factor=8 if options.loader_workers else None,
    )

    began = time.monotonic()
    for step, (samples, labels) in enumerate(loader):
        loss = loss_of(model(samples), labels)
        loss.backward()
        delay = planted_delay(options.control, rank)
        if delay:
            time.sleep(delay)
        optimizer.step()
        optimizer.zero_grad()

        finish = torch.tensor(float((options.control / "finish").exists()))
        dist.all_reduce(finish, op=dist.ReduceOp.MAX)
        if rank == 0 and (step < 5 or step % 20 == 0):
            rate = (step + 1) / (time.monotonic() - began)
            print(f"step {step} loss {loss.item():.4f} {rate:.1f} steps/s", flush=True)
        if finish.item() or step + 1 >= options.max_steps:
            break
    dist.destroy_process_group()
    if rank == 0:
        print(f"done after {step + 1} steps", flush=True)


if __name__ == "__main__":
    main()
