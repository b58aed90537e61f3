"""A run that this process leads: its agents, which live as long as the run, and its attempts.

An agent is started on each node once. In each attempt it gets an assignment: see `attempt.py`.
After a failure the agents that still live get the next one. Where an agent was lost, and its node
answers, another one is started. At the run's end all channels are closed, which ends the agents.
"""

import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from launch.agent.attempt import AgentConnection, Attempt
from launch.agent.processes import process_tree
from launch.agent.processes.process_tree import between_attempts, on_stop
from launch.deadlines import AGENTS_END_AFTER_STOP_S
from launch.ends import End
from launch.nodes.channel import AgentProcess, Heartbeat
from launch.spec import Facts, LaunchSpec, NodeCommand, NodeFacts, assignments_of

# Starts an agent on each of these nodes, in their order, which are named by their index in the run.
# The heartbeat reaches each from its start on.
StartAgents: TypeAlias = Callable[[Mapping[int, NodeFacts], Heartbeat], Iterable[AgentProcess]]
Plan: TypeAlias = Callable[[LaunchSpec, Facts], Sequence[NodeCommand]]


@dataclass(frozen=True)
class SchedulersJob:
    """The scheduler's job in which a run is led."""

    job_id: str
    cluster: str | None = None
    # Whether the scheduler has announced the end of the job's time, and when it ends the job.
    is_nearly_over: Callable[[], bool] = lambda: False
    ends_unix_s: Callable[[], float | None] = lambda: None


class LedRun:
    """A run led by this process: `start` starts an attempt, `wait` waits for its end, and so on.

    `complete` adds to facts what only agents know, once they are started; `plan` makes commands
    of them. `close` lets all agents go.
    """

    def __init__(
        self,
        start_agents: StartAgents,
        plan: Plan,
        *,
        prefixes: bool,
        is_local: bool = False,  # the agents are on this machine, as children of this process
        patience_s: float = 0.0,  # for the processes that started the agents to end after them
        inside: SchedulersJob | None = None,
        complete: Callable[[Facts], Facts] = lambda facts: facts,
    ) -> None:
        self._start_agents = start_agents
        self._plan = plan
        self._prefixes = prefixes
        self._is_local = is_local
        self._patience_s = patience_s
        self._inside = inside or SchedulersJob(str(os.getpid()))
        self._complete = complete
        self.job_id = self._inside.job_id
        self.cluster = self._inside.cluster
        self.signals: list[int] = []
        self._heartbeat = Heartbeat()
        self._agents: dict[str, AgentConnection] = {}  # by node, those that were started last
        self._others: frozenset[int] = frozenset()  # children of this process that are not ours
        self._attempt: Attempt | None = None

    @property
    def cause(self) -> End | None:
        """What the last attempt ended for; None if it went well."""
        return None if self._attempt is None else self._attempt.cause

    @property
    def noticed_unix_s(self) -> float | None:
        """When this process heard of a failure first, in the last attempt."""
        return None if self._attempt is None else self._attempt.noticed_unix_s

    @property
    def shown(self) -> bytes:
        """The end of what was printed of its workers' output."""
        return b"" if self._attempt is None else self._attempt.shown

    def lives(self, node: NodeFacts) -> bool:
        """Whether the agent of this node can take part in another attempt, as far as is known."""
        agent = self._agents.get(_key(node))
        return agent is not None and agent.lives()

    def start(self, spec: LaunchSpec, facts: Facts) -> None:
        """Start an attempt: agents where none lives, and then the part of each.

        Raises:
            MusterError: an agent does not start.
            Stopped: a signal came before the attempt has begun.
        """
        if self._attempt is None and self._is_local:
            self._others = process_tree.children()
            process_tree.adopt_orphans()
        try:
            with between_attempts(self.signals):
                living = {_key(node) for node in facts.nodes if self.lives(node)}  # asked once
                self._leave_all_but(living)
                new = {at: node for at, node in enumerate(facts.nodes) if _key(node) not in living}
                if new:
                    started = self._start_agents(new, self._heartbeat)
                    for node, agent in zip(new.values(), started, strict=True):
                        self._agents[_key(node)] = AgentConnection(agent)
                facts = self._complete(facts)
            self._begin(spec, facts)
        except BaseException:
            self.close()
            raise

    def _leave_all_but(self, stay: Collection[str]) -> None:
        """End the agents that take no part in the next attempt, with what is left of them."""
        self._end([key for key in self._agents if key not in stay])

    def _begin(self, spec: LaunchSpec, facts: Facts) -> None:
        on_stop(lambda number, _: self.signals.append(number))
        signal.signal(signal.SIGTSTP, lambda *_: None)  # Ctrl-Z: a run has no other leader
        self._attempt = Attempt(
            spec,
            [self._agents[_key(node)] for node in facts.nodes],
            self.signals,
            self._inside.is_nearly_over,
            prefixes=self._prefixes,
        )
        plan = self._plan(spec, facts)
        self._attempt.start(assignments_of(spec, facts, plan, self._inside.ends_unix_s()))

    def wait(self) -> int:
        """Wait for the end of the attempt; return its exit code, see `Attempt.wait`.

        Agents that were lost or were too late are then ended: until then their workers may write
        into the run folder.
        """
        assert self._attempt is not None
        try:
            code = self._attempt.wait()
            self._end([key for key, agent in self._agents.items() if not agent.lives()])
        except BaseException:
            self.close()
            raise
        return code

    def close(self) -> None:
        """End all agents, and what they were started by; it may be called more than once."""
        self._heartbeat.stop()
        self._end([*self._agents])

    def _end(self, keys: Collection[str]) -> None:
        """End the agents of these nodes, and the processes that started them alone."""
        if not keys:
            return
        agents = [self._agents[key] for key in keys]
        for agent in agents:
            agent.channel.close()
        others = [agent.process for key, agent in self._agents.items() if key not in keys]
        if self._is_local:
            process_tree.end_descendants(
                AGENTS_END_AFTER_STOP_S,
                in_a_hurry=self._is_in_a_hurry,
                excluded={*self._others, *(process.pid for process in others)},
            )
        else:  # ssh's remaining processes, such as a shared connection, are not ours
            started = {agent.process for agent in agents}
            process_tree.end_started(
                [process for process in started if process not in others],
                AGENTS_END_AFTER_STOP_S,
                in_a_hurry=self._is_in_a_hurry,
                patience_s=self._patience_s,
            )
        # not before: a signal may come meanwhile, and `close` ends what is left
        self._agents = {key: agent for key, agent in self._agents.items() if key not in keys}

    def _is_in_a_hurry(self) -> bool:
        return self._attempt is not None and self._attempt.interrupted_twice


def _key(node: NodeFacts) -> str:
    """The node among those of its run, over all attempts."""
    return f"{node.spec.name} {node.name}"
