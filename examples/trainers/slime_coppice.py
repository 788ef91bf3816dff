"""slime with Coppice in the place of SGLang: an engine class with the methods of slime's SGLangEngine, over HTTP alone.

Start servers, and train with engines that were started elsewhere; install() before slime is imported puts CoppiceEngine in the place of SGLangEngine:

    coppice serve --trainer --model MODEL --logprobs-mode processed_logprobs --port 10090
    python -c "import slime_coppice; slime_coppice.install(); import runpy; runpy.run_path('train.py', run_name='__main__')" \\
        --rollout-external-engine-addrs 127.0.0.1:10090 --update-weight-mode full --update-weight-transport disk --update-weight-disk-dir FOLDER ...

slime's rollouts speak SGLang's POST /generate, and go through its router to the servers as they are. Weights come from a folder that trainer and
server see, as slime's transport `disk` writes it; update_weights_from_shared_memory brings them faster on one machine. Not here: NCCL, deltas, LoRA
adapters, disaggregated prefill, the experts' routing. docs/trainers.md describes the server's side.
"""

import json
import sys
import types
import urllib.error
import urllib.request

MODULE = "slime.backends.sglang_utils.sglang_engine"


class CoppiceEngine:
    """A server that was started elsewhere. `args`: slime's; `router_ip` and `router_port` of init: where the server is made known, None: nowhere.
    `args.coppice_api_key`, of role trainer, where the server has keys."""

    def __init__(self, args, rank, worker_type="regular", base_gpu_id=None, sglang_overrides=None, num_gpus_per_engine=None):
        if worker_type != "regular":
            raise NotImplementedError(f"worker_type is {worker_type!r}, expected regular: prompts are not computed apart")
        self.args = args
        self.rank = rank
        self.key = getattr(args, "coppice_api_key", None)
        self.url = None
        self.router = None
        self.shared = None

    def init(self, dist_init_addr, port, nccl_port=None, host=None, disaggregation_bootstrap_port=None, router_ip=None, router_port=None):
        self.url = f"http://{host or dist_init_addr.rsplit(':', 1)[0]}:{port}"
        if "weights" not in self.ask("GET", "/server_info"):
            raise RuntimeError(f"the server at {self.url} takes no weights; start it with `coppice serve --trainer`")
        if router_ip and router_port:
            self.router = f"http://{router_ip}:{router_port}"
            self._send("POST", self.router + "/workers", {"url": self.url, "worker_type": "regular"})

    def ask(self, method, path, body=None):
        return self._send(method, self.url + path, body)

    def _send(self, method, url, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method)) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {url} answered {error.code}: {error.read().decode()}") from error

    def get_url(self):
        return self.url

    def health_generate(self, timeout=5.0):
        self.ask("GET", "/health_generate")
        return True

    def shutdown(self):
        """The server's process is not slime's to end."""
        if self.shared is not None:
            self.shared.close()
            self.shared = None

    def simulate_crash(self):
        """There is no process of slime's own to end."""

    # ---- rollouts

    def pause_generation(self):
        return self.ask("POST", "/pause_generation", {})

    def continue_generation(self):
        return self.ask("POST", "/continue_generation", {})

    def abort_request(self, rid=None):
        return self.ask("POST", "/abort_request", {"rid": rid} if rid else {"abort_all": True})["num_aborted"]

    def flush_cache(self):
        self.ask("GET", "/flush_cache")

    # ---- memory

    def release_memory_occupation(self):
        self.flush_cache()
        return self.ask("POST", "/release_memory_occupation", {})

    def resume_memory_occupation(self, tags=None):
        return self.ask("POST", "/resume_memory_occupation", {"tags": tags} if tags else {})

    # ---- weights

    def get_weight_version(self):
        return self.ask("GET", "/get_weight_version")["weight_version"]

    def check_weights(self, action):
        return self.ask("POST", "/weights_checker", {"action": action})

    def update_weights_from_disk(self, model_path, load_format=None, weight_version=None):
        """A folder of config.json and safetensors, whole."""
        if load_format not in (None, "auto", "safetensors"):
            raise NotImplementedError(f"load_format is {load_format!r}, expected safetensors: deltas are not read")
        body = {"model_path": model_path}
        if weight_version is not None:
            body["weight_version"] = str(weight_version)
        return self.ask("POST", "/update_weights_from_disk", body)

    def update_weights_from_shared_memory(self, named_weights, weight_version=None, bucket_bytes=None):
        """(name, tensor) of a trainer on the server's machine, some of the weights or all."""
        from shared_weights import BUCKET_BYTES, SharedWeights

        if self.shared is None:
            self.shared = SharedWeights(lambda info: self.ask("POST", "/update_weights", {"update_info": info}), bucket_bytes or BUCKET_BYTES)
        self.ask("POST", "/start_weight_update", {})
        self.shared.add_all(named_weights)
        return self.ask("POST", "/finish_weight_update", {} if weight_version is None else {"weight_version": str(weight_version)})

    def _no_transport(self, *_, **__):
        raise NotImplementedError("weights come from a folder (--update-weight-transport disk) or by update_weights_from_shared_memory")

    update_weights_from_tensor = pull_weights = _no_transport

    def init_weights_update_group(self, master_address, master_port, rank_offset, world_size, group_name, backend="nccl"):
        """Joins the trainer's group for what it broadcasts by NCCL."""
        return self.ask("POST", "/init_weights_update_group", {
            "master_address": master_address, "master_port": master_port, "rank_offset": rank_offset, "world_size": world_size, "group_name": group_name,
            "backend": backend})

    def update_weights_from_distributed(self, names, dtypes, shapes, group_name, flush_cache=False, weight_version=None):
        body = {"names": names, "dtypes": [str(dtype) for dtype in dtypes], "shapes": [list(shape) for shape in shapes], "group_name": group_name,
                "flush_cache": flush_cache}
        return self.ask("POST", "/update_weights_from_distributed", body if weight_version is None else body | {"weight_version": str(weight_version)})

    def destroy_weights_update_group(self, group_name):
        return self.ask("POST", "/destroy_weights_update_group", {"group_name": group_name})

    def post_process_weights(self, restore_weights_before_load=False, post_process_quantization=False):
        """Nothing is left to do when an update has ended."""

    def start_profile(self, **_):
        """There is no profiler to start."""

    stop_profile = start_profile


def install():
    """slime takes CoppiceEngine for its SGLangEngine from now on, and needs no sglang for it."""
    module = types.ModuleType(MODULE)
    module.SGLangEngine = CoppiceEngine
    sys.modules[MODULE] = module
