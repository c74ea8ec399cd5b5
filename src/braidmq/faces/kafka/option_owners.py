"""What has options, by Kafka's kinds of resources: topics, groups, this broker, all brokers, and loggers.

An owner says which options it has, at which levels each one has a value, and takes changes. The first level
with a value is the one that counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from braidmq.broker.broker_options import ALL_BROKERS
from braidmq.config import BROKER_NAMES, DYNAMIC, GROUP, SERVER, TOPIC, Option, OptionType
from braidmq.faces.kafka.loggers import Loggers
from braidmq.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace


class Resource(IntEnum):
    """Kinds of things that have options, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class OptionSource(IntEnum):
    """Where a value comes from, by Kafka's numbers."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    BROKER_START = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


class Level(NamedTuple):
    """One place that gives an option a value, and what the option is called there."""

    name: str
    text: str
    source: OptionSource


class OptionOwner(Protocol):
    """What the verbs need of something that has options. Names are Braid's, unless said otherwise."""

    @property
    def options(self) -> tuple[Option, ...]:
        """What is described, and what a change may name."""
        ...

    @property
    def overrides(self) -> Mapping[str, str]:
        """What was set for the owner itself, by Braid's names."""
        ...

    @property
    def changeable(self) -> frozenset[str]:
        """Those that can be changed, by Braid's names."""
        ...

    def levels(self, option: Option) -> list[Level]: ...

    def check(self, overrides: Mapping[str, str]) -> None:
        """Raises ApiError unless these can be all the owner's own options."""
        ...

    async def change(self, overrides: Mapping[str, str]) -> None:
        """Replaces the owner's own options."""
        ...


def find_owner(face: KafkaFace, resource_type: int, name: str) -> OptionOwner:
    """The owner of this kind and name; ApiError if there is none."""
    if resource_type == Resource.TOPIC:
        return TopicOwner(face, name)
    if resource_type == Resource.GROUP:
        return GroupOwner(face, name)
    if resource_type not in (Resource.BROKER, Resource.BROKER_LOGGER):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource_type} has no options here; topics (2), brokers (4), broker loggers (8)"
            " and groups (32) do",
        )
    if resource_type == Resource.BROKER and name == ALL_BROKERS:
        return AllBrokersOwner(face)
    if name != str(face.node_id):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"this is broker {face.node_id}, not {name[:20]!r}")
    return LoggersOwner() if resource_type == Resource.BROKER_LOGGER else BrokerOwner(face)


def topic_levels(face: KafkaFace, option: Option, overrides: Mapping[str, str]) -> list[Level]:
    """The levels of a topic's option, for a topic with these overrides."""
    return [
        *_own(option.name, overrides, OptionSource.TOPIC),
        *_broker_levels(face, option.name, _broker_name(option), option.text(option.default)),
    ]


class TopicOwner:
    """A topic; what it has not set is the broker's."""

    options = TOPIC
    changeable = frozenset(option.name for option in TOPIC)

    def __init__(self, face: KafkaFace, name: str) -> None:
        self._face = face
        self._name = name
        self.overrides = face.broker.topics.get(name).record.overrides

    def levels(self, option: Option) -> list[Level]:
        return topic_levels(self._face, option, self.overrides)

    def check(self, overrides: Mapping[str, str]) -> None:
        self._face.broker.topics.check_overrides(overrides)

    async def change(self, overrides: Mapping[str, str]) -> None:
        await self._face.broker.topics.reconfigure(self._name, overrides)


class GroupOwner:
    """A group, which need not exist yet: its options are often set before its first member comes."""

    options = GROUP
    changeable = frozenset(option.name for option in GROUP)

    def __init__(self, face: KafkaFace, name: str) -> None:
        self._face = face
        self._name = name
        self.overrides = face.broker.group_options.overrides(name)

    def levels(self, option: Option) -> list[Level]:
        broker = f"group.{option.name}"
        return [
            *_own(option.name, self.overrides, OptionSource.GROUP),
            *_broker_levels(self._face, broker, broker, option.text(option.default)),
        ]

    def check(self, overrides: Mapping[str, str]) -> None:
        self._face.broker.group_options.check(self._name, overrides)

    async def change(self, overrides: Mapping[str, str]) -> None:
        await self._face.broker.reconfigure_group(self._name, overrides)


