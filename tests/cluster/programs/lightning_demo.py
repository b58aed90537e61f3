"""Lightning's own demonstration on several machines."""

import lightning as L
from lightning.pytorch.demos.boring_classes import BoringModel


def main():
    trainer = L.Trainer(
        accelerator="auto",
        strategy="ddp",
        num_nodes=4,
        devices=2,
        max_steps=3,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(BoringModel())
    environment = type(trainer.strategy.cluster_environment).__name__
    print(
        f"rank {trainer.global_rank} of {trainer.world_size}: {trainer.global_step} steps, "
        f"{environment}, {len(trainer.train_dataloader)} batches"
    )


if __name__ == "__main__":
    main()
