"""Runs the code with which engines themselves encode a voice, for `benchmarks.extraction`: at the published
sizes, with the random weights that their classes start with. Each makes of a clip what our artifact holds.

    <interpreter> -m benchmarks.reference_encoders <profile> <load>

The docstrings of tools/make_*_goldens.py describe the interpreter's environment. Their code knows how to
import each package, and each is imported only when it is needed. Results are not compared here: the parity
tests do that.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.encoder_timing import Load, Samples, measure

Extract = Callable[[Samples], object]
"""A function that returns when the results are on the CPU."""


def qwen3_tts(width: int, device: str) -> Extract:
    """qwen-tts. Its tokenizer computes all 32 codebooks, of which it keeps 16. Its decoder is a tiny one."""
    maker = import_module("tools.make_qwen3_tts_goldens")
    core = import_module("qwen_tts.core")
    encoder = maker.Qwen3TTSSpeakerEncoder(maker.Qwen3TTSSpeakerEncoderConfig(enc_dim=width))
    encoder = encoder.to(device).eval()
    tokenizer = maker.Qwen3TTSTokenizer()
    config = core.Qwen3TTSTokenizerV2Config(decoder_config=maker.CODEC_DECODER)
    tokenizer.model = core.Qwen3TTSTokenizerV2Model(config).to(device).eval()
    tokenizer.feature_extractor = import_module("transformers").EncodecFeatureExtractor()
    tokenizer.config, tokenizer.device = tokenizer.model.config, tokenizer.model.device

    def extract(samples: Samples) -> object:
        mel = maker.mel(torch.from_numpy(samples))[None].to(device)  # [1, M, 128]
        return encoder(mel).cpu(), tokenizer.encode(samples, sr=24_000).audio_codes[0].cpu()

    return extract


def fish_speech(device: str) -> Extract:
    """fish-speech 0.1.0, with the sizes of its own configuration. Its codec includes its decoder."""
    import_module("tools.make_fish_speech_goldens").replace_unneeded_packages()
    library = import_module("fish_speech.models.dac.modded_dac")
    rvq = import_module("fish_speech.models.dac.rvq")
    shared = {"n_local_heads": -1, "head_dim": 64, "rope_base": 10_000, "norm_eps": 1e-5}
    shared |= {"channels_first": True}
    attention = {"n_layer": 8, "n_head": 16, "dim": 1024, "intermediate_size": 3072}
    around = library.ModelArgs(block_size=4096, **attention, **shared)
    transformer = partial(
        library.WindowLimitedTransformer, causal=True, window_size=128, input_dim=1024, config=around
    )
    quantizer = rvq.DownsampleResidualVectorQuantize(
        input_dim=1024,
        n_codebooks=9,
        codebook_size=1024,
        codebook_dim=8,
        downsample_factor=[2, 2],
        post_module=transformer(),
        pre_module=transformer(),
        semantic_codebook_size=4096,
    )
    codec = library.DAC(
        encoder_dim=64,
        encoder_rates=[2, 4, 8, 8],
        decoder_dim=1536,
        decoder_rates=[8, 8, 4, 2],
        quantizer=quantizer,
        sample_rate=44_100,
        causal=True,
        encoder_transformer_layers=[0, 0, 0, 4],
        decoder_transformer_layers=[4, 0, 0, 0],
        transformer_general_config=partial(library.ModelArgs, block_size=16_384, **shared),
    )
    return codes_with_lengths(codec, device)


def audio8(device: str) -> Extract:
    """vLLM-Omni's copy of Audio8's codec."""
    import_module("tools.make_fish_speech_goldens").replace_unneeded_packages()
    library = import_module("vllm_omni.model_executor.models.audio8_tts.codec")
    return codes_with_lengths(library.build_arktts_codec(), device)


def codes_with_lengths(codec: Any, device: str) -> Extract:
    codec = codec.to(device).eval()

    def extract(samples: Samples) -> object:
        lengths = torch.tensor([len(samples)], device=device)
        return codec.encode(torch.from_numpy(samples)[None, None].to(device), lengths)[0].cpu()

    return extract


def cosyvoice3(device: str) -> Extract:
    """s3tokenizer, and onnxruntime with vLLM-Omni's session options and features."""
    maker = import_module("tools.make_cosyvoice3_goldens")
    functions, _ = maker.reference_modules()
    tokenizer = maker.S3TokenizerV3("speech_tokenizer_v3").to(device).eval()
    options = maker.onnxruntime.SessionOptions()
    options.graph_optimization_level = maker.onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = 1
    session = maker.onnxruntime.InferenceSession(
        maker.untrained_campplus(0), sess_options=options, providers=["CPUExecutionProvider"]
    )

    def extract(samples: Samples) -> object:
        at_16 = maker.resample_poly(samples, 2, 3).astype("float32")
        mel = maker.s3tokenizer.log_mel_spectrogram(torch.from_numpy(at_16))
        mels, lengths = maker.s3tokenizer.padding([mel])
        tokens, _ = tokenizer.quantize(mels.to(device), lengths.to(device))
        feat = functions.mel_spectrogram(torch.from_numpy(samples)[None], **maker.MEL)
        return tokens.cpu(), feat, functions.extract_spk_embedding((samples, 24_000), session, "cpu")

    return extract


