"""Share groups that have neither members nor delivery state are forgotten, as other groups are."""

from __future__ import annotations

import logging

from braidmq.broker.group_shards import GroupShards
from braidmq.broker.share_persister import SharePersister
from braidmq.group.share_group import ShareGroup
from braidmq.wire.errors import ApiError

log = logging.getLogger("braid.share")


async def expire_share_groups(groups: GroupShards, persister: SharePersister) -> None:
    """Deletes the groups of this broker's shards of which nothing is left on any broker."""
    reading = persister.groups_kept_here()
    for group in list(groups.all_groups()):
        if not isinstance(group, ShareGroup) or group.members or group.group_id in reading:
            continue
        try:
            if not await persister.of_group(group.group_id) and not group.members:
                await groups.of(group.group_id).delete_group(group.group_id)
        except ApiError as error:
            log.info("group %s is kept for now: %s", group.group_id, error)
