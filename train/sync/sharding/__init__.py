"""What modes share that leave a part of the training's tensors to each rank."""
