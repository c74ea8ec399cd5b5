"""Options of a broker's place in a cluster: where the metadata is, and where the broker stands."""

from __future__ import annotations

from braidmq.config.option import Option, OptionType

CLUSTER: tuple[Option, ...] = (
    Option(
        "store",
        OptionType.STRING,
        "file",
        "Where the cluster's metadata is kept: in the broker's own directory, or where several brokers share"
        " it.",
        form="file | unix:PATH | braid://HOST:PORT | etcd://HOST:PORT,…",
    ),
    Option(
        "store.token.file",
        OptionType.STRING,
        "",
        "The file with the token that a metadata store at braid://HOST:PORT asks for.",
        form="a file's path",
    ),
    Option(
        "rack",
        OptionType.STRING,
        "",
        "The rack or zone this broker stands in; replicas go to different racks first.",
        form="any text",
    ),
    Option(
        "host.name",
        OptionType.STRING,
        "",
        "The machine this broker runs on, if its own name does not say; replicas go to different machines.",
        form="any text",
    ),
    Option(
        "replace",
        OptionType.BOOL,
        False,
        "Let this data directory take over the node id of one that is lost for good.",
    ),
    Option(
        "cluster.lease.ms",
        OptionType.INT,
        3000,
        "How long a broker that is silent counts as alive; raise it where machines stall for longer.",
        "ms",
        low=2000,
        high=600_000,
    ),
    Option(
        "cluster.lease.renew.ms",
        OptionType.INT,
        750,
        "How often a broker says that it is alive; at most a third of cluster.lease.ms makes sense.",
        "ms",
        low=50,
        high=200_000,
    ),
    Option(
        "etcd.compact",
        OptionType.BOOL,
        True,
        "Let the controller compact etcd's history after an hour; turn off where others share the etcd.",
    ),
)
