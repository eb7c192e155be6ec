"""The plugin of vLLM-Omni 0.30, installed as `speaker-registry[vllm-omni]`.

It keeps the speaker cache of every process filled with the registry's artifacts, and the uploaded voices of
the API processes equal to the registry. vLLM-Omni finds it by its entry point `vllm_omni.general_plugins`.
"""
