"""OpenAPI responses of events."""

from services.registry_api.wire.examples.responses import COMMON, NO_VOICE, Responses

EVENTS: Responses = {
    200: {
        "description": "Server-sent events, without end. `event` is the type, `data` a `RegistryEvent` as "
        "JSON, and `id` the place behind the event.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": "id: 179546877500-1795468776054-0\\nevent: voice.deleted\\n"
                'data: {"at":1795468776.05,"id":"179546877500-1795468776054-0","object":"event",'
                '"type":"voice.deleted","voice_slug":"alice"}\\n\\n',
            }
        },
    },
    **COMMON,
    404: NO_VOICE,
}
