"""The authority of all certificates: who renews what and when, and that both sides go on through an exchange."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ssl
from pathlib import Path

import pytest
from operator_lab import Lab, played

from sameshot.kube import names
from sameshot.operator import authority as certificates
from sameshot.operator.authority import DAY, Authority, Pair, advance, leaf, new, read, serves
from sameshot.operator.run import Operator

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HOST = "c-1.sameshot-coordinators.svc"


def shakes_hands(pair: Pair, trust: bytes, host: str, folder: Path) -> bool:
    """Whether a client that trusts these accepts that certificate for the host, by OpenSSL's own rules."""
    (folder / "tls.pem").write_bytes(pair.certificate + pair.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.pem")
    client = ssl.create_default_context(cadata=trust.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=host)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return one.version() is not None


def test_a_certificate_is_for_its_host_alone_and_of_its_authority_alone(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    ours, other = new(now), new(now)
    pair = leaf(ours, HOST, now)
    assert shakes_hands(pair, ours.bundle, HOST, tmp_path)
    assert not shakes_hands(pair, ours.bundle, "other.svc", tmp_path)
    assert not shakes_hands(pair, other.bundle, HOST, tmp_path)
    assert serves(pair, ours, HOST, now)
    assert not serves(pair, ours, "other.svc", now)
    assert not serves(pair, other, HOST, now)


@pytest.mark.parametrize(
    "pair",
    [Pair(b"", b""), Pair(b"no certificate", b"no key")],
    ids=["nothing", "garbage"],
)
def test_what_is_no_certificate_is_made_anew(pair: Pair) -> None:
    assert not serves(pair, new(NOW), HOST, NOW)


def test_a_certificate_with_the_key_of_another_one_is_made_anew() -> None:
    ours = new(NOW)
    one, other = leaf(ours, HOST, NOW), leaf(ours, HOST, NOW)
    assert not serves(Pair(one.certificate, other.key), ours, HOST, NOW)


def test_a_leaf_is_renewed_a_month_before_its_end() -> None:
    ours = new(NOW)
    pair = leaf(ours, HOST, NOW)
    assert serves(pair, ours, HOST, NOW + 59 * DAY)
    assert not serves(pair, ours, HOST, NOW + 61 * DAY)


def test_an_authority_is_kept_and_read_as_it_was() -> None:
    ours = advance(new(NOW), NOW + 300 * DAY)
    assert ours.next is not None
    assert read(ours.data) == ours
    assert advance(ours, NOW + 300 * DAY) == ours, "whoever looks again finds nothing to do"


@pytest.mark.parametrize("key", ["ca.crt", "ca.key"])
def test_a_damaged_authority_is_none(key: str) -> None:
    ours, other = new(NOW), new(NOW)
    assert read({}) is None
    assert read({**ours.data, key: b"garbage"}) is None
    assert read({**ours.data, key: other.data[key]}) is None


def test_in_an_exchange_everybody_trusts_the_new_one_before_it_is_used_and_the_old_one_until_its_end() -> None:
    """Two years, looked at every day: at each moment every leaf that may be about is of an authority in the bundle, and
    of one that a client knew a day before the leaf was made."""
    ours, seen = new(NOW), 0
    leaves: list[tuple[datetime.datetime, Pair]] = [(NOW, leaf(ours, HOST, NOW))]
    bundles: list[bytes] = [ours.bundle]
    for day in range(1, 730):
        now = NOW + day * DAY
        after = advance(ours, now)
        seen += after.current != ours.current
        ours = after
        bundles.append(ours.bundle)
        if not serves(leaves[-1][1], ours, HOST, now):
            leaves.append((now, leaf(ours, HOST, now)))
            assert ours.current.certificate in bundles[-2], "it was published a day before"
        for made, pair in leaves[-2:]:
            issuers = [one for one in _each(ours.bundle) if _issued(pair, one)]
            assert issuers or pair.parsed.not_valid_after_utc <= now, (day, made)
        assert len(_each(ours.bundle)) <= 3
        assert ours.current.parsed.not_valid_after_utc > now + 90 * DAY
    assert seen == 2


def _each(bundle: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [each + end for each in bundle.split(end) if each.strip()]


def _issued(pair: Pair, authority: bytes) -> bool:
    try:
        pair.parsed.verify_directly_issued_by(Pair(authority, b"").parsed)
    except Exception:
        return False
    return True


def test_an_authority_that_expired_while_nobody_looked_is_exchanged_at_once() -> None:
    late = advance(new(NOW), NOW + 500 * DAY)
    assert late.next is None
    assert late.current.parsed.not_valid_after_utc > NOW + 800 * DAY
    assert late.old == ()


# ---- in a cluster


def authority_of(lab: Lab) -> Authority:
    data = lab.api.get("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca")["data"]
    found = read({key: base64.b64decode(value) for key, value in data.items()})
    assert found is not None
    return found


@played()
async def test_a_new_authority_reaches_everybody(lab: Lab) -> None:
    job = lab.job("llama")
    operator = await lab.operate()
    await lab.until(lambda: lab.phase(job) == "Ready")
    await lab.quiet(0.3)
    before = authority_of(lab)
    now = datetime.datetime.now(datetime.UTC)
    coming = Authority(before.current, new(now).current)
    data = {key: base64.b64encode(value).decode() for key, value in coming.data.items()}
    lab.api.change("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca", {"data": data})
    operator._sweep_soon.set()
    agents = ("secrets", names.AGENTS_NAMESPACE, "sameshot-agent-tls")

    def told(bundle: bytes) -> bool:
        status = base64.b64decode(lab.status(job).get("caBundle", ""))
        config = (lab.own("configmaps", job) or {})["data"]["ca.crt"].encode()
        return status == config == base64.b64decode(lab.api.get(*agents)["data"]["ca.crt"]) == bundle

    def pair(thing: dict) -> Pair:  # type: ignore[type-arg]
        return Pair(base64.b64decode(thing["data"]["tls.crt"]), base64.b64decode(thing["data"]["tls.key"]))

    await lab.until(lambda: told(coming.bundle))
    host = names.coordinator_host(job)
    assert serves(pair(lab.own("secrets", job) or {}), before, host, now), "not used yet"

    used = Authority(coming.next or before.current, None, (before.current.certificate,))
    data = {key: base64.b64encode(value).decode() for key, value in used.data.items()}
    patch = {"data": {**data, "next.crt": None, "next.key": None}}
    lab.api.change("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca", patch)
    operator._sweep_soon.set()
    await lab.until(lambda: serves(pair(lab.own("secrets", job) or {}), used, host, now))
    await lab.until(lambda: serves(pair(lab.api.get(*agents)), used, names.AGENT_HOST, now))
    await lab.until(lambda: told(used.bundle))
    assert not lab.of(job).retired, "nothing had to be replaced for that"


@played()
async def test_two_operators_at_once_agree_on_one_authority(lab: Lab) -> None:
    """There is one; but for a moment, when a node is lost, there may be two."""
    from sameshot.operator.issuing import Issuing

    issuing = [Issuing(lab.way().api("operator"), lab.config()) for _ in range(4)]
    found = await asyncio.gather(*(asyncio.to_thread(each.authority) for each in issuing))
    assert {each.bundle for each in found} == {authority_of(lab).bundle}


@played()
async def test_a_lost_authority_is_made_anew_with_all_that_hangs_on_it(lab: Lab) -> None:
    job = lab.job("llama")
    operator = await lab.operate()
    await lab.until(lambda: lab.phase(job) == "Ready")
    before = authority_of(lab)
    lab.api.delete("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca")
    lab.api.delete("secrets", names.AGENTS_NAMESPACE, "sameshot-agent-tls")
    operator._sweep_soon.set()
    await lab.until(lambda: base64.b64decode(lab.status(job)["caBundle"]) not in (b"", before.bundle))
    now = datetime.datetime.now(datetime.UTC)
    kept = lab.api.get("secrets", names.AGENTS_NAMESPACE, "sameshot-agent-tls")["data"]
    pair = Pair(base64.b64decode(kept["tls.crt"]), base64.b64decode(kept["tls.key"]))
    assert certificates.serves(pair, authority_of(lab), names.AGENT_HOST, now)


@played()
async def test_a_secret_of_somebody_elses_in_the_authoritys_place_is_left_alone_told_of_and_waited_for(
    lab: Lab,
) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": "sameshot-ca", "namespace": names.SYSTEM_NAMESPACE},
        "data": {"tls.crt": "eA==", "tls.key": "eQ=="},
    }
    lab.api.make(foreign)
    operator = lab.operator = Operator(lab.config(), lab.way())
    starting = asyncio.create_task(operator.start())
    await lab.until(lambda: operator.authority_trouble)
    await lab.until(lambda: "kubectl" in operator.waits_for)
    assert "kubernetes.io/tls" in operator.waits_for
    assert lab.api.get("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca")["data"] == foreign["data"]
    assert not [each for each in lab.asked() if each.verb in ("update", "patch", "create")]
    lab.api.delete("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca")
    await starting
    assert operator.authority_trouble == ""
    job = lab.job("llama")
    await lab.until(lambda: lab.phase(job) == "Ready")

    # Also later: what is there already goes on, and is looked at as ever.
    lab.api.delete("secrets", names.SYSTEM_NAMESPACE, "sameshot-ca")
    lab.api.make(foreign)
    before = operator.swept_at
    operator._sweep_soon.set()
    await lab.until(lambda: operator.authority_trouble and operator.swept_at != before)
    assert lab.phase(job) == "Ready"
