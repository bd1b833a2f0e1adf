"""Runs rendered Argo workflows on this machine: the real commands of their containers, as local processes.

    argo = Executor([template], tmp_path, environment={"SAMESHOT_RUNTIME_DIR": …})
    node = argo.run(workflow)                       # or start(…), and meanwhile stop(), terminate(), pods()
    assert node["capture"].phase == "Succeeded"

What Argo's controller and executor do is done here, for what our templates use: parameters in text, steps, DAG order
and `depends`, `when`, `withParam`, `parallelism`, output parameters with defaults and artifacts (also of a step that
failed), `retryStrategy` with its expression really evaluated, deadlines, exit hooks, Stop and Terminate. What it does
not know is an error, so that nothing passes by being skipped. Read from its source (v3.5 to v4.1):
processNodeRetries, inferFailedReason, runOnExitNode, executeDAG, executeSteps.

A stop fails a DAG at once, and what is below it is not looked at again, so hooks that have not begun by then never do,
nor does an exit handler that is a DAG. Here that is so always; with a real controller it depends on the version and the
moment. A workflow that succeeded and whose exit handler failed is one that failed.

Not modelled: images, users and what the kubelet refuses; scheduling and resources; the pods' ServiceAccount and its
rights; an artifact repository that fails; podGC, workflow deadlines, suspend, `argo retry` and memoization; the order
in which a controller notices things, and its own restarts; validation at submission.

A container has its own file system; a process has a folder instead, so paths below a mounted volume are moved there.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argo_expr import BadExpression, condition, evaluate

Json = dict[str, Any]

SUCCEEDED, FAILED, ERROR, SKIPPED, OMITTED = "Succeeded", "Failed", "Error", "Skipped", "Omitted"
_BAD = (FAILED, ERROR)
_TAG = re.compile(r"\{\{(.*?)\}\}")
_TEMPLATE = {"name", "inputs", "outputs", "metadata", "parallelism", "dag", "steps", "container", "retryStrategy",
             "activeDeadlineSeconds", "securityContext", "volumes"}  # fmt: skip
_TASK = {"name", "template", "templateRef", "arguments", "depends", "when", "withParam", "hooks", "continueOn"}


@dataclass
class Node:
    """What became of a template that was called: a pod, its retries, a DAG, or the items of a loop."""

    name: str
    phase: str = "Running"
    message: str = ""
    exit_code: int | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    attempts: list[Node] = field(default_factory=list)  # of a pod
    children: dict[str, Node] = field(default_factory=dict)  # tasks, items, hooks
    log: str = ""

    def __getitem__(self, name: str) -> Node:
        return self.children[name]

    def shown(self) -> str:
        """The whole tree, for a failed assertion."""
        lines = [f"{self.name}: {self.phase} {self.exit_code} {self.message} {self.log[-800:]}"]
        return "\n".join([*lines, *(each.shown() for each in (*self.attempts, *self.children.values()))])


@dataclass
class Pod:
    """A container that runs."""

    node: str
    template: str
    process: subprocess.Popen[bytes]
    folder: Path
    on_exit: bool
    deadline_s: int
    deleted: bool = False
    late: bool = False
    message: str = ""

    def evict(self, message: str = "") -> None:
        """As a drained node does, or (with its message) the kubelet: SIGTERM, and the pod is Failed."""
        self.message = message
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As the kernel does, out of memory."""
        self.process.kill()

    def outlive(self) -> None:
        """Its `activeDeadlineSeconds` are over: it is terminated."""
        self.late = True

    def lose(self) -> None:
        """With its node: nobody hears of the container again."""
        self.deleted = True
        self.process.kill()


@dataclass(frozen=True)
class _Within:
    """Where a task stands: which templates it sees, and what holds for all below it."""

    scope: Mapping[str, Json]
    on_exit: bool
    limits: list[threading.Semaphore]
    in_dag: bool


