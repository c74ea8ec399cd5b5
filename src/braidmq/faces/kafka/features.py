"""UpdateFeatures: levels of features are those of the software that runs, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.faces.kafka.metadata import FEATURES
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.versions import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_UPGRADE_TYPES = (1, 2, 3)
"""Upgrade, and downgrades that are safe or unsafe."""


def update_features(
    face: KafkaFace, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Done if every feature is to have the level it has; else nothing is changed, and the answer says why."""
    for update in request.feature_updates:
        complaint = _complaint(update)
        if complaint is not None:
            return UpdateFeaturesResponse(
                error_code=int(ErrorCode.INVALID_UPDATE_VERSION),
                error_message=f"nothing was updated: {complaint}",
            )
    return UpdateFeaturesResponse(
        results=[UpdatableFeatureResult(feature=update.feature) for update in request.feature_updates]
    )


def _complaint(update: FeatureUpdateKey) -> str | None:
    level = FEATURES.get(update.feature)
    if level is None:
        return f"there is no feature {update.feature[:60]!r} here; there are {', '.join(sorted(FEATURES))}"
    if update.upgrade_type not in _UPGRADE_TYPES:
        return f"{update.feature}: upgrade type {update.upgrade_type} is not one of 1, 2 and 3"
    if update.max_version_level != level:
        return f"{update.feature} cannot have level {update.max_version_level}; this broker has {level} only"
    return None
