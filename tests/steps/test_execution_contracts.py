"""Each engine's terms, and the request keys that follow from them: same parts, same key; other parts, another key."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameshot import errors
from sameshot.errors import UsageError
from sameshot.steps.contract import AIRFLOW, ARGO, CONTRACTS, FLYTE, KFP, Engine, ExecutionContract, retryable

LIMIT = 512  # what a coordinator takes (docs/architecture.md)

# Any text at all: separators, percent signs, tildes, control characters, lone surrogates, and very long ones.
PART = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=()), min_size=1, max_size=40),
    st.text("%/~aA2F-", min_size=1, max_size=12),
    st.builds(lambda char, times: char * times, st.characters(exclude_categories=()), st.integers(1, 700)),
)
PARTS = st.tuples(PART, PART, PART, PART, PART)


def key(parts: tuple[object, ...], contract: ExecutionContract = AIRFLOW) -> str:
    return contract.request_key(**dict(zip(contract.key_parts, parts, strict=True)))


def test_there_is_a_contract_for_every_engine_and_every_term_is_said() -> None:
    assert set(CONTRACTS) == set(Engine)
    for engine, contract in CONTRACTS.items():
        assert contract.engine is engine
        assert all(getattr(contract, name) for name in contract.__struct_fields__)
        assert len(set(contract.key_parts)) == len(contract.key_parts)


@pytest.mark.parametrize(
    ("contract", "asked_anew", "never"),
    [
        (AIRFLOW, "max_tries", "try_number"),  # a clear raises max_tries, a retry only try_number
        (FLYTE, "execution", "attempt"),
        (KFP, "run_id", "pod"),
        (ARGO, "workflow_uid", "pod_name"),
    ],
)
def test_what_a_retry_changes_is_no_part_and_what_a_new_request_changes_is_one(
    contract: ExecutionContract, asked_anew: str, never: str
) -> None:
    assert asked_anew in contract.key_parts
    assert never not in contract.key_parts


def test_a_key_can_be_read_and_traced_to_its_task() -> None:
    assert key(("train", "scheduled__2026-11-30T06:00:00+00:00", "profile.capture", -1, 2)) == (
        "airflow/train/scheduled__2026-11-30T06:00:00+00:00/profile.capture/-1/2"
    )


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"dag_id": "d"}, "map_index, max_tries, run_id, task_id"),
        (dict.fromkeys(AIRFLOW.key_parts, "x") | {"try_number": 1}, "try_number"),
        (dict.fromkeys(AIRFLOW.key_parts, "x") | {"run_id": ""}, "run_id must not be empty"),
    ],
)
def test_missing_unknown_and_empty_parts_are_refused_by_name(parts: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        AIRFLOW.request_key(**parts)


@given(PARTS)
def test_any_parts_give_a_key_that_every_coordinator_takes(parts: tuple[str, ...]) -> None:
    made = key(parts)
    assert made.isprintable()
    assert 0 < len(made.encode()) <= LIMIT
    assert made == key(parts)


@given(PARTS, PARTS)
def test_other_parts_give_another_key(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (key(one) == key(other)) == (one == other)


@given(PARTS)
def test_parts_that_are_shifted_or_joined_differently_give_another_key(parts: tuple[str, ...]) -> None:
    a, b, *rest = parts
    joined = (f"{a}/{b}", rest[0], *rest)
    assert key(joined) != key(parts)


@given(PARTS)
def test_a_short_key_holds_its_parts_and_a_long_one_keeps_its_beginning(parts: tuple[str, ...]) -> None:
    made = key(parts)
    if "~" in made:
        head, _, digest = made.rpartition("~")
        assert len(digest) == 32
        assert head.startswith("airflow/")
    else:
        engine, *read = made.split("/")
        assert engine == "airflow"
        assert tuple(unquote(each, errors="surrogatepass") for each in read) == parts


@given(PARTS, PARTS)
def test_keys_that_differ_in_their_last_part_are_of_one_family_and_no_others_are(
    one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    family = AIRFLOW.family(**dict(zip(AIRFLOW.key_parts[:-1], one[:-1], strict=True)))
    if not family:
        assert len(key(one).encode()) > 300  # long keys have nothing in common
        return
    assert key(one).startswith(family)
    assert key((*one[:-1], other[-1])).startswith(family)
    assert key(other).startswith(family) == (other[:-1] == one[:-1])


# By hand, from what each exit code means: may the same request key, tried once more, end better?
AGAIN = {1: True, 2: False, 3: False, 4: True, 5: True, 6: True, 7: False, 75: True, 77: False, 130: True, 143: True}


@pytest.mark.parametrize(("code", "again"), AGAIN.items())
def test_what_another_attempt_may_mend(code: int, again: bool) -> None:
    assert retryable(code) is again
    assert retryable(code, reads_only=True) is (again and code != 4)  # the same bytes are read again


@pytest.mark.parametrize(
    ("error", "again", "reading"),
    [
        (errors.Unreachable("x"), True, True),
        (errors.JobBusy("x"), True, True),
        (errors.JobEnded("x"), True, True),  # it may be back
        (errors.CaptureFailed("x"), True, False),
        (errors.UnknownCapture("x"), True, True),
        (errors.RequestKeyConflict("x"), False, False),
        (errors.PartialCapture("x"), False, False),
        (errors.CaptureCancelled("x"), False, False),
        (errors.Denied("x"), False, False),
        (errors.ManifestError("x"), True, False),
        (errors.TraceError("syntax", "x"), True, False),
        (errors.NotFound("x"), True, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_error_is_as_good_as_its_exit_code(error: errors.SameshotError, again: bool, reading: bool) -> None:
    assert (retryable(error), retryable(error, reads_only=True)) == (again, reading)


def test_a_family_is_told_by_the_first_parts() -> None:
    assert AIRFLOW.family(dag_id="d", run_id="r/1", task_id="t", map_index=1) == "airflow/d/r%2F1/t/1/"
    with pytest.raises(UsageError, match="dag_id, run_id"):
        AIRFLOW.family(dag_id="d", max_tries=1)


@given(PARTS, PARTS, st.sets(st.integers(0, 4)))
def test_a_key_is_made_of_the_parts_that_it_has_and_of_no_others(
    one: tuple[str, ...], other: tuple[str, ...], known: set[int]
) -> None:
    def some(of: tuple[str, ...]) -> dict[str, str]:
        return {AIRFLOW.key_parts[at]: of[at] for at in known}

    made = key(one)
    if all(one[at] == other[at] for at in known):
        assert AIRFLOW.made_of(made, **some(one)) or "~" in made  # a hidden part may be any
    else:
        assert not AIRFLOW.made_of(made, **some(other))


def test_a_shortened_key_is_known_by_its_last_part() -> None:
    long = "key" * 200
    made = KFP.request_key(run_id="r", task_name="a/task", key=long)
    assert "~" in made
    assert KFP.made_of(made, run_id="r", key=long)
    assert KFP.made_of(made, run_id="r", task_name="a/task")
    assert not KFP.made_of(made, run_id="r", key=long + "y")
    assert not KFP.made_of(made, run_id="r2", key=long)
    hidden = KFP.request_key(run_id="r", task_name=long, key="k")
    assert KFP.made_of(hidden, run_id="r")
    assert not KFP.made_of(hidden, run_id="r", key="k")  # whose task's is not to be seen
    assert KFP.made_of(hidden, run_id="r", task_name=long, key="k")


@pytest.mark.parametrize(
    "text", ["", "kfp", "kfp/", "kfp/r", "kfp/r//k", "kfp/r/%FF/k", "argo/r/t/k", "kfp/r/t/k/k", "a"]
)
def test_texts_that_are_no_keys_of_the_engine_are_made_of_nothing(text: str) -> None:
    assert not KFP.made_of(text, run_id="r", key="k")


@pytest.mark.parametrize("parts", [{"pod": "p"}, {"run_id": ""}])
def test_a_key_is_asked_for_parts_that_it_can_have(parts: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="no such part"):
        KFP.made_of("kfp/r/t/k", **parts)


def test_a_short_key_can_not_be_made_to_look_like_a_long_one() -> None:
    long = key(("d" * 600, "r", "t", "-1", "0"))
    assert "~" in long
    pieces = long.removeprefix("airflow/")
    assert key((pieces[:-4], pieces[-4], pieces[-3], pieces[-2], pieces[-1])) != long
    assert "~" not in key(("a~b", "r", "t", "-1", "0"))


def test_the_same_parts_of_another_engine_are_another_key() -> None:
    assert key(("a", "b", "c"), KFP) != key(("a", "b"), ARGO) != key(("a", "b", "c", "d", "e"), FLYTE)
    assert key(("a", "b", "c", "d", "e"), FLYTE) != key(("a", "b", "c", "d", "e"), AIRFLOW)
