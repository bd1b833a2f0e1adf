"""How the hook's folder comes first on the Python path, and what a command line tells about the workers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from sameshot.arm import labels
from sameshot.arm.values import Workers

# `exec` keeps pid, signals and exit code the command's own. At run time the shell sees whatever PYTHONPATH the image,
# the pod spec or an envFrom gave. Nothing in here is `$(…)`, which the kubelet would expand. An absolute path, because
# a pod may have a PATH of its own on which there is a python and no sh. What is no name of a shell variable (`a.b`) is
# dropped by dash and BusyBox: `is_kept` tells.
WRAPPER: tuple[str, ...] = (
    "/bin/sh",
    "-c",
    f'PYTHONPATH={labels.HOOK_DIRECTORY}${{PYTHONPATH:+:$PYTHONPATH}} exec "$@"',
    "--",
)

_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = r"(?:\S*/)?python[0-9.]*t?"
_SET = re.compile(r"(?:^|[\s;&|(])PYTHONPATH=(\"[^\"]*\"|'[^']*'|\S*)")
_CLEARED = re.compile(
    r"(?:^|[\s;&|(])(?:unset\s+(?:\S+\s+)*PYTHONPATH\b|env\s+(?:\S+\s+)*(?:-i|-|--ignore-environment)\s)"
)
_PER_NODE = re.compile(r"--nproc[-_]per[-_]node(?:=|$)")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")
_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh"}


def wrapped_at(words: Sequence[str], prefix: Sequence[str]) -> int | None:
    """Where `prefix` stands in these words: in front, or further on where somebody else put words before it."""
    length = len(prefix)
    return next((at for at in range(len(words) - length + 1) if list(words[at : at + length]) == list(prefix)), None)


def is_kept(name: str) -> bool:
    """Whether every shell hands an environment variable of this name on to what it starts; Kubernetes allows others."""
    return _SHELL_NAME.fullmatch(name) is not None


def cautions(words: Sequence[str]) -> list[str]:
    """What in this command line keeps the hook from running."""
    found: list[str] = []
    texts = [words, *(word.split() for word in _shell_texts(words))]
    if any(_isolated(text) for text in texts):
        found.append(
            "Python is run with -S, -I or -E in the command, so it never looks at the hook: no rank will register"
        )
    if _sets_path(words):
        found.append(
            "the command sets or clears PYTHONPATH itself and drops what it was, so the hook won't be found: write "
            "PYTHONPATH=<yours>:$PYTHONPATH there"
        )
    return found


def _shell_texts(words: Sequence[str]) -> Iterable[str]:
    """Words that are a text for a shell."""
    if words and os.path.basename(words[0]) in _SHELLS:
        return [word for word in words[1:] if any(mark in word for mark in " \n;")]
    return []


def _isolated(words: Sequence[str]) -> bool:
    for at, word in enumerate(words):
        if re.fullmatch(_PYTHON, word) and _ignores_the_environment(words[at + 1 :]):
            return True
    return False


def _ignores_the_environment(options: Sequence[str]) -> bool:
    """Whether these words after `python` have one of -S, -I, -E before the program begins."""
    rest = iter(options)
    for word in rest:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            return False
        for index, letter in enumerate(word[1:], start=2):
            if letter in "SIE":
                return True
            if letter in "mc":
                return False
            if letter in "WX":
                if not word[index:]:
                    next(rest, "")
                break
    return False


def _sets_path(words: Sequence[str]) -> bool:
    joined = " ".join(words)
    if any(not re.search(r"\$\{?PYTHONPATH\b|\$\(PYTHONPATH\)", match[1]) for match in _SET.finditer(joined)):
        return True
    return bool(_CLEARED.search(joined))


def workers_in(words: Sequence[str]) -> Workers | None:
    """How many workers the command asks torchrun for; None: it does not say, `auto` where the node decides."""
    texts = [list(words), *(text.split() for text in _shell_texts(words))]
    for text in texts:
        for at, word in enumerate(text):
            if _PER_NODE.match(word):
                value = word.partition("=")[2] or (text[at + 1] if at + 1 < len(text) else "")
                if value.isdigit() and int(value) > 0:
                    return int(value)
                return "auto"
    return None


def runs_bare_python(words: Sequence[str]) -> bool:
    """Whether this command is a Python program without a launcher that is known to start the ranks."""
    if not words or not re.fullmatch(_PYTHON, words[0]):
        return False
    rest = [word for word in words[1:] if word]
    if "-m" in rest:
        module = rest[rest.index("-m") + 1 :]
        return not module or not any(
            module[0] == name or module[0].startswith(f"{name}.") for name in _LAUNCHER_MODULES
        )
    return True
