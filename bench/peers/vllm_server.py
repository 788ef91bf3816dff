#!/usr/bin/env python3
"""vLLM's AsyncLLM behind the one route that `coppice bench serve --url` asks: the same arrivals, lengths and clock for vLLM as for `coppice serve`.

vLLM 0.26.0 was used. Its engine core is a process of its own, as in vLLM's server, with the prefix cache on and graphs captured up to --max-running; there
is no detokenizer and no validation of requests, which its own server adds. Weights are random.

Usage: vllm_server.py --config FOLDER [--port 8001] [--max-running 256] [--max-batch-tokens 4096] [--max-context 9216]
       coppice bench serve --url http://127.0.0.1:8001 --vocab-size 128256 --workload mixture --rate 20,40
FOLDER holds config.json (bench/models). Prints "ready" once the engine runs; a start takes about a minute.
"""

import argparse
import json
import os
import resource
import sys

import vllm_settings

vllm_settings.hide_this_folder()

from aiohttp import web  # noqa: E402

NAME = "vllm"


class CompletionServer:
    """Streams completions of token ids; one choice a request."""

    def __init__(self, engine, sampling_params, delta):
        self.engine, self.sampling_params, self.delta = engine, sampling_params, delta
        self.requests = 0

    async def models(self, _):
        return web.json_response({"object": "list", "data": [{"id": NAME, "object": "model"}]})

    async def metrics(self, _):
        """CPU time of this process, in which vLLM reads requests and hands tokens out; the engine core's is not in it."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return web.Response(text=f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime}\n")

    async def completions(self, request):
        body = await request.json()
        if not body.get("stream") or body.get("n", 1) != 1:
            return web.json_response({"error": {"message": 'expected "stream": true and one sample a request'}}, status=400)
        params = self.sampling_params(temperature=body["temperature"], seed=body["seed"], max_tokens=body["max_tokens"], ignore_eos=body["ignore_eos"],
                                      detokenize=False, output_kind=self.delta)
        self.requests += 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        tokens, cached = 0, 0
        async for output in self.engine.generate({"prompt_token_ids": body["prompt"]}, params, str(self.requests)):
            choice = output.outputs[0]
            tokens += len(choice.token_ids)
            cached = output.num_cached_tokens or cached
            await self.send(response, {"choices": [{"index": 0, "text": "", "token_ids": list(choice.token_ids), "finish_reason": choice.finish_reason}]})
        await self.send(response, {"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens,
                                                           "prompt_tokens_details": {"cached_tokens": cached}}})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    @staticmethod
    async def send(response, event):
        await response.write(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")


async def make_application(options):
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(
        model=options.config, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", enable_prefix_caching=True,
        max_num_seqs=options.max_running, max_num_batched_tokens=options.max_batch_tokens, max_model_len=options.max_context, seed=0,
        compilation_config={"cudagraph_capture_sizes": vllm_settings.capture_sizes(options.max_running)}))
    server = CompletionServer(engine, SamplingParams, RequestOutputKind.DELTA)
    application = web.Application(client_max_size=64 << 20)
    application.add_routes([web.get("/v1/models", server.models), web.get("/metrics", server.metrics), web.post("/v1/completions", server.completions)])
    print("ready", flush=True)
    return application


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="folder with config.json")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--max-running", type=int, default=256)
    parser.add_argument("--max-batch-tokens", type=int, default=4096)
    parser.add_argument("--max-context", type=int, default=9216)
    options = parser.parse_args()
    vllm_settings.set_environment()
    try:
        import uvloop

        uvloop.install()
    except ImportError:
        pass  # asyncio's own loop does as well
    web.run_app(make_application(options), host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
