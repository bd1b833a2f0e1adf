"""Tasks whose Deck is a page of ours as it is: nothing around it, and nothing in it that asks the network for anything.

    @task(task_config=OwnDeck())
    def report() -> None:
        publish("<!doctype html>…")

flytekit would set whatever stands in a Deck into a page of its own that links fonts of fonts.googleapis.com
(`flytekit/deck/html/template.html`). What is relied on of flytekit 1.16 instead, and tested:

- Its writing of a Deck (`PythonTask._write_decks`, `bin.entrypoint`) is switched by the `enable_deck` that the
  constructor is given, which is False here.
- What is registered (`tools.translator`: `generates_deck` of the task's metadata, which tells propeller to look for a
  Deck) is switched by the property `enable_deck`, which is True here.
- The Deck of an attempt is the file `deck.html` below `output_metadata_prefix` of the execution's parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytekit.core.context_manager import ExecutionState, FlyteContextManager
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.deck.deck import DECK_FILE_NAME
from flytekit.extend import TaskPlugins
from flytekit.loggers import logger

_HTML = "text/html"


@dataclass(frozen=True)
class OwnDeck:
    """As `task_config`: the task writes its Deck itself, with `publish`."""


class OwnDeckTask(PythonFunctionTask[OwnDeck]):
    """A plain Python task in all but its Deck."""

    def __init__(self, task_config: OwnDeck, task_function: Any, **settings: Any) -> None:
        settings |= {"enable_deck": False, "disable_deck": None, "deck_fields": None}
        super().__init__(task_config, task_function, **settings)

    @property
    def enable_deck(self) -> bool:
        return True


def publish(page: str) -> Path:
    """Make this page the Deck of the task that runs, now: also where the task fails afterwards. The local file.

    That it can't be stored is said in the log, and nothing else: a report that nobody sees is no reason to lose it.
    """
    context = FlyteContextManager.current_context()
    path = Path(context.file_access.get_random_local_directory(), DECK_FILE_NAME)
    path.write_text(page, encoding="utf-8")
    logger.info(f"The Deck of this task is file://{path}")
    state, told = context.execution_state, context.user_space_params
    if state is None or state.mode != ExecutionState.Mode.TASK_EXECUTION or told is None:
        return path
    try:
        file_system = context.file_access.get_filesystem_for_path(told.output_metadata_prefix)
        separator = context.file_access.sep(file_system)
        remote = f"{told.output_metadata_prefix}{separator}{DECK_FILE_NAME}"
        context.file_access.put_data(str(path), remote, **as_html(file_system.protocol))
    except Exception as error:
        logger.error(f"The Deck could not be stored: {error}")
    return path


def as_html(protocol: str | tuple[str, ...]) -> dict[str, Any]:
    """How the file system of this protocol (fsspec's) is told what a file is; what it does not know it may refuse."""
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    if "s3" in names:
        return {"ContentType": _HTML}
    if names & {"gs", "gcs"}:
        return {"content_type": _HTML}
    if names & {"abfs", "az"}:
        from azure.storage.blob import ContentSettings

        return {"content_settings": ContentSettings(content_type=_HTML)}
    return {}


TaskPlugins.register_pythontask_plugin(OwnDeck, OwnDeckTask)