def ming_tts(_: str) -> Extract:
    """vLLM-Omni's class, which always runs on the CPU."""
    maker = import_module("tools.make_cosyvoice3_goldens")
    _, classes = maker.reference_modules()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "campplus.onnx"
        path.write_bytes(maker.untrained_campplus(0))
        embed = classes.SpkembExtractor(str(path))
    return lambda samples: embed(torch.from_numpy(samples)[None])


def voxcpm2(device: str) -> Extract:
    """voxcpm, from a WAV file in memory, for both kinds of padding."""
    maker = import_module("tools.make_voxcpm2_goldens")
    engine = maker.only_the_model()
    vae = engine.AudioVAEV2(engine.AudioVAEConfigV2()).to(device).eval()
    model = SimpleNamespace(
        audio_vae=vae,
        patch_size=maker.PATCH_FRAMES,
        chunk_size=vae.chunk_size,
        _encode_sample_rate=vae.sample_rate,
        device=device,
    )

    def extract(samples: Samples) -> object:
        wav = BytesIO()
        maker.soundfile.write(wav, samples, maker.RATE, subtype="FLOAT", format="WAV")
        return [encoded(wav, side) for side in ("right", "left")]

    def encoded(wav: BytesIO, side: str) -> Any:
        wav.seek(0)
        return engine.VoxCPM2Model._encode_wav(model, wav, padding_mode=side)

    return extract


def higgs_audio(device: str) -> Extract:
    """transformers, together with torchaudio. Its class includes its decoder."""
    maker = import_module("tools.make_higgs_audio_goldens")
    acoustic = {"encoder_hidden_size": 64, "decoder_hidden_size": 1024, "hidden_size": 256}
    config = maker.HiggsAudioV2TokenizerConfig(
        acoustic_model_config=maker.CONFIG["acoustic_model_config"] | acoustic,
        semantic_model_config={"model_type": "hubert", "mask_time_prob": 0.0},
        target_bandwidths=[0.5, 1, 1.5, 2],
    )
    tokenizer = maker.HiggsAudioV2TokenizerModel(config).to(device).eval()

    def extract(samples: Samples) -> object:
        return tokenizer.encode(torch.from_numpy(samples)[None, None].to(device), return_dict=False)[0].cpu()

    return extract


def ecapa(device: str) -> Extract:
    """SpeechBrain."""
    maker = import_module("tools.make_ecapa_voxceleb_goldens")
    model = maker.ECAPA_TDNN(80, **maker.PUBLISHED).eval()
    maker.randomize_norms(model)
    classifier = maker.classifier(model, device)
    return lambda samples: classifier.encode_batch(torch.from_numpy(samples)[None]).cpu()


def dac(profile: str, device: str) -> Extract:
    """descript-audio-codec. Its codec includes its decoder."""
    maker = import_module("tools.make_dac_goldens")
    rate, ratios, books = maker.MODELS[profile]
    codec = maker.codec_class()(
        encoder_dim=64, encoder_rates=ratios, decoder_rates=ratios[::-1], n_codebooks=books, sample_rate=rate
    )
    codec = codec.to(device).eval()
    return lambda samples: codec.encode(maker.padded(codec, torch.from_numpy(samples)).to(device))[1].cpu()


def speech_tokenizer(device: str) -> Extract:
    maker = import_module("tools.make_speech_tokenizer_goldens")
    model = maker.package().model.SpeechTokenizer(maker.PUBLISHED).to(device).eval()
    return lambda samples: model.encode(torch.from_numpy(samples)[None, None].to(device)).cpu()


REFERENCES: Mapping[str, Callable[[str], Extract]] = {
    "qwen3-tts-0.6b": partial(qwen3_tts, 1024),
    "qwen3-tts-1.7b": partial(qwen3_tts, 2048),
    "fish-speech-s2-pro": fish_speech,
    "audio8": audio8,
    "cosyvoice3-0.5b": cosyvoice3,
    "voxcpm2": voxcpm2,
    "ming-tts": ming_tts,
    "omnivoice": higgs_audio,
    "higgs-audio-v2": higgs_audio,
    "higgs-audio-v3": higgs_audio,
    "ecapa-voxceleb": ecapa,
    **{name: partial(dac, name) for name in ("dac-16khz", "dac-24khz", "dac-44khz")},
    "speechtokenizer": speech_tokenizer,
}
"""Profile -> function that loads its reference onto a device, given torch's name of the device."""


def main(profile: str, load: Load) -> None:
    """Measure one profile. Mixed clips are encoded one by one, as engines do."""
    torch.manual_seed(0)
    extract = REFERENCES[profile](load.device)

    def one_by_one(clips: Sequence[Samples]) -> None:
        for clip in clips:
            extract(clip)

    with torch.inference_mode():
        measure(load, extract, one_by_one)


if __name__ == "__main__":
    main(sys.argv[1], Load.parse(sys.argv[2]))