class BrokerOwner:
    """This broker; beside its options it shows where it is and where its data are."""

    changeable = DYNAMIC

    def __init__(self, face: KafkaFace) -> None:
        self._face = face
        self._name = face.broker.options.own_name
        self._places = _places(face)
        self.options = (*_PLACES, *SERVER, *TOPIC)
        self.overrides = face.broker.options.overrides(self._name)

    def levels(self, option: Option) -> list[Level]:
        if option.name in self._places:
            return [Level(option.name, self._places[option.name], OptionSource.BROKER_START)]
        return _broker_levels(self._face, option.name, _broker_name(option), option.text(option.default))

    def check(self, overrides: Mapping[str, str]) -> None:
        for name in overrides:
            if name in self._places:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"{name} is set when the broker starts, by `braid serve`"
                )
        self._face.broker.options.check(self._name, overrides)

    async def change(self, overrides: Mapping[str, str]) -> None:
        await self._face.broker.options.reconfigure(self._name, overrides)


class AllBrokersOwner(BrokerOwner):
    """All brokers of the cluster: only what was set for all of them is described."""

    def __init__(self, face: KafkaFace) -> None:
        super().__init__(face)
        self._name = ALL_BROKERS
        self.overrides = face.broker.options.overrides(ALL_BROKERS)

    def levels(self, option: Option) -> list[Level]:
        text = self.overrides.get(option.name)
        return [] if text is None else [Level(_broker_name(option), text, OptionSource.ALL_BROKERS)]


class LoggersOwner:
    """The loggers of this process, with their levels as options. They last until the broker stops."""

    def __init__(self) -> None:
        self._loggers = Loggers()
        self.options = self._loggers.options
        self.changeable = frozenset(option.name for option in self.options)
        self.overrides = self._loggers.set_levels()

    def levels(self, option: Option) -> list[Level]:
        return [Level(option.name, self._loggers.level(option.name), OptionSource.LOGGER)]

    def check(self, overrides: Mapping[str, str]) -> None:
        self._loggers.check(overrides)

    async def change(self, overrides: Mapping[str, str]) -> None:
        self._loggers.change(overrides)


# -- details ------------------------------------------------------------------------------------


_PLACES = (
    Option("advertised.listeners", OptionType.LIST, "", "The address that clients are sent to."),
    Option("listeners", OptionType.LIST, "", "The address at which clients are accepted."),
    Option("log.dirs", OptionType.LIST, "", "The directory of the broker's data."),
)


def _places(face: KafkaFace) -> dict[str, str]:
    host, port = face.listening
    return {
        "advertised.listeners": f"PLAINTEXT://{face.host}:{face.port}",
        "listeners": f"PLAINTEXT://{host}:{port}",
        "log.dirs": str(face.broker.data),
    }


def _broker_name(option: Option) -> str:
    return BROKER_NAMES.get(option.name, option.name)


def _own(name: str, overrides: Mapping[str, str], source: OptionSource) -> list[Level]:
    return [Level(name, overrides[name], source)] if name in overrides else []


def _broker_levels(face: KafkaFace, name: str, shown: str, default: str) -> list[Level]:
    """The levels of a broker's option called `name`, which Kafka's clients call `shown`."""
    options = face.broker.options
    set_at = (
        (options.overrides(options.own_name), OptionSource.BROKER),
        (options.overrides(ALL_BROKERS), OptionSource.ALL_BROKERS),
        (options.at_start, OptionSource.BROKER_START),
    )
    found = [Level(shown, texts[name], source) for texts, source in set_at if name in texts]
    return [*found, Level(shown, default, OptionSource.DEFAULT)]
