"""A link is a base URL that an administrator gave and a path below it, or there is none."""

from __future__ import annotations

import pytest

from sameshot.steps.links import manifest_url, report_url, web_problem

BASE = "https://profiles.example.com/sameshot"


@pytest.mark.parametrize(
    ("uri", "results_uri", "url"),
    [
        ("s3://b/res/captures/ns/j/0/c/report.html", "s3://b/res", f"{BASE}/captures/ns/j/0/c/report.html"),
        ("s3://b/res/a.html", "s3://b/res/", f"{BASE}/a.html"),
        ("s3://b/a.html", "s3://b", f"{BASE}/a.html"),
        ("file:///data/res/a.html", "/data/res", f"{BASE}/a.html"),
        ("/data/res/a.html", "file:///data/res", f"{BASE}/a.html"),
        ("file:///data/res/a.html", "/data/./res/", f"{BASE}/a.html"),
        ("file:///my%20data/%25/a%20b.html", "/my data/%", f"{BASE}/a%20b.html"),
        # What is a name on the store stays a name in the URL: nothing in it becomes a query, a fragment or a folder.
        ("s3://b/res/a?b#c.html", "s3://b/res", f"{BASE}/a%3Fb%23c.html"),
        ("s3://b/res/team%2Fx/a.html", "s3://b/res", f"{BASE}/team%252Fx/a.html"),
        ("s3://b/res/ä.html", "s3://b/res", f"{BASE}/%C3%A4.html"),
        ("s3://b/res/a&<\">'.html", "s3://b/res", f"{BASE}/a%26%3C%22%3E%27.html"),
    ],
)
def test_what_lies_below_the_results_is_linked(uri: str, results_uri: str, url: str) -> None:
    assert report_url(uri, results_uri, BASE) == url
    assert report_url(uri, results_uri, BASE + "/") == url


@pytest.mark.parametrize(
    ("uri", "results_uri"),
    [
        ("s3://b/other/a.html", "s3://b/res"),
        ("s3://b/res-2/a.html", "s3://b/res"),
        ("s3://b2/res/a.html", "s3://b/res"),
        ("s3://b/res", "s3://b/res"),
        ("s3://b/res/", "s3://b/res"),
        ("s3://b/res/../secret.html", "s3://b/res"),
        ("s3://b/res/x/./a.html", "s3://b/res"),
        ("file:///data/res/../secret.html", "/data/res"),
        ("file:///data/res/%2e%2e/secret.html", "/data/res"),
        ("/data/res/a.html", "s3://data/res"),
        ("", "/data/res"),
    ],
)
def test_what_lies_elsewhere_is_not_linked(uri: str, results_uri: str) -> None:
    assert report_url(uri, results_uri, BASE) is None


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("s3://arch/ns/job/0/c1/manifest.json", "ns/job/0/c1/manifest.json"),
        ("s3://arch/a/b/c/ns/job/12/c1/manifest.json", "ns/job/12/c1/manifest.json"),
        ("file:///arch/ns/job/0/c1/manifest.json", "ns/job/0/c1/manifest.json"),
        ("file:///my%20arch/ns/job.x/0/c1/manifest.json", "ns/job.x/0/c1/manifest.json"),
    ],
)
def test_a_manifest_is_linked_below_its_archive(uri: str, path: str) -> None:
    assert manifest_url(uri, BASE) == f"{BASE}/{path}"


@pytest.mark.parametrize(
    "uri",
    [
        "s3://arch/ns/job/0/c1/trace.json.gz",
        "s3://arch/c1/manifest.json",
        "file:///home/me/captures/imported/of/today/manifest.json",
        "s3://arch/ns/../0/c1/manifest.json",
        "s3://arch/ns//0/c1/manifest.json",
        "manifest.json",
        "",
    ],
)
def test_a_manifest_that_does_not_lie_as_in_an_archive_is_not_linked(uri: str) -> None:
    assert manifest_url(uri, BASE) is None


@pytest.mark.parametrize(
    "base",
    [
        "s3://bucket",
        "file:///data",
        "profiles.example.com",
        "javascript:alert(1)//",
        "https://",
        "https://[",
        "https://user:secret@example.com",
        "https://user@example.com",
        "https://example.com/?X-Amz-Signature=abc",
        "https://example.com/#a",
    ],
)
def test_a_base_that_a_browser_can_not_open_or_that_tells_secrets_makes_no_links(base: str) -> None:
    assert web_problem(base)
    assert report_url("s3://b/res/a.html", "s3://b/res", base) is None
    assert manifest_url("s3://arch/ns/job/0/c1/manifest.json", base) is None


def test_plain_http_inside_a_network_is_fine() -> None:
    assert web_problem("http://localhost:8080/x") is None
