"""Garbage collection and locks are stated where they are visible, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from gloo_job import FETCH, span
from test_rank_breakdown import MS, summary_of

from sameshot.analysis.results import Pause

LOCK = "<built-in method acquire of _thread.lock object at 0x7fda50128340>"
ENTER = "<built-in method __enter__ of _thread.RLock object at 0x7fda6fb6c800>"


def main(name: str, start: float, length: float, cat: str = "python_function", tid: int = 9) -> dict[str, Any]:
    return span(name, start, length, cat=cat, pid=9, tid=tid)


WORK = main("aten::mm", 0, 100, cat="cpu_op")


def test_collections_are_counted_with_the_longest_as_evidence() -> None:
    found = summary_of(
        WORK,
        main("train.py(3): main", 0, 100),
        main("Python GC", 10, 2),
        main("<built-in function collect>", 40, 9),
        main("Python GC", 41, 7),  # inside of the call: the same pause
    )
    assert found.pauses == (Pause("gc", 2, 11 * MS, 9 * MS, 3),)


def test_a_wait_for_a_lock_is_a_pause_and_taking_a_free_one_is_none() -> None:
    found = summary_of(WORK, main(LOCK, 10, 5), main(LOCK, 20, 0.05), main(ENTER, 30, 8), main(ENTER, 40, 0.0002))
    assert found.pauses == (Pause("lock", 2, 13 * MS, 8 * MS, 3),)


def test_the_lock_of_the_loaders_queue_is_data_wait_and_no_pause() -> None:
    fetch = main(FETCH, 10, 20, cat="user_annotation")
    assert summary_of(WORK, fetch, main(LOCK, 12, 15)).pauses == ()


def test_pauses_of_other_threads_do_not_hold_up_the_main_one() -> None:
    assert summary_of(WORK, main(LOCK, 10, 5, tid=12), main("Python GC", 20, 5, tid=12)).pauses == ()


@pytest.mark.parametrize(
    "name", ["<built-in method release of _thread.lock object at 0x7f>", "gc.py(3): collect", "GC"]
)
def test_what_only_looks_like_a_pause_is_none(name: str) -> None:
    assert summary_of(WORK, main(name, 10, 50)).pauses == ()


@pytest.mark.live
def test_a_real_profile_shows_a_real_collection_and_a_real_wait(tmp_path: Any) -> None:
    import gc
    import json
    import threading
    import time

    import torch
    from torch._C._profiler import _ExperimentalConfig

    held, asked = threading.Event(), threading.Event()
    lock = threading.Lock()

    def hold() -> None:
        with lock:
            held.set()
            asked.wait(30)
            time.sleep(0.05)  # what the other thread has to wait

    keeper = threading.Thread(target=hold)
    keeper.start()
    assert held.wait(10)
    config = _ExperimentalConfig(record_python_gc_info=True)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True, experimental_config=config
    ) as profiler:
        torch.ones(3).sum()
        asked.set()
        lock.acquire()
        lock.release()
        gc.collect()
        torch.ones(3).sum()
    keeper.join()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    found = {pause.kind: pause for pause in summary_of(*(e for e in events if e.get("ph") == "X")).pauses}
    assert found["gc"].count >= 1
    assert found["lock"].count == 1
    assert 1 * MS < found["lock"].total < 5000 * MS
