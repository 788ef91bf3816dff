"""An attention backend for vLLM 0.26.0: each step's block tables become one plan, which reads blocks that requests share once for all of them.

    import vllm_backend

    vllm_backend.register()
    llm = vllm.LLM(model, attention_backend="CUSTOM")

vLLM's prefix cache makes block tables that begin alike; nothing else is needed, and no heuristic says when: the planner's cost model does. On CPUs vLLM knows one
backend only, whose place it takes. It works eagerly and with piecewise CUDA graphs. The process that runs the model has to call register(): set
VLLM_ENABLE_V1_MULTIPROCESSING=0, or call it from a plug-in of vLLM (vllm.general_plugins). Run as a program, it measures groups of samples that share prompts:

    python vllm_backend.py MODEL [--backend coppice|default] [--groups 16] [--samples 32] [--prompt 2048] [--tokens 64] [--load-format dummy] [--out TOKENS.json]
"""

import argparse
import dataclasses
import json
import os
import random
import sys
import time

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata, AttentionMetadataBuilder, AttentionType, MultipleOf
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.backends.utils import get_kv_cache_layout

from coppice_llm import attention

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def register():
    """Makes the backend vLLM's CUSTOM, and on CPUs its only one."""
    for name in (AttentionBackendEnum.CUSTOM, AttentionBackendEnum.CPU_ATTN):
        register_backend(name, f"{__name__ if __name__ != '__main__' else 'vllm_backend'}.CoppiceBackend")


class CoppiceBackend(AttentionBackend):
    supported_dtypes = list(DTYPES)
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return CoppiceImpl

    @staticmethod
    def get_builder_cls():
        return CoppiceBuilder

    @staticmethod
    def get_supported_kernel_block_sizes():
        return [MultipleOf(8)]

    @classmethod
    def supports_head_size(cls, head_size):
        return head_size % 8 == 0 and head_size <= 256

    @classmethod
    def supports_sliding_window(cls):
        return True

    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"):
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension=False):
        tokens_first = get_kv_cache_layout() == "NHD"
        if include_num_layers_dimension:
            return (1, 0, 3, 2, 4) if tokens_first else (1, 2, 0, 3, 4)
        return (0, 2, 1, 3) if tokens_first else (0, 1, 2, 3)


@dataclasses.dataclass
class CoppiceMetadata(AttentionMetadata):
    plans: dict  # CoppiceImpl.form -> attention.Plan: one for all layers of a form


class GrowingPlan:
    """A plan of one form of attention whose capacity follows its forests."""

    def __init__(self, device, **form):
        self.device, self.form, self.plan, self.room = device, form, None, {}

    def of(self, forest):
        need = forest.capacity()
        del need["page_size"]
        if any(self.room.get(name, 0) < count for name, count in need.items()):
            self.room = {name: max(self.room.get(name, 0), 2 * count) for name, count in need.items()}
            self.plan = attention.Plan(self.device, forest, **self.form, **self.room)
        else:
            self.plan.update(forest)
        return self.plan


