"""The two faces of a component, both made from its `Step`: a container, and a function for KFP's local runner.

Both have the very same signature, written out as source from the table: KFP reads a component's interface from a
signature, and a lightweight component's program from its source text.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable
from typing import Any

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from sameshot_kfp.interface import File, Input, Output, Step

_KINDS = {"str": "str", "int": "int", "float": "float", "bool": "bool", "list": "List[str]"}


def container(step: Step, image: str) -> BaseComponent:
    """A component that runs in `image` as it is: nothing is installed, nothing but the image is needed."""
    typed = _function(step)

    def run(*places: Any) -> dsl.ContainerSpec:
        given = dict(zip(inspect.signature(typed).parameters, places, strict=True))
        args: list[Any] = [step.name, "--executor-input", dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER]
        for each in step.files:
            args += ["--artifact", each.name, given[each.name].path]
        return dsl.ContainerSpec(image=image, command=["python3", "-m", "sameshot_kfp.run"], args=args)

    run.__name__, run.__doc__ = typed.__name__, typed.__doc__
    run.__signature__ = inspect.signature(typed)  # type: ignore[attr-defined]
    made: BaseComponent = dsl.container_component(run)
    return made


def lightweight(step: Step, image: str) -> BaseComponent:
    """The same for `kfp.local.SubprocessRunner`, which runs no containers: sameshot must be installed where it runs."""
    made: BaseComponent = dsl.component(
        _function(step), base_image=image, packages_to_install=[], install_kfp_package=False
    )
    return made


def _function(step: Step) -> Callable[..., None]:
    source, name = _source(step), f"<sameshot_kfp {step.name}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # where `inspect` looks
    scope: dict[str, Any] = {}
    exec("from typing import *\nfrom kfp.dsl import *", scope)
    exec(compile(source, name, "exec", dont_inherit=True), scope)  # annotations are to be values, as KFP reads them
    made: Callable[..., None] = scope[step.name]
    return made


def _source(step: Step) -> str:
    """A whole program, since KFP stores it in the pipeline. Inputs that must be given come first."""
    inputs = [each for each in step.inputs if each.default is None]
    files = [f"{each.name}: Output[{each.kind}]" for each in step.files]
    outputs = [f"{each.name}: OutputPath({_KINDS[each.kind]})" for each in step.outputs]
    optional = [each for each in step.inputs if each.default is not None]
    parameters = [
        *(f"{each.name}: {_KINDS.get(each.kind, each.kind)}" for each in inputs),
        *files,
        *outputs,
        *(f"{each.name}: {_KINDS[each.kind]} = {each.default!r}" for each in optional),
    ]
    described: tuple[Input | File | Output, ...] = (*step.inputs, *step.files, *step.outputs)
    about = [f"        {each.name}: {each.about}" for each in described]
    lines = [
        f"def {step.name}(",
        *(f"    {each}," for each in parameters),
        "):",
        f'    """{step.about}',
        "",
        "    Args:",
        *about,
        '    """',
        "    given = dict(locals())",
        "    from sameshot_kfp.run import lightweight",
        "",
        f'    lightweight("{step.name}", given)',
    ]
    text = "\n".join(lines) + "\n"
    assert not re.search(r"[\\]", text), "the program is quoted once more"
    return text
