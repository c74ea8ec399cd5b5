"""Options of transactions."""

from __future__ import annotations

from braidmq.config.option import MS_PER_DAY, Option, OptionType

TRANSACTIONS: tuple[Option, ...] = (
    Option(
        "transaction.max.timeout.ms",
        OptionType.INT,
        15 * 60 * 1000,
        "The longest a producer may let a transaction stay open before it is aborted.",
        "ms",
        low=1,
        high=MS_PER_DAY,
    ),
    Option(
        "transactional.id.expiration.ms",
        OptionType.LONG,
        7 * MS_PER_DAY,
        "A transactional id without a transaction for this long is forgotten.",
        "ms",
        low=1,
        high=365 * MS_PER_DAY,
    ),
    Option(
        "transactional.ids.max",
        OptionType.INT,
        100_000,
        "Transactional ids remembered at once; past it new ones are refused.",
        low=1,
        high=10_000_000,
    ),
)
