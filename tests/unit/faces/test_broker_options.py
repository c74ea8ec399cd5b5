"""Options of a broker that clients change while it runs: what is allowed, what it does, what stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.broker.housekeeping import DiskLevel
from braidmq.config import BROKER_NAMES, DYNAMIC, GROUP, SERVER, SERVER_BY_NAME, TOPIC, TOPIC_BY_NAME
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from braidmq.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from unit.embedded import FillingDisk, append
from unit.faces.options_client import APPEND, BROKER, change, described, refused, set_options
from unit.faces.options_client import TOPIC as A_TOPIC
from unit.faces.spoken import Speaker, speaker

SET_FOR_BROKER, SET_FOR_ALL, AT_START, DEFAULT = 2, 3, 4, 5
NOW_MS = 1_700_000_000_000
Story = Callable[[Speaker], Awaitable[None]]


def tell(data: Path, *stories: Story, **options: object) -> None:
    """Runs stories one after the other, each on a broker that was started again."""

    async def told() -> None:
        for story in stories:
            async with speaker(data, **options) as one:
                await story(one)

    asyncio.run(told())


def test_a_value_for_the_broker_beats_one_for_all_beats_the_start_beats_the_default(tmp_path: Path) -> None:
    """O1 F1: sources and synonyms are those of Kafka, the one that counts first."""

    async def story(one: Speaker) -> None:
        async def levels() -> list[tuple[str | None, int]]:
            entry = (await described(one, BROKER, "1"))["log.retention.ms"]
            assert (entry.value, entry.config_source) == (entry.synonyms[0].value, entry.synonyms[0].source)
            assert {each.name for each in entry.synonyms} == {"log.retention.ms"}
            return [(each.value, each.source) for each in entry.synonyms]

        start = [("5000", AT_START), ("604800000", DEFAULT)]
        assert await levels() == start
        await set_options(one, BROKER, "", {"log.retention.ms": "6000"})
        assert await levels() == [("6000", SET_FOR_ALL), *start]
        await set_options(one, BROKER, "1", {"log.retention.ms": "7000"})
        assert await levels() == [("7000", SET_FOR_BROKER), ("6000", SET_FOR_ALL), *start]
        assert one.broker.config.topic({}).retention_ms == 7000
        await set_options(one, BROKER, "1", {"log.retention.ms": None})
        assert one.broker.config.topic({}).retention_ms == 6000
        await set_options(one, BROKER, "", {"log.retention.ms": None})
        assert await levels() == start
        assert one.broker.config.topic({}).retention_ms == 5000

    tell(tmp_path, story, retention_ms=5000)


def test_what_was_changed_outlives_a_restart(tmp_path: Path) -> None:
    """O1: options are in the metadata store before a change is answered."""

    async def before(one: Speaker) -> None:
        await set_options(one, BROKER, "1", {"num.partitions": "7"})
        await set_options(one, BROKER, "", {"message.max.bytes": "5000", "fetch.bytes.max": "4096"})
        await one.broker.topics.create("t", 1, {})

    async def after(one: Speaker) -> None:
        assert one.broker.config.num_partitions == 7
        assert one.broker.config.fetch_bytes_max == 4096
        assert one.broker.topics.get("t").config.max_message_bytes == 5000
        assert set(await described(one, BROKER, "")) == {"message.max.bytes", "fetch.bytes.max"}
        await set_options(one, BROKER, "1", {"num.partitions": None})

    async def at_last(one: Speaker) -> None:
        assert one.broker.config.num_partitions == 4

    tell(tmp_path, before, after, at_last)


def test_topics_follow_a_default_unless_they_have_their_own(tmp_path: Path) -> None:
    """L1: partitions that are open take it over at once."""

    async def story(one: Speaker) -> None:
        follows = (await one.broker.topics.create("follows", 1, {})).held[0]
        own = (await one.broker.topics.create("own", 1, {"max.message.bytes": "100000"})).held[0]
        for partition in (follows, own):
            append(partition, b"x" * 2000, NOW_MS)
        await set_options(one, BROKER, "1", {"message.max.bytes": "1000"})
        append(own, b"x" * 2000, NOW_MS)
        with pytest.raises(ApiError) as error:
            append(follows, b"x" * 2000, NOW_MS)
        assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE
        entry = (await described(one, A_TOPIC, "follows"))["max.message.bytes"]
        assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
            ("message.max.bytes", "1000", SET_FOR_BROKER),
            ("message.max.bytes", "1048588", DEFAULT),
        ]

    tell(tmp_path, story)


def test_groups_transactions_and_the_disk_follow_at_once(tmp_path: Path) -> None:
    """C4 T2 L4: what was made of an option at the start is made again."""
    disk = FillingDisk()

    async def story(one: Speaker) -> None:
        changes = {
            "group.consumer.session.timeout.ms": "9000",
            "group.share.max.size": "3",
            "transaction.max.timeout.ms": "1000",
            "disk.full.percent": "5",
        }
        assert one.broker.housekeeping.disk_level is DiskLevel.FINE
        await set_options(one, BROKER, "1", changes)
        settings = one.broker.groups.settings
        assert settings.group_consumer_session_timeout_ms == 9000
        assert settings.group_share_max_size == 3
        init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        answer = await one.ask(init, InitProducerIdResponse)
        assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert one.broker.housekeeping.disk_level is not DiskLevel.FINE

    tell(tmp_path, story, disk=disk)


def test_every_option_on_the_list_can_be_set_by_either_name(tmp_path: Path) -> None:
    """O1: by Braid's name, and where Kafka's broker has another one, by that."""

    async def story(one: Speaker) -> None:
        for name in sorted(DYNAMIC):
            option = SERVER_BY_NAME.get(name) or TOPIC_BY_NAME[name]
            text = option.text(option.default)
            for spoken in sorted({name, BROKER_NAMES.get(name, name)}):
                await set_options(one, BROKER, "1", {spoken: text})
                entry = (await described(one, BROKER, "1", [spoken]))[spoken]
                assert (entry.value, entry.config_source) == (text, SET_FOR_BROKER)
                assert not entry.read_only
                await set_options(one, BROKER, "1", {spoken: None})

    tell(tmp_path, story)


def test_the_list_names_options_that_exist() -> None:
    """O1: and defaults of groups are on it, as topics' are."""
    every = {option.name for option in (*SERVER, *TOPIC)}
    assert every >= DYNAMIC
    assert {f"group.{option.name}" for option in GROUP} <= DYNAMIC
    assert set(BROKER_NAMES) <= set(TOPIC_BY_NAME)
    assert not set(BROKER_NAMES.values()) & every


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("log.sync.threads", "2", ErrorCode.INVALID_REQUEST),
        ("node.id", "9", ErrorCode.INVALID_REQUEST),
        ("log.dirs", "/etc", ErrorCode.INVALID_REQUEST),
        ("listeners", "PLAINTEXT://0.0.0.0:1", ErrorCode.INVALID_REQUEST),
        ("advertised.listeners", "PLAINTEXT://elsewhere:1", ErrorCode.INVALID_REQUEST),
        ("ssl.keystore.location", "/etc/passwd", ErrorCode.INVALID_CONFIG),
        ("num.partitions", "many", ErrorCode.INVALID_CONFIG),
        ("num.partitions", "0", ErrorCode.INVALID_CONFIG),
        ("min.cleanable.dirty.ratio", "nan", ErrorCode.INVALID_CONFIG),
        ("group.consumer.heartbeat.interval.ms", "45000", ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_cannot_change_is_refused_with_the_reason(
    tmp_path: Path, option: str, value: str, code: ErrorCode
) -> None:
    """O1: nothing that names a file, an address or a command, and nothing out of bounds."""

    async def story(one: Speaker) -> None:
        for name in ("1", ""):
            assert await refused(one, BROKER, name, {option: value}) is code
            assert not one.broker.options.overrides(name)

    tell(tmp_path, story)


def test_a_change_that_is_only_to_be_checked_changes_nothing(tmp_path: Path) -> None:
    """O1: validate_only."""

    async def story(one: Speaker) -> None:
        for value, code in (("9", ErrorCode.NONE), ("0", ErrorCode.INVALID_CONFIG)):
            answer = await change(one, BROKER, "1", {"num.partitions": value}, validate_only=True)
            assert answer.error_code == code
        assert one.broker.config.num_partitions == 4
        assert await refused(one, BROKER, "7", {"num.partitions": "9"}) is ErrorCode.INVALID_REQUEST

    tell(tmp_path, story)


def test_all_options_of_a_broker_are_replaced_by_the_older_verb(tmp_path: Path) -> None:
    """F1: AlterConfigs takes back what it does not name."""

    async def story(one: Speaker) -> None:
        await set_options(one, BROKER, "1", {"num.partitions": "9"})
        await change(one, BROKER, "1", {"log.cleanup.policy": "compact"}, APPEND)
        assert one.broker.config.topic({}).cleanup_policy == ("delete", "compact")
        whole = AlterConfigsResource(
            resource_type=BROKER,
            resource_name="1",
            configs=[AlterableConfig(name="log.retention.ms", value="1000")],
        )
        answer = await one.ask(AlterConfigsRequest(resources=[whole]), AlterConfigsResponse)
        assert answer.responses[0].error_code == 0
        assert one.broker.config.num_partitions == 4
        assert one.broker.config.topic({}).cleanup_policy == ("delete",)
        assert one.broker.config.topic({}).retention_ms == 1000

    tell(tmp_path, story)


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """O1 L1: each one stands on the options that the others have left, of brokers and of topics."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        broker = {"num.partitions": "9", "fetch.bytes.max": "9999", "net.idle.ms": "99999"}
        topic = {"retention.ms": "9", "segment.ms": "99", "flush": "async"}
        await asyncio.gather(
            *(set_options(one, BROKER, "1", {name: value}) for name, value in broker.items()),
            *(set_options(one, A_TOPIC, "t", {name: value}) for name, value in topic.items()),
        )
        assert one.broker.options.overrides("1") == broker
        assert one.broker.topics.get("t").record.overrides == topic

    tell(tmp_path, story)


def test_a_stored_option_that_cannot_be_used_any_more_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """O1: a broker of another version starts all the same, and says what it left out."""

    async def before(one: Speaker) -> None:
        stored = {"num.partitions": "9", "no.longer.there": "1", "fetch.bytes.max": "1"}
        await one.broker.metadata.changes.set_options("brokers", "1", stored)

    async def after(one: Speaker) -> None:
        assert one.broker.options.overrides("1") == {"num.partitions": "9"}
        assert all(word in caplog.text for word in ("no.longer.there", "fetch.bytes.max"))

    tell(tmp_path, before, after)


def test_a_broker_describes_where_it_is(tmp_path: Path) -> None:
    """F1: advertised.listeners, listeners and log.dirs, which cannot be changed; types and reasons."""

    async def story(one: Speaker) -> None:
        one.face.advertise("broker.example.com", 9092, listening=("0.0.0.0", 9093))
        entries = await described(one, BROKER, "1")
        places = {
            "advertised.listeners": "PLAINTEXT://broker.example.com:9092",
            "listeners": "PLAINTEXT://0.0.0.0:9093",
            "log.dirs": str(tmp_path),
        }
        for name, value in places.items():
            entry = entries[name]
            assert (entry.value, entry.config_source, entry.read_only) == (value, AT_START, True)
        assert all(each.config_type and each.documentation for each in entries.values())
        assert "retention.ms" not in entries
        assert list(await described(one, BROKER, "1", ["retention.ms"])) == ["retention.ms"]

    tell(tmp_path, story)
