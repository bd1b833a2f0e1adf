"""The server under people who mean well and people who don't: every pod is admitted, and in time."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tls import Authority
from webhook_lab import NAME, Json, applied, armed, pod, response_in, review_of

from sameshot.errors import UsageError
from sameshot.webhook import review
from sameshot.webhook.desk import THREADS, Answer, Limits
from sameshot.webhook.server import Webhook, WebhookConfig, listening

API_SERVER_S = 2.0  # its timeout for this webhook, in deploy/webhook
AUTHORITY = Authority()


@contextlib.asynccontextmanager
async def serving(
    folder: Path, answer: Answer = review.answer, **config: Any
) -> AsyncIterator[tuple[Webhook, aiohttp.ClientSession]]:
    """A webhook on loopback, and a client that trusts its CA and asks for it by the name of its Service."""
    if not (folder / "tls.crt").exists():
        AUTHORITY.issue(folder, NAME)
    settings = WebhookConfig(certificate=folder / "tls.crt", key=folder / "tls.key", listen="127.0.0.1:0", **config)
    async with listening(settings, answer) as webhook, client_of(webhook) as client:
        yield webhook, client


def client_of(webhook: Webhook, authority: Authority = AUTHORITY) -> aiohttp.ClientSession:
    resolver = _Service()
    connector = aiohttp.TCPConnector(ssl=authority.client_context(), resolver=resolver, use_dns_cache=False)
    return aiohttp.ClientSession(f"https://{NAME}:{port_of(webhook)}", connector=connector)


class _Service(aiohttp.abc.AbstractResolver):
    """The webhook's Service, as an API server resolves it."""

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        assert host == NAME
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        pass


def port_of(webhook: Webhook) -> int:
    return int(webhook.address.rpartition(":")[2])


async def ask(client: aiohttp.ClientSession, thing: Json) -> tuple[Json, float]:
    """The response to a review, and how long it took."""
    body, began = review_of(thing), time.monotonic()
    async with client.post("/arm", data=body, headers={"Content-Type": "application/json"}) as answer:
        text = await answer.read()
        assert answer.status == 200, text
        assert answer.content_type == "application/json"
        return response_in(text, body), time.monotonic() - began


async def connected(webhook: Webhook) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", port_of(webhook), ssl=AUTHORITY.client_context(), server_hostname=NAME
    )


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def closed_by_server(reader: asyncio.StreamReader, within_s: float = 20.0) -> bytes:
    """All that is still to be read, once the other side has closed."""
    async with asyncio.timeout(within_s):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


def broken(_: bytes) -> Any:
    raise RuntimeError("a defect")


# ---- what an API server sees


