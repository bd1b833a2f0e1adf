"""What is wrong with the pods of a job, in words: why a rank that should be in one of them is not. Pure.

A pod's rank is never told from its name: that is the registration's part. So words about pods explain a rank that
nobody covers, or that was last seen in a pod which has gone, and never make one up.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sameshot.kube import names
from sameshot.kube.pods import Pod


class PodsSeen(msgspec.Struct, frozen=True):
    """The pods of one job attempt, by uid, and what is wrong with each (empty: nothing that is seen from here).

    `unknown` counts pods that may be of this job, too: it could not be told yet whose they are.
    """

    pods: dict[str, Pod] = {}
    words: dict[str, str] = {}
    by_name: dict[str, Pod] = {}
    unknown: int = 0

    @classmethod
    def of(cls, pods: Iterable[Pod], unknown: int = 0) -> PodsSeen:
        by_uid = {pod.uid: pod for pod in pods}
        words = {uid: words_of(pod) for uid, pod in by_uid.items()}
        return cls(by_uid, words, {pod.name: pod for pod in by_uid.values()}, unknown)

    @property
    def troubles(self) -> list[str]:
        """Of all pods that can't (or will not long) be captured."""
        found = [self.words[uid] for uid in sorted(self.words, key=lambda uid: self.pods[uid].name) if self.words[uid]]
        if self.unknown:
            found.insert(
                0, f"The API server has not told yet whose {self.unknown} more armed pods of this namespace are."
            )
        return found

    @property
    def all_ended(self) -> bool:
        """There are pods, and none of them will run again."""
        return bool(self.pods) and not self.unknown and all(pod.phase in names.POD_OVER for pod in self.pods.values())

    def runs(self, uid: str | None) -> bool:
        """Whether a process may still be in that pod; one that names no pod is not told about here."""
        return uid is None or (uid in self.pods and self.pods[uid].phase not in names.POD_OVER)

    def about(self, uid: str | None, name: str | None) -> str:
        """What became of a pod that a worker was seen in; empty: nothing that is seen from here."""
        if uid is None or name is None:
            return ""
        if uid in self.pods:
            return self.words[uid]
        again = self.by_name.get(name)
        if again is None:
            return f"Pod {name} is not there any more."
        where = f" on node {again.node}" if again.node else ""
        now = self.words[again.uid] or f"It is {again.phase or 'starting'}{where}."
        return f"Pod {name} was deleted and made anew under the same name. {now}"


def words_of(pod: Pod) -> str:
    """Why no worker of this pod may be captured; empty: it runs."""
    why = f" ({pod.why})" if pod.why else ""
    if pod.deleting:
        return f"Pod {pod} is Terminating{why}."
    if pod.phase == "Failed":
        return f"Pod {pod} is Failed{why}."
    if pod.phase == "Succeeded":
        return f"Pod {pod} has Succeeded."
    if not pod.armed:
        return f"Pod {pod} was not armed when it was made{why}; only a new pod can be."
    if pod.phase == "Pending":
        where = f" on node {pod.node}" if pod.node else ", on no node yet"
        return f"Pod {pod} is Pending{where}{why}."
    if pod.node is None:
        return f"Pod {pod} is on no node yet{why}."
    return f"Pod {pod} is {pod.phase or 'of no phase'}: {pod.why}." if pod.why else ""
