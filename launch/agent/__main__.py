"""A launcher starts this on each node: the node's supervisor, which gets its orders on stdin.

python muster/run_module.py launch.agent
"""

from launch.agent.agent import main
from muster import errors

if __name__ == "__main__":
    errors.run(main)