class Executor:
    """One workflow at a time. `environment` is what every container has, `secrets` what the namespace has; `backoff` is
    how long a second of it really takes, `repository` whether artifacts can be kept."""

    def __init__(
        self,
        installed: Sequence[Json],
        folder: Path,
        *,
        environment: Mapping[str, str],
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        started: Callable[[Pod], None] | None = None,
        backoff: float = 0.01,
        repository: bool = True,
    ) -> None:
        self.folder, self.environment, self.secrets = folder, dict(environment), secrets or {}
        self.started, self.backoff, self.repository = started, backoff, repository
        self.shutdown = ""
        self.all_pods: list[Pod] = []
        self.most_at_once = 0
        self.problem: BaseException | None = None
        self._installed = {
            (each["kind"] == "ClusterWorkflowTemplate", each["metadata"]["name"]): each for each in installed
        }
        self._lock = threading.Lock()
        self._globals: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._root = Node("")

    # ---- from outside

    def run(self, workflow: Json, timeout_s: float = 240) -> Node:
        self.start(workflow)
        return self.wait(timeout_s)

    def start(self, workflow: Json) -> None:
        self._thread = threading.Thread(target=self._guarded, args=(copy.deepcopy(workflow),), daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float = 240) -> Node:
        assert self._thread is not None
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.terminate()
            raise AssertionError(f"the workflow did not end within {timeout_s} s: {self.pods()}")
        for pod in self.all_pods:
            pod.process.wait(30)  # what was stopped may end after its node
        if self.problem is not None:
            raise self.problem
        return self._root

    def pods(self) -> list[Pod]:
        """Those that run now."""
        with self._lock:
            return [pod for pod in self.all_pods if pod.process.poll() is None]

    def stop(self) -> None:
        """`argo stop`: what runs is terminated, nothing is started or retried, and exit hooks run."""
        self._end("Stop")

    def terminate(self) -> None:
        """`argo terminate`: the same without exit hooks."""
        self._end("Terminate")

    def _end(self, strategy: str) -> None:
        self.shutdown = strategy
        for pod in self.pods():
            if self._ends(pod.on_exit):
                pod.process.send_signal(signal.SIGTERM)

    # ---- a workflow

    def _guarded(self, workflow: Json) -> None:
        try:
            self._root = self._workflow(workflow)
        except BaseException as error:
            self.problem = error

    def _workflow(self, workflow: Json) -> Node:
        spec = workflow["spec"]
        templates, arguments = spec.get("templates", []), _values(spec.get("arguments", {}))
        entrypoint = spec.get("entrypoint")
        if (reference := spec.get("workflowTemplateRef")) is not None:
            found = self._installed[bool(reference.get("clusterScope")), reference["name"]]["spec"]
            templates, entrypoint = found["templates"], entrypoint or found["entrypoint"]
            arguments = _values(found.get("arguments", {})) | arguments
        name = workflow["metadata"].get("name") or workflow["metadata"]["generateName"] + "x1y2z"
        self._globals = {"workflow.uid": str(uuid.uuid4()), "workflow.name": name, "workflow.namespace": "ml"}
        self._globals |= {f"workflow.parameters.{each}": value for each, value in arguments.items()}
        scope = {each["name"]: each for each in templates}
        root = self._template(scope, entrypoint, arguments, name, on_exit=False, limits=[])
        if (hook := spec.get("hooks", {}).get("exit")) is not None:
            self._globals["workflow.status"] = root.phase
            assert "expression" not in hook, "a workflow's exit hook runs whatever its expression says"
            self._hook(_Within(scope, False, [], False), hook, root, "workflow", self._globals)
            hooked = root.children.get("workflow.onExit")
            if root.phase == SUCCEEDED and hooked is not None and hooked.phase in _BAD:
                root.phase, root.message = hooked.phase, hooked.message
        return root

    @property
    def uid(self) -> str:
        return self._globals["workflow.uid"]

    def _template(
        self,
        scope: Mapping[str, Json],
        name: str,
        arguments: Mapping[str, str],
        node: str,
        *,
        on_exit: bool,
        limits: list[threading.Semaphore],
        in_dag: bool = False,
    ) -> Node:
        template = scope[name]
        _only(template, _TEMPLATE)
        given = dict(self._globals)
        for each in template.get("inputs", {}).get("parameters", []):
            value = arguments.get(each["name"], each.get("value", each.get("default")))
            if value is None:
                raise AssertionError(f"{node}: input {each['name']} of template {name} was not supplied")
            given[f"inputs.parameters.{each['name']}"] = value
        if "dag" in template or "steps" in template:
            if "parallelism" in template:
                limits = [*limits, threading.Semaphore(template["parallelism"])]
            ready, within = substituted(template, given), _Within(scope, on_exit, limits, in_dag or "dag" in template)
            return self._dag(within, ready, node) if "dag" in template else self._steps(within, ready, node)
        return self._retried(substituted(template, given, strict=True), node, on_exit=on_exit, limits=limits)

    # ---- templates of several

    def _steps(self, within: _Within, template: Json, name: str) -> Node:
        whole, known = Node(name), dict(self._globals)
        for group in template["steps"]:
            _together([functools.partial(self._task, within, step, whole, known, "steps") for step in group])
            if any(_ends_it(step, whole[step["name"]]) for step in group):
                whole.phase = FAILED
                return whole  # and has no outputs
        whole.phase = SUCCEEDED
        self._outputs(template, whole, known, "steps")
        return whole

    def _dag(self, within: _Within, template: Json, name: str) -> Node:
        dag, known = Node(name), dict(self._globals)
        if self.shutdown:
            dag.phase = FAILED  # also that of an exit handler: it never begins
            return dag
        tasks = {each["name"]: each for each in template["dag"]["tasks"]}
        assert not any("continueOn" in each for each in tasks.values()), "known here for steps only"
        ended = {each: threading.Event() for each in tasks}
        failed = threading.Event()

        def work(task: Json) -> None:
            try:
                for each in _before(task):
                    ended[each].wait()
                if not failed.is_set():
                    self._task(within, task, dag, known, "tasks")
            except BaseException:
                failed.set()
                raise
            finally:
                ended[task["name"]].set()

        _together([functools.partial(work, task) for task in tasks.values()])
        phases = [dag[each].phase for each in tasks]
        dag.phase = next((phase for phase in (ERROR, FAILED) if phase in phases), SUCCEEDED)
        if dag.phase == SUCCEEDED:
            self._outputs(template, dag, known, "tasks")
        return dag

    def _task(self, within: _Within, task: Json, whole: Node, known: dict[str, str], kind: str) -> None:
        """One task of a DAG, or one of several steps."""
        _only(task, _TASK)
        name, path = task["name"], f"{whole.name}.{task['name']}"
        if not self._proceeds(task, whole):
            whole.children[name] = Node(path, OMITTED)
            return
        with self._lock:
            seen = dict(known)
        called = {key: value for key, value in task.items() if key != "hooks"}
        if "withParam" not in task:
            node = self._call(within, substituted(called, seen, strict=True), path)
        else:
            node = self._loop(within, called, seen, path)
        whole.children[name] = node
        with self._lock:
            known[f"{kind}.{name}.status"] = node.phase
            if node.exit_code is not None:
                known[f"{kind}.{name}.exitCode"] = str(node.exit_code)
            known |= {f"{kind}.{name}.outputs.parameters.{each}": value for each, value in node.parameters.items()}
            seen = dict(known)
        if (hook := task.get("hooks", {}).get("exit")) is not None and node.phase not in (SKIPPED, OMITTED):
            assert set(task["hooks"]) == {"exit"}, "only exit hooks are known here"
            if not (self.shutdown and within.in_dag):
                self._hook(within, hook, whole, name, seen)

    def _proceeds(self, task: Json, dag: Node) -> bool:
        depends = task.get("depends", "")
        for name in _before(task):
            depends = re.sub(rf"\b{name}\b(?!\.)", f"({name}.Succeeded || {name}.Skipped || {name}.Daemoned)", depends)
        states = (SUCCEEDED, FAILED, ERROR, SKIPPED, OMITTED, "Daemoned")
        now = {name: {state: dag[name].phase == state for state in states} for name in _before(task)}
        return condition(depends, now) if depends else True

    def _loop(self, within: _Within, task: Json, seen: Mapping[str, str], path: str) -> Node:
        items = json.loads(substituted(task["withParam"], seen, strict=True))
        assert isinstance(items, list), f"{path}: withParam is no list"
        group = Node(path, SKIPPED if not items else "Running")

        def work(at: int, item: Any) -> None:
            text = item if isinstance(item, str) else json.dumps(item)
            once = substituted({**task, "withParam": None}, {**seen, "item": text}, strict=True)
            group.children[f"{at}:{text}"] = self._call(within, once, f"{path}({at}:{text})")

        _together([functools.partial(work, at, item) for at, item in enumerate(items)])
        if items:
            phases = [each.phase for each in group.children.values()]
            group.phase = next((phase for phase in _BAD if phase in phases), SUCCEEDED)
        return group

    def _call(self, within: _Within, task: Json, path: str) -> Node:
        """A task, a step or a hook, all of whose tags are replaced."""
        if "when" in task and not condition(task["when"], {}):
            return Node(path, SKIPPED)
        scope, name = within.scope, task.get("template")
        if (reference := task.get("templateRef")) is not None:
            installed = self._installed[bool(reference.get("clusterScope")), reference["name"]]
            scope, name = {each["name"]: each for each in installed["spec"]["templates"]}, reference["template"]
        assert name is not None
        given = _values(task.get("arguments", {}))
        return self._template(
            scope, name, given, path, on_exit=within.on_exit, limits=within.limits, in_dag=within.in_dag
        )

    def _hook(self, within: _Within, hook: Json, whole: Node, name: str, seen: Mapping[str, str]) -> None:
        """After the task, whatever became of it; not after Terminate."""
        if self.shutdown == "Terminate" or not condition(hook.get("expression", "true"), _nested(seen)):
            return
        ready = substituted({key: value for key, value in hook.items() if key != "expression"}, seen)  # not strict
        exiting = dataclasses.replace(within, on_exit=True)
        whole.children[f"{name}.onExit"] = self._call(exiting, ready, f"{whole.name}.{name}.onExit")

    def _outputs(self, template: Json, whole: Node, known: Mapping[str, str], kind: str) -> None:
        outputs = template.get("outputs", {})
        for each in outputs.get("parameters", []):
            source = each["valueFrom"]
            with contextlib.suppress(Unresolved):
                whole.parameters[each["name"]] = substituted(source["parameter"], known, strict=True)
                continue
            if "default" not in source:
                raise AssertionError(f"{whole.name}: output {each['name']} has no value")
            whole.parameters[each["name"]] = source["default"]
        for each in outputs.get("artifacts", []):
            match = re.fullmatch(rf"\{{\{{{kind}\.([\w-]+)\.outputs\.artifacts\.([\w-]+)\}}\}}", each["from"])
            assert match is not None
            found = whole[match[1]].artifacts.get(match[2])
            if found is not None:
                whole.artifacts[each["name"]] = found
            elif not each.get("optional"):
                raise AssertionError(f"{whole.name}: artifact {each['name']} is not there")

    # ---- a pod

    def _retried(self, template: Json, path: str, *, on_exit: bool, limits: list[threading.Semaphore]) -> Node:
        """The node of a pod with its retries: it ends as the last of them did."""
        whole, strategy = Node(path), template.get("retryStrategy")
        while True:
            name = path if strategy is None else f"{path}({len(whole.attempts)})"
            with contextlib.ExitStack() as stack:
                for limit in limits:
                    stack.enter_context(limit)
                last = self._pod(template, name, on_exit=on_exit)
            whole.attempts.append(last)
            whole.phase, whole.message, whole.exit_code = last.phase, last.message, last.exit_code
            whole.parameters, whole.artifacts, whole.log = last.parameters, last.artifacts, last.log
            if (
                last.phase == SUCCEEDED
                or strategy is None
                or self.shutdown
                or not self._again(strategy, whole.attempts)
            ):
                return whole
            pause = _seconds(strategy["backoff"]["duration"]) * strategy["backoff"]["factor"] ** (
                len(whole.attempts) - 1
            )
            time.sleep(pause * self.backoff)

    def _again(self, strategy: Json, attempts: list[Node]) -> bool:
        assert strategy["retryPolicy"] == "Always"
        last = attempts[-1]
        seen = {
            "exitCode": "-1" if last.exit_code is None else str(last.exit_code),
            "status": last.phase,
            "duration": "1",
            "message": last.message,
        }
        return condition(strategy["expression"], {"lastRetry": seen}) and len(attempts) <= int(strategy["limit"])

    def _pod(self, template: Json, name: str, *, on_exit: bool) -> Node:
        if self._ends(on_exit):
            return Node(name, FAILED, f"workflow shutdown with strategy: {self.shutdown}")
        folder = self.folder / "pods" / re.sub(r"[^\w.-]", "_", name)
        mounts = _mounts(template, folder)
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._argv(template["container"], mounts),
                env=self._environment(template["container"], mounts),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        pod = Pod(name, template["name"], process, folder, on_exit, int(template["activeDeadlineSeconds"]))
        with self._lock:
            self.all_pods.append(pod)
            self.most_at_once = max(self.most_at_once, sum(each.process.poll() is None for each in self.all_pods))
        if self._ends(on_exit):  # it came while the pod was being created
            process.send_signal(signal.SIGTERM)
        if self.started is not None:
            self.started(pod)
        deadline = time.monotonic() + pod.deadline_s
        late = False
        while process.poll() is None:
            if self._ends(on_exit):  # the node is marked at once, while its container is still ending
                return Node(name, FAILED, f"workflow shutdown with strategy: {self.shutdown}")
            if late := pod.late or time.monotonic() > deadline:
                _terminated(process)
                break
            time.sleep(0.02)
        return self._ended(template, pod, mounts, late, log.read_text(errors="replace"))

    def _ends(self, on_exit: bool) -> bool:
        return self.shutdown == "Terminate" or (bool(self.shutdown) and not on_exit)

    def _argv(self, container: Json, mounts: Mapping[str, Path]) -> list[str]:
        assert container["command"] == ["sameshot"]
        command = Path(sys.executable).parent / "sameshot"
        return [str(command), *(_moved(each, mounts) for each in container["args"])]

    def _environment(self, container: Json, mounts: Mapping[str, Path]) -> dict[str, str]:
        found = {"PATH": os.environ["PATH"], **self.environment}
        for each in container.get("env", []):
            if "value" in each:
                found[each["name"]] = str(mounts.get(each["value"], each["value"]))
                continue
            selected = each["valueFrom"]["secretKeyRef"]
            value = self.secrets.get(selected["name"], {}).get(selected["key"])
            if value is not None:
                found[each["name"]] = value
            elif not selected.get("optional"):
                raise AssertionError(f"Secret {selected} is not there")
        return found

    def _ended(self, template: Json, pod: Pod, mounts: Mapping[str, Path], late: bool, log: str) -> Node:
        if pod.deleted:
            return Node(pod.node, ERROR, "pod deleted", log=log)  # and what it had left is lost
        code = pod.process.returncode
        code = code if code >= 0 else 128 - code
        node = Node(pod.node, SUCCEEDED if code == 0 else FAILED, exit_code=code, log=log)
        if code:
            node.message = pod.message or f"main: Error (exit code {code})"
        if late:
            node.phase, node.message = FAILED, "Pod was active on the node longer than the specified deadline"
        outputs = template.get("outputs", {})
        for each in outputs.get("parameters", []):
            file = Path(_moved(each["valueFrom"]["path"], mounts))
            if file.is_file():
                node.parameters[each["name"]] = file.read_text()
            elif "default" in each["valueFrom"]:
                node.parameters[each["name"]] = each["valueFrom"]["default"]
            else:
                node.phase, node.message = ERROR, f"no output {each['name']}"
        for each in outputs.get("artifacts", []):
            file = Path(_moved(each["path"], mounts))
            if file.exists() and not self.repository:  # the same for optional ones
                node.phase, node.message = ERROR, "wait: Error (exit code 64): You need to configure artifact storage."
            elif file.exists():
                kept = pod.folder / "repository" / each["name"] / file.name
                kept.parent.mkdir(parents=True)
                shutil.copyfile(file, kept)
                node.artifacts[each["name"]] = kept
            elif not each.get("optional"):
                node.phase, node.message = ERROR, f"no artifact {each['name']}"
        shutil.rmtree(mounts[next(iter(mounts))])  # an emptyDir goes with its pod
        return node


