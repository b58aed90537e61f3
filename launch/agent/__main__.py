"""A launcher starts this on each node: the node's supervisor, which gets its orders on stdin.

python -m launch.agent, or python launch/agent/__main__.py from any folder
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # A script's own folder is first on the path: the repository replaces it.
    sys.path[: not sys.flags.safe_path] = [str(Path(__file__).resolve().parents[2])]
    from muster import errors

    errors.own_packages_first()
    from launch.agent.agent import main

    errors.run(main)
