"""Options of a broker process: its network, fetches, logs, disk and producers."""

from __future__ import annotations

from braidmq.address import AddressError, parse_address
from braidmq.config.option import MS_PER_DAY, Option, OptionType


def _why_no_cluster_name(name: str) -> str | None:
    legal = name.isascii() and name.replace(".", "").replace("_", "").replace("-", "").isalnum()
    return None if legal and len(name) <= 100 else "use up to 100 letters, digits, '.', '_' and '-'"


def _why_no_address(text: str) -> str | None:
    if not text:
        return None
    try:
        parse_address(text)
    except AddressError as error:
        return str(error)
    return None


def _why_no_addresses(addresses: tuple[str, ...]) -> str | None:
    for text in addresses:
        try:
            parse_address(text)
        except AddressError as error:
            return str(error)
    return None


BROKER: tuple[Option, ...] = (
    Option("node.id", OptionType.INT, 1, "This broker's number; unique in a cluster.", low=0, high=2**31 - 1),
    Option(
        "cluster.name",
        OptionType.STRING,
        "braid",
        "The cluster's name in the metadata store; give each cluster its own where several share a store.",
        form="letters, digits, '.', '_' and '-'",
        check=_why_no_cluster_name,
    ),
    Option(
        "forward.listen",
        OptionType.STRING,
        "",
        "A second address, for clients that reach this broker only: it asks the others in their place. With"
        " --brokers N each broker has the next port.",
        form="HOST:PORT, or empty for none",
        check=_why_no_address,
    ),
    Option(
        "forward.advertise",
        OptionType.STRING,
        "",
        "The address that clients of forward.listen are sent to, if it is another one.",
        form="HOST:PORT, or empty for the one that is bound",
        check=_why_no_address,
    ),
    Option(
        "nameservers",
        OptionType.LIST,
        (),
        "Name servers that this broker registers with, all of them; clients may bootstrap from any.",
        form="HOST:PORT, with commas between them",
        check=_why_no_addresses,
    ),
    Option(
        "auto.create.topics.enable",
        OptionType.BOOL,
        True,
        "Create a topic when a client first asks for it; turn off where topics are managed by hand.",
    ),
    Option(
        "num.partitions",
        OptionType.INT,
        4,
        "Partitions of a new topic if its creator does not say; in a cluster the default is 4 for each broker"
        " that runs.",
        low=1,
        high=10_000,
    ),
    Option(
        "partitions.max",
        OptionType.INT,
        100_000,
        "Most partitions this broker holds; a guard against a client that creates too many.",
        low=1,
        high=10_000_000,
    ),
    Option(
        "net.connections.max",
        OptionType.INT,
        16_000,
        "Connections open at once; more are closed as they arrive. Capped by the open-file limit.",
        low=1,
        high=1_000_000,
    ),
    Option(
        "net.connections.per.ip.max",
        OptionType.INT,
        16_000,
        "Connections from one address; lower it so that one host cannot use up all of them.",
        low=1,
        high=1_000_000,
    ),
    Option(
        "net.frame.bytes.max",
        OptionType.INT,
        104_857_600,
        "Largest Produce request accepted; a longer one closes the connection.",
        "bytes",
        low=1024,
        high=2**31 - 1,
    ),
    Option(
        "net.request.bytes.max",
        OptionType.INT,
        16_777_216,
        "Largest request accepted that is not Produce: what it lists takes many times its size in memory."
        " A longer one closes the connection.",
        "bytes",
        low=65_536,
        high=2**31 - 1,
    ),
    Option(
        "net.inflight.bytes.max",
        OptionType.LONG,
        268_435_456,
        "Bytes of half-received requests held for all connections; past it, reading pauses.",
        "bytes",
        low=1_048_576,
        high=2**40,
    ),
    Option(
        "net.connection.requests.max",
        OptionType.INT,
        1_000,
        "Requests of one connection that may wait for an answer; past it, reading pauses.",
        low=1,
        high=1_000_000,
    ),
    Option(
        "net.connection.send.bytes.max",
        OptionType.INT,
        4_194_304,
        "Answers queued to a client that does not read; past it, its requests are not read.",
        "bytes",
        low=4096,
        high=2**31 - 1,
    ),
    Option(
        "produce.waiting.bytes.max",
        OptionType.LONG,
        134_217_728,
        "Batches held in memory until their coordinator lets them in, their partition is open, or those"
        " before them are recompressed; past it, more are refused with a code that producers retry.",
        "bytes",
        low=1_048_576,
        high=2**40,
    ),
    Option(
        "net.idle.ms",
        OptionType.LONG,
        600_000,
        "A connection silent for this long is closed.",
        "ms",
        low=1000,
        high=MS_PER_DAY,
    ),
    Option(
        "net.frame.timeout.ms",
        OptionType.LONG,
        60_000,
        "A request whose bytes take longer than this to arrive closes its connection.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "net.drain.ms",
        OptionType.LONG,
        5_000,
        "Time the broker gives pending answers when it stops.",
        "ms",
        low=0,
        high=600_000,
    ),
    Option(
        "loop.stall.limit.ms",
        OptionType.INT,
        200,
        "A turn of the event loop that takes longer is counted and logged with its stack. Lower it to find"
        " what makes all clients wait; raise it on a machine that is slow for other reasons.",
        "ms",
        low=10,
        high=60_000,
    ),
    Option(
        "fetch.wait.max.ms",
        OptionType.LONG,
        300_000,
        "Longest time a fetch waits for records, even if the client asks for more.",
        "ms",
        low=0,
        high=MS_PER_DAY,
    ),
    Option(
        "fetch.bytes.max",
        OptionType.INT,
        57_671_680,
        "Most bytes one fetch answer carries.",
        "bytes",
        low=1024,
        high=2**31 - 1,
    ),
    Option(
        "fetch.sessions.max",
        OptionType.INT,
        1_000,
        "Incremental fetch sessions kept; past it the idlest is dropped and its client starts a new one.",
        low=0,
        high=1_000_000,
    ),
    Option(
        "fetch.sessions.partitions.max",
        OptionType.INT,
        500_000,
        "Partitions remembered in all incremental fetch sessions together, and as many in all share sessions:"
        " what bounds their memory (some 400 bytes each).",
        low=1_000,
        high=100_000_000,
    ),
    Option(
        "log.files.open.max",
        OptionType.INT,
        1_024,
        "Segment and index files kept open; more partitions than this still work, reopening as needed.",
        low=16,
        high=1_000_000,
    ),
    Option(
        "log.sync.threads",
        OptionType.INT,
        4,
        "Threads that wait for the disk in group commits.",
        low=1,
        high=64,
    ),
    Option(
        "log.read.threads",
        OptionType.INT,
        4,
        "Threads that read what is not in memory: logs opened on first use, old bytes to be checked or sent."
        " More help a disk that serves many reads at once.",
        low=1,
        high=64,
    ),
    Option(
        "log.checkpoint.interval.ms",
        OptionType.LONG,
        5_000,
        "How often recovery points are written; shorter means less to check after a crash.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "log.retention.check.interval.ms",
        OptionType.LONG,
        10_000,
        "How often the broker looks for expired segments and checks how full the disk is.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "log.compaction.check.interval.ms",
        OptionType.LONG,
        15_000,
        "How often the broker looks for compacted topics with work to do.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "log.cleanup.hour",
        OptionType.INT,
        4,
        "Local hour in which retention of a day or more is applied, so that the work falls into a quiet"
        " time; -1 applies it at every check. Shorter retention and a filling disk never wait for it.",
        low=-1,
        high=23,
    ),
    Option(
        "disk.clean.percent",
        OptionType.INT,
        75,
        "Disk use at which expired segments are deleted at once.",
        "%",
        low=1,
        high=100,
    ),
    Option(
        "disk.force.percent",
        OptionType.INT,
        85,
        "Disk use at which the oldest segments are deleted, expired or not.",
        "%",
        low=1,
        high=100,
    ),
    Option(
        "disk.full.percent",
        OptionType.INT,
        95,
        "Disk use at which writes are refused; reads still work.",
        "%",
        low=1,
        high=100,
    ),
    Option(
        "producer.id.expiration.ms",
        OptionType.LONG,
        MS_PER_DAY,
        "An idempotent producer silent for this long is forgotten.",
        "ms",
        low=1000,
        high=365 * MS_PER_DAY,
    ),
    Option(
        "producer.ids.per.partition.max",
        OptionType.INT,
        10_000,
        "Idempotent producers remembered per partition; past it the longest silent is forgotten.",
        low=1,
        high=10_000_000,
    ),
)
