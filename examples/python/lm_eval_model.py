"""lm-eval (the evaluation harness) with Coppice as its model: continuations of one context are scored as a tree, and all that is asked at a
time runs in the same steps. Usage: lm_eval_model.py MODEL TASK [FOLDER OF TASKS]; needs the package lm-eval.
"""

import collections
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import lm_eval
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from coppice_llm import LLM, SamplingParams


class CoppiceLM(LM):
    def __init__(self, model, **options):
        super().__init__()
        self.llm = LLM(model, **options)
        self.context = options.get("max_context") or self.llm.model_info["context_length"]

    def _score(self, questions):
        """Scores of (context, continuations) each; what several threads ask for runs together."""
        with ThreadPoolExecutor(16) as threads:
            return list(threads.map(lambda question: self.llm.score(*question), questions))

    def loglikelihood(self, requests, disable_tqdm=False):
        places = collections.defaultdict(list)
        for i, request in enumerate(requests):
            places[request.args[0]].append(i)
        scores = self._score([(context, [requests[i].args[1] for i in each]) for context, each in places.items()])
        by_place = {i: score for each, of_context in zip(places.values(), scores) for i, score in zip(each, of_context)}
        return [(by_place[i].logprob, by_place[i].greedy) for i in range(len(requests))]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        info = self.llm.model_info
        start = info["bos_token_id"] if info["bos_token_id"] >= 0 else info["eos_token_ids"][0]
        windows = [[make_disjoint_window(window) for window in get_rolling_token_windows(
            token_list=self.llm.tokenize(request.args[0], add_special=False), prefix_token=start, max_seq_len=self.context - 1, context_len=1)]
            for request in requests]
        scores = iter(self._score([(context, [tokens]) for each in windows for context, tokens in each]))
        return [sum(next(scores)[0].logprob for _ in each) for each in windows]

    def generate_until(self, requests, disable_tqdm=False):
        params = [SamplingParams(max_tokens=options.get("max_gen_toks", 256), temperature=options.get("temperature", 0.0), stop=options.get("until"))
                  for _, options in (request.args for request in requests)]
        return [sample.text for sample in self.llm.generate([request.args[0] for request in requests], params)]


if __name__ == "__main__":
    tasks = TaskManager(include_path=sys.argv[3] if len(sys.argv) > 3 else None)
    results = lm_eval.simple_evaluate(CoppiceLM(sys.argv[1], dtype="f32", weights="f32"), tasks=[sys.argv[2]], task_manager=tasks, bootstrap_iters=0)
    print(json.dumps(results["results"]))