def test_a_pod_is_armed_over_https(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as (_, client):
            thing = pod()
            response, _ = await ask(client, thing)
            assert applied(thing, response) == armed(thing)

    asyncio.run(scene())


def test_nobody_but_the_named_service_with_the_right_ca_is_believed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as (webhook, _):
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection(
                    "127.0.0.1", port_of(webhook), ssl=Authority().client_context(), server_hostname=NAME
                )
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection(
                    "127.0.0.1", port_of(webhook), ssl=AUTHORITY.client_context(), server_hostname="other.svc"
                )

    asyncio.run(scene())


def test_a_defect_in_arming_admits_the_pod_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with serving(tmp_path, broken) as (_, client):
            response, _ = await ask(client, pod())
            assert response["allowed"] is True
            assert "patch" not in response
            assert response["warnings"] == [
                "sameshot: the webhook failed, see its log; this pod is not armed for captures"
            ]

    asyncio.run(scene())
    assert "RuntimeError: a defect" in caplog.text


def test_a_pod_whose_annotation_can_not_be_read_is_admitted_as_it_is(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as (_, client):
            nested = '{"v":1,"volumes":' + "[" * 100_000
            response, _ = await ask(client, pod(annotations={"sameshot.dev/armed": nested}))
            assert response["allowed"] is True
            assert "patch" not in response
            assert "left as it is" in response["warnings"][0]

    asyncio.run(scene())


def test_arming_that_takes_too_long_admits_the_pod_in_time(tmp_path: Path) -> None:
    """Also the pods that come while every thread is at work on such a one."""
    release = threading.Event()

    def slow(body: bytes) -> Any:
        release.wait(60)
        return review.answer(body)

    async def scene() -> None:
        async with serving(tmp_path, slow, limits=Limits(review_within_s=0.3)) as (_, client):
            try:
                answers = await asyncio.gather(*(ask(client, pod()) for _ in range(THREADS + 4)))
            finally:
                release.set()
            for response, took_s in answers:
                assert took_s < API_SERVER_S
                assert response["allowed"] is True
                assert "patch" not in response
                assert "no time for this pod" in response["warnings"][0]
            await until(lambda: _armed(client))  # and it goes on once it can

    asyncio.run(scene())


async def _armed(client: aiohttp.ClientSession) -> bool:
    response, _ = await ask(client, pod())
    return "patch" in response


def test_a_review_that_never_ends_makes_the_webhook_unhealthy_until_it_does(tmp_path: Path) -> None:
    release = threading.Event()

    def stuck(body: bytes) -> Any:
        release.wait(60)
        return review.answer(body)

    async def scene() -> None:
        limits = Limits(review_within_s=0.1, stuck_after_s=0.3)
        async with serving(tmp_path, stuck, limits=limits) as (_, client):

            async def healthy() -> bool:
                async with client.get("/healthz") as answer:
                    return answer.status == 200

            async def unhealthy() -> bool:
                return not await healthy()

            try:
                assert await healthy()
                await ask(client, pod())
                await until(unhealthy)
            finally:
                release.set()
            await until(healthy)

    asyncio.run(scene())


@pytest.mark.parametrize("body", [b"", b"{", b"null", b'{"kind":"AdmissionReview"}'])
def test_what_is_no_review_gets_400_and_the_next_one_an_answer(tmp_path: Path, body: bytes) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as (_, client):
            async with client.post("/arm", data=body) as answer:
                assert answer.status == 400
                assert "no review" in await answer.text()
            assert await _armed(client)

    asyncio.run(scene())


def test_only_the_three_paths_exist(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as (webhook, client):
            seen = {}
            for method, path in [("GET", "/arm"), ("POST", "/"), ("GET", "/readyz"), ("GET", "/metrics")]:
                async with client.request(method, path) as answer:
                    seen[method, path] = answer.status
            assert seen == {("GET", "/arm"): 405, ("POST", "/"): 404, ("GET", "/readyz"): 200, ("GET", "/metrics"): 404}
            webhook.desk.closing = True
            async with client.get("/readyz") as answer:
                assert answer.status == 503
                assert answer.headers["Connection"] == "close"
            assert await _armed(client)  # not ready, but whoever comes is served

    asyncio.run(scene())


# ---- sizes


def test_a_review_above_the_limit_is_refused_before_it_was_sent(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as (webhook, client):
            reader, writer = await connected(webhook)
            writer.write(b"POST /arm HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n")
            assert (await closed_by_server(reader)).startswith(b"HTTP/1.1 413 ")
            writer.close()
            assert await _armed(client)

    asyncio.run(scene())


def test_a_review_without_a_stated_size_is_read_no_further_than_the_limit(tmp_path: Path) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield b"x" * (1 << 16)

    async def scene() -> None:
        limits = Limits(body_within_s=30.0, body_bytes=1 << 20)
        async with serving(tmp_path, limits=limits) as (_, client):
            with contextlib.suppress(aiohttp.ClientError):  # the connection may break under what is still being sent
                async with client.post("/arm", data=endless()) as answer:
                    assert answer.status == 413
            assert await _armed(client)

    asyncio.run(scene())
    assert 1 << 20 <= sent < 64 << 20  # what sockets hold is not ours


def test_a_large_review_below_the_limit_is_answered(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path, limits=Limits(body_within_s=30.0, review_within_s=30.0)) as (_, client):
            thing = pod(spec={"big": "x" * (3 << 19)})
            response, _ = await ask(client, thing)
            assert "patch" in response

    asyncio.run(scene())


def test_a_compressed_body_is_not_blown_up(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as (_, client):
            bomb = gzip.compress(b" " * (64 << 20))
            async with client.post("/arm", data=bomb, headers={"Content-Encoding": "gzip"}) as answer:
                assert answer.status == 400

    asyncio.run(scene())


def large_pod(size: int) -> Json:
    return pod(spec={"big": "x" * size})


async def status_of(client: aiohttp.ClientSession, size: int) -> int:
    async with client.post("/arm", data=review_of(large_pod(size))) as answer:
        return answer.status


def test_above_the_room_for_all_bodies_one_is_refused_and_there_is_room_again_once_others_went(tmp_path: Path) -> None:
    """An API server takes that as a call that failed, and creates the pod as it is."""

    async def scene() -> None:
        limits = Limits(body_within_s=30.0, held_bytes=1 << 20)
        async with serving(tmp_path, limits=limits) as (webhook, client):
            _, writer = await connected(webhook)
            writer.write(b"POST /arm HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 900_000)

            async def refused() -> bool:
                return await status_of(client, 300_000) == 503

            await until(refused)  # once those have arrived
            assert await _armed(client)  # an ordinary one still fits
            writer.close()

            async def taken() -> bool:
                return await status_of(client, 300_000) == 200

            await until(taken)
            for _ in range(10):  # and nothing of it is lost
                assert await status_of(client, 900_000) == 200

    asyncio.run(scene())


def test_a_body_takes_its_room_until_the_review_that_nobody_waits_for_has_ended(tmp_path: Path) -> None:
    release = threading.Event()

    def slow(body: bytes) -> Any:
        if len(body) > 100_000:
            release.wait(60)
        return review.answer(body)

    async def scene() -> None:
        limits = Limits(review_within_s=0.2, held_bytes=1 << 20)
        async with serving(tmp_path, slow, limits=limits) as (_, client):
            try:
                assert await status_of(client, 700_000) == 200  # admitted as it is
                assert await status_of(client, 700_000) == 503
                assert await _armed(client)
            finally:
                release.set()

            async def taken() -> bool:
                return await status_of(client, 700_000) == 200

            await until(taken)

    asyncio.run(scene())


def test_large_reviews_take_turns_and_small_ones_do_not_wait_for_them(tmp_path: Path) -> None:
    release, running, most = threading.Event(), 0, 0
    lock = threading.Lock()

    def slow(body: bytes) -> Any:
        nonlocal running, most
        if len(body) > 100_000:
            with lock:
                running += 1
                most = max(most, running)
            release.wait(60)
            with lock:
                running -= 1
        return review.answer(body)

    async def scene() -> None:
        limits = Limits(review_within_s=30.0, large_bytes=100_000)
        async with serving(tmp_path, slow, limits=limits) as (_, client):
            large = [asyncio.create_task(status_of(client, 200_000)) for _ in range(THREADS)]
            try:

                async def begun() -> bool:
                    return running > 0

                await until(begun)
                for _ in range(THREADS):
                    assert await _armed(client)
            finally:
                release.set()
            assert await asyncio.gather(*large) == [200] * THREADS

    asyncio.run(scene())
    assert most == 1


# ---- slow and idle clients


def test_clients_that_never_finish_do_not_keep_others_waiting_and_are_let_go(tmp_path: Path) -> None:
    """Some send half a handshake, some half a header, some half a body."""

    async def scene() -> None:
        config: Json = {"handshake_within_s": 1.0, "first_request_within_s": 1.0}
        async with serving(tmp_path, **config) as (webhook, client):
            slow = []
            for _ in range(20):
                raw = await asyncio.open_connection("127.0.0.1", port_of(webhook))
                raw[1].write(b"\x16\x03\x01\x02\x00")  # the beginning of a ClientHello
                half_header = await connected(webhook)
                half_header[1].write(b"POST /arm HTTP/1.1\r\nHost: x\r\nX: ")
                half_body = await connected(webhook)
                half_body[1].write(b"POST /arm HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
                slow += [raw, half_header, half_body]
            dripping = asyncio.create_task(_drip(slow))
            answers = [await ask(client, pod()) for _ in range(20)]
            assert all("patch" in response for response, _ in answers)
            assert max(took_s for _, took_s in answers) < 5.0  # each slow one would have cost its own second
            ends = await asyncio.gather(*(closed_by_server(reader) for reader, _ in slow))
            assert [end[:13] for end in ends[2::3]] == [b"HTTP/1.1 408 "] * 20
            assert b"".join(ends[1::3]) == b""
            dripping.cancel()
            for _, writer in slow:
                writer.close()

    asyncio.run(scene())


async def _drip(connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """A byte now and then, so that no connection is ever silent for long."""
    while True:
        for index, (_, writer) in enumerate(connections):
            if index % 3 and not writer.is_closing():
                writer.write(b" ")
        await asyncio.sleep(0.1)


def test_above_the_number_of_connections_the_longest_idle_ones_go(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path, connections=10, first_request_within_s=600.0) as (webhook, client):
            idle = [await connected(webhook) for _ in range(30)]
            assert await _armed(client)  # the newest one
            ends = [asyncio.create_task(closed_by_server(reader)) for reader, _ in idle]
            await until(lambda: _many(ends, 21))
            assert await _armed(client)  # on the connection that it has
            assert {each.done() for each in ends[:21]} == {True}
            assert {each.done() for each in ends[21:]} == {False}
            for each in ends:
                each.cancel()
            for _, writer in idle:
                writer.close()

    async def _many(ends: list[asyncio.Task[bytes]], count: int) -> bool:
        return sum(each.done() for each in ends) >= count

    asyncio.run(scene())


# ---- certificates


def test_a_rotated_certificate_is_used_from_then_on_and_no_request_is_lost(tmp_path: Path) -> None:
    old = AUTHORITY.issue(tmp_path, NAME)

    async def scene() -> None:
        async with serving(tmp_path, look_every_s=0.02) as (webhook, kept):
            assert await _serial(webhook) == old.serial
            ending, counts = asyncio.Event(), Counter[int]()
            asking = [asyncio.create_task(_keep_asking(webhook, ending, counts, 0, kept))]
            asking += [asyncio.create_task(_keep_asking(webhook, ending, counts, each)) for each in (1, 2)]
            for _ in range(3):
                new = AUTHORITY.issue(tmp_path, NAME)
                await until(lambda new=new: _serves(webhook, new.serial))  # type: ignore[misc]
                before = counts.copy()
                await until(lambda before=before: _all_asked(asking, counts, before))  # type: ignore[misc]
            ending.set()
            await asyncio.gather(*asking)  # raises what any request raised

    asyncio.run(scene())


def test_a_certificate_beside_the_key_of_another_is_not_taken(tmp_path: Path) -> None:
    """As it can be seen in the middle of a rotation; the pair before it goes on until the new one is whole."""
    old = AUTHORITY.issue(tmp_path, NAME)
    new = AUTHORITY.pair(NAME)

    async def scene() -> None:
        async with serving(tmp_path, look_every_s=0.02) as (webhook, _):
            for halves in [(new.certificate, old.key), (b"", new.key), (new.certificate, b"no key"), (None, new.key)]:
                for name, content in zip(("tls.crt", "tls.key"), halves, strict=True):
                    if content is None:
                        (tmp_path / name).unlink()
                    else:
                        (tmp_path / name).write_bytes(content)
                looks_at = time.monotonic() + 0.2
                while time.monotonic() < looks_at:
                    assert await _serial(webhook) == old.serial
            (tmp_path / "tls.crt").write_bytes(new.certificate)
            await until(lambda: _serves(webhook, new.serial))

    asyncio.run(scene())


def test_files_that_are_swapped_by_a_link_as_the_kubelet_does_it_are_seen(tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
    old, new = AUTHORITY.issue(tmp_path / "one", NAME), AUTHORITY.issue(tmp_path / "two", NAME)
    (tmp_path / "..data").symlink_to("one")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(Path("..data") / name)

    async def scene() -> None:
        async with serving(tmp_path, look_every_s=0.02) as (webhook, _):
            assert await _serial(webhook) == old.serial
            (tmp_path / "..data_tmp").symlink_to("two")
            (tmp_path / "..data_tmp").rename(tmp_path / "..data")
            await until(lambda: _serves(webhook, new.serial))

    asyncio.run(scene())


@pytest.mark.parametrize("broken_file", ["tls.crt", "tls.key", "missing"])
def test_a_certificate_that_can_t_be_used_at_the_start_is_said_plainly(tmp_path: Path, broken_file: str) -> None:
    AUTHORITY.issue(tmp_path, NAME)
    if broken_file == "missing":
        (tmp_path / "tls.key").unlink()
    else:
        (tmp_path / broken_file).write_text("nonsense")

    async def scene() -> None:
        async with serving(tmp_path):
            pass

    with pytest.raises(UsageError, match=r"tls\.(crt|key)"):
        asyncio.run(scene())


async def _serial(webhook: Webhook) -> int:
    """Of the certificate that a new connection is shown."""
    _, writer = await connected(webhook)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return int(certificate["serialNumber"], 16)


async def _serves(webhook: Webhook, serial: int) -> bool:
    return await _serial(webhook) == serial


async def _keep_asking(
    webhook: Webhook,
    ending: asyncio.Event,
    counts: Counter[int],
    me: int,
    client: aiohttp.ClientSession | None = None,
) -> None:
    """Reviews one after the other, over one connection or a new one each."""
    while not ending.is_set():
        if client is not None:
            assert await _armed(client)
        else:
            async with client_of(webhook) as fresh:
                assert await _armed(fresh)
        counts[me] += 1


async def _all_asked(asking: list[asyncio.Task[None]], counts: Counter[int], before: Counter[int]) -> bool:
    return any(each.done() for each in asking) or all(counts[each] > before[each] for each in range(len(asking)))


# ---- addresses


@pytest.mark.parametrize("listen", ["8443", "0.0.0.0", "host:", ":8443", "127.0.0.1:99999", "no.such.host.invalid:1"])
def test_an_address_that_can_t_be_used_is_said_plainly(tmp_path: Path, listen: str) -> None:
    AUTHORITY.issue(tmp_path, NAME)
    config = WebhookConfig(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", listen=listen)

    async def scene() -> None:
        async with listening(config):
            pass

    with pytest.raises(UsageError):
        asyncio.run(scene())


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_all_addresses_are_those_of_both_families(tmp_path: Path) -> None:
    AUTHORITY.issue(tmp_path, NAME)
    config = WebhookConfig(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", listen="*:0")

    async def scene() -> None:
        async with listening(config) as webhook:
            for host in ("127.0.0.1", "::1") if _has_ipv6() else ("127.0.0.1",):
                _, writer = await asyncio.open_connection(
                    host, port_of(webhook), ssl=AUTHORITY.client_context(), server_hostname=NAME
                )
                writer.close()

    asyncio.run(scene())


def test_a_port_that_is_taken_is_said_plainly(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as (webhook, _):
            config = WebhookConfig(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", listen=webhook.address)
            with pytest.raises(UsageError, match="can't listen"):
                async with listening(config):
                    pass

    asyncio.run(scene())


def test_what_became_of_reviews_is_counted_and_served_to_prometheus(tmp_path: Path) -> None:
    def fails(body: bytes) -> Any:
        raise RuntimeError

    async def read(webhook: Webhook) -> dict[str, float]:
        async with aiohttp.ClientSession() as session, session.get(f"http://{webhook.metrics}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def of(outcome: str) -> str:
        return f'sameshot_webhook_reviews_total{{outcome="{outcome}"}}'

    async def scenario() -> None:
        async with serving(tmp_path, metrics="127.0.0.1:0", limits=Limits(body_bytes=100_000)) as (webhook, client):
            await ask(client, pod())
            await ask(client, pod())
            for body, status in ((b"{}", 400), (b"x" * 200_000, 413)):
                async with client.post("/arm", data=body) as answer:
                    assert answer.status == status
            found = await read(webhook)
        assert {name: value for name, value in found.items() if "reviews_total" in name and value} == {
            of("armed"): 2, of("malformed"): 1, of("too large"): 1
        }  # fmt: skip
        assert found["sameshot_webhook_review_seconds_count"] == 2
        assert 0 < found["sameshot_webhook_review_seconds_sum"] < 4
        assert found["sameshot_webhook_held_bytes"] == 0
        assert found["sameshot_webhook_certificate_expires_timestamp_seconds"] > time.time()
        async with serving(tmp_path, fails, metrics="127.0.0.1:0") as (webhook, client):
            await ask(client, pod())
            assert (await read(webhook))[of("failed")] == 1

    asyncio.run(scenario())
