"""Settings of a project, under a name that the launcher has for its own, too."""

EPOCHS = 2
BATCH_SIZE = 32
