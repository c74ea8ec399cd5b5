"""Reads and changes options through the protocol."""

from __future__ import annotations

from collections.abc import Mapping

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.configs import (
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from unit.faces.spoken import Speaker

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND = 0, 1, 2


async def change(
    one: Speaker,
    kind: int,
    name: str,
    values: Mapping[str, str | None],
    operation: int = SET,
    *,
    validate_only: bool = False,
) -> AlterConfigsResourceResponse:
    """Sets these options, or deletes those without a value; the answer."""
    changes = [
        IncrementalAlterableConfig(
            name=option, config_operation=DELETE if value is None else operation, value=value
        )
        for option, value in values.items()
    ]
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return (await one.ask(request, IncrementalAlterConfigsResponse)).responses[0]


async def set_options(one: Speaker, kind: int, name: str, values: Mapping[str, str | None]) -> None:
    answer = await change(one, kind, name, values)
    assert (answer.error_code, answer.error_message) == (0, None)


async def refused(one: Speaker, kind: int, name: str, values: Mapping[str, str | None]) -> ErrorCode:
    """The code with which a change is refused, always with a reason."""
    answer = await change(one, kind, name, values)
    assert answer.error_message
    return ErrorCode(answer.error_code)


async def described(
    one: Speaker, kind: int, name: str, keys: list[str] | None = None
) -> dict[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    result = (await one.ask(request, DescribeConfigsResponse)).results[0]
    assert result.error_code == 0, result.error_message
    return {each.name: each for each in result.configs}
