"""What the operator asks coordinators: to take no new captures, and how many workers there are."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import grpc

from sameshot.api import sameshot_pb2 as pb
from sameshot.api.convert import from_proto
from sameshot.api.sameshot_pb2_grpc import CoordinatorStub
from sameshot.api.status import from_rpc
from sameshot.api.transport import Endpoint, aio_channel
from sameshot.api.views import JobDescription
from sameshot.kube import names
from sameshot.kube.api import Api
from sameshot.kube.tokens import RequestedToken
from sameshot.model import JobRef
from sameshot.operator.config import OperatorConfig
from sameshot.operator.decide import Why
from sameshot.operator.objects import host_of

MAX_TOKENS = 2_000


class Coordinators:
    """Calls by TLS, each with a token of the operator's own account for this one job. A connection serves one call:
    there are a few in a job's life."""

    def __init__(self, api: Api, config: OperatorConfig) -> None:
        self._api = api
        self._config = config
        self._tokens: OrderedDict[str, RequestedToken] = OrderedDict()

    async def describe(self, job: JobRef, address: str, ca: bytes) -> JobDescription:
        """Raises a SameshotError."""
        return from_proto(await self._call("Describe", pb.DescribeRequest(), job, address, ca), JobDescription)

    async def retire(self, job: JobRef, address: str, ca: bytes, why: Why) -> int:
        """How many captures it still works on. Raises a SameshotError."""
        request = pb.RetireRequest(why=why.value)  # type: ignore[arg-type]  # the enum's numbers
        return int((await self._call("Retire", request, job, address, ca)).unsettled)

    async def _call(self, method: str, request: Any, job: JobRef, address: str, ca: bytes) -> Any:
        endpoint = Endpoint(address, ca, host_of(job, self._config), self._token(job))
        async with aio_channel(endpoint) as channel:
            stub: Any = CoordinatorStub(channel)  # type: ignore[no-untyped-call]
            try:
                return await getattr(stub, method)(request, timeout=self._config.timings.call_s)
            except grpc.RpcError as error:
                raise from_rpc(error, f"The coordinator of job {job} at {address}") from None

    def _token(self, job: JobRef) -> RequestedToken:
        audience = names.audience_of(job)
        if audience not in self._tokens:
            self._tokens[audience] = RequestedToken(
                self._api, self._config.system_namespace, self._config.account, audience
            )
        self._tokens.move_to_end(audience)
        while len(self._tokens) > MAX_TOKENS:
            self._tokens.popitem(last=False)
        return self._tokens[audience]