class CoppiceBuilder(AttentionMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.NEVER  # of attention: pieces between are captured

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = get_layers_from_vllm_config(vllm_config, Attention, layer_names)
        attend_on = device_of(device)
        self.plans = {impl.form: GrowingPlan(attend_on, **impl.plan_form(kv_cache_spec)) for impl in (layer.impl for layer in layers.values())}

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        if common.causal is not True:
            raise NotImplementedError(f"causal={common.causal!r}: expected True")
        lengths = common.seq_lens_cpu_upper_bound  # what they are, but for asynchronous drafts
        if lengths is None or self.vllm_config.speculative_config is not None:
            lengths = common.seq_lens.cpu()
        counts = common.query_start_loc_cpu.diff()[:common.num_reqs]
        lengths, counts = lengths[:common.num_reqs].numpy(), counts.numpy()
        present = (counts > 0) & (lengths > 0)  # others pad the batch
        block_size = self.kv_cache_spec.block_size
        columns = -(-int(lengths.max(initial=0)) // block_size)
        tables = common.block_table_tensor[:common.num_reqs, :columns].cpu().numpy()
        forest = attention.Forest.of_page_tables(tables[present], lengths[present], counts[present], block_size)
        return CoppiceMetadata({form: plan.of(forest) for form, plan in self.plans.items()})


class CoppiceImpl(AttentionImpl):
    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None, kv_cache_dtype="auto", logits_soft_cap=None,
                 attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None, sinks=None):
        for name, value in (("alibi_slopes", alibi_slopes), ("sinks", sinks), ("attn_type", None if attn_type == AttentionType.DECODER else attn_type)):
            if value is not None:
                raise NotImplementedError(f"{name}={value!r:.100} is not implemented")
        self.num_heads, self.head_size, self.scale, self.num_kv_heads, self.kv_cache_dtype = num_heads, head_size, float(scale), num_kv_heads or num_heads, kv_cache_dtype
        self.window, self.soft_cap = sliding_window or 0, float(logits_soft_cap or 0)
        self.form = (num_heads, self.scale, self.window, self.soft_cap)
        self.pool, self.pool_of = None, None

    def plan_form(self, spec):
        dtype = DTYPES[spec.dtype]
        return {"num_qo_heads": self.num_heads, "num_kv_heads": self.num_kv_heads, "head_dim": self.head_size, "dtype": dtype, "sm_scale": self.scale,
                "window": self.window, "soft_cap": self.soft_cap}

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        tokens = len(slot_mapping)
        self.pool_for(kv_cache).append(key[:tokens], value[:tokens], slot_mapping)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("output_scale is not implemented")
        if attn_metadata is None:  # a profiling run
            return output.fill_(0)
        plan = attn_metadata.plans[self.form]
        if plan.num_queries:
            attention.run(query, self.pool_for(kv_cache), plan, out=output, return_lse=False)
        return output

    def pool_for(self, kv_cache):
        """K and V of the layer: [blocks, block_size, heads, head_size] each, side by side in memory."""
        place = (kv_cache.data_ptr(), kv_cache.shape)
        if self.pool_of != place:
            k, v = kv_cache.transpose(1, 2).split(self.head_size, -1)
            self.pool, self.pool_of = attention.KvPool(device_of(kv_cache.device), k, v), place
        return self.pool


_devices = {}


def device_of(device):
    name = "cpu" if device.type == "cpu" else f"cuda:{torch.cuda.current_device() if device.index is None else device.index}"
    if name not in _devices:
        _devices[name] = attention.Device(name, num_threads=torch.get_num_threads() if name == "cpu" else 0)
    return _devices[name]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--backend", choices=("coppice", "default"), default="coppice")
    for name, value in (("groups", 16), ("samples", 32), ("prompt", 2048), ("tokens", 64), ("question", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--max-batch-tokens", type=int, help="of a step (default: vLLM's)")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    sys.modules.setdefault("vllm_backend", sys.modules["__main__"])
    from vllm import LLM, SamplingParams

    on_gpu = torch.cuda.is_available()
    if args.backend == "coppice":
        register()
    llm = LLM(args.model, load_format=args.load_format, dtype=args.dtype, skip_tokenizer_init=True, enforce_eager=args.eager, max_num_seqs=args.groups * args.samples, max_num_batched_tokens=args.max_batch_tokens,
              max_model_len=args.prompt + args.question + args.tokens + 8, enable_prefix_caching=True, seed=0,
              **({"attention_backend": "CUSTOM"} if args.backend == "coppice" and on_gpu else {}))
    vocabulary, draw = llm.llm_engine.vllm_config.model_config.get_vocab_size(), random.Random(1)

    def text(tokens):
        return [draw.randrange(3, vocabulary) for _ in range(tokens)]

    shared = [text(args.prompt) for _ in range(args.groups)]
    prompts = [{"prompt_token_ids": group + text(args.question)} for group in shared for _ in range(args.samples)]
    params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": group} for group in shared], SamplingParams(temperature=0, max_tokens=1, detokenize=False), use_tqdm=False)  # cached from here on
    begin = time.perf_counter()
    samples = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump([list(sample.outputs[0].token_ids) for sample in samples], file)
    print(json.dumps({"backend": args.backend, "samples": len(prompts), "seconds": round(seconds, 3), "tokens_per_second": round(len(prompts) * args.tokens / seconds, 1)}))


if __name__ == "__main__":
    main()
