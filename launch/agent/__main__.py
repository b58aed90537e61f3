"""The agent of a node: a launcher starts it there, and sends it orders through stdin.

The command is `python muster/run_module.py launch.agent`.
"""

from launch.agent.agent import main
from muster import errors

if __name__ == "__main__":
    errors.run(main)
