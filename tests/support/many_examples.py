"""A property, tried on few examples in `make test` and on many in `make test-full`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

CALM = [HealthCheck.too_slow, HealthCheck.filter_too_much]  # what a busy machine makes of a few examples


def tried(*values: SearchStrategy[Any], few: int, many: int) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Makes a test of a function of these values; it has this many examples in the one run and in the other."""

    def decorated(holds: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize(
            "examples", [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.full)]
        )
        def test(examples: int) -> None:
            settings(max_examples=examples, deadline=None, suppress_health_check=CALM)(given(*values)(holds))()

        test.__name__, test.__doc__, test.__module__ = holds.__name__, holds.__doc__, holds.__module__
        return test

    return decorated
