"""The directory in a cluster: pods of the job → their nodes → the agents' pods there → addresses.

Both lists are followed by threads of their own and read from memory here, so a capture asks the API server nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from sameshot.coordinator.directory import AgentAt
from sameshot.coordinator.podwords import PodsSeen
from sameshot.hostport import joined
from sameshot.kube import names
from sameshot.kube.agentpods import AgentPod, AgentPods
from sameshot.kube.podlist import PodList
from sameshot.kube.pods import Pod
from sameshot.model import JobRef


class PodAgents:
    """`port` is every agent's. The lists are started and closed by whoever made them."""

    def __init__(self, job: JobRef, pods: PodList, agents: AgentPods, port: int) -> None:
        self._job = job
        self._pods = pods
        self._agents = agents
        self._port = port

    def agents(self) -> Sequence[AgentAt]:
        """One per node that has a pod of this job which may run; one without an agent is named all the same."""
        nodes = sorted({pod.node for pod in self._mine() if pod.node and pod.phase not in names.POD_OVER})
        serving = self._agents.by_node()
        return [self._at(node, serving.get(node)) for node in nodes]

    def find(self, key: str) -> AgentAt | None:
        return self._at(key, self._agents.by_node().get(key))

    def pods(self) -> PodsSeen:
        return PodsSeen.of(self._mine(), sum(each.job is None for each in self._pods.armed()))

    @property
    def trouble(self) -> str:
        if not self._pods.listed:
            return f"The API server has not told the pods of namespace {self._job.namespace} yet: {self._pods.trouble}."
        if not self._pods.asked:
            return f"The API server has not told yet whose the armed pods of namespace {self._job.namespace} are."
        if not self._agents.listed:
            return f"The API server has not told the node agents' pods yet: {self._agents.trouble}."
        return ""

    @property
    def later_attempt(self) -> int | None:
        """The attempt of the latest pods of this job where it is later than the one served; None: there are none."""
        mine = self._job
        later = [
            each.job.attempt
            for each in self._pods.armed()
            if each.job is not None and (each.job.uid, each.job.namespace) == (mine.uid, mine.namespace)
        ]
        latest = max(later, default=mine.attempt)
        return latest if latest > mine.attempt else None

    def _mine(self) -> list[Pod]:
        return [each.pod for each in self._pods.armed() if each.job == self._job]

    def _at(self, node: str, agent: AgentPod | None) -> AgentAt:
        if agent is None:
            return AgentAt(
                node,
                "",
                f"no node agent runs on node {node}; is it labelled and tolerated so that the DaemonSet sameshot-agent "
                "has a pod there?",
            )
        if not agent.callable:
            return AgentAt(node, "", f"the agent of node {node} can't be called: {agent.trouble}")
        return AgentAt(node, joined(agent.ip, self._port), agent.trouble)
