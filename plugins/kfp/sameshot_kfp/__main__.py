"""`python -m sameshot_kfp FOLDER`: the pipelines and components as YAML, for people who use no Python.

What stands in deploy/kfp is written by this command, with its defaults.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from kfp.compiler import Compiler
from kfp.dsl.base_component import BaseComponent

from sameshot.steps.image import IMAGE
from sameshot_kfp.cluster import KEYS, in_cluster
from sameshot_kfp.components import Components
from sameshot_kfp.pipelines import PARALLELISM, analyze_capture, profile_job, profile_pipeline


def rendered(
    image: str = IMAGE, *, secret: str = "", keys: Sequence[str] = KEYS, parallelism: int = PARALLELISM
) -> dict[str, str]:
    """File name → KFP's IR as YAML."""
    components = Components.containers(image, in_cluster(secret=secret, keys=keys))
    made: Mapping[str, BaseComponent] = {
        "profile-job.yaml": profile_pipeline(components, parallelism=parallelism),
        "profile-job-component.yaml": profile_job(components, parallelism=parallelism),
        "analyze-capture-component.yaml": analyze_capture(components, parallelism=parallelism),
        **{f"components/{name.replace('_', '-')}.yaml": each for name, each in components.bare.items()},
    }
    with TemporaryDirectory() as folder:
        return {name: _compiled(each, Path(folder) / "ir.yaml") for name, each in made.items()}


def _compiled(component: BaseComponent, path: Path) -> str:
    Compiler().compile(component, str(path))
    return path.read_text()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sameshot_kfp", description="sameshot's pipelines as KFP's IR YAML."
    )
    parser.add_argument("folder", type=Path, help="where to write them")
    parser.add_argument("--image", default=IMAGE, help="where the image was copied to (%(default)s)")
    parser.add_argument("--secret", default="", help="Secret with the stores' credentials; default: none is used")
    parser.add_argument("--keys", default=",".join(KEYS), help="what is in it (%(default)s)")
    parser.add_argument("--parallelism", type=int, default=PARALLELISM, help="shards at the same time (%(default)s)")
    given = parser.parse_args(argv)
    made = rendered(given.image, secret=given.secret, keys=given.keys.split(","), parallelism=given.parallelism)
    for name, text in made.items():
        path = given.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
