"""Describing and altering configurations: options of topics and groups; those of a broker are only read.

What may be changed is the table in `braidmq.config` and nothing else: no option names a file, a class or a
command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from braidmq.config import GROUP, SERVER, TOPIC, ConfigError, Kind, Option, find
from braidmq.faces.kafka.asked import Asked
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace


class Resource(IntEnum):
    """Kinds of things that have options, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Source(IntEnum):
    """Where a value comes from, by Kafka's numbers."""

    TOPIC = 1
    BROKER_FILE = 4
    DEFAULT = 5
    GROUP = 8


class Operation(IntEnum):
    """What an incremental change does to an option."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_TYPES = {Kind.BOOL: 1, Kind.STRING: 2, Kind.INT: 3, Kind.LONG: 5, Kind.DOUBLE: 6, Kind.LIST: 7}


def source_of(
    face: KafkaFace, option: Option, overrides: Mapping[str, str], own: Source = Source.TOPIC
) -> int:
    """Whether the topic or group, the broker's configuration or Braid itself decides the option's value."""
    if option.name in overrides:
        return int(own)
    return int(Source.DEFAULT if _given(face, option) is None else Source.BROKER_FILE)


def _given(face: KafkaFace, option: Option) -> str | None:
    """What the broker's configuration says; of a group's option it speaks with `group.` before the name."""
    name = f"group.{option.name}" if option in GROUP else option.name
    return face.broker.config.given.get(name)


# -- describe -----------------------------------------------------------------------------------


def describe_configs(
    face: KafkaFace, request: DescribeConfigsRequest, asked: Asked
) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            result.configs = _describe(face, resource, request)
        except ApiError as error:
            result.error_code, result.error_message = int(error.code), error.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _describe(
    face: KafkaFace, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    overrides: Mapping[str, str]
    if resource.resource_type in (Resource.TOPIC, Resource.GROUP):
        options, overrides, values = _owner(face, resource.resource_type, resource.resource_name)
    else:
        _check_broker(face, resource.resource_type, resource.resource_name)
        options, overrides = (*SERVER, *TOPIC), {}
        defaults = face.broker.config.topic({})
        values = {option.name: getattr(face.broker.config, option.attribute) for option in SERVER}
        values |= {option.name: getattr(defaults, option.attribute) for option in TOPIC}
    wanted = resource.configuration_keys
    return [
        _entry(face, option, values[option.name], overrides, request, resource.resource_type)
        for option in options
        if wanted is None or option.name in wanted
    ]


def _entry(
    face: KafkaFace,
    option: Option,
    value: object,
    overrides: Mapping[str, str],
    request: DescribeConfigsRequest,
    resource_type: int,
) -> DescribeConfigsResourceResult:
    own = Source.GROUP if resource_type == Resource.GROUP else Source.TOPIC
    return DescribeConfigsResourceResult(
        name=option.name,
        value=option.text(value),
        read_only=resource_type == Resource.BROKER,
        config_source=source_of(face, option, overrides, own),
        synonyms=_synonyms(face, option, overrides, own) if request.include_synonyms else [],
        config_type=_TYPES[option.kind],
        documentation=option.why if request.include_documentation else None,
    )


def _synonyms(
    face: KafkaFace, option: Option, overrides: Mapping[str, str], own: Source
) -> list[DescribeConfigsSynonym]:
    """Every level that gives the option a value, the one that counts first."""
    levels: list[tuple[str | None, Source]] = [
        (overrides.get(option.name), own),
        (_given(face, option), Source.BROKER_FILE),
        (option.text(option.default), Source.DEFAULT),
    ]
    return [
        DescribeConfigsSynonym(name=option.name, value=value, source=int(source))
        for value, source in levels
        if value is not None
    ]


def _check_broker(face: KafkaFace, resource_type: int, name: str) -> None:
    if resource_type != Resource.BROKER:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource_type} has no options here; topics (2), brokers (4) and groups (32) do",
        )
    if name not in ("", str(face.node_id)):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"this is broker {face.node_id}, not {name[:20]!r}")


# -- alter --------------------------------------------------------------------------------------


async def alter_configs(face: KafkaFace, request: AlterConfigsRequest, asked: Asked) -> AlterConfigsResponse:
    """Replaces all of a topic's or group's own options."""
    return AlterConfigsResponse(
        responses=[
            await _alter_one(face, each, _replaced, request.validate_only) for each in request.resources
        ]
    )


async def incremental_alter_configs(
    face: KafkaFace, request: IncrementalAlterConfigsRequest, asked: Asked
) -> IncrementalAlterConfigsResponse:
    """Changes some of the options and leaves the others."""
    return IncrementalAlterConfigsResponse(
        responses=[
            await _alter_one(face, each, _changed, request.validate_only) for each in request.resources
        ]
    )


R = TypeVar("R", AlterConfigsResource, IncrementalAlterConfigsResource)


async def _alter_one(
    face: KafkaFace, resource: R, overrides_after: Callable[[Owner, R], dict[str, str]], validate_only: bool
) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        name = resource.resource_name
        overrides = overrides_after(_owner(face, resource.resource_type, name), resource)
        if resource.resource_type == Resource.GROUP:
            face.broker.group_options.check(name, overrides)
            if not validate_only:
                await face.broker.reconfigure_group(name, overrides)
        elif validate_only:
            face.broker.topics.check_overrides(overrides)
        else:
            await face.broker.topics.reconfigure(name, overrides)
    except ApiError as error:
        answer.error_code, answer.error_message = int(error.code), error.message
    return answer


class Owner(NamedTuple):
    """What has options that can be changed: which, those it has set itself, and what counts in the end."""

    options: tuple[Option, ...]
    overrides: Mapping[str, str]
    values: Mapping[str, Any]


def _owner(face: KafkaFace, resource_type: int, name: str) -> Owner:
    if resource_type == Resource.TOPIC:
        topic = face.broker.topics.get(name)
        values = {option.name: getattr(topic.config, option.attribute) for option in TOPIC}
        return Owner(TOPIC, topic.record.overrides, values)
    if resource_type == Resource.GROUP:
        # A group need not exist yet: its options are often set before its first member comes.
        options = face.broker.group_options
        return Owner(GROUP, options.overrides(name), options.values(name))
    _check_broker(face, resource_type, name)
    raise ApiError(
        ErrorCode.INVALID_REQUEST,
        "a broker's options are set when it starts (file, BRAID_… variables, -o), not by clients",
    )


def _replaced(owner: Owner, resource: AlterConfigsResource) -> dict[str, str]:
    return {each.name: each.value for each in resource.configs if each.value is not None}


def _changed(owner: Owner, resource: IncrementalAlterConfigsResource) -> dict[str, str]:
    overrides = dict(owner.overrides)
    seen: set[str] = set()
    for change in resource.configs:
        if change.name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"option {change.name} stands in the request twice")
        seen.add(change.name)
        option = _option(change.name, owner)
        if change.config_operation == Operation.DELETE:
            overrides.pop(change.name, None)
        elif change.value is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"option {change.name} is set without a value")
        elif change.config_operation == Operation.SET:
            overrides[change.name] = change.value
        elif change.config_operation in (Operation.APPEND, Operation.SUBTRACT) and option.kind is Kind.LIST:
            overrides[change.name] = _edit_list(option, owner.values[option.name], change)
        else:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"{change.name} is not a list; only set and delete apply to it"
            )
    return overrides


def _edit_list(option: Option, current: tuple[str, ...], change: IncrementalAlterableConfig) -> str:
    items = [item.strip() for item in (change.value or "").split(",") if item.strip()]
    if change.config_operation == Operation.APPEND:
        return option.text([*current, *(item for item in items if item not in current)])
    return option.text([item for item in current if item not in items])


def _option(name: str, owner: Owner) -> Option:
    try:
        return find(name, owner.options)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
