"""A LightningModule on several machines, as Lightning's own first steps have it."""

import argparse

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self, fail):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.fail = fail

    def training_step(self, batch, batch_idx):
        if batch_idx == 1 and self.global_rank == self.fail:
            raise ValueError("sample 17 is empty")
        x, y = batch
        loss = nn.functional.mse_loss(self.layers(x), y)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", type=int)
    args = parser.parse_args()
    L.seed_everything(0)
    x = torch.randn(256, 8)
    data = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=4, shuffle=True)
    trainer = L.Trainer(
        accelerator="auto",
        strategy="ddp",
        num_nodes=4,
        devices=2,
        max_steps=3,
        log_every_n_steps=1,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Regression(args.fail), data)
    environment = type(trainer.strategy.cluster_environment).__name__
    print(
        f"rank {trainer.global_rank} of {trainer.world_size}: {trainer.global_step} steps, "
        f"{environment}, {len(trainer.train_dataloader)} batches"
    )


if __name__ == "__main__":
    main()
