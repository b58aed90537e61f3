"""Code shared by the modes that give each rank a part of the training's tensors."""
