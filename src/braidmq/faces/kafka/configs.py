"""Describing and altering options: of topics, groups, brokers and loggers (`option_owners` says whose).

What may be changed is the table in `braidmq.config` and nothing else: no option names a file, a class or a
command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from braidmq.config import BROKER_NAMES, ConfigError, Option, OptionType, find
from braidmq.faces.kafka.option_owners import OptionOwner, Resource, find_owner
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
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
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace


class AlterOperation(IntEnum):
    """What an incremental change does to an option."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_TYPES = {
    OptionType.BOOL: 1,
    OptionType.STRING: 2,
    OptionType.INT: 3,
    OptionType.LONG: 5,
    OptionType.DOUBLE: 6,
    OptionType.LIST: 7,
}
_UNKNOWN_TYPE = 0
_TYPES_FROM = 1
_OWN_NAMES = {kafkas: ours for ours, kafkas in BROKER_NAMES.items()}


# -- describe -----------------------------------------------------------------------------------


def describe_configs(
    face: KafkaFace, request: DescribeConfigsRequest, context: RequestContext
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
    owner = find_owner(face, resource.resource_type, resource.resource_name)
    wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
    return [
        _entry(owner, option, name, request)
        for option in owner.options
        if owner.levels(option)
        for name in _names(resource.resource_type, option, wanted)
    ]


def _names(resource_type: int, option: Option, wanted: set[str] | None) -> list[str]:
    """What the option is to be called: of a broker by Kafka's name for it, or as it was asked for."""
    if resource_type != Resource.BROKER:
        return [option.name] if wanted is None or option.name in wanted else []
    kafkas = BROKER_NAMES.get(option.name, option.name)
    return [kafkas] if wanted is None else sorted({kafkas, option.name} & wanted)


def _entry(
    owner: OptionOwner, option: Option, name: str, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    levels = owner.levels(option)
    synonyms = levels if request.include_synonyms else []
    return DescribeConfigsResourceResult(
        name=name,
        value=option.text(option.parse(levels[0].text)),
        read_only=option.name not in owner.changeable,
        config_source=int(levels[0].source),
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.text, source=int(each.source))
            for each in synonyms
        ],
        config_type=_TYPES.get(option.kind, _UNKNOWN_TYPE),
        documentation=option.why if request.include_documentation else None,
    )


# -- alter --------------------------------------------------------------------------------------


async def alter_configs(
    face: KafkaFace, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replaces all of an owner's options."""
    return AlterConfigsResponse(
        responses=[
            await _alter_one(face, each, _replaced, request.validate_only) for each in request.resources
        ]
    )


async def incremental_alter_configs(
    face: KafkaFace, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Changes some of the options and leaves the others."""
    return IncrementalAlterConfigsResponse(
        responses=[
            await _alter_one(face, each, _changed, request.validate_only) for each in request.resources
        ]
    )


R = TypeVar("R", AlterConfigsResource, IncrementalAlterConfigsResource)


async def _alter_one(
    face: KafkaFace,
    resource: R,
    overrides_after: Callable[[OptionOwner, R], dict[str, str]],
    validate_only: bool,
) -> AlterConfigsResourceResponse:
    answer = AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        # One at a time: what a change makes of the options before it must still be true when it is stored.
        async with face.altering:
            owner = find_owner(face, resource.resource_type, resource.resource_name)
            overrides = overrides_after(owner, resource)
            owner.check(overrides)
            if not validate_only:
                await owner.change(overrides)
    except ApiError as error:
        answer.error_code, answer.error_message = int(error.code), error.message
    return answer


def _own_name(resource_type: int, name: str) -> str:
    """Braid's name of an option; those of a broker may be given by Kafka's, too."""
    return _OWN_NAMES.get(name, name) if resource_type == Resource.BROKER else name


def _replaced(owner: OptionOwner, resource: AlterConfigsResource) -> dict[str, str]:
    if resource.resource_type == Resource.BROKER_LOGGER:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "levels of loggers can only be changed one by one (IncrementalAlterConfigs)",
        )
    return {
        _own_name(resource.resource_type, each.name): each.value
        for each in resource.configs
        if each.value is not None
    }


def _changed(owner: OptionOwner, resource: IncrementalAlterConfigsResource) -> dict[str, str]:
    overrides = dict(owner.overrides)
    seen: set[str] = set()
    for change in resource.configs:
        name = _own_name(resource.resource_type, change.name)
        if name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"option {change.name} appears twice in the request")
        seen.add(name)
        option = _option(name, owner)
        if change.config_operation == AlterOperation.DELETE:
            overrides.pop(name, None)
        elif change.value is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"option {change.name} is set without a value")
        elif change.config_operation == AlterOperation.SET:
            overrides[name] = change.value
        elif (
            change.config_operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT)
            and option.kind is OptionType.LIST
        ):
            overrides[name] = _edit_list(option, owner, change)
        else:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"{change.name} is not a list; only set and delete apply to it"
            )
    return overrides


def _edit_list(option: Option, owner: OptionOwner, change: IncrementalAlterableConfig) -> str:
    levels = owner.levels(option)
    current = option.parse(levels[0].text if levels else option.default)
    items = [item.strip() for item in (change.value or "").split(",") if item.strip()]
    if change.config_operation == AlterOperation.APPEND:
        return option.text([*current, *(item for item in items if item not in current)])
    return option.text([item for item in current if item not in items])


def _option(name: str, owner: OptionOwner) -> Option:
    try:
        return find(name, owner.options)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None


# -- list ---------------------------------------------------------------------------------------


def list_config_resources(
    face: KafkaFace, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """What has options. Version 0 asks for resources of client metrics only, of which there are none."""
    if context.version < _TYPES_FROM:
        return ListConfigResourcesResponse()
    wanted = set(request.resource_types) or set(Resource)
    if not wanted <= set(Resource):
        return ListConfigResourcesResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
    nodes = [str(one.node_id) for one in face.nodes()]
    names: dict[Resource, Iterable[str]] = {
        Resource.TOPIC: (topic.name for topic in face.broker.topics),
        Resource.BROKER: nodes,
        Resource.BROKER_LOGGER: nodes,
        Resource.GROUP: face.broker.group_options,
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=int(kind))
            for kind, found in names.items()
            if kind in wanted
            for name in found
        ]
    )
