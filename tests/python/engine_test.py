"""coppice_llm.LLM: generation, streams, asyncio, scores, prefixes, updates of weights, and what callers do wrong."""

import asyncio
import json
import math
import os
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cli"))

from program import TINY, default_model_or_skip, run_json  # noqa: E402

import numpy  # noqa: E402

from coppice_llm import LLM, Completion, SamplingParams, _llm  # noqa: E402

IDS = [1, 5, 9, 13, 2, 7, 4]


def tiny(**options):
    return LLM(TINY, device="cpu", kv_cache_bytes=16 << 20, num_threads=2, **{"dtype": "f32", "weights": "f32"} | options)


def safetensors(path):
    """The tensors of a file in bf16, as float32."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = file.read()
    del header["__metadata__"]
    assert {at["dtype"] for at in header.values()} == {"BF16"}
    return {name: (numpy.frombuffer(data[slice(*at["data_offsets"])], numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32).reshape(at["shape"])
            for name, at in header.items()}


def wait_until_idle(llm, seconds=60):
    """A cancelled request ends with the next step of the engine, not with the call that cancels it."""
    end = time.monotonic() + seconds
    while (metrics := llm.metrics())["running"] > 0 or metrics["waiting"] > 0:
        if time.monotonic() > end:
            raise AssertionError(f"{metrics['running']} samples run and {metrics['waiting']} wait after {seconds} s")
        time.sleep(0.01)


class Bf16:
    """A float32 array rounded to bfloat16, which numpy has no type for, by DLPack as torch gives it."""

    def __init__(self, array):
        import ctypes
        bits = array.astype(numpy.float32).view(numpy.uint32)
        self._array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)
        self._ctypes = ctypes

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        capsule = self._array.__dlpack__()
        api = self._ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = self._ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [self._ctypes.py_object, self._ctypes.c_char_p]
        tensor = api.PyCapsule_GetPointer(capsule, b"dltensor")
        # DLTensor: data, device (8 bytes), ndim (4 bytes), then dtype, whose first byte is the code; 4 is bfloat.
        self._ctypes.c_uint8.from_address(tensor + 8 + 8 + 4).value = 4
        return capsule


class Generation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = tiny()

    def test_samples_come_in_the_order_of_prompts(self):
        params = SamplingParams(n=3, max_tokens=5, seed=7, ignore_eos=True)
        samples = self.llm.generate([IDS, IDS[:3]], params)
        self.assertEqual([(s.prompt_index, s.index) for s in samples], [(p, i) for p in range(2) for i in range(3)])
        for sample in samples:
            self.assertEqual(len(sample.token_ids), 5)
            self.assertEqual((sample.logprobs.dtype, sample.logprobs.shape), (numpy.float32, (5,)))
            self.assertTrue((sample.logprobs <= 0).all())
            self.assertEqual((sample.finish_reason, sample.weight_version, sample.error, sample.text), ("length", 0, None, ""))
        self.assertEqual([s.token_ids for s in self.llm.generate(IDS, params)], [s.token_ids for s in samples[:3]])

    def test_says_what_the_program_says(self):
        said = run_json("--model", TINY, "--device", "cpu", "--prompt-ids", ",".join(map(str, IDS)), "-n", 2, "--max-tokens", 6, "--seed", 3,
                        "--dtype", "f32", "--weights", "f32", "--ignore-eos")
        samples = self.llm.generate(IDS, SamplingParams(n=2, max_tokens=6, seed=3, ignore_eos=True))
        self.assertEqual([s.token_ids for s in samples], [s["token_ids"] for s in said["samples"]])

    def test_a_list_of_devices_is_one_of_ranks(self):
        params = SamplingParams(n=2, max_tokens=12, temperature=0, ignore_eos=True)
        expected = [s.token_ids for s in self.llm.generate(IDS, params)]
        with LLM(TINY, device=["cpu", "cpu"], kv_cache_bytes=16 << 20, num_threads=2, dtype="f32", weights="f32") as ranks:
            self.assertEqual([s.token_ids for s in ranks.generate(IDS, params)], expected)

    def test_python_runs_beside_the_engine(self):
        # The GIL is free while steps run: another thread of Python goes on.
        turns, done = [], threading.Event()

        def count():
            while not done.is_set():
                turns.append(time.perf_counter())

        thread = threading.Thread(target=count)
        begin = time.perf_counter()
        thread.start()
        self.llm.generate(IDS, SamplingParams(n=64, max_tokens=200, ignore_eos=True))
        end = time.perf_counter()
        done.set()
        thread.join()
        pauses = numpy.diff([begin, *(turn for turn in turns if turn < end), end])
        self.assertGreater(end - begin, 0.1)
        self.assertLess(pauses.max(), 0.5 * (end - begin))

    def test_params_by_prompt_and_seeds(self):
        short, long = SamplingParams(max_tokens=2, ignore_eos=True), SamplingParams(max_tokens=4, ignore_eos=True)
        self.assertEqual([len(s.token_ids) for s in self.llm.generate([IDS, IDS], [short, long])], [2, 4])
        free = SamplingParams(max_tokens=16, ignore_eos=True)
        first, second = self.llm.generate([IDS, IDS], free)
        self.assertNotEqual(first.token_ids, second.token_ids)

    def test_what_is_cached_is_said(self):
        prompt = [3] * 64
        self.llm.generate(prompt, SamplingParams(max_tokens=1))
        self.assertGreaterEqual(self.llm.generate(prompt, SamplingParams(max_tokens=1))[0].cached_tokens, 48)

    def test_beams(self):
        params = SamplingParams(n=3, beam_width=6, max_tokens=5, length_penalty=0.0, early_stopping="never", ignore_eos=True)
        found = self.llm.generate(IDS, params)
        scores = [sample.beam_score for sample in found]
        self.assertEqual(scores, sorted(scores, reverse=True))
        for sample in found:
            self.assertAlmostEqual(sample.beam_score, float(sample.logprobs.sum()), places=4)
        self.assertIsNone(self.llm.generate(IDS, SamplingParams(max_tokens=2, ignore_eos=True))[0].beam_score)
        [one] = self.llm.generate(IDS, SamplingParams(beam_width=1, max_tokens=5, ignore_eos=True))
        [greedy] = self.llm.generate(IDS, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
        self.assertEqual(one.token_ids, greedy.token_ids)
        self.assertIsNotNone(one.beam_score)
        drawn = self.llm.generate(IDS, SamplingParams(n=6, beam_width=6, stochastic_beams=True, max_tokens=5, seed=3, ignore_eos=True))
        self.assertEqual(len({tuple(sample.token_ids) for sample in drawn}), 6)
        for wrong in ({"length_penalty": 2.0}, {"beam_width": 6, "repetition_penalty": 1.5}, {"beam_width": 2, "n": 3}):
            with self.assertRaises(ValueError):
                self.llm.generate(IDS, SamplingParams(**wrong))

    def test_params_of_none_are_as_their_default(self):
        given = SamplingParams(max_tokens=4, seed=1, ignore_eos=True, top_logprobs=None, logit_bias=types.MappingProxyType({5: 0}))
        [sample] = self.llm.generate(IDS, given)
        self.assertEqual([sample.token_ids], [s.token_ids for s in self.llm.generate(IDS, SamplingParams(max_tokens=4, seed=1, ignore_eos=True))])

    def test_alternatives(self):
        [sample] = self.llm.generate(IDS, SamplingParams(max_tokens=3, temperature=0, top_logprobs=2, ignore_eos=True))
        for token, logprob, place in zip(sample.token_ids, sample.logprobs, sample.top_logprobs):
            self.assertEqual(len(place), 2)
            self.assertEqual(next(iter(place)), token)
            self.assertAlmostEqual(place[token], logprob, places=5)

    def test_a_stream_adds_up(self):
        params = SamplingParams(n=4, max_tokens=12, seed=1, ignore_eos=True)
        whole = self.llm.generate(IDS, params)
        tokens, ends = {}, {}
        for piece in self.llm.stream(IDS, params):
            self.assertEqual(len(piece.logprobs), len(piece.token_ids))
            tokens.setdefault(piece.index, []).extend(piece.token_ids)
            if piece.finish_reason:
                ends[piece.index] = piece.finish_reason
        self.assertEqual([tokens[i] for i in range(4)], [s.token_ids for s in whole])
        self.assertEqual(ends, dict.fromkeys(range(4), "length"))

    def test_a_step_is_one_batch_of_news(self):
        call = self.llm._prepare(_llm._bodies(IDS, SamplingParams(n=8, max_tokens=20, ignore_eos=True)), False, False)
        steps = self.llm.metrics()["steps"]
        call.submit()
        batches = []
        while True:
            news = []
            call.take(news)
            if not news:
                break
            batches.append([sample[1] for sample in news])
        self.assertLessEqual(len(batches), self.llm.metrics()["steps"] - steps)  # whatever the samples
        self.assertEqual(sorted(set(sum(batches, []))), list(range(8)))

    def test_a_forgotten_stream_is_cancelled(self):
        stream = self.llm.stream(IDS, SamplingParams(n=2, max_tokens=100, ignore_eos=True))
        next(stream)
        stream.close()
        wait_until_idle(self.llm)

    def test_asyncio(self):
        params = SamplingParams(n=2, max_tokens=8, seed=2, ignore_eos=True)
        whole = [s.token_ids for s in self.llm.generate(IDS, params)]

        async def streamed():
            tokens = [[], []]
            async for piece in self.llm.astream(IDS, params):
                tokens[piece.index] += piece.token_ids
            return tokens

        async def both():
            return await asyncio.gather(self.llm.agenerate(IDS, params), streamed(), self.llm.agenerate(IDS, params))

        first, second, third = asyncio.run(both())
        self.assertEqual([s.token_ids for s in first], whole)
        self.assertEqual(second, whole)
        self.assertEqual([s.token_ids for s in third], whole)

    def test_a_cancelled_task_ends_its_requests(self):
        async def cancelled():
            task = asyncio.create_task(self.llm.agenerate(IDS, SamplingParams(max_tokens=100, ignore_eos=True)))
            await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        self.llm.pause("keep")  # so that it does not finish first
        try:
            asyncio.run(cancelled())
        finally:
            self.llm.resume()  # other tests would wait for ever
        wait_until_idle(self.llm)
        self.assertEqual(len(self.llm.generate(IDS, SamplingParams(max_tokens=2, ignore_eos=True))[0].token_ids), 2)

    def test_two_engines_in_two_threads(self):
        params = SamplingParams(n=2, max_tokens=20, seed=5, ignore_eos=True)
        expected = [s.token_ids for s in self.llm.generate(IDS, params)]
        said = {}
        with tiny() as other:
            def run(name, llm):
                said[name] = [s.token_ids for _ in range(5) for s in llm.generate(IDS, params)]

            threads = [threading.Thread(target=run, args=(i, llm)) for i, llm in enumerate((self.llm, other, self.llm))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(said, dict.fromkeys(range(3), expected * 5))

    def test_scores_are_sums_of_logprobs(self):
        continuations = [[8, 3, 1], [8, 3, 6], [2]]
        scores = self.llm.score(IDS, continuations)
        self.assertEqual([s.token_ids for s in scores], continuations)
        [greedy] = self.llm.generate(IDS, SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
        [best] = self.llm.score(IDS, [greedy.token_ids])
        self.assertTrue(best.greedy)
        numpy.testing.assert_allclose(best.logprobs, greedy.logprobs, rtol=1e-4, atol=1e-4)
        for score in scores:
            self.assertAlmostEqual(score.logprob, float(score.logprobs.sum()), places=4)
            self.assertLessEqual(score.logprob, best.logprob + 1e-4)

    def test_prefixes_in_files(self):
        prompt = list(range(2, 66))
        with tempfile.TemporaryDirectory() as folder, tiny() as other:
            path = os.path.join(folder, "prefix")
            self.llm.save_prefix(prompt, path)
            other.load_prefix(path, "read")
            self.assertGreaterEqual(other.generate(prompt + [1], SamplingParams(max_tokens=1))[0].cached_tokens, 64)
            other.unpin("read")
            with self.assertRaisesRegex(KeyError, "read"):
                other.unpin("read")
            with self.assertRaises(FileNotFoundError):
                other.load_prefix(os.path.join(folder, "absent"))

    def test_prefixes_are_saved_by_several_threads(self):
        prompts = {i: [i] * 64 for i in range(1, 7)}
        with tempfile.TemporaryDirectory() as folder:
            threads = [threading.Thread(target=self.llm.save_prefix, args=(prompt, os.path.join(folder, str(i)))) for i, prompt in prompts.items()]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for i, prompt in prompts.items():
                with tiny() as other:
                    other.load_prefix(os.path.join(folder, str(i)))
                    self.assertGreaterEqual(other.generate(prompt + [1], SamplingParams(max_tokens=1))[0].cached_tokens, 64)
        self.assertFalse(any(node["pinned"] for node in self.llm.metrics()["prefixes"]))

    def test_explains_sharing(self):
        params = SamplingParams(n=8, max_tokens=4, ignore_eos=True)
        prompt = [4] * 128
        self.llm.pin(prompt, "seen")
        self.llm.generate(prompt, params)
        explained = self.llm.explain()
        self.assertTrue(any(node["pinned"] and node["end"] >= 112 for node in explained["prefixes"]), explained)
        self.assertIn("pinned", str(explained))
        # Why: the prompt's read in the fullest step has its reason, also in the text.
        read = next(read for read in explained["fullest_plan"]["reads"] if read["samples"] == 8)
        self.assertRegex(read["reason"], "^8 samples read them (together|apart): ")
        self.assertIn(read["reason"], str(explained))
        self.assertEqual(self.llm.metrics()["fullest_plan"], explained["fullest_plan"])
        self.assertGreater(self.llm.metrics()["generated_tokens"], 0)
        self.llm.unpin("seen")

    def test_results_can_be_compared(self):
        params = SamplingParams(n=2, max_tokens=3, seed=1, ignore_eos=True)
        self.llm.generate(IDS, params)  # from then on as many tokens are cached
        samples = self.llm.generate(IDS, params)
        self.assertEqual(samples, self.llm.generate(IDS, params))
        self.assertNotEqual(samples[0], samples[1])
        scores = self.llm.score(IDS, [[8, 3], [2]])
        self.assertEqual([score.token_ids for score in scores if score == scores[0]], [[8, 3]])

    def test_completions_can_be_pickled(self):
        [sample] = self.llm.generate(IDS, SamplingParams(max_tokens=2, ignore_eos=True))
        again = pickle.loads(pickle.dumps(sample))
        self.assertIsInstance(again, Completion)
        self.assertEqual(again.token_ids, sample.token_ids)
        self.assertAlmostEqual(again.mean_logprob, float(sample.logprobs.mean()))

    def test_calls_do_not_grow(self):
        params = SamplingParams(n=2, max_tokens=2, temperature=0, ignore_eos=True)

        def repeat(count):
            for i in range(count):
                if i % 2:
                    self.llm.generate(IDS, params)
                else:
                    list(self.llm.stream(IDS, params))
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        before = repeat(300)
        self.assertLess(repeat(int(os.environ.get("COPPICE_CALLS", 1000))) - before, 1024)  # KiB

    def test_nothing_to_do(self):
        self.assertEqual(self.llm.generate([]), [])
        self.assertEqual(list(self.llm.stream([])), [])


class Mistakes(unittest.TestCase):
    """Each names the argument and the value."""

    @classmethod
    def setUpClass(cls):
        cls.llm = tiny()

    def refused(self, error, words, call):
        with self.assertRaises(error) as caught:
            call()
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_options(self):
        self.refused(TypeError, ["max_runing", "3", "max_running"], lambda: tiny(max_runing=3))
        with self.assertRaisesRegex(TypeError, "options are (.*)") as caught:
            tiny(max_runing=3)
        for option in str(caught.exception).partition("options are ")[2].split(", "):  # the docstring has each
            if option not in ("device", "model_path"):
                self.assertRegex(LLM.__init__.__doc__, rf"\b{option}\b")
        self.refused(TypeError, ["max_running", "'3'", "integer"], lambda: tiny(max_running="3"))
        self.refused(TypeError, ["deterministic", "1"], lambda: tiny(deterministic=1))
        self.refused(ValueError, ["dtype", "'int8'", "bf16"], lambda: tiny(dtype="int8"))
        self.refused(ValueError, ["page_size", "0"], lambda: tiny(page_size=0))
        self.refused(FileNotFoundError, ["no_such_model"], lambda: LLM("/tmp/no_such_model", device="cpu"))
        self.refused(TypeError, ["device", "[1]"], lambda: LLM(TINY, device=[1]))
        self.refused(ValueError, ["device", "[]"], lambda: LLM(TINY, device=[]))
        self.refused(ValueError, ["tpu"], lambda: LLM(TINY, device=["cpu", "tpu"]))

    def test_params(self):
        for params, words in (({"n": 0}, ["n ", "0"]), ({"temperature": -1.0}, ["temperature", "-1"]), ({"top_p": 1.5}, ["top_p", "1.5"]),
                              ({"temperature": math.nan}, ["temperature", "nan"]), ({"top_logprobs": 129}, ["logprobs", "129"]),
                              ({"stop_token_ids": [-1]}, ["stop_token_ids", "-1"]), ({"max_tokens": "many"}, ["max_tokens", "many"])):
            with self.subTest(params=params):
                self.refused(ValueError, words, lambda params=params: self.llm.generate(IDS, SamplingParams(**params)))
        self.refused(TypeError, ["seed"], lambda: self.llm.generate(IDS, SamplingParams(seed=object())))
        self.refused(TypeError, ["logit_bias", "[5]"], lambda: self.llm.generate(IDS, SamplingParams(logit_bias=[5])))
        self.refused(ValueError, ["json_schema", "'{a'"], lambda: self.llm.generate(IDS, SamplingParams(json_schema="{a")))
        self.refused(TypeError, ["params", "7"], lambda: self.llm.generate(IDS, 7))
        self.refused(ValueError, ["params", "1", "2"], lambda: self.llm.generate([IDS, IDS], [SamplingParams()]))

    def test_prompts(self):
        self.refused(TypeError, ["prompts", "3.5"], lambda: self.llm.generate(3.5))
        self.refused(TypeError, ["prompts[1]", "None"], lambda: self.llm.generate([IDS, None]))
        self.refused(TypeError, ["prompts", "array(5)"], lambda: self.llm.generate(numpy.array(5)))
        self.refused(TypeError, ["prompts[0]", "array(5)"], lambda: self.llm.generate([numpy.array(5)]))
        self.refused(TypeError, ["prompts", "bytearray"], lambda: self.llm.generate(bytearray(b"a text")))
        for messages in ("a text", IDS, []):
            self.refused(TypeError, ["messages", repr(messages)], lambda messages=messages: self.llm.chat(messages))
        self.refused(TypeError, ["token_ids", "1.5"], lambda: self.llm.detokenize([1.5]))
        self.refused(ValueError, ["prompts[1]", "100000"], lambda: self.llm.generate([IDS, [100000]]))
        self.refused(ValueError, ["tokenizer"], lambda: self.llm.generate("a text"))
        self.refused(TypeError, ["continuations", "'x'"], lambda: self.llm.score(IDS, "x"))
        wait_until_idle(self.llm)  # prompts[0] of a refused call was cancelled

    def test_weights(self):
        shape = [int(self.llm.model_info["hidden_size"])]
        name = "model.norm.weight"
        ones = numpy.ones(shape, numpy.float32)
        self.refused(ValueError, ["tensors['model.norm.weight']", "64 bits"], lambda: self.llm.update_weights({name: ones.astype(numpy.float64)}))
        self.refused(ValueError, ["tensors['model.norm.weight']", "stride"], lambda: self.llm.update_weights({name: numpy.ones(2 * shape[0], "f4")[::2]}))
        self.refused(TypeError, ["tensors['model.norm.weight']", "list"], lambda: self.llm.update_weights({name: [1.0]}))
        self.refused(ValueError, ["no.such.weight"], lambda: self.llm.update_weights({"no.such.weight": ones}))
        self.refused(ValueError, ["when", "'later'"], lambda: self.llm.update_weights({name: ones}, when="later"))
        self.refused(TypeError, ["tensors", "3"], lambda: self.llm.update_weights(3))
        self.assertEqual(self.llm.weight_version, (0, ""))

    def test_closed(self):
        llm = tiny()
        llm.close()
        llm.close()
        self.refused(RuntimeError, ["closed"], lambda: llm.generate(IDS))
        self.refused(RuntimeError, ["closed"], llm.metrics)

    def test_what_runs_ends_with_the_engine(self):
        # A part of a stream that looks like all of it would be lost.
        endless = SamplingParams(n=20, max_tokens=2000, ignore_eos=True)

        async def streamed(llm):
            async for _ in llm.astream(IDS, endless):
                llm.close()

        async def whole(llm):
            asyncio.get_running_loop().call_later(0.1, llm.close)
            await llm.agenerate(IDS, endless)

        def read(llm):
            for _ in llm.stream(IDS, endless):
                llm.close()

        for use in (read, lambda llm: asyncio.run(streamed(llm)), lambda llm: asyncio.run(whole(llm))):
            self.refused(RuntimeError, ["the LLM is closed"], lambda use=use: use(tiny()))
        llm = tiny()
        stream = llm.stream(IDS, SamplingParams(max_tokens=1, ignore_eos=True))
        self.assertEqual(next(stream).finish_reason, "length")
        llm.close()
        self.assertEqual(list(stream), [])  # there was no more

    def test_time_is_over(self):
        [sample] = self.llm.generate(IDS, SamplingParams(max_tokens=100, ignore_eos=True, timeout=1e-4))
        self.assertEqual(sample.finish_reason, "error")
        self.assertIn("DEADLINE_EXCEEDED", sample.error)


class Weights(unittest.TestCase):
    def test_updates_say_what_loaded_weights_say(self):
        tensors = safetensors(os.path.join(TINY, "model.safetensors"))
        params = SamplingParams(n=2, max_tokens=8, seed=1, ignore_eos=True)
        with tiny() as llm:
            before = [s.token_ids for s in llm.generate(IDS, params)]
            changed = {name: numpy.ascontiguousarray(tensor[..., ::-1], numpy.float32) for name, tensor in tensors.items()}
            self.assertEqual(llm.update_weights(changed, label="turned"), 1)
            self.assertEqual(llm.weight_version, (1, "turned"))
            turned = llm.generate(IDS, params)
            self.assertNotEqual([s.token_ids for s in turned], before)
            self.assertEqual({s.weight_version for s in turned}, {1})
            self.assertEqual(llm.update_weights(tensors, when="abort"), 2)
            self.assertEqual([s.token_ids for s in llm.generate(IDS, params)], before)

    def test_bf16_by_dlpack(self):
        tensors = {name: tensor * numpy.float32(1.1) for name, tensor in safetensors(os.path.join(TINY, "model.safetensors")).items()}
        rounded = {name: (Bf16(tensor)._array.astype(numpy.uint32) << 16).view(numpy.float32) for name, tensor in tensors.items()}
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        with tiny() as llm:
            llm.update_weights(rounded)
            [expected] = llm.generate(IDS, params)
            llm.update_weights({name: Bf16(tensor) for name, tensor in tensors.items()})
            [said] = llm.generate(IDS, params)
            self.assertEqual(said.token_ids, expected.token_ids)
            numpy.testing.assert_array_equal(said.logprobs, expected.logprobs)


class Pauses(unittest.TestCase):
    def test_sleep_and_wake(self):
        params = SamplingParams(n=2, max_tokens=6, seed=1, ignore_eos=True)
        with tiny() as llm:
            before = [s.token_ids for s in llm.generate(IDS, params)]
            for level in (1, 2):
                llm.sleep(level)
                self.assertEqual(llm.state, "asleep")
                with self.assertRaises(RuntimeError):
                    llm.resume()
                llm.wake()
                self.assertEqual(llm.state, "running")
                self.assertEqual([s.token_ids for s in llm.generate(IDS, params)], before)

    def test_what_waits_goes_on(self):
        with tiny() as llm:
            llm.pause()
            stream = llm.stream(IDS, SamplingParams(max_tokens=3, ignore_eos=True))
            self.assertEqual((llm.state, llm.metrics()["generated_tokens"]), ("paused", 0))
            llm.resume()
            self.assertEqual(sum(len(piece.token_ids) for piece in stream), 3)
            llm.pause("keep", refuse_new=True)
            with self.assertRaisesRegex(RuntimeError, "UNAVAILABLE"):
                llm.generate(IDS)
            with self.assertRaisesRegex(ValueError, "'soon'"):
                llm.pause("soon")


class Trees(unittest.TestCase):
    """Samples that are forked, extended and pruned. A child says what a request of its own would after the same tokens."""

    @classmethod
    def setUpClass(cls):
        cls.llm = tiny(deterministic=True)
        cls.greedy = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)

    def fresh(self, prompt, **params):
        return [s.token_ids for s in self.llm.generate(prompt, SamplingParams(**{"max_tokens": 8, "ignore_eos": True} | params))]

    def test_children_go_on_where_their_sample_was(self):
        [root] = self.llm.generate(IDS, self.greedy, keep=True)
        self.assertEqual(root.token_ids, self.fresh(IDS, temperature=0)[0])
        children = self.llm.fork(root, n=3, keep_tokens=2, seed=7, params=SamplingParams(temperature=1.0))
        self.assertEqual([child.index for child in children], [0, 1, 2])
        self.assertEqual([child.token_ids for child in children], self.fresh(IDS + root.token_ids[:2], n=3, seed=7))
        [child] = self.llm.fork(root.sample)
        self.assertEqual([child.token_ids], self.fresh(IDS + root.token_ids, temperature=0))
        # Of a child, which draws by its own parameters: greedy again.
        [again] = self.llm.fork(child, params=SamplingParams(temperature=0, max_tokens=3))
        self.assertEqual([again.token_ids], self.fresh(IDS + root.token_ids + child.token_ids, temperature=0, max_tokens=3))
        info = self.llm.describe(again)
        self.assertEqual((info.prompt_tokens, info.finished), (len(IDS), True))
        self.assertEqual(info.token_ids, IDS + root.token_ids + child.token_ids + again.token_ids)

    def test_a_fork_of_what_streams(self):
        stream = self.llm.stream(IDS, SamplingParams(max_tokens=2000, temperature=0, ignore_eos=True), keep=True)
        first = next(stream)
        self.assertFalse(self.llm.describe(first).finished)
        children = self.llm.fork(first, n=2, keep_tokens=1, max_tokens=4)
        self.assertEqual([child.token_ids for child in children], self.fresh(IDS + first.token_ids[:1], temperature=0, max_tokens=4) * 2)
        stream.close()
        wait_until_idle(self.llm)
        with self.assertRaises(KeyError):
            self.llm.describe(first)
        self.assertTrue(self.llm.describe(children[0]).finished)

    def test_streams_and_asyncio(self):
        [root] = self.llm.generate(IDS, self.greedy, keep=True)
        whole = [child.token_ids for child in self.llm.fork(root, n=2, seed=3, params=SamplingParams(temperature=1.0))]
        pieces = {0: [], 1: []}
        for piece in self.llm.stream_fork(root, n=2, seed=3, params=SamplingParams(temperature=1.0)):
            pieces[piece.index] += piece.token_ids
        self.assertEqual([pieces[0], pieces[1]], whole)

        async def both():
            children = await self.llm.afork(root, n=2, seed=3, params=SamplingParams(temperature=1.0))
            pieces = {0: [], 1: []}
            async for piece in self.llm.astream_fork(root, n=2, seed=3, params=SamplingParams(temperature=1.0)):
                pieces[piece.index] += piece.token_ids
            on = await self.llm.aextend(children[0], [40])
            return [child.token_ids for child in children], [pieces[0], pieces[1]], children[0].token_ids, on.token_ids
        children, streamed, before, after = asyncio.run(both())
        self.assertEqual((children, streamed), (whole, whole))
        self.assertEqual(len(after), 8)
        self.assertEqual([child.token_ids for child in self.llm.fork(root, keep_tokens=0, n=1)], self.fresh(IDS, temperature=0))

    def test_a_sample_is_extended_turn_by_turn(self):
        [root] = self.llm.generate(IDS, self.greedy, keep=True)
        turns = IDS + root.token_ids
        for tool in ([40, 41], [42]):
            answer = self.llm.extend(root, tool)
            self.assertEqual([answer.token_ids], self.fresh(turns + tool, temperature=0))
            turns += tool + answer.token_ids
            self.assertEqual(self.llm.describe(answer).token_ids, turns)
        pieces = [piece for piece in self.llm.stream_extend(root, [43])]
        self.assertEqual([sum((piece.token_ids for piece in pieces), [])], self.fresh(turns + [43], temperature=0))
        self.assertEqual(pieces[-1].finish_reason, "length")

    def test_a_sample_is_extended_while_it_streams(self):
        def one_piece(pieces):
            [piece] = pieces
            return piece

        tool = [40, 41]
        for extend in (self.llm.extend, lambda *given: one_piece(self.llm.stream_extend(*given)), lambda *given: asyncio.run(self.llm.aextend(*given))):
            received, answer = [], None
            for piece in self.llm.stream(IDS, SamplingParams(max_tokens=400, temperature=0, ignore_eos=True), keep=True):
                received += piece.token_ids
                if answer is None:
                    answer = extend(piece, tool)
            self.assertEqual((answer.token_ids, answer.finish_reason, repr(answer.sample)), ([], None, repr(piece.sample)))
            self.assertEqual((len(received), piece.finish_reason), (400, "length"))  # what was added is not part of it, and does not count
            tokens = self.llm.describe(answer).token_ids
            places = [p for p in range(len(IDS), len(tokens)) if tokens[p:p + 2] == tool and tokens[:p] + tokens[p + 2:] == IDS + received]
            self.assertTrue(any([tokens[p + 2:]] == self.fresh(tokens[:p + 2], temperature=0, max_tokens=len(tokens) - p - 2) for p in places))

    def test_what_is_let_go_is_gone(self):
        samples = self.llm.generate(IDS, SamplingParams(n=2, max_tokens=2, ignore_eos=True), keep=True)
        self.llm.prune(samples[0])
        self.llm.fork(samples[1])
        for verb in (self.llm.fork, self.llm.describe, lambda sample: self.llm.extend(sample, [1])):
            with self.assertRaisesRegex(KeyError, "pruned"):
                verb(samples[0])
        self.llm.release(samples[1])
        for verb in (self.llm.fork, self.llm.describe):
            with self.assertRaises(KeyError):
                verb(samples[1])
        with self.assertRaises(KeyError):  # once the engine's next turn is over; until then nothing is left to do
            for _ in range(6000):
                self.llm.release(samples[1])
                time.sleep(0.01)

    def test_what_no_completion_holds_is_released(self):
        prompt = list(range(1, 301)) * 5  # 6 KB of a kept request

        def repeat(count):
            for _ in range(count):
                [one, other] = self.llm.generate(prompt, SamplingParams(n=2, max_tokens=1, temperature=0, ignore_eos=True), keep=True)
                handle = other.sample
                del one, other
                self.llm.fork(handle)
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        before = repeat(50)
        self.assertLess(repeat(500) - before, 1024)  # KiB; 3,000 and more where they stay

    def test_the_time_of_a_request_runs_on_for_children(self):
        [late] = self.llm.generate(IDS, SamplingParams(max_tokens=2000, ignore_eos=True, timeout=0.01), keep=True)
        self.assertEqual(late.finish_reason, "error")
        [child] = self.llm.fork(late, max_tokens=3)
        self.assertEqual((child.finish_reason, child.token_ids), ("error", []))
        self.assertIn("DEADLINE_EXCEEDED", child.error)

    def test_many_threads_grow_one_tree(self):
        [root] = self.llm.generate(IDS, self.greedy, keep=True)
        expected = {n: self.fresh(IDS + root.token_ids, n=n, seed=n) for n in range(1, 5)}
        wrong = []

        def grow(n):
            for _ in range(10):
                children = [c.token_ids for c in self.llm.fork(root, n=n, seed=n, params=SamplingParams(temperature=1.0))]
                if children != expected[n]:
                    wrong.append((n, children))
        threads = [threading.Thread(target=grow, args=(n,)) for n in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_what_callers_do_wrong(self):
        [plain] = self.llm.generate(IDS, self.greedy)
        [root] = self.llm.generate(IDS, self.greedy, keep=True)
        for error, message, call in [
            (TypeError, "generate it with keep=True", lambda: self.llm.fork(plain)),
            (TypeError, "sample=3: expected a sample that is kept", lambda: self.llm.prune(3)),
            (ValueError, "n is 0", lambda: self.llm.fork(root, n=0)),
            (ValueError, "keep_tokens is 9, expected a number in 0..8", lambda: self.llm.fork(root, keep_tokens=9)),
            (ValueError, "params.stop='a': a fork has it from its request", lambda: self.llm.fork(root, params=SamplingParams(stop="a"))),
            (ValueError, "top_p", lambda: self.llm.fork(root, params=SamplingParams(top_p=2.0))),
            (TypeError, "params=3: expected SamplingParams", lambda: self.llm.fork(root, params=3)),
            (RuntimeError, "text needs a tokenizer and the model has none: give token_ids", lambda: self.llm.extend(root, "a")),
            (TypeError, "expected a string or a list of token ids", lambda: self.llm.extend(root, [{"role": "user", "content": "a"}])),
            (ValueError, "tokens", lambda: self.llm.extend(root, [1 << 30])),
        ]:
            with self.assertRaisesRegex(error, re.escape(message)):
                call()
        with tiny() as other, self.assertRaisesRegex(ValueError, "the sample is of another LLM"):
            other.fork(root)
        closed = tiny()
        [lost] = closed.generate(IDS, self.greedy, keep=True)
        closed.close()
        with self.assertRaisesRegex(RuntimeError, "the LLM is closed"):
            closed.fork(lost)


class Processes(unittest.TestCase):
    def run_python(self, code):
        """stdout of a new interpreter that runs `code`."""
        prelude = f"import sys; sys.path[:0] = {sys.path!r}\nfrom coppice_llm import LLM, SamplingParams\nTINY = {TINY!r}\n"
        done = subprocess.run([sys.executable, "-c", prelude + code], stdout=subprocess.PIPE, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_a_forked_process_refuses(self):
        out = self.run_python("""
