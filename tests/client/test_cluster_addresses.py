"""Addresses of jobs in a cluster: what is one, what is not, and that each is written as it is read."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameshot.client import resolve
from sameshot.client.cluster import KubeAddress, Route, address_of, is_kube, of_an_author, parse
from sameshot.errors import InvalidSpec, UsageError
from sameshot.model import JobRef

_inner = st.text(string.ascii_lowercase + string.digits + "-", max_size=20)
_edge = st.sampled_from(string.ascii_lowercase + string.digits)
labels = st.builds(lambda a, inner, b: a + inner + b, _edge, _inner, _edge)
names = st.lists(labels, min_size=1, max_size=4).map(".".join)
anything = st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable())
addresses = st.builds(
    KubeAddress,
    namespace=labels,
    job=st.one_of(st.just(""), names),
    attempt=st.none() | st.integers(0, 99_999_999),
    uid=st.none() | st.uuids().map(str),
    kind=st.none() | st.sampled_from(["Job", "JobSet", "PyTorchJob"]),
    context=st.none() | anything,
    kubeconfig=st.none() | anything,
    service_account=st.none() | names | st.tuples(labels, names).map("/".join),
    route=st.sampled_from(Route),
    wait_ms=st.integers(0, 999_999),
)


@given(addresses)
def test_an_address_is_read_as_it_was_written(address: KubeAddress) -> None:
    written = str(address)
    assert parse(written) == address
    assert is_kube(written)
    assert not any(each.isspace() for each in written)


def test_a_job_alone_is_short_and_names_keep_their_dots() -> None:
    assert str(parse("kube:ml/llama.7b-x.1")) == "kube:ml/llama.7b-x.1"
    read = parse("kube:ml/llama.7b-x.1?wait=60s&route=auto")
    assert (read.namespace, read.job, str(read)) == ("ml", "llama.7b-x.1", "kube:ml/llama.7b-x.1")


def test_everything_that_can_be_said_of_the_way_there() -> None:
    context = "arn:aws:eks:eu-1:42:cluster/prod & more"
    read = parse(
        "kube:ml/bert?context=arn%3Aaws:eks:eu-1:42:cluster/prod%20%26%20more&kubeconfig=/home/j/a%3Db&"
        "service-account=airflow/sameshot&attempt=3&route=port-forward&wait=1.5m&uid=u-1&kind=JobSet"
    )
    assert read == KubeAddress(
        namespace="ml", job="bert", context=context, kubeconfig="/home/j/a=b", service_account="airflow/sameshot",
        attempt=3, route=Route.PORT_FORWARD, wait_ms=90_000, uid="u-1", kind="JobSet",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wait", "milliseconds"), [("0s", 0), ("60", 60_000), ("500ms", 500), ("2m", 120_000), ("1h", 3_600_000)]
)
def test_how_long_to_wait_is_a_duration(wait: str, milliseconds: int) -> None:
    assert parse(f"kube:ml/bert?wait={wait}").wait_ms == milliseconds


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("kube:", "no name of a namespace"),
        ("kube:Team/bert", "'Team' is no name of a namespace"),
        ("kube:a.b/bert", "'a.b' is no name of a namespace"),
        ("kube:ml/", "'' is no name of a job"),
        ("kube:ml/bert/0", "'bert/0' is no name of a job"),
        ("kube:ml/ber..t", "'ber..t' is no name of a job"),
        ("kube:ml/" + "b" * 254, "is no name of a job"),
        ("kube:ml/bert?", None),
        ("kube:ml/bert?attempt", "name=value"),
        ("kube:ml/bert?attempts=1", "'attempts' is none of attempt, uid"),
        ("kube:ml/bert?attempt=1&attempt=2", "attempt is given twice"),
        ("kube:ml/bert?attempt=-1", "not a whole number"),
        ("kube:ml/bert?route=up", "none of auto, direct, port-forward"),
        ("kube:ml/bert?wait=soon", "not a duration"),
        ("kube:ml/bert?context=", "not to be empty"),
        ("kube:ml/bert?service-account=a/b/c", "name, or namespace/name"),
        ("kube:ml/bert?uid=../x", "not a uid"),
    ],
)
def test_what_is_no_address_says_why_and_how_it_is_written(address: str, said: str | None) -> None:
    if said is None:
        assert parse(address) == parse("kube:ml/bert")
        return
    with pytest.raises(UsageError) as refused:
        resolve(address)
    assert said in str(refused.value)
    assert "kube:<namespace>/<job>" in str(refused.value)


@given(st.text(max_size=60))
def test_no_text_breaks_the_reading(text: str) -> None:
    try:
        read = parse(f"kube:{text}")
    except UsageError:
        return
    assert parse(str(read)) == read


def test_a_job_of_a_list_is_reached_as_the_list_was() -> None:
    listed = parse("kube:ml?context=prod&route=direct&wait=5s")
    job = JobRef("ml", "llama.7b", "u-1", 2)
    assert str(address_of(job, listed, alone=True)) == "kube:ml/llama.7b?context=prod&route=direct&wait=5s"
    assert parse(str(address_of(job, listed, alone=False))).uid == "u-1"


@pytest.mark.parametrize("job", ["bert?kubeconfig=/tmp/mine", "bert&context=x", "bert/other", "a%2Fb"])
def test_a_name_that_is_put_into_an_address_says_nothing_but_the_name(job: str) -> None:
    """Names of jobs come from tasks, and an address may be the administrator's."""
    with pytest.raises(UsageError, match="is no name of a job"):
        parse(str(KubeAddress(namespace="ml", job=job, context="prod")))


@pytest.mark.parametrize("address", ["kube:ml/bert?context=prod&wait=5s", "kube:ml", "local:bert", "10.0.0.7:7000"])
def test_an_author_s_address_without_a_kubeconfig_is_taken_as_it_is(address: str) -> None:
    assert of_an_author(address) == address


@pytest.mark.parametrize("address", ["kube:ml/bert?kubeconfig=/tmp/mine", "kube:ml?context=a&kubeconf%69g=mine"])
def test_an_author_s_address_names_no_file_of_the_service_that_uses_it(address: str) -> None:
    with pytest.raises(InvalidSpec, match="names a kubeconfig"):
        of_an_author(address)
