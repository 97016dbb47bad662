"""The suite models of greenfast_bench.ab: attention as published models have it, lengths, groups of heads and masks as they are.

docs/models.md lists each with its source and where it was read; rows join it before anything is tuned to them.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    source: str  # whose configuration says so
    shape: str  # BxHxSxD, as --shapes
    causal: bool
    what: str  # where the lengths come from
    address: str  # where it was read: repository and paths, or "not verified"


# Where more rows than one were read.
BERT = "google-research/bert: README.md, modeling.py"
CLIP = "openai/CLIP: clip/model.py; mlfoundations/open_clip: src/open_clip/model_configs/ViT-L-14.json"
GEMMA = "google/gemma_pytorch: gemma/config.py"
LITGPT = "Lightning-AI/litgpt: litgpt/config.py"
SD35 = ("huggingface.co/frankjoshua/stable-diffusion-3.5-large: transformer/config.json; "
        "huggingface/diffusers: src/diffusers/pipelines/stable_diffusion_3/pipeline_stable_diffusion_3.py")
SDXL = "Stability-AI/generative-models: configs/inference/sd_xl_base.yaml, sgm/modules/encoders/modules.py"
VIT = "google-research/vision_transformer: vit_jax/configs/models.py"
WHISPER = "huggingface.co/FL33TW00D-HF/whisper-large-v3: config.json"

MODELS = [
    Model("ViT-B/16", "google/vit-base-patch16-224", "32x12x197x64", False, "224 px: 14² patches and a class token", VIT),
    Model("ViT-L/16", "google/vit-large-patch16-384", "8x16x577x64", False, "384 px: 24² patches and a class token", VIT),
    Model("DINOv2-g/14", "facebook/dinov2-giant", "2x24x1370x64", False, "518 px: 37² patches and a class token",
          "facebookresearch/dinov2: dinov2/models/vision_transformer.py, dinov2/configs/eval/vitg14_pretrain.yaml"),
    Model("SigLIP SO400M/14", "google/siglip-so400m-patch14-384", "8x16x729x72", False, "384 px: 27² patches",
          "google-research/big_vision: big_vision/models/vit.py"),
    Model("CLIP L/14, images", "openai/clip-vit-large-patch14", "32x16x257x64", False, "224 px: 16² patches and a class token", CLIP),
    Model("CLIP L/14, text", "openai/clip-vit-large-patch14", "64x12x77x64", True, "its context", CLIP),
    Model("BERT-base", "google-bert/bert-base-uncased", "32x12x512x64", False, "max_position_embeddings", BERT),
    Model("BERT-large", "google-bert/bert-large-uncased", "8x16x384x64", False, "the length that SQuAD is fine-tuned with", BERT),
    Model("ModernBERT-base", "answerdotai/ModernBERT-base", "1x12x8192x64", False, "max_position_embeddings, a global layer",
          "huggingface/transformers: src/transformers/models/modernbert/configuration_modernbert.py"),
    Model("Whisper large-v3, encoder", "openai/whisper-large-v3", "4x20x1500x64", False, "max_source_positions: 30 s", WHISPER),
    Model("Whisper large-v3, cross", "openai/whisper-large-v3", "8x20x448/1500x64", False, "max_target_positions over the encoder's",
          WHISPER),
    Model("SDXL, self", "stabilityai/stable-diffusion-xl-base-1.0", "2x10x4096x64", False, "1024 px: 64² of the second level, with guidance",
          SDXL),
    Model("SDXL, cross", "stabilityai/stable-diffusion-xl-base-1.0", "2x10x4096/77x64", False, "the same over a prompt of CLIP", SDXL),
    Model("SD 3.5 large", "stabilityai/stable-diffusion-3.5-large", "1x38x4429x64", False, "1024 px: 64² patches, 77 + 256 of text", SD35),
    Model("FLUX.1", "black-forest-labs/FLUX.1-dev", "1x24x4608x128", False, "1024 px: 64² patches, 512 of text",
          "black-forest-labs/flux: src/flux/util.py, src/flux/cli.py"),
    Model("Wan 2.1 1.3B, self", "Wan-AI/Wan2.1-T2V-1.3B", "1x12x32760x128", False, "81 frames of 832x480: 21 x 30 x 52",
          "Wan-Video/Wan2.1: wan/configs/wan_t2v_1_3B.py, generate.py"),
    Model("Wan 2.1 14B, cross", "Wan-AI/Wan2.1-T2V-14B", "1x40x32760/512x128", False, "the same over text_len",
          "Wan-Video/Wan2.1: wan/configs/wan_t2v_14B.py, wan/configs/shared_config.py, generate.py"),
    Model("Llama 3.2 1B", "meta-llama/Llama-3.2-1B", "2x32/8x2048x64", True, "a prompt", LITGPT),
    Model("Llama 3.1 8B", "meta-llama/Llama-3.1-8B", "1x32/8x4096x128", True, "a prompt", LITGPT),
    Model("Llama 3.1 8B, long", "meta-llama/Llama-3.1-8B", "1x32/8x16384x128", True, "a long prompt", LITGPT),
    Model("Llama 3.1 70B", "meta-llama/Llama-3.1-70B", "1x64/8x8192x128", True, "a prompt", LITGPT),
    Model("Mixtral 8x22B", "mistralai/Mixtral-8x22B-v0.1", "1x48/8x2000x128", True, "a prompt", LITGPT),
    Model("Qwen2.5 7B", "Qwen/Qwen2.5-7B", "1x28/4x3001x128", True, "a prompt of no round length", LITGPT),
    Model("Qwen3 0.6B", "Qwen/Qwen3-0.6B", "4x16/8x1000x128", True, "prompts", LITGPT),
    Model("Qwen3 30B-A3B", "Qwen/Qwen3-30B-A3B", "1x32/4x8192x128", True, "a prompt", LITGPT),
    Model("Falcon 7B", "tiiuae/falcon-7b", "1x71/1x2048x64", True, "its context", LITGPT),
    Model("Phi-3 mini", "microsoft/Phi-3-mini-128k-instruct", "1x32x4096x96", True, "a prompt", LITGPT),
    Model("Gemma 2 9B", "google/gemma-2-9b", "1x16/8x4096x256", True, "a global layer, without its softcap, which no peer here has", GEMMA),
    Model("Gemma 3 4B", "google/gemma-3-4b-pt", "1x8/4x8192x256", True, "a global layer", GEMMA),
    Model("Gemma 3 27B", "google/gemma-3-27b-pt", "1x32/16x4096x128", True, "a global layer", GEMMA),
    Model("GLM-4 9B", "zai-org/glm-4-9b", "1x32/2x2500x128", True, "a prompt",
          "huggingface/transformers: src/transformers/models/glm/configuration_glm.py"),
    Model("GLM-4.5", "zai-org/GLM-4.5", "1x96/8x4096x128", True, "a prompt", "THUDM/slime: scripts/models/glm4.5-355B-A32B.sh"),
    Model("gpt-oss", "openai/gpt-oss-120b", "1x64/8x4096x64", True, "a layer without a window, without its sinks, which no peer here has",
          "openai/gpt-oss: gpt_oss/torch/model.py"),
    Model("DeepSeek V2 Lite", "deepseek-ai/DeepSeek-V2-Lite", "2x16x2048x192/128", True, "a prompt before the latents are absorbed",
          "deepseek-ai/DeepSeek-V3: inference/configs/config_16B.json"),
    Model("DeepSeek V3", "deepseek-ai/DeepSeek-V3", "1x128x4096x192/128", True, "the same",
          "deepseek-ai/DeepSeek-V3: inference/configs/config_671B.json"),
]
