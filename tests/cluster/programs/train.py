"""Data parallel training on several machines, as torch's tutorial series on DDP has it."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, get_world_size, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from configs import BATCH_SIZE, EPOCHS, SAVE_EVERY

SNAPSHOT = "snapshot.pt"


class Trainer:
    def __init__(self, model, train_data, optimizer, fail):
        self.rank = int(os.environ["RANK"])
        self.train_data = train_data
        self.optimizer = optimizer
        self.epochs_run = 0
        self.fail = fail
        if os.path.exists(SNAPSHOT):
            snapshot = torch.load(SNAPSHOT)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
        self.model = DDP(model)

    def _run_epoch(self, epoch):
        print(f"[CPU{self.rank}] Epoch {epoch} | World: {get_world_size()}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self.optimizer.zero_grad()
            F.mse_loss(self.model(source), targets).backward()
            self.optimizer.step()

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
        torch.save(snapshot, SNAPSHOT)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            if epoch == 1 and self.rank == self.fail:
                raise ValueError("sample 17 is empty")
            self._run_epoch(epoch)
            if self.rank == 0 and epoch % SAVE_EVERY == 0:
                self._save_snapshot(epoch)


def main(fail):
    init_process_group(backend="gloo")
    dataset = TensorDataset(torch.rand(512, 20), torch.rand(512, 1))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train_data = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=DistributedSampler(dataset))
    trainer = Trainer(model, train_data, optimizer, fail)
    trainer.train(EPOCHS)
    destroy_process_group()
    # The tutorial lets go of it here. In torch 2.13 the end of DDP waits for a thread of gloo and
    # holds the GIL, which that thread may want for the last all-reduce: then it hangs, with any
    # launcher.
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("--fail", type=int)
    trainer = main(parser.parse_args().fail)
