"""Settings of a project, in a package with the same name as one of the launcher's."""

EPOCHS = 2
BATCH_SIZE = 32
