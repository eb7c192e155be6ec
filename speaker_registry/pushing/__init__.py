"""Keeps the uploaded voices of a running TTS server equal to the registry, over the server's own HTTP routes.

The routes are those of vLLM-Omni 0.30 with one API process, which SGLang-Omni has as well. `speech_server`
knows the routes and no registry, `names` makes the names that voices have there, `pushed` finds the voices
that were pushed, and `pusher` decides what is uploaded and deleted.
"""

SERVERS = ("vllm-omni", "sglang-omni")
"""The kinds of servers that voices can be pushed to."""
DEFAULT_SLOTS = 1000
"""The number of uploads that these servers accept unless they are configured otherwise."""
