"""OpenAPI responses of campaigns."""

from services.registry_api.wire.examples.responses import (
    COMMON,
    DIGEST,
    INVALID,
    READ,
    VUID,
    Responses,
    error,
    json_answer,
    linked_answer,
    page_of,
)
from speaker_registry import schemas

_OF_THE_CAMPAIGN = {"profile": "$response.body#/profile", "campaign_id": "$response.body#/id"}
_ABOUT_THE_CAMPAIGN = {
    "get_campaign": _OF_THE_CAMPAIGN,
    "pause_campaign": _OF_THE_CAMPAIGN,
    "resume_campaign": _OF_THE_CAMPAIGN,
    "cancel_campaign": _OF_THE_CAMPAIGN,
}

_CAMPAIGN = {
    "object": "campaign",
    "id": VUID,
    "profile": "qwen3-tts-0.6b",
    "fingerprint": DIGEST,
    "state": "running",
    "rate": 50.0,
    "promotes": False,
    "progress": {"voices": 10000, "ready": 4180, "failed": 2, "skipped": 18, "under_way": 64},
    "coverage": 0.4198,
    "per_second": 48.9,
    "eta_seconds": 118.6,
    "sample": {
        "wanted": 20,
        "compared": 20,
        "tensors": {
            "ref_code": {"measure": "equal", "mean": 0.983, "lowest": 0.941},
            "speaker_embedding": {"measure": "cosine", "mean": 0.9998, "lowest": 0.9991},
        },
    },
    "created_at": 1775133885.2,
    "changed_at": 1775133885.2,
}

_NO_CAMPAIGN = error(
    "The profile or the campaign does not exist.",
    f"There is no campaign '{VUID}' of profile 'qwen3-tts-0.6b'. GET "
    "/v1/profiles/qwen3-tts-0.6b/campaigns lists them.",
    "campaign_not_found",
    "not_found_error",
)

STARTED: Responses = {
    201: linked_answer(_ABOUT_THE_CAMPAIGN, "The campaign goes on by itself.", _CAMPAIGN, schemas.Campaign),
    **COMMON,
    400: error(
        "A field is invalid. `param` names it, and the message says what is accepted.",
        "'sample' is 0; accepted: 1 to 200.",
        "invalid_request",
    ),
    404: error(
        "The profile does not exist, or no worker ever came with this fingerprint for it.",
        f"No worker ever came with {DIGEST} for profile 'qwen3-tts-0.6b'. GET /v1/profiles lists the "
        "candidates and the former fingerprints of each profile.",
        "encoder_unknown",
        "not_found_error",
    ),
    409: error(
        "The encoder is the current one (`encoder_current`), no live worker has it (`encoder_unserved`), or "
        "another campaign of the profile is not over (`campaign_open`).",
        f"Campaign '{VUID}' of profile 'qwen3-tts-0.6b' for {DIGEST} is running. Wait until it is over, or "
        "cancel it first.",
        "campaign_open",
        "conflict_error",
    ),
    413: error(
        "The request body is too large.",
        "The body has 70000 bytes; accepted here: 65536.",
        "payload_too_large",
    ),
}

CAMPAIGN_BODY = {
    "requestBody": {
        "content": {
            "application/json": {"example": {"fingerprint": DIGEST, "sample": 20, "rate": 50.0}},
        },
    }
}

CAMPAIGNS: Responses = {
    200: json_answer("A page of campaigns.", page_of(_CAMPAIGN, VUID), schemas.Page[schemas.Campaign]),
    **READ,
    400: INVALID,
    404: _NO_CAMPAIGN,
}

CAMPAIGN: Responses = {
    200: json_answer("The campaign.", _CAMPAIGN, schemas.Campaign),
    **READ,
    400: INVALID,
    404: _NO_CAMPAIGN,
}

CHANGED: Responses = {
    200: json_answer(
        "The campaign after the change. A change that was made already is no error.",
        {**_CAMPAIGN, "state": "paused", "per_second": None, "eta_seconds": None},
        schemas.Campaign,
    ),
    **COMMON,
    400: INVALID,
    404: _NO_CAMPAIGN,
    409: error(
        "The campaign is over. `x-should-retry: false`.",
        f"Campaign '{VUID}' is complete; only one that is running or paused can be changed.",
        "campaign_ended",
        "conflict_error",
    ),
}
