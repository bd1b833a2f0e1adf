"""Model values ↔ protobuf messages. Field names are the same on both sides, so one generic translation serves all."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import msgspec
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from sameshot.errors import SameshotError

S = TypeVar("S", bound=msgspec.Struct)
M = TypeVar("M", bound=Message)


def to_proto(value: msgspec.Struct, message: M) -> M:
    """Fill `message` from `value` and return it. None stays unset; fields unknown to the message are left out."""
    known = _fields(message.DESCRIPTOR)
    for name in value.__struct_fields__:
        item = getattr(value, name)
        if item is None or name not in known:
            continue
        if isinstance(item, msgspec.Struct):
            target = getattr(message, name)
            target.SetInParent()
            to_proto(item, target)
        elif known[name].is_repeated:
            target = getattr(message, name)
            for element in item:
                if isinstance(element, msgspec.Struct):
                    to_proto(element, target.add())
                else:
                    target.append(element)
        else:
            setattr(message, name, item)
    return message


def from_proto(message: Message, of: type[S]) -> S:
    """The model value of a message. Raises SameshotError where the peer sent a value that this version doesn't know."""
    try:
        return msgspec.convert(_builtins(message), of)
    except msgspec.ValidationError as error:
        raise SameshotError(
            f"A {message.DESCRIPTOR.name} message can't be understood ({error}); client, coordinator and agent must be "
            "at most one minor version apart."
        ) from None


class _Field(msgspec.Struct, frozen=True):
    is_repeated: bool
    is_message: bool
    has_presence: bool


@functools.cache
def _fields(descriptor: Descriptor) -> dict[str, _Field]:
    return {
        field.name: _Field(
            is_repeated=field.is_repeated,
            is_message=field.message_type is not None,
            has_presence=field.has_presence,
        )
        for field in descriptor.fields
    }


def _builtins(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in _fields(message.DESCRIPTOR).items():
        if field.is_repeated:
            items = getattr(message, name)
            found[name] = [_builtins(item) for item in items] if field.is_message else list(items)
        elif field.has_presence and not message.HasField(name):
            continue
        else:
            item = getattr(message, name)
            found[name] = _builtins(item) if field.is_message else item
    return found
