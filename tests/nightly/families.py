#!/usr/bin/env python3
"""Writes small models with random weights and what transformers computes of them.

    families.py FOLDER

Each family of docs/engine.md becomes a folder FOLDER/NAME as its models are published: config.json and
model.safetensors. Beside them lie tokens.json, and logits.f32: the logits of each token in single precision.
tests/unit/model/transformers_test.cc compares them. Exits with 77 where a package is absent.
"""
import json
import pathlib
import sys

try:
    import torch
    import transformers
except ImportError:
    print('SKIP: no packages torch and transformers')
    sys.exit(77)

TOKENS, WINDOW = 110, 40
BASE = dict(vocab_size=61, hidden_size=48, intermediate_size=40, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
            pad_token_id=0, attn_implementation='eager')
LATENT = dict(num_key_value_heads=4, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
              moe_intermediate_size=24, n_shared_experts=2, first_k_dense_replace=1, rms_norm_eps=1e-6)
YARN = dict(rope_type='yarn', rope_theta=10000.0, factor=40.0, beta_fast=32, beta_slow=1, mscale=0.707,
            mscale_all_dim=0.707, original_max_position_embeddings=64)
PLAIN = dict(rope_type='default', rope_theta=10000.0)
FAMILIES = {
    'llama': ('LlamaConfig', dict(head_dim=16)),
    'llama3': ('LlamaConfig', dict(head_dim=16, rope_parameters=dict(
        rope_type='llama3', rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64))),
    'mistral': ('MistralConfig', dict(head_dim=16, sliding_window=WINDOW)),
    'qwen2': ('Qwen2Config', dict(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=3)),
    'qwen3': ('Qwen3Config', dict(head_dim=16)),
    'gemma2': ('Gemma2Config', dict(head_dim=16, sliding_window=WINDOW, query_pre_attn_scalar=16,
                                    attn_logit_softcapping=1.5, final_logit_softcapping=2.0)),
    'gemma3': ('Gemma3TextConfig', dict(head_dim=16, sliding_window=WINDOW, query_pre_attn_scalar=16,
                                        num_hidden_layers=7)),
    'mixtral': ('MixtralConfig', dict(head_dim=16, num_local_experts=5, num_experts_per_tok=2, sliding_window=None)),
    'qwen2_moe': ('Qwen2MoeConfig', dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24,
                                         shared_expert_intermediate_size=56)),
    'qwen3_moe': ('Qwen3MoeConfig', dict(head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24,
                                         norm_topk_prob=True)),
    'phi3': ('Phi3Config', dict(sliding_window=WINDOW)),
    'smollm3': ('SmolLM3Config', dict(no_rope_layers=[1, 1, 1, 0])),
    'deepseek2_lite': ('DeepseekV2Config', dict(LATENT, q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=2,
                                                topk_method='greedy', rope_parameters=YARN)),
    'deepseek2': ('DeepseekV2Config', dict(LATENT, q_lora_rank=20, n_routed_experts=8, num_experts_per_tok=3,
                                           topk_method='group_limited_greedy', n_group=4, topk_group=2,
                                           routed_scaling_factor=16.0, rope_parameters=dict(YARN, mscale=1.0))),
    'deepseek3': ('DeepseekV3Config', dict(LATENT, q_lora_rank=20, n_routed_experts=8, num_experts_per_tok=3,
                                           n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
                                           rope_parameters=PLAIN)),
}


def seeded(model):
    """Weights that keep activations in range, norms about 1, biases that change what is chosen."""
    torch.manual_seed(5)
    named = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if 'correction_bias' in n]
    with torch.no_grad():
        for name, values in named:
            if values.dim() > 1:
                values.uniform_(-1, 1).mul_((3 / values.shape[-1]) ** 0.5)
            elif 'bias' in name:
                values.uniform_(-0.3, 0.3)
            else:  # Gemma's norms hold what is above 1
                values.uniform_(-0.3, 0.3).add_(0 if 'gemma' in model.config.model_type else 1)


def write(folder, name):
    kind, own = FAMILIES[name]
    config = getattr(transformers, kind)(**{**BASE, **own})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    seeded(model)
    model.save_pretrained(folder)
    # The random weights are those of the file, and so is what was computed.
    tokens = torch.randint(0, BASE['vocab_size'], (1, TOKENS), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits[0].float()
    (folder / 'tokens.json').write_text(json.dumps(tokens[0].tolist()))
    (folder / 'logits.f32').write_bytes(logits.numpy().tobytes())


def main():
    into = pathlib.Path(sys.argv[1])
    for name in FAMILIES:
        write(into / name, name)
    print(f'{len(FAMILIES)} families by transformers {transformers.__version__}, torch {torch.__version__}')


main()
