#!/usr/bin/env python3
"""TRL's GRPOTrainer with `coppice serve --trainer` in the place of vLLM: rollouts over HTTP, weights by shared memory.

CoppiceClient is a subclass of the client of TRL 1.16; TRL itself stays as it is, and needs neither vLLM nor a GPU. Trainer and server
run on one machine. As a program it trains a model for a synthetic task, to answer with a certain token:

    pip install trl==1.16.0 requests
    coppice serve --trainer --model MODEL --dtype f32 --port 8000
    python trl_grpo.py --model MODEL --server http://127.0.0.1:8000

With --nccl TRL's own client does it, unchanged: weights are broadcast by NCCL from this program's GPU to the server's, which is another one. That
takes vLLM installed beside TRL, and the same version of NCCL on both sides:

    CUDA_VISIBLE_DEVICES=0 LD_LIBRARY_PATH=SITE_PACKAGES/nvidia/nccl/lib coppice serve --trainer --model MODEL --device cuda --port 8000
    CUDA_VISIBLE_DEVICES=1 python trl_grpo.py --model MODEL --server http://127.0.0.1:8000 --nccl

MODEL is a Hugging Face folder. In a program of your own, call use_coppice() before you make the trainer, with use_vllm=True,
vllm_mode="server" and vllm_server_base_url in its GRPOConfig. docs/trainers.md describes the server's side.
"""

import argparse
import os

import torch
import trl.generation.vllm_client
import trl.generation.vllm_generation
from shared_weights import BUCKET_BYTES, SharedWeights
from trl.generation.vllm_client import VLLMClient


class CoppiceClient(VLLMClient):
    """Brings weights through a segment of shared memory, a bucket at a time, and names the token ids that it generates from. Where trainer
    and server have GPUs of one machine, CoppiceClient.weights_class = CudaWeights leaves the host out.

    `api_key`: of role trainer, where the server has keys; the default is the environment's COPPICE_API_KEY."""

    weights_class = SharedWeights

    def __init__(self, *args, api_key=None, bucket_bytes=BUCKET_BYTES, **kwargs):
        self.api_key = api_key or os.environ.get("COPPICE_API_KEY")
        self.weights = self.weights_class(self._send, bucket_bytes)
        self.steps = 0  # updates of weights
        super().__init__(*args, **kwargs)

    def _get(self, url, **kwargs):
        return super()._get(url, headers=self._headers(), **kwargs)

    def _post(self, url, **kwargs):
        return super()._post(url, headers=self._headers(), **kwargs)

    def _headers(self):
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def get_server_info(self):
        return self._get(f"{self.base_url}/server_info", params={"config_format": "json"})["vllm_config"]

    # ---- weights

    def init_communicator(self, device=0):
        """There is no group to join: whether the server takes weights in this way is asked, and nothing else."""
        if self.get_server_info()["weight_transfer_config"] is None:
            raise RuntimeError(f"the server at {self.base_url} takes no weights; start it with `coppice serve --trainer`")
        self._post(f"{self.base_url}/init_weight_transfer_engine", json={"init_info": {"transport": self.weights.transport}})

    def update_named_params(self, metadata, named_params):
        """Names, dtypes and shapes go with each bucket, whatever `metadata` says of them."""
        if not self._updating_weights:
            self._start_weight_update()
        self.weights.add_all(named_params)
        if not self._updating_weights:
            self._finish_weight_update()

    def _finish_weight_update(self):
        self.steps += 1
        self._post(f"{self.base_url}/finish_weight_update", json={"weight_version": f"update {self.steps}"})

    def _send(self, update_info):
        self._post(f"{self.base_url}/update_weights", json={"update_info": update_info})

    def close_communicator(self):
        self.weights.close()

    # ---- rollouts

    def generate(self, prompts, features=None, n=1, structured_outputs_regex=None, generation_kwargs=None, logprobs=0, **sampling):
        """Completions of token ids, as VLLMClient.generate gives them: the n of a prompt before those of the next one."""
        if features is not None:
            raise NotImplementedError("the server has no models that see images")
        request = {"model": self.model, "prompt": prompts, "n": n, "logprobs": logprobs, "return_token_ids": True, **sampling}
        if structured_outputs_regex is not None:
            request["regex"] = structured_outputs_regex
        request.update(generation_kwargs or {})
        choices = self._post(f"{self.base_url}/v1/completions", json=request)["choices"]
        completion_ids = [choice["token_ids"] for choice in choices]
        if logprobs is None:
            return {"prompt_ids": prompts, "completion_ids": completion_ids, "logprobs": None, "logprob_token_ids": None}
        return {
            "prompt_ids": prompts,
            "completion_ids": completion_ids,
            "logprobs": [[[logprob] for logprob in choice["logprobs"]["token_logprobs"]] for choice in choices],
            "logprob_token_ids": [[[token] for token in ids] for ids in completion_ids],
        }


def use_coppice(client=CoppiceClient):
    """TRL's trainers talk to a Coppice server from now on, as if vLLM were installed."""
    for module in (trl.generation.vllm_client, trl.generation.vllm_generation):
        module.is_vllm_available = lambda min_version=None: True
    trl.generation.vllm_generation.VLLMClient = client


def train(model, tokenizer, server, prompts, reward, steps=20, output="grpo", client=CoppiceClient, **config):
    """A GRPOTrainer that has trained. `reward(completion_ids=..., **others)` gives a number a completion; `client`: of use_coppice, or None for TRL's
    own; `config`: of GRPOConfig."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    if client is not None:
        use_coppice(client)
    settings = {
        "per_device_train_batch_size": 16,
        "num_generations": 8,
        "max_completion_length": 8,
        "learning_rate": 5e-3,
        "lr_scheduler_type": "constant",
        "temperature": 1.0,
        "beta": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": False,
    } | config
    arguments = GRPOConfig(output_dir=output, max_steps=steps, use_vllm=True, vllm_mode="server", vllm_server_base_url=server, **settings)
    trainer = GRPOTrainer(model=model, reward_funcs=[reward], args=arguments, processing_class=tokenizer,
                          train_dataset=Dataset.from_dict({"prompt": prompts}))
    trainer.train()
    return trainer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True, help="Hugging Face folder, the one that the server was started with")
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--nccl", action="store_true", help="TRL's own client: weights by NCCL, between two GPUs; it needs vLLM installed")
    parser.add_argument("--token", default=" the", help="text whose first token is what completions are rewarded for")
    arguments = parser.parse_args()

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    wanted = tokenizer(arguments.token, add_special_tokens=False)["input_ids"][0]

    def reward(completion_ids, **_):
        return [ids.count(wanted) / len(ids) for ids in completion_ids]

    prompts = ["Once upon a time", "The weather today", "A list of words:", "In the morning"] * 16
    trainer = train(model, tokenizer, arguments.server, prompts, reward, arguments.steps, client=None if arguments.nccl else CoppiceClient, learning_rate=1e-5)
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    print(f"reward of the first step {rewards[0]:.3f}, of the last {rewards[-1]:.3f}")


if __name__ == "__main__":
    main()
