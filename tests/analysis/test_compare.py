"""What a comparison of two captures calls slower, what it calls noise, and where it refuses to say."""

from __future__ import annotations

import html.parser
import itertools
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hand_made import rank, reduced
from hypothesis import given
from hypothesis import strategies as st
from import_run import import_run
from make_job import GpuJob, Slow

from sameshot.analysis.compare import Comparison, Outcome, compare
from sameshot.analysis.compare.change import change
from sameshot.analysis.compare.noise import LEAST, bound, of_samples, student
from sameshot.analysis.compare.run import compare_captures, write
from sameshot.analysis.compare.samples import Side, kernels
from sameshot.analysis.device.kernels import OTHERS
from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.results import Confidence, KernelRow, StepMethod, Steps
from sameshot.analysis.run import map_capture
from sameshot.cli.main import invoke
from sameshot.trace.imported import Import, import_traces

MS = 1_000_000


def normal(mean_ms: float, deviation_ms: float, count: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(mean_ms * MS, deviation_ms * MS, count)


def test_the_rest_of_all_kernels_is_no_kernel() -> None:
    """Which kernels are in it differs between captures."""
    rows = [KernelRow(name, "compute", 2, 10, 0.5, 5, 0, 5, 5, 5, 5, 5) for name in ("gemm", OTHERS)]
    steps = Steps(StepMethod.PROFILER_STEP, Confidence.HIGH, "", edges=(0, 50, 100))
    ranks = [msgspec.structs.replace(rank(0, [], []), kernel_rows=tuple(rows), steps=steps)]
    assert list(kernels(Side(reduced(ranks), tuple(ranks)))) == ["gemm"]


# -- one measure


def test_a_difference_beyond_noise_is_named_with_its_size_and_direction() -> None:
    slower = change("step time", "job", "step", normal(100, 3, 40, 1), normal(110, 3, 40, 2), relevant=MS)
    assert slower.outcome is Outcome.SLOWER
    assert slower.delta == pytest.approx(10 * MS, abs=2 * MS)
    assert slower.noise is not None
    assert 0 < slower.noise < 3 * MS
    assert slower.share == pytest.approx(0.1, abs=0.02)
    faster = change("step time", "job", "step", normal(110, 3, 40, 2), normal(100, 3, 40, 1), relevant=MS)
    assert faster.outcome is Outcome.FASTER


def series(kind: str, count: int, random: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Steps of about 100 ms: independent, with a heavy tail, or each like the one before."""
    if kind == "normal":
        return random.normal(100, 5, count) * MS
    if kind == "heavy":
        return (100 + random.lognormal(1, 1.5, count)) * MS
    draws, last = [], random.normal()
    for draw in random.normal(size=count):
        last = 0.6 * last + 0.8 * draw
        draws.append(100 + 5 * last)
    return np.asarray(draws) * MS


@pytest.mark.parametrize("count", [4, 6, 8, 12, 30, 200])
@pytest.mark.parametrize("kind", ["normal", "heavy", "alike"])
def test_equal_captures_are_hardly_ever_called_different(kind: str, count: int) -> None:
    random = np.random.default_rng(5)
    rounds = 400
    wrong = sum(
        change("x", "job", "step", series(kind, count, random), series(kind, count, random), relevant=0).outcome
        is not Outcome.SAME
        for _ in range(rounds)
    )
    # 5 % of 400 are 20; neighbours that are alike are seen as such only in longer series.
    assert wrong <= (60 if kind == "alike" and count < 30 else 36)


@pytest.mark.parametrize(("freedom", "expected"), [(3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1e9, 1.960)])
def test_students_quantile_is_that_of_the_tables(freedom: float, expected: float) -> None:
    assert student(freedom, 0.05) == pytest.approx(expected, rel=0.01)


@given(
    st.lists(st.integers(0, 10**9), min_size=0, max_size=40), st.lists(st.integers(0, 10**9), min_size=0, max_size=40)
)
def test_fewer_than_four_samples_say_nothing_of_noise_and_more_always_do(first: list[int], second: list[int]) -> None:
    noise = bound(*(of_samples(np.asarray(values, dtype=np.float64)) for values in (first, second)))
    assert (noise is None) == (min(len(first), len(second)) < LEAST)
    assert noise is None or noise >= 0


def test_a_large_difference_of_too_few_steps_is_not_claimed() -> None:
    few = change("x", "job", "step", normal(100, 1, 3, 1), normal(200, 1, 3, 2), relevant=MS)
    assert few.outcome is Outcome.UNKNOWN
    assert few.noise is None


def test_a_sure_difference_that_is_nobodys_problem_is_the_same() -> None:
    tiny = change("x", "job", "step", normal(100, 0.001, 50, 1), normal(100.1, 0.001, 50, 2), relevant=MS)
    assert tiny.noise is not None
    assert tiny.noise < tiny.delta
    assert tiny.outcome is Outcome.SAME


# -- two captures


def compared(before: Path, after: Path) -> Comparison:
    return compare_captures(str(before), str(after))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The same job, the same with other chance, and with a rank whose Python takes 8 ms longer per step."""
    folder = tmp_path_factory.mktemp("sides")
    size = {"hosts": 2, "gpus": 2, "steps": 24}
    return (
        import_run(folder / "a", GpuJob(**size, seed=1).run()),  # type: ignore[arg-type]
        import_run(folder / "b", GpuJob(**size, seed=2).run()),  # type: ignore[arg-type]
        import_run(folder / "c", GpuJob(**size, seed=3, slow=(Slow(rank=3, cause="host", ms=8),)).run()),  # type: ignore[arg-type]
    )


def test_two_runs_of_the_same_job_are_not_called_different(sides: tuple[Path, Path, Path]) -> None:
    found = compared(sides[0], sides[1])
    assert found.step is not None
    assert found.step.outcome is Outcome.SAME
    assert found.sentences[0].startswith("A step takes as long as before")


def test_a_slower_rank_shows_in_the_step_time_and_by_name(sides: tuple[Path, Path, Path]) -> None:
    found = compared(sides[0], sides[2])
    assert found.step is not None
    assert found.step.outcome is Outcome.SLOWER
    assert found.step.delta == pytest.approx(8 * MS, abs=max(3 * MS, found.step.noise or 0))
    untraced = [one for one in found.ranks if "untraced" in one.measure and one.outcome is Outcome.SLOWER]
    assert untraced[0].where == "rank 3"
    assert any("rank 3" in sentence for sentence in found.sentences)
    back = compared(sides[2], sides[0])
    assert back.step is not None
    assert (back.step.outcome, back.step.delta) == (Outcome.FASTER, -found.step.delta)


def test_the_sentence_about_noise_between_runs_is_always_there(sides: tuple[Path, Path, Path]) -> None:
    assert "repeat a capture" in compared(sides[0], sides[1]).warnings[-1]


def test_files_hold_what_the_terminal_says_and_need_no_network(sides: tuple[Path, Path, Path], tmp_path: Path) -> None:
    found = compared(sides[0], sides[2])
    write(found, tmp_path)
    stored = json.loads((tmp_path / "comparison.json").read_bytes())
    assert stored["schema"] == "sameshot.dev/comparison/v1"
    assert stored["step"]["delta_ns"] == found.step.delta if found.step else False
    text = (tmp_path / "comparison.html").read_text()
    page = Reader()
    page.feed(text)
    shown = " ".join(" ".join(page.pieces).split())
    for part in found.sentences[0].split(": "):
        assert part in shown
    assert page.addresses
    assert all(address.startswith(("#", "data:")) for address in page.addresses)


class Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.addresses: list[str] = []

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_the_command_prints_the_findings_and_fails_softly_where_a_rank_is_missing(
    sides: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["compare", str(sides[0]), str(sides[2])]) == 0
    assert "A step got slower" in capsys.readouterr().out
    lacking = import_run(tmp_path, GpuJob(hosts=1, gpus=3, steps=8).run(), without=[2])
    assert invoke(["compare", str(sides[0]), str(lacking)]) == 3
    assert "lacks rank 2" in " ".join(capsys.readouterr().out.split())


# -- real traces


@pytest.fixture(scope="module")
def starved_and_fed(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The same ResNet training with num_workers 0 and 4."""
    folder, captures = tmp_path_factory.mktemp("resnet"), []
    for workers in (0, 4):
        path = shared_data / "traces" / "resnet50_dataloader" / f"num_workers_{workers}.json.gz"
        import_traces(Import(files={0: path}, out=folder / str(workers)))
        captures.append(str(folder / str(workers)))
    return compare_captures(captures[0], captures[1])


def test_a_fed_dataloader_is_what_made_the_real_step_faster(starved_and_fed: Comparison) -> None:
    found = starved_and_fed
    assert found.step is not None
    assert found.step.outcome is Outcome.FASTER
    assert "got faster" in found.sentences[0]
    waiting = next(one for one in found.parts if one.measure == "main thread waiting for data")
    assert waiting.outcome is Outcome.FASTER
    assert found.parts[0] is waiting  # nothing else changed as much
    # The parts of the main thread are the whole step, and so are those of the GPU: their changes add up to the step's.
    for who in ("main thread", "GPU"):
        parts = [one.delta for one in found.parts if one.measure.startswith(who)]
        assert len(parts) > 2
        assert sum(parts) == pytest.approx(found.step.delta, abs=len(parts))
    assert not [one for one in found.parts if one.measure == "GPU computing" and one.outcome is Outcome.SLOWER]


# -- chance, ranks without steps, single calls


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[Side]:
    """The same program four times, each by another chance."""
    folder = tmp_path_factory.mktemp("twins")
    sides = []
    for seed in range(4):
        run = GpuJob(hosts=1, gpus=4, steps=12, common_jitter=2.0, seed=seed).run()
        mapped = map_capture(str(import_run(folder / str(seed), run)))
        sides.append(Side(reduce_ranks(mapped.manifest, mapped.ranks), tuple(mapped.ranks)))
    return sides


def test_of_all_kernels_parts_and_ranks_of_the_same_program_none_is_called_different(twins: list[Side]) -> None:
    """Calls of one step vary together, and many measures are looked at: neither may make a change of chance."""
    for before, after in itertools.permutations(twins, 2):
        claimed = [one for one in compare(before, after).changes if one.outcome in (Outcome.SLOWER, Outcome.FASTER)]
        assert claimed == []


def test_ranks_without_steps_are_left_out_of_both_sides_of_a_ratio(twins: list[Side]) -> None:
    whole = twins[0]
    unknown = Steps(StepMethod.UNKNOWN, Confidence.NONE, "none")
    ranks = tuple(
        msgspec.structs.replace(one, steps=unknown) if one.identity.rank in (1, 2) else one for one in whole.ranks
    )
    found = compare(whole, Side(whole.summary, ranks))
    assert [one for one in found.kernels if one.outcome is not Outcome.SAME] == []
    assert any("No steps could be recognised on 2 of 4 ranks of the later capture" in line for line in found.warnings)


def test_a_kernel_that_was_called_once_proves_nothing(twins: list[Side]) -> None:
    def once(side: Side, length: int) -> Side:
        row = KernelRow("k", "compute", 1, length, 1.0, length, 0, length, length, length, length, length)
        ranks = tuple(msgspec.structs.replace(one, kernel_rows=(row,)) for one in side.ranks[:1])
        return Side(side.summary, ranks)

    found = compare(once(twins[0], 50 * MS), once(twins[0], 400 * MS)).kernels
    assert [(one.noise, one.outcome) for one in found] == [(None, Outcome.UNKNOWN)]
