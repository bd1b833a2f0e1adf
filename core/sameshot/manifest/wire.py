"""The JSON of a manifest, both ways; docs/manifest.md is its specification.

It differs from the values in three ways, for readers in any language: nanoseconds (`*_ns`) are decimal strings, because
JSON numbers are doubles to many parsers; `last_state` is a name; and the text may be formatted freely, because `sha256`
is taken over a canonical form. Fields that this version doesn't know are carried along in `Manifest.extra`, so that a
newer minor version survives a round trip unchanged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from sameshot.errors import InvalidSpec
from sameshot.manifest.rules import check
from sameshot.manifest.values import SCHEMA, Capture, Manifest, Target, Totals, refuse, shown
from sameshot.model import CaptureSpec, TargetState

_SCHEMA = re.compile(r"sameshot\.dev/manifest/v([0-9]{1,9})(?:\.[0-9]{1,9})?")
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}")
_T = TypeVar("_T")


def encode(manifest: Manifest) -> bytes:
    """The file: indented JSON in UTF-8, with a newline at its end."""
    wire = body(manifest)
    return (json.dumps(wire | {"sha256": digest(wire)}, indent=2, ensure_ascii=False) + "\n").encode()


def decode(data: bytes) -> Manifest:
    """Read and check a manifest; raises ManifestError saying what is wrong and where.

    Everything that can be judged from the manifest alone is: its form, version, digest, order, totals, outcome and that
    no URI leads out of its folder. Whether the files are what it says is `sameshot.trace.capture_check`'s part.
    """
    raw = _parse(data)
    schema = raw.get("schema")
    version = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
    if version is None:
        refuse(f"its schema is {shown(schema)}, expected {SCHEMA}")
    if int(version[1]) != 1:
        refuse(f"its schema is {schema}; this version of sameshot reads {SCHEMA}: use a newer one")
    stated, actual = raw.get("sha256"), digest(raw)
    if stated != actual:
        refuse(f"it was edited or damaged: it states sha256 {shown(stated)}, its content has {actual}")
    targets = _member(raw, "targets", list)
    capture = _decode_capture(_member(raw, "capture", dict))
    manifest = Manifest(
        capture,
        tuple(_decode_target(target, f"targets[{index}]") for index, target in enumerate(targets)),
        _convert(_member(raw, "totals", dict), Totals, "totals"),
        sha256=actual,
        schema=str(schema),
    )
    check(manifest)
    return msgspec.structs.replace(manifest, extra=_unknown(raw, body(manifest) | {"sha256": ""}))


def digest(wire: Mapping[str, Any]) -> str:
    """sha256 of the canonical form of a manifest's JSON object without its `sha256`. Raises ManifestError on floats."""
    wire = {name: value for name, value in wire.items() if name != "sha256"}
    try:
        _refuse_floats(wire, "")
        text = json.dumps(wire, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()
    except (ValueError, TypeError, RecursionError) as error:
        refuse(f"it has no canonical form: {error}")


# Values to wire.


def body(manifest: Manifest) -> dict[str, Any]:
    """The wire object without its `sha256`."""
    wire: dict[str, Any] = {
        "schema": manifest.schema,
        "capture": _with_decimals(msgspec.to_builtins(manifest.capture), "start_at_ns", "common_window_ns"),
        "targets": [_encode_target(target) for target in manifest.targets],
        "totals": msgspec.to_builtins(manifest.totals),
    }
    wire["totals"]["missing_ranks"] = list(manifest.totals.missing_ranks)
    return _merge(wire, manifest.extra)


def _encode_target(target: Target) -> dict[str, Any]:
    wire: dict[str, Any] = {"target_id": target.target_id, "identity": msgspec.to_builtins(target.identity)}
    if target.artifact is not None:
        artifact = msgspec.to_builtins(target.artifact)
        wire["artifact"] = _with_decimals(artifact, "window_start_ns", "window_end_ns")
    if target.failure is not None:
        wire["failure"] = msgspec.to_builtins(target.failure) | {"last_state": target.failure.last_state.name}
    return wire


def _with_decimals(wire: dict[str, Any], *names: str) -> dict[str, Any]:
    return wire | {name: str(wire[name]) for name in names if wire[name] is not None}


def _merge(known: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Put unknown fields back where they were found; the inverse of `_unknown`."""
    for name, value in extra.items():
        have = known.get(name)
        if isinstance(have, list):
            for target in have:
                _merge(target, value.get(target["target_id"], {}))
        elif isinstance(have, dict):
            _merge(have, value)
        else:
            known[name] = value
    return known


# Wire to values.


def _unknown(raw: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """What `raw` has and `known`, its own re-encoding, has not."""
    extra: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in known:
            extra[name] = value
        elif name == "targets":
            pairs = zip(value, known[name], strict=True)
            extra[name] = {have["target_id"]: more for target, have in pairs if (more := _unknown(target, have))}
        elif isinstance(value, dict) and isinstance(known[name], dict):
            extra[name] = _unknown(value, known[name])
        if extra.get(name) == {} and name in known:
            del extra[name]
    return extra


def _decode_capture(raw: dict[str, Any]) -> Capture:
    known = None
    if "spec" not in raw or raw["spec"] is not None:
        spec = _member(raw, "spec", dict, "capture")
        known = {name: value for name, value in spec.items() if name in CaptureSpec.__struct_fields__}
    numbers = _from_decimals(raw, "capture", "start_at_ns", "common_window_ns")
    return _convert(raw | numbers | {"spec": known}, Capture, "capture")


def _decode_target(raw: Any, where: str) -> Target:
    if not isinstance(raw, dict):
        refuse(f"{where} is no object")
    wire = dict(raw)
    if isinstance(artifact := raw.get("artifact"), dict):
        at = f"{where}.artifact"
        wire["artifact"] = artifact | _from_decimals(artifact, at, "window_start_ns", "window_end_ns")
    if isinstance(failure := raw.get("failure"), dict):
        state = failure.get("last_state")
        if not isinstance(state, str) or state not in TargetState.__members__:
            refuse(
                f"{where}.failure.last_state is {shown(state)}, expected one of {', '.join(TargetState.__members__)}"
            )
        wire["failure"] = failure | {"last_state": TargetState[state].value}
    return _convert(wire, Target, where)


def _from_decimals(raw: Mapping[str, Any], where: str, *names: str) -> dict[str, int | None]:
    numbers: dict[str, int | None] = {}
    for name in names:
        text = raw.get(name)
        if text is not None and not (isinstance(text, str) and _DECIMAL.fullmatch(text)):
            refuse(f"{where}.{name} is {shown(text)}, expected nanoseconds as a decimal string")
        if name in raw:
            numbers[name] = None if text is None else int(text)
    return numbers


def _convert(wire: dict[str, Any], to: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(wire, to)
    except msgspec.ValidationError as error:
        refuse(f"in {where}: {error}")
    except InvalidSpec as error:
        refuse(f"in {where}.spec: {error}")


def _member(raw: Mapping[str, Any], name: str, kind: type[_T], where: str = "") -> _T:
    value = raw.get(name)
    if not isinstance(value, kind):
        refuse(f"{where + '.' if where else ''}{name} is {'missing' if name not in raw else 'of the wrong type'}")
    return value


def _parse(data: bytes) -> dict[str, Any]:
    """Strict JSON: UTF-8 without BOM, no float, no NaN, no key twice in one object."""
    try:
        raw = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_float=lambda text: refuse(f"it has the float {shown(text)}: floats are not allowed"),
            parse_constant=lambda text: refuse(f"it has the number {text}"),
        )
    except UnicodeDecodeError as error:
        refuse(f"it is not UTF-8 at byte {error.start}")
    except ValueError as error:
        refuse(f"it is not JSON: {error}")
    except RecursionError:
        refuse("it is nested too deeply")
    if not isinstance(raw, dict):
        refuse("it is no JSON object")
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        refuse(f"it has the key {shown(next(n for n in names if names.count(n) > 1))} twice in one object")
    return found


def _refuse_floats(value: Any, where: str) -> None:
    if isinstance(value, float):
        refuse(f"{where} is the float {value}: floats are not allowed")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_floats(inner, f"{where}.{name}" if where else str(name))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_floats(inner, f"{where}[{index}]")
