"""The test executor reads expressions as Argo does; and what the templates retry, condition by condition."""

from __future__ import annotations

from typing import Any

import pytest
from argo_executor import Unresolved, substituted
from argo_expr import BadExpression, condition, evaluate

from sameshot_argo.pods import RETRY


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 == 3 && 'a' != 'b'", True),
        ("a.b == 'x' || a['c d'] == 'y'", True),
        ("not (a.b matches '^y')", True),
        ("! (a.b contains 'x') || false", False),
        ("asInt(n) + 300", 1200),
        ("'75' in ['75', '143']", True),
        ("'' != ''", False),
        ("'it''s' != ''", None),
        ("a.z == 'x'", None),
        ("1 +", None),
        ("'a' && true", None),
    ],
)
def test_expressions_are_read_strictly(expression: str, value: Any) -> None:
    names = {"a": {"b": "x", "c d": "y"}, "n": "900"}
    if value is None:
        with pytest.raises(BadExpression):
            evaluate(expression, names)
    else:
        assert evaluate(expression, names) == value


def test_tags_are_replaced_in_the_json_of_a_template() -> None:
    known = {"inputs.parameters.a": 'say "hi"', "inputs.parameters.n": "5"}
    assert substituted(["--a={{inputs.parameters.a}}", "{{=asInt(inputs.parameters.n) + 1}}"], known) == [
        '--a=say "hi"',
        "6",
    ]
    assert substituted("{{item}} {{=inputs.parameters.b}}", known) == "{{item}} {{=inputs.parameters.b}}"
    with pytest.raises(Unresolved):
        substituted("{{item}}", known, strict=True)
    with pytest.raises(Unresolved):
        substituted("{{=inputs.parameters.b}}", known, strict=True)


EVICTED = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 30Mi."
REBOOTED = "Pod was terminated in response to imminent node shutdown."
TOO_LONG = "Pod was active on the node longer than the specified deadline"


@pytest.mark.parametrize(
    ("status", "exit_code", "message", "again"),
    [
        ("Error", "-1", "pod deleted", True),
        ("Error", "-1", "Pod failed before main container starts due to ImagePullBackOff: …", True),
        ("Failed", "143", "main: Error (exit code 143)", True),
        ("Failed", "75", "main: Error (exit code 75)", True),
        ("Failed", "137", EVICTED, True),
        ("Failed", "-1", EVICTED, True),
        ("Failed", "137", REBOOTED, True),
        ("Failed", "-1", "Preempted in order to admit critical pod", True),
        ("Failed", "-1", "Pod was rejected: Node didn't have enough resource: cpu", True),
        ("Failed", "-1", "Pod was rejected: Predicate NodeAffinity failed", True),
        ("Failed", "137", "main: ContainerStatusUnknown (exit code 137): The container could not be located", True),
        ("Failed", "255", "main: Unknown (exit code 255)", True),
        ("Failed", "-1", "can't find failed message for pod mine namespace ml", True),
        ("Error", "0", "wait: Error (exit code 64): You need to configure artifact storage. More information …", False),
        ("Error", "0", "wait: Error (exit code 64): failed to put file: The specified bucket does not exist", False),
        ("Failed", "137", "main: OOMKilled (exit code 137)", False),
        ("Failed", "143", TOO_LONG, False),
        ("Failed", "-1", TOO_LONG, False),
        *(("Failed", str(code), f"main: Error (exit code {code})", False) for code in (1, 2, 3, 4, 5, 6, 7, 77, 130)),
    ],
)
def test_what_the_infrastructure_did_is_retried_and_what_the_step_found_is_not(
    status: str, exit_code: str, message: str, again: bool
) -> None:
    last = {"status": status, "exitCode": exit_code, "message": message, "duration": "1"}
    assert condition(RETRY, {"lastRetry": last}) is again
