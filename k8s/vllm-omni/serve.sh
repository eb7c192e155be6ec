#!/bin/sh
# Starts vLLM-Omni with the voices in /voices: its own deploy configuration of Qwen3-TTS, and the folder.
set -eu
package=$(python3 -c 'from importlib.util import find_spec; print(*find_spec("vllm_omni").submodule_search_locations)')
cat > /tmp/deploy.yaml <<END
base_config: $package/deploy/qwen3_tts.yaml
custom_voice_dir: /voices
END
exec vllm serve Qwen/Qwen3-TTS-12Hz-0.6B-Base --omni --deploy-config /tmp/deploy.yaml --host 0.0.0.0 --port 8091
