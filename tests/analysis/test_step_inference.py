"""Steps are found where marks are, else where calls repeat; a doubtful answer never says *high*, nor a wrong one."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gloo_job import FETCH, span

from sameshot.analysis.frame import FrameBuilder
from sameshot.analysis.host import main_thread
from sameshot.analysis.host.data_wait import find_fetches
from sameshot.analysis.host.steps import MainThread, Mark, find_steps, infer_steps
from sameshot.analysis.intervals import EMPTY
from sameshot.analysis.results import Confidence, StepMethod, Steps
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.read import read_trace

ADAM, SGD = "Optimizer.step#AdamW.step", "Optimizer.step#SGD.step"
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"
MS = 1_000_000


# ---- marks alone, at times that are easy to follow


def marks(*ends: int, name: str = ADAM) -> list[Mark]:
    return [(end - 5, end, name) for end in ends]


def steps(found: list[Mark], backward: list[int] | None = None, every: int = 10) -> Steps:
    """The same operator begins every ten moments, so that all steps do alike."""
    last = max((end for _, end, _ in found), default=0)
    start = np.arange(50, last, every, dtype=np.int64)
    fetch = np.asarray(sorted(backward or []), dtype=np.int64) - 1
    return infer_steps(MainThread(sorted(found), start, np.zeros_like(start), fetch + 1, 50, fetch))


def test_the_ends_of_optimizer_steps_are_the_edges() -> None:
    ends = list(range(100, 800, 100))
    found = steps(marks(*ends), [end - 50 for end in ends])
    assert (found.method, found.confidence) == (StepMethod.OPTIMIZER, Confidence.HIGH)
    assert list(found.edges) == ends
    assert found.count == 6


def test_profiler_steps_win() -> None:
    profiler = [(start, start + 95, f"ProfilerStep#{number}") for number, start in enumerate((0, 100, 200), 4)]
    found = steps([*profiler, *marks(90, 190, 290)])
    assert (found.method, found.confidence, found.edges) == (
        StepMethod.PROFILER_STEP,
        Confidence.HIGH,
        (0, 100, 200, 295),
    )


def test_a_single_profiler_step_is_no_basis_even_beside_optimizer_steps() -> None:
    found = steps([(0, 95, "ProfilerStep#4"), *marks(90, 190, 290, 390)])
    assert (found.method, found.confidence, found.count) == (StepMethod.UNKNOWN, Confidence.NONE, 0)
    assert "fewer than two whole training steps" in found.note


def test_a_last_profiler_step_that_recording_cut_short_is_no_step() -> None:
    profiler = [(0, 95, "ProfilerStep#1"), (100, 195, "ProfilerStep#2"), (200, 205, "ProfilerStep#3")]
    found = steps([*profiler, *marks(90, 190)])
    assert (found.edges, found.method) == ((0, 100, 200), StepMethod.PROFILER_STEP)
    assert "cut off" in found.note


def test_profiler_steps_that_leave_numbers_out_are_doubted() -> None:
    profiler = [(start, start + 95, f"ProfilerStep#{start // 100}") for start in (100, 200, 700)]
    assert steps(profiler).confidence is Confidence.MEDIUM


def test_calls_without_a_backward_pass_between_them_are_one_step() -> None:
    """Two parameter groups stepped one after the other: 12 calls, 6 steps."""
    ends = [time for step in range(100, 700, 100) for time in (step, step + 10)]
    found = steps(marks(*ends), [step - 40 for step in range(100, 700, 100)])
    assert found.count == 5
    assert found.confidence is Confidence.MEDIUM
    assert "12 optimizer calls were taken for 6 steps" in found.note


def test_two_optimizers_of_different_names_are_doubtful() -> None:
    ends = list(range(100, 800, 100))
    found = steps([*marks(*ends), *marks(*(end + 20 for end in ends), name=SGD)], [e - 50 for e in ends])
    assert found.count == 6
    assert found.confidence is not Confidence.HIGH


def test_two_optimizers_of_one_name_each_with_its_backward_pass_are_paired() -> None:
    ends = [time for step in range(100, 900, 100) for time in (step, step + 25)]
    found = steps(marks(*ends), [end - 3 for end in ends])
    assert found.count == 7
    assert found.confidence in (Confidence.LOW, Confidence.MEDIUM)


def test_uneven_steps_are_not_mistaken_for_two_optimizers() -> None:
    ends = [100, 190, 320, 400, 540, 610, 750, 830]
    found = steps(marks(*ends), [end - 50 for end in ends], every=1000)
    assert found.count == 7
    assert found.confidence is not Confidence.LOW


def test_a_few_gaps_that_take_turns_are_counted_but_doubted() -> None:
    found = steps(marks(100, 300, 350, 550, 600), [50, 250, 320, 500, 580], every=1000)
    assert found.count == 4
    assert found.confidence is Confidence.LOW


@pytest.mark.parametrize("ends", [(), (100,), (100, 200)])
def test_fewer_than_two_whole_steps_are_unknown(ends: tuple[int, ...]) -> None:
    found = steps(marks(*ends))
    assert (found.method, found.confidence, found.edges) == (StepMethod.UNKNOWN, Confidence.NONE, ())
    assert found.note


def test_a_few_steps_are_never_of_high_confidence() -> None:
    assert steps(marks(100, 200, 300)).confidence is Confidence.MEDIUM


# ---- whole loops


class Loop:
    """What the main thread (9) of a training loop records, and its backward thread (44)."""

    def __init__(self, jitter: float = 0.0) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 0.0
        self.begins: list[float] = []
        self._dice = random.Random(1)
        self._jitter = jitter

    def call(self, name: str, length: float = 0.2, *, cat: str = "cpu_op", tid: int = 9) -> None:
        length *= 1 + self._jitter * self._dice.random()
        self.events.append(span(name, self.now, length, cat=cat, pid=9, tid=tid))
        self.now += length + 0.01

    def layers(self, count: int = 12) -> None:
        for _ in range(count):
            for name in ("aten::linear", "aten::relu", "aten::dropout"):
                self.call(name)

    def forward(self, layers: int = 12) -> None:
        self.call("aten::embedding")
        self.layers(layers)
        self.call("aten::cross_entropy_loss")

    def backward(self, layers: int = 12) -> None:
        for _ in range(layers):
            self.call(BACKWARD, 0.4, tid=44)

    def optimize(self, mark: str | None = None, operators: tuple[str, ...] = ("aten::_foreach_addcdiv_",)) -> None:
        begin = self.now
        for name in operators:
            self.call(name)
        if mark is not None:
            self.events.append(span(mark, begin, self.now - begin, cat="user_annotation", pid=9, tid=9))

    def step(self, mark: str | None = None, *, fetch: bool = True, micro: int = 1) -> None:
        self.begins.append(self.now)
        for _ in range(micro):
            if fetch:
                self.call(FETCH, 1.5, cat="user_annotation")
            self.forward()
            self.backward()
        self.optimize(mark)

    def evaluate(self, batches: int = 3) -> None:
        for _ in range(batches):
            self.call(FETCH, 1.5, cat="user_annotation")
            self.forward()
            self.call("aten::argmax")

    @property
    def turn_ns(self) -> list[int]:
        return [round((b - a) * MS) for a, b in zip(self.begins, self.begins[1:], strict=False)]


def steps_of(events: list[dict[str, Any]]) -> Steps:
    frames = FrameBuilder()
    found = read_trace(io.BytesIO(json.dumps({"traceEvents": events}).encode()), ColumnBuilder(frames))
    frame = frames.frame()
    main, window = main_thread(frame), (found.window_start_ns, found.window_end_ns)
    fetches = find_fetches(frame, main, window)
    return find_steps(frame, main, window[0], EMPTY if fetches is None else fetches.spans.start)


def durations(found: Steps) -> list[int]:
    return [int(length) for length in np.diff(found.edges)]


def test_a_jittering_loop_is_followed_exactly() -> None:
    loop = Loop(jitter=0.6)
    for _ in range(20):
        loop.step(ADAM)
    found = steps_of(loop.events)
    assert (found.method, found.confidence, found.count) == (StepMethod.OPTIMIZER, Confidence.HIGH, 20)
    assert durations(found)[:-1] == pytest.approx(loop.turn_ns, rel=0.01)


def test_the_step_that_the_window_began_in_is_left_out_and_one_that_it_holds_is_counted() -> None:
    loop = Loop()
    for _ in range(8):
        loop.step(ADAM)
    assert steps_of(loop.events).count == 8
    cut = [event for event in loop.events if event["ts"] >= 5_000]
    assert steps_of(cut).count == 7
    assert steps_of(cut).confidence is Confidence.HIGH
    without_fetch = [event for event in loop.events if event["ts"] > 0]
    assert steps_of(without_fetch).count == 7, "the time in its fetch is not known"


def test_gradient_accumulation_counts_optimizer_steps() -> None:
    loop = Loop()
    for _ in range(6):
        loop.step(ADAM, micro=4)
    found = steps_of(loop.events)
    assert (found.count, found.confidence) == (6, Confidence.HIGH)


def test_two_networks_that_train_in_turn_are_one_step_even_if_both_take_equally_long() -> None:
    loop = Loop()
    for _ in range(10):
        loop.begins.append(loop.now)
        for layer in ("aten::conv2d", "aten::conv_transpose2d"):
            for _ in range(30):
                loop.call(layer)
            loop.backward()
            loop.optimize(ADAM)
    found = steps_of(loop.events)
    assert found.count in (9, 10)
    assert found.confidence is Confidence.MEDIUM
    assert durations(found)[1:-1] == pytest.approx(loop.turn_ns[1:-1], rel=0.02)


def test_a_critic_that_trains_five_times_as_often_is_never_a_high_answer() -> None:
    for generator, critic in ((ADAM, SGD), (ADAM, ADAM)):
        loop = Loop()
        for index in range(24):
            own = index % 6 == 5
            for _ in range(30):
                loop.call("aten::conv_transpose2d" if own else "aten::conv2d")
            loop.backward()
            loop.optimize(generator if own else critic)
        found = steps_of(loop.events)
        assert found.confidence in (Confidence.MEDIUM, Confidence.LOW)
        if generator != critic:
            assert found.count == 4, "from generator to generator"


def test_two_equal_networks_that_share_a_batch_are_one_step_and_without_a_fetch_never_a_high_answer() -> None:
    for fetch in (True, False):
        loop = Loop()
        for _ in range(10):
            loop.begins.append(loop.now)
            if fetch:
                loop.call(FETCH, 1.5, cat="user_annotation")
            for _ in range(2):
                loop.forward()
                loop.backward()
                loop.optimize(ADAM)
        found = steps_of(loop.events)
        assert found.confidence in (Confidence.MEDIUM, Confidence.LOW)
        if fetch:
            assert durations(found)[:-1] == pytest.approx(loop.turn_ns, rel=0.02)


def test_an_evaluation_inside_makes_one_long_step_and_no_more_steps() -> None:
    loop = Loop()
    for index in range(10):
        loop.step(ADAM)
        if index == 4:
            loop.evaluate()
    found = steps_of(loop.events)
    assert found.count == 10
    assert found.confidence is Confidence.MEDIUM
    assert "1 of " in found.note
    assert float(np.median(durations(found))) == pytest.approx(float(np.median(loop.turn_ns)), rel=0.02)


def test_marks_of_another_thread_or_of_the_device_are_no_steps() -> None:
    loop = Loop()
    for _ in range(6):
        loop.step(ADAM)
    expected = steps_of(loop.events)
    elsewhere = [
        span(f"ProfilerStep#{number}", number * 3.0, 2.9, cat=cat, pid=pid, tid=tid)
        for number in range(5)
        for cat, pid, tid in (("user_annotation", 9, 77), ("gpu_user_annotation", 0, 7))
    ]
    assert steps_of([*loop.events, *elsewhere]) == expected
    assert expected.method is StepMethod.OPTIMIZER


# ---- nothing marks steps


def test_a_loop_without_marks_is_found_by_what_repeats() -> None:
    loop = Loop(jitter=0.5)
    for _ in range(12):
        loop.step()
    found = steps_of(loop.events)
    assert (found.method, found.confidence, found.count) == (StepMethod.REPEATING, Confidence.MEDIUM, 12)
    assert durations(found)[:-1] == pytest.approx(loop.turn_ns, rel=0.01)


@pytest.mark.parametrize("begin", [2_500, 4_000, 9_000, 17_000])
def test_a_window_cut_anywhere_gives_the_same_step_time(begin: int) -> None:
    loop = Loop()
    for _ in range(12):
        loop.step(fetch=False)
    cut = [event for event in loop.events if begin <= event["ts"] < loop.now * 1000 - begin]
    found = steps_of(cut)
    assert found.method is StepMethod.REPEATING
    assert found.count >= 8
    assert durations(found) == pytest.approx([loop.turn_ns[0]] * found.count, rel=0.05)


def test_layers_that_are_all_alike_are_not_taken_for_steps() -> None:
    loop = Loop()
    loop.layers(200)
    assert steps_of(loop.events).method is StepMethod.UNKNOWN
    one_pass = Loop()
    one_pass.forward(100)
    one_pass.backward(100)
    assert steps_of(one_pass.events).method is StepMethod.UNKNOWN


def test_alike_layers_inside_a_step_do_not_hide_the_step() -> None:
    loop = Loop()
    for _ in range(5):
        loop.begins.append(loop.now)
        loop.forward(150)
        loop.backward(150)
        loop.optimize()
    found = steps_of(loop.events)
    assert found.count == 5
    assert durations(found)[:-1] == pytest.approx(loop.turn_ns, rel=0.01)


def test_micro_batches_are_not_taken_for_steps_where_the_optimizer_is_seen() -> None:
    loop = Loop()
    for _ in range(6):
        loop.step(micro=4)
    found = steps_of(loop.events)
    assert found.method is StepMethod.REPEATING
    assert found.count in (5, 6)
    assert durations(found)[0] == pytest.approx(loop.turn_ns[0], rel=0.05)


def test_micro_batches_without_any_optimizer_in_the_window_are_of_low_confidence() -> None:
    loop = Loop()
    for _ in range(8):
        loop.call(FETCH, 1.5, cat="user_annotation")
        loop.forward()
        loop.backward()
    assert steps_of(loop.events).confidence is Confidence.LOW


def test_logging_every_few_steps_does_not_make_steps_longer() -> None:
    loop = Loop()
    for index in range(24):
        loop.step()
        if index % 7 == 3:
            loop.call("aten::item")
    found = steps_of(loop.events)
    assert found.count == 24
    assert float(np.median(durations(found))) == pytest.approx(float(np.median(loop.turn_ns)), rel=0.01)


def test_an_evaluation_inside_does_not_hide_what_repeats() -> None:
    loop = Loop()
    for index in range(12):
        loop.step()
        if index == 5:
            loop.evaluate()
    found = steps_of(loop.events)
    assert found.method in (StepMethod.REPEATING, StepMethod.UNKNOWN)
    if found.count:
        assert float(np.median(durations(found))) == pytest.approx(float(np.median(loop.turn_ns)), rel=0.02)


def test_a_window_of_less_than_two_steps_repeats_nothing() -> None:
    loop = Loop()
    loop.step()
    loop.forward()
    assert steps_of(loop.events).method is StepMethod.UNKNOWN


# ---- real traces


@pytest.fixture(scope="module")
def real(shared_data: Path) -> Any:
    kept: dict[str, dict[str, Any]] = {}

    def without(name: str, *prefixes: str) -> Steps:
        if name not in kept:
            kept.clear()
            kept[name] = json.loads(gzip.decompress((shared_data / "traces" / name).read_bytes()))
        events = [e for e in kept[name]["traceEvents"] if not str(e.get("name")).startswith(prefixes or ("\0",))]
        return steps_of(events)

    return without


@pytest.mark.parametrize("workers", [0, 4])
def test_real_steps_are_found_again_when_their_marks_are_removed(real: Any, workers: int) -> None:
    name = f"resnet50_dataloader/num_workers_{workers}.json.gz"
    marked = real(name)
    assert (marked.method, marked.confidence, marked.count) == (StepMethod.PROFILER_STEP, Confidence.HIGH, 6)
    optimizer = real(name, "ProfilerStep")
    assert (optimizer.method, optimizer.count) == (StepMethod.OPTIMIZER, 6)
    assert durations(optimizer) == pytest.approx(durations(marked), rel=0.02)
    for prefixes in (("ProfilerStep", "Optimizer.step"), ("ProfilerStep", "Optimizer.")):
        repeating = real(name, *prefixes)
        assert (repeating.method, repeating.count) == (StepMethod.REPEATING, 6)
        assert repeating.confidence is not Confidence.HIGH
        assert durations(repeating) == pytest.approx(durations(marked), rel=0.05)


def test_six_optimizer_events_of_a_real_trace_are_three_steps(real: Any) -> None:
    """Three `zero_grad` and three `step`."""
    name = "single/a100_nccl_2ranks_rank0.json.gz"
    marked, optimizer = real(name), real(name, "ProfilerStep")
    assert marked.count == optimizer.count == 3
    assert durations(optimizer) == pytest.approx(durations(marked), rel=0.02)
    assert optimizer.confidence is Confidence.MEDIUM
    repeating = real(name, "ProfilerStep", "Optimizer.")
    assert durations(repeating) == pytest.approx(durations(marked)[: repeating.count], rel=0.05)


@pytest.mark.parametrize("name", ["single/mi250_minitoy", "dlrm8_v100/rank0", "single/gloo300_cpu_rank34"])
def test_real_windows_of_one_step_are_unknown_with_and_without_marks(real: Any, name: str) -> None:
    assert real(f"{name}.json.gz").method is StepMethod.UNKNOWN
    assert real(f"{name}.json.gz", "ProfilerStep").method is StepMethod.UNKNOWN
    assert real(f"{name}.json.gz", "ProfilerStep", "Optimizer.").method is StepMethod.UNKNOWN


def test_the_layers_of_a_real_inference_are_not_steps(real: Any) -> None:
    assert real("single/h100_bert_small.json.gz", "ProfilerStep").method is StepMethod.UNKNOWN
