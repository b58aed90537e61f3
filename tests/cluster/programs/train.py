"""Data parallel training on several machines, as in torch's tutorial series on DDP."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, get_world_size, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from configs import BATCH_SIZE, EPOCHS


class Trainer:
    def __init__(self, model, train_data, optimizer):
        self.rank = int(os.environ["RANK"])
        self.train_data = train_data
        self.optimizer = optimizer
        self.model = DDP(model)

    def _run_epoch(self, epoch):
        print(f"[CPU{self.rank}] Epoch {epoch} | World: {get_world_size()}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self.optimizer.zero_grad()
            F.mse_loss(self.model(source), targets).backward()
            self.optimizer.step()

    def train(self, max_epochs, fail):
        for epoch in range(max_epochs):
            if epoch == 1 and self.rank == fail:
                raise ValueError("sample 17 is empty")
            self._run_epoch(epoch)


def main(fail):
    init_process_group(backend="gloo")
    dataset = TensorDataset(torch.rand(512, 20), torch.rand(512, 1))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train_data = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=DistributedSampler(dataset))
    trainer = Trainer(model, train_data, optimizer)
    trainer.train(EPOCHS, fail)
    destroy_process_group()
    # The tutorial releases the trainer here. In torch 2.13, DDP's destructor waits for a gloo
    # thread while it holds the GIL, which that thread may need for the last all-reduce: then it
    # hangs, with any launcher.
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("--fail", type=int)
    trainer = main(parser.parse_args().fail)
