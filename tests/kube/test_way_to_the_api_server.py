"""Where the API server is and as whom it is asked: what was said, and for the rest what the kubelet gives each pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from sameshot.errors import UsageError
from sameshot.kube.inpod import Way, is_pod, way
from sameshot.operator.access import login

POD = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
NAMED = "https://10.0.0.1:6443"


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_a_pod_takes_what_the_kubelet_gives(account: Path) -> None:
    assert is_pod(POD, account)
    mine = (account / "token", account / "ca.crt")
    assert way(environment=POD, account=account) == Way("https://[fd00::1]:443", *mine)
    by_name = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert way(environment=by_name, account=account) == Way("https://10.0.0.1:443", *mine)


def test_a_server_that_was_named_is_asked_with_the_pods_account_too(account: Path) -> None:
    assert way(NAMED, environment={}, account=account) == Way(NAMED, account / "token", account / "ca.crt")


def test_files_that_were_named_go_before_the_pods_own(account: Path) -> None:
    token, ca = Path("/other/token"), Path("/other/ca.crt")
    assert way(NAMED, token, ca, POD, account) == Way(NAMED, token, ca)
    assert way("", token, None, POD, account) == Way("https://[fd00::1]:443", token, account / "ca.crt")


def test_outside_of_a_pod_the_api_server_must_be_named(tmp_path: Path, account: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for environment, folder in (({}, nowhere), ({}, account), (POD, nowhere)):
        assert not is_pod(environment, folder)
        with pytest.raises(UsageError, match="--api-server"):
            way(environment=environment, account=folder)
    assert way(NAMED, environment=POD, account=nowhere) == Way(NAMED)


def test_who_logs_in_does_it_with_the_token_of_that_moment(account: Path) -> None:
    found = way(environment=POD, account=account)
    for text in ("secret", "renewed"):
        (account / "token").write_text(f"{text}\n")
        assert login(found).as_http_headers() == {"Authorization": f"Bearer {text}"}
