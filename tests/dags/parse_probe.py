"""Parse DAG files as the DAG processor does, in a process that can reach nothing, and say what came of it as JSON.

    python parse_probe.py EMPTY_DAG FILE [FILE…]

The empty one is parsed first, so that what follows costs only what is its own. Any attempt to connect, to look up a
host, to open a database or to start a program is noted and refused.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import BundleDagBag
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.dag_version_inflation_checker import check_dag_file_stability

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from heavy import heavy_since

REFUSED = (
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "sqlite3.connect",
    "subprocess.Popen",
    "os.posix_spawn",
)
tried: list[str] = []


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in REFUSED:
        tried.append(f"{event} {arguments!r}"[:200])
        raise PermissionError(f"{event} while a DAG is parsed")


def parse(file: str) -> dict[str, Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    bag = BundleDagBag(dag_folder=file, bundle_path=Path(file).parent, bundle_name="dags", load_op_links=False)
    serialized = {dag.dag_id: DagSerialization.to_dict(dag) for dag in bag.dags.values()}
    return {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "errors": bag.import_errors,
        "warnings": [line for lines in bag.captured_warnings.values() for line in lines],
        "unstable": check_dag_file_stability(file).get_formatted_warnings(list(serialized)),
        "dags": sorted(serialized),
        "serialized": serialized,
    }


def main() -> None:
    warnings.simplefilter("always")
    sys.addaudithook(refuse)
    empty, *files = sys.argv[1:]
    parse(empty)
    before = set(sys.modules)
    parsed = {Path(file).stem: parse(file) for file in files}
    print(json.dumps({"tried": tried, "heavy": heavy_since(before), "parsed": parsed}, default=str))


if __name__ == "__main__":
    main()
