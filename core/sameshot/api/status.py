"""Typed errors across gRPC: one table, read by servers when they fail and by clients when they are told so.

A status code is too coarse for our tree, so the class's name travels beside it in the trailing metadata. A peer that
doesn't know the name (one minor version apart) falls back to what the code says.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc

from sameshot import errors
from sameshot.errors import SameshotError

ERROR_KEY = "sameshot-error"

# What a server answers: the first class that matches, so subclasses stand above their bases.
CODES: dict[type[SameshotError], grpc.StatusCode] = {
    errors.RequestKeyConflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.PolicyRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UsageError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownCapture: grpc.StatusCode.NOT_FOUND,
    errors.JobEnded: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OtherAttempt: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NoSuchJob: grpc.StatusCode.NOT_FOUND,
    errors.Denied: grpc.StatusCode.PERMISSION_DENIED,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.TryAgain: grpc.StatusCode.UNAVAILABLE,
    errors.ManifestError: grpc.StatusCode.DATA_LOSS,
    errors.VerificationFailed: grpc.StatusCode.DATA_LOSS,
    errors.TraceError: grpc.StatusCode.DATA_LOSS,
    errors.CaptureCancelled: grpc.StatusCode.ABORTED,
    errors.PartialCapture: grpc.StatusCode.ABORTED,
    errors.CaptureFailed: grpc.StatusCode.ABORTED,
    SameshotError: grpc.StatusCode.INTERNAL,
}

# What a client makes of a code that came without a class name it knows.
FALLBACKS: dict[grpc.StatusCode, type[SameshotError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.Unreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.Unreachable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.TryAgain,
    grpc.StatusCode.INVALID_ARGUMENT: errors.UsageError,
    grpc.StatusCode.NOT_FOUND: errors.UnknownCapture,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.PERMISSION_DENIED: errors.Denied,
    grpc.StatusCode.UNAUTHENTICATED: errors.Denied,
}

_BY_NAME: dict[str, type[SameshotError]] = {each.__name__: each for each in CODES} | {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, SameshotError) and each is not errors.TraceError
}


def code_of(error: SameshotError) -> grpc.StatusCode:
    return next(code for kind, code in CODES.items() if isinstance(error, kind))


async def abort(context: Any, error: SameshotError) -> NoReturn:
    """End a call (of a `grpc.aio` server) with this error."""
    await context.abort(code_of(error), str(error), trailing_metadata=((ERROR_KEY, type(error).__name__),))
    raise AssertionError("abort returned")


def is_answer(error: grpc.RpcError) -> bool:
    """The peer itself said no, in words of ours; otherwise nothing was heard of it."""
    metadata: Any = error.trailing_metadata() or ()
    return any(key == ERROR_KEY for key, _ in metadata)


def from_rpc(error: grpc.RpcError, who: str) -> SameshotError:
    """The typed error that the peer `who` (words for the message) raised, or what its silence means."""
    code: grpc.StatusCode = error.code()
    details: str = error.details() or ""
    metadata: Any = error.trailing_metadata() or ()
    name = next((value for key, value in metadata if key == ERROR_KEY), None)
    if name in _BY_NAME and _BY_NAME[name] is not errors.TraceError:
        return _BY_NAME[name](details)
    kind = FALLBACKS.get(code, SameshotError)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return kind(f"{who} did not answer in time.")
    if kind is errors.Unreachable:
        return kind(f"{who} can't be reached: {details}.")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return kind(f"{who} does not know this call; it must be at most one minor version apart.")
    return kind(f"{who} failed with {code.name}: {details}")


Request = TypeVar("Request")
Answer = TypeVar("Answer")


def typed(
    method: Callable[[Any, Request, Any], Awaitable[Answer]],
) -> Callable[[Any, Request, Any], Awaitable[Answer]]:
    """A unary servicer method that may simply raise our errors."""

    @functools.wraps(method)
    async def call(self: Any, request: Request, context: Any) -> Answer:
        try:
            return await method(self, request, context)
        except SameshotError as error:
            await abort(context, error)

    return call


def typed_stream(
    method: Callable[[Any, Request, Any], AsyncIterator[Answer]],
) -> Callable[[Any, Request, Any], AsyncIterator[Answer]]:
    """The same for a method that streams its answers."""

    @functools.wraps(method)
    async def call(self: Any, request: Request, context: Any) -> AsyncIterator[Answer]:
        try:
            async for answer in method(self, request, context):
                yield answer
        except SameshotError as error:
            await abort(context, error)

    return call
