"""Options of a broker that admin clients change while it runs, kept in the metadata store.

A value can come from four places, and the first one that has it counts: what is set for this broker, what is
set for all brokers of the cluster, what the broker was started with, and the option's default. Which options
can be changed is the list `config.DYNAMIC` and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from braidmq.broker.metadata import storing
from braidmq.cluster import records
from braidmq.cluster.changes import Changes
from braidmq.cluster.image import Delta, Image
from braidmq.cluster.records import OF_BROKERS
from braidmq.config import (
    DYNAMIC,
    SERVER,
    SERVER_BY_NAME,
    TOPIC,
    TOPIC_BY_NAME,
    Config,
    ConfigError,
    check_sessions,
    check_topic_overrides,
    configure,
    find,
)
from braidmq.wire.errors import ApiError, ErrorCode

ALL_BROKERS = ""
"""Whose options are the defaults of every broker of the cluster."""

log = logging.getLogger("braid.broker")


class BrokerOptions:
    """Reads and changes what was set for this broker and for all; `config` always holds the outcome."""

    def __init__(
        self, config: Config, image: Image, changes: Changes, changed: Callable[[], Awaitable[None]]
    ) -> None:
        self._config = config
        self._image = image
        self._changes = changes
        self._changed = changed
        self._unsettled = False
        self.own_name = str(config.node_id)
        self.at_start: Mapping[str, str] = dict(config.given)
        """What the broker was started with, as text."""
        self._overrides: dict[str, dict[str, str]] = {ALL_BROKERS: {}, self.own_name: {}}

    def load(self) -> None:
        """Takes over what the image shows."""
        for name in self._overrides:
            self._overrides[name] = self._usable(name)
        self._config.change(self._outcome(self._overrides))

    def follow(self, delta: Delta) -> None:
        """Takes over what has changed; `settle` does the rest."""
        mine = {records.config_key(OF_BROKERS, name) for name in self._overrides}
        if not mine.isdisjoint(delta.options):
            self.load()
            self._unsettled = True

    async def settle(self) -> None:
        """Brings options that have changed to those who made something of the old ones."""
        if self._unsettled:
            self._unsettled = False
            await self._changed()

    def overrides(self, name: str) -> Mapping[str, str]:
        """What was set for `name`, this broker or all, as text."""
        return self._overrides[name]

    def check(self, name: str, overrides: Mapping[str, str]) -> None:
        """Raises ApiError unless these can be all the options set for `name`."""
        for each in overrides:
            self._check_changeable(each)
        try:
            outcome = self._outcome({**self._overrides, name: overrides})
            values = configure(outcome)
            check_topic_overrides({each: text for each, text in outcome.items() if each in TOPIC_BY_NAME})
            check_sessions({each.name: getattr(values, each.attribute) for each in SERVER})
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None

    async def reconfigure(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replaces the options set for `name`; they count when this returns."""
        self.check(name, overrides)
        with storing(self._changes.outage):
            await self._changes.set_options(OF_BROKERS, name, overrides)
        await self.settle()

    # -- details --------------------------------------------------------------------------------

    def _outcome(self, overrides: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        return {**self.at_start, **overrides[ALL_BROKERS], **overrides[self.own_name]}

    def _check_changeable(self, name: str) -> None:
        try:
            find(name, (*SERVER, *TOPIC))
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if name not in DYNAMIC:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{name} is set when the broker starts (file, BRAID_… variable, -o) and cannot be changed"
                " while it runs",
            )

    def _usable(self, name: str) -> dict[str, str]:
        """What is stored for `name`, without what this version of Braid cannot take."""
        usable = {}
        held = self._image.options(OF_BROKERS, name)
        for each, text in ({} if held is None else held.record.options).items():
            try:
                self._check_changeable(each)
                (SERVER_BY_NAME.get(each) or TOPIC_BY_NAME[each]).parse(text)
            except (ApiError, ConfigError) as error:
                log.warning("ignoring a stored option: %s", error)
            else:
                usable[each] = text
        return usable