# ---- text


class Unresolved(Exception):
    """A tag names what is not there."""


def substituted(value: Any, known: Mapping[str, str], *, strict: bool = False) -> Any:
    """With its tags replaced, in the JSON of it, as Argo does; what is unknown stays, or with `strict` raises."""

    def replaced(match: re.Match[str]) -> str:
        tag = match[1]
        if tag.startswith("="):
            try:
                found = str(evaluate(json.loads(f'"{tag[1:]}"'), _nested(known)))
            except BadExpression as error:
                if strict:
                    raise Unresolved(str(error)) from None
                return match[0]
            return json.dumps(found)[1:-1]
        if tag in known:
            return json.dumps(known[tag])[1:-1]
        if strict:
            raise Unresolved(f"{{{{{tag}}}}}")
        return match[0]

    return json.loads(_TAG.sub(replaced, json.dumps(value)))


def _nested(flat: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        place = found
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value
    return found


def _together(works: Sequence[Callable[[], object]]) -> None:
    """All at once; raises the first that was raised, when all have ended."""
    problems: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def _ends_it(step: Json, node: Node) -> bool:
    goes_on = step.get("continueOn", {})
    return (node.phase == FAILED and not goes_on.get("failed")) or (node.phase == ERROR and not goes_on.get("error"))


def _before(task: Json) -> list[str]:
    return sorted({each.split(".")[0] for each in re.findall(r"[A-Za-z][\w.]*", task.get("depends", ""))})


def _values(arguments: Json) -> dict[str, str]:
    return {each["name"]: each["value"] for each in arguments.get("parameters", []) if "value" in each}


def _only(given: Json, known: set[str]) -> None:
    if more := set(given) - known:
        raise AssertionError(f"{given['name']}: {sorted(more)} is not known to this executor")


def _seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


# ---- processes and files


def _mounts(template: Json, folder: Path) -> dict[str, Path]:
    """Where each mounted volume is: an empty folder of the pod's own."""
    volumes = {each["name"]: each for each in template.get("volumes", [])}
    found = {}
    for each in template["container"].get("volumeMounts", []):
        assert volumes[each["name"]] == {"name": each["name"], "emptyDir": {}}
        found[each["mountPath"]] = folder / "mnt" / each["name"]
        found[each["mountPath"]].mkdir(parents=True)
    return found


def _moved(text: str, mounts: Mapping[str, Path]) -> str:
    """A path of the container, alone or as an option's value, where it is here. What lies elsewhere stays."""
    name, equals, path = text.rpartition("=")
    for mount, place in mounts.items():
        if path.startswith(f"{mount}/sameshot-step"):
            return f"{name}{equals}{place}{path.removeprefix(mount)}"
    return text


def _terminated(process: subprocess.Popen[bytes], grace_s: float = 30) -> int:
    """SIGTERM, and SIGKILL after the grace period."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(grace_s)
    process.kill()
    return process.wait()


def walk(node: Node) -> Iterator[Node]:
    yield node
    for each in node.children.values():
        yield from walk(each)
