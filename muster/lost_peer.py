"""What a worker says that failed because another was gone: a consequence, not a cause."""

# The words of gloo, nccl and the store when the other end is gone.
WORDS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "timed out waiting",
    "application timeout caused pair closure",
    "failed to recv",
    "socket timeout",
    "remote process has terminated",
    "nccl communicator was aborted",
)


def is_consequence(message: str) -> bool:
    """Whether the text of an error of torch.distributed says that another rank is gone."""
    text = message.lower()
    return any(words in text for words in WORDS)
