"""Coppice's HTTP API on Ray Serve: replicas of `coppice serve`, started and stopped by load, each of which has the prompts that begin alike.

    pip install . 'ray[serve]>=2.60'
    serve run examples.python.ray_serve:app model=/models/model.gguf      # from the repository's root; then http://127.0.0.1:8000/v1/...

Ray Serve starts replicas, chooses their number, restarts those that fail, and defines request routers. The router here is
coppice_llm.ray_router's: requests whose prompts begin alike go to one replica, so that the KV is in its cache, unless that one has `bound` times the
requests of all in the mean. Answers say in the header x-replica where they come from.
"""

import hashlib
import json
import signal
import subprocess

import aiohttp
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from ray import serve
from ray.serve.config import RequestRouterConfig

from coppice_llm.__main__ import PROGRAM

# Of a prompt, that its name is a hash of: characters of a text or of messages as JSON, or tokens. Long enough to distinguish system
# prompts apart, and shorter than these are.
BEGINNING = 512
MOST_REQUESTS = 256  # of a replica at once; others wait before it
NOT_PASSED_ON = {"host", "content-length", "transfer-encoding", "connection"}

routes = FastAPI()


def prefix_name(body):
    """The name of how a request's prompt begins; empty where it has none."""
    try:
        fields = json.loads(body)
        prompt = fields.get("messages") or fields.get("input") or fields.get("prompt")
    except (ValueError, AttributeError, RecursionError):
        return ""
    if not prompt:
        return ""
    is_plain = isinstance(prompt, str) or (isinstance(prompt, list) and isinstance(prompt[0], int))
    beginning = prompt[:BEGINNING] if is_plain else json.dumps(prompt)[:BEGINNING]
    return hashlib.sha256(json.dumps(beginning).encode()).hexdigest()


@serve.deployment
class Engine:
    """A replica: `coppice serve` on this machine, which ends with it."""

    def __init__(self, model, options):
        command = [PROGRAM, "serve", "--model", model, "--host", "127.0.0.1", "--port", "0", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"coppice serve ended with {self._process.wait()}")
        self._url = line.split()[-1]
        self._session = None

    def check_health(self):
        if self._process.poll() is not None:
            raise RuntimeError(f"coppice serve ended with {self._process.returncode}")

    def __del__(self):
        self._process.send_signal(signal.SIGTERM)  # answers what it has begun
        self._process.wait()

    async def answer(self, method, target, headers, body):
        """Status and headers, then the answer piece by piece as it comes."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        async with self._session.request(method, self._url + target, headers=headers, data=body) as response:
            passed_on = {name: value for name, value in response.headers.items() if name.lower() not in NOT_PASSED_ON}
            yield response.status, passed_on | {"x-replica": serve.get_replica_context().replica_id.unique_id}
            async for piece in response.content.iter_any():
                yield piece


@serve.deployment
@serve.ingress(routes)
class Api:
    """OpenAI's routes, and all others of `coppice serve`, sent on."""

    def __init__(self, engines):
        self._engines = engines.options(stream=True)

    @routes.api_route("/{path:path}", methods=["GET", "POST", "DELETE"])
    async def send_on(self, request: Request):
        body = await request.body()
        headers = {name: value for name, value in request.headers.items() if name not in NOT_PASSED_ON}
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        name = prefix_name(body)
        engines = self._engines.options(multiplexed_model_id=name) if name else self._engines
        pieces = engines.answer.remote(request.method, target, headers, body)
        status, headers = await anext(pieces)
        return StreamingResponse(pieces, status, headers)


def app(arguments):
    """`arguments` of `serve run`: model; replicas, at least and at most, as "1-8"; cpus and gpus of each; bound, of a replica's requests over the
    mean; target, the requests of a replica in the mean that it takes another one for; upscale_delay and downscale_delay, the seconds that
    it takes; options of `coppice serve`, separated by spaces."""
    least, _, most = arguments.get("replicas", "1-8").partition("-")
    cpus = int(arguments.get("cpus", 1))
    resources = {"num_cpus": cpus, "num_gpus": float(arguments.get("gpus", 0))}
    delays = {f"{name}_s": float(arguments[name]) for name in ("upscale_delay", "downscale_delay") if name in arguments}
    scaling = {"min_replicas": int(least), "max_replicas": int(most or least), "target_ongoing_requests": float(arguments.get("target", 16)), **delays}
    router = RequestRouterConfig(request_router_class="coppice_llm.ray_router.PrefixRouter",
                                 request_router_kwargs={"bound": float(arguments.get("bound", 1.25))})
    engines = Engine.options(max_ongoing_requests=MOST_REQUESTS, ray_actor_options=resources, request_router_config=router, autoscaling_config=scaling)
    api = Api.options(max_ongoing_requests=10000, ray_actor_options={"num_cpus": 0})
    return api.bind(engines.bind(arguments["model"], ["--threads", str(cpus), *arguments.get("options", "").split()]))