import os
llm = LLM(TINY, device="cpu", num_threads=2)
stream = llm.stream([1, 2], SamplingParams(max_tokens=2000, ignore_eos=True))
next(stream)
child = os.fork()
if child == 0:
    for use in (lambda: llm.generate([1, 2]), lambda: list(stream)):
        try:
            use()
        except RuntimeError as error:
            print(error, flush=True)
    sys.exit(0)
print(os.waitpid(child, 0)[1], len(llm.generate([1, 2], SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids))
""")
        self.assertEqual(out.count("forked"), 2, out)
        self.assertTrue(out.endswith("\n0 3\n"), out)

    def test_an_interrupt_ends_with_what_there_is(self):
        # The process sends the signal itself, since it alone knows that samples have begun and none can have ended.
        out = self.run_python("""
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background inherits that it is ignored
llm = LLM(TINY, device="cpu", num_threads=2)

def interrupt():
    while llm.metrics()["generated_tokens"] == 0:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
samples = llm.generate([1, 2, 3], SamplingParams(n=4000, max_tokens=100, ignore_eos=True))
print(len(samples), any(sample.finish_reason == "cancelled" for sample in samples), sum(len(sample.token_ids) for sample in samples) > 0)
""")
        self.assertEqual(out, "4000 True True\n")

    def test_an_interrupt_loses_nothing_that_is_there(self):
        # At any moment: before the end of a short generation, at it and behind it, where nothing is left to be cancelled.
        out = self.run_python("""
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
llm = LLM(TINY, device="cpu", num_threads=2)
params = SamplingParams(n=3, max_tokens=10, ignore_eos=True)

def interrupt(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGINT)

lost = 0
for generate in (llm.generate, llm.stream):
    for i in range(60):
        thread = threading.Thread(target=interrupt, args=(i * 0.0003,))
        try:
            thread.start()
            if sum(sample.finish_reason is not None for sample in generate([1, 2, 3], params)) != 3:
                lost += 1
            thread.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            thread.join()
print(lost)
""")
        self.assertEqual(out, "0\n")

    def test_an_open_engine_does_not_keep_the_interpreter(self):
        self.assertEqual(self.run_python("llm = LLM(TINY, device='cpu'); stream = llm.stream([1], SamplingParams(max_tokens=90)); next(stream)\n"), "")

    def test_a_daemon_thread_ends_with_the_interpreter(self):
        # It waits in the extension when the interpreter ends.
        self.assertEqual(self.run_python("""
import threading
begun = threading.Event()

def read():
    for piece in LLM(TINY, device="cpu", num_threads=2).stream([1], SamplingParams(n=20, max_tokens=2000, ignore_eos=True)):
        begun.set()

threading.Thread(target=read, daemon=True).start()
begun.wait()
"""), "")

    def test_the_program(self):
        done = subprocess.run([sys.executable, "-m", "coppice_llm", "--version"], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                              check=True)
        self.assertTrue(done.stdout.startswith("coppice "), done.stdout)


class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(default_model_or_skip(), device="cpu", kv_cache_bytes=64 << 20)

    def test_text_and_stop(self):
        [sample] = self.llm.generate("The capital of France is", SamplingParams(max_tokens=8, temperature=0))
        self.assertIn("Paris", sample.text)
        self.assertEqual(self.llm.detokenize(self.llm.tokenize("A coppice.", add_special=False)), "A coppice.")
        [stopped] = self.llm.generate("The capital of France is", SamplingParams(max_tokens=8, temperature=0, stop="Paris"))
        self.assertEqual((stopped.finish_reason, "Paris" in stopped.text), ("stop", False))

    def test_what_is_no_text_or_token(self):
        with self.assertRaisesRegex(ValueError, r"prompt='a\\udc80'.*surrogates"):
            self.llm.generate("a\udc80")
        for token in (-1, 1 << 40, self.llm.model_info["vocab_size"]):
            with self.assertRaisesRegex(ValueError, rf"token_ids\[1\] is {token}, expected"):
                self.llm.detokenize([5, token])

    def test_chats(self):
        messages = [{"role": "user", "content": "Say hello."}]
        [said] = self.llm.chat(messages, SamplingParams(max_tokens=8, temperature=0))
        [again] = self.llm.generate(messages, SamplingParams(max_tokens=8, temperature=0))
        self.assertEqual(said.token_ids, again.token_ids)
        with self.assertRaisesRegex(ValueError, "role"):
            self.llm.chat([{"role": "stranger", "content": "x"}])

    def test_forms(self):
        [digits] = self.llm.generate("A number:", SamplingParams(max_tokens=8, regex="[0-9]{3}"))
        self.assertRegex(digits.text, r"^[0-9]{3}$")
        schema = {"type": "object", "properties": {"b": {"type": "boolean"}, "a": {"type": "boolean"}}, "required": ["b", "a"], "additionalProperties": False}
        [form] = self.llm.generate("An object:", SamplingParams(max_tokens=64, temperature=0, json_schema=schema))
        self.assertEqual(list(json.loads(form.text)), ["b", "a"])

    def test_scores_of_text(self):
        paris, rome = self.llm.score("The capital of France is", [" Paris", " Rome"])
        self.assertGreater(paris.logprob, rome.logprob)


if __name__ == "__main__":
    unittest.main()
